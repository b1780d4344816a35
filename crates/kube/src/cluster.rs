//! One Kubernetes cluster: everything that follows it, and everything that is written to it.
//!
//! Each watch has a task, which writes what it sees into `Knowledge` and rings the planner. The planner compiles
//! routes, publishes them, and finds out what their owners are to be told. Wakes, lookups of workloads and writes
//! have tasks of their own, so that none of them waits for another.

mod bodies;
mod credentials;
mod named;
mod planner;
mod sinks;
mod wakes;
mod writes;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use kube::Client;
use rouse_core::endpoint::ServiceId;
use rouse_core::engine::Engine;
use rouse_core::registry::Registry;
use rouse_core::time::Clock;
use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::api::{Dice, Kind};
use crate::events::Event;
use crate::feed::{Allowed, Feed, Manual, Witness};
use crate::pods::Pods;
use crate::route::book::Book;
use crate::route::claims::{HostRules, Ledger};
use crate::route::plan::RoutePlan;
use crate::route::record::Claimed;
use crate::route::spec::{DirectMode, RouteKey, RouteKind};
use crate::route::status::{Statuses, Write};
use crate::scale::{Targets, Waker};
use crate::service::TlsFacts;
use crate::watch::{Health, Sink, Watch, WatchReport, WatchState};
use bodies::Bodies;
use credentials::Credentials;
use wakes::{Queue, WakeFailure};

/// How far somebody who follows the happenings may lag behind before they miss some.
const LAG: usize = 1024;
/// Statuses and events that wait to be written. What finds no room is written later, or not at all.
const WRITES: usize = 1024;

/// How long slices and pods may disagree: one of them is always a little ahead.
const DOUBT: Duration = Duration::from_secs(2);
/// Nothing is listed again more often because they disagree.
const DOUBTS_APART: Duration = Duration::from_secs(30);

/// What an operator decides about following a cluster.
#[derive(Clone)]
pub struct Settings {
    /// Only this namespace; `None`: all.
    pub namespace: Option<String>,
    /// Endpoints without a pod get traffic in every service. The registry's own policy must allow them in any case:
    /// they are kept back here, service by service.
    pub manual_endpoints: bool,
    /// The namespaces whose Services may allow endpoints without a pod by annotation.
    pub manual_endpoints_of: BTreeSet<String>,
    /// Where this gateway itself listens. Endpoints there get no requests.
    pub own_addresses: Vec<SocketAddr>,
    /// What the operator decided about hosts.
    pub hosts: HostRules,
    /// How long the slices may be out of reach before snapshots say that they are stale.
    pub stale_after: Duration,
    /// Whether conditions and events are written.
    pub write_status: bool,
    /// What this gateway is called in events: its pod's name.
    pub identity: String,
    /// The registry's clock.
    pub clock: Arc<dyn Clock>,
    /// The time of day, for what is written.
    pub time_of_day: fn() -> SystemTime,
    /// Fresh randomness, for jitter.
    pub seed: u64,
    /// What is wrong with the certificates and the key that a Service names, in words. Only who uses them can tell; what
    /// is told here is told on routes.
    pub judge_tls: fn(&TlsFacts) -> Option<String>,
    /// Whether requests go to pods or to the Service's address where their route does not say. What a Service asks for and
    /// does not get on the way to a pod is told on routes.
    pub direct: DirectMode,
}

impl Settings {
    /// The defaults: the whole cluster, no manual endpoints, conditions are written, nothing is wrong with certificates,
    /// requests go to pods.
    pub fn new(clock: Arc<dyn Clock>, time_of_day: fn() -> SystemTime, seed: u64) -> Self {
        Self {
            namespace: None,
            manual_endpoints: false,
            manual_endpoints_of: BTreeSet::new(),
            own_addresses: Vec::new(),
            hosts: HostRules::default(),
            stale_after: Duration::from_secs(10),
            write_status: true,
            identity: "rouse".to_owned(),
            clock,
            time_of_day,
            seed,
            judge_tls: |_| None,
            direct: DirectMode::Always,
        }
    }
}

