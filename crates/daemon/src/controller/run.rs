//! The role of `rouse controller`: takes part in the election, takes reports, answers KEDA, and scales while it leads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry as Metrics;
use rouse_config::settings::{SettingWarning, Values};
use rouse_core::time::Clock;
use rouse_grpc::GrpcTransport;
use rouse_grpc::report::server::ReportMetrics;
use rouse_grpc::scaler::{RouteLoadStore, ScalerMetrics, ScalerServer, ScalerServerParts};
use rouse_kube::autoscale::{AutoscaleCollector, AutoscaleController, AutoscaleMetrics};
use rouse_kube::client::connect;
use rouse_kube::client::watch::{WatchReport, WatchState};
use rouse_kube::lease::{LeaderElection, Leadership};
use rouse_kube::slices::SliceController;
use rouse_net::clock::TokioClock;
use rouse_net::listen::{Listener, bind};
use rouse_net::tls::ServerTls;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::admin;
use super::load_report_listener::{ReportCertificate, ReportListener};
use super::publish_route_loads;
use super::settings as set;
use crate::admin::metrics::{CertificateCollector, WatchCollector};
use crate::admin::process::ProcessCollector;
use crate::admin::{self as shared_admin, AdminState};
use crate::cluster_events;
use crate::data_plane::{ADMIN, Tasks};
use crate::failure::{CommandError, failed};
use crate::process::drain::{DrainOutcome, DrainTimes};
use crate::process::ready::Ready;
use crate::process::signals::Signals;
use crate::role::{self, AT_ONCE, ConsoleOutput, Role, RunEnd};
use crate::settings::{CONTEXT, KUBECONFIG};

/// How long a replica that has seen all objects waits for the gateways' load until it is ready without it: a gateway that never
/// reports must not stop the rollout of the controller.
const LOAD_WAIT: Duration = Duration::from_secs(30);
/// The name of the autoscaler's task.
const AUTOSCALER: &str = "the autoscaler";
/// The name of the task of the controller of `EndpointSlices`.
const SLICES: &str = "the controller of EndpointSlices";
/// The names of the tasks of the listeners.
const REPORTS: &str = "the listener for load reports";
const SCALER: &str = "the listener for KEDA";
/// How long calls and writes under way may take to end. Longer than one write of a scale: nothing may be written after the Lease is
/// released.
const LAST_WRITES: Duration = Duration::from_secs(12);
/// The name of the task of the leader election.
const ELECTION: &str = "the leader election";
/// What a controller does not do before it knows all objects.
const STARTING: &str = "nothing is scaled, and KEDA gets no answer";

/// Runs until a signal or a failure.
pub(super) fn run(
    values: &Values,
    warnings: &[SettingWarning],
    files: ReportCertificate,
) -> Result<(), CommandError> {
    let times = DrainTimes { delay: Duration::ZERO.into(), timeout: AT_ONCE.into() };
    role::run(values, ConsoleOutput::Log, times, async |console| {
        for warning in warnings.iter().map(ToString::to_string).chain(files.warnings()) {
            console.warn(&warning);
        }
        ControllerRole::start(values, ControllerListeners::open(values)?, files).await
    })
}

/// The open sockets.
struct ControllerListeners {
    admin: Listener,
    report: Option<Listener>,
    scaler: Option<Listener>,
}

impl ControllerListeners {
    fn open(values: &Values) -> Result<Self, CommandError> {
        let open = |address: Option<SocketAddr>, flag: &str| {
            let failure = |error| CommandError::Failed(format!("{error}\n  the address is set by {flag}"));
            bind(address.as_slice()).map_err(failure).map(|mut bound| bound.pop())
        };
        let admin = open(Some(values.get(&set::ADMIN)), "--admin")?;
        let admin =
            admin.ok_or_else(|| CommandError::Failed("cannot listen on the admin address".to_owned()))?;
        let report = open(values.get(&set::REPORT_LISTEN), "--report-listen")?;
        let scaler = open(values.get(&set::SCALER_LISTEN), "--scaler-listen")?;
        Ok(Self { admin, report, scaler })
    }
}

/// When the parts of a controller end, in this order.
#[derive(Debug, Default)]
struct Ends {
    /// Streams of gateways and KEDA.
    calls: CancellationToken,
    /// The autoscaler, which may be writing.
    scaling: CancellationToken,
    /// The election, which releases the Lease: nothing may write after it.
    election: CancellationToken,
    /// The admin API.
    admin: CancellationToken,
}

/// A running controller.
struct ControllerRole {
    tasks: Tasks,
    ends: Ends,
    ready: Arc<Ready>,
    autoscaler: Arc<AutoscaleController>,
    /// Whether the load of all routes is known.
    serving: watch::Receiver<bool>,
    /// The tasks that end before the Lease is released.
    first: Vec<&'static str>,
    /// Whether it takes part in the election.
    elects: bool,
}

