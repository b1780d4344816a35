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
    ClusterLoadAssignment, Endpoint, HealthStatus, LbEndpoint, LocalityLbEndpoints, Metadata,
};

/// What the metadata of a pod has, if pods take TLS. The cluster matches it to the transport of pods; gateways get plain text.
pub(super) fn pod_transport() -> BTreeMap<String, Value> {
    [("tls".to_owned(), Value { kind: Some(Kind::BoolValue(true)) })].into()
}

/// The endpoints of the cluster `name`, in the given order. The caller removes duplicate addresses.
pub fn endpoints(name: &str, endpoints: &[EnvoyEndpoint], pods_over_tls: bool) -> Bytes {
    let lb_endpoints: Vec<_> = endpoints.iter().filter_map(|one| lb_endpoint(one, pods_over_tls)).collect();
    let locality = LocalityLbEndpoints { locality: None, lb_endpoints };
    let localities = if locality.lb_endpoints.is_empty() { Vec::new() } else { vec![locality] };
    encode(&ClusterLoadAssignment { cluster_name: name.to_owned(), endpoints: localities })
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