/// Something an operator may want to read in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// How a watch is doing has changed.
    Watch(WatchReport),
    /// An object, or a part of it, cannot be used.
    LeftOut(String),
    /// A workload was taken from 0 to so many pods.
    Woken(ServiceId, u32),
    /// A wake came to nothing.
    WakeFailed {
        /// Of which service.
        service: ServiceId,
        /// Why, in words.
        why: String,
        /// It was told before, and nothing has changed since.
        again: bool,
    },
    /// Every pod of a service that takes requests refuses connections. In words.
    Unreachable(ServiceId, String),
    /// Something could not be written to the API server.
    WriteFailed(String),
}

/// A task of [`Cluster::run`] ended although nobody asked it to: a panic.
#[derive(Debug, thiserror::Error)]
#[error("a task that follows the cluster has ended: {0}")]
pub struct Ended(String);

/// All routes that serve, the newest whole set.
pub type Plans = Arc<[Arc<RoutePlan>]>;

/// One Kubernetes cluster.
pub struct Cluster {
    client: Client,
    settings: Settings,
    dice: Arc<Dice>,
    pods: Arc<Pods>,
    wakes: Queue,
    /// Services whose wakes failed, as long as it is told.
    failing: Mutex<HashSet<ServiceId>>,
    waker: Waker,
    targets: Targets,
    knowledge: Mutex<Knowledge>,
    statuses: Mutex<Statuses>,
    /// Routes whose status could not be written: tried again later.
    unwritten: Mutex<BTreeSet<RouteKey>>,
    plans: watch::Sender<Plans>,
    synced: watch::Sender<bool>,
    /// Rung when routes must be compiled anew.
    dirty: Notify,
    /// Rung when all slices are needed again.
    lost_slices: Arc<Notify>,
    changes: watch::Sender<()>,
    healths: Vec<Arc<Health>>,
    happenings: broadcast::Sender<Happening>,
    writes: (mpsc::Sender<Write>, Mutex<Option<mpsc::Receiver<Write>>>),
    events: (mpsc::Sender<Event>, Mutex<Option<mpsc::Receiver<Event>>>),
}

/// What routes are made of, besides Services.
#[derive(Default)]
struct Knowledge {
    book: Book,
    bodies: Bodies,
    credentials: Credentials,
    /// Why the last wake of a route came to nothing.
    wake_failures: HashMap<RouteKey, WakeFailure>,
    /// Which namespace was granted which host.
    claims: Ledger,
    /// Services whose `ClusterIP` routes would use and do not, as long as that is so.
    shunned: BTreeSet<ServiceId>,
}

/// The kinds that are always watched, in the order of [`Cluster::watches`].
const WATCHED: [Kind; 5] = [Kind::SLICE, Kind::SERVICE, Kind::ROUTE, Kind::SCALED_HTTP, Kind::POD];
/// Of these, what must have been seen once before requests are served. Pods need not, if they cannot be.
const NEEDED: usize = 4;

impl Cluster {
    /// Nothing is followed yet. Make the registry with this as its engine, and [`Cluster::run`] with that registry.
    pub fn new(client: Client, settings: Settings) -> Arc<Self> {
        let changes = watch::Sender::new(());
        let health = |kind: Kind| Arc::new(Health::new(kind.name, changes.clone()));
        let (writes, writes_end) = mpsc::channel(WRITES);
        let (events, events_end) = mpsc::channel(WRITES);
        Arc::new(Self {
            dice: Arc::new(Dice::new(settings.seed)),
            pods: Arc::default(),
            wakes: Queue::default(),
            failing: Mutex::default(),
            waker: Waker::new(client.clone()),
            targets: Targets::default(),
            knowledge: Mutex::default(),
            statuses: Mutex::default(),
            unwritten: Mutex::default(),
            plans: watch::Sender::new(Arc::default()),
            synced: watch::Sender::new(false),
            dirty: Notify::new(),
            lost_slices: Arc::default(),
            healths: WATCHED.map(health).into(),
            changes,
            happenings: broadcast::Sender::new(LAG),
            writes: (writes, Mutex::new(Some(writes_end))),
            events: (events, Mutex::new(Some(events_end))),
            client,
            settings,
        })
    }

    /// All routes, whenever they change. Before [`Cluster::synced`] there are none.
    pub fn plans(&self) -> watch::Receiver<Plans> {
        self.plans.subscribe()
    }

    /// How pods may be probed.
    pub fn pods(&self) -> &Arc<Pods> {
        &self.pods
    }

