//! Scales the workloads of routes by their load: the controller's side of scaling.
//!
//! [`AutoscaleController`] watches routes, Services, workloads and their other autoscalers, and takes the load that gateways
//! and xds replicas report. `state` finds the workload of each route and feeds the core's `Fleet`, which decides; `reconcile` says what may be written
//! now; `driver` writes it, if this process leads. Everything but the driver is without I/O.
//!
//! A follower does all the same but writes: it knows the load when it is elected, and answers questions about it. When it is
//! elected, all targets are decided about anew, as if they were just seen, because a follower may have missed something: nothing
//! is scaled down before one stable window.
//!
//! Scaling from zero by load is the gateways': a request wakes its service without this controller.

mod conditions;
mod driver;
mod envoys;
mod expected_gateways;
mod learned;
mod metrics;
mod policy;
mod reconcile;
mod route_loads;
mod sinks;
mod state;
mod status;
mod target;
mod target_state;
mod view;
mod workload_cache;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use kube::Client;
use rouse_core::budget::WakeRates;
use rouse_core::endpoint::ServiceId;
use rouse_core::load_meter::LoadKey;
use rouse_core::scale::{CurrentLoad, IdleExplanation, LoadTable, LoadUpdate, Reporter};
use rouse_core::slices::SERVICE_NAME;
use rouse_core::time::{Clock, Moment};
use rouse_net::auth::BoxFuture;
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::watch::WatchReport;
use crate::client::{ObjectKind, WatchedKind, Watches};
use crate::events::{ClusterEvent, EventSender};
use crate::lease::Leadership;
use crate::objects::route::RouteKind;
use crate::routes::status::StatusAuthor;
use crate::routes::{EventAuthor, EventWriter, StatusWriter};
use crate::tasks::{self, TaskEnded};
use crate::wake::ScaleClient;
pub use envoys::ZeroRequests;
pub use metrics::{AutoscaleCollector, AutoscaleMetrics};
pub use route_loads::ScaledRouteLoad;
use sinks::InputSink;
use state::AutoscaleState;
pub use target::{AutoscaleDefault, ExternalOwner, Management, OwnerKind, TargetKey};
pub use target_state::{BlockReason, DecisionStatus};
pub use view::{DecisionView, ScalingView, TargetView, UnscaledRoute};

/// The name of the gateways' Service.
pub const GATEWAY_SERVICE: &str = "rouse-gateway";

/// The kinds that are always watched. Without the first ones, nothing is decided. Without `HorizontalPodAutoscaler`s or
/// `ScaledObject`s, nothing is scaled down, and neither without the slices of the gateways.
const WATCHED: [WatchedKind; 8] = [
    WatchedKind::required(ObjectKind::ROUTE),
    WatchedKind::required(ObjectKind::HTTP_SCALED_OBJECT),
    WatchedKind::required(ObjectKind::SERVICE),
    WatchedKind::required(ObjectKind::DEPLOYMENT),
    WatchedKind::required(ObjectKind::STATEFUL_SET),
    WatchedKind::optional(ObjectKind::HPA),
    WatchedKind::optional(ObjectKind::SCALED_OBJECT),
    WatchedKind::optional(ObjectKind::SLICE),
];

/// Makes other proxies that bypass the gateways ready for a service at zero: they must send its requests to gateways, which wake it.
/// Envoys are prepared without it, by the report channel: see [`ZeroRequests`].
pub trait ZeroGate: Send + Sync + 'static {
    /// Asks them to. Returns whether all have done so. Is given up after a deadline, which counts as false.
    fn prepare_zero<'a>(&'a self, service: &'a ServiceId) -> BoxFuture<'a, bool>;
    /// The service is not scaled to zero after all.
    fn cancel_zero(&self, service: &ServiceId);
}

