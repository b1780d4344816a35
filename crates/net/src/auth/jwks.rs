//! The public keys of a token issuer: reads a JWKS document, and keeps the newest set through rotations and outages.
//!
//! A set is refreshed in the background of a request when it is five minutes old, and before a request when it is fifteen
//! minutes old, so that a removed key stops working. If the issuer cannot be reached, the last set is used for 24 hours.
//! A token with an unknown key id causes a fetch, at most one in ten seconds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use super::single_flight::{Flight, SingleFlight};
use super::{AuthError, KeySetSource, REQUEST_WAIT};

/// From this age on, a set is refreshed in the background.
const REFRESH_AFTER: Duration = Duration::from_mins(5);
/// From this age on, a request waits for the refresh, unless the issuer is known to be away.
const STALE_AFTER: Duration = Duration::from_mins(15);
/// From this age on, a set is not used any more.
const DEAD_AFTER: Duration = Duration::from_hours(24);
/// The time between the starts of two fetches. An unknown key id in every request costs no more than this.
const FETCH_EVERY: Duration = Duration::from_secs(10);
/// The same while there is no set at all, which is the case at the start.
const FIRST_FETCH_EVERY: Duration = Duration::from_secs(1);
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// A JWKS document of Kubernetes has about one kilobyte.
const MOST_BYTES: usize = 1 << 20;
const MOST_KEYS: usize = 256;

/// A public key, and the algorithms that it may be used with.
#[derive(Debug)]
pub(super) struct VerificationKey {
    id: String,
    algorithms: Vec<Algorithm>,
    /// The key itself as the document has it, to compare keys with.
    parameters: AlgorithmParameters,
    decoding: DecodingKey,
}

impl VerificationKey {
    /// The key, if it is a public key for signatures. `alg` and `use` of the document can only narrow what it is for: with the
    /// algorithm of the token alone, a public key could be taken for a shared secret.
    fn of(jwk: Jwk) -> Option<Self> {
        let common = jwk.common.clone();
        if common.public_key_use.is_some_and(|it| it != PublicKeyUse::Signature)
            || common.key_operations.is_some_and(|all| !all.contains(&KeyOperations::Verify))
        {
            return None;
        }
        let possible: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => &[
                Algorithm::RS256,
                Algorithm::RS384,
                Algorithm::RS512,
                Algorithm::PS256,
                Algorithm::PS384,
                Algorithm::PS512,
            ],
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => &[Algorithm::ES256],
                EllipticCurve::P384 => &[Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                &[Algorithm::EdDSA]
            }
            _ => return None,
        };
        let algorithms = match common.key_algorithm {
            None => possible.to_vec(),
            Some(only) => {
                let only = Algorithm::try_from(only).ok()?;
                possible.iter().copied().filter(|it| *it == only).collect()
            }
        };
        let decoding = DecodingKey::from_jwk(&jwk).ok()?;
        let id = common.key_id?;
        (!algorithms.is_empty()).then_some(Self { id, algorithms, parameters: jwk.algorithm, decoding })
    }

    fn is(&self, other: &Self) -> bool {
        self.id == other.id && self.algorithms == other.algorithms && self.parameters == other.parameters
    }

    /// Whether `signature` (base64url) is this key's signature of `message` by `algorithm`.
    pub(super) fn verifies(&self, algorithm: Algorithm, message: &str, signature: &str) -> bool {
        self.algorithms.contains(&algorithm)
            && jsonwebtoken::crypto::verify(signature, message.as_bytes(), &self.decoding, algorithm)
                .unwrap_or(false)
    }

    pub(super) fn allows(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }
}

/// The keys of an issuer at one time.
#[derive(Debug)]
pub(super) struct KeySet {
    by_id: HashMap<String, Arc<VerificationKey>>,
    fetched: Instant,
}

impl KeySet {
    /// Reads a document. Keys that cannot be used are left out. A key that `before` has too is the same `Arc`.
    fn parse(document: &[u8], before: Option<&Self>, fetched: Instant) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<serde_json::Value>,
        }

        if document.len() > MOST_BYTES {
            return Err(format!("the key set has more than {MOST_BYTES} bytes"));
        }
        let document: Document =
            serde_json::from_slice(document).map_err(|_| "the key set is not a JWKS document".to_owned())?;
        let mut by_id = HashMap::new();
        let keys = document.keys.into_iter().take(MOST_KEYS);
        for key in keys.filter_map(|key| VerificationKey::of(serde_json::from_value(key).ok()?)) {
            let known = before.and_then(|set| set.find(&key.id)).filter(|known| known.is(&key));
            let id = key.id.clone();
            by_id.entry(id).or_insert_with(|| known.map_or_else(|| Arc::new(key), Arc::clone));
        }
        if by_id.is_empty() {
            return Err("the key set has no key that can be used".to_owned());
        }
        Ok(Self { by_id, fetched })
    }

    pub(super) fn find(&self, id: &str) -> Option<&Arc<VerificationKey>> {
        self.by_id.get(id)
    }

    /// Whether this very key is still in the set.
    pub(super) fn has(&self, key: &Arc<VerificationKey>) -> bool {
        self.find(&key.id).is_some_and(|it| Arc::ptr_eq(it, key))
    }
}

