//! The local engine: runs apps as processes, publishes them as `EndpointSlice`s in the registry, and scales them to zero.
//!
//! Each app has one owner task, which alone changes its pods. All other code writes its orders into the app's `AppHandle` and
//! notifies the owner. Nothing blocks or queues up, and a new order replaces the old one.

mod app;
mod failure_text;
mod load;
mod plan;
mod pod;
mod pod_processes;
mod publish;
mod sidecar;
mod spec;
mod status;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::SystemTime;

use rouse_core::endpoint::{PodUid, PortName, ServiceId};
use rouse_core::engine::Engine;
use rouse_core::random::SharedRandom;
use rouse_core::registry::Registry;
use rouse_core::service::{Service, ServiceSpec};
use rouse_core::time::{Clock as _, Moment};
use rouse_net::clock::TokioClock;
use rouse_net::probe_limiter::ProbeLimits;
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinSet;

use crate::address::AddressPool;
use crate::output::{AppLog, LogFile};
use crate::process::Launcher;
use app::App;

pub use sidecar::{SidecarLauncher, SidecarPod};
pub use spec::{AppSpec, PORT_NAME, PortChoice, Readiness};
pub use status::{AppEvent, AppEventKind, AppStatus, LocalPodStatus, PodStage};

/// How many events a subscriber may fall behind before it misses some.
const LAG: usize = 1024;
/// The limit on concurrent probes, large enough that probes of one app do not wait for those of another.
const PROBES: usize = 256;

/// What the engine needs to run.
#[derive(Debug, Clone)]
pub struct LocalSettings {
    /// How pods are started.
    pub launcher: Launcher,
    /// The registry's clock.
    pub clock: TokioClock,
    /// A random seed for the UIDs and ports of pods, and for jitter.
    pub seed: u64,
    /// How much output of an app is kept in memory, in bytes.
    pub log_keep: usize,
    /// The directory for the log files of the apps; `None`: no files.
    pub log_folder: Option<PathBuf>,
    /// How sidecars are started; `None`: no app can have one.
    pub sidecar: Option<SidecarLauncher>,
    /// Reads the wall clock, for schedules.
    pub wall_clock: fn() -> SystemTime,
}

/// Proxies beside the gateway that send requests to the pods themselves.
pub trait OtherProxies: Send + Sync {
    /// Whether all of them have the endpoints of this generation of the service's snapshot, or of a newer one. Otherwise a pod that
    /// leaves may still get a request. What they have sent to it before, they do not say: a pod finishes that on SIGTERM.
    fn know(&self, service: &ServiceId, generation: u64) -> bool;
}

/// There is no app with this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no app {0:?}")]
pub struct NoSuchApp(pub String);

/// Runs apps as processes on this machine.
pub struct LocalEngine {
    settings: LocalSettings,
    addresses: AddressPool,
    probes: Arc<ProbeLimits>,
    random: Arc<SharedRandom>,
    /// Held while the set of apps changes. [`Engine::wake`] must not take it: declaring a service may wake it.
    changes: Mutex<()>,
    handles: RwLock<AppHandles>,
    /// Notified when there are apps without an owner.
    newcomers: Notify,
    events: broadcast::Sender<AppEvent>,
    end: watch::Sender<End>,
    running: watch::Sender<bool>,
    other_proxies: OnceLock<Arc<dyn OtherProxies>>,
}

/// The apps.
#[derive(Default)]
struct AppHandles {
    by_service: HashMap<ServiceId, Arc<AppHandle>>,
    /// In the order of the configuration file.
    order: Vec<ServiceId>,
}

/// Whether the engine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// It keeps running.
    Not,
    /// All pods are stopped with SIGTERM.
    Stop,
    /// All pods are killed.
    Kill,
}

/// The shared state between the owner of an app and other tasks.
struct AppHandle {
    service: Arc<Service>,
    log: Arc<AppLog>,
    /// A request waits for a pod.
    woken: AtomicBool,
    orders: Mutex<Orders>,
    /// Notified after each change of `woken` or `orders`.
    changed: Notify,
    /// Whether it has an owner.
    owned: AtomicBool,
    /// The status, written by the owner.
    status: Mutex<AppStatus>,
}

/// The orders for an app. Not a queue: a new order replaces the old one.
#[derive(Debug, Clone)]
struct Orders {
    spec: AppSpec,
    /// How many restarts were ordered.
    restarts: u64,
    /// The newest pin; `None`: the autoscaler decides.
    pin: Option<u32>,
    /// How many pin orders there were.
    pins: u64,
    /// The app was removed from the configuration file.
    removed: bool,
}

