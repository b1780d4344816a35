//! Kubernetes objects, trimmed to the fields that are used.
//!
//! Fields that are not named here are dropped while reading, so a large cluster's dump costs little memory. The
//! types follow `discovery.k8s.io/v1` and `v1`; what they mean to the core is in [`routable_slice`] and [`slices`].

use std::collections::BTreeMap;
use std::fmt;
#[cfg(feature = "cluster")]
use std::time::SystemTime;

use rouse_core::slices::SERVICE_NAME;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

#[cfg(feature = "cluster")]
pub mod hpa;
pub mod injected;
#[cfg(feature = "cluster")]
pub mod lease;
mod pod;
mod probe;
pub mod routable_slice;
#[cfg(feature = "cluster")]
pub mod route;
#[cfg(feature = "cluster")]
pub mod scaled_object;
mod service;
#[cfg(feature = "cluster")]
pub mod service_summary;
pub mod slices;
#[cfg(feature = "cluster")]
mod upstream_tls;
#[cfg(feature = "cluster")]
pub mod workload;
#[cfg(feature = "cluster")]
pub mod workload_object;

pub use pod::{Container, ContainerPort, Node, Pod, PodCondition, PodIp, PodSpec, PodStatus, ReadinessGate};
pub use probe::{GrpcAction, HttpAction, HttpHeader, Probe, TcpAction};
pub use service::{Service, ServicePort, ServiceSpec, TargetPort};

/// The namespace of an object that does not name one, as in kubectl.
pub const DEFAULT_NAMESPACE: &str = "default";

/// `metadata` of any object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", expecting = "an object with the fields of metadata")]
pub struct Meta {
    /// The name within the namespace.
    pub name: String,
    /// The prefix from which the API server generates a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generate_name: Option<String>,
    /// Absent means [`DEFAULT_NAMESPACE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Absent only in objects that no API server has seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// When the object was created, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
    /// Counts up with each change of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Its presence means that the object is being deleted. The time is the end of the grace period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// The grace period of the deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<u64>,
    /// The version of the object that was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// All of them: selectors match on them, and slices mirror those of their Service.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// All of them: an update of a slice must carry along what others wrote.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The owners of the object.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
}

impl Meta {
    /// The namespace, with its default.
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().filter(|namespace| !namespace.is_empty()).unwrap_or(DEFAULT_NAMESPACE)
    }
}

/// A reference to the owner of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", expecting = "an object with the fields of an owner reference")]
pub struct OwnerReference {
    /// The owner's API group and version.
    pub api_version: String,
    /// The owner's kind.
    pub kind: String,
    /// The owner's name, in the same namespace.
    pub name: String,
    /// The owner's UID.
    pub uid: String,
    /// Whether the owner manages the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// Whether the owner waits for the object's deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

/// `discovery.k8s.io/v1` `EndpointSlice`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", expecting = "an EndpointSlice")]
pub struct EndpointSlice {
    /// Name and labels; [`SERVICE_NAME`] names the Service of the slice.
    pub metadata: Meta,
    /// The type of the addresses of all its endpoints.
    pub address_type: AddressType,
    /// The endpoints. The API prints `null` for none.
    #[serde(deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
    /// The ports that all its endpoints have.
    #[serde(default, deserialize_with = "null_is_default")]
    pub ports: Vec<EndpointPort>,
}

impl EndpointSlice {
    /// The name of the Service that the slice belongs to, if it names one.
    pub fn service_name(&self) -> Option<&str> {
        self.metadata.labels.get(SERVICE_NAME).map(String::as_str).filter(|name| !name.is_empty())
    }
}

/// The type of the addresses in a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub enum AddressType {
    /// IPv4 addresses, like `10.0.0.1`.
    #[serde(rename = "IPv4")]
    V4,
    /// IPv6 addresses, like `fd00::1`.
    #[serde(rename = "IPv6")]
    V6,
    /// Host names. Rouse does not route to them.
    #[serde(rename = "FQDN")]
    Fqdn,
}

impl fmt::Display for AddressType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AddressType::V4 => "IPv4",
            AddressType::V6 => "IPv6",
            AddressType::Fqdn => "FQDN",
        })
    }
}

/// An endpoint of an [`EndpointSlice`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", expecting = "an endpoint: an object with addresses")]
pub struct Endpoint {
    /// Its addresses, of which only the first is used.
    pub addresses: Vec<String>,
    /// Absent: no condition is set.
    #[serde(default, deserialize_with = "null_is_default")]
    pub conditions: EndpointConditions,
    /// Set for pods with a hostname under a headless Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The node it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The pod of the endpoint; absent in slices that were written by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
    /// The zone of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// `conditions` of an [`Endpoint`], as written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(expecting = "an object with ready, serving and terminating")]
pub struct EndpointConditions {
    /// Whether it takes new traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Whether it can answer requests, also while it is being deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    /// Whether it is being deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

/// A reference to the object behind an [`Endpoint`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(expecting = "an object reference")]
pub struct TargetRef {
    /// `Pod`, or another kind, which is not a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Absent: the slice's own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The pod's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The pod's UID, which tells pods of the same name apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// A port of an [`EndpointSlice`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", expecting = "a port: an object with name, port and protocol")]
pub struct EndpointPort {
    /// Absent or `""`: the unnamed port.
    #[serde(default)]
    pub name: Option<String>,
    /// Absent: the port has no number and cannot be dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<PortNumber>,
    /// Absent: TCP.
    #[serde(default, deserialize_with = "null_is_default")]
    pub protocol: Protocol,
    /// The application protocol, as the Service says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// The only protocol that Rouse routes.
    #[default]
    Tcp,
    /// Parsed, but not routed.
    Udp,
    /// Parsed, but not routed.
    Sctp,
}

/// A port number, 1 to 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNumber(u16);

impl PortNumber {
    /// `number`, unless it is 0.
    pub fn new(number: u16) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl<'de> Deserialize<'de> for PortNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        u16::try_from(number).ok().and_then(Self::new).ok_or_else(|| {
            de::Error::invalid_value(de::Unexpected::Signed(number), &"a port number from 1 to 65535")
        })
    }
}

impl Serialize for PortNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.0)
    }
}

/// A time of day as Kubernetes writes it, in seconds: `2026-01-31T12:00:00Z`.
#[cfg(feature = "cluster")]
pub(crate) fn time_text(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or_default();
    k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

/// The same in microseconds, all of them written: `2026-01-31T12:00:00.000000Z`.
#[cfg(feature = "cluster")]
pub(crate) fn micro_time(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or_default();
    let time = k8s_openapi::jiff::Timestamp::from_microsecond(micros).unwrap_or_default();
    format!("{time:.6}")
}

/// Reads `null` as the default: Go prints it for every empty list and map.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
