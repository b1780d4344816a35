//! Conversions between Pods, Services, Nodes and `EndpointSlice`s and the plain data of [`rouse_core::slices`].

use std::net::IpAddr;
use std::sync::Arc;

use rouse_core::endpoint::{BadServiceId, PodUid, PortName, ServiceId};
use rouse_core::slices as core;

use super::{
    AddressType, Container, ContainerPort, Endpoint, EndpointPort, EndpointSlice, Meta, Node, OwnerReference,
    Pod, PortNumber, Protocol, Service, ServicePort, TargetPort, TargetRef,
};

/// The annotation that names the pods of a Service without a selector: `key=value,key2=value2`.
pub const SELECTOR_ANNOTATION: &str = "rouse.dev/selector";

/// Why a text is not a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a selector: expected key=value, or several separated by commas")]
pub struct BadSelector(String);

/// Reads `key=value,key2=value2`. Set-based expressions are not supported.
pub fn parse_selector(text: &str) -> Result<core::Labels, BadSelector> {
    let bad = || BadSelector(text.to_owned());
    let mut selector = core::Labels::new();
    for pair in text.split(',') {
        let (key, value) = pair.split_once('=').ok_or_else(bad)?;
        // kubectl also writes `==`.
        let (key, value) = (key.trim(), value.strip_prefix('=').unwrap_or(value).trim());
        let invalid = |c: char| c.is_whitespace() || "=!(),".contains(c);
        if key.is_empty() || key.contains(invalid) || value.contains(invalid) {
            return Err(bad());
        }
        // One key cannot have two values: such a selector would select no pods, or the wrong ones.
        if selector.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(bad());
        }
    }
    Ok(selector)
}

/// The selector of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// `spec.selector`: in a cluster, Kubernetes' own controller writes the slices.
    InTree(core::Labels),
    /// [`SELECTOR_ANNOTATION`]: Rouse writes the slices.
    Ours(core::Labels),
    /// There is none: the owner of the Service writes its slices.
    None,
}

impl Service {
    /// The selector of the Service. `spec.selector` takes precedence, since Kubernetes' controller acts on it.
    pub fn selector(&self) -> Result<Selector, BadSelector> {
        if self.is_external_name() {
            return Ok(Selector::None);
        }
        if !self.spec.selector.is_empty() {
            return Ok(Selector::InTree(self.spec.selector.clone()));
        }
        match self.metadata.annotations.get(SELECTOR_ANNOTATION) {
            Some(annotation) => parse_selector(annotation).map(Selector::Ours),
            None => Ok(Selector::None),
        }
    }
}

impl Meta {
    /// `namespace/name`.
    pub fn service_id(&self) -> Result<ServiceId, BadServiceId> {
        ServiceId::new(self.namespace(), &self.name)
    }
}

impl TryFrom<Service> for core::ServiceFacts {
    type Error = BadServiceId;

    fn try_from(service: Service) -> Result<Self, BadServiceId> {
        let id = service.metadata.service_id()?;
        let families = service.spec.ip_families.iter().filter_map(|family| family_of(*family));
        Ok(Self {
            id,
            uid: service.metadata.uid.unwrap_or_default().into(),
            ip_families: families.collect(),
            cluster_ip: service.spec.cluster_ip.and_then(|ip| ip.parse().ok()),
            publish_not_ready: service.spec.publish_not_ready_addresses,
            deleting: service.metadata.deletion_timestamp.is_some(),
            labels: service.metadata.labels,
            ports: service.spec.ports.into_iter().map(service_port).collect(),
        })
    }
}

impl ServicePort {
    /// Its `targetPort`, with Kubernetes' default.
    pub fn target(&self) -> core::TargetPort {
        match &self.target_port {
            Some(TargetPort::Number(number)) => core::TargetPort::Number(number.get()),
            Some(TargetPort::Name(name)) if !name.is_empty() => core::TargetPort::Name(name.as_str().into()),
            _ => core::TargetPort::Number(self.port.get()),
        }
    }
}

