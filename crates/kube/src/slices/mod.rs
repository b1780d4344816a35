//! Writes the `EndpointSlice`s of Services that have no selector and name their pods by annotation (KEP-1672).
//!
//! [`SliceController`] watches Services, pods, nodes and its own slices, and syncs each service that a change concerns. The
//! rules are [`rouse_core::slices`]; this module keeps what they read up to date, decides when to apply them, and sends the
//! writes. Slices of other writers are never touched: the watch does not even see them.

mod cache;
mod metrics;
mod queue;
mod sinks;
mod sync;
mod updates;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use prometheus_client::registry::Registry as Metrics;
use rouse_core::budget::Rate;
use rouse_core::endpoint::ServiceId;
use rouse_core::random::SharedRandom;
use rouse_core::slices::{MANAGED_BY, MANAGER, Options};
use rouse_core::time::{Clock, Moment};
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::client::watch::WatchReport;
use crate::client::{ObjectKind, WatchedKind, Watches, at};
use crate::events::{ClusterEvent, EventSender};
use crate::tasks::{self, TaskEnded};
use cache::{Cache, Cause, Concerned};
use metrics::{QueueState, SliceMetrics};
use queue::{SyncEnd, SyncQueue};
use writer::SliceWriter;

/// The kinds that are watched. Each must have been seen once before anything is written: with half of the pods, the other
/// half would lose its endpoints.
const WATCHED: [WatchedKind; 4] = [
    WatchedKind::required(ObjectKind::SERVICE),
    WatchedKind::required(ObjectKind::POD),
    WatchedKind::required(ObjectKind::NODE),
    WatchedKind::required(ObjectKind::SLICE),
];

/// The least delay of a sync that another client's change of a slice causes: such changes often come in series.
const FOREIGN_CHANGE: Duration = Duration::from_secs(1);
/// The delay of the sync that deletes the slices of a Service that has a selector now. Kubernetes' own controller writes its
/// slices meanwhile, so that the Service is never without endpoints.
const HAND_OVER: Duration = Duration::from_secs(2);
/// How often it is checked whether this process may write.
const LEADERSHIP: Duration = Duration::from_secs(1);

/// Whether this process may write now. It is asked before every write, so it must be cheap.
pub type MayWrite = Arc<dyn Fn() -> bool + Send + Sync>;

/// The operator's settings for the controller.
#[derive(Clone)]
pub struct SliceSettings {
    /// The one namespace that is watched; `None`: all.
    pub namespace: Option<String>,
    /// How slices are computed: `--terminating-conditions` and `--max-endpoints-per-slice`.
    pub options: Options,
    /// How long a sync waits for further changes after the first change of a pod. Zero: it does not wait.
    pub batch_window: Duration,
    /// The most services that are synced at a time.
    pub concurrency: usize,
    /// The most writes to the API server.
    pub writes: Rate,
    /// Whether this process leads.
    pub may_write: MayWrite,
    /// The clock of reports and pauses.
    pub clock: Arc<dyn Clock>,
    /// The seed for jitter.
    pub seed: u64,
}

impl SliceSettings {
    /// The defaults: the whole cluster, no batching, 5 syncs at a time, 50 writes per second, this process always leads.
    pub fn new(clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self {
            namespace: None,
            options: Options::default(),
            batch_window: Duration::ZERO,
            concurrency: 5,
            writes: Rate { per_second: 50, burst: 100 },
            may_write: Arc::new(|| true),
            clock,
            seed,
        }
    }
}

impl fmt::Debug for SliceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SliceSettings")
            .field("namespace", &self.namespace)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Why the slices of a service are not as they should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceProblem {
    /// The cause.
    pub why: String,
    /// Since when syncs of the service have failed.
    pub since: Moment,
}