impl LocalEngine {
    /// An engine without apps.
    pub fn new(settings: LocalSettings) -> Arc<Self> {
        let random = Arc::new(SharedRandom::new(settings.seed));
        Arc::new(Self {
            addresses: AddressPool::new(random.next_u64()),
            probes: Arc::new(ProbeLimits::new(PROBES, PROBES)),
            random,
            settings,
            changes: Mutex::default(),
            handles: RwLock::default(),
            newcomers: Notify::new(),
            events: broadcast::Sender::new(LAG),
            end: watch::Sender::new(End::Not),
            running: watch::Sender::new(false),
            other_proxies: OnceLock::new(),
        })
    }

    /// From now on, a pod that leaves waits for these proxies. The first call counts.
    pub fn wait_for_proxies(&self, proxies: Arc<dyn OtherProxies>) {
        self.other_proxies.get_or_init(|| proxies);
    }

    fn proxies_know(&self, service: &Service) -> bool {
        let generation = service.snapshot().generation;
        self.other_proxies.get().is_none_or(|proxies| proxies.know(service.id(), generation))
    }

    /// Runs the engine and owns its tasks. Returns after [`LocalEngine::stop`], when all pods are gone. Call it once.
    pub async fn run(self: Arc<Self>, registry: Arc<Registry>) {
        let mut end = self.end.subscribe();
        self.running.send_replace(true);
        let _running = Running(&self.running);
        let mut owners = JoinSet::new();
        loop {
            let ending = *end.borrow_and_update() != End::Not;
            if ending && owners.is_empty() {
                return;
            }
            if !ending {
                for handle in self.newcomers() {
                    owners.spawn(App::new(Arc::clone(&self), Arc::clone(&registry), handle).run());
                }
            }
            tokio::select! {
                () = self.newcomers.notified() => {}
                Some(_) = owners.join_next() => {}
                _ = end.changed() => {}
            }
        }
    }

    /// Sets the apps that should run. The services of new apps are declared in the registry before this returns.
    ///
    /// A new app starts with the pods of its policy. If command, port, protocol or readiness check changed, the pods are
    /// replaced one by one; other changes apply in place. An app that is no longer in `apps` is drained and stopped, and then
    /// its service is removed from the registry.
    pub fn apply(&self, registry: &Registry, apps: Vec<AppSpec>) {
        let _turn = lock(&self.changes);
        let order: Vec<ServiceId> = apps.iter().map(|spec| spec.service.clone()).collect();
        for spec in apps {
            let declared =
                ServiceSpec { ports: vec![PortName::new(PORT_NAME)], concurrency: spec.concurrency };
            let service = registry.declare(&spec.service, &declared);
            if let Some(handle) = self.handle(&spec.service) {
                if lock(&handle.orders).spec.makes_other_pods(&spec) {
                    // Before this returns: the next request must not fail because of an error that is corrected now.
                    handle.service.start_over();
                }
                handle.order(|orders| {
                    orders.spec = spec;
                    orders.removed = false;
                });
                continue;
            }
            let id = spec.service.clone();
            let log = self.open_log(&spec);
            let handle = Arc::new(AppHandle::new(service, spec, log));
            // Send the event before a request can wake the app.
            self.tell(&id, AppEventKind::Declared);
            self.write_handles().by_service.insert(id, handle);
        }
        let mut handles = self.write_handles();
        for (id, handle) in &handles.by_service {
            if !order.contains(id) {
                handle.order(|orders| orders.removed = true);
            }
        }
        handles.order = order;
        drop(handles);
        self.newcomers.notify_one();
    }

    /// Starts to replace all pods of an app, one by one.
    pub fn restart(&self, app: &str) -> Result<(), NoSuchApp> {
        self.order(app, |orders| orders.restarts += 1)
    }

    /// Pins an app at a number of pods; `None`: the autoscaler decides again. 0 scales to zero now; the next request starts it
    /// again.
    pub fn scale(&self, app: &str, pin: Option<u32>) -> Result<(), NoSuchApp> {
        self.order(app, |orders| {
            orders.pin = pin;
            orders.pins += 1;
        })
    }

    /// The status of the apps, in the order of the configuration file, followed by removed apps that still stop.
    pub fn apps(&self) -> Vec<AppStatus> {
        let handles = self.read_handles();
        let listed = handles.order.iter().filter_map(|id| handles.by_service.get(id));
        let mut leaving: Vec<_> =
            handles.by_service.iter().filter(|(id, _)| !handles.order.contains(id)).collect();
        leaving.sort_by_key(|(id, _)| *id);
        let all = listed.chain(leaving.into_iter().map(|(_, handle)| handle));
        all.map(|handle| lock(&handle.status).clone()).collect()
    }

    /// The output of an app's pods.
    pub fn log(&self, app: &str) -> Option<Arc<AppLog>> {
        self.find(app).map(|handle| Arc::clone(&handle.log))
    }

    /// Subscribes to the events of all apps.
    pub fn events(&self) -> broadcast::Receiver<AppEvent> {
        self.events.subscribe()
    }

