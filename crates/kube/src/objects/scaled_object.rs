//! `keda.sh/v1alpha1` `ScaledObject`, reduced to its target, the routes that its triggers name, and whether it is paused.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::Meta;
use super::route::{RouteKey, RouteKind};
use super::workload::Workload;

/// The texts that Go's `strconv.ParseBool`, and so KEDA, reads as false.
const FALSE: [&str; 6] = ["0", "f", "F", "false", "False", "FALSE"];

/// A `ScaledObject`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "RawScaledObject")]
pub struct ScaledObject {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What it scales, or why it scales nothing.
    pub target: Result<Workload, String>,
    /// Whether its owner forbids to scale its target up from 0.
    pub paused: bool,
    /// The routes that its triggers name, in its own namespace.
    routes: Vec<(RouteKind, Arc<str>)>,
}

#[derive(Deserialize)]
struct RawScaledObject {
    metadata: Meta,
    #[serde(default)]
    spec: Value,
}

impl ScaledObject {
    /// Whether one of its triggers names this route.
    pub fn names(&self, route: &RouteKey) -> bool {
        self.routes.iter().any(|(kind, name)| *kind == route.kind && *name == route.name)
    }

    /// The routes that its triggers name.
    pub fn routes(&self) -> impl Iterator<Item = RouteKey> {
        self.routes.iter().map(|(kind, name)| RouteKey {
            namespace: Arc::clone(&self.namespace),
            name: Arc::clone(name),
            kind: *kind,
        })
    }

    /// Whether this is the workload that it scales, in any version of its API.
    pub fn scales(&self, workload: &Workload) -> bool {
        self.target.as_ref().is_ok_and(|target| target.is_same(workload))
    }
}

impl From<RawScaledObject> for ScaledObject {
    fn from(raw: RawScaledObject) -> Self {
        Self {
            namespace: raw.metadata.namespace().into(),
            name: raw.metadata.name.as_str().into(),
            target: target(&raw.spec, &raw.metadata.name),
            paused: is_paused(&raw.metadata),
            routes: routes(&raw.spec),
        }
    }
}

fn target(spec: &Value, name: &str) -> Result<Workload, String> {
    let reference = spec.get("scaleTargetRef");
    let text = |field: &str| reference.and_then(|reference| reference.get(field)).and_then(Value::as_str);
    let (version, kind) = (text("apiVersion").unwrap_or("apps/v1"), text("kind").unwrap_or("Deployment"));
    let target = text("name").and_then(|name| Workload::new(version, kind, name));
    target.ok_or_else(|| format!("ScaledObject {name} names no workload"))
}

/// As KEDA reads it: what is not a boolean is true, and a number of replicas takes precedence over the switch. KEDA scales the
/// workload to that number, so it may be woken.
fn is_paused(meta: &Meta) -> bool {
    let annotation =
        |name: &str| meta.annotations.get(&format!("autoscaling.keda.sh/{name}")).map(String::as_str);
    let is_set = |name| annotation(name).is_some_and(|text| !FALSE.contains(&text));
    let held = annotation("paused-replicas").map(|text| text.parse::<u32>().unwrap_or(0));
    held.map_or_else(|| is_set("paused"), |replicas| replicas == 0) || is_set("paused-scale-out")
}

fn routes(spec: &Value) -> Vec<(RouteKind, Arc<str>)> {
    let triggers = spec.get("triggers").and_then(Value::as_array);
    let all = triggers.into_iter().flatten().filter_map(|trigger| trigger.get("metadata"));
    let named = |metadata: &Value| {
        let of = |(kind, _): (RouteKind, _)| Some((kind, kind.named_by(metadata)?.into()));
        RouteKind::WATCHED.into_iter().filter_map(of).collect::<Vec<_>>()
    };
    all.flat_map(named).collect()
}