/// The operator's settings for the autoscaler.
#[derive(Clone)]
pub struct AutoscaleSettings {
    /// The one namespace that is watched; `None`: all.
    pub namespace: Option<String>,
    /// The namespace of the gateways and of this controller.
    pub own_namespace: String,
    /// The Service of the gateways. The pods in its slices must report their load.
    pub gateway_service: String,
    /// Which routes are scaled if they do not say it themselves.
    pub default: AutoscaleDefault,
    /// How many workloads are started from zero at a time: because of a `min`, not because of requests.
    pub wakes: WakeRates,
    /// Whether status conditions and Kubernetes Events are written.
    pub write_status: bool,
    /// The name of this process in Kubernetes Events: the name of its pod.
    pub identity: String,
    /// What is asked before a service is scaled to zero, besides Envoys.
    pub zero_gate: Option<Arc<dyn ZeroGate>>,
    /// How long that may take.
    pub prepare_deadline: Duration,
    /// The clock of the fleet.
    pub clock: Arc<dyn Clock>,
    /// The time of day, for statuses and events.
    pub time_of_day: fn() -> SystemTime,
    /// The seed for jitter.
    pub seed: u64,
}

impl AutoscaleSettings {
    /// The defaults: the whole cluster, only routes that ask for it.
    pub fn new(
        own_namespace: &str,
        clock: Arc<dyn Clock>,
        time_of_day: fn() -> SystemTime,
        seed: u64,
    ) -> Self {
        Self {
            namespace: None,
            own_namespace: own_namespace.to_owned(),
            gateway_service: GATEWAY_SERVICE.to_owned(),
            default: AutoscaleDefault::Off,
            wakes: WakeRates::default(),
            write_status: true,
            identity: "rouse".to_owned(),
            zero_gate: None,
            prepare_deadline: Duration::from_secs(5),
            clock,
            time_of_day,
            seed,
        }
    }
}

/// Scales the workloads of routes by their load.
pub struct AutoscaleController {
    settings: AutoscaleSettings,
    watches: Arc<Watches>,
    leadership: Leadership,
    state: Mutex<AutoscaleState>,
    /// Notified when there may be something to do.
    changed: Notify,
    scale: ScaleClient,
    statuses: StatusWriter,
    /// Told when xds replicas come, go or answer.
    parking: watch::Sender<()>,
    zero_requests: OnceLock<Box<dyn ZeroRequests>>,
    /// Notified when the load of a route is new.
    route_loads: Notify,
    /// Notified when a status is to be written again.
    unwritten: Notify,
    kube_events: EventWriter,
    metrics: AutoscaleMetrics,
    events: EventSender,
    synced: watch::Sender<bool>,
}

impl AutoscaleController {
    /// Watches nothing yet. With a [`Leadership::never`], it decides and writes nothing.
    pub fn new(
        client: Client,
        settings: AutoscaleSettings,
        leadership: Leadership,
        metrics: AutoscaleMetrics,
    ) -> Arc<Self> {
        let (namespace, clock) = (settings.namespace.as_deref(), Arc::clone(&settings.clock));
        let state = AutoscaleState::new(settings.default, settings.wakes, clock.now(), settings.seed);
        let scale = ScaleClient::new(client.clone());
        Arc::new(Self {
            watches: Arc::new(Watches::new(client, namespace, &WATCHED, clock, settings.seed)),
            leadership,
            state: Mutex::new(state),
            changed: Notify::new(),
            scale,
            statuses: StatusWriter::new(StatusAuthor::Controller),
            parking: watch::Sender::new(()),
            zero_requests: OnceLock::new(),
            route_loads: Notify::new(),
            unwritten: Notify::new(),
            kube_events: EventWriter::new(),
            metrics,
            events: EventSender::new(),
            synced: watch::Sender::new(false),
            settings,
        })
    }

    /// Takes what a reporter sent: its load counts from now on. Returns how many readings were refused since the reporter has
    /// too many.
    pub fn heard(&self, from: &Reporter, update: LoadUpdate) -> usize {
        let now = self.now();
        let mut state = self.state();
        let refused = state.heard(now, from, update);
        let due = state.next_due().is_some_and(|due| due <= now);
        let news = state.route_loads.has_news();
        drop(state);
        if due {
            self.wake();
        }
        if news {
            self.route_loads.notify_one();
        }
        refused
    }

    /// The present load of a service or route, at all reporters.
    pub fn present(&self, key: &LoadKey) -> CurrentLoad {
        self.state().fleet.loads().present(key)
    }

    /// Reads the load of all services and routes. Reports wait meanwhile.
    pub fn with_loads<T>(&self, read: impl FnOnce(&LoadTable) -> T) -> T {
        read(self.state().fleet.loads())
    }

    /// All targets and routes, as they are now.
    pub fn view(&self) -> ScalingView {
        let (mut state, now) = (self.state(), self.now());
        if self.is_synced() {
            // The driver may not have looked since the last change.
            state.resolve(now);
        }
        view::view(&state, now, self.leadership.may_write())
    }

