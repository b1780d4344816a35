//! The endpoints of a cluster (EDS).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use rouse_core::envoy::{EnvoyEndpoint, EnvoyHealth, EnvoyTarget};

use super::messages::{address, encode};
use crate::proto::envoy::config::endpoint::AdditionalAddress;
use crate::proto::envoy::config::lb_endpoint::HostIdentifier;
use crate::proto::envoy::config::{
    ClusterLoadAssignment, Endpoint, HealthStatus, LbEndpoint, Locality, LocalityLbEndpoints, Metadata,
};
use crate::xds::load::GATEWAY_REGION;

/// What the metadata of a pod has, if pods take TLS. The cluster matches it to the transport of pods; gateways get plain text.
pub(super) fn pod_transport() -> BTreeMap<String, Value> {
    [("tls".to_owned(), Value { kind: Some(Kind::BoolValue(true)) })].into()
}

/// The endpoints of the cluster `name`, in the given order. The caller removes duplicate addresses.
///
/// Gateways are in a region of their own: Envoy reports load by locality, and what it sends to a gateway is counted there. Localities
/// have no weights, so Envoy picks from all endpoints alike.
pub fn endpoints(name: &str, endpoints: &[EnvoyEndpoint], pods_over_tls: bool) -> Bytes {
    let is_gateway = |one: &&EnvoyEndpoint| matches!(one.target, EnvoyTarget::Gateway(_));
    let (gateways, pods): (Vec<_>, Vec<_>) = endpoints.iter().partition(is_gateway);
    let gateways = locality(GATEWAY_REGION, gateways.into_iter().filter_map(|one| lb_endpoint(one, false)));
    let pods = locality("", pods.into_iter().filter_map(|one| lb_endpoint(one, pods_over_tls)));
    let localities = gateways.into_iter().chain(pods).collect();
    encode(&ClusterLoadAssignment { cluster_name: name.to_owned(), endpoints: localities })
}

/// The endpoints of one region; `None` if there are none.
fn locality(region: &str, endpoints: impl Iterator<Item = LbEndpoint>) -> Option<LocalityLbEndpoints> {
    let lb_endpoints: Vec<_> = endpoints.collect();
    let named = Locality { region: region.to_owned(), zone: String::new() };
    let locality = (!region.is_empty()).then_some(named);
    (!lb_endpoints.is_empty()).then_some(LocalityLbEndpoints { locality, lb_endpoints })
}

fn lb_endpoint(endpoint: &EnvoyEndpoint, pods_over_tls: bool) -> Option<LbEndpoint> {
    let (addresses, over_tls): (&[SocketAddr], bool) = match &endpoint.target {
        EnvoyTarget::Gateway(address) => (std::slice::from_ref(address), false),
        EnvoyTarget::Pod(addresses) => (addresses, pods_over_tls),
    };
    let (first, others) = addresses.split_first()?;
    let additional = others.iter().map(|other| AdditionalAddress { address: Some(address(*other)) });
    let host = Endpoint { address: Some(address(*first)), additional_addresses: additional.collect() };
    let health = match endpoint.health {
        EnvoyHealth::Healthy => HealthStatus::Healthy,
        EnvoyHealth::Draining => HealthStatus::Draining,
    };
    let transport = ("envoy.transport_socket_match".to_owned(), Struct { fields: pod_transport() });
    Some(LbEndpoint {
        health_status: health.into(),
        metadata: over_tls.then(|| Metadata { filter_metadata: [transport].into() }),
        host_identifier: Some(HostIdentifier::Endpoint(host)),
    })
}
