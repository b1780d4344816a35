//! Builds the JSON of the admin API. `rouse status` reads its services and cold starts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::cold_start;
use rouse_core::endpoint::{Endpoint, PodUid, ServiceId, State};
use rouse_core::registry::Registry;
use rouse_core::snapshot::PortView;
use rouse_core::time::Moment;
use rouse_kube::client::watch::{WatchReport, WatchState};
use rouse_local::engine::{AppStatus, LocalPodStatus, PodStage};
use rouse_proxy::routing::{Route as GatewayRoute, RouteTable, Rule, Target};
use rouse_proxy::upstream::{Backend, UpstreamProtocol};
use serde::{Deserialize, Serialize};

/// One service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceView {
    /// `namespace/name`.
    pub service: String,
    /// Its overall state.
    pub state: ServicePhase,
    /// Requests that wait for a pod.
    pub holds: usize,
    /// Requests in flight to its pods.
    pub in_flight: u32,
    /// All requests so far.
    pub requests: u64,
    /// How many pods it should have; `null` where Rouse does not scale it.
    pub desired: Option<u32>,
    /// How many pods are ready.
    pub ready: usize,
    /// The number of pods that it is pinned to; `null`: the autoscaler decides.
    pub pinned: Option<u32>,
    /// Whether its pods are being replaced.
    pub rolling: bool,
    /// Why it should have that many pods.
    pub reason: String,
    /// The problem that keeps it from having that many pods.
    pub trouble: Option<String>,
    /// True if the source of its endpoints is unreachable, so that this may be out of date.
    #[serde(default)]
    pub stale: bool,
    /// Its pods.
    pub endpoints: Vec<PodView>,
}

/// The overall state of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServicePhase {
    /// No pod, and none is wanted.
    Zero,
    /// No pod is ready, but one is wanted.
    Waking,
    /// A pod is ready.
    Serving,
    /// The last pods finish their work.
    Draining,
}

impl ServicePhase {
    /// The state as the JSON has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            ServicePhase::Zero => "zero",
            ServicePhase::Waking => "waking",
            ServicePhase::Serving => "serving",
            ServicePhase::Draining => "draining",
        }
    }
}

/// One pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodView {
    /// Its name; empty if the endpoint was created by hand.
    pub pod: String,
    /// Its incarnation.
    pub uid: String,
    /// Its address and port.
    pub address: String,
    /// `Ready`, `Draining`, `Starting` or `Gone`.
    pub state: String,
    /// The source of its state; `null` while it has no endpoint.
    pub source: Option<String>,
    /// Requests in flight to it.
    pub in_flight: u32,
    /// Its process ID; `null` in a cluster.
    pub pid: Option<u32>,
}

/// All services: the apps in the order of the file, then the others by name.
pub fn services(registry: &Registry, apps: &[AppStatus]) -> Vec<ServiceView> {
    let known = apps.iter().map(|app| service(registry, &app.service, Some(app)));
    let mut others: Vec<ServiceId> = registry.services().iter().map(|one| one.id().clone()).collect();
    others.retain(|id| !apps.iter().any(|app| app.service == *id));
    others.sort();
    known.chain(others.iter().map(|id| service(registry, id, None))).collect()
}

