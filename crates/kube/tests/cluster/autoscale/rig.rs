//! A controller that follows the scripted API server, gateways that report load to it, and pods that become ready.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use http::Method;
use prometheus_client::registry::Registry as Metrics;
use rouse_core::endpoint::ServiceId;
use rouse_core::lease::LeaseTiming;
use rouse_core::load_meter::{LoadKey, LoadSample};
use rouse_core::scale::{LoadUpdate, Reporter};
use rouse_core::time::{Clock, Moment};
use rouse_kube::autoscale::{AutoscaleController, AutoscaleMetrics, AutoscaleSettings, TargetView};
use rouse_kube::lease::{CONTROLLER_LEASE, LeaderElection, LeaseSettings};
use rouse_kube::tasks::TaskEnded;
use rouse_testkit::api_server::{ApiRequest, ApiServer};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::rig::{DEPLOYMENTS, ROUTES, SLICES, annotated, condition, deployment, id, pass, route, service};

/// The namespace of the controller and the gateways.
pub(crate) const OWN: &str = "rouse-system";
pub(crate) const LEASES: &str = "coordination.k8s.io/leases";
pub(crate) const HPAS: &str = "autoscaling/horizontalpodautoscalers";
pub(crate) const STATEFUL_SETS: &str = "apps/statefulsets";
/// How often gateways report and pods are looked at.
const STEP: Duration = Duration::from_millis(500);

/// Tokio's paused time, and a jump ahead: a process that was stopped finds that time has passed.
#[derive(Debug)]
pub(crate) struct JumpClock {
    origin: Instant,
    ahead: AtomicU64,
}

impl JumpClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { origin: Instant::now(), ahead: AtomicU64::new(0) })
    }

    pub(crate) fn jump(&self, seconds: u64) {
        self.ahead.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for JumpClock {
    fn now(&self) -> Moment {
        Moment::ZERO + self.origin.elapsed() + Duration::from_secs(self.ahead.load(Ordering::SeqCst))
    }
}

thread_local! {
    /// When the test began: each has a thread of its own.
    static BEGAN: Instant = Instant::now();
}

/// 2026-01-01 00:00 UTC, a Thursday: the time of day when a test begins.
pub(crate) fn begin() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 20_454)
}

pub(crate) fn time_of_day() -> SystemTime {
    begin() + BEGAN.with(Instant::elapsed)
}

/// A gateway, by the UID of its pod.
#[derive(Default)]
struct Gateway {
    /// It has told everything once.
    told: bool,
    silent: bool,
    meters: BTreeMap<ServiceId, Meter>,
}

#[derive(Default, Clone, PartialEq)]
struct Meter {
    requests: u64,
    busy: Duration,
    present: u32,
    held: u32,
    /// It has changed since it was read.
    changed: bool,
}

/// One controller.
pub(crate) struct Controller {
    pub(crate) autoscaler: Arc<AutoscaleController>,
    pub(crate) clock: Arc<JumpClock>,
    pub(crate) metrics: Metrics,
    cancel: CancellationToken,
    run: Option<JoinHandle<Result<(), TaskEnded>>>,
    candidate: JoinSet<()>,
    candidate_cancel: CancellationToken,
}

impl Controller {
    /// Starts one that takes part in the election as `name`.
    pub(crate) fn start(api: &ApiServer, name: &str, change: impl FnOnce(&mut AutoscaleSettings)) -> Self {
        let clock = JumpClock::new();
        let election = LeaderElection::new(api.client(), lease_settings(name, &clock));
        let (leadership, candidate_cancel) = (election.leadership(), CancellationToken::new());
        let mut candidate = JoinSet::new();
        candidate.spawn(election.run(candidate_cancel.clone()));
        let mut settings = AutoscaleSettings::new(OWN, Arc::clone(&clock) as _, time_of_day, 1);
        change(&mut settings);
        let mut metrics = Metrics::default();
        let counters = AutoscaleMetrics::new(&mut metrics);
        let autoscaler = AutoscaleController::new(api.client(), settings, leadership, counters);
        let cancel = CancellationToken::new();
        let run = Arc::clone(&autoscaler).run(cancel.clone());
        #[expect(clippy::disallowed_methods, reason = "the rig is the owner, and joins it")]
        let run = Some(tokio::spawn(run));
        Self { autoscaler, clock, metrics, cancel, run, candidate, candidate_cancel }
    }

