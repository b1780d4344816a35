//! The parts of a running gateway, put together.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use prometheus_client::registry::Registry as Metrics;
use rouse_core::merge::Policy;
use rouse_core::registry::{self, Registry};
use rouse_kube::cluster::{self, Cluster};
use rouse_kube::connect;
use rouse_kube::route::claims::{HostOverlap, HostRules};
use rouse_kube::route::spec::DirectMode;
use rouse_net::clock::TokioClock;
use rouse_net::tls::ClientConfigs;
use rouse_proxy::access::{AccessLog, Format, Writer};
use rouse_proxy::gateway::{self, ColdStartHeaders, Gateway};
use rouse_proxy::guard;
use rouse_proxy::serve::Workers;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::certificates::Certificates;
use super::probers::Probers;
use super::routes::{Builder, Defaults};
use super::upstream::{self, Upstreams};
use super::{AT_ONCE, Doors, follow, time_of_day};
use crate::admin::metrics::{Present, Tally, Watches};
use crate::admin::process::Process;
use crate::admin::{self, NoApps, Panel, Ready};
use crate::failure::Failure;
use crate::gateway::settings::{self, Settings};
use crate::process::drain::{self, Leaver, Left, Patience};
use crate::process::files::Capacity;
use crate::process::screen::Screen;
use crate::process::signals::Signals;
use crate::process::{self, random};
use crate::up::lines;

const WORKERS_ENDED: &str = "the threads that serve requests ended unexpectedly";

/// What runs.
pub(super) struct System {
    clock: TokioClock,
    registry: Arc<Registry>,
    gateway: Arc<Gateway>,
    tally: Tally,
    ready: Arc<Ready>,
    workers: Workers,
    /// Everything was seen once. Until then requests are answered `starting`: half the truth would be 404s for the other
    /// half.
    synced: bool,
    cluster: Arc<Cluster>,
    builder: Builder,
    probers: Probers,
    screen: Screen,
    access: Option<Arc<dyn AccessLog>>,
    /// Ends the cluster's tasks and the admin API.
    end: CancellationToken,
    /// What must not end before we do; each tells its name, or why.
    tasks: JoinSet<String>,
}

impl System {
    /// Puts everything together, and lets clients in.
    pub(super) async fn start(
        settings: &Settings,
        doors: Doors,
        certificates: Option<Certificates>,
        screen: &Screen,
    ) -> Result<Self, Failure> {
        let kubernetes = &settings.kubernetes;
        let client =
            connect::connect(kubernetes.kubeconfig.as_deref(), kubernetes.context.as_deref()).await?;
        let clock = TokioClock::new();
        let cluster = Cluster::new(client, followed(settings, doors.own_addresses(), clock));
        let holds = settings.holds;
        // The cluster keeps back itself what may not be: service by service.
        let policy = Policy { manual_endpoints: true, ..Policy::default() };
        let core =
            registry::Settings { holds, wakes: settings.wakes, policy, ..registry::Settings::default() };
        let registry = Registry::new(core, Arc::new(clock), Arc::clone(&cluster) as _);
        let mut shown = Metrics::default();
        let counted = if settings.headers.keda_compat {
            rouse_proxy::metrics::Metrics::new_with_keda(&mut shown)
        } else {
            rouse_proxy::metrics::Metrics::new(&mut shown)
        };
        let access = access_log(settings.access_log)?;
        let gateway = Gateway::new(front(settings, clock, access.clone()), counted);
        let tally = Tally::new(&mut shown);
        Present::register(Arc::clone(&registry), &mut shown);
        Process::register(&mut shown);
        Watches::register(Arc::clone(&cluster), Arc::new(clock), &mut shown);
        let (doors, admin) = doors.into_parts(certificates.as_ref());
        let no_admin = |error| Failure::Io { what: "cannot listen on the admin address".to_owned(), error };
        let listener = TcpListener::from_std(admin.into_std()).map_err(no_admin)?;
        let (ready, end) = (Arc::<Ready>::default(), CancellationToken::new());
        let panel = Panel {
            registry: Arc::clone(&registry),
            apps: Arc::new(NoApps),
            cluster: Some(Arc::clone(&cluster)),
            gateway: Arc::clone(&gateway),
            clock: Arc::new(clock),
            ready: Arc::clone(&ready),
            metrics: shown,
        };
        let upstreams = Upstreams::new(settings);
        let configs = Arc::clone(upstreams.configs());
        let defaults = Defaults { timeouts: settings.timeouts, direct: settings.direct_pod_routing };
        let builder = Builder::new(Arc::clone(&registry), defaults, upstreams, &kubernetes.assigned_hosts);
        let probers = Probers::new(Arc::clone(&registry), cluster.pods(), settings.probe);

        let mut tasks = JoinSet::new();
        if let Some(certificates) = certificates {
            let watch = certificates.watch(screen.clone());
            tasks.spawn(named("the watch over certificates", watch));
        }
        tasks.spawn(named("the watch over pods' certificates", watch(configs, end.clone(), screen.clone())));
        let server = admin::serve(listener, admin::router(Arc::new(panel)), end.clone());
        tasks.spawn(named("the admin API", server));
        let happenings = follow::happenings(cluster.happenings(), tally.clone(), screen.clone());
        tasks.spawn(named("the reader of events", happenings));
        let cold_starts = follow::cold_starts(Arc::clone(&registry), tally.clone(), screen.clone());
        tasks.spawn(named("the reader of cold starts", cold_starts));
        let timers = Arc::clone(&registry);
        tasks.spawn(named("the timer", async move { timers.drive(|due| clock.sleep_until(due)).await }));
        let running = Arc::clone(&cluster).run(Arc::clone(&registry), end.clone());
        tasks
            .spawn(async { running.await.map_or_else(|error| error.to_string(), |()| "the cluster".into()) });

        let count = process::workers(settings.workers.and_then(NonZeroUsize::new));
        let no_threads =
            |error| Failure::Io { what: "cannot start the threads that serve requests".to_owned(), error };
        let workers = Workers::start(&gateway, doors, count).map_err(no_threads)?;
        let screen = screen.clone();
        Ok(Self {
            clock,
            registry,
            gateway,
            tally,
            ready,
            workers,
            synced: false,
            cluster,
            builder,
            probers,
            screen,
            access,
            end,
            tasks,
        })
    }

