//! Authenticates pods by their `ServiceAccount` tokens, offline with the keys of the issuer or by asking the cluster.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::jwks::KeySetCache;
use super::single_flight::SingleFlight;
use super::token_cache::{TokenCache, TokenDigest, TokenProof, VerifiedToken, digest_of};
use super::token_claims::{CheckedClaims, ClaimRules, UnverifiedToken};
use super::{
    AuthError, KeySetSource, PodIdentity, REGISTER_AUDIENCE, REQUEST_WAIT, TokenReviewer, unix_seconds,
};

/// Tokens of Kubernetes have about one kilobyte.
const MOST_BYTES: usize = 8 << 10;
/// How many reviews run at once, so that a flood of forged tokens does not become a flood for the API server.
const CONCURRENT_REVIEWS: usize = 16;
/// How many reviews run or wait.
const MOST_REVIEWS: usize = 1024;
/// Includes the wait for a free place among the running reviews.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the answer of the cluster counts.
const REVIEW_LIFETIME: Duration = Duration::from_mins(1);

/// How tokens are checked.
pub enum TokenCheck {
    /// Offline, with the public keys of the issuer.
    KeySet {
        /// The only accepted issuer (`iss`).
        issuer: String,
        /// Where its keys are.
        source: Arc<dyn KeySetSource>,
    },
    /// By asking the cluster.
    Review(Arc<dyn TokenReviewer>),
}

/// The settings of a [`TokenAuthenticator`].
#[derive(Debug, Clone)]
pub struct TokenSettings {
    /// The audience that tokens must be for.
    pub audience: String,
    /// The tolerance for differences of clocks, for expiry and not-before.
    pub leeway: Duration,
    /// How many verified tokens are remembered.
    pub remembered: usize,
}

impl Default for TokenSettings {
    fn default() -> Self {
        Self { audience: REGISTER_AUDIENCE.to_owned(), leeway: Duration::from_secs(30), remembered: 16_384 }
    }
}

/// Authenticates pods by their tokens.
pub struct TokenAuthenticator {
    method: Method,
    audience: Arc<str>,
    /// In seconds.
    leeway: u64,
    time_of_day: fn() -> SystemTime,
    verified: Arc<TokenCache>,
}

enum Method {
    KeySet { issuer: String, keys: KeySetCache },
    Review(Reviews),
}

struct Reviews {
    reviewer: Arc<dyn TokenReviewer>,
    running: SingleFlight<TokenDigest, Result<PodIdentity, AuthError>>,
    places: Arc<Semaphore>,
}

impl fmt::Debug for TokenAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = match &self.method {
            Method::KeySet { .. } => "key set",
            Method::Review(_) => "review",
        };
        f.debug_struct("TokenAuthenticator").field("method", &method).finish_non_exhaustive()
    }
}

impl TokenAuthenticator {
    /// An authenticator that has fetched nothing yet.
    pub fn new(check: TokenCheck, settings: TokenSettings, time_of_day: fn() -> SystemTime) -> Self {
        let method = match check {
            TokenCheck::KeySet { issuer, source } => {
                Method::KeySet { issuer, keys: KeySetCache::new(source) }
            }
            TokenCheck::Review(reviewer) => Method::Review(Reviews {
                reviewer,
                running: SingleFlight::new(MOST_REVIEWS),
                places: Arc::new(Semaphore::new(CONCURRENT_REVIEWS)),
            }),
        };
        Self {
            method,
            audience: settings.audience.into(),
            leeway: settings.leeway.as_secs(),
            time_of_day,
            verified: Arc::new(TokenCache::new(settings.remembered)),
        }
    }

    /// The pod that `token` is bound to. A token that was verified before is accepted without waiting.
    pub async fn authenticate(&self, token: &str) -> Result<PodIdentity, AuthError> {
        if token.len() > MOST_BYTES {
            return Err(AuthError::Refused(format!("the token has more than {MOST_BYTES} bytes")));
        }
        let (digest, now) = (digest_of(token.as_bytes()), unix_seconds((self.time_of_day)()));
        if let Some(pod) = self.remembered(&digest, now) {
            return Ok(pod);
        }
        let unverified = UnverifiedToken::parse(token)?;
        match &self.method {
            Method::KeySet { issuer, keys } => {
                let claims = unverified.check(&self.rules(Some(issuer), now))?;
                self.verify(&unverified, claims, keys, digest, now).await
            }
            Method::Review(reviews) => {
                let claims = unverified.check(&self.rules(None, now))?;
                self.review(token, claims.expires, reviews, digest).await
            }
        }
    }