impl ControllerRole {
    async fn start(
        values: &Values,
        listeners: ControllerListeners,
        files: ReportCertificate,
    ) -> Result<Self, CommandError> {
        let (kubeconfig, context) = (values.get(&KUBECONFIG), values.get(&CONTEXT));
        let connect = || connect::connect(kubeconfig.as_deref(), context.as_deref());
        let (client, clock) = (connect().await?, TokioClock::new());
        let (mut tasks, ends, mut metrics) = (Tasks::default(), Ends::default(), Metrics::default());
        ProcessCollector::register(&mut metrics);

        let elects = values.get(&set::AUTOSCALE) || values.get(&set::ENDPOINT_SLICES);
        let leadership = if elects {
            let election = LeaderElection::new(client.clone(), set::lease(values, clock));
            let leadership = election.leadership();
            tasks.spawn(
                "the reader of the election's events",
                cluster_events::follow(election.events(), |_| {}),
            );
            tasks.spawn(ELECTION, election.run(ends.election.clone()));
            leadership
        } else {
            Leadership::never(Arc::new(clock))
        };
        let scales = values.get(&set::AUTOSCALE);
        let may_scale = if scales { leadership.clone() } else { Leadership::never(Arc::new(clock)) };
        let of_autoscaler = AutoscaleMetrics::new(&mut metrics);
        let autoscaler =
            AutoscaleController::new(client, set::autoscaler(values, clock), may_scale, of_autoscaler);
        AutoscaleCollector::register(Arc::clone(&autoscaler), &mut metrics);
        tasks.spawn("the reader of events", cluster_events::follow(autoscaler.events(), |_| {}));
        let running = Arc::clone(&autoscaler).run(ends.scaling.clone());
        tasks.spawn_with_reason(async {
            running.await.map_or_else(|error| error.to_string(), |()| AUTOSCALER.to_owned())
        });

        let mut parts = Parts { values, clock, tasks: &mut tasks, ends: &ends, metrics: &mut metrics };
        let slices = if values.get(&set::ENDPOINT_SLICES) {
            Some(parts.slices(connect().await?, leadership))
        } else {
            None
        };
        parts.watches(&autoscaler, slices.as_ref());
        parts.reports(listeners.report, files, &autoscaler, connect).await?;
        let serving = parts.scaler(listeners.scaler, &autoscaler)?;
        let first = [
            Some(AUTOSCALER),
            slices.as_ref().map(|_| SLICES),
            values.get(&set::REPORT_LISTEN).map(|_| REPORTS),
            values.get(&set::SCALER_LISTEN).map(|_| SCALER),
        ];
        let first = first.into_iter().flatten().collect();
        let ready = Arc::<Ready>::default();
        let admin_address = listeners.admin.address();
        let listener = TcpListener::from_std(listeners.admin.into_std())
            .map_err(failed("cannot listen on the admin address"))?;
        let state = AdminState { ready: Arc::clone(&ready), metrics };
        let router = admin::router(state, Arc::clone(&autoscaler));
        tasks.spawn(ADMIN, shared_admin::serve(listener, router, ends.admin.clone()));
        tracing::info!("admin on http://{admin_address}");
        Ok(Self { tasks, ends, ready, autoscaler, serving, first, elects })
    }

    /// Waits until the replica can answer.
    async fn is_ready(autoscaler: &AutoscaleController, mut serving: watch::Receiver<bool>) {
        tokio::select! {
            () = autoscaler.synced() => {}
            () = cluster_events::missing(|| autoscaler.missing(), STARTING) => {}
        }
        if timeout(LOAD_WAIT, serving.wait_for(|serving| *serving)).await.is_err() {
            tracing::warn!(
                "no gateway reports its load, or not all do: nothing is scaled down, and KEDA gets no answer; check --report-to of \
                 the gateways (docs/controller.md)"
            );
        }
    }
}

/// What the starts of the parts share.
struct Parts<'a> {
    values: &'a Values,
    clock: TokioClock,
    tasks: &'a mut Tasks,
    ends: &'a Ends,
    metrics: &'a mut Metrics,
}