fn service(registry: &Registry, id: &ServiceId, app: Option<&AppStatus>) -> ServiceView {
    let service = registry.get(id);
    let snapshot = service.as_ref().map(|service| Arc::clone(&service.snapshot()));
    let endpoints: Vec<&Arc<Endpoint>> =
        snapshot.iter().flat_map(|snapshot| &snapshot.ports).flat_map(PortView::endpoints).collect();
    let of = |uid: &PodUid| {
        let is = |one: &&&Arc<Endpoint>| one.pod.as_ref().is_some_and(|pod| pod.uid == *uid);
        endpoints.iter().find(is).copied()
    };
    let run = app.map_or(&[][..], |app| &app.pods);
    let mut pods: Vec<PodView> = run.iter().map(|pod| process(pod, of(&pod.uid))).collect();
    let strangers = endpoints
        .iter()
        .filter(|one| !one.pod.as_ref().is_some_and(|pod| run.iter().any(|status| status.uid == pod.uid)));
    pods.extend(strangers.map(|endpoint| stranger(endpoint)));
    let holds = service.as_ref().map_or(0, |service| service.holds());
    let desired = app.map(|app| app.desired);
    ServiceView {
        service: id.to_string(),
        state: life(&pods, holds, desired.unwrap_or(0)),
        holds,
        in_flight: service.as_ref().map_or(0, |service| service.in_flight()),
        requests: service.as_ref().map_or(0, |service| service.asked()),
        desired,
        ready: pods.iter().filter(|pod| pod.state == State::Ready.as_str()).count(),
        pinned: app.and_then(|app| app.pinned),
        rolling: app.is_some_and(|app| app.rolling),
        reason: app.map(|app| app.reason.clone()).unwrap_or_default(),
        trouble: app
            .and_then(|app| app.trouble.clone())
            .or_else(|| Some(service.as_ref()?.wake_failure()?.detail().to_owned())),
        stale: snapshot.as_ref().is_some_and(|snapshot| snapshot.stale),
        endpoints: pods,
    }
}

fn life(pods: &[PodView], holds: usize, desired: u32) -> ServicePhase {
    let some = |state: State| pods.iter().any(|pod| pod.state == state.as_str());
    if some(State::Ready) {
        ServicePhase::Serving
    } else if some(State::Starting) || holds > 0 || desired > 0 {
        ServicePhase::Waking
    } else if pods.is_empty() {
        ServicePhase::Zero
    } else {
        ServicePhase::Draining
    }
}

/// A pod of `rouse up`: its process, and its endpoint if it has one.
fn process(status: &LocalPodStatus, endpoint: Option<&Arc<Endpoint>>) -> PodView {
    let state = match (endpoint, status.phase) {
        (Some(endpoint), _) => endpoint.state,
        // It has no endpoint yet, or no longer.
        (None, PodStage::Starting | PodStage::Ready) => State::Starting,
        (None, PodStage::Draining | PodStage::Stopping) => State::Gone,
    };
    PodView {
        pod: status.name.to_string(),
        uid: status.uid.to_string(),
        address: status.address.to_string(),
        state: state.to_string(),
        source: endpoint.map(|endpoint| endpoint.source.to_string()),
        in_flight: endpoint.map_or(0, |endpoint| endpoint.load.in_flight()),
        pid: Some(status.pid),
    }
}

/// An endpoint without a process of `rouse up`, such as a pod of a cluster.
fn stranger(endpoint: &Endpoint) -> PodView {
    let pod = endpoint.pod.as_ref();
    let name = pod.map(|pod| pod.name.rsplit('/').next().unwrap_or_default().to_owned());
    PodView {
        pod: name.unwrap_or_default(),
        uid: pod.map(|pod| pod.uid.to_string()).unwrap_or_default(),
        address: endpoint.addresses.first().map(ToString::to_string).unwrap_or_default(),
        state: endpoint.state.to_string(),
        source: Some(endpoint.source.to_string()),
        in_flight: endpoint.load.in_flight(),
        pid: None,
    }
}

/// One route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RouteView {
    #[serde(rename = "route")]
    name: String,
    service: String,
    hosts: Vec<String>,
    paths: Vec<String>,
    /// `service`, `no_service`, `bad_port` or `tls_failed`.
    target: &'static str,
    /// The protocol of its pods; `null` without a service or port.
    protocol: Option<&'static str>,
    /// In microseconds; `null`: no limit.
    timeouts_us: Timeouts,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Timeouts {
    readiness: Option<u64>,
    request: Option<u64>,
    response_header: Option<u64>,
    connect: u64,
}

/// All routes, in the order of the table's rules.
pub fn routes(table: &RouteTable<Arc<GatewayRoute>>) -> Vec<RouteView> {
    table.rules().iter().map(route).collect()
}

