//! Creates, merges and deletes objects, as clients of the fake API server ask.

use serde_json::{Map, Value, json};

use super::{Answer, ApiServer, Target, status, whole};

impl ApiServer {
    /// Creates an object under its name, or under one made of `generateName`.
    pub(super) fn create(&self, target: &Target, object: &Value) -> Answer {
        let mut object = object.clone();
        let namespace = target.namespace.clone().unwrap_or_default();
        let meta = &mut object["metadata"];
        if !namespace.is_empty() {
            meta["namespace"] = json!(namespace);
        }
        if meta["name"].as_str().unwrap_or_default().is_empty() {
            let Some(prefix) = meta["generateName"].as_str() else {
                return whole(422, &status(422, "name or generateName is required"));
            };
            let mut state = self.state();
            state.named += 1;
            meta["name"] = json!(format!("{prefix}{:05}", state.named));
        }
        let name = meta["name"].as_str().unwrap().to_owned();
        if self.get(&target.collection, &namespace, &name).is_some() {
            return whole(409, &status(409, &format!("{} {name:?} already exists", target.collection)));
        }
        self.put_alone(&target.collection, object);
        whole(201, &self.get(&target.collection, &namespace, &name).unwrap())
    }

    /// Deletes an object, if the preconditions hold.
    pub(super) fn remove(&self, target: &Target, name: &str, options: &Value) -> Answer {
        let namespace = target.namespace.clone().unwrap_or_default();
        let Some(object) = self.get(&target.collection, &namespace, name) else {
            return whole(404, &status(404, &format!("{} {name:?} not found", target.collection)));
        };
        for field in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][field];
            if !wanted.is_null() && object["metadata"][field] != *wanted {
                return whole(409, &status(409, &format!("the {field} is not {wanted}")));
            }
        }
        self.delete(&target.collection, &namespace, name);
        whole(200, &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}))
    }
}

/// Applies a JSON merge patch.
pub(super) fn merge(into: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Some(members) = into.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            members.remove(key);
        } else {
            merge(members.entry(key).or_insert(Value::Null), value);
        }
    }
}
