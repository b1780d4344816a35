//! `autoscaling/v2` `HorizontalPodAutoscaler`, reduced to its target.

use std::sync::Arc;

use serde::Deserialize;

use super::Meta;
use super::workload::Workload;

/// A `HorizontalPodAutoscaler`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "RawHpa")]
pub struct HorizontalPodAutoscaler {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What it scales. `None`: it names nothing that could be scaled.
    pub target: Option<Workload>,
}

#[derive(Deserialize)]
struct RawHpa {
    metadata: Meta,
    #[serde(default)]
    spec: HpaSpec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct HpaSpec {
    #[serde(default)]
    scale_target_ref: HpaTarget,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct HpaTarget {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
}

impl From<RawHpa> for HorizontalPodAutoscaler {
    fn from(raw: RawHpa) -> Self {
        let HpaTarget { api_version, kind, name } = raw.spec.scale_target_ref;
        Self {
            namespace: raw.metadata.namespace().into(),
            name: raw.metadata.name.as_str().into(),
            target: Workload::new(&api_version, &kind, &name),
        }
    }
}
