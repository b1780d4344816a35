//! Runs the controller of `EndpointSlice`s in the process of a trial, as an account with exactly its permissions.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use rouse_core::slices::Options;
use rouse_e2e::wait::{LONG_PATIENCE, patiently};
use rouse_kube::client::permissions::SLICE_PERMISSIONS;
use rouse_kube::slices::{SliceController, SliceSettings};
use rouse_kube::tasks::TaskEnded;
use rouse_net::clock::TokioClock;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cluster;
use crate::identity::{kubeconfig_with, token_of};
use crate::test_namespace::TestNamespace;

/// The account of the controller.
const ACCOUNT: &str = "rouse-slices";

/// A running controller.
pub(crate) struct Controller {
    pub(crate) inner: Arc<SliceController>,
    cancel: CancellationToken,
    task: JoinSet<Result<(), TaskEnded>>,
}

impl Controller {
    /// Starts one that writes the slices of these namespaces' cluster; `namespace`: only of that one.
    pub(crate) async fn start(space: &TestNamespace, namespace: Option<&str>, options: Options) -> Self {
        let client = cluster::client_by(&identity(space).await).await;
        let mut settings = SliceSettings::new(Arc::new(TokioClock::new()), u64::from(std::process::id()));
        (settings.namespace, settings.options) = (namespace.map(str::to_owned), options);
        let inner = SliceController::new(client, settings);
        let (cancel, mut task) = (CancellationToken::new(), JoinSet::new());
        task.spawn(Arc::clone(&inner).run(cancel.clone()));
        let synced = tokio::time::timeout(LONG_PATIENCE, inner.synced()).await;
        assert!(synced.is_ok(), "not synced: {:?}", inner.missing());
        Self { inner, cancel, task }
    }

    /// Ends it. No task may have ended before.
    pub(crate) async fn stop(mut self) {
        self.cancel.cancel();
        let ended = tokio::time::timeout(LONG_PATIENCE, self.task.join_next()).await;
        ended.expect("in time").expect("a task").expect("no panic").expect("no early end");
    }
}

/// Makes the account with the controller's permissions in the whole cluster. Returns its kubeconfig.
async fn identity(space: &TestNamespace) -> std::path::PathBuf {
    space
        .apply(json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": ACCOUNT } }))
        .await;
    let namespace = space.itself().await;
    let name = format!("{}-slices", space.name());
    // Removed with the namespace.
    let meta = json!({ "name": name, "ownerReferences": [{
        "apiVersion": "v1", "kind": "Namespace", "name": space.name(), "uid": namespace["metadata"]["uid"],
    }] });
    let rules: Vec<Value> = SLICE_PERMISSIONS
        .iter()
        .map(|it| json!({ "apiGroups": [it.group], "resources": [it.resource], "verbs": it.verbs }))
        .collect();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": meta, "rules": rules,
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": meta,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": space.name() }],
    });
    for object in [role, binding] {
        cluster::apply(space.client(), None, &object).await;
    }
    let token = token_of(space, ACCOUNT, json!({ "expirationSeconds": 7200 })).await;
    let path = space.files().join("slices.kubeconfig");
    fs::write(&path, kubeconfig_with(space, &json!({ "token": token })).to_string()).expect("a kubeconfig");
    path
}

/// The slices of a Service that we manage.
pub(crate) async fn our_slices(space: &TestNamespace, service: &str) -> Vec<Value> {
    slices_of(space, service, "rouse.dev").await
}

/// The slices of a Service that this writer manages.
pub(crate) async fn slices_of(space: &TestNamespace, service: &str, manager: &str) -> Vec<Value> {
    let labels =
        format!("kubernetes.io/service-name={service},endpointslice.kubernetes.io/managed-by={manager}");
    space.list(crate::test_namespace::SLICE, &labels).await
}

/// The conditions of each pod in our slices, by the name of the pod: `ready`, `serving`, `terminating`.
pub(crate) async fn conditions(space: &TestNamespace, service: &str) -> BTreeMap<String, [Option<bool>; 3]> {
    let slices = our_slices(space, service).await;
    let endpoints = slices.iter().filter_map(|slice| slice["endpoints"].as_array()).flatten();
    let read = |endpoint: &Value| {
        let of = |name: &str| endpoint["conditions"][name].as_bool();
        let name = endpoint["targetRef"]["name"].as_str().expect("a pod").to_owned();
        (name, ["ready", "serving", "terminating"].map(of))
    };
    endpoints.map(read).collect()
}

/// Waits until the pods in our slices have exactly these conditions.
pub(crate) async fn until_conditions(
    space: &TestNamespace,
    service: &str,
    expected: &[(&str, [Option<bool>; 3])],
) {
    let expected: BTreeMap<_, _> = expected.iter().map(|(pod, of)| ((*pod).to_owned(), *of)).collect();
    patiently(&format!("{service} to have {expected:?}"), async || {
        let there = conditions(space, service).await;
        (there == expected).then_some(())
    })
    .await;
}
