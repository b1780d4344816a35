//! The claim of a pod about itself, the result of checking it, and the `Ownership` trait that checks it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rouse_core::endpoint::{PodUid, PortName, ServiceId};

use super::BoxFuture;

/// What a registration claims. The credential behind it was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The service that the pod says it belongs to. The pod is in the namespace of the service.
    pub service: ServiceId,
    /// The name of the pod.
    pub pod: String,
    /// Its incarnation.
    pub uid: PodUid,
    /// Every address that it says it has.
    pub ips: Vec<IpAddr>,
    /// The ports of the service on this pod, by the name of the Service port.
    pub ports: BTreeMap<PortName, u16>,
    /// The `ServiceAccount` that the pod must have, if the credential proves one.
    pub service_account: Option<String>,
}

/// What was found for a claim that is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClaimGrant {
    /// What the owner of the service decided about pushes; `None`: the default of the gateway.
    pub mode: Option<PushMode>,
    /// The pod is being deleted. It may say `not-ready` and `draining`. A `ready` of it must not be applied: no slice may list
    /// the pod any more, so nothing would end its requests before the lease does.
    pub leaving: bool,
    /// The pod shares its addresses with other pods: it is on the network of its node.
    pub host_network: bool,
}

/// What is done with verified pushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PushMode {
    /// They are ignored.
    Off,
    /// They are verified and counted, and change nothing.
    Observe,
    /// They make pods routable.
    #[default]
    On,
}

impl PushMode {
    /// The mode that flags and annotations write as `text`.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Off, Self::Observe, Self::On].into_iter().find(|mode| mode.as_str() == text)
    }

    /// The mode as flags and annotations write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Observe => "observe",
            Self::On => "on",
        }
    }
}

/// Why a claim was not granted. The texts go to clients and logs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The claim is false: 403.
    #[error("{0}")]
    Denied(String),
    /// It cannot be decided now, and the pod should try again: 503.
    #[error("{0}")]
    Unavailable(String),
    /// The pod is known, but not all of it yet. It should try again at once, with its own backoff: 503.
    #[error("{0}")]
    TooEarly(String),
}

/// Knows which pod belongs to which service, and what it owns.
pub trait Ownership: Send + Sync {
    /// Checks a claim. A claim that is granted is checked again whenever its pod or service changes, and its push is withdrawn
    /// when it is not true any more.
    fn check<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<ClaimGrant, ClaimError>>;

    /// The grant of exactly this claim, if it still stands and pushes under it are applied. The server asks after it applied a push:
    /// the pod may have changed, or another claim of it may have been granted, between the check and the push.
    fn granted(&self, claim: &Claim) -> Option<ClaimGrant>;
}