    /// Ends it in the order of the daemon: first what writes, then the election.
    pub(crate) async fn stop(mut self) {
        self.cancel.cancel();
        let run = self.run.take().unwrap();
        timeout(Duration::from_mins(1), run).await.expect("ends").expect("no panic").expect("not early");
        self.candidate_cancel.cancel();
        while let Some(ended) = self.candidate.join_next().await {
            ended.unwrap();
        }
    }

    /// Ends it like SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.candidate.shutdown().await;
        self.run.take().unwrap().abort();
    }
}

pub(crate) fn lease_settings(name: &str, clock: &Arc<JumpClock>) -> LeaseSettings {
    LeaseSettings {
        namespace: OWN.to_owned(),
        name: CONTROLLER_LEASE.to_owned(),
        identity: name.to_owned(),
        timing: LeaseTiming::default(),
        clock: Arc::clone(clock) as _,
        time_of_day,
        seed: 1,
    }
}

/// An API server, controllers and gateways.
pub(crate) struct Scene {
    pub(crate) api: ApiServer,
    pub(crate) controllers: Vec<Controller>,
    gateways: BTreeMap<String, Gateway>,
    /// How long a pod takes until it is ready.
    pub(crate) pod_start: Duration,
    /// When the pods of a workload become ready.
    starting: BTreeMap<(String, String), Instant>,
}

impl Scene {
    /// A controller that leads, and has heard of gateway `gw-1`.
    pub(crate) async fn new(api: ApiServer) -> Self {
        Self::with(api, |_| {}).await
    }

    pub(crate) async fn with(api: ApiServer, change: impl FnOnce(&mut AutoscaleSettings)) -> Self {
        let mut scene = Self::idle(api);
        scene.controllers.push(Controller::start(&scene.api, "one", change));
        scene.list(&["gw-1"]);
        scene.until("it leads", |scene| scene.controllers[0].autoscaler.view().leads).await;
        scene
    }

    /// Without a controller, but with a `Lease` that is free.
    pub(crate) fn idle(api: ApiServer) -> Self {
        api.put(LEASES, json!({"metadata": {"name": CONTROLLER_LEASE, "namespace": OWN}, "spec": {}}));
        Self::without_lease(api)
    }

    /// Without a controller and without a `Lease`.
    pub(crate) fn without_lease(api: ApiServer) -> Self {
        Self {
            api,
            controllers: Vec::new(),
            gateways: BTreeMap::new(),
            pod_start: Duration::ZERO,
            starting: BTreeMap::new(),
        }
    }

    pub(crate) fn autoscaler(&self) -> &Arc<AutoscaleController> {
        &self.controllers[0].autoscaler
    }

    /// These gateways are in the slice of their Service.
    pub(crate) fn list(&mut self, uids: &[&str]) {
        for uid in uids {
            self.gateways.entry((*uid).to_owned()).or_default();
        }
        self.gateways.retain(|uid, gateway| gateway.silent || uids.contains(&uid.as_str()));
        self.api.put_alone(SLICES, gateway_slice(uids));
    }

    /// An xds replica connects to all controllers. It reports as a gateway does.
    pub(crate) fn join_xds(&mut self, name: &str) {
        self.gateways.entry(name.to_owned()).or_default();
        for controller in &self.controllers {
            controller.autoscaler.xds_joined(&Reporter::new(name));
        }
    }

    /// An xds replica disconnects from all controllers.
    pub(crate) fn leave_xds(&mut self, name: &str) {
        self.gateways.remove(name);
        for controller in &self.controllers {
            controller.autoscaler.reporter_left(&Reporter::new(name));
        }
    }

