//! A token issuer for tests: makes keys, JWKS documents and tokens, and serves its documents as a `KeySetSource`.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test may panic, also in its helpers")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::SystemTime;

use aws_lc_rs::signature::Ed25519KeyPair;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::{KeyPair, RsaKeySize};
use rouse_core::endpoint::PodUid;
use rouse_net::auth::{BoxFuture, KeySetSource, PodIdentity, TokenAuthenticator, TokenCheck, TokenSettings};
use serde_json::{Value, json};
use tokio::sync::watch;

/// The time at which its tokens begin, in Unix seconds.
pub const START: u64 = 1_700_000_000;
/// The issuer in its tokens.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// A signing key with its id.
#[derive(Clone, Debug)]
pub struct SigningKey {
    /// The id in the headers of its tokens.
    pub id: String,
    /// The algorithm of its signatures.
    pub algorithm: Algorithm,
    key: EncodingKey,
}

impl SigningKey {
    /// A key for ES256, which is quick to make.
    pub fn new(id: &str) -> Self {
        Self::of(id, Algorithm::ES256)
    }

    /// A key for any algorithm.
    pub fn of(id: &str, algorithm: Algorithm) -> Self {
        let pkcs8 = |algorithm| KeyPair::generate_for(algorithm).unwrap().serialize_der();
        let key = match algorithm {
            Algorithm::ES256 => EncodingKey::from_ec_der(&pkcs8(&rcgen::PKCS_ECDSA_P256_SHA256)),
            Algorithm::ES384 => EncodingKey::from_ec_der(&pkcs8(&rcgen::PKCS_ECDSA_P384_SHA384)),
            Algorithm::EdDSA => {
                let key = Ed25519KeyPair::generate().unwrap().to_pkcs8v1().unwrap();
                EncodingKey::from_ed_der(key.as_ref())
            }
            _ => EncodingKey::from_rsa_der(&RSA),
        };
        Self { id: id.to_owned(), algorithm, key }
    }

    /// Its entry in a JWKS document.
    pub fn jwk(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.key, self.algorithm).unwrap();
        jwk.common.key_id = Some(self.id.clone());
        let mut jwk = serde_json::to_value(jwk).unwrap();
        jwk["use"] = json!("sig");
        jwk
    }

    /// A token with these claims.
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_with(claims, |_| {})
    }

    /// A token whose header is changed first.
    pub fn sign_with(&self, claims: &Value, change: impl FnOnce(&mut Header)) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.id.clone());
        change(&mut header);
        jsonwebtoken::encode(&header, claims, &self.key).unwrap()
    }

    /// A good token of the pod `name`.
    pub fn token(&self, name: &str) -> String {
        self.sign(&claims(name))
    }
}

/// An RSA key in PKCS#1. One for all tests: it takes a while to make.
static RSA: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let key = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap().serialize_der();
    // PKCS#8 is a sequence of a version, an algorithm and the key in an octet string. Each of the outer two values has a
    // length of two bytes; the version has three bytes in all, the algorithm fifteen.
    key[4 + 3 + 15 + 4..].to_vec()
});

/// The claims of a good token of the pod `name` of `shop/cart`.
pub fn claims(name: &str) -> Value {
    claims_of(&pod(name), START)
}

/// The claims of a token of `pod`, valid for an hour from `start` (Unix seconds).
pub fn claims_of(pod: &PodIdentity, start: u64) -> Value {
    json!({
        "iss": ISSUER,
        "aud": ["rouse-register"],
        "exp": start + 3600,
        "iat": start,
        "nbf": start,
        "sub": format!("system:serviceaccount:{}:{}", pod.namespace, pod.service_account),
        "kubernetes.io": {
            "namespace": pod.namespace,
            "node": {"name": "node-1", "uid": "n1"},
            "pod": {"name": pod.pod, "uid": pod.uid.as_str()},
            "serviceaccount": {"name": pod.service_account, "uid": "s1"},
        },
    })
}

/// The pod that a good token is for.
pub fn pod(name: &str) -> PodIdentity {
    PodIdentity {
        namespace: "shop".to_owned(),
        pod: name.to_owned(),
        uid: PodUid::new(&format!("uid-of-{name}")),
        service_account: "cart".to_owned(),
    }
}

/// The published keys of an issuer.
#[derive(Debug)]
pub struct PublishedKeys {
    answer: Mutex<Result<Vec<u8>, String>>,
    fetches: AtomicUsize,
    /// While it is closed, fetches wait.
    open: watch::Sender<bool>,
}

impl PublishedKeys {
    /// Publishes these keys.
    pub fn new(keys: &[&SigningKey]) -> Arc<Self> {
        let published = Self {
            answer: Mutex::new(Err(String::new())),
            fetches: AtomicUsize::new(0),
            open: watch::Sender::new(true),
        };
        published.publish(keys);
        Arc::new(published)
    }

    /// Publishes these keys instead.
    pub fn publish(&self, keys: &[&SigningKey]) {
        self.publish_jwks(&keys.iter().map(|key| key.jwk()).collect::<Vec<_>>());
    }

    /// Publishes these entries of a JWKS document.
    pub fn publish_jwks(&self, keys: &[Value]) {
        self.answer(Ok(serde_json::to_vec(&json!({ "keys": keys })).unwrap()));
    }

    /// Answers the next fetches.
    pub fn answer(&self, answer: Result<Vec<u8>, String>) {
        *self.answer.lock().unwrap() = answer;
    }

    /// How often the keys were fetched.
    pub fn fetches(&self) -> usize {
        self.fetches.load(Ordering::Relaxed)
    }

    /// Lets fetches pass, or wait.
    pub fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }

    /// An authenticator that uses the published keys.
    pub fn authenticator(self: &Arc<Self>, time_of_day: fn() -> SystemTime) -> TokenAuthenticator {
        self.authenticator_with(TokenSettings::default(), time_of_day)
    }

    /// The same with other settings.
    pub fn authenticator_with(
        self: &Arc<Self>,
        settings: TokenSettings,
        time_of_day: fn() -> SystemTime,
    ) -> TokenAuthenticator {
        let source = Arc::clone(self) as Arc<dyn KeySetSource>;
        TokenAuthenticator::new(
            TokenCheck::KeySet { issuer: ISSUER.to_owned(), source },
            settings,
            time_of_day,
        )
    }
}

impl KeySetSource for PublishedKeys {
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        self.fetches.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {
            self.open.subscribe().wait_for(|open| *open).await.unwrap();
            self.answer.lock().unwrap().clone()
        })
    }
}

/// Base64url without padding.
pub fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0_usize, |bits, at| bits << 8 | usize::from(*group.get(at).unwrap_or(&0)));
        let digits = (0..=group.len()).map(|at| char::from(DIGITS[bits >> (18 - 6 * at) & 63]));
        text.extend(digits);
    }
    text
}
