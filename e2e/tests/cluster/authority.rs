//! Certificates for trials, and the Secrets and `ConfigMap`s that hold them.

pub(crate) use rouse_testkit::certificates::{Authority, Leaf};
use serde_json::{Value, json};

/// A Secret with a certificate and its key.
pub(crate) fn leaf_secret(name: &str, leaf: &Leaf) -> Value {
    secret(name, &[("tls.crt", &leaf.chain), ("tls.key", &leaf.key)])
}

/// A Secret for pods that require client certificates issued by `clients`.
pub(crate) fn leaf_secret_for(name: &str, leaf: &Leaf, clients: &str) -> Value {
    secret(name, &[("tls.crt", &leaf.chain), ("tls.key", &leaf.key), ("ca.crt", clients)])
}

/// A Secret.
pub(crate) fn secret(name: &str, entries: &[(&str, &str)]) -> Value {
    holder("Secret", "stringData", name, entries)
}

/// A `ConfigMap`.
pub(crate) fn config_map(name: &str, entries: &[(&str, &str)]) -> Value {
    holder("ConfigMap", "data", name, entries)
}

fn holder(kind: &str, field: &str, name: &str, entries: &[(&str, &str)]) -> Value {
    let entries: serde_json::Map<String, Value> =
        entries.iter().map(|(key, text)| ((*key).to_owned(), json!(text))).collect();
    json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name }, field: entries })
}
