//! The names of resources. The cluster of a service port is `namespace/service:port`, or `namespace/service` for a port without a
//! name.

use std::sync::Arc;

use rouse_core::endpoint::{PortName, ServiceId};

/// The route configuration. Bootstraps name it.
pub const ROUTE_CONFIGURATION: &str = "rouse";

/// The cluster of requests that only a gateway can answer. No service has this name.
pub const GATEWAYS_CLUSTER: &str = "rouse-gateways";

/// The longest name of a cluster that can be ours: a namespace, a service and a port have 63 letters each in Kubernetes.
const LONGEST_CLUSTER_NAME: usize = 256;

/// The name of the cluster, and of its endpoints.
pub fn cluster_name(service: &ServiceId, port: &PortName) -> Arc<str> {
    match port.as_str() {
        "" => service.to_string().into(),
        port => format!("{service}:{port}").into(),
    }
}

/// The service and the port of a cluster, if its name is one of ours.
pub fn parse_cluster_name(name: &str) -> Option<(ServiceId, PortName)> {
    if name.len() > LONGEST_CLUSTER_NAME {
        return None;
    }
    let (service, port) = name.split_once(':').unwrap_or((name, ""));
    Some((service.parse().ok()?, PortName::new(port)))
}