    /// A gateway sends nothing any more.
    pub(crate) fn silence(&mut self, gateway: &str, silent: bool) {
        self.gateways.get_mut(gateway).unwrap().silent = silent;
    }

    /// So many requests to a service are present at a gateway, of which some are held. New ones have just begun.
    pub(crate) fn load(&mut self, gateway: &str, service: &str, present: u32, held: u32) {
        let meter = self.gateways.get_mut(gateway).unwrap().meters.entry(id(service)).or_default();
        meter.requests += u64::from(present.saturating_sub(meter.present));
        (meter.present, meter.held, meter.changed) = (present, held, true);
    }

    /// So many requests come and end at once.
    pub(crate) fn short_requests(&mut self, gateway: &str, service: &str, count: u64) {
        let meter = self.gateways.get_mut(gateway).unwrap().meters.entry(id(service)).or_default();
        meter.requests += count;
        meter.changed = true;
    }

    /// Lets time pass: gateways report, and pods start.
    pub(crate) async fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            self.report();
            self.start_pods();
            let step = STEP.min(end - Instant::now());
            pass(step).await;
            for meter in self.gateways.values_mut().flat_map(|gateway| gateway.meters.values_mut()) {
                meter.busy += step * meter.present;
                meter.changed |= meter.present > 0;
            }
            if Instant::now() >= end {
                return;
            }
        }
    }

    pub(crate) async fn seconds(&mut self, seconds: u64) {
        self.pass(Duration::from_secs(seconds)).await;
    }

    pub(crate) async fn until(&mut self, what: &str, is: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_mins(30);
        while !is(self) {
            assert!(Instant::now() < deadline, "never: {what}; {:#?}", self.views());
            self.pass(STEP).await;
        }
    }

    /// Waits until Deployment `name` is to have this many pods.
    pub(crate) async fn until_replicas(&mut self, name: &str, expected: u64) {
        let what = format!("{name} has {expected} replicas");
        self.until(&what, |scene| scene.replicas(name) == expected).await;
    }

    /// Waits until the condition `Autoscaled` of a route has this reason. Returns its status and message.
    pub(crate) async fn until_reason(&mut self, route: &str, reason: &str) -> (String, String) {
        let what = format!("route {route} is {reason}");
        self.until(&what, |scene| scene.autoscaled(route).is_some_and(|(_, is, _)| is == reason)).await;
        let (status, _, message) = self.autoscaled(route).unwrap();
        (status, message)
    }

    fn report(&mut self) {
        for (uid, gateway) in self.gateways.iter_mut().filter(|(_, gateway)| !gateway.silent) {
            let sample = |(service, meter): (&ServiceId, &mut Meter)| LoadSample {
                key: LoadKey::Service(service.clone()),
                at: Moment::ZERO + self.controllers[0].clock.origin.elapsed(),
                requests: meter.requests,
                busy: meter.busy,
                present: meter.present,
                held: meter.held,
            };
            let complete = !std::mem::replace(&mut gateway.told, true);
            let meters = gateway.meters.iter_mut().filter(|(_, meter)| complete || meter.changed);
            let samples: Vec<LoadSample> = meters.map(sample).collect();
            gateway.meters.values_mut().for_each(|meter| meter.changed = false);
            for controller in &self.controllers {
                let update = LoadUpdate { boot: 1, complete, samples: samples.clone() };
                controller.autoscaler.heard(&Reporter::new(uid), update);
            }
        }
    }

    /// The pods of workloads that were scaled become ready or end.
    fn start_pods(&mut self) {
        for collection in [DEPLOYMENTS, STATEFUL_SETS] {
            for name in self.names(collection) {
                let mut object = self.api.get(collection, "shop", &name).unwrap();
                let wanted = object["spec"]["replicas"].as_u64().unwrap();
                let ready = object["status"]["readyReplicas"].as_u64().unwrap_or(0);
                let key = (collection.to_owned(), name);
                if wanted == ready {
                    self.starting.remove(&key);
                    continue;
                }
                let due = *self.starting.entry(key).or_insert(Instant::now() + self.pod_start);
                if wanted < ready || due <= Instant::now() {
                    object["status"]["readyReplicas"] = json!(wanted);
                    self.api.put(collection, object);
                }
            }
        }
    }

    fn names(&self, collection: &str) -> Vec<String> {
        let known = ["cart", "twin", "db", "by-keda", "by-annotation", "by-name", "other"];
        let there = |name: &&&str| self.api.get(collection, "shop", name).is_some();
        known.iter().filter(there).map(|name| (*name).to_owned()).collect()
    }

    pub(crate) fn replicas(&self, name: &str) -> u64 {
        self.api.get(DEPLOYMENTS, "shop", name).unwrap()["spec"]["replicas"].as_u64().unwrap()
    }

    /// The condition `Autoscaled` of a route: status, reason and message.
    pub(crate) fn autoscaled(&self, route: &str) -> Option<(String, String, String)> {
        condition(&self.api.get(ROUTES, "shop", route)?, "Autoscaled")
    }

    /// The scales that were written, as `from the path` and the number.
    pub(crate) fn writes(&self) -> Vec<(String, u64)> {
        let name = |request: &ApiRequest| request.path.rsplit('/').nth(1).unwrap().to_owned();
        let write =
            |request: &ApiRequest| (name(request), request.body["spec"]["replicas"].as_u64().unwrap());
        self.api.patches("scale").iter().map(write).collect()
    }

    pub(crate) fn view(&self, name: &str) -> Option<TargetView> {
        self.autoscaler().view().targets.into_iter().find(|target| target.name == name)
    }

    fn views(&self) -> Vec<TargetView> {
        self.controllers.iter().flat_map(|one| one.autoscaler.view().targets).collect()
    }

    /// All requests that write.
    pub(crate) fn all_writes(&self) -> Vec<ApiRequest> {
        self.api.requests(|request| request.method != Method::GET && !request.path.contains("/leases"))
    }

    pub(crate) async fn stop(mut self) {
        for controller in std::mem::take(&mut self.controllers) {
            controller.stop().await;
        }
    }
}

