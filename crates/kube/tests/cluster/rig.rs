//! The rig: a `Cluster` that follows the scripted API server, with its registry, and helpers to wait for its state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rouse_core::endpoint::{PortName, ServiceId, State};
use rouse_core::merge::MergePolicy;
use rouse_core::registry::{Registry, RegistrySettings};
use rouse_core::time::{Clock, Moment};
use rouse_kube::cluster::{Cluster, ClusterEvent, ClusterSettings};
use rouse_kube::routes::plan::RoutePlan;
use rouse_kube::tasks::TaskEnded;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use rouse_testkit::api_server::ApiServer;

pub(crate) const SLICES: &str = "discovery.k8s.io/endpointslices";
pub(crate) const ROUTES: &str = "http.keda.sh/interceptorroutes";
pub(crate) const HTTP_SCALED_OBJECT: &str = "http.keda.sh/httpscaledobjects";
pub(crate) const SCALED_OBJECT: &str = "keda.sh/scaledobjects";
pub(crate) const DEPLOYMENTS: &str = "apps/deployments";

/// Tokio's paused time, which moves on when all tasks wait.
struct TestClock(Instant);

impl Clock for TestClock {
    fn now(&self) -> Moment {
        Moment::ZERO + self.0.elapsed()
    }
}

/// The time of day: a microsecond later each time.
fn time_of_day() -> SystemTime {
    static MICROS: AtomicU64 = AtomicU64::new(0);
    SystemTime::UNIX_EPOCH + Duration::from_micros(MICROS.fetch_add(1, Ordering::Relaxed))
}

pub(crate) struct Rig {
    pub(crate) api: ApiServer,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) registry: Arc<Registry>,
    cancel: CancellationToken,
    run: Option<JoinHandle<Result<(), TaskEnded>>>,
}

impl Rig {
    /// Starts to follow `api`.
    pub(crate) fn start(api: &ApiServer) -> Self {
        Self::with(api, |_| {})
    }

    pub(crate) fn with(api: &ApiServer, change: impl FnOnce(&mut ClusterSettings)) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TestClock(Instant::now()));
        let mut settings = ClusterSettings::new(Arc::clone(&clock), time_of_day, 1);
        change(&mut settings);
        let cluster = Cluster::new(api.client(), settings);
        let policy = MergePolicy { manual_endpoints: true, ..MergePolicy::default() };
        let registry_settings = RegistrySettings { policy, ..RegistrySettings::default() };
        let registry = Registry::new(registry_settings, clock, Arc::clone(&cluster) as _);
        let cancel = CancellationToken::new();
        let run = Arc::clone(&cluster).run(Arc::clone(&registry), cancel.clone());
        #[expect(clippy::disallowed_methods, reason = "the rig is the owner, and joins it")]
        let run = Some(tokio::spawn(run));
        Self { api: api.clone(), cluster, registry, cancel, run }
    }

    /// Starts, and has seen everything.
    pub(crate) async fn synced(api: &ApiServer) -> Self {
        Self::synced_with(api, |_| {}).await
    }

    /// Starts with changed settings, and has seen everything.
    pub(crate) async fn synced_with(api: &ApiServer, change: impl FnOnce(&mut ClusterSettings)) -> Self {
        let rig = Self::with(api, change);
        rig.wait_synced().await;
        rig
    }

    pub(crate) async fn wait_synced(&self) {
        timeout(Duration::from_mins(10), self.cluster.synced()).await.expect("synced");
    }

    /// Waits until `is` returns true, without advancing time.
    pub(crate) async fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_mins(10);
        while !is(self) {
            assert!(Instant::now() < deadline, "never: {what}");
            pass(Duration::from_millis(5)).await;
        }
    }

    /// Waits until exactly `count` endpoints of Service `cart` are ready.
    pub(crate) async fn until_ready(&self, what: &str, count: usize) {
        self.until(what, |rig| rig.ready("cart") == count).await;
    }

    /// Waits until one watch of a collection is open.
    pub(crate) async fn until_watched(&self, collection: &str) {
        let what = format!("{collection} are watched");
        self.until(&what, |rig| rig.api.watchers(collection) == 1).await;
    }

    /// Waits until a route has a condition: its status, reason and message.
    pub(crate) async fn until_condition(&self, route: &str, kind: &str) -> (String, String, String) {
        let what = format!("route {route} has the condition {kind}");
        self.until(&what, |rig| rig.condition(route, kind).is_some()).await;
        self.condition(route, kind).unwrap()
    }

    pub(crate) async fn until_no_condition(&self, route: &str, kind: &str) {
        let what = format!("route {route} has no condition {kind}");
        self.until(&what, |rig| rig.condition(route, kind).is_none()).await;
    }

    /// The endpoints of port `http` as state and address, sorted.
    pub(crate) fn endpoints(&self, service: &str) -> Vec<(State, String)> {
        let Some(service) = self.registry.get(&id(service)) else { return Vec::new() };
        let snapshot = Arc::clone(&service.snapshot());
        let Some(port) = snapshot.port(&PortName::new("http")) else { return Vec::new() };
        let mut all: Vec<(State, String)> = port
            .endpoints()
            .iter()
            .map(|endpoint| (endpoint.state, endpoint.addresses[0].to_string()))
            .collect();
        all.sort();
        all
    }

    pub(crate) fn ready(&self, service: &str) -> usize {
        self.endpoints(service).iter().filter(|(state, _)| *state == State::Ready).count()
    }

    pub(crate) fn plan(&self, name: &str) -> Option<Arc<RoutePlan>> {
        let plans = Arc::clone(&self.cluster.plans().borrow());
        plans.iter().find(|plan| plan.spec.key.to_string() == name).cloned()
    }

    /// The condition of a route: status, reason and message.
    pub(crate) fn condition(&self, route: &str, kind: &str) -> Option<(String, String, String)> {
        condition(&self.api.get(ROUTES, "shop", route)?, kind)
    }

    /// Ends it, and checks that all tasks ended well.
    pub(crate) async fn stop(mut self) {
        self.cancel.cancel();
        let run = self.run.take().unwrap();
        timeout(Duration::from_mins(1), run)
            .await
            .expect("ends")
            .expect("no panic")
            .expect("nothing ended early");
    }
}

