//! The gateway's identity at the API server: a `ServiceAccount` with exactly the rules that `deploy/` grants.

use std::fs;
use std::path::{Path, PathBuf};

use kube::Client;
use kube::config::Kubeconfig;
use serde_json::{Value, json};

use crate::cluster;
use crate::test_namespace::{Kind, TestNamespace};

const NAME: &str = "rouse-gateway";
const ACCOUNT: Kind = ("v1", "ServiceAccount");
/// The `ClusterRole` of `deploy/`, under a name that no installation uses.
const ROLE: &str = "rouse-e2e-gateway";

/// A `ServiceAccount` in a trial's namespace.
pub(crate) struct Identity {
    /// A kubeconfig with its token.
    pub(crate) kubeconfig: PathBuf,
}

/// The rules that `deploy/` grants to the gateway.
pub(crate) fn granted() -> Value {
    let objects = cluster::deployed("manifests/10-rbac.yaml");
    let role = objects.into_iter().find(|object| object["kind"] == "ClusterRole");
    role.expect("a ClusterRole in deploy/")["rules"].take()
}

/// Creates the role in the cluster, without a binding.
pub(crate) async fn install(client: &Client) {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": { "name": ROLE },
        "rules": granted(),
    });
    cluster::apply(client, None, &role).await;
}

/// The API server's user name of a namespace's gateway.
pub(crate) fn user(space: &TestNamespace) -> String {
    format!("system:serviceaccount:{}:{NAME}", space.name())
}

impl Identity {
    /// The account of this namespace, with the role in this namespace.
    pub(crate) async fn of(space: &TestNamespace) -> Self {
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": NAME } });
        space.apply(account).await;
        space.apply(binding("RoleBinding", NAME, "ClusterRole", ROLE, space)).await;
        let token = token(space).await;
        let kubeconfig = space.files().join("gateway.kubeconfig");
        fs::write(&kubeconfig, kubeconfig_with(space, &json!({ "token": token })).to_string())
            .expect("a kubeconfig");
        Self { kubeconfig }
    }
}

/// The same with the token in a separate file, which can be replaced. Returns the kubeconfig and that file.
pub(crate) async fn with_token_file(space: &TestNamespace) -> (PathBuf, PathBuf) {
    let kubeconfig = Identity::of(space).await.kubeconfig;
    let file = space.files().join("token");
    fs::write(&file, token(space).await).expect("a token");
    let user = json!({ "tokenFile": file });
    fs::write(&kubeconfig, kubeconfig_with(space, &user).to_string()).expect("a kubeconfig");
    (kubeconfig, file)
}

/// Takes the permission to scale away from the gateways of this cluster, which must be the trial's own.
pub(crate) async fn forbid_scaling(space: &TestNamespace) {
    let mut rules = granted();
    let scales = |rule: &Value| {
        rule["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|name| name.as_str().is_some_and(|name| name.ends_with("/scale")))
    };
    rules.as_array_mut().expect("rules").retain(|rule| !scales(rule));
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": ROLE }, "rules": rules,
    });
    cluster::apply(space.client(), None, &role).await;
}

/// Deletes the gateway's account, which invalidates its tokens.
pub(crate) async fn revoke(space: &TestNamespace) {
    space.delete(ACCOUNT, NAME).await;
}

/// Creates the gateway's account again, and writes a new token into `file`.
pub(crate) async fn renew(space: &TestNamespace, file: &Path) {
    Identity::of(space).await;
    let new = file.with_extension("new");
    fs::write(&new, token(space).await).expect("a token");
    fs::rename(new, file).expect("a token");
}

/// Binds the role to the gateway of this namespace in the whole cluster. The trial must remove the binding.
pub(crate) async fn everywhere(space: &TestNamespace) -> Everywhere {
    let binding = binding("ClusterRoleBinding", space.name(), "ClusterRole", ROLE, space);
    cluster::apply(space.client(), None, &binding).await;
    Everywhere { space: space.clone(), binding }
}

/// Lets the gateway of this namespace have tokens reviewed. The namespace owns the binding, which is removed with it.
pub(crate) async fn may_review_tokens(space: &TestNamespace) {
    let namespace = space.itself().await;
    let name = format!("{}-reviews", space.name());
    let mut binding = binding("ClusterRoleBinding", &name, "ClusterRole", "system:auth-delegator", space);
    binding["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "Namespace", "name": space.name(), "uid": namespace["metadata"]["uid"],
    }]);
    cluster::apply(space.client(), None, &binding).await;
}

/// A `ClusterRoleBinding`. It is in no namespace, so the trial must remove it at the end.
pub(crate) struct Everywhere {
    space: TestNamespace,
    binding: Value,
}

impl Everywhere {
    pub(crate) async fn remove(self) {
        let api = cluster::api_of(self.space.client(), None, &self.binding);
        api.delete(self.space.name(), &kube::api::DeleteParams::default()).await.expect("the binding");
    }
}

/// Lets the gateway read named objects of one kind, `secrets` or `configmaps`, as `deploy/optional` does.
pub(crate) async fn grant_named(space: &TestNamespace, resource: &str, names: &[&str]) {
    grant_named_in(space, space, resource, names).await;
}

/// The same for objects of another namespace, `place`.
pub(crate) async fn grant_named_in(
    place: &TestNamespace,
    space: &TestNamespace,
    resource: &str,
    names: &[&str],
) {
    let name = format!("{NAME}-{resource}");
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": { "name": name },
        "rules": [{
            "apiGroups": [""], "resources": [resource], "resourceNames": names, "verbs": ["list", "watch"],
        }],
    });
    place.apply(role).await;
    place.apply(binding("RoleBinding", &name, "Role", &name, space)).await;
}

fn binding(kind: &str, name: &str, role_kind: &str, role: &str, space: &TestNamespace) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role },
        "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": space.name() }],
    })
}

async fn token(space: &TestNamespace) -> String {
    token_of(space, NAME, json!({ "expirationSeconds": 7200 })).await
}

/// A token of an account; `spec` is that of a `TokenRequest`.
pub(crate) async fn token_of(space: &TestNamespace, account: &str, spec: Value) -> String {
    let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", space.name());
    let asked = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec });
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(asked.to_string().into_bytes())
        .unwrap();
    let answer: Value = space.client().request(request).await.expect("a token");
    answer["status"]["token"].as_str().expect("a token").to_owned()
}

/// A kubeconfig with the cluster of the administrator's and `user`. JSON is YAML.
pub(crate) fn kubeconfig_with(space: &TestNamespace, user: &Value) -> Value {
    let file = Kubeconfig::read_from(space.kubeconfig()).expect("a kubeconfig");
    let current = file.current_context.as_deref().unwrap_or_default();
    let context = file.contexts.iter().find(|context| context.name == current);
    let named = context.and_then(|context| context.context.as_ref()).map(|context| context.cluster.clone());
    let cluster = file.clusters.iter().find(|cluster| Some(&cluster.name) == named.as_ref());
    let cluster = cluster.expect("the cluster of the current context");
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{ "name": NAME, "user": user }],
        "contexts": [{ "name": NAME, "context": { "cluster": cluster.name, "user": NAME } }],
        "current-context": NAME,
    })
}
