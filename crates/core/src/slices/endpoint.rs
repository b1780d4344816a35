//! Computes the `EndpointSlice` endpoint of one pod: addresses, conditions, node, zone and port numbers.

use std::net::IpAddr;
use std::sync::Arc;

use super::{
    ContainerPort, EndpointPort, Family, ListedEndpoint, Nodes, Options, Pod, PodPhase, Protocol,
    ServiceFacts, TargetPort, TargetRef,
};
use crate::endpoint::Conditions;

/// Why a pod has no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointSkipped {
    /// The pod has ended. `publishNotReadyAddresses` does not change that.
    #[error("it has ended (phase {0:?})")]
    Ended(PodPhase),
    /// It has no address yet.
    #[error("it has no address")]
    NoAddress,
    /// It is being deleted, and terminating conditions are off.
    #[error("it is being deleted, and terminating conditions are off")]
    Deleting,
    /// Its node is not known yet. Try again later.
    #[error("its node is not known")]
    NodeMissing(#[source] MissingNode),
    /// It has addresses, but none of this family.
    #[error("it has no {0} address")]
    OtherFamily(Family),
}

/// A pod that is left out until its node is known. The sync must be retried.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("node {node:?} of pod {pod:?} is not known")]
pub struct MissingNode {
    /// The pod's name, in the Service's namespace.
    pub pod: Arc<str>,
    /// The name of the node; empty when the pod has an address but no node.
    pub node: Arc<str>,
}

/// The endpoint of `pod` in the slices of `family`.
pub fn endpoint(
    service: &ServiceFacts,
    pod: &Pod,
    nodes: &Nodes,
    family: Family,
    options: &Options,
) -> Result<ListedEndpoint, EndpointSkipped> {
    if pod.phase.is_terminal() {
        return Err(EndpointSkipped::Ended(pod.phase));
    }
    if pod.ips.is_empty() {
        return Err(EndpointSkipped::NoAddress);
    }
    if pod.deleting && !options.terminating_conditions {
        return Err(EndpointSkipped::Deleting);
    }
    let node = pod.node.as_ref().and_then(|name| nodes.get(name));
    if node.is_none() && !service.publish_not_ready {
        let node = pod.node.clone().unwrap_or_default();
        return Err(EndpointSkipped::NodeMissing(MissingNode { pod: pod.name.clone(), node }));
    }
    let addresses = addresses(pod, family);
    if addresses.is_empty() {
        return Err(EndpointSkipped::OtherFamily(family));
    }
    Ok(ListedEndpoint {
        addresses,
        conditions: conditions(service, pod, options),
        hostname: pod.hostname.clone().filter(|_| is_named_by(service, pod)),
        node: pod.node.clone(),
        zone: node.and_then(|node| node.zone.clone()),
        target: Some(TargetRef {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }),
    })
}

fn addresses(pod: &Pod, family: Family) -> Vec<IpAddr> {
    let of_family = |ip: &IpAddr| Family::of(*ip) == family;
    let mut addresses: Vec<IpAddr> =
        pod.ips.iter().filter(|ip| of_family(ip)).map(IpAddr::to_canonical).collect();
    addresses.sort();
    addresses
}

fn conditions(service: &ServiceFacts, pod: &Pod, options: &Options) -> Conditions {
    let (serving, terminating) = (pod.ready, pod.deleting);
    let ready = service.publish_not_ready || (serving && !terminating);
    if options.terminating_conditions {
        Conditions::new(ready, serving, terminating)
    } else {
        Conditions { ready: Some(ready), serving: None, terminating: None }
    }
}

/// Whether the pod has a DNS name below that of the service.
fn is_named_by(service: &ServiceFacts, pod: &Pod) -> bool {
    pod.subdomain.as_deref() == Some(service.id.name()) && *pod.namespace == *service.id.namespace()
}

/// The service's ports in this pod, sorted. A port that the pod does not have is left out.
pub fn ports(service: &ServiceFacts, pod: &Pod) -> Vec<EndpointPort> {
    let mut ports: Vec<EndpointPort> = service
        .ports
        .iter()
        .filter_map(|port| {
            Some(EndpointPort {
                name: port.name.clone(),
                protocol: port.protocol,
                number: Some(port.target.number(port.protocol, container_ports(pod))?),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect();
    ports.sort();
    ports
}

/// The ports of the containers that run as long as the pod.
fn container_ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    let sidecars = pod.init_containers.iter().filter(|init| init.sidecar).flat_map(|init| &init.ports);
    pod.ports.iter().chain(sidecars)
}

impl TargetPort {
    /// Its number in a pod whose containers have these ports; `None` if no container has a port of this name and protocol. A
    /// name can occur once per protocol.
    pub fn number<'a>(
        &self,
        protocol: Protocol,
        ports: impl IntoIterator<Item = &'a ContainerPort>,
    ) -> Option<u16> {
        match self {
            TargetPort::Number(number) => Some(*number),
            TargetPort::Name(name) => {
                let mut ports = ports.into_iter();
                ports.find(|port| port.name == *name && port.protocol == protocol).map(|port| port.number)
            }
        }
    }
}
