//! Computes the `EndpointSlice`s of a Service from its pods (KEP-1672), for `rouse up`, `rouse explain slices` and the
//! controller of `EndpointSlice`s.
//!
//! Pure functions on plain data. [`endpoint()`] and [`ports`] compute the endpoint of one pod, [`reconcile()`] packs the
//! endpoints into slices, and a [`Tracker`] checks that the cache of slices is fresh enough. The caller must leave out
//! `ExternalName` Services, which get no slices, and slices that are being deleted.

mod endpoint;
mod reconcile;
mod tracker;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use crate::endpoint::{Conditions, PodUid, PortName, ServiceId};

pub use endpoint::{EndpointSkipped, MissingNode, endpoint, ports};
pub use reconcile::{SlicePlan, reconcile};
pub use tracker::{Freshness, Tracker};

/// Labels and annotations.
pub type Labels = BTreeMap<String, String>;

/// The nodes by name.
pub type Nodes = BTreeMap<Arc<str>, Node>;

/// The label that names the Service of a slice.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label that names the controller that writes a slice.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`] on our slices; slices with another are never touched.
pub const MANAGER: &str = "rouse.dev";
/// The label on the slices of a Service without a cluster IP.
pub const HEADLESS: &str = "service.kubernetes.io/headless";

/// Whether `selector` selects an object with these `labels`. An empty selector selects nothing.
pub fn selects(selector: &Labels, labels: &Labels) -> bool {
    !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// An address family of a Service or of a slice. That of a slice never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl Family {
    /// The family as Kubernetes writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Family::Ipv4 => "IPv4",
            Family::Ipv6 => "IPv6",
        }
    }

    /// The family that Kubernetes writes as `text`. `None` for `FQDN`, which no pod has.
    pub fn parse(text: &str) -> Option<Self> {
        [Family::Ipv4, Family::Ipv6].into_iter().find(|family| family.as_str() == text)
    }

    /// The family of `ip`; an IPv4-mapped IPv6 address is IPv4.
    pub fn of(ip: IpAddr) -> Self {
        if ip.to_canonical().is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The protocol as Kubernetes writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        }
    }

    /// The protocol that Kubernetes writes as `text`.
    pub fn parse(text: &str) -> Option<Self> {
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|protocol| protocol.as_str() == text)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A Service, reduced to what its slices depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceFacts {
    /// `namespace/name`.
    pub id: ServiceId,
    /// Its UID. A slice owned by another UID belongs to a deleted Service.
    pub uid: Arc<str>,
    /// Copied to the slices, except the reserved labels.
    pub labels: Labels,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.ipFamilies`, the primary first.
    pub ip_families: Vec<Family>,
    /// `spec.clusterIP`; `None` when it is `"None"` or empty.
    pub cluster_ip: Option<IpAddr>,
    /// `spec.publishNotReadyAddresses`: every pod with an address counts as ready.
    pub publish_not_ready: bool,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
}

impl ServiceFacts {
    /// The families that get slices, the primary first.
    pub fn families(&self) -> Vec<Family> {
        let mut families = self.ip_families.clone();
        if families.is_empty() {
            // No API server has set the default. Taking the list as empty would delete every slice of the Service.
            families = self.cluster_ip.map_or(vec![Family::Ipv4, Family::Ipv6], |ip| vec![Family::of(ip)]);
        }
        if families.first() == families.get(1) {
            families.truncate(1);
        }
        families
    }

    /// The labels that each of its slices carries.
    pub fn slice_labels(&self) -> Labels {
        let reserved = [SERVICE_NAME, MANAGED_BY, HEADLESS];
        let mut labels = self.labels.clone();
        labels.retain(|key, _| !reserved.contains(&key.as_str()));
        labels.insert(SERVICE_NAME.into(), self.id.name().into());
        labels.insert(MANAGED_BY.into(), MANAGER.into());
        if self.cluster_ip.is_none() {
            labels.insert(HEADLESS.into(), String::new());
        }
        labels
    }

    /// The prefix of the names of its slices: the `generateName` of a create.
    pub fn generate_name(&self) -> String {
        format!("{}-", self.id.name())
    }

    /// The name that an API server would make of [`generate_name`](Self::generate_name) and `suffix`, at most 63 characters.
    /// For an engine without an API server.
    pub fn slice_name(&self, suffix: &str) -> String {
        let room = 63_usize.saturating_sub(suffix.chars().count());
        self.generate_name().chars().take(room).chain(suffix.chars()).collect()
    }
}

/// A port of a [`ServiceFacts`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name; empty for the single unnamed one.
    pub name: PortName,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port in the pod.
    pub target: TargetPort,
    /// `appProtocol`.
    pub app_protocol: Option<Arc<str>>,
}

/// `targetPort`, with Kubernetes' default ("as `port`") filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetPort {
    /// The same number in every pod.
    Number(u16),
    /// The container port with this name; its number may differ between pods.
    Name(Arc<str>),
}

/// A pod, reduced to what its endpoints depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name within the namespace.
    pub name: Arc<str>,
    /// Its UID: one incarnation.
    pub uid: PodUid,
    /// Matched against selectors by [`selects`].
    pub labels: Labels,
    /// `status.phase`.
    pub phase: PodPhase,
    /// Whether its Ready condition is `True`, not `Unknown` or absent.
    pub ready: bool,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
    /// `status.podIPs`. Like the controllers of Kubernetes, we do not read `status.podIP`.
    pub ips: Vec<IpAddr>,
    /// `spec.nodeName`, unless empty.
    pub node: Option<Arc<str>>,
    /// `spec.hostname`, unless empty.
    pub hostname: Option<Arc<str>>,
    /// `spec.subdomain`, unless empty.
    pub subdomain: Option<Arc<str>>,
    /// The ports of its containers, in order.
    pub ports: Vec<ContainerPort>,
    /// Its init containers, in order.
    pub init_containers: Vec<InitContainer>,
}

/// `status.phase` of a [`Pod`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PodPhase {
    /// Not all containers have started.
    Pending,
    /// At least one container runs.
    Running,
    /// All containers ended with exit code 0.
    Succeeded,
    /// All containers ended, at least one with a failure.
    Failed,
    /// The node does not report, or the phase is not known to us.
    Unknown,
}

impl PodPhase {
    /// The phase that Kubernetes writes as `text`.
    pub fn parse(text: &str) -> Self {
        match text {
            "Pending" => PodPhase::Pending,
            "Running" => PodPhase::Running,
            "Succeeded" => PodPhase::Succeeded,
            "Failed" => PodPhase::Failed,
            _ => PodPhase::Unknown,
        }
    }

    /// Whether the pod has ended and will not run again.
    pub fn is_terminal(self) -> bool {
        matches!(self, PodPhase::Succeeded | PodPhase::Failed)
    }
}

/// A named or unnamed port of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPort {
    /// Its name; empty when it has none.
    pub name: Arc<str>,
    /// Its number.
    pub number: u16,
    /// Its protocol.
    pub protocol: Protocol,
}

/// An init container of a [`Pod`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitContainer {
    /// Whether its own restartPolicy is `Always`, so that it runs as long as the pod.
    pub sidecar: bool,
    /// Its ports.
    pub ports: Vec<ContainerPort>,
}

/// A node, reduced to its zone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// The label `topology.kubernetes.io/zone`, unless empty.
    pub zone: Option<Arc<str>>,
}

/// An `EndpointSlice` that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Its name in the Service's namespace.
    pub name: Arc<str>,
    /// The version that was read. It is sent with an update, so that a change in between is a conflict.
    pub resource_version: Arc<str>,
    /// Kept, because an update replaces the whole object.
    pub annotations: Labels,
    /// Its content.
    pub content: SliceContent,
}

/// The content of an `EndpointSlice`, existing or planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceContent {
    /// `addressType`.
    pub family: Family,
    /// The ports that every endpoint of this slice has.
    pub ports: Vec<EndpointPort>,
    /// The endpoints.
    pub endpoints: Vec<ListedEndpoint>,
    /// The labels.
    pub labels: Labels,
    /// The UID of the Service that owns it.
    pub owner: Option<Arc<str>>,
}

/// A port of a slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointPort {
    /// The service port's name.
    pub name: PortName,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port number in the pods. We always write one.
    pub number: Option<u16>,
    /// `appProtocol`.
    pub app_protocol: Option<Arc<str>>,
}

/// An endpoint of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEndpoint {
    /// Its addresses, of the slice's family. [`IpAddr`] prints them in canonical form.
    pub addresses: Vec<IpAddr>,
    /// Its conditions.
    pub conditions: Conditions,
    /// Its name under the Service's DNS name.
    pub hostname: Option<Arc<str>>,
    /// The node it runs on.
    pub node: Option<Arc<str>>,
    /// The zone of that node.
    pub zone: Option<Arc<str>>,
    /// The pod behind it; none if the endpoint was written by hand.
    pub target: Option<TargetRef>,
}

/// The pod behind a [`ListedEndpoint`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetRef {
    /// The pod's namespace.
    pub namespace: Arc<str>,
    /// The pod's name.
    pub name: Arc<str>,
    /// The pod's incarnation.
    pub uid: PodUid,
}

/// The settings of the reconciliation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// `--terminating-conditions`. If off, pods that are being deleted are left out, and we write neither `serving` nor
    /// `terminating`.
    pub terminating_conditions: bool,
    /// The most endpoints in one slice.
    pub max_endpoints_per_slice: MaxEndpoints,
}

impl Default for Options {
    fn default() -> Self {
        Self { terminating_conditions: true, max_endpoints_per_slice: MaxEndpoints::default() }
    }
}

/// The most endpoints in one slice: 1 to 1000, by default 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxEndpoints(usize);

/// Why something is not a [`MaxEndpoints`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a number of endpoints per slice: expected a whole number from 1 to 1000")]
pub struct BadMaxEndpoints(String);

impl MaxEndpoints {
    /// At most `count` endpoints in a slice.
    pub fn new(count: usize) -> Result<Self, BadMaxEndpoints> {
        // Kubernetes rejects slices with more than 1000 endpoints.
        if (1..=1000).contains(&count) { Ok(Self(count)) } else { Err(BadMaxEndpoints(count.to_string())) }
    }

    /// The number.
    pub fn get(self) -> usize {
        self.0
    }
}

impl Default for MaxEndpoints {
    fn default() -> Self {
        Self(100)
    }
}

impl FromStr for MaxEndpoints {
    type Err = BadMaxEndpoints;

    fn from_str(text: &str) -> Result<Self, BadMaxEndpoints> {
        text.parse().map_err(|_| BadMaxEndpoints(text.into())).and_then(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    fn service(name: &str) -> ServiceFacts {
        ServiceFacts {
            id: ServiceId::new("shop", name).unwrap(),
            uid: "service-uid".into(),
            labels: Labels::new(),
            ports: vec![],
            ip_families: vec![],
            cluster_ip: None,
            publish_not_ready: false,
            deleting: false,
        }
    }

    #[test]
    fn a_selector_selects_pods_with_all_its_labels_and_an_empty_one_selects_none() {
        let pod = labels(&[("app", "cart"), ("tier", "web")]);
        let cases: &[(&[(&str, &str)], bool)] = &[
            (&[], false),
            (&[("app", "cart")], true),
            (&[("app", "cart"), ("tier", "web")], true),
            (&[("app", "other")], false),
            (&[("app", "cart"), ("zone", "a")], false),
        ];
        for (selector, expected) in cases {
            assert_eq!(selects(&labels(selector), &pod), *expected, "{selector:?}");
        }
    }

    #[test]
    fn the_size_of_a_slice_is_checked_at_the_edge() {
        assert_eq!(Options::default().max_endpoints_per_slice.get(), 100);
        for good in ["1", "100", "1000"] {
            assert_eq!(good.parse::<MaxEndpoints>().unwrap().get().to_string(), good);
        }
        for bad in ["0", "1001", "-1", "many", ""] {
            let error = bad.parse::<MaxEndpoints>().unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")) && error.contains("1 to 1000"), "{error}");
        }
    }

    #[test]
    fn an_undefaulted_service_has_the_family_of_its_cluster_ip_or_both() {
        use Family::{Ipv4, Ipv6};
        let cases: &[(&[Family], Option<&str>, &[Family])] = &[
            (&[Ipv6, Ipv4], Some("10.0.0.1"), &[Ipv6, Ipv4]),
            (&[Ipv4, Ipv4], None, &[Ipv4]),
            (&[], Some("10.0.0.1"), &[Ipv4]),
            (&[], Some("fd00::1"), &[Ipv6]),
            (&[], None, &[Ipv4, Ipv6]),
        ];
        for (ip_families, cluster_ip, expected) in cases {
            let cluster_ip = cluster_ip.map(|ip| ip.parse().unwrap());
            let service = ServiceFacts { ip_families: ip_families.to_vec(), cluster_ip, ..service("cart") };
            assert_eq!(service.families(), *expected, "{service:?}");
        }
    }

    #[test]
    fn slices_mirror_the_services_labels_but_for_the_reserved_ones() {
        let reserved = [("team", "a"), (SERVICE_NAME, "x"), (MANAGED_BY, "x"), (HEADLESS, "x")];
        let mut service = ServiceFacts { labels: labels(&reserved), ..service("cart") };
        let ours = [("team", "a"), (SERVICE_NAME, "cart"), (MANAGED_BY, "rouse.dev")];
        let headless = [ours.as_slice(), &[(HEADLESS, "")]].concat();
        assert_eq!(service.slice_labels(), labels(&headless));
        service.cluster_ip = Some("10.0.0.1".parse().unwrap());
        assert_eq!(service.slice_labels(), labels(&ours));
    }

    #[test]
    fn a_slice_name_begins_with_the_services_and_fits() {
        assert_eq!(service("cart").slice_name("x7k2p"), "cart-x7k2p");
        let long = service(&"a".repeat(63)).slice_name("x7k2p");
        assert_eq!(long, "a".repeat(58) + "x7k2p");
    }
}
