//! `v1` Service: its type, its ports, its selector and its addresses.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de};

use super::{AddressType, Meta, PortNumber, Protocol, null_is_default};

/// `v1` Service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(expecting = "a Service")]
pub struct Service {
    /// Name, labels and annotations.
    pub metadata: Meta,
    /// Its specification.
    pub spec: ServiceSpec,
}

/// `spec` of a [`Service`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object with the fields of a Service's spec")]
pub struct ServiceSpec {
    /// `ClusterIP` if absent.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// `None` means headless.
    #[serde(default, rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    /// At most one per family; the first is `cluster_ip`.
    #[serde(default, rename = "clusterIPs", deserialize_with = "null_is_default")]
    pub cluster_ips: Vec<String>,
    /// The labels of its pods; empty: the owner of the Service writes its slices.
    #[serde(default, deserialize_with = "null_is_default")]
    pub selector: BTreeMap<String, String>,
    /// The ports that clients use.
    #[serde(default, deserialize_with = "null_is_default")]
    pub ports: Vec<ServicePort>,
    /// Its address families. Each has slices of its own.
    #[serde(default, deserialize_with = "null_is_default")]
    pub ip_families: Vec<AddressType>,
    /// Pods count as ready whether they are or not.
    #[serde(default, deserialize_with = "null_is_default")]
    pub publish_not_ready_addresses: bool,
    /// Has no effect while requests go straight to pods; the status of routes says so.
    #[serde(default)]
    pub session_affinity: Option<String>,
    /// Has no effect while requests go straight to pods; the status of routes says so.
    #[serde(default)]
    pub internal_traffic_policy: Option<String>,
    /// Has no effect while requests go straight to pods; the status of routes says so.
    #[serde(default)]
    pub traffic_distribution: Option<String>,
}

impl Service {
    /// Whether it is a DNS alias for another host (type `ExternalName`).
    pub fn is_external_name(&self) -> bool {
        self.spec.kind.as_deref() == Some("ExternalName")
    }

    /// Whether it has no `ClusterIP`.
    pub fn is_headless(&self) -> bool {
        self.spec.cluster_ip.as_deref() == Some("None")
    }
}

/// A port of a [`Service`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a Service port: an object with port")]
pub struct ServicePort {
    /// Absent or `""`: the single unnamed port.
    #[serde(default, deserialize_with = "null_is_default")]
    pub name: String,
    /// The number that clients dial.
    pub port: PortNumber,
    /// Absent: the same as `port`.
    #[serde(default)]
    pub target_port: Option<TargetPort>,
    /// Absent: TCP.
    #[serde(default, deserialize_with = "null_is_default")]
    pub protocol: Protocol,
    /// Copied into the slices.
    #[serde(default)]
    pub app_protocol: Option<String>,
}

/// A container's port, by number or by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum TargetPort {
    /// The same for every pod.
    Number(PortNumber),
    /// Looked up in the containers of each pod.
    Name(String),
}

impl<'de> Deserialize<'de> for TargetPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl de::Visitor<'_> for Either {
            type Value = TargetPort;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a port number from 1 to 65535, or a port's name")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<TargetPort, E> {
                let port = u16::try_from(number).ok().and_then(PortNumber::new);
                port.map(TargetPort::Number)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<TargetPort, E> {
                self.visit_i64(i64::try_from(number).unwrap_or(i64::MAX))
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<TargetPort, E> {
                Ok(TargetPort::Name(name.to_owned()))
            }
        }

        deserializer.deserialize_any(Either)
    }
}