    /// Follows the cluster and serves, until something ends that must not. Answers what. May be dropped and called
    /// again.
    pub(super) async fn run(&mut self) -> String {
        let mut plans = self.cluster.plans();
        plans.mark_changed();
        if !self.synced {
            tokio::select! {
                () = self.cluster.synced() => {}
                () = follow::missing(&self.cluster, &self.screen) => {}
                () = self.workers.ended() => return WORKERS_ENDED.to_owned(),
                broken = broken(&mut self.tasks) => return broken,
            }
        }
        loop {
            let newest = Arc::clone(&plans.borrow_and_update());
            self.gateway.set_routes(self.builder.table(&newest));
            self.tally.keep(&self.gateway.services());
            self.probers.follow(&newest);
            self.say_ready(newest.len());
            tokio::select! {
                // The cluster is ours, and so is its sender.
                _ = plans.changed() => {}
                () = self.workers.ended() => return WORKERS_ENDED.to_owned(),
                broken = broken(&mut self.tasks) => return broken,
            }
        }
    }

    /// Requests are served from now on.
    fn say_ready(&mut self, routes: usize) {
        if std::mem::replace(&mut self.synced, true) {
            return;
        }
        self.ready.set(true);
        let routes = if routes == 1 { "1 route".to_owned() } else { format!("{routes} routes") };
        self.screen.say(format!("ready: {routes}"));
    }

    /// Lets requests under way finish. The cluster is followed meanwhile: whoever is held may still be served.
    pub(super) async fn leave(&mut self, patience: Patience, signals: &mut Signals, screen: &Screen) -> Left {
        let Self { clock, registry, gateway, ready, workers, .. } = self;
        if !self.synced {
            // No request has been served yet.
            registry.shut_down();
            workers.close();
            return Left { hurried: false, cut: 0 };
        }
        let who = Leaver { clock: *clock, registry, gateway, ready };
        drain::leave(who, patience, workers, signals, screen).await
    }

    /// Ends everything else.
    pub(super) async fn end(&mut self) {
        self.end.cancel();
        timeout(AT_ONCE, self.workers.ended()).await.ok();
        if let Some(access) = &self.access {
            access.close();
        }
        // What waits for events would wait for ever: dropping the set ends it.
    }
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("System").finish_non_exhaustive()
    }
}

