//! A namespace for one trial: creates, reads and changes objects in it, and waits for pods, slices and conditions.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod as PodObject;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use rouse_e2e::Programs;
use rouse_e2e::gateway::Gateway;
use rouse_e2e::wait::patiently;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::app::App;
use crate::cluster;
use crate::identity::Identity;
use crate::route::Route;

/// A kind of object: its API version and its name.
pub(crate) type Kind = (&'static str, &'static str);

pub(crate) const DEPLOYMENT: Kind = ("apps/v1", "Deployment");
pub(crate) const SERVICE: Kind = ("v1", "Service");
pub(crate) const POD: Kind = ("v1", "Pod");
pub(crate) const EVENT: Kind = ("v1", "Event");
pub(crate) const SLICE: Kind = ("discovery.k8s.io/v1", "EndpointSlice");
pub(crate) const ROUTE: Kind = ("http.keda.sh/v1beta1", "InterceptorRoute");

/// The name, the identity and the address of a pod.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) ip: IpAddr,
}

/// A namespace. Clones are the same one.
#[derive(Clone)]
pub(crate) struct TestNamespace(Arc<Inner>);

struct Inner {
    name: String,
    client: Client,
    kubeconfig: PathBuf,
    files: TempDir,
}

impl TestNamespace {
    /// A new one. The caller must remove it.
    pub(crate) async fn create() -> Self {
        Self::create_in(&cluster::kubeconfig()).await
    }