fn service_port(port: ServicePort) -> core::ServicePort {
    core::ServicePort {
        name: PortName::new(&port.name),
        protocol: port.protocol.into(),
        target: port.target(),
        app_protocol: non_empty(port.app_protocol),
    }
}

impl From<Pod> for core::Pod {
    fn from(pod: Pod) -> Self {
        let ready = pod.is_ready();
        let namespace = pod.metadata.namespace().into();
        let init_containers = pod.spec.init_containers.iter().map(|init| core::InitContainer {
            sidecar: init.is_sidecar(),
            ports: container_ports(init).collect(),
        });
        Self {
            namespace,
            name: pod.metadata.name.into(),
            uid: PodUid::new(pod.metadata.uid.as_deref().unwrap_or_default()),
            labels: pod.metadata.labels,
            phase: core::PodPhase::parse(pod.status.phase.as_deref().unwrap_or_default()),
            ready,
            deleting: pod.metadata.deletion_timestamp.is_some(),
            ips: pod.status.pod_ips.iter().filter_map(|pod_ip| pod_ip.ip.parse().ok()).collect(),
            node: non_empty(pod.spec.node_name),
            hostname: non_empty(pod.spec.hostname),
            subdomain: non_empty(pod.spec.subdomain),
            ports: pod.spec.containers.iter().flat_map(container_ports).collect(),
            init_containers: init_containers.collect(),
        }
    }
}

/// The ports that a container declares.
pub(crate) fn container_ports(container: &Container) -> impl Iterator<Item = core::ContainerPort> {
    container.ports.iter().map(|port: &ContainerPort| core::ContainerPort {
        name: port.name.as_deref().unwrap_or_default().into(),
        number: port.container_port.get(),
        protocol: port.protocol.into(),
    })
}

impl From<&Node> for core::Node {
    fn from(node: &Node) -> Self {
        Self { zone: node.zone().map(Into::into) }
    }
}

/// Converts a slice to the core's type; `None` for a slice of host names, which no pod has.
pub fn from_kubernetes(slice: EndpointSlice) -> Option<core::EndpointSlice> {
    let family = family_of(slice.address_type)?;
    let owner = slice.metadata.owner_references.iter().find(|owner| owner.kind == "Service");
    // Absent is read as empty, which is also the UID of a Service that no API server has seen.
    let owner = Some(owner.map(|owner| owner.uid.as_str()).unwrap_or_default().into());
    let namespace: Arc<str> = slice.metadata.namespace().into();
    Some(core::EndpointSlice {
        name: slice.metadata.name.into(),
        resource_version: slice.metadata.resource_version.unwrap_or_default().into(),
        annotations: slice.metadata.annotations,
        content: core::SliceContent {
            family,
            ports: slice.ports.into_iter().map(Into::into).collect(),
            endpoints: slice
                .endpoints
                .into_iter()
                .map(|endpoint| core_endpoint(endpoint, &namespace))
                .collect(),
            labels: slice.metadata.labels,
            owner,
        },
    })
}

fn core_endpoint(endpoint: Endpoint, namespace: &Arc<str>) -> core::ListedEndpoint {
    let target = endpoint.target_ref.filter(|target| target.kind.as_deref() == Some("Pod"));
    core::ListedEndpoint {
        addresses: endpoint.addresses.iter().filter_map(|address| address.parse().ok()).collect(),
        conditions: endpoint.conditions.into(),
        hostname: non_empty(endpoint.hostname),
        node: non_empty(endpoint.node_name),
        zone: non_empty(endpoint.zone),
        target: target.map(|target| core::TargetRef {
            namespace: non_empty(target.namespace).unwrap_or_else(|| Arc::clone(namespace)),
            name: target.name.unwrap_or_default().into(),
            uid: PodUid::new(target.uid.as_deref().unwrap_or_default()),
        }),
    }
}