/// Waits until something ends that must not. Answers what.
async fn broken(tasks: &mut JoinSet<String>) -> String {
    match tasks.join_next().await {
        Some(Ok(what)) => format!("{what} ended unexpectedly"),
        Some(Err(error)) => format!("a task broke: {error}"),
        None => "nothing runs any more".to_owned(),
    }
}

async fn named(name: &'static str, task: impl Future<Output = ()>) -> String {
    task.await;
    name.to_owned()
}

/// Reads pods' roots and our own certificates again whenever their files change.
async fn watch(configs: Arc<ClientConfigs>, cancel: CancellationToken, screen: Screen) {
    let tell = |loaded: Result<Vec<_>, _>| match loaded {
        Ok(_) => {}
        Err(error) => screen.say(lines::error(&format!("{error}; what was read before stays in use"))),
    };
    configs.watch(cancel, tell).await;
}

/// Each request on standard output, if anybody wants that.
fn access_log(wanted: settings::AccessLog) -> Result<Option<Arc<dyn AccessLog>>, Failure> {
    let format = match wanted {
        settings::AccessLog::Off => return Ok(None),
        settings::AccessLog::Json => Format::Json,
        settings::AccessLog::Combined => Format::Combined,
    };
    let failed = |error| Failure::Io { what: "cannot start the thread of the access log".to_owned(), error };
    Writer::start(io::stdout(), format, time_of_day).map(Some).map_err(failed)
}

/// What of the cluster is followed.
fn followed(settings: &Settings, own_addresses: Vec<SocketAddr>, clock: TokioClock) -> cluster::Settings {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    cluster::Settings {
        namespace: settings.kubernetes.watch_namespace.clone(),
        manual_endpoints: settings.allow_manual_endpoints,
        own_addresses,
        manual_endpoints_of: settings.manual_endpoints_of.clone(),
        hosts: HostRules {
            assigned: settings.kubernetes.assigned_hosts.clone(),
            overlap: match settings.kubernetes.host_overlap {
                settings::HostOverlap::Deny => HostOverlap::Deny,
                settings::HostOverlap::Allow => HostOverlap::Allow,
            },
        },
        direct: match settings.direct_pod_routing {
            settings::DirectPodRouting::Disabled => DirectMode::Disabled,
            settings::DirectPodRouting::ColdStartOnly => DirectMode::ColdStartOnly,
            settings::DirectPodRouting::Always => DirectMode::Always,
        },
        // In a pod this is the pod's name.
        identity: host,
        judge_tls: upstream::judge,
        ..cluster::Settings::new(Arc::new(clock), time_of_day, random())
    }
}

/// How the data plane behaves.
fn front(settings: &Settings, clock: TokioClock, access: Option<Arc<dyn AccessLog>>) -> gateway::Settings {
    let (limits, capacity) = (&settings.limits, Capacity::now());
    // A client connection beyond the files that may be open is not served.
    let connections = limits.connections.unwrap_or(capacity.connections).min(capacity.by_files);
    let pod_connections = capacity.pod_connections_for(connections);
    gateway::Settings {
        id: format!("{:016x}", random()),
        trusted: settings.headers.trusted_proxies.clone(),
        bounds: settings.holds,
        clock,
        limits: gateway::Limits {
            connections,
            idle: limits.idle_timeout,
            head: limits.header_timeout,
            heads: guard::Limits {
                head: limits.header_size,
                headers: limits.headers,
                line: limits.request_line,
                ..guard::Limits::default()
            },
            streams: limits.streams,
            stream_idle: limits.stream_idle_timeout,
            kept_per_pod: limits.idle_per_pod,
            // Idle ones must leave room for those in use.
            kept: limits.idle.min(pod_connections / 2),
            pod_connections,
            pod_connections_per_client: limits.pod_connections_per_client,
            buffers: limits.buffers.unwrap_or(capacity.buffers),
            buffers_per_connection: limits.buffers_per_connection,
            ..gateway::Limits::default()
        },
        cold_start: ColdStartHeaders {
            rouse: settings.headers.cold_start,
            keda: settings.headers.cold_start && settings.headers.keda_compat,
        },
        access,
    }
}