    /// Stops all pods at once, without draining, and returns when every process is gone. No pod is started any more.
    pub async fn stop(&self) {
        self.end.send_modify(|end| *end = (*end).max(End::Stop));
        let mut running = self.running.subscribe();
        // Cannot fail: `self` owns the sender.
        running.wait_for(|running| !running).await.ok();
    }

    /// Kills all pods at once.
    pub fn stop_now(&self) {
        self.end.send_replace(End::Kill);
    }

    /// The log of a new app. If its file cannot be opened, the app runs without it, and the log notes that.
    fn open_log(&self, app: &AppSpec) -> Arc<AppLog> {
        let LocalSettings { log_keep: keep, log_folder: folder, .. } = &self.settings;
        let opened = folder.as_ref().map(|folder| LogFile::open(folder, app.service.name()));
        match opened.transpose() {
            Ok(file) => AppLog::with_file(*keep, file),
            Err(error) => {
                let log = AppLog::new(*keep);
                let folder = folder.as_deref().unwrap_or(Path::new("")).display();
                let text = format!("cannot open its log file in {folder}: {error}");
                log.note(text);
                log
            }
        }
    }

    fn order(&self, app: &str, change: impl FnOnce(&mut Orders)) -> Result<(), NoSuchApp> {
        let handle = self.find(app).ok_or_else(|| NoSuchApp(app.to_owned()))?;
        handle.order(change);
        Ok(())
    }

    /// The app called `app`, unless it was removed.
    fn find(&self, app: &str) -> Option<Arc<AppHandle>> {
        let handles = self.read_handles();
        let id = handles.order.iter().find(|id| id.name() == app)?;
        handles.by_service.get(id).cloned()
    }

    fn handle(&self, service: &ServiceId) -> Option<Arc<AppHandle>> {
        self.read_handles().by_service.get(service).cloned()
    }

    /// The apps that had no owner so far.
    fn newcomers(&self) -> Vec<Arc<AppHandle>> {
        // Removed apps too: an app that was removed before it had an owner needs an owner to clean it up.
        let handles = self.read_handles();
        let newcomers =
            handles.by_service.values().filter(|handle| !handle.owned.swap(true, Ordering::Relaxed));
        newcomers.cloned().collect()
    }

    /// The last pod of a removed app is gone: removes the app. Returns false if the app was added again meanwhile.
    fn let_go(&self, handle: &AppHandle, registry: &Registry) -> bool {
        let _turn = lock(&self.changes);
        if !lock(&handle.orders).removed {
            return false;
        }
        let id = handle.service.id();
        self.write_handles().by_service.remove(id);
        registry.remove(id);
        self.tell(id, AppEventKind::Removed);
        true
    }

    fn tell(&self, service: &ServiceId, what: AppEventKind) {
        let event = AppEvent { service: service.clone(), at: self.now(), what };
        // The only error is that there is no subscriber.
        self.events.send(event).ok();
    }

    fn now(&self) -> Moment {
        self.settings.clock.now()
    }

    fn read_handles(&self) -> std::sync::RwLockReadGuard<'_, AppHandles> {
        self.handles.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_handles(&self) -> std::sync::RwLockWriteGuard<'_, AppHandles> {
        self.handles.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for LocalEngine {
    /// Sets a flag and notifies the owner, so that nothing blocks, queues up or gets lost.
    fn wake(&self, service: &ServiceId) {
        if let Some(handle) = self.read_handles().by_service.get(service) {
            handle.woken.store(true, Ordering::Release);
            handle.changed.notify_one();
        }
    }
}

impl fmt::Debug for LocalEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let apps = self.read_handles().by_service.len();
        f.debug_struct("LocalEngine").field("apps", &apps).finish_non_exhaustive()
    }
}

impl AppHandle {
    fn new(service: Arc<Service>, spec: AppSpec, log: Arc<AppLog>) -> Self {
        let status = AppStatus {
            service: spec.service.clone(),
            desired: 0,
            reason: String::new(),
            pinned: None,
            pods: Vec::new(),
            trouble: None,
            rolling: false,
            policy: spec.policy.to_string(),
            idle: None,
        };
        Self {
            service,
            log,
            woken: AtomicBool::new(false),
            orders: Mutex::new(Orders { spec, restarts: 0, pin: None, pins: 0, removed: false }),
            changed: Notify::new(),
            owned: AtomicBool::new(false),
            status: Mutex::new(status),
        }
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut lock(&self.orders));
        self.changed.notify_one();
    }
}

/// Signals on drop that [`LocalEngine::run`] has ended.
struct Running<'a>(&'a watch::Sender<bool>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

/// A UID for a new pod: 128 random bits.
fn random_uid(random: &SharedRandom) -> PodUid {
    PodUid::new(&format!("{:016x}{:016x}", random.next_u64(), random.next_u64()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