/// Converts a slice of `service` to the Kubernetes object.
pub fn written(slice: &core::EndpointSlice, service: &core::ServiceFacts) -> EndpointSlice {
    let content = &slice.content;
    let text = |text: &Arc<str>| (!text.is_empty()).then(|| text.to_string());
    let owner = content.owner.as_ref().and_then(text).map(|uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Service".to_owned(),
        name: service.id.name().to_owned(),
        uid,
        controller: Some(true),
        block_owner_deletion: Some(true),
    });
    EndpointSlice {
        metadata: Meta {
            name: slice.name.to_string(),
            generate_name: Some(service.generate_name()),
            namespace: Some(service.id.namespace().to_owned()),
            resource_version: text(&slice.resource_version),
            labels: content.labels.clone(),
            annotations: slice.annotations.clone(),
            owner_references: owner.into_iter().collect(),
            ..Meta::default()
        },
        address_type: match content.family {
            core::Family::Ipv4 => AddressType::V4,
            core::Family::Ipv6 => AddressType::V6,
        },
        endpoints: content.endpoints.iter().map(written_endpoint).collect(),
        ports: content.ports.iter().map(written_port).collect(),
    }
}

fn written_endpoint(endpoint: &core::ListedEndpoint) -> Endpoint {
    let text = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
    Endpoint {
        addresses: endpoint.addresses.iter().map(IpAddr::to_string).collect(),
        conditions: endpoint.conditions.into(),
        hostname: text(&endpoint.hostname),
        node_name: text(&endpoint.node),
        zone: text(&endpoint.zone),
        target_ref: endpoint.target.as_ref().map(|target| TargetRef {
            kind: Some("Pod".to_owned()),
            namespace: Some(target.namespace.to_string()),
            name: Some(target.name.to_string()),
            uid: Some(target.uid.to_string()).filter(|uid| !uid.is_empty()),
        }),
    }
}

fn written_port(port: &core::EndpointPort) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.to_string()),
        port: port.number.and_then(PortNumber::new),
        protocol: port.protocol.into(),
        app_protocol: port.app_protocol.as_deref().map(str::to_owned),
    }
}

impl From<EndpointPort> for core::EndpointPort {
    fn from(port: EndpointPort) -> Self {
        Self {
            name: PortName::new(port.name.as_deref().unwrap_or_default()),
            protocol: port.protocol.into(),
            number: port.port.map(PortNumber::get),
            app_protocol: non_empty(port.app_protocol),
        }
    }
}

impl From<Protocol> for core::Protocol {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => core::Protocol::Tcp,
            Protocol::Udp => core::Protocol::Udp,
            Protocol::Sctp => core::Protocol::Sctp,
        }
    }
}

impl From<core::Protocol> for Protocol {
    fn from(protocol: core::Protocol) -> Self {
        match protocol {
            core::Protocol::Tcp => Protocol::Tcp,
            core::Protocol::Udp => Protocol::Udp,
            core::Protocol::Sctp => Protocol::Sctp,
        }
    }
}

fn family_of(family: AddressType) -> Option<core::Family> {
    match family {
        AddressType::V4 => Some(core::Family::Ipv4),
        AddressType::V6 => Some(core::Family::Ipv6),
        AddressType::Fqdn => None,
    }
}

fn non_empty(text: Option<String>) -> Option<Arc<str>> {
    text.filter(|text| !text.is_empty()).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_pairs_of_keys_and_values() {
        let pairs = |pairs: &[(&str, &str)]| -> core::Labels {
            pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
        };
        for (text, expected) in [
            ("app=cart", pairs(&[("app", "cart")])),
            ("app=cart,tier=web", pairs(&[("app", "cart"), ("tier", "web")])),
            (" app == cart , tier=", pairs(&[("app", "cart"), ("tier", "")])),
            ("example.com/app=x", pairs(&[("example.com/app", "x")])),
        ] {
            assert_eq!(parse_selector(text), Ok(expected), "{text}");
        }
        for bad in ["", "app", "=x", "app=x,", "app!=x", "app in (a,b)", "app=a,app=b", "a=b=c", "a===b"] {
            let error = parse_selector(bad).unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
    }
}
