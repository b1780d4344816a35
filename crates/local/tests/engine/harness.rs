//! A test bench for the local engine: the engine with its registry, and helpers to wait for events and states.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rouse_core::endpoint::{Endpoint, PodUid, PortName, ServiceId, State};
use rouse_core::engine::Engine as _;
use rouse_core::registry::{self, Registry};
use rouse_core::scale;
use rouse_core::service::{Port, Service, Slot, SlotRequest};
use rouse_core::snapshot::{ConcurrencyLimits, PortView, Snapshot};
use rouse_local::command::CommandSpec;
use rouse_local::engine::{
    AppEvent, AppEventKind, AppSpec, AppStatus, LocalEngine, LocalSettings, PORT_NAME, PortChoice, Readiness,
    SidecarLauncher,
};
use rouse_local::process::Launcher;
use rouse_net::clock::TokioClock;
use rouse_net::random::system_seed;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_rouse-local-helper");
/// Longer than any step takes, also on a busy machine.
pub(crate) const GENEROUS: Duration = Duration::from_secs(30);
/// Long enough to notice an unwanted event.
pub(crate) const A_WHILE: Duration = Duration::from_millis(400);

/// An app that serves.
pub(crate) fn server(name: &str) -> AppSpec {
    app(name, &[HELPER, "serve"])
}

/// An app that runs a shell script.
pub(crate) fn script(name: &str, script: &str) -> AppSpec {
    app(name, &["sh", "-c", script])
}

/// A script that becomes a server.
pub(crate) fn serve_after(first: &str) -> String {
    format!("{first}; exec {HELPER} serve")
}

pub(crate) fn app(name: &str, argv: &[&str]) -> AppSpec {
    AppSpec {
        service: ServiceId::new("local", name).unwrap(),
        command: CommandSpec {
            argv: argv.iter().map(ToString::to_string).collect(),
            env: BTreeMap::new(),
            workdir: "/".into(),
        },
        port: PortChoice::Auto,
        h2c: false,
        readiness: Readiness::Tcp,
        probe_interval: Duration::from_secs(1),
        policy: policy(|_| {}),
        concurrency: ConcurrencyLimits::default(),
        stop_grace: GENEROUS,
        sidecar: false,
    }
}

/// The wall clock: it always shows Monday, 2026-01-05 08:30 UTC.
fn monday_morning() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_mins(29_460_030)
}

/// A policy that never scales to zero within a test, with changes.
pub(crate) fn policy(change: impl FnOnce(&mut scale::ScaleSettings)) -> scale::ScalePolicy {
    let mut settings = scale::ScaleSettings {
        max: 5,
        idle_after: Duration::from_mins(10),
        ..scale::ScaleSettings::default()
    };
    change(&mut settings);
    (&settings).try_into().unwrap()
}

pub(crate) struct Bench {
    pub(crate) engine: Arc<LocalEngine>,
    pub(crate) registry: Arc<Registry>,
    events: broadcast::Receiver<AppEvent>,
    tasks: JoinSet<()>,
}

impl Bench {
    /// An engine that runs these apps.
    pub(crate) fn new(apps: impl IntoIterator<Item = AppSpec>) -> Self {
        Self::with_sidecars(apps, None)
    }

    /// An engine that runs these apps, and starts their sidecars this way.
    pub(crate) fn with_sidecars(
        apps: impl IntoIterator<Item = AppSpec>,
        sidecar: Option<SidecarLauncher>,
    ) -> Self {
        let clock = TokioClock::new();
        let engine = LocalEngine::new(LocalSettings {
            launcher: Launcher::new(HELPER, ["guard"]),
            clock,
            seed: system_seed(),
            log_keep: 1 << 20,
            log_folder: None,
            sidecar,
            wall_clock: monday_morning,
        });
        let registry =
            Registry::new(registry::RegistrySettings::default(), Arc::new(clock), Arc::clone(&engine) as _);
        let mut tasks = JoinSet::new();
        let driven = Arc::clone(&registry);
        tasks.spawn(async move { driven.drive(|moment| clock.sleep_until(moment)).await });
        tasks.spawn(Arc::clone(&engine).run(Arc::clone(&registry)));
        let bench = Self { events: engine.events(), engine, registry, tasks };
        bench.apply(apps);
        bench
    }

    pub(crate) fn apply(&self, apps: impl IntoIterator<Item = AppSpec>) {
        self.engine.apply(&self.registry, apps.into_iter().collect());
    }

    pub(crate) fn service(&self, app: &str) -> Arc<Service> {
        self.registry.get(&ServiceId::new("local", app).unwrap()).expect("it is declared")
    }

    pub(crate) fn port(&self, app: &str) -> Arc<Port> {
        self.service(app).port(&PortName::new(PORT_NAME)).unwrap()
    }

