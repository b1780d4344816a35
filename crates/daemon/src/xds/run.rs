//! The role of `rouse xds`: reads the cluster as a gateway does, without waking and writing, and serves Envoys.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry as Metrics;
use rouse_config::settings::Values;
use rouse_core::registry::Registry;
use rouse_kube::client::connect;
use rouse_kube::cluster::Cluster;
use rouse_net::clock::TokioClock;
use rouse_net::listen::{Listener, bind};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::settings as set;
use crate::admin::metrics::{CertificateCollector, RegistryCollector, WatchCollector};
use crate::admin::process::ProcessCollector;
use crate::admin::{self, AdminState};
use crate::cluster_events;
use crate::data_plane::{ADMIN, Tasks};
use crate::failure::{CommandError, failed};
use crate::gateway::routes::{RouteDefaults, RouteTableBuilder};
use crate::gateway::settings as of_gateway;
use crate::gateway::upstream::Upstreams;
use crate::gateway::{ReportedRoutes, report_client};
use crate::process::drain::{DrainOutcome, DrainTimes};
use crate::process::ready::Ready;
use crate::process::signals::Signals;
use crate::role::{self, AT_ONCE, ConsoleOutput, Role, RunEnd};
use crate::settings as shared;
use crate::xds_listener::files::XdsFiles;
use crate::xds_listener::{LISTENER, XdsControlPlane, XdsListenerParts, XdsStart};

/// What happens until everything is known.
const STARTING: &str = "Envoys get no answer";

/// Runs until a signal or a failure.
pub(super) fn run(values: &Values, warnings: &[String], files: XdsFiles) -> Result<(), CommandError> {
    let times = DrainTimes { delay: Duration::ZERO.into(), timeout: AT_ONCE.into() };
    role::run(values, ConsoleOutput::Log, times, async |console| {
        for warning in warnings {
            console.warn(warning);
        }
        XdsRole::start(values, XdsListeners::open(values)?, files).await
    })
}

/// The open sockets.
struct XdsListeners {
    admin: Listener,
    xds: Listener,
}

impl XdsListeners {
    fn open(values: &Values) -> Result<Self, CommandError> {
        let open = |address: SocketAddr, flag: &str| {
            let failure = |error| CommandError::Failed(format!("{error}\n  the address is set by {flag}"));
            let bound = bind(&[address]).map_err(failure)?.pop();
            bound.ok_or_else(|| CommandError::Failed(format!("cannot listen on the address of {flag}")))
        };
        let admin = open(values.get(&set::ADMIN), "--admin")?;
        Ok(Self { admin, xds: open(values.get(&set::XDS_LISTEN), "--xds-listen")? })
    }
}

/// When the parts end, in this order.
#[derive(Debug, Default)]
struct Ends {
    /// Streams of Envoys, and the watches that they follow from.
    streams: CancellationToken,
    /// The admin API.
    admin: CancellationToken,
}

/// A running control plane.
struct XdsRole {
    tasks: Tasks,
    ends: Ends,
    ready: Arc<Ready>,
    cluster: Arc<Cluster>,
    builder: RouteTableBuilder,
    reported: ReportedRoutes,
    xds: XdsControlPlane,
}