    /// A new one in the cluster of this kubeconfig.
    pub(crate) async fn create_in(kubeconfig: &Path) -> Self {
        let client = cluster::client_by(kubeconfig).await;
        let wanted = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": { "generateName": "rouse-e2e-", "labels": { "rouse-e2e": "trial" } },
        });
        let api = cluster::api_of(&client, None, &wanted);
        let made = api.create(&PostParams::default(), &serde_json::from_value(wanted).unwrap()).await;
        let made = made.unwrap_or_else(|error| panic!("cannot make a namespace: {error}"));
        let files = tempfile::tempdir().expect("a temporary folder");
        let (name, kubeconfig) = (made.metadata.name.unwrap(), kubeconfig.to_owned());
        let space = Self(Arc::new(Inner { name, client, kubeconfig, files }));
        // No pod is admitted before it exists, and controllers retry slowly.
        space.until(("v1", "ServiceAccount"), "default", "to be there", |_| true).await;
        space
    }

    /// Deletes it, without waiting for its objects to be gone.
    pub(crate) async fn remove(&self) {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace" });
        let api = cluster::api_of(&self.0.client, None, &namespace);
        if let Err(error) = api.delete(&self.0.name, &DeleteParams::default()).await {
            eprintln!("cannot remove namespace {}: {error}", self.0.name);
        }
    }

    /// The object of it.
    pub(crate) async fn itself(&self) -> Value {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace" });
        let api = cluster::api_of(&self.0.client, None, &namespace);
        let found = api.get(&self.0.name).await;
        let found = found.unwrap_or_else(|error| panic!("no namespace {}: {error}", self.0.name));
        serde_json::to_value(found).unwrap()
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// An administrator's client.
    pub(crate) fn client(&self) -> &Client {
        &self.0.client
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.0.kubeconfig
    }

    /// A temporary folder, deleted with it.
    pub(crate) fn files(&self) -> &Path {
        self.0.files.path()
    }

    /// The host that [`TestNamespace::route`] claims for an app; no other trial uses it.
    pub(crate) fn host(&self, app: &str) -> String {
        format!("{app}.{}.test", self.name())
    }

    /// An `InterceptorRoute` from the host of an app to port 80 of its Service.
    pub(crate) fn route(&self, app: &str) -> Route {
        Route::new(app, &self.host(app))
    }

    /// How a gateway of this namespace is started, under an identity of its own.
    pub(crate) async fn launch(&self) -> rouse_e2e::gateway::Launch {
        let identity = Identity::of(self).await;
        rouse_e2e::gateway::Launch::new(&identity.kubeconfig).flag("--watch-namespace", self.name())
    }

    /// Starts a gateway, as [`TestNamespace::launch`] has it.
    pub(crate) async fn gateway(&self) -> Gateway {
        self.launch().await.start(&programs()).await
    }

    /// Starts a gateway in one of the modes of direct routing.
    pub(crate) async fn gateway_in_mode(&self, mode: &str) -> Gateway {
        self.launch().await.flag("--direct-pod-routing", mode).start(&programs()).await
    }

    /// Makes an app: its Deployment and its Service.
    pub(crate) async fn run(&self, app: &App) {
        self.apply(app.deployment()).await;
        self.apply(app.service()).await;
    }

    /// Makes an app, and a route to it that [`TestNamespace::host`] leads to.
    pub(crate) async fn serve(&self, app: &App) {
        self.run(app).await;
        self.apply(self.route(app.name()).object()).await;
    }

    /// Applies an object. Returns it as the API server stores it.
    pub(crate) async fn apply(&self, object: Value) -> Value {
        cluster::apply(&self.0.client, Some(self.name()), &object).await
    }

    fn api(&self, (version, kind): Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.0.client.clone(), self.name(), &cluster::resource(version, kind))
    }

    /// An object, if it exists.
    pub(crate) async fn get(&self, kind: Kind, name: &str) -> Option<Value> {
        let object = self.api(kind).get_opt(name).await;
        let object = object.unwrap_or_else(|error| panic!("cannot get {} {name}: {error}", kind.1));
        object.map(|object| serde_json::to_value(object).unwrap())
    }

    /// The objects of a kind with these labels (`app=shop`), or all of them if `labels` is empty.
    pub(crate) async fn list(&self, kind: Kind, labels: &str) -> Vec<Value> {
        let list = self.api(kind).list(&ListParams::default().labels(labels)).await;
        let list = list.unwrap_or_else(|error| panic!("cannot list {}: {error}", kind.1));
        list.items.into_iter().map(|object| serde_json::to_value(object).unwrap()).collect()
    }

    /// Merges `change` into an object.
    pub(crate) async fn patch(&self, kind: Kind, name: &str, change: Value) -> Value {
        let api = self.api(kind);
        let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
        serde_json::to_value(patched.unwrap_or_else(|error| panic!("cannot patch {name}: {error}"))).unwrap()
    }

    /// Merges `change` into the status of an object.
    pub(crate) async fn patch_status(&self, kind: Kind, name: &str, change: Value) {
        let patched =
            self.api(kind).patch_status(name, &PatchParams::default(), &Patch::Strategic(change)).await;
        patched.unwrap_or_else(|error| panic!("cannot patch the status of {name}: {error}"));
    }

    /// Deletes an object; it need not exist.
    pub(crate) async fn delete(&self, kind: Kind, name: &str) {
        self.delete_with(kind, name, &DeleteParams::default()).await;
    }

    /// The same without a grace period, for pods that no kubelet runs.
    pub(crate) async fn delete_now(&self, kind: Kind, name: &str) {
        self.delete_with(kind, name, &DeleteParams::default().grace_period(0)).await;
    }

    async fn delete_with(&self, kind: Kind, name: &str, options: &DeleteParams) {
        match self.api(kind).delete(name, options).await {
            Ok(_) => {}
            Err(Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("cannot delete {} {name}: {error}", kind.1),
        }
    }

    /// `kubectl scale`.
    pub(crate) async fn scale(&self, deployment: &str, replicas: u32) {
        let change = json!({ "spec": { "replicas": replicas } });
        let scaled = self
            .api(DEPLOYMENT)
            .patch_scale(deployment, &PatchParams::default(), &Patch::Merge(change))
            .await;
        scaled.unwrap_or_else(|error| panic!("cannot scale {deployment}: {error}"));
    }

    /// Waits until an object exists and `is` accepts it.
    pub(crate) async fn until(
        &self,
        kind: Kind,
        name: &str,
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        patiently(&format!("{} {name} {what}", kind.1), async || {
            self.get(kind, name).await.filter(|it| is(it))
        })
        .await
    }

    /// The desired replicas of a Deployment.
    pub(crate) async fn replicas(&self, deployment: &str) -> u64 {
        let deployment = self.get(DEPLOYMENT, deployment).await.expect("the Deployment");
        deployment["spec"]["replicas"].as_u64().unwrap()
    }

    /// The pods of an app that have an address and are not terminating.
    pub(crate) async fn pods(&self, app: &str) -> Vec<Pod> {
        let pods = self.list(POD, &format!("app={app}")).await;
        pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).filter_map(pod).collect()
    }

    /// Waits until a pod has an address, whether or not it is ready.
    pub(crate) async fn addressed_pod(&self, name: &str) -> Pod {
        let object = self.until(POD, name, "to have an address", |object| pod(object).is_some()).await;
        pod(&object).unwrap()
    }

    /// Waits until exactly `count` pods of an app are ready, also in the `EndpointSlice`s of its Service.
    pub(crate) async fn ready_pods(&self, app: &str, count: usize) -> Vec<Pod> {
        self.ready_pods_of(app, &[app], count).await
    }

    /// The same, for pods of several Services.
    pub(crate) async fn ready_pods_of(&self, app: &str, services: &[&str], count: usize) -> Vec<Pod> {
        patiently(&format!("{count} ready pods of {app}"), async || {
            let mut pods = self.pods(app).await;
            for service in services {
                let ready = self.ready_addresses(service).await;
                pods.retain(|pod| ready.contains(&pod.ip));
                if ready.len() != count {
                    return None;
                }
            }
            (pods.len() == count).then_some(pods)
        })
        .await
    }

    /// Waits until an app has no pods at all.
    pub(crate) async fn no_pods(&self, app: &str) {
        patiently(&format!("no pods of {app}"), async || {
            self.list(POD, &format!("app={app}")).await.is_empty().then_some(())
        })
        .await;
    }

    /// The `EndpointSlice`s of a Service.
    pub(crate) async fn slices(&self, service: &str) -> Vec<Value> {
        self.list(SLICE, &format!("kubernetes.io/service-name={service}")).await
    }

    async fn ready_addresses(&self, service: &str) -> Vec<IpAddr> {
        let slices = self.slices(service).await;
        let endpoints = slices.iter().filter_map(|slice| slice["endpoints"].as_array()).flatten();
        let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true);
        let mut all: Vec<IpAddr> =
            ready.filter_map(|endpoint| endpoint["addresses"][0].as_str()?.parse().ok()).collect();
        all.sort();
        // A pod is in one slice per set of ports.
        all.dedup();
        all
    }

    /// The address of a Service.
    pub(crate) async fn cluster_ip(&self, service: &str) -> IpAddr {
        let service = self.get(SERVICE, service).await.expect("the Service");
        let address = service["spec"]["clusterIP"].as_str().and_then(|text| text.parse().ok());
        address.unwrap_or_else(|| panic!("no clusterIP in {service}"))
    }

    /// What a pod has printed.
    pub(crate) async fn logs(&self, pod: &str) -> String {
        let api: Api<PodObject> = Api::namespaced(self.0.client.clone(), self.name());
        api.logs(pod, &LogParams::default()).await.unwrap_or_else(|error| panic!("no log of {pod}: {error}"))
    }

    /// The requests in a pod's log: lines of an app with `LOG_REQUESTS=1`.
    pub(crate) async fn requests_seen_by(&self, pod: &str) -> Vec<Value> {
        self.logs(pod).await.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until a route has a condition of this type and status for its current generation. Returns the condition.
    pub(crate) async fn condition(&self, route: &str, kind: &str, status: &str) -> Value {
        let find = |route: &Value| {
            let generation = &route["metadata"]["generation"];
            let conditions = route["status"]["conditions"].as_array()?;
            let mut of_kind = conditions.iter().filter(|is| is["type"] == kind && is["status"] == status);
            of_kind.find(|is| &is["observedGeneration"] == generation).cloned()
        };
        let what = format!("to be {kind}={status}");
        let route = self.until(ROUTE, route, &what, |route| find(route).is_some()).await;
        find(&route).unwrap()
    }

    /// Diagnostics for a failed trial: objects, events and logs.
    pub(crate) async fn tell(&self) -> String {
        let mut lines = vec![format!("namespace {}", self.name())];
        for kind in [DEPLOYMENT, ROUTE, POD, SLICE] {
            for object in self.list(kind, "").await {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let shown = if kind == SLICE { &object["endpoints"] } else { &object["status"] };
                lines.push(format!("{} {name}: {shown} {}", kind.1, object["ports"]));
            }
        }
        for event in self.list(EVENT, "").await {
            let of = &event["involvedObject"];
            lines.push(format!(
                "event: {} {}: {} {}",
                of["kind"], of["name"], event["reason"], event["message"]
            ));
        }
        for pod in self.pods_of_all_apps().await {
            let api: Api<PodObject> = Api::namespaced(self.0.client.clone(), self.name());
            let log = api.logs(&pod, &LogParams { tail_lines: Some(20), ..LogParams::default() }).await;
            lines.push(format!("log of {pod}:\n{}", log.unwrap_or_else(|error| error.to_string())));
        }
        lines.join("\n")
    }

    async fn pods_of_all_apps(&self) -> Vec<String> {
        let pods = self.list(POD, "").await;
        pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect()
    }
}

fn pod(object: &Value) -> Option<Pod> {
    let ip = object["status"]["podIP"].as_str()?.parse().ok()?;
    let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
    Some(Pod { name: text("name")?, uid: text("uid")?, ip })
}

/// The programs under test.
pub(crate) fn programs() -> Programs {
    rouse_e2e::programs!()
}
