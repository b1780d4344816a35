//! Types of the test vectors that several suites must pass. Each JSON file explains its fields under `rules`.
//!
//! Unknown fields are errors: a rule that no test reads would look passed.

#![allow(missing_docs, reason = "the names are those of the JSON files")]

use std::collections::BTreeMap;

use serde::Deserialize;

/// `endpoint_conditions.json`: conditions → states, Envoy's view and which endpoints take new requests.
pub fn endpoint_conditions() -> serde_json::Result<Vec<EndpointConditions>> {
    let file: ConditionsFile = serde_json::from_str(include_str!("../vectors/endpoint_conditions.json"))?;
    Ok(file.vectors)
}

/// `pod_to_endpoint.json`: one pod, one service, one address family → the endpoint, or none.
pub fn pod_to_endpoint() -> serde_json::Result<Vec<PodToEndpoint>> {
    let file: PodFile = serde_json::from_str(include_str!("../vectors/pod_to_endpoint.json"))?;
    Ok(file.vectors)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionsFile {
    #[serde(rename = "rules")]
    _rules: BTreeMap<String, String>,
    vectors: Vec<EndpointConditions>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PodFile {
    #[serde(rename = "rules")]
    _rules: Vec<String>,
    vectors: Vec<PodToEndpoint>,
}

/// A row of `endpoint_conditions.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointConditions {
    pub id: String,
    pub name: String,
    pub endpoints: Vec<ConditionsEndpoint>,
    pub expected: ExpectedStates,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConditionsEndpoint {
    pub addresses: Vec<String>,
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
    /// On the reader's own node; Rouse ignores it.
    #[serde(default)]
    pub local: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedStates {
    /// By address.
    pub states: BTreeMap<String, String>,
    /// In the order of first appearance.
    pub envoy: Vec<ExpectedEnvoy>,
    /// In the order of first appearance.
    pub new_traffic: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedEnvoy {
    pub address: String,
    pub health_status: String,
}

/// A row of `pod_to_endpoint.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PodToEndpoint {
    pub id: String,
    pub name: String,
    pub pod: Pod,
    pub service: Service,
    pub node: Node,
    pub address_type: String,
    pub expected: ExpectedEndpoint,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Pod {
    pub phase: String,
    /// The status of the Ready condition; `None`: there is no such condition.
    pub ready: Option<String>,
    pub deletion_timestamp: bool,
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    #[serde(rename = "podIPs")]
    pub pod_ips: Vec<String>,
    pub restart_policy: String,
    pub node_name: String,
    pub hostname: String,
    pub subdomain: String,
    pub container_ports: Vec<ContainerPort>,
    pub init_containers: Vec<InitContainer>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ContainerPort {
    pub name: String,
    pub container_port: u16,
    pub protocol: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct InitContainer {
    pub restart_policy: Option<String>,
    pub ports: Vec<ContainerPort>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Service {
    pub name: String,
    pub publish_not_ready_addresses: bool,
    pub ip_families: Vec<String>,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    pub ports: Vec<ServicePort>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ServicePort {
    pub name: String,
    pub port: u16,
    pub target_port: TargetPort,
    pub protocol: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum TargetPort {
    Number(u16),
    Name(String),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub exists: bool,
    /// Empty: the node has no such label.
    pub zone: String,
}

/// The endpoint; all but `included` and `sync_error` are absent when it is left out.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ExpectedEndpoint {
    pub included: bool,
    /// Why it is left out.
    pub reason: Option<String>,
    pub conditions: Option<ExpectedConditions>,
    #[serde(default)]
    pub addresses: Vec<String>,
    #[serde(default)]
    pub ports: Vec<ExpectedPort>,
    pub zone: Option<String>,
    pub node_name: Option<String>,
    pub hostname: Option<String>,
    /// Whether the sync is to be retried.
    pub sync_error: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedConditions {
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedPort {
    pub name: String,
    pub port: u16,
    pub protocol: String,
}

#[cfg(test)]
mod tests {
    #[test]
    fn both_files_are_read_whole() {
        assert_eq!(super::endpoint_conditions().unwrap().len(), 49);
        assert_eq!(super::pod_to_endpoint().unwrap().len(), 33);
    }
}