impl Parts<'_> {
    /// Starts the controller of `EndpointSlices`.
    fn slices(&mut self, client: connect::Client, leadership: Leadership) -> Arc<SliceController> {
        let slices = SliceController::new(client, set::slices(self.values, self.clock, leadership));
        slices.register_metrics(self.metrics);
        let events = cluster_events::follow(slices.events(), |_| {});
        self.tasks.spawn("the reader of the slices' events", events);
        let running = Arc::clone(&slices).run(self.ends.scaling.clone());
        self.tasks.spawn_with_reason(async {
            running.await.map_or_else(|error| error.to_string(), |()| SLICES.to_owned())
        });
        slices
    }

    /// Exports the state of all watches.
    fn watches(&mut self, autoscaler: &Arc<AutoscaleController>, slices: Option<&Arc<SliceController>>) {
        let (autoscaler, slices) = (Arc::clone(autoscaler), slices.cloned());
        let read = move || {
            let of_slices = slices.iter().flat_map(|slices| slices.watches());
            merged(autoscaler.watches().into_iter().chain(of_slices))
        };
        WatchCollector::register(read, Arc::new(self.clock), self.metrics);
    }

    /// Starts the listener for load reports.
    async fn reports<F: Future<Output = Result<connect::Client, connect::ConnectError>>>(
        &mut self,
        listener: Option<Listener>,
        files: ReportCertificate,
        autoscaler: &Arc<AutoscaleController>,
        connect: impl FnOnce() -> F,
    ) -> Result<(), CommandError> {
        let (Some(listener), Some(tls)) = (listener, files.tls) else { return Ok(()) };
        CertificateCollector::register([("reports", Arc::clone(&tls))], self.metrics);
        self.tasks
            .spawn("the watch over the certificate of reports", watch(Arc::clone(&tls), &self.ends.admin));
        tracing::info!("load reports on https://{}", listener.address());
        let listener =
            TcpListener::from_std(listener.into_std()).map_err(failed("cannot listen for load reports"))?;
        let serving = ReportListener {
            listener,
            tls,
            autoscaler: Arc::clone(autoscaler),
            clock: Arc::new(self.clock),
            metrics: ReportMetrics::new(self.metrics),
        };
        // With a connection of its own: a flood of tokens must not delay the watches and writes.
        let client = connect().await?;
        let task = serving.serve(self.values.clone(), client, self.ends.calls.clone());
        self.tasks.spawn(REPORTS, task);
        Ok(())
    }

    /// Starts the listener for KEDA, if there is one. Returns whether the load of all routes is known.
    fn scaler(
        &mut self,
        listener: Option<Listener>,
        autoscaler: &Arc<AutoscaleController>,
    ) -> Result<watch::Receiver<bool>, CommandError> {
        let (board, known) = (RouteLoadStore::default(), watch::Sender::new(false));
        let serving = known.subscribe();
        let publish = publish_route_loads::publish(Arc::clone(autoscaler), board.clone(), known);
        self.tasks.spawn("the board of routes", publish);
        let Some(listener) = listener else { return Ok(serving) };
        let parts = ScalerServerParts {
            loads: Arc::new(board),
            serving: serving.clone(),
            clock: Arc::new(self.clock) as Arc<dyn Clock>,
            metrics: ScalerMetrics::new(self.metrics),
        };
        tracing::info!("KEDA's external scaler on {}", listener.address());
        let listener =
            TcpListener::from_std(listener.into_std()).map_err(failed("cannot listen for KEDA"))?;
        let server = ScalerServer::new(parts, self.ends.calls.clone());
        self.tasks.spawn(SCALER, async move {
            server.serve(listener, GrpcTransport::Plain).await;
        });
        Ok(serving)
    }
}

/// Reloads the certificate of the report listener whenever its files change.
fn watch(tls: Arc<ServerTls>, end: &CancellationToken) -> impl Future<Output = ()> + Send + 'static {
    tls.watch(end.clone(), |loaded| {
        if let Err(error) = loaded {
            tracing::error!(%error, "cannot read the certificate for load reports; the old one stays in use");
        }
    })
}

impl Role for ControllerRole {
    async fn run(&mut self) -> RunEnd {
        let Self { tasks, ready, autoscaler, serving, .. } = self;
        if !ready.get() {
            tokio::select! {
                () = Self::is_ready(autoscaler, serving.clone()) => {
                    ready.set(true);
                    tracing::info!("ready");
                }
                broken = tasks.broken() => return RunEnd::Broken(broken),
            }
        }
        RunEnd::Broken(tasks.broken().await)
    }

    fn reload(&mut self) {
        tracing::info!("settings are read at the start only; the certificate is read whenever it changes");
    }

    /// Ends calls first, so that gateways and KEDA turn to another replica, and scaling; and when both have ended, releases the Lease.
    async fn stop(&mut self, _: DrainTimes, signals: &mut Signals) -> DrainOutcome {
        self.ready.set(false);
        let Self { tasks, ends, first, elects, .. } = self;
        let all = async {
            ends.calls.cancel();
            ends.scaling.cancel();
            timeout(LAST_WRITES, tasks.all_ended(first)).await.ok();
            ends.election.cancel();
            if *elects {
                timeout(AT_ONCE, tasks.ended(ELECTION)).await.ok();
            }
            ends.admin.cancel();
            timeout(AT_ONCE, tasks.ended(ADMIN)).await.ok();
        };
        tokio::select! {
            () = all => DrainOutcome { forced: false, cut: 0 },
            () = signals.leave() => DrainOutcome { forced: true, cut: 0 },
        }
    }
}

/// The reports of several sets of watches, one for each kind: of two, the one that is broken.
fn merged(reports: impl Iterator<Item = WatchReport>) -> Vec<WatchReport> {
    let mut all: Vec<WatchReport> = Vec::new();
    for report in reports {
        match all.iter_mut().find(|known| known.kind == report.kind) {
            None => all.push(report),
            Some(known) if matches!(report.state, WatchState::Broken { .. }) => *known = report,
            Some(known) => known.lists += report.lists,
        }
    }
    all
}