    /// The targets that a service leads to, each with what its idle policy has learned, if it has one that learns.
    pub fn explain(&self, service: &ServiceId) -> Vec<(TargetView, Option<IdleExplanation>)> {
        view::explain(&self.state(), service)
    }

    /// Whether everything was seen that decisions depend on. Stays true.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits for [`AutoscaleController::is_synced`].
    pub async fn synced(&self) {
        // `self` owns the sender, so the channel is never closed.
        drop(self.synced.subscribe().wait_for(|synced| *synced).await);
    }

    /// The kinds that must be seen before anything is decided and were not yet, each with the reason.
    pub fn missing(&self) -> Vec<String> {
        self.watches.missing()
    }

    /// The state of each watch.
    pub fn watches(&self) -> Vec<WatchReport> {
        self.watches.reports()
    }

    /// Events for the operator's log, from now on.
    pub fn events(&self) -> broadcast::Receiver<ClusterEvent> {
        self.events.subscribe()
    }

    /// Scales until `cancel`, and ends what is under way. Owns every task; call it once. Cancel the election after it has ended.
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) -> Result<(), TaskEnded> {
        let (mut tasks, inner) = (JoinSet::new(), cancel.child_token());
        self.watch(&mut tasks, &inner);
        tasks.spawn(Arc::clone(&self).drive(inner.clone()));
        tasks.spawn(Arc::clone(&self).write_statuses(inner.clone()));
        tasks.spawn(Arc::clone(&self).write_events(inner.clone()));
        tasks.spawn(self.events.clone().report_watches(Arc::clone(&self.watches), inner.clone()));
        tasks::run(tasks, inner, cancel).await
    }

    /// Starts the watches.
    fn watch(self: &Arc<Self>, tasks: &mut JoinSet<()>, cancel: &CancellationToken) {
        let all = |kind| self.watches.of(kind, &Arc::default());
        for (kind, object_kind) in RouteKind::WATCHED {
            tasks.spawn(all(object_kind).run(InputSink::new(self, sinks::routes(kind)), cancel.clone()));
        }
        for kind in [ObjectKind::DEPLOYMENT, ObjectKind::STATEFUL_SET] {
            tasks.spawn(all(kind).run(InputSink::new(self, sinks::workloads(kind)), cancel.clone()));
        }
        let services = InputSink::new(self, sinks::services);
        tasks.spawn(all(ObjectKind::SERVICE).run(services, cancel.clone()));
        let scaled = InputSink::new(self, sinks::scaled_objects);
        tasks.spawn(all(ObjectKind::SCALED_OBJECT).run(scaled, cancel.clone()));
        tasks.spawn(all(ObjectKind::HPA).run(InputSink::new(self, sinks::hpas), cancel.clone()));
        let AutoscaleSettings { own_namespace, gateway_service, .. } = &self.settings;
        let label = (SERVICE_NAME, &**gateway_service);
        let slices = self.watches.labelled(ObjectKind::SLICE, Some(own_namespace), label, &Arc::default());
        tasks.spawn(slices.run(InputSink::new(self, sinks::gateway_slices), cancel.clone()));
    }

    async fn write_statuses(self: Arc<Self>, cancel: CancellationToken) {
        let (client, may_write) = (self.watches.client(), || self.leadership.may_write());
        self.statuses.run(client, &self.events, &self.unwritten, may_write, cancel).await;
    }

    async fn write_events(self: Arc<Self>, cancel: CancellationToken) {
        let author = EventAuthor {
            component: "rouse.dev/controller",
            instance: self.settings.identity.clone(),
            clock: Arc::clone(&self.settings.clock),
            time_of_day: self.settings.time_of_day,
        };
        self.kube_events.run(self.watches.client(), &author, &self.events, cancel).await;
    }

    fn now(&self) -> Moment {
        self.settings.clock.now()
    }

    /// Has the driver look for something to do.
    fn wake(&self) {
        self.changed.notify_one();
    }

    fn report(&self, event: ClusterEvent) {
        self.events.send(event);
    }

    fn state(&self) -> MutexGuard<'_, AutoscaleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AutoscaleController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AutoscaleController").field("watches", &self.watches()).finish_non_exhaustive()
    }
}
