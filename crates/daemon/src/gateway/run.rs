//! The role of `rouse gateway`: starts the data plane, watches the cluster, applies its routes, and drains.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rouse_config::settings::{SettingWarning, Values};
use rouse_kube::client::connect;
use rouse_kube::cluster::{Cluster, ClusterEvent};
use rouse_net::clock::TokioClock;
use rouse_net::listen::Listener;
use rouse_net::tls::ClientConfigs;
use rouse_proxy::telemetry::access_log::{AccessLog, Writer};
use rouse_register::server::RegistrationMetrics;
use tokio_util::sync::CancellationToken;

use super::load_reports::{self, ReportedRoutes};
use super::probers::Probers;
use super::routes::{RouteDefaults, RouteTableBuilder};
use super::settings as set;
use super::tls_files::LoadedCertificates;
use super::upstream::Upstreams;
use super::{own_addresses, registration};
use crate::admin::PodBackend;
use crate::admin::metrics::{CertificateCollector, WatchCollector};
use crate::cluster_events;
use crate::data_plane::{AdminApi, DataPlane, MetricNames, Serving};
use crate::failure::{CommandError, failed};
use crate::listeners::{ListenAddresses, Listeners, Purpose};
use crate::process::console::Console;
use crate::process::drain::{DrainOutcome, DrainTimes};
use crate::process::signals::Signals;
use crate::process::time_of_day;
use crate::role::{self, ConsoleOutput, Role, RunEnd};
use crate::settings as shared;
use crate::xds_listener::files::XdsFiles;
use crate::xds_listener::{XdsControlPlane, XdsListenerParts, XdsStart};

/// What a gateway does until it knows all routes.
const STARTING: &str = "requests are answered 503 (starting)";

/// Runs until a signal or a failure.
pub(super) fn run(
    values: &Values,
    warnings: &[SettingWarning],
    opened: LoadedCertificates,
) -> Result<(), CommandError> {
    let times = DrainTimes {
        delay: values.get(&set::SHUTDOWN_DELAY).into(),
        timeout: values.get(&set::DRAIN_TIMEOUT).into(),
    };
    role::run(values, ConsoleOutput::Log, times, async |console| {
        for warning in warnings {
            console.warn(&warning.to_string());
        }
        GatewayRole::start(values, open_listeners(values)?, opened, console).await
    })
}

fn open_listeners(values: &Values) -> Result<Listeners, CommandError> {
    let addresses = ListenAddresses {
        plain: values.get(&set::LISTEN),
        secure: values.get(&set::TLS_LISTEN),
        admin: values.get(&set::ADMIN),
        register: values.get(&set::REGISTER_LISTEN),
        xds: values.get(&set::XDS_LISTEN),
    };
    Listeners::open(&addresses, |error, purpose| {
        let flag = match purpose {
            Purpose::Plain => "--listen",
            Purpose::Secure => "--tls-listen",
            Purpose::Admin => "--admin",
            Purpose::Register => "--register-listen",
            Purpose::Xds => "--xds-listen",
        };
        CommandError::Failed(format!("{error}\n  the address is set by {flag}"))
    })
}

/// A running gateway.
struct GatewayRole {
    serving: Serving,
    /// True once all objects have been listed. Until then requests get 503 (starting): with half of the routes, requests for
    /// the other half would get 404.
    synced: bool,
    cluster: Arc<Cluster>,
    builder: RouteTableBuilder,
    probers: Probers,
    reported: ReportedRoutes,
    access: Option<Arc<dyn AccessLog>>,
    xds: Option<XdsControlPlane>,
}

