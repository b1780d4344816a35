//! The wire format of a registration: JSON over `POST /v1/registrations`.
//!
//! Unknown fields are ignored, so that versions one minor apart understand each other.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use rouse_core::endpoint::{PodRef, PodUid, PortName, ServiceId, SlicePort};
use rouse_core::merge::{BootId, Push, PushEvent, PushOrder};
use rouse_net::auth::{Claim, ClaimGrant};
use serde::{Deserialize, Serialize};

/// The path of registrations.
pub const PATH: &str = "/v1/registrations";
/// The longest body of a registration, in bytes.
pub const MAX_BODY: usize = 8 * 1024;
/// The most gateways that an answer lists.
pub const MAX_GATEWAYS: usize = 64;
/// The most addresses of one pod. A dual-stack pod has two.
const MAX_IPS: usize = 4;
/// The most ports of one pod.
const MAX_PORTS: usize = 64;
/// The longest name of a pod, and the longest UID.
const MAX_NAME: usize = 253;

/// The body of a registration, as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrationBody {
    /// The namespace of the pod and its service.
    pub namespace: String,
    /// The service.
    pub service: String,
    /// The name of the pod.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// The run of the sidecar, as [`BootId`] writes it.
    pub boot: String,
    /// Counts up within the boot.
    pub sequence: u64,
    /// The addresses of the pod.
    pub ips: Vec<IpAddr>,
    /// The ports of the service on this pod, by name.
    pub ports: BTreeMap<String, u16>,
    /// `ready`, `not-ready` or `draining`.
    pub event: String,
}

/// A registration whose fields were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// What it claims about its pod.
    pub claim: Claim,
    /// Its order among the registrations of the pod.
    pub order: PushOrder,
    /// The reported event.
    pub event: PushEvent,
}

/// The answer to a registration that was understood and allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrationAnswer {
    /// What became of it.
    pub status: AnswerStatus,
    /// How long it is valid. The sidecar renews it at a third of this.
    pub lease_seconds: u64,
    /// The newest known order of the pod. If the registration was stale, the sidecar continues after this.
    pub boot: String,
    /// See `boot`.
    pub sequence: u64,
    /// The gateways in service, as `IP:port`. Clients use it only over verified TLS.
    #[serde(default)]
    pub gateways: Vec<SocketAddr>,
}

/// What became of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswerStatus {
    /// It was newer than the last and is applied.
    Accepted,
    /// It was the last one; its lease starts again.
    Renewed,
    /// It was older than the last one.
    Stale,
}

/// The body of every other answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// A word for programs.
    pub error: String,
    /// A sentence for people.
    pub reason: String,
}

/// Why a body is not a registration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRegistration {
    /// It is not JSON of the right shape.
    #[error("the body is not a registration: {0}")]
    Shape(String),
    /// A field has a bad value.
    #[error("{field}: {reason}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong, and what is allowed.
        reason: String,
    },
}

/// The text of an event on the wire and in metrics.
pub fn event_text(event: PushEvent) -> &'static str {
    match event {
        PushEvent::Ready => "ready",
        PushEvent::NotReady => "not-ready",
        PushEvent::Draining => "draining",
    }
}

impl Registration {
    /// Reads and checks the body of a request.
    pub fn parse(body: &[u8]) -> Result<Self, BadRegistration> {
        let body: RegistrationBody =
            serde_json::from_slice(body).map_err(|error| BadRegistration::Shape(error.to_string()))?;
        body.check()
    }

    /// The push for the merge, after the claim was granted.
    pub fn push(&self, grant: ClaimGrant) -> Push {
        let claim = &self.claim;
        let port = |(name, number): (&PortName, &u16)| SlicePort { name: name.clone(), number: *number };
        Push {
            pod: PodRef {
                uid: claim.uid.clone(),
                name: format!("{}/{}", claim.service.namespace(), claim.pod).into(),
            },
            order: self.order,
            ips: claim.ips.clone(),
            owns_addresses: !grant.host_network && !grant.leaving,
            ports: claim.ports.iter().map(port).collect(),
            event: self.event,
        }
    }
}

impl RegistrationBody {
    fn check(self) -> Result<Registration, BadRegistration> {
        let bad = |field, reason: String| BadRegistration::Field { field, reason };
        let service = ServiceId::new(&self.namespace, &self.service)
            .map_err(|error| bad("namespace, service", error.to_string()))?;
        for (field, text) in [("pod", &self.pod), ("uid", &self.uid)] {
            let plain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
            if text.is_empty() || text.len() > MAX_NAME || !text.bytes().all(plain) {
                let allowed = format!("1 to {MAX_NAME} lower case letters, digits, dashes and dots");
                return Err(bad(field, format!("expected {allowed}")));
            }
        }
        let boot: BootId = self.boot.parse().map_err(|error| bad("boot", format!("{error}")))?;
        if self.ips.is_empty() || self.ips.len() > MAX_IPS {
            return Err(bad(
                "ips",
                format!("expected 1 to {MAX_IPS} addresses, but there are {}", self.ips.len()),
            ));
        }
        if self.ports.is_empty() || self.ports.len() > MAX_PORTS {
            return Err(bad(
                "ports",
                format!("expected 1 to {MAX_PORTS} ports, but there are {}", self.ports.len()),
            ));
        }
        if let Some((name, _)) = self.ports.iter().find(|(name, number)| **number == 0 || name.len() > 63) {
            return Err(bad(
                "ports",
                format!("{name:?}: expected a name of at most 63 bytes and a number from 1 to 65535"),
            ));
        }
        let event = match &*self.event {
            "ready" => PushEvent::Ready,
            "not-ready" => PushEvent::NotReady,
            "draining" => PushEvent::Draining,
            other => {
                return Err(bad(
                    "event",
                    format!("{other:?} is unknown: expected ready, not-ready or draining"),
                ));
            }
        };
        let ports = self.ports.into_iter().map(|(name, number)| (PortName::new(&name), number)).collect();
        let claim = Claim {
            service,
            pod: self.pod,
            uid: PodUid::new(&self.uid),
            ips: self.ips,
            ports,
            service_account: None,
        };
        Ok(Registration { claim, order: PushOrder { boot, sequence: self.sequence }, event })
    }
}