    /// Whether all slices, Services and routes have been seen once and their routes published. Stays so.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits for [`Cluster::is_synced`].
    pub async fn synced(&self) {
        // The sender is our own, so it is never gone.
        drop(self.synced.subscribe().wait_for(|synced| *synced).await);
    }

    /// What has not been seen yet and must be before requests are served, and why, in words.
    pub fn missing(&self) -> Vec<String> {
        let kinds = WATCHED.iter().zip(&self.healths).take(NEEDED);
        let reports =
            kinds.map(|(kind, health)| (kind, health.report())).filter(|(_, report)| !report.synced);
        let words = reports.map(|(kind, report)| {
            let why = match report.state {
                WatchState::Broken { why, .. } => why,
                _ => "the API server has not answered yet".to_owned(),
            };
            format!("{} ({}): {why}", kind.name, kind.resource())
        });
        words.collect()
    }

    /// How each watch is doing.
    pub fn watches(&self) -> Vec<WatchReport> {
        self.healths.iter().map(|health| health.report()).collect()
    }

    /// What an operator may want to read in a log, from now on.
    pub fn happenings(&self) -> broadcast::Receiver<Happening> {
        self.happenings.subscribe()
    }

    /// Follows the cluster until `cancel`. Owns every task; call it once.
    pub async fn run(
        self: Arc<Self>,
        registry: Arc<Registry>,
        cancel: CancellationToken,
    ) -> Result<(), Ended> {
        let all_pods = Arc::<Notify>::default();
        let witness = Witness::new(Arc::clone(&self.pods), Arc::clone(&all_pods));
        let manual = if self.settings.manual_endpoints {
            Manual::Everywhere
        } else {
            Manual::In(self.settings.manual_endpoints_of.clone())
        };
        let allowed = Allowed { manual, own: self.settings.own_addresses.clone() };
        let lost = Arc::clone(&self.lost_slices);
        let feed = Feed::new(Arc::clone(&registry), witness, allowed, lost);
        let feed = Arc::new(Mutex::new(feed));
        let mut tasks = JoinSet::new();
        let inner = cancel.child_token();
        let sinks = sinks::Sinks { cluster: Arc::clone(&self), feed: Arc::clone(&feed) };
        for (kind, health) in WATCHED.into_iter().zip(&self.healths) {
            let again = match kind {
                Kind::SLICE => Arc::clone(&self.lost_slices),
                Kind::POD => Arc::clone(&all_pods),
                _ => Arc::default(),
            };
            let watch = self.watch(kind, None, Arc::clone(health), again);
            match kind {
                Kind::SLICE => spawn_watch(&mut tasks, watch, sinks.slices(), &inner),
                Kind::SERVICE => spawn_watch(&mut tasks, watch, sinks.services(), &inner),
                Kind::ROUTE => {
                    spawn_watch(&mut tasks, watch, sinks.routes(RouteKind::InterceptorRoute), &inner);
                }
                Kind::SCALED_HTTP => {
                    spawn_watch(&mut tasks, watch, sinks.routes(RouteKind::HttpScaledObject), &inner);
                }
                _ => spawn_watch(&mut tasks, watch, sinks.pods(), &inner),
            }
        }
        tasks.spawn(Arc::clone(&self).plan(Arc::clone(&registry), Arc::clone(&feed), inner.clone()));
        tasks.spawn(Arc::clone(&self).look_up_targets(Arc::clone(&feed), inner.clone()));
        tasks.spawn(Arc::clone(&self).wake_up(Arc::clone(&registry), Arc::clone(&feed), inner.clone()));
        tasks.spawn(Arc::clone(&self).write_statuses(inner.clone()));
        tasks.spawn(Arc::clone(&self).write_events(inner.clone()));
        tasks.spawn(Arc::clone(&self).mind_doubts(Arc::clone(&feed), inner.clone()));
        tasks.spawn(Arc::clone(&self).mind_staleness(feed, inner.clone()));
        let first = tasks.join_next().await;
        let early = !cancel.is_cancelled();
        inner.cancel();
        let reason = match first {
            Some(Err(error)) => error.to_string(),
            _ => "without an error".to_owned(),
        };
        while tasks.join_next().await.is_some() {}
        if early { Err(Ended(reason)) } else { Ok(()) }
    }

