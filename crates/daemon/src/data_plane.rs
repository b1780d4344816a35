//! The data plane of a role: registry, proxy, metrics, admin API, worker threads and the tasks that they need.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use axum::Router;
use prometheus_client::registry::Registry as Metrics;
use rouse_core::cold_start::Read;
use rouse_core::engine::Engine;
use rouse_core::registry::{self, Registry};
use rouse_net::clock::TokioClock;
use rouse_proxy::listen::{Gateway, ProxySettings, Workers};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::admin::metrics::{EventMetrics, RegistryCollector};
use crate::admin::process::ProcessCollector;
use crate::admin::{self, AdminState, DataPlaneView, PodBackend};
use crate::certificates::Certificates;
use crate::failure::{CommandError, failed};
use crate::listeners::Listeners;
use crate::process::console::Console;
use crate::process::drain::{self, DrainOutcome, DrainTimes};
use crate::process::ready::Ready;
use crate::process::signals::Signals;
use crate::role::AT_ONCE;

/// The name of the admin API's task.
pub(crate) const ADMIN: &str = "the admin API";

/// A data plane that does not serve yet, so that its role can first set routes and register metrics.
pub(crate) struct DataPlane {
    pub(crate) clock: TokioClock,
    pub(crate) registry: Arc<Registry>,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) event_metrics: EventMetrics,
    /// The metrics at `/metrics`. A role adds its own before it serves.
    pub(crate) metrics: Metrics,
}

/// The admin API of a role.
pub(crate) enum AdminApi {
    /// It shows and controls services and their pods.
    Pods(PodBackend),
    /// The role's own, with its readiness flag.
    Own(Arc<Ready>, Box<dyn FnOnce(AdminState) -> Router>),
}

/// The names of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricNames {
    /// Rouse's names only.
    Own,
    /// Rouse's names, and KEDA's in addition.
    WithKeda,
}

impl DataPlane {
    /// Builds the data plane. `engine` starts pods.
    pub(crate) fn new(
        clock: TokioClock,
        registry: registry::RegistrySettings,
        engine: Arc<dyn Engine>,
        proxy: ProxySettings,
        names: MetricNames,
    ) -> Self {
        let registry = Registry::new(registry, Arc::new(clock), engine);
        let mut metrics = Metrics::default();
        let of_proxy = match names {
            MetricNames::Own => rouse_proxy::telemetry::metrics::Metrics::new(&mut metrics),
            MetricNames::WithKeda => rouse_proxy::telemetry::metrics::Metrics::new_with_keda(&mut metrics),
        };
        let gateway = Gateway::new(proxy, of_proxy);
        let event_metrics = EventMetrics::new(&mut metrics);
        RegistryCollector::register(Arc::clone(&registry), &mut metrics);
        ProcessCollector::register(&mut metrics);
        Self { clock, registry, gateway, event_metrics, metrics }
    }

    /// Starts worker threads, admin API and tasks.
    pub(crate) fn serve(
        self,
        (listeners, certificates): (Listeners, Option<Certificates>),
        workers: Option<usize>,
        api: AdminApi,
        console: &Console,
    ) -> Result<Serving, CommandError> {
        let Self { clock, registry, gateway, event_metrics, metrics } = self;
        let (listeners, admin) = listeners.into_parts(certificates.as_ref().map(Certificates::server));
        let admin =
            TcpListener::from_std(admin.into_std()).map_err(failed("cannot listen on the admin address"))?;
        let (end, mut tasks) = (CancellationToken::new(), Tasks::default());
        let (ready, router) = match api {
            AdminApi::Pods(backend) => {
                let count_sources = matches!(backend, PodBackend::Cluster(_));
                let cold_starts =
                    cold_starts(Arc::clone(&registry), event_metrics.clone(), count_sources, console.clone());
                tasks.spawn("the reader of cold starts", cold_starts);
                let (registry, gateway) = (Arc::clone(&registry), Arc::clone(&gateway));
                let services = DataPlaneView { registry, gateway, clock: Arc::new(clock), backend };
                let ready = Arc::<Ready>::default();
                let state = AdminState { ready: Arc::clone(&ready), metrics };
                (ready, admin::router(state, Some(services)))
            }
            AdminApi::Own(ready, router) => {
                let state = AdminState { ready: Arc::clone(&ready), metrics };
                (ready, router(state))
            }
        };
        tasks.spawn(ADMIN, admin::serve(admin, router, end.clone()));
        if let Some(certificates) = certificates {
            tasks.spawn("the watch over certificates", certificates.watch(console.clone()));
        }
        let timers = Arc::clone(&registry);
        tasks.spawn("the timer", async move { timers.drive(|due| clock.sleep_until(due)).await });
        let workers = Workers::start(&gateway, listeners, worker_threads(workers))
            .map_err(failed("cannot start the threads that serve requests"))?;
        Ok(Serving {
            clock,
            registry,
            gateway,
            event_metrics,
            ready,
            workers,
            tasks,
            end,
            console: console.clone(),
        })
    }
}

