//! A Deployment or `StatefulSet`, trimmed to what finds it and what scales it.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::null_is_default;

/// A Deployment or `StatefulSet`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WorkloadObject {
    /// Its name and its version.
    pub metadata: WorkloadMeta,
    /// Its pods, as requested.
    #[serde(default)]
    pub spec: WorkloadSpec,
    /// Its pods, as they are.
    #[serde(default)]
    pub status: WorkloadStatus,
    /// Its kind, which lists do not say.
    #[serde(skip)]
    pub kind: &'static str,
}

/// `metadata`, without the labels and annotations of the workload itself, which may be large.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadMeta {
    /// Its name.
    pub name: String,
    /// Its namespace.
    #[serde(default)]
    pub namespace: String,
    /// A write of its scale is based on it.
    #[serde(default)]
    pub resource_version: String,
    /// It is being deleted.
    #[serde(default)]
    pub deletion_timestamp: Option<String>,
}

/// `spec` of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct WorkloadSpec {
    /// Absent: 1, which the API server writes.
    #[serde(default)]
    pub replicas: Option<u32>,
    #[serde(default, deserialize_with = "null_is_default")]
    template: Template,
}

/// `status` of a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadStatus {
    /// Absent: 0.
    #[serde(default, deserialize_with = "null_is_default")]
    pub ready_replicas: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
struct Template {
    #[serde(default, deserialize_with = "null_is_default")]
    metadata: TemplateMeta,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
struct TemplateMeta {
    #[serde(default, deserialize_with = "null_is_default")]
    labels: BTreeMap<String, String>,
}

impl WorkloadObject {
    /// The labels of its pods.
    pub fn pod_labels(&self) -> &BTreeMap<String, String> {
        &self.spec.template.metadata.labels
    }

    /// Whether its pods have all labels of `selector`.
    pub fn has_pods_of(&self, selector: &BTreeMap<String, String>) -> bool {
        selector.iter().all(|(key, value)| self.pod_labels().get(key) == Some(value))
    }

    /// The number of pods that it is to have.
    pub fn replicas(&self) -> u32 {
        self.spec.replicas.unwrap_or(1)
    }
}