    fn watch(
        &self,
        kind: Kind,
        object: Option<(Arc<str>, Arc<str>)>,
        health: Arc<Health>,
        again: Arc<Notify>,
    ) -> Watch {
        let whole = self.settings.namespace.as_deref().map(Into::into);
        let (namespace, name) = match object {
            Some((namespace, name)) => (Some(namespace), Some(name)),
            None => (whole, None),
        };
        Watch {
            client: self.client.clone(),
            kind,
            namespace,
            name,
            health,
            clock: Arc::clone(&self.settings.clock),
            dice: Arc::clone(&self.dice),
            again,
        }
    }

    /// Marks snapshots stale while the slices have been out of reach for long, and tells how watches are doing.
    async fn mind_staleness(self: Arc<Self>, feed: Arc<Mutex<Feed>>, cancel: CancellationToken) {
        let mut changes = self.changes.subscribe();
        let mut known: Vec<Option<WatchState>> = vec![None; self.healths.len()];
        loop {
            for (health, known) in self.healths.iter().zip(&mut known) {
                let report = health.report();
                if known.as_ref() != Some(&report.state) {
                    *known = Some(report.state.clone());
                    self.tell(Happening::Watch(report));
                }
            }
            let slices = self.reported(Kind::SLICE);
            let patience = slices.as_ref().and_then(|report| self.patience(report));
            match slices.map(|report| report.state) {
                Some(WatchState::Broken { .. }) => lock(&feed).set_stale(patience.is_none()),
                Some(WatchState::Following) => lock(&feed).set_stale(false),
                _ => {}
            }
            let due = patience.into_iter().chain(self.mind_pods(&feed)).min();
            let due = due.map(|left| Instant::now() + left);
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                _ = changes.changed() => {}
                () = at(due) => {}
            }
        }
    }

    /// Nobody waits for pods that we may not see; where they were seen, their watch may be broken for a while: so long.
    fn mind_pods(&self, feed: &Mutex<Feed>) -> Option<Duration> {
        let pods = self.reported(Kind::POD)?;
        let patience = self.patience(&pods).filter(|_| pods.synced);
        let broken = matches!(pods.state, WatchState::Broken { .. });
        lock(feed).set_pods_lost(broken && patience.is_none());
        patience
    }

    /// Has slices or pods listed again where they have not agreed for a while: one of the watches may have missed
    /// something, or hang.
    async fn mind_doubts(self: Arc<Self>, feed: Arc<Mutex<Feed>>, cancel: CancellationToken) {
        let bell = lock(&feed).doubts();
        let work = async {
            loop {
                bell.notified().await;
                sleep_until(Instant::now() + DOUBT).await;
                if lock(&feed).settle_doubts() {
                    sleep_until(Instant::now() + DOUBTS_APART).await;
                }
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = work => {}
        }
    }

    fn reported(&self, kind: Kind) -> Option<WatchReport> {
        let at = WATCHED.iter().position(|watched| *watched == kind)?;
        self.healths.get(at).map(|health| health.report())
    }

    /// How long a broken watch may still be taken for a whole one.
    fn patience(&self, report: &WatchReport) -> Option<Duration> {
        let WatchState::Broken { since, .. } = report.state else { return None };
        let broken_for = self.settings.clock.now().since(since);
        Some(self.settings.stale_after.saturating_sub(broken_for)).filter(|left| !left.is_zero())
    }

    fn tell(&self, happening: Happening) {
        // Nobody listens: nobody wants to know.
        drop(self.happenings.send(happening));
    }

    fn knowledge(&self) -> MutexGuard<'_, Knowledge> {
        lock(&self.knowledge)
    }

    /// The time of claims that are granted now.
    fn claim_time(&self) -> Claimed {
        let since = (self.settings.time_of_day)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Claimed(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    /// The time of day, as Kubernetes writes it.
    fn now_text(&self) -> String {
        let since = (self.settings.time_of_day)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or_default();
        let time = k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap_or_default();
        time.to_string()
    }
}

impl Engine for Cluster {
    fn wake(&self, service: &ServiceId) {
        self.wakes.push(service);
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("watches", &self.watches()).finish_non_exhaustive()
    }
}

fn spawn_watch<S: Sink + 'static>(
    tasks: &mut JoinSet<()>,
    watch: Watch,
    sink: S,
    cancel: &CancellationToken,
) {
    tasks.spawn(watch.run(sink, cancel.clone()));
}

/// Waits until `due`, or for ever.
async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