/// The slice of the gateways' Service, with these pods.
pub(crate) fn gateway_slice(uids: &[&str]) -> Value {
    let endpoint = |uid: &&str| {
        json!({"addresses": ["10.1.0.1"], "conditions": {"ready": true},
               "targetRef": {"kind": "Pod", "name": uid, "namespace": OWN, "uid": uid}})
    };
    json!({"metadata": {"name": "rouse-gateway-a", "namespace": OWN,
                        "labels": {"kubernetes.io/service-name": "rouse-gateway"}},
           "addressType": "IPv4", "endpoints": uids.iter().map(endpoint).collect::<Vec<_>>()})
}

/// Route `r` to Service `cart`, which is scaled to 10 requests per pod; with more annotations.
pub(crate) fn scaled_route(annotations: &Value) -> Value {
    let mut all = json!({"rouse.dev/autoscale": "on"});
    for (key, value) in annotations.as_object().unwrap() {
        all[key] = value.clone();
    }
    annotated(route("r", "shop.example.com", "cart"), all)
}

/// A Deployment with ready pods.
pub(crate) fn running(name: &str, pods: u32) -> Value {
    let mut object = deployment(name, name, pods);
    object["status"] = json!({"readyReplicas": pods});
    object
}

/// Service `cart`, its Deployment with ready pods, and a route that is scaled.
pub(crate) fn shop(pods: u32) -> ApiServer {
    shop_with(pods, &json!({}))
}

/// The same, with more annotations on the route.
pub(crate) fn shop_with(pods: u32, annotations: &Value) -> ApiServer {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api.put(DEPLOYMENTS, running("cart", pods));
    api.put(ROUTES, scaled_route(annotations));
    api
}

/// An HPA of a Deployment.
pub(crate) fn hpa(name: &str, target: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"},
           "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}, "maxReplicas": 5}})
}
