//! Applies Kubernetes objects given as JSON, and creates and removes namespaces.

use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::{Value, json};

use crate::Result;
use crate::clock::delay;

/// The field manager.
const MANAGER: &str = "rouse-bench";

/// The API of one kind in `namespace`.
pub(super) fn api(client: &Client, namespace: &str, api_version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), namespace, &resource)
    }
}

/// Applies `object` in `namespace`; the empty one is for objects of the whole cluster.
pub(super) async fn apply(client: &Client, namespace: &str, object: &Value) -> Result<DynamicObject> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let api = api(client, namespace, text("apiVersion"), text("kind"));
    Ok(api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(object)).await?)
}

/// Creates an empty namespace.
pub(super) async fn namespace(client: &Client, name: &str) -> Result<()> {
    remove_namespace(client, name).await?;
    apply(client, "", &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await?;
    Ok(())
}

/// Deletes a namespace, and waits until it is gone.
pub(super) async fn remove_namespace(client: &Client, name: &str) -> Result<()> {
    let namespaces = api(client, "", "v1", "Namespace");
    if namespaces.get_opt(name).await?.is_some() {
        namespaces.delete(name, &DeleteParams::default()).await?;
        while namespaces.get_opt(name).await?.is_some() {
            delay(std::time::Duration::from_millis(100)).await;
        }
    }
    Ok(())
}
