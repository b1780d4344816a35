//! Authentication of pods: who sent a request (a token, a shared key or a client certificate), and whether a pod that
//! registers itself may say what it says.

mod authenticators;
mod claim;
mod hmac;
mod jwks;
mod mtls;
mod nonces;
mod shared_keys;
mod single_flight;
mod token;
mod token_cache;
mod token_claims;
mod token_file;

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use rouse_core::endpoint::PodUid;

pub use authenticators::{Authenticators, CredentialId, CredentialRequest};
pub use claim::{Claim, ClaimError, ClaimGrant, Ownership, PushMode};
pub use hmac::{BadSharedKey, HmacCredential, SharedKey, parse_hmac_credential};
pub use mtls::{CertificateAuthenticator, certificate_names};
pub use shared_keys::{SharedKeys, SharedKeysError};
pub use token::{TokenAuthenticator, TokenCheck, TokenSettings};
pub use token_file::{TokenFileError, read_bearer_token};

/// Whether two secrets are equal, in a time that does not depend on where they differ.
pub fn equal_in_constant_time(one: &[u8], other: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(one, other).is_ok()
}

/// A future that a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The audience of tokens with which pods register. A token for another audience is refused.
pub const REGISTER_AUDIENCE: &str = "rouse-register";

/// The audience of tokens with which gateways report load. It is another one, so that a leaked token of one kind is of no use
/// for the other.
pub const REPORT_AUDIENCE: &str = "rouse-report";

/// How long a request waits for keys or for a review. Less than the two seconds after which a sidecar gives up, so that it gets
/// an answer that says why; the look-up goes on, and the next request finds its result.
const REQUEST_WAIT: Duration = Duration::from_millis(1500);

/// Who sent a request, as far as its credential proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sender {
    /// A pod-bound `ServiceAccount` token: exactly this pod.
    Pod(PodIdentity),
    /// A shared key: a member of these namespaces. It proves no identity, so the connection must come from the pod's address.
    KeyHolder {
        /// The namespaces that the key is for.
        namespaces: KeyScope,
    },
    /// A client certificate: a pod of this `ServiceAccount`. The connection must come from the pod's address.
    ServiceAccount {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl Sender {
    /// Whether the credential is of `namespace`.
    pub fn is_of(&self, namespace: &str) -> bool {
        match self {
            Self::Pod(pod) => pod.namespace == namespace,
            Self::KeyHolder { namespaces } => namespaces.includes(namespace),
            Self::ServiceAccount { namespace: own, .. } => own == namespace,
        }
    }
}

/// The pod that a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodIdentity {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Its incarnation.
    pub uid: PodUid,
    /// Its `ServiceAccount`.
    pub service_account: String,
}

/// The namespaces that a shared key is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyScope {
    /// Every namespace.
    All,
    /// These namespaces.
    Only(Vec<String>),
}

impl KeyScope {
    /// Whether the key is for `namespace`.
    pub fn includes(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(namespaces) => namespaces.iter().any(|one| one == namespace),
        }
    }
}

/// Why a credential was not accepted. The texts go to clients and logs, and contain no part of a credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// There is no credential, or it is not valid: 401.
    #[error("{0}")]
    Refused(String),
    /// The credential cannot be checked now: 503. Nothing changes.
    #[error("{0}")]
    Unavailable(String),
}

/// Asks the cluster whether a token is valid, and for which pod (`TokenReview`).
pub trait TokenReviewer: Send + Sync {
    /// Reviews `token`. The cluster must confirm that it is for `audience`.
    fn review<'a>(
        &'a self,
        token: &'a str,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<PodIdentity, AuthError>>;
}

/// Fetches the public keys of a token issuer (a JWKS document).
pub trait KeySetSource: Send + Sync {
    /// The document, or the reason why it cannot be had now.
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<u8>, String>>;
}

/// Unix time in seconds.
fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Whether `name` is a DNS label, as names of namespaces are.
fn is_namespace(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with('-')
        && !name.ends_with('-')
}
