//! Remembers verified tokens by digest, so that the renewal of a lease costs no signature check and no look-up.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::digest::{SHA256, digest};
use tokio::time::Instant;

use super::PodIdentity;
use super::jwks::VerificationKey;

/// The SHA-256 digest of a token. The token itself is not kept.
pub(super) type TokenDigest = [u8; 32];

pub(super) fn digest_of(token: &[u8]) -> TokenDigest {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, token).as_ref());
    bytes
}

/// A token that was verified.
#[derive(Debug, Clone)]
pub(super) struct VerifiedToken {
    pub(super) pod: PodIdentity,
    /// The first second of Unix time at which it is not valid any more.
    pub(super) expires: u64,
    pub(super) proof: TokenProof,
}

/// Why a token counts as valid.
#[derive(Debug, Clone)]
pub(super) enum TokenProof {
    /// It is signed with this key, which must still be in the key set.
    Signature(Arc<VerificationKey>),
    /// The cluster said so, and must be asked again from this moment on.
    Review { until: Instant },
}

/// Verified tokens, up to a limit. At the limit, expired tokens make room, and then the oldest.
#[derive(Debug)]
pub(super) struct TokenCache {
    limit: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_digest: HashMap<TokenDigest, Entry>,
    /// The digests in the order of their insertion.
    by_age: BTreeMap<u64, TokenDigest>,
    inserted: u64,
    /// No entry expires before this, so that a full cache is not searched in vain.
    earliest: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    token: VerifiedToken,
}

impl TokenCache {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), entries: Mutex::default() }
    }

    /// The pod of a token that is still valid at `now` (Unix time), if `holds` confirms its proof.
    pub(super) fn find(
        &self,
        digest: &TokenDigest,
        now: u64,
        holds: impl FnOnce(&TokenProof) -> bool,
    ) -> Option<PodIdentity> {
        let mut entries = self.entries();
        let token = &entries.by_digest.get(digest)?.token;
        if now < token.expires && holds(&token.proof) {
            return Some(token.pod.clone());
        }
        entries.remove(digest);
        None
    }

    pub(super) fn insert(&self, digest: TokenDigest, token: VerifiedToken, now: u64) {
        let mut entries = self.entries();
        entries.remove(&digest);
        if entries.by_digest.len() >= self.limit && entries.earliest <= now {
            entries.remove_expired(now);
        }
        while entries.by_digest.len() >= self.limit {
            let Some((_, oldest)) = entries.by_age.pop_first() else { break };
            entries.by_digest.remove(&oldest);
        }
        entries.insert(digest, token);
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn insert(&mut self, digest: TokenDigest, token: VerifiedToken) {
        let number = self.inserted;
        self.inserted += 1;
        self.earliest =
            if self.by_digest.is_empty() { token.expires } else { self.earliest.min(token.expires) };
        self.by_age.insert(number, digest);
        self.by_digest.insert(digest, Entry { number, token });
    }

    fn remove(&mut self, digest: &TokenDigest) {
        if let Some(entry) = self.by_digest.remove(digest) {
            self.by_age.remove(&entry.number);
        }
    }

    fn remove_expired(&mut self, now: u64) {
        let by_age = &mut self.by_age;
        self.by_digest.retain(|_, entry| {
            let valid = now < entry.token.expires;
            if !valid {
                by_age.remove(&entry.number);
            }
            valid
        });
        self.earliest = self.by_digest.values().map(|entry| entry.token.expires).min().unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use rouse_core::endpoint::PodUid;

    use super::*;

    fn token(name: &str, expires: u64) -> (TokenDigest, VerifiedToken) {
        let pod = PodIdentity {
            namespace: "shop".to_owned(),
            pod: name.to_owned(),
            uid: PodUid::new(name),
            service_account: "cart".to_owned(),
        };
        (
            digest_of(name.as_bytes()),
            VerifiedToken { pod, expires, proof: TokenProof::Review { until: Instant::now() } },
        )
    }

    fn known(cache: &TokenCache, name: &str, now: u64) -> bool {
        cache.find(&digest_of(name.as_bytes()), now, |_| true).is_some_and(|pod| pod.pod == name)
    }

    fn remember(cache: &TokenCache, name: &str, expires: u64, now: u64) {
        let (digest, token) = token(name, expires);
        cache.insert(digest, token, now);
    }

    #[test]
    fn a_token_is_known_until_the_second_of_its_expiry_and_only_while_its_proof_holds() {
        let cache = TokenCache::new(4);
        remember(&cache, "one", 100, 0);
        assert!(known(&cache, "one", 99));
        assert!(!known(&cache, "other", 99));
        assert!(cache.find(&digest_of(b"one"), 99, |_| false).is_none());
        assert!(!known(&cache, "one", 99), "a token whose proof fell is forgotten");
        remember(&cache, "one", 100, 0);
        assert!(!known(&cache, "one", 100));
        assert_eq!(cache.entries().by_age.len(), 0);
    }

    #[test]
    fn a_full_cache_drops_expired_tokens_first_and_then_the_oldest() {
        let cache = TokenCache::new(3);
        for (name, expires) in [("long", 900), ("short", 50), ("longer", 999)] {
            remember(&cache, name, expires, 0);
        }
        remember(&cache, "fourth", 500, 50);
        assert_eq!(
            ["long", "short", "longer", "fourth"].map(|it| known(&cache, it, 49)),
            [true, false, true, true]
        );
        remember(&cache, "fifth", 500, 51);
        assert_eq!(
            ["long", "longer", "fourth", "fifth"].map(|it| known(&cache, it, 51)),
            [false, true, true, true]
        );
    }

    #[test]
    fn a_flood_of_tokens_never_exceeds_the_limit() {
        let cache = TokenCache::new(16);
        for number in 0..1000 {
            remember(&cache, &number.to_string(), 10 + number % 7 * 100, number);
            // Also the same token again.
            remember(&cache, &number.to_string(), 10 + number % 7 * 100, number);
            let entries = cache.entries();
            assert!(entries.by_digest.len() <= 16);
            assert_eq!(entries.by_digest.len(), entries.by_age.len());
        }
    }
}
