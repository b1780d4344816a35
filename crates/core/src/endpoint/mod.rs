//! Endpoints: identity, conditions and state, load, outlier detection.
//!
//! The rules are those of KEP-1672 and `discovery.k8s.io/v1`.

mod load;
mod outlier_detection;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

pub use load::{EndpointLoad, SlotLimit};
pub use outlier_detection::{EndpointHealth, UNANSWERED, after_refusals, after_unanswered};

/// `namespace/name` of a Kubernetes Service, or of an app in `rouse.yaml`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId {
    namespace: Arc<str>,
    name: Arc<str>,
}

/// Why a text is not a [`ServiceId`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a service: expected namespace/name, both non-empty, with exactly one slash")]
pub struct BadServiceId(String);

impl ServiceId {
    /// The service `name` in `namespace`.
    pub fn new(namespace: &str, name: &str) -> Result<Self, BadServiceId> {
        let bad = |part: &str| part.is_empty() || part.contains('/');
        if bad(namespace) || bad(name) {
            return Err(BadServiceId(format!("{namespace}/{name}")));
        }
        Ok(Self { namespace: namespace.into(), name: name.into() })
    }

    /// Sorts before every valid service.
    pub(crate) fn first() -> Self {
        Self { namespace: "".into(), name: "".into() }
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name within the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for ServiceId {
    type Err = BadServiceId;

    fn from_str(text: &str) -> Result<Self, BadServiceId> {
        match text.split_once('/') {
            Some((namespace, name)) => Self::new(namespace, name).map_err(|_| BadServiceId(text.into())),
            None => Err(BadServiceId(text.into())),
        }
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A pod's UID: one incarnation, never reused, unlike its name and its IP.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(Arc<str>);

impl PodUid {
    /// The UID as the cluster wrote it.
    pub fn new(uid: &str) -> Self {
        Self(uid.into())
    }

    /// The UID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A pod: its UID and its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// The incarnation. This is the identity; the name is for people.
    pub uid: PodUid,
    /// `namespace/name`.
    pub name: Arc<str>,
}

/// The name of a service port; `""` is the single unnamed one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PortName(Arc<str>);

impl PortName {
    /// The port called `name`.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name as text; empty for the unnamed port.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `ready`, `serving` and `terminating` as they were written: true, false or absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Conditions {
    /// Takes traffic; absent means true.
    pub ready: Option<bool>,
    /// Can still answer requests, even if it is not ready; absent means "as `ready`".
    pub serving: Option<bool>,
    /// Being deleted; absent means false.
    pub terminating: Option<bool>,
}

impl Conditions {
    /// All three conditions, explicitly.
    pub const fn new(ready: bool, serving: bool, terminating: bool) -> Self {
        Self { ready: Some(ready), serving: Some(serving), terminating: Some(terminating) }
    }

    /// `ready` with its default.
    pub fn is_ready(self) -> bool {
        self.ready.unwrap_or(true)
    }

    /// `serving` with its default: "as `ready`", not "true". Otherwise an endpoint that has only `ready: false` would get
    /// requests as a draining one.
    pub fn is_serving(self) -> bool {
        self.serving.unwrap_or_else(|| self.is_ready())
    }

    /// `terminating` with its default.
    pub fn is_terminating(self) -> bool {
        self.terminating.unwrap_or(false)
    }

    /// The state that follows from these conditions.
    pub fn state(self) -> State {
        match (self.is_ready(), self.is_serving(), self.is_terminating()) {
            // Also when terminating: `publishNotReadyAddresses` sets ready regardless.
            (true, _, _) => State::Ready,
            (false, true, _) => State::Draining,
            (false, false, false) => State::Starting,
            (false, false, true) => State::Gone,
        }
    }
}

/// The state of an endpoint. Ordered from worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// No traffic, no probing; its idle connections are closed.
    Gone,
    /// No traffic yet; may be probed.
    Starting,
    /// Finishes its requests; takes new ones only while the port has no `Ready` endpoint.
    Draining,
    /// Takes new requests.
    Ready,
}

impl State {
    /// Every state, from worst to best.
    pub const ALL: [State; 4] = [State::Gone, State::Starting, State::Draining, State::Ready];

    /// The state's name as operators see it.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Gone => "Gone",
            State::Starting => "Starting",
            State::Draining => "Draining",
            State::Ready => "Ready",
        }
    }

    /// Whether a new request may go to an endpoint in this state, when the best state among the endpoints of
    /// the same port is `best`.
    pub fn takes_new(self, best: State) -> bool {
        match self {
            State::Ready => true,
            State::Draining => best < State::Ready,
            State::Starting | State::Gone => false,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Where a fact came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// An `EndpointSlice`: authoritative.
    Slice,
    /// The pod's own sidecar, under a lease.
    Push,
    /// Our own probe of the pod.
    Probe,
}

impl Source {
    /// The source's name in metrics and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Source::Slice => "slice",
            Source::Push => "push",
            Source::Probe => "probe",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One pod behind one named port of a service, in one snapshot.
#[derive(Debug)]
pub struct Endpoint {
    /// The pod; `None` if the endpoint was written by hand.
    pub pod: Option<PodRef>,
    /// The addresses to connect to: never empty; a second one is the other family of a dual-stack pod.
    pub addresses: Box<[SocketAddr]>,
    /// The state, which decides whether it takes requests.
    pub state: State,
    /// The source of the state.
    pub source: Source,
    /// The conditions that the state follows from.
    pub conditions: Conditions,
    /// The requests in flight of the pod, on all its ports. Shared by all snapshots of this incarnation only.
    pub load: Arc<EndpointLoad>,
    /// The outlier detection state. Shared by all snapshots in which the pod has the same addresses.
    pub health: Arc<EndpointHealth>,
}

/// Identifies one pod incarnation at its addresses.
#[derive(Debug, Clone)]
pub struct EndpointId(Arc<EndpointHealth>);

impl PartialEq for EndpointId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for EndpointId {}

impl Hash for EndpointId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl Endpoint {
    /// Identifies this incarnation: equal in every snapshot while its addresses stay the same, and never equal to that of
    /// another pod.
    pub fn id(&self) -> EndpointId {
        EndpointId(Arc::clone(&self.health))
    }

    pub(crate) fn is(&self, id: &EndpointId) -> bool {
        Arc::ptr_eq(&self.health, &id.0)
    }
}

/// One `EndpointSlice`, reduced to what routing needs: TCP ports that have a number, and IP endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slice {
    /// The ports of this slice. Another slice of the service may have another number under the same name.
    pub ports: Vec<SlicePort>,
    /// The endpoints, in the order written.
    pub endpoints: Vec<SliceEndpoint>,
}

/// A port of a [`Slice`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlicePort {
    /// The service port's name.
    pub name: PortName,
    /// The port number to connect to.
    pub number: u16,
}

/// An endpoint of a [`Slice`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// `addresses[0]`: the API defines the others as interchangeable with it, and no client uses them.
    pub ip: IpAddr,
    /// As written.
    pub conditions: Conditions,
    /// The pod; `None` if the endpoint was written by hand.
    pub pod: Option<PodRef>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_id_is_parsed_at_the_edge() {
        let id: ServiceId = "shop/cart".parse().unwrap();
        assert_eq!((id.namespace(), id.name(), id.to_string().as_str()), ("shop", "cart", "shop/cart"));
        for bad in ["", "cart", "/cart", "shop/", "a/b/c"] {
            let error = bad.parse::<ServiceId>().unwrap_err();
            assert!(error.to_string().contains(&format!("{bad:?}")), "{error}");
        }
    }

    #[test]
    fn absent_serving_follows_ready() {
        let legacy = Conditions { ready: Some(false), serving: None, terminating: None };
        assert_eq!(legacy.state(), State::Starting);
        assert_eq!(Conditions::default().state(), State::Ready);
    }
}
