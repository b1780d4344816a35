//! `v1` Pod and Node: the fields that decide whether and where a pod becomes an endpoint.

use serde::Deserialize;

use super::{Meta, PortNumber, Probe, Protocol, null_is_default};

/// The label that names a [`Node`]'s zone.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// The `ServiceAccount` of a pod that names none.
const DEFAULT_SERVICE_ACCOUNT: &str = "default";

/// `v1` Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(expecting = "a Pod")]
pub struct Pod {
    /// Name, UID and labels.
    pub metadata: Meta,
    /// Its specification.
    pub spec: PodSpec,
    /// Its observed state. Absent in a manifest that no kubelet has seen.
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: PodStatus,
}

/// `spec` of a [`Pod`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object with the fields of a Pod's spec")]
pub struct PodSpec {
    /// Absent until it is scheduled.
    #[serde(default)]
    pub node_name: Option<String>,
    /// Whether it uses the network and the addresses of its node.
    #[serde(default, deserialize_with = "null_is_default")]
    pub host_network: bool,
    /// Absent or empty: `default`.
    #[serde(default)]
    pub service_account_name: Option<String>,
    /// Its own name in DNS.
    #[serde(default)]
    pub hostname: Option<String>,
    /// The headless Service under whose DNS name `hostname` is published.
    #[serde(default)]
    pub subdomain: Option<String>,
    /// Its containers, in which named ports are looked up.
    #[serde(default, deserialize_with = "null_is_default")]
    pub containers: Vec<Container>,
    /// Those that restart always are sidecars, and their ports count as well.
    #[serde(default, deserialize_with = "null_is_default")]
    pub init_containers: Vec<Container>,
    /// Conditions that other controllers set before the pod counts as ready.
    #[serde(default, deserialize_with = "null_is_default")]
    pub readiness_gates: Vec<ReadinessGate>,
}

/// A condition that another controller sets. Only the number of gates matters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(expecting = "a readiness gate")]
pub struct ReadinessGate {}

/// A container of a [`Pod`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a container")]
pub struct Container {
    /// `Always` makes a sidecar of an init container.
    #[serde(default)]
    pub restart_policy: Option<String>,
    /// The ports it declares.
    #[serde(default, deserialize_with = "null_is_default")]
    pub ports: Vec<ContainerPort>,
    /// How kubelet asks whether it is ready.
    #[serde(default)]
    pub readiness_probe: Option<Probe>,
    /// How kubelet asks whether it has started; until then it is not ready.
    #[serde(default)]
    pub startup_probe: Option<Probe>,
}

impl Container {
    /// Whether it is a sidecar, if it is an init container.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

/// A port that a [`Container`] declares.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a container port: an object with containerPort")]
pub struct ContainerPort {
    /// The name by which a Service's `targetPort` may refer to it.
    #[serde(default)]
    pub name: Option<String>,
    /// The number.
    pub container_port: PortNumber,
    /// Absent: TCP.
    #[serde(default, deserialize_with = "null_is_default")]
    pub protocol: Protocol,
}

/// `status` of a [`Pod`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object with the fields of a Pod's status")]
pub struct PodStatus {
    /// A pod in `Failed` or `Succeeded` has ended.
    #[serde(default)]
    pub phase: Option<String>,
    /// Only `Ready` counts.
    #[serde(default, deserialize_with = "null_is_default")]
    pub conditions: Vec<PodCondition>,
    /// Its addresses, at most one per family.
    #[serde(default, rename = "podIPs", deserialize_with = "null_is_default")]
    pub pod_ips: Vec<PodIp>,
}

/// A condition of a [`Pod`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a condition: an object with type and status")]
pub struct PodCondition {
    /// The type of the condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// When the status last changed, as text.
    #[serde(default)]
    pub last_transition_time: Option<String>,
}

/// An address of a [`Pod`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(expecting = "an object with ip")]
pub struct PodIp {
    /// As text; Kubernetes does not promise canonical form.
    #[serde(default, deserialize_with = "null_is_default")]
    pub ip: String,
}

impl Pod {
    /// Whether its Ready condition is exactly True.
    pub fn is_ready(&self) -> bool {
        self.ready_condition().is_some_and(|ready| ready.status == "True")
    }

    /// Its Ready condition.
    pub fn ready_condition(&self) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|condition| condition.kind == "Ready")
    }

    /// Whether it has ended and will not run again.
    pub fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// The name of its `ServiceAccount`.
    pub fn service_account(&self) -> &str {
        let named = self.spec.service_account_name.as_deref().filter(|name| !name.is_empty());
        named.unwrap_or(DEFAULT_SERVICE_ACCOUNT)
    }

    /// The containers that run as long as it does: its containers, and the init containers that restart always (sidecars).
    pub fn lasting_containers(&self) -> impl Iterator<Item = &Container> {
        let sidecars = self.spec.init_containers.iter().filter(|init| init.is_sidecar());
        self.spec.containers.iter().chain(sidecars)
    }
}

/// `v1` Node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(expecting = "a Node")]
pub struct Node {
    /// Name and labels.
    pub metadata: Meta,
}

impl Node {
    /// Its zone, if it is labelled with one.
    pub fn zone(&self) -> Option<&str> {
        self.metadata.labels.get(ZONE_LABEL).map(String::as_str).filter(|zone| !zone.is_empty())
    }
}
