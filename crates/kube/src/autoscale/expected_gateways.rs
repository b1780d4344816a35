//! Which gateways must report their load: those in the `EndpointSlice`s of the gateways' Service.

use std::collections::{BTreeMap, BTreeSet};

use rouse_core::endpoint::Conditions;
use rouse_core::scale::Reporter;

use crate::objects::{Endpoint, EndpointSlice};

/// The gateways in each slice.
#[derive(Debug, Default)]
pub(super) struct ExpectedGateways {
    by_slice: BTreeMap<String, BTreeSet<Reporter>>,
}

impl ExpectedGateways {
    pub(super) fn put(&mut self, slice: &EndpointSlice) {
        let gateways = slice.endpoints.iter().filter_map(gateway).collect();
        self.by_slice.insert(slice.metadata.name.clone(), gateways);
    }

    pub(super) fn remove(&mut self, slice: &EndpointSlice) {
        self.by_slice.remove(&slice.metadata.name);
    }

    pub(super) fn replace(&mut self, all: &[EndpointSlice]) {
        self.by_slice.clear();
        for slice in all {
            self.put(slice);
        }
    }

    /// All gateways. A pod with addresses of both families is in two slices.
    pub(super) fn serving(&self) -> BTreeSet<Reporter> {
        self.by_slice.values().flatten().cloned().collect()
    }
}

/// The pod of an endpoint, by its UID, if it serves: also while it terminates.
fn gateway(endpoint: &Endpoint) -> Option<Reporter> {
    let conditions = endpoint.conditions;
    let (ready, serving, terminating) = (conditions.ready, conditions.serving, conditions.terminating);
    let serves = Conditions { ready, serving, terminating }.is_serving();
    let pod = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"))?;
    let uid = pod.uid.as_deref().filter(|uid| !uid.is_empty())?;
    serves.then(|| Reporter::new(uid))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, endpoints: &serde_json::Value) -> EndpointSlice {
        let slice = json!({"metadata": {"name": name, "namespace": "rouse-system"}, "addressType": "IPv4",
                           "endpoints": endpoints});
        serde_json::from_value(slice).unwrap()
    }

    fn pod(uid: &str, conditions: &serde_json::Value) -> serde_json::Value {
        json!({"addresses": ["10.0.0.1"], "conditions": conditions, "targetRef": {"kind": "Pod", "uid": uid}})
    }

    #[test]
    fn gateways_that_serve_count_also_while_they_terminate() {
        let mut slices = ExpectedGateways::default();
        let endpoints = json!([
            pod("ready", &json!({"ready": true})),
            pod("unsaid", &json!({})),
            pod("leaving", &json!({"ready": false, "serving": true, "terminating": true})),
            pod("starting", &json!({"ready": false})),
            pod("gone", &json!({"ready": false, "serving": false, "terminating": true})),
            {"addresses": ["10.0.0.2"], "targetRef": {"kind": "Node", "uid": "node"}},
            {"addresses": ["10.0.0.3"]},
        ]);
        slices.put(&slice("a", &endpoints));
        slices.put(&slice("b", &json!([pod("ready", &json!({"ready": true}))])));
        let names = |slices: &ExpectedGateways| {
            slices.serving().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&slices), "leaving ready unsaid");
        slices.remove(&slice("a", &json!([])));
        assert_eq!(names(&slices), "ready");
        slices.replace(&[]);
        assert_eq!(names(&slices), "");
    }
}
