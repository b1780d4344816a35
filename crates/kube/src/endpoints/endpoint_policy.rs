//! The operator's policy for endpoints: which may be without a pod, and addresses that no endpoint may have.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::objects::service_summary::ServiceSummary;

/// Which endpoints of a service's slices get traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trust {
    /// None: the Service selects no pods, so its slices were written by hand.
    None,
    /// Pods of its namespace.
    Pods,
    /// All endpoints, with or without a pod.
    All,
}

/// Where endpoints without a pod may get traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ManualEndpoints {
    /// In every service.
    Everywhere,
    /// In services of these namespaces that allow it by annotation. Elsewhere the annotation does not count: a tenant
    /// could send requests to the pods of other tenants with it.
    In(BTreeSet<String>),
}

/// The operator's policy for endpoints.
#[derive(Debug)]
pub(crate) struct EndpointPolicy {
    /// Where endpoints without a pod may get traffic.
    pub(crate) manual: ManualEndpoints,
    /// The addresses on which this gateway listens: no request is sent there.
    pub(crate) own: Vec<SocketAddr>,
}

impl EndpointPolicy {
    /// Whether endpoints of this Service that are no pods get traffic.
    pub(super) fn allows_manual(&self, facts: &ServiceSummary) -> bool {
        match &self.manual {
            ManualEndpoints::Everywhere => true,
            ManualEndpoints::In(namespaces) => {
                facts.manual_endpoints && namespaces.contains(facts.id.namespace())
            }
        }
    }

    /// Whether an endpoint is neither at one of the gateway's own sockets nor at an address that means the machine or the
    /// link that dials it: loopback, link-local (with the metadata service of clouds), unspecified, multicast, broadcast.
    pub(super) fn is_reachable_address(&self, ip: IpAddr, ports: &[u16]) -> bool {
        let ip = ip.to_canonical();
        let local = match ip {
            IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        let special = local || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast();
        let ours = |own: &SocketAddr| own.ip().to_canonical() == ip && ports.contains(&own.port());
        !special && !self.own.iter().any(ours)
    }
}