impl GatewayRole {
    async fn start(
        values: &Values,
        mut listeners: Listeners,
        opened: LoadedCertificates,
        console: &Console,
    ) -> Result<Self, CommandError> {
        let addresses = listeners.addresses();
        opened.at_start().for_each(|warning| console.warn(&warning.to_string()));
        let kubeconfig = values.get(&shared::KUBECONFIG);
        let context = values.get(&shared::CONTEXT);
        let connect = || connect::connect(kubeconfig.as_deref(), context.as_deref());
        let (client, clock) = (connect().await?, TokioClock::new());
        let mut settings = set::cluster_settings(values, own_sockets(&addresses), clock);
        if listeners.register.is_some() {
            settings.registration_client = Some(connect().await?);
        }
        let cluster = Cluster::new(client.clone(), settings);
        let access = access_log(values)?;
        let proxy = set::proxy_settings(values, clock, access.clone());
        let names = if values.get(&set::KEDA_COMPAT) { MetricNames::WithKeda } else { MetricNames::Own };
        let engine = Arc::clone(&cluster) as _;
        let mut plane = DataPlane::new(clock, set::registry_settings(values), engine, proxy, names);
        let watched = Arc::clone(&cluster);
        WatchCollector::register(move || watched.watches(), Arc::new(clock), &mut plane.metrics);
        cluster.register_metrics(&mut plane.metrics);
        CertificateCollector::register(opened.servers(), &mut plane.metrics);
        let register = listeners
            .register
            .take()
            .map(|listener| (listener, opened.registration, RegistrationMetrics::new(&mut plane.metrics)));
        let reported = ReportedRoutes::default();
        let xds = listeners.xds.take();
        let xds =
            xds.map(|listener| xds_start(values, (listener, opened.xds), client, (&mut plane, &addresses)));
        let commands = xds.as_ref().map(XdsStart::commands);
        let routes = (&plane.registry, &reported);
        let reports = load_reports::client(values, routes, commands, clock, &mut plane.metrics)?;
        let upstreams = Upstreams::new(values);
        let configs = Arc::clone(upstreams.configs());
        let defaults =
            RouteDefaults { timeouts: set::timeouts(values), direct: values.get(&set::DIRECT_POD_ROUTING) };
        let builder = RouteTableBuilder::new(
            Arc::clone(&plane.registry),
            defaults,
            upstreams,
            &set::assigned_hosts(values),
        );
        let probers = Probers::new(Arc::clone(&plane.registry), cluster.pods(), values.get(&set::PROBE));
        let backend = AdminApi::Pods(PodBackend::Cluster(Arc::clone(&cluster)));
        let mut serving =
            plane.serve((listeners, opened.certificates), values.get(&shared::WORKERS), backend, console)?;
        follow(&mut serving, &cluster, configs);
        if let Some(register) = register {
            registration::start(values, register, &mut serving, &cluster)?;
        }
        let end = serving.end.clone();
        let xds = xds.map(|xds| xds.spawn(reports.as_ref(), &mut serving.tasks, &end)).transpose()?;
        if let Some(reports) = reports {
            // Until the very end: requests under way and held ones count during the drain.
            serving.tasks.spawn("the load reports", reports.run(end));
        }
        greet(&addresses);
        Ok(Self { serving, synced: false, cluster, builder, probers, reported, access, xds })
    }

    /// Sets ready, and logs it, at the first call: requests are served from now on.
    fn say_ready(&mut self, routes: usize) {
        if std::mem::replace(&mut self.synced, true) {
            return;
        }
        self.serving.ready.set(true);
        let routes = if routes == 1 { "1 route".to_owned() } else { format!("{routes} routes") };
        tracing::info!("ready: {routes}");
    }
}

impl Role for GatewayRole {
    async fn run(&mut self) -> RunEnd {
        let mut plans = self.cluster.plans();
        plans.mark_changed();
        if !self.synced {
            tokio::select! {
                () = self.cluster.synced() => {}
                () = cluster_events::missing(|| self.cluster.missing(), STARTING) => {}
                broken = self.serving.broken() => return RunEnd::Broken(broken),
            }
        }
        loop {
            let newest = Arc::clone(&plans.borrow_and_update());
            let table = self.builder.table(&newest);
            if let Some(xds) = &self.xds {
                xds.set_routes(&table);
            }
            self.serving.gateway.set_routes(table);
            self.serving.event_metrics.keep(&self.serving.gateway.services());
            self.probers.follow(&newest);
            self.reported.set(&newest);
            self.say_ready(newest.len());
            tokio::select! {
                // Cannot fail: we own the cluster, and it owns the sender.
                _ = plans.changed() => {}
                broken = self.serving.broken() => return RunEnd::Broken(broken),
            }
        }
    }