/// The controller for one cluster.
pub struct SliceController {
    options: Options,
    batch_window: Duration,
    concurrency: usize,
    may_write: MayWrite,
    clock: Arc<dyn Clock>,
    random: SharedRandom,
    watches: Arc<Watches>,
    writer: SliceWriter,
    cache: Mutex<Cache>,
    queue: Mutex<SyncQueue>,
    /// Whether this process led when it was last checked.
    leads: AtomicBool,
    /// Notified when a service was queued.
    queued: Notify,
    /// Notified when all slices must be listed again.
    relist_slices: Arc<Notify>,
    problems: Mutex<BTreeMap<ServiceId, SliceProblem>>,
    metrics: SliceMetrics,
    events: EventSender,
}

impl SliceController {
    /// Watches and writes nothing yet.
    pub fn new(client: Client, settings: SliceSettings) -> Arc<Self> {
        let SliceSettings { namespace, options, batch_window, concurrency, writes, may_write, clock, seed } =
            settings;
        let watches =
            Arc::new(Watches::new(client.clone(), namespace.as_deref(), &WATCHED, Arc::clone(&clock), seed));
        let writer = SliceWriter::new(client, writes, Arc::clone(&clock), Arc::clone(&may_write));
        Arc::new(Self {
            options,
            batch_window,
            concurrency: concurrency.max(1),
            may_write,
            clock,
            // Another sequence than that of the watches.
            random: SharedRandom::new(!seed),
            watches,
            writer,
            cache: Mutex::default(),
            queue: Mutex::default(),
            leads: AtomicBool::new(false),
            queued: Notify::new(),
            relist_slices: Arc::default(),
            problems: Mutex::default(),
            metrics: SliceMetrics::new(),
            events: EventSender::new(),
        })
    }

    /// Registers the metrics of this controller. Call it once.
    pub fn register_metrics(self: &Arc<Self>, metrics: &mut Metrics) {
        let controller = Arc::clone(self);
        self.metrics.register(metrics, move || controller.queue_state());
    }

    /// The state of each watch.
    pub fn watches(&self) -> Vec<WatchReport> {
        self.watches.reports()
    }

    /// The kinds that must be seen before anything is written and were not yet, each with the reason.
    pub fn missing(&self) -> Vec<String> {
        self.watches.missing()
    }

    /// Waits until all kinds were seen once.
    pub async fn synced(&self) {
        self.watches.all_seen().await;
    }

    /// The services whose slices are not as they should be.
    pub fn problems(&self) -> BTreeMap<ServiceId, SliceProblem> {
        lock(&self.problems).clone()
    }

    /// Whether no change waits to be written.
    pub fn is_settled(&self) -> bool {
        lock(&self.queue).len() == 0
    }

    /// Events for the operator's log, from now on.
    pub fn events(&self) -> broadcast::Receiver<ClusterEvent> {
        self.events.subscribe()
    }