/// The newest set of an issuer.
pub(super) struct KeySetCache {
    source: Arc<dyn KeySetSource>,
    shared: Arc<Shared>,
    fetches: SingleFlight<(), ()>,
}

#[derive(Default)]
struct Shared {
    newest: ArcSwapOption<KeySet>,
    last: Mutex<LastFetch>,
}

#[derive(Default)]
struct LastFetch {
    started: Option<Instant>,
    /// Why it failed; `None` after a success, and before the first.
    failure: Option<String>,
}

impl KeySetCache {
    pub(super) fn new(source: Arc<dyn KeySetSource>) -> Self {
        Self { source, shared: Arc::default(), fetches: SingleFlight::new(1) }
    }

    /// The set, if it can be used without waiting for a fetch.
    pub(super) fn ready(&self) -> Option<Arc<KeySet>> {
        let set = self.shared.newest.load_full()?;
        let age = set.fetched.elapsed();
        if age < REFRESH_AFTER {
            return Some(set);
        }
        // Nothing waits for it here: dropping the flight does not end the fetch.
        drop(self.fetch());
        let usable = age < STALE_AFTER || (age < DEAD_AFTER && self.failure().is_some());
        usable.then_some(set)
    }

    /// The set, after a fetch if one is needed.
    pub(super) async fn current(&self) -> Result<Arc<KeySet>, AuthError> {
        if let Some(set) = self.ready() {
            return Ok(set);
        }
        if let Some(fetch) = self.fetch() {
            fetch.result(REQUEST_WAIT).await;
        }
        let set = self.shared.newest.load_full();
        set.filter(|set| set.fetched.elapsed() < DEAD_AFTER).ok_or_else(|| self.unavailable())
    }

    /// The key `id`, which was not in the newest set, after a fetch if one is due.
    pub(super) async fn fetch_key(&self, id: &str) -> Result<Arc<VerificationKey>, AuthError> {
        let late = match self.fetch() {
            Some(fetch) => fetch.result(REQUEST_WAIT).await.is_none(),
            None => false,
        };
        let set = self.shared.newest.load_full();
        match set.as_ref().and_then(|set| set.find(id)) {
            Some(key) => Ok(Arc::clone(key)),
            // The fetch failed, so the issuer may have the key: 503, not 401.
            None if late || self.failure().is_some() => Err(self.unavailable()),
            None => Err(AuthError::Refused("the token is signed with an unknown key".to_owned())),
        }
    }

    fn unavailable(&self) -> AuthError {
        let reason = self.failure().unwrap_or_else(|| "no answer yet".to_owned());
        AuthError::Unavailable(format!("the keys of the token issuer cannot be fetched: {reason}"))
    }

    fn failure(&self) -> Option<String> {
        self.shared.last().failure.clone()
    }

    /// The running fetch, or a new one if it is due.
    fn fetch(&self) -> Option<Flight<()>> {
        self.fetches.join((), || {
            let started = Instant::now();
            let every = match *self.shared.newest.load() {
                Some(_) => FETCH_EVERY,
                None => FIRST_FETCH_EVERY,
            };
            let mut last = self.shared.last();
            if last.started.is_some_and(|before| started.duration_since(before) < every) {
                return None;
            }
            last.started = Some(started);
            Some(fetch(Arc::clone(&self.source), Arc::clone(&self.shared), started))
        })
    }
}

impl Shared {
    fn last(&self) -> std::sync::MutexGuard<'_, LastFetch> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn fetch(source: Arc<dyn KeySetSource>, shared: Arc<Shared>, started: Instant) {
    let answer = timeout(FETCH_TIMEOUT, source.fetch()).await;
    let answer = answer.unwrap_or_else(|_| Err("no answer in time".to_owned()));
    let before = shared.newest.load_full();
    // The age counts from the request: the answer may have been on its way for a while.
    let set = answer.and_then(|document| KeySet::parse(&document, before.as_deref(), started));
    let failure = match set {
        Ok(set) => {
            shared.newest.store(Some(Arc::new(set)));
            None
        }
        Err(reason) => Some(reason),
    };
    shared.last().failure = failure;
}