    fn rules<'a>(&'a self, issuer: Option<&'a str>, now: u64) -> ClaimRules<'a> {
        ClaimRules { issuer, audience: &self.audience, leeway: self.leeway, now }
    }

    fn remembered(&self, digest: &TokenDigest, now: u64) -> Option<PodIdentity> {
        match &self.method {
            Method::KeySet { keys, .. } => {
                let set = keys.ready()?;
                // A token must not outlive its key.
                self.verified.find(
                    digest,
                    now,
                    |proof| matches!(proof, TokenProof::Signature(key) if set.has(key)),
                )
            }
            Method::Review(_) => self.verified.find(
                digest,
                now,
                |proof| matches!(proof, TokenProof::Review { until } if Instant::now() < *until),
            ),
        }
    }

    async fn verify(
        &self,
        token: &UnverifiedToken<'_>,
        claims: CheckedClaims,
        keys: &KeySetCache,
        digest: TokenDigest,
        now: u64,
    ) -> Result<PodIdentity, AuthError> {
        let refused = |reason: &str| AuthError::Refused(reason.to_owned());
        let id = token.key_id.as_deref().ok_or_else(|| refused("the token names no key"))?;
        let set = keys.current().await?;
        let key = match set.find(id) {
            Some(key) => Arc::clone(key),
            None => keys.fetch_key(id).await?,
        };
        if !key.allows(token.algorithm) {
            return Err(refused("the token's algorithm is not allowed for its key"));
        }
        if !key.verifies(token.algorithm, token.message, token.signature) {
            return Err(refused("the token's signature is wrong"));
        }
        let CheckedClaims { pod, expires } = claims;
        let verified = VerifiedToken { pod: pod.clone(), expires, proof: TokenProof::Signature(key) };
        self.verified.insert(digest, verified, now);
        Ok(pod)
    }

    async fn review(
        &self,
        token: &str,
        expires: u64,
        reviews: &Reviews,
        digest: TokenDigest,
    ) -> Result<PodIdentity, AuthError> {
        let unavailable = |reason: &str| Err(AuthError::Unavailable(reason.to_owned()));
        let begin = || {
            let (reviewer, places) = (Arc::clone(&reviews.reviewer), Arc::clone(&reviews.places));
            let (token, audience) = (token.to_owned(), Arc::clone(&self.audience));
            let (verified, time_of_day) = (Arc::clone(&self.verified), self.time_of_day);
            Some(async move {
                // The answer is as old as the question.
                let until = Instant::now() + REVIEW_LIFETIME;
                let pod = review(&*reviewer, &places, &token, &audience).await?;
                let proof = TokenProof::Review { until };
                // In the task, so that the answer is also remembered when the client did not wait for it.
                let known = VerifiedToken { pod: pod.clone(), expires, proof };
                verified.insert(digest, known, unix_seconds(time_of_day()));
                Ok(pod)
            })
        };
        match reviews.running.join(digest, begin) {
            None => unavailable("too many tokens are being reviewed"),
            Some(review) => match review.result(REQUEST_WAIT).await {
                Some(answer) => answer,
                None => unavailable("the review of the token takes too long"),
            },
        }
    }
}

async fn review(
    reviewer: &dyn TokenReviewer,
    places: &Semaphore,
    token: &str,
    audience: &str,
) -> Result<PodIdentity, AuthError> {
    let answer = async {
        // The semaphore is never closed.
        let _place = places.acquire().await;
        reviewer.review(token, audience).await
    };
    let late = || AuthError::Unavailable("the review of the token took too long".to_owned());
    timeout(REVIEW_TIMEOUT, answer).await.unwrap_or_else(|_| Err(late()))
}