impl XdsRole {
    async fn start(values: &Values, listeners: XdsListeners, files: XdsFiles) -> Result<Self, CommandError> {
        let (kubeconfig, context) = (values.get(&shared::KUBECONFIG), values.get(&shared::CONTEXT));
        let client = connect::connect(kubeconfig.as_deref(), context.as_deref()).await?;
        let clock = TokioClock::new();
        let (mut tasks, ends, mut metrics) = (Tasks::default(), Ends::default(), Metrics::default());
        ProcessCollector::register(&mut metrics);
        let cluster = Cluster::new(client.clone(), set::cluster(values, clock));
        cluster.register_metrics(&mut metrics);
        let watched = Arc::clone(&cluster);
        WatchCollector::register(move || watched.watches(), Arc::new(clock), &mut metrics);
        let registry =
            Registry::new(of_gateway::registry_settings(values), Arc::new(clock), Arc::clone(&cluster) as _);
        RegistryCollector::register(Arc::clone(&registry), &mut metrics);
        CertificateCollector::register(files.server(), &mut metrics);
        let address = listeners.xds.address();
        let xds = XdsStart::new(XdsListenerParts {
            values,
            listener: listeners.xds,
            files,
            registry: &registry,
            client,
            own: Vec::new(),
            most_requests: values.get(&of_gateway::MAX_HOLDS),
            clock,
            metrics: &mut metrics,
        });
        let reported = ReportedRoutes::default();
        let commands = Some(xds.commands());
        let reports = report_client(values, (&registry, &reported), commands, clock, &mut metrics)?;
        tracing::info!("Envoys on {address}");
        let timers = Arc::clone(&registry);
        tasks.spawn("the timer", async move { timers.drive(|due| clock.sleep_until(due)).await });
        tasks.spawn("the reader of events", cluster_events::follow(cluster.events(), |_| {}));
        let running = Arc::clone(&cluster).run(Arc::clone(&registry), ends.streams.clone());
        tasks.spawn_with_reason(async {
            running.await.map_or_else(|error| error.to_string(), |()| "the cluster".to_owned())
        });
        let xds = xds.spawn(reports.as_ref(), &mut tasks, &ends.streams)?;
        if let Some(reports) = reports {
            tasks.spawn("the load reports", reports.run(ends.streams.clone()));
        }
        let defaults = RouteDefaults {
            timeouts: of_gateway::timeouts(values),
            direct: values.get(&of_gateway::DIRECT_POD_ROUTING),
        };
        let assigned = of_gateway::assigned_hosts(values);
        let builder = RouteTableBuilder::new(registry, defaults, Upstreams::new(values), &assigned);
        let ready = Arc::<Ready>::default();
        let admin_address = listeners.admin.address();
        let listener = TcpListener::from_std(listeners.admin.into_std())
            .map_err(failed("cannot listen on the admin address"))?;
        let state = AdminState { ready: Arc::clone(&ready), metrics };
        tasks.spawn(ADMIN, admin::serve(listener, admin::router(state, None), ends.admin.clone()));
        tracing::info!("admin on http://{admin_address}");
        Ok(Self { tasks, ends, ready, cluster, builder, reported, xds })
    }
}

impl Role for XdsRole {
    async fn run(&mut self) -> RunEnd {
        let Self { tasks, ready, cluster, builder, reported, xds, .. } = self;
        let missing = || [cluster.missing(), xds.missing()].concat();
        if !ready.get() {
            tokio::select! {
                () = cluster.synced() => {}
                () = cluster_events::missing(missing, STARTING) => {}
                broken = tasks.broken() => return RunEnd::Broken(broken),
            }
        }
        let mut plans = cluster.plans();
        plans.mark_changed();
        loop {
            let newest = Arc::clone(&plans.borrow_and_update());
            xds.set_routes(&builder.table(&newest));
            reported.set(&newest);
            tokio::select! {
                () = xds.opened(), if !ready.get() => {
                    ready.set(true);
                    tracing::info!("ready: {} routes", newest.len());
                }
                () = cluster_events::missing(missing, STARTING), if !ready.get() => {}
                // Cannot fail: we own the cluster, and it owns the sender.
                _ = plans.changed() => {}
                broken = tasks.broken() => return RunEnd::Broken(broken),
            }
        }
    }

    fn reload(&mut self) {
        tracing::info!("settings are read at the start only; certificates are read whenever they change");
    }

    /// Ends the streams: Envoys keep what they have, and turn to another replica.
    async fn stop(&mut self, _: DrainTimes, signals: &mut Signals) -> DrainOutcome {
        self.ready.set(false);
        let Self { tasks, ends, .. } = self;
        let all = async {
            ends.streams.cancel();
            timeout(AT_ONCE, tasks.ended(LISTENER)).await.ok();
            ends.admin.cancel();
            timeout(AT_ONCE, tasks.ended(ADMIN)).await.ok();
        };
        tokio::select! {
            () = all => DrainOutcome { forced: false, cut: 0 },
            () = signals.leave() => DrainOutcome { forced: true, cut: 0 },
        }
    }
}
