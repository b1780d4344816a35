//! The cluster under test: its kubeconfig, what it needs before the first trial, and access to objects by kind.

use std::fs;
use std::path::{Path, PathBuf};

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Client, Config};
use rouse_config::document::{from_node, yaml};
use rouse_e2e::client::session;
use rouse_e2e::target::Target;
use rouse_e2e::wait::patiently;
use serde_json::{Value, json};

use crate::app::App;
use crate::identity;
use crate::test_namespace::TestNamespace;

/// The field manager of the trials.
pub(crate) const MANAGER: &str = "rouse-e2e";

/// The image of the test app.
pub(crate) fn image() -> String {
    std::env::var("ROUSE_E2E_IMAGE").unwrap_or_else(|_| "localhost/rouse-test-app:1".to_owned())
}

/// The image of the gateway.
pub(crate) fn gateway_image() -> String {
    std::env::var("ROUSE_E2E_GATEWAY_IMAGE").unwrap_or_else(|_| "localhost/rouse:e2e".to_owned())
}

/// The kubeconfig of an administrator, if one is named.
pub(crate) fn named() -> Result<PathBuf, String> {
    let named = std::env::var_os("ROUSE_E2E_KUBECONFIG").filter(|path| !path.is_empty()).ok_or(
        "ROUSE_E2E_KUBECONFIG must name the kubeconfig of a cluster for tests; \
         `make cluster-test` makes such a cluster and runs these tests on it",
    )?;
    // Tests run in the folder of their crate.
    fs::canonicalize(&named).map_err(|error| format!("ROUSE_E2E_KUBECONFIG={}: {error}", named.display()))
}

/// The kubeconfig of an administrator.
pub(crate) fn kubeconfig() -> PathBuf {
    named().unwrap_or_else(|problem| panic!("{problem}"))
}

/// An administrator's client. It belongs to the runtime it is made in.
pub(crate) async fn client() -> Client {
    client_by(&kubeconfig()).await
}

/// The same for the cluster of this kubeconfig.
pub(crate) async fn client_by(kubeconfig: &Path) -> Client {
    let file = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let mut config =
        Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await.unwrap();
    config.proxy_url = None;
    Client::try_from(config).expect("a client")
}

/// The API resource of a kind.
pub(crate) fn resource(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// The API of an object's kind.
pub(crate) fn api_of(client: &Client, namespace: Option<&str>, object: &Value) -> Api<DynamicObject> {
    let text = |field: &str| object[field].as_str().unwrap_or_else(|| panic!("no {field} in {object}"));
    let resource = resource(text("apiVersion"), text("kind"));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Applies an object; `namespace` is `None` for those of the whole cluster.
pub(crate) async fn apply(client: &Client, namespace: Option<&str>, object: &Value) -> Value {
    let name = object["metadata"]["name"].as_str().unwrap_or_else(|| panic!("no name in {object}"));
    let applied = api_of(client, namespace, object)
        .patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(object))
        .await;
    serde_json::to_value(applied.unwrap_or_else(|error| panic!("cannot apply {object}: {error}"))).unwrap()
}

/// The objects of a YAML file below `deploy/`.
pub(crate) fn deployed(file: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    objects(file, &text)
}

/// The objects in a YAML text; `file` is its name for messages.
pub(crate) fn objects(file: &str, text: &str) -> Vec<Value> {
    let mut reader = yaml::Reader::new(text, 1);
    let mut objects = Vec::new();
    while reader.next_document().unwrap_or_else(|fault| panic!("{file}: {fault}")) {
        let node = reader.node().unwrap_or_else(|fault| panic!("{file}: {fault}"));
        objects.push(from_node(node).unwrap_or_else(|fault| panic!("{file}: {fault}")));
    }
    objects
}

/// Runs once, before the first trial: installs what all trials need, and checks that this machine can reach pods.
pub(crate) fn prepare() {
    let prepared = rouse_e2e::runtime::block_on(async {
        equip(&client().await).await;
        let space = TestNamespace::create().await;
        reach(&space).await;
        space.remove().await;
    });
    prepared.unwrap();
}

/// Installs what all trials need: the CRDs and the gateway's role.
pub(crate) async fn equip(client: &Client) {
    for file in ["crds/interceptorroutes.yaml", "crds/httpscaledobjects.yaml"] {
        for crd in deployed(file) {
            install(client, crd).await;
        }
    }
    identity::install(client).await;
}

/// Installs a CRD, unless KEDA has installed its own.
async fn install(client: &Client, mut crd: Value) {
    const OURS: &str = "rouse-e2e";
    let name = crd["metadata"]["name"].as_str().unwrap().to_owned();
    let api = api_of(client, None, &crd);
    let present =
        api.get_opt(&name).await.unwrap_or_else(|error| panic!("cannot ask the API server: {error}"));
    if present.is_none_or(|crd| crd.metadata.labels.unwrap_or_default().contains_key(OURS)) {
        crd["metadata"]["labels"][OURS] = json!("yes");
        apply(client, None, &crd).await;
    }
    patiently(&format!("{name} to be served"), async || {
        let crd = api.get(&name).await.ok()?;
        let conditions = crd.data["status"]["conditions"].as_array()?.clone();
        conditions.iter().any(|is| is["type"] == "Established" && is["status"] == "True").then_some(())
    })
    .await;
}

/// Fails with an explanation if this machine cannot reach pods and Services. Otherwise every trial would fail without one.
async fn reach(space: &TestNamespace) {
    let app = App::new("reach").replicas(1);
    space.run(&app).await;
    let [pod] = &space.ready_pods("reach", 1).await[..] else { panic!("one pod was asked for") };
    let service = space.cluster_ip("reach").await;
    for (what, address) in [("pods", (pod.ip, 8080)), ("Services", (service, 80))] {
        let asked = async {
            patiently(what, async || {
                tokio::net::TcpStream::connect(address).await.ok()?;
                Some(session::get(&Target::plain(address.into()), "/healthz").await.status)
            })
            .await
        };
        let answer = tokio::time::timeout(rouse_e2e::wait::PATIENCE, asked).await;
        assert!(
            matches!(answer, Ok(status) if status == 200),
            "these tests run the gateway on this machine, and from here {what} of the cluster cannot be reached \
             ({} {}): run them where that is possible, such as on the node",
            address.0,
            address.1,
        );
    }
}