fn route(rule: &Rule<Arc<GatewayRoute>>) -> RouteView {
    let GatewayRoute { name, service, target, timeouts, .. } = &*rule.target;
    let (target, protocol) = match target {
        Target::Backend(Backend { protocol: UpstreamProtocol::Http1, .. }) => ("service", Some("http")),
        Target::Backend(Backend { protocol: UpstreamProtocol::H2c, .. }) => ("service", Some("h2c")),
        Target::Backend(Backend { protocol: UpstreamProtocol::Tls(_), .. }) => ("service", Some("https")),
        Target::Backend(Backend { protocol: UpstreamProtocol::Unusable(_), .. }) => {
            ("tls_failed", Some("https"))
        }
        Target::NoService => ("no_service", None),
        Target::BadPort => ("bad_port", None),
    };
    RouteView {
        name: name.to_string(),
        service: service.to_string(),
        hosts: rule.hosts.iter().map(ToString::to_string).collect(),
        paths: rule.paths.iter().map(ToString::to_string).collect(),
        target,
        protocol,
        timeouts_us: Timeouts {
            readiness: timeouts.readiness.map(micros),
            request: timeouts.request.map(micros),
            response_header: timeouts.response_header.map(micros),
            connect: micros(timeouts.connect),
        },
    }
}

/// The watch over one kind of object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WatchView {
    kind: &'static str,
    /// `starting`, `following`, `broken`, or `missing` where the cluster does not know the kind.
    state: &'static str,
    /// True once all objects have been listed.
    synced: bool,
    /// Why it is broken.
    why: Option<String>,
    /// For how long it has been broken.
    broken_us: Option<u64>,
    /// Time since the API server last sent anything: an object, a bookmark or a list.
    heard_us: Option<u64>,
    /// How many times all objects were listed.
    lists: u64,
}

impl WatchView {
    /// The state of `watch` at `now`.
    pub fn new(watch: WatchReport, now: Moment) -> Self {
        let (state, broken, why) = match watch.state {
            WatchState::Starting => ("starting", None, None),
            WatchState::Following => ("following", None, None),
            WatchState::Missing => ("missing", None, None),
            WatchState::Broken { since, why } => ("broken", Some(since), Some(why)),
        };
        Self {
            kind: watch.kind,
            state,
            synced: watch.synced,
            why,
            broken_us: broken.map(|since| micros(now.since(since))),
            heard_us: watch.heard.map(|heard| micros(now.since(heard))),
            lists: watch.lists,
        }
    }
}

/// One cold start. Timestamps count microseconds from when `rouse` started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColdStartView {
    /// The service.
    pub service: String,
    /// The pod that the first request went to.
    pub pod: Option<String>,
    /// How it ended.
    pub outcome: String,
    /// The source that first called the pod ready.
    pub ready_by: Option<String>,
    /// When the first request was held.
    pub held_us: u64,
    /// When the engine was asked for a pod.
    pub wake_sent_us: Option<u64>,
    /// When a source first reported a pod.
    pub pod_seen_us: Option<u64>,
    /// When a pod took requests.
    pub pod_ready_us: Option<u64>,
    /// When a connection to it was established.
    pub connected_us: Option<u64>,
    /// When the response began.
    pub first_byte_us: Option<u64>,
    /// How long each phase took.
    pub phases_us: BTreeMap<String, u64>,
    /// How long it took in all.
    pub total_us: u64,
    /// How long ago the first request was held.
    pub ago_us: u64,
}

impl ColdStartView {
    /// The view of `cold` at `now`.
    pub fn new(cold: &cold_start::ColdStart, now: Moment) -> Self {
        let stamp = |moment: Option<Moment>| moment.map(|moment| micros(moment.since(Moment::ZERO)));
        Self {
            service: cold.service.to_string(),
            pod: cold.pod.as_deref().map(|name| name.rsplit('/').next().unwrap_or_default().to_owned()),
            outcome: cold.outcome.as_str().to_owned(),
            ready_by: cold.ready_by.map(|source| source.to_string()),
            held_us: micros(cold.held.since(Moment::ZERO)),
            wake_sent_us: stamp(cold.wake_sent),
            pod_seen_us: stamp(cold.pod_seen),
            pod_ready_us: stamp(cold.pod_ready),
            connected_us: stamp(cold.connected),
            first_byte_us: stamp(cold.first_byte),
            phases_us: cold.phases().map(|(phase, took)| (phase.to_string(), micros(took))).collect(),
            total_us: micros(cold.total()),
            ago_us: micros(now.since(cold.held)),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