/// The number of worker threads: the setting, or else one per core.
fn worker_threads(wanted: Option<usize>) -> NonZeroUsize {
    let wanted = wanted.and_then(NonZeroUsize::new);
    wanted.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
}

/// A data plane that serves.
pub(crate) struct Serving {
    pub(crate) clock: TokioClock,
    pub(crate) registry: Arc<Registry>,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) event_metrics: EventMetrics,
    pub(crate) ready: Arc<Ready>,
    pub(crate) workers: Workers,
    pub(crate) tasks: Tasks,
    /// Stops the admin API, and the role's own tasks that wait for this token.
    pub(crate) end: CancellationToken,
    pub(crate) console: Console,
}

impl Serving {
    /// Waits until a task or the worker threads end unexpectedly, and returns what ended.
    pub(crate) async fn broken(&mut self) -> String {
        tokio::select! {
            broken = self.tasks.broken() => broken,
            () = self.workers.ended() => "the threads that serve requests ended unexpectedly".to_owned(),
        }
    }

    /// Lets requests under way finish.
    pub(crate) async fn drain(&mut self, times: DrainTimes, signals: &mut Signals) -> DrainOutcome {
        let Self { clock, registry, gateway, ready, workers, console, .. } = self;
        let parts = drain::Parts { clock: *clock, registry, gateway, ready };
        drain::drain(parts, times, workers, signals, console).await
    }

    /// Closes everything at once: no request has been served yet.
    pub(crate) fn close(&mut self) -> DrainOutcome {
        self.registry.shut_down();
        self.workers.close();
        DrainOutcome { forced: false, cut: 0 }
    }

    /// Ends the worker threads, then the admin API, each within a short time.
    pub(crate) async fn end(&mut self) {
        timeout(AT_ONCE, self.workers.ended()).await.ok();
        self.end.cancel();
        timeout(AT_ONCE, self.tasks.ended(ADMIN)).await.ok();
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").finish_non_exhaustive()
    }
}

/// Tasks that must not end before the process does. Dropping them ends them.
#[derive(Debug, Default)]
pub(crate) struct Tasks(JoinSet<String>);

impl Tasks {
    /// Spawns a task that never ends by itself.
    pub(crate) fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_with_reason(async move {
            task.await;
            name.to_owned()
        });
    }

    /// Spawns a task that never ends by itself; if it does, it returns its name or the reason.
    pub(crate) fn spawn_with_reason(&mut self, task: impl Future<Output = String> + Send + 'static) {
        self.0.spawn(task);
    }

    /// Waits until a task ends, and returns which one and why.
    pub(crate) async fn broken(&mut self) -> String {
        match self.0.join_next().await {
            Some(Ok(what)) => format!("{what} ended unexpectedly"),
            Some(Err(error)) => format!("a task failed: {error}"),
            None => "all tasks have ended".to_owned(),
        }
    }

    /// Waits until the task `name` has ended.
    pub(crate) async fn ended(&mut self, name: &str) {
        self.all_ended(&[name]).await;
    }

    /// Waits until all tasks of these names have ended.
    pub(crate) async fn all_ended(&mut self, names: &[&str]) {
        let mut left = names.to_vec();
        while !left.is_empty()
            && let Some(ended) = self.0.join_next().await
        {
            let ended = ended.unwrap_or_default();
            left.retain(|name| *name != ended);
        }
    }
}

/// Reports every cold start. `count_sources`: also counts which source reported the pod ready first.
async fn cold_starts(
    registry: Arc<Registry>,
    event_metrics: EventMetrics,
    count_sources: bool,
    console: Console,
) {
    let mut read = Read::default();
    loop {
        for cold in registry.cold_starts().after(&mut read).await {
            event_metrics.cold_start(&cold);
            if let Some(source) = cold.ready_by.filter(|_| count_sources) {
                event_metrics.ready_by(source);
            }
            console.cold_start(&cold);
        }
    }
}