    fn reload(&mut self) {
        tracing::info!("settings are read at the start only; certificates are read whenever they change");
    }

    /// Watches the cluster during the drain, so that held requests can still be served.
    async fn stop(&mut self, times: DrainTimes, signals: &mut Signals) -> DrainOutcome {
        if let Some(xds) = &self.xds {
            // First: Envoys learn of another replica that this gateway takes no more requests.
            xds.close();
        }
        let drained =
            if self.synced { self.serving.drain(times, signals).await } else { self.serving.close() };
        self.serving.end().await;
        if let Some(access) = &self.access {
            access.close();
        }
        drained
    }
}

/// Spawns the tasks that follow the cluster.
fn follow(serving: &mut Serving, cluster: &Arc<Cluster>, configs: Arc<ClientConfigs>) {
    let end = serving.end.clone();
    let metrics = serving.event_metrics.clone();
    let count = move |event: &ClusterEvent| match event {
        ClusterEvent::Woken(..) => metrics.wake(true),
        ClusterEvent::WakeFailed { .. } => metrics.wake(false),
        _ => {}
    };
    serving.tasks.spawn("the reader of events", cluster_events::follow(cluster.events(), count));
    serving.tasks.spawn("the watch over pods' certificates", watch(configs, end.clone()));
    let running = Arc::clone(cluster).run(Arc::clone(&serving.registry), end);
    serving.tasks.spawn_with_reason(async {
        running.await.map_or_else(|error| error.to_string(), |()| "the cluster".to_owned())
    });
}

/// Reloads the roots and client certificates for connections to pods whenever their files change.
async fn watch(configs: Arc<ClientConfigs>, cancel: CancellationToken) {
    let report = |loaded: Result<Vec<_>, _>| match loaded {
        Ok(_) => {}
        Err(error) => {
            tracing::error!(%error, "cannot read certificates; the old ones stay in use");
        }
    };
    configs.watch(cancel, report).await;
}

/// The first lines, which scripts read.
fn greet(addresses: &ListenAddresses) {
    for address in &addresses.plain {
        tracing::info!("listening on http://{address}");
    }
    for address in &addresses.secure {
        tracing::info!("listening on https://{address}");
    }
    tracing::info!("admin on http://{}", addresses.admin);
    if let Some(address) = addresses.register {
        tracing::info!("registrations on {address}");
    }
    if let Some(address) = addresses.xds {
        tracing::info!("Envoys on {address}");
    }
}

/// The addresses at which the gateway itself can be reached.
fn own_sockets(addresses: &ListenAddresses) -> Vec<SocketAddr> {
    let own = [&addresses.admin].into_iter().chain(&addresses.register).chain(&addresses.xds);
    let all = addresses.plain.iter().chain(&addresses.secure).chain(own);
    own_addresses::sockets(&all.copied().collect::<Vec<_>>())
}

/// The control plane of Envoys, before it answers. This gateway is one of those that take requests.
fn xds_start(
    values: &Values,
    (listener, files): (Listener, XdsFiles),
    client: connect::Client,
    (plane, addresses): (&mut DataPlane, &ListenAddresses),
) -> XdsStart {
    XdsStart::new(XdsListenerParts {
        values,
        listener,
        files,
        registry: &plane.registry,
        client,
        own: own_addresses::sockets(&addresses.plain),
        most_requests: values.get(&set::MAX_HOLDS),
        clock: plane.clock,
        metrics: &mut plane.metrics,
    })
}

/// The access log on standard output, if it is on.
fn access_log(values: &Values) -> Result<Option<Arc<dyn AccessLog>>, CommandError> {
    let Some(format) = values.get(&set::ACCESS_LOG) else { return Ok(None) };
    let log = Writer::start(io::stdout(), format, time_of_day);
    log.map(|log| Some(log as _)).map_err(failed("cannot start the thread of the access log"))
}