    /// A request that gets a pod.
    pub(crate) async fn request(&self, app: &str) -> Slot {
        let port = self.port(app);
        let acquired = port.acquire(SlotRequest::default(), pending());
        let slot = timeout(GENEROUS, acquired).await;
        slot.unwrap_or_else(|_| panic!("no pod: {:?}", self.status(app))).unwrap()
    }

    /// A request that waits for as long as the bench lives.
    pub(crate) fn wait_in_line(&mut self, app: &str) {
        let port = self.port(app);
        self.tasks.spawn(async move {
            let slot = port.acquire(SlotRequest::default(), pending()).await;
            let _kept = slot;
            pending::<()>().await;
        });
    }

    pub(crate) fn wake(&self, app: &str) {
        self.engine.wake(&ServiceId::new("local", app).unwrap());
    }

    pub(crate) fn status(&self, app: &str) -> AppStatus {
        self.engine.apps().into_iter().find(|status| status.service.name() == app).expect("it is there")
    }

    /// Waits for an event that matches, and returns it with all events before it.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        mut is_it: impl FnMut(&str, &AppEventKind) -> bool,
    ) -> Vec<AppEventKind> {
        let mut seen = Vec::new();
        let wait = async {
            loop {
                let event = self.events.recv().await.unwrap();
                let it = is_it(event.service.name(), &event.what);
                seen.push(event.what);
                if it {
                    return;
                }
            }
        };
        assert!(timeout(GENEROUS, wait).await.is_ok(), "not within {GENEROUS:?}: {what}; only {seen:#?}");
        seen
    }

    /// The events within [`A_WHILE`].
    pub(crate) async fn meanwhile(&mut self) -> Vec<AppEventKind> {
        let mut seen = Vec::new();
        timeout(A_WHILE, async {
            while let Ok(event) = self.events.recv().await {
                seen.push(event.what);
            }
        })
        .await
        .ok();
        seen
    }

    /// Waits until the status of an app matches.
    pub(crate) async fn becomes(
        &self,
        app: &str,
        what: &str,
        mut is_it: impl FnMut(&AppStatus) -> bool,
    ) -> AppStatus {
        let mut ticks = interval(Duration::from_millis(5));
        let wait = async {
            loop {
                let status = self.status(app);
                if is_it(&status) {
                    return status;
                }
                ticks.tick().await;
            }
        };
        timeout(GENEROUS, wait).await.unwrap_or_else(|_| panic!("never {what}: {:#?}", self.status(app)))
    }

    /// Waits until the app has exactly `count` pods, all ready.
    pub(crate) async fn ready(&self, app: &str, count: usize) -> AppStatus {
        let ready = rouse_local::engine::PodStage::Ready;
        let is_it = |status: &AppStatus| {
            status.pods.len() == count && status.pods.iter().all(|pod| pod.phase == ready)
        };
        self.becomes(app, &format!("{count} ready pods"), is_it).await
    }

    /// The engine stops, and leaves nothing behind.
    pub(crate) async fn end(self) {
        let pids: Vec<u32> =
            self.engine.apps().iter().flat_map(|app| app.pods.iter().map(|pod| pod.pid)).collect();
        timeout(GENEROUS, self.engine.stop()).await.expect("it does not stop");
        assert_eq!(self.engine.apps().iter().map(|app| app.pods.len()).sum::<usize>(), 0);
        for pid in pids {
            assert!(!is_alive(pid), "{pid} is left");
        }
    }
}

/// A port that is free on one loopback address, and so probably on others.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

pub(crate) fn is_alive(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

pub(crate) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

pub(crate) fn uids(status: &AppStatus) -> Vec<PodUid> {
    status.pods.iter().map(|pod| pod.uid.clone()).collect()
}

pub(crate) fn pids(status: &AppStatus) -> Vec<u32> {
    status.pods.iter().map(|pod| pod.pid).collect()
}

pub(crate) fn endpoints(snapshot: &Snapshot) -> Vec<Arc<Endpoint>> {
    snapshot.ports.iter().flat_map(PortView::endpoints).cloned().collect()
}

/// How many endpoints of the service are in this state.
pub(crate) fn count(service: &Service, state: State) -> usize {
    endpoints(&service.snapshot()).iter().filter(|endpoint| endpoint.state == state).count()
}

pub(crate) fn is_scaled_to_zero(what: &AppEventKind) -> bool {
    matches!(what, AppEventKind::Scaled { to: 0, .. })
}

pub(crate) fn is_started(what: &AppEventKind) -> bool {
    matches!(what, AppEventKind::Started { .. })
}

pub(crate) fn is_ready(what: &AppEventKind) -> bool {
    matches!(what, AppEventKind::Ready { .. })
}

pub(crate) fn is_stopping(what: &AppEventKind) -> bool {
    matches!(what, AppEventKind::Stopping { .. })
}

pub(crate) fn is_exited(what: &AppEventKind) -> bool {
    matches!(what, AppEventKind::Exited { .. })
}
