//! Converts an `EndpointSlice` to the core's [`Slice`], and reports the endpoints that cannot be routed to.

use std::net::IpAddr;
use std::sync::Arc;

use rouse_core::endpoint::{Conditions, PodRef, PodUid, PortName, Slice, SliceEndpoint, SlicePort};

use super::{AddressType, Endpoint, EndpointConditions, EndpointSlice, Protocol};

/// An endpoint or slice that cannot be routed to, as text for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unroutable {
    /// The whole slice holds host names.
    #[error("FQDN slices are ignored: Rouse routes to IP addresses only")]
    Fqdn,
    /// `endpoints[index]` lists no address at all.
    #[error("endpoints[{index}] has no address and is left out")]
    NoAddress {
        /// The index of the endpoint.
        index: usize,
    },
    /// `endpoints[index].addresses[0]` is no address of the slice's family.
    #[error("endpoints[{index}].addresses[0] is {address:?}, not an {family} address, and is left out")]
    BadAddress {
        /// The index of the endpoint.
        index: usize,
        /// As written.
        address: String,
        /// The address type of the slice.
        family: AddressType,
    },
}

/// Reduces `slice` to what routing needs. Endpoints that cannot be used are left out and passed to `report`.
pub fn routable(slice: &EndpointSlice, report: &mut dyn FnMut(Unroutable)) -> Slice {
    if slice.address_type == AddressType::Fqdn {
        report(Unroutable::Fqdn);
        return Slice::default();
    }
    let endpoints = slice.endpoints.iter().enumerate().filter_map(|(index, endpoint)| {
        match address(index, endpoint, slice.address_type) {
            Ok(ip) => Some(SliceEndpoint {
                ip,
                conditions: endpoint.conditions.into(),
                pod: pod_of(endpoint, slice.metadata.namespace()),
            }),
            Err(problem) => {
                report(problem);
                None
            }
        }
    });
    Slice { endpoints: endpoints.collect(), ports: tcp_ports(slice) }
}

/// The TCP ports that have a number.
fn tcp_ports(slice: &EndpointSlice) -> Vec<SlicePort> {
    let tcp = slice.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
    tcp.filter_map(|port| {
        let name = PortName::new(port.name.as_deref().unwrap_or_default());
        Some(SlicePort { name, number: port.port?.get() })
    })
    .collect()
}

fn address(index: usize, endpoint: &Endpoint, family: AddressType) -> Result<IpAddr, Unroutable> {
    let first = endpoint.addresses.first().ok_or(Unroutable::NoAddress { index })?;
    match (first.parse(), family) {
        (Ok(ip @ IpAddr::V4(_)), AddressType::V4) | (Ok(ip @ IpAddr::V6(_)), AddressType::V6) => Ok(ip),
        _ => Err(Unroutable::BadAddress { index, address: first.clone(), family }),
    }
}

/// The pod behind an endpoint. Without a UID the pod is not identified, so the endpoint counts as having none. An endpoint with
/// several addresses was written by hand, since Kubernetes writes one, and counts as having none, too: only the first
/// address is compared with the pod, and an implementation of Services may send requests to all of them.
fn pod_of(endpoint: &Endpoint, slice_namespace: &str) -> Option<PodRef> {
    if endpoint.addresses.len() > 1 {
        return None;
    }
    let target = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"))?;
    let uid = target.uid.as_deref().filter(|uid| !uid.is_empty())?;
    let namespace = target.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    let name = target.name.as_deref().unwrap_or(uid);
    let name: Arc<str> = format!("{}/{name}", namespace.unwrap_or(slice_namespace)).into();
    Some(PodRef { uid: PodUid::new(uid), name })
}

impl From<EndpointConditions> for Conditions {
    fn from(written: EndpointConditions) -> Self {
        Self { ready: written.ready, serving: written.serving, terminating: written.terminating }
    }
}

impl From<Conditions> for EndpointConditions {
    fn from(core: Conditions) -> Self {
        Self { ready: core.ready, serving: core.serving, terminating: core.terminating }
    }
}