    /// Follows the cluster and writes slices until `cancel`. Owns every task; call it once.
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) -> Result<(), TaskEnded> {
        let (mut tasks, inner) = (JoinSet::new(), cancel.child_token());
        let label = (MANAGED_BY, MANAGER);
        let slices = self.watches.labelled(ObjectKind::SLICE, None, label, &self.relist_slices);
        tasks.spawn(slices.run(sinks::SliceSink(Arc::clone(&self)), inner.clone()));
        let services = self.watches.of(ObjectKind::SERVICE, &Arc::default());
        tasks.spawn(services.run(sinks::ServiceSink(Arc::clone(&self)), inner.clone()));
        let pods = self.watches.of(ObjectKind::POD, &Arc::default());
        tasks.spawn(pods.run(sinks::PodSink(Arc::clone(&self)), inner.clone()));
        let nodes = self.watches.of(ObjectKind::NODE, &Arc::default());
        tasks.spawn(nodes.run(sinks::NodeSink(Arc::clone(&self)), inner.clone()));
        tasks.spawn(self.events.clone().report_watches(Arc::clone(&self.watches), inner.clone()));
        tasks.spawn(Arc::clone(&self).dispatch(inner.clone()));
        tasks::run(tasks, inner, cancel).await
    }

    /// Applies an event to the cache, and queues the services that it concerns.
    fn apply(&self, event: impl FnOnce(&mut Cache) -> Concerned) {
        let concerned = event(&mut self.cache());
        if concerned.is_empty() {
            return;
        }
        let now = self.clock.now();
        let mut queue = lock(&self.queue);
        for (service, cause) in concerned {
            queue.add(&service, now + self.delay(cause), now);
        }
        drop(queue);
        self.queued.notify_one();
    }

    fn delay(&self, cause: Cause) -> Duration {
        match cause {
            Cause::Service | Cause::CaughtUp => Duration::ZERO,
            Cause::Pod => self.batch_window,
            Cause::Slice => self.batch_window.max(FOREIGN_CHANGE),
            Cause::HandOver => HAND_OVER,
        }
    }

    /// Syncs the services that are due, until `cancel`.
    async fn dispatch(self: Arc<Self>, cancel: CancellationToken) {
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            () = self.synced() => {}
        }
        let mut under_way = JoinSet::new();
        loop {
            let leads = self.follow_leadership();
            while leads && under_way.len() < self.concurrency {
                let Some(service) = lock(&self.queue).pop(self.clock.now()) else { break };
                under_way.spawn(Arc::clone(&self).sync_one(service));
            }
            let due = lock(&self.queue).next_due().filter(|_| leads && under_way.len() < self.concurrency);
            let pause = due.map_or(LEADERSHIP, |due| due.since(self.clock.now()).min(LEADERSHIP));
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                Some(_) = under_way.join_next() => {}
                () = self.queued.notified() => {}
                () = at(Some(Instant::now() + pause)) => {}
            }
        }
    }

    /// Whether this process leads now.
    fn follow_leadership(&self) -> bool {
        let leads = (self.may_write)();
        let led = self.leads.swap(leads, Ordering::Relaxed);
        if leads && !led {
            // The process that led before may have written slices that the cache does not have yet.
            self.cache().doubt_all();
            self.relist_slices.notify_one();
        } else if led && !leads {
            self.metrics.forget_all();
            lock(&self.problems).clear();
        }
        leads
    }

    async fn sync_one(self: Arc<Self>, service: ServiceId) {
        let mut done = Done { controller: &self, service: &service, end: None };
        done.end = Some(self.sync(&service).await);
    }

    /// The slices of `service` are as they should be.
    fn recovered(&self, service: &ServiceId) {
        lock(&self.problems).remove(service);
    }

    /// A sync of `service` failed.
    fn failed(&self, service: &ServiceId, why: String) {
        let mut problems = lock(&self.problems);
        let before = problems.get(service);
        let again = before.is_some_and(|before| before.why == why);
        let since = before.map_or_else(|| self.clock.now(), |before| before.since);
        problems.insert(service.clone(), SliceProblem { why: why.clone(), since });
        drop(problems);
        self.events.send(ClusterEvent::SliceSyncFailed { service: service.clone(), why, again });
    }

    /// The state of the queue; of a process that does not lead, that of an empty one: it follows and writes nothing.
    fn queue_state(&self) -> QueueState {
        if !self.leads.load(Ordering::Relaxed) {
            return QueueState::default();
        }
        let queue = lock(&self.queue);
        let (unsynced, oldest) = (queue.len(), queue.oldest(self.clock.now()));
        drop(queue);
        QueueState { unsynced, oldest, failing: lock(&self.problems).len() }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        lock(&self.cache)
    }
}

impl fmt::Debug for SliceController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SliceController").field("watches", &self.watches()).finish_non_exhaustive()
    }
}

/// Gives a service back to the queue, also if its sync panics: otherwise it could never be synced again.
struct Done<'a> {
    controller: &'a SliceController,
    service: &'a ServiceId,
    end: Option<SyncEnd>,
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let random = self.controller.random.next_u64();
        let end = self.end.unwrap_or(SyncEnd::Failed { least: Duration::ZERO, random });
        lock(&self.controller.queue).done(self.service, end, self.controller.clock.now());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