/// An API server, and a gateway that has seen everything it has.
pub(crate) async fn synced(api: ApiServer) -> (ApiServer, Rig) {
    let rig = Rig::synced(&api).await;
    (api, rig)
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

pub(crate) fn condition(object: &Value, kind: &str) -> Option<(String, String, String)> {
    let mut all = object.pointer("/status/conditions")?.as_array()?.iter();
    let found = all.find(|condition| condition["type"] == kind)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

/// Lets the other tasks run for this paused time.
pub(crate) async fn pass(time: Duration) {
    sleep_until(Instant::now() + time).await;
}

pub(crate) fn id(service: &str) -> ServiceId {
    ServiceId::new("shop", service).unwrap()
}

/// The events since the last call, as text.
pub(crate) fn event_texts(events: &mut broadcast::Receiver<ClusterEvent>) -> Vec<String> {
    std::iter::from_fn(|| events.try_recv().ok()).map(|event| format!("{event:?}")).collect()
}

/// A Service with port `http` 80.
pub(crate) fn service(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"},
           "spec": {"clusterIP": "10.96.0.1", "selector": {"app": name}, "ports": [{"name": "http", "port": 80}]}})
}

/// A slice of ready pods at 10.0.0.n.
pub(crate) fn slice(name: &str, service: &str, pods: &[u8]) -> Value {
    let endpoint = |n: &u8| {
        json!({"addresses": [format!("10.0.0.{n}")], "conditions": {"ready": true},
               "targetRef": {"kind": "Pod", "name": format!("{service}-{n}"), "namespace": "shop", "uid": format!("{service}-{n}")}})
    };
    json!({"metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": service}},
           "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
           "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>()})
}

/// A route from a host to Service `service`, port 80.
pub(crate) fn route(name: &str, host: &str, service: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "generation": 1},
           "spec": {"target": {"service": service, "port": 80}, "rules": [{"hosts": [host]}],
                    "scalingMetric": {"concurrency": {"targetValue": 10}}}})
}

/// The object with these annotations.
pub(crate) fn annotated(mut object: Value, annotations: Value) -> Value {
    object["metadata"]["annotations"] = annotations;
    object
}

/// A Deployment of pods with the label `app`.
pub(crate) fn deployment(name: &str, app: &str, replicas: u32) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"},
           "spec": {"replicas": replicas, "template": {"metadata": {"labels": {"app": app, "more": "x"}}}}})
}

/// Service `cart` with one slice of ready pods at 10.0.0.n.
pub(crate) fn cart(pods: &[u8]) -> ApiServer {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api.put(SLICES, slice("cart-a", "cart", pods));
    api
}

/// Service `cart` with its Deployment and a route.
pub(crate) fn shop() -> ApiServer {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api.put(DEPLOYMENTS, deployment("cart", "cart", 0));
    api.put(ROUTES, route("r", "shop.example.com", "cart"));
    api
}

/// The observed generation of a condition of route `r`.
pub(crate) fn observed(api: &ApiServer, kind: &str) -> Option<i64> {
    let object = api.get(ROUTES, "shop", "r").unwrap();
    let mut all = object["status"]["conditions"].as_array()?.iter();
    all.find(|condition| condition["type"] == kind)?["observedGeneration"].as_i64()
}
