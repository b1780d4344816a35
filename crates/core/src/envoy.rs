//! Selects the endpoints that Envoys get for a service port, and the health of each.
//!
//! An Envoy that dials pods itself needs the gateways only while no pod is ready, and for services whose requests must all pass them.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::endpoint::{Endpoint, PortName, State};
use crate::snapshot::{PortView, Snapshot};

/// An endpoint's `health_status` in Envoy's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EnvoyHealth {
    /// Gets new requests.
    Healthy,
    /// Finishes its requests and gets no new ones.
    Draining,
}

impl EnvoyHealth {
    /// The name in Envoy's API.
    pub const fn as_str(self) -> &'static str {
        match self {
            EnvoyHealth::Healthy => "HEALTHY",
            EnvoyHealth::Draining => "DRAINING",
        }
    }
}

impl fmt::Display for EnvoyHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The health of an endpoint in `state`, when the best state among the endpoints of the same port is `best` and no gateway takes
/// requests. `None`: the endpoint is not sent to Envoy.
pub fn health_without_gateways(state: State, best: State) -> Option<EnvoyHealth> {
    match state {
        State::Ready => Some(EnvoyHealth::Healthy),
        // The last endpoints must serve. HEALTHY works with any panic threshold in Envoy, DRAINING does not.
        State::Draining if best < State::Ready => Some(EnvoyHealth::Healthy),
        State::Draining => Some(EnvoyHealth::Draining),
        State::Starting | State::Gone => None,
    }
}

/// When the requests of a service pass the gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GatewayUse {
    /// Always: Rouse may not dial its pods directly, or only a gateway can.
    pub always: bool,
    /// While no pod is ready: a gateway can wake it, or answers in its place.
    pub without_pods: bool,
    /// Now, although pods are ready: they are about to be removed. Only if a gateway can wake it again.
    pub parked: bool,
}

/// Who is at an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EnvoyTarget {
    /// A gateway, which holds the request, wakes the service and forwards to a pod.
    Gateway(SocketAddr),
    /// A pod. Never empty; a second address is that of the other family.
    Pod(Box<[SocketAddr]>),
}

impl EnvoyTarget {
    /// The address that Envoy dials first.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Gateway(address) => Some(*address),
            Self::Pod(addresses) => addresses.first().copied(),
        }
    }
}

/// One endpoint as Envoy gets it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EnvoyEndpoint {
    /// Who is there.
    pub target: EnvoyTarget,
    /// Whether it takes new requests.
    pub health: EnvoyHealth,
}

/// The endpoints of one port, in the order in which Envoy gets them. Each address is there once: Envoy keeps the first of equals.
pub fn endpoints(
    snapshot: &Snapshot,
    port: &PortName,
    gateway_use: GatewayUse,
    gateways: &[SocketAddr],
) -> Vec<EnvoyEndpoint> {
    // A hard limit per pod cannot hold if many Envoys dial the pods.
    let always = gateway_use.always || snapshot.concurrency.limit.is_some();
    let pods: &[Arc<Endpoint>] = snapshot.port(port).map(PortView::endpoints).unwrap_or_default();
    let best = pods.iter().map(|pod| pod.state).max().unwrap_or(State::Gone);
    let by_gateways =
        !gateways.is_empty() && gateway_use.without_pods && (best < State::Ready || gateway_use.parked);
    let healthy = gateways.iter().map(|gateway| (EnvoyTarget::Gateway(*gateway), EnvoyHealth::Healthy));
    let pod = |pod: &Endpoint, health| (EnvoyTarget::Pod(pod.addresses.clone()), health);
    let all: Vec<_> = if always {
        healthy.collect()
    } else if by_gateways {
        let leaving = pods.iter().filter(|pod| pod.state >= State::Draining);
        healthy.chain(leaving.map(|it| pod(it, EnvoyHealth::Draining))).collect()
    } else {
        pods.iter().filter_map(|it| Some(pod(it, health_without_gateways(it.state, best)?))).collect()
    };
    let mut known = HashSet::with_capacity(all.len());
    let mut is_new = |(target, _): &(EnvoyTarget, _)| target.address().is_some_and(|at| known.insert(at));
    all.into_iter()
        .filter(|one| is_new(one))
        .map(|(target, health)| EnvoyEndpoint { target, health })
        .collect()
}
