//! The parts of a running `rouse up`, put together.

use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;

use prometheus_client::registry::Registry as Metrics;
use rouse_core::hold::Bounds;
use rouse_core::registry::{Registry, Settings};
use rouse_local::engine::{self, LocalEngine};
use rouse_local::process::Launcher;
use rouse_net::clock::TokioClock;
use rouse_net::tls::ServerTls;
use rouse_proxy::gateway::{self, Gateway};
use rouse_proxy::headers::TrustedProxies;
use rouse_proxy::serve::Workers;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::certificates::{self, Certificates};
use super::doors::Doors;
use super::follow::{self, Outputs};
use super::lines;
use super::plan;
use super::source::Source;
use crate::admin::metrics::{Present, Tally};
use crate::admin::process::Process;
use crate::admin::{self, Panel, Ready};
use crate::args::{GUARDIAN, Up};
use crate::config::Config;
use crate::process::files::Capacity;
use crate::process::screen::Screen;
use crate::process::{self, random};

/// What the admin API is called among the tasks.
const ADMIN: &str = "the admin API";

/// What runs.
pub(super) struct System {
    pub(super) clock: TokioClock,
    pub(super) registry: Arc<Registry>,
    pub(super) engine: Arc<LocalEngine>,
    pub(super) gateway: Arc<Gateway>,
    pub(super) workers: Workers,
    pub(super) ready: Arc<Ready>,
    /// Ends the admin server.
    end_admin: CancellationToken,
    /// What must not end before we do; each tells its name when it does.
    tasks: JoinSet<&'static str>,
    /// The TLS listener's certificates.
    tls: Option<Arc<ServerTls>>,
    pub(super) outputs: Outputs,
}

impl System {
    /// Puts everything together and opens the doors.
    pub(super) fn start(
        up: &Up,
        source: &Source,
        config: &Config,
        (doors, certificates): (Doors, Option<Certificates>),
        screen: &Screen,
    ) -> io::Result<Self> {
        let secure = doors.secure_address();
        let greeting = lines::greeting(source, config, &doors.addresses(), secure, doors.admin_address());
        let (tls, warnings) = certificates.map(|it| (it.server, it.warnings)).unzip();
        let (doors, admin) = doors.into_parts(tls.as_ref());
        let clock = TokioClock::new();
        let launcher = Launcher::this_program([GUARDIAN])?;
        let (log_keep, log_folder) = (config.logs.keep, source.log_folder(config));
        let engine =
            LocalEngine::new(engine::Settings { launcher, clock, seed: random(), log_keep, log_folder });
        let holds = bounds(up, Capacity::now());
        let settings = Settings { holds, ..Settings::default() };
        let registry = Registry::new(settings, Arc::new(clock), Arc::clone(&engine) as _);
        let mut shown = Metrics::default();
        let gateway = Gateway::new(front(up, clock), rouse_proxy::metrics::Metrics::new(&mut shown));
        let tally = Tally::new(&mut shown);
        Present::register(Arc::clone(&registry), &mut shown);
        Process::register(&mut shown);
        let (ready, end_admin) = (Arc::<Ready>::default(), CancellationToken::new());
        let panel = Panel {
            registry: Arc::clone(&registry),
            apps: Arc::clone(&engine) as _,
            cluster: None,
            gateway: Arc::clone(&gateway),
            clock: Arc::new(clock),
            ready: Arc::clone(&ready),
            metrics: shown,
        };
        let listener = TcpListener::from_std(admin.into_std())?;
        // Before anything happens that they tell.
        let told = engine.events();
        let apps = plan::apps(config, source);
        let missing = plan::warnings(&apps);
        engine.apply(&registry, apps);
        gateway.set_routes(plan::routes(config, &registry));
        let workers = Workers::start(&gateway, doors, process::workers(up.workers))?;

        // Before anything that has something to tell.
        for line in greeting {
            screen.say(line);
        }
        certificates::warn(&warnings.unwrap_or_default(), screen);
        for warning in &missing {
            screen.say(lines::warning(warning));
        }
        let mut tasks = JoinSet::new();
        if let Some(tls) = &tls {
            tasks.spawn(named(
                "the watch over certificates",
                certificates::watch(Arc::clone(tls), screen.clone()),
            ));
        }
        let server = admin::serve(listener, admin::router(Arc::new(panel)), end_admin.clone());
        tasks.spawn(named(ADMIN, server));
        let events = follow::events(told, Arc::clone(&registry), tally.clone(), screen.clone());
        tasks.spawn(named("the reader of events", events));
        let cold_starts = follow::cold_starts(Arc::clone(&registry), tally, screen.clone());
        tasks.spawn(named("the reader of cold starts", cold_starts));
        let timers = Arc::clone(&registry);
        tasks.spawn(named("the timer", async move { timers.drive(|due| clock.sleep_until(due)).await }));
        // Last: whatever fails before leaves no pod behind.
        tasks.spawn(named("the engine", Arc::clone(&engine).run(Arc::clone(&registry))));

        let outputs = Outputs::new(screen.clone());
        let mut system =
            Self { clock, registry, engine, gateway, workers, ready, end_admin, tasks, tls, outputs };
        system.follow(config);
        system.ready.set(true);
        Ok(system)
    }

    /// Another configuration. New services are there before routes lead to them, and old ones go on until their
    /// requests are done.
    pub(super) fn apply(&mut self, config: &Config, source: &Source, screen: &Screen) {
        if let (Some(server), Some(tls)) = (&self.tls, &config.tls) {
            certificates::replace(server, source, tls, screen);
        }
        let apps = plan::apps(config, source);
        for warning in &plan::warnings(&apps) {
            screen.say(lines::warning(warning));
        }
        self.engine.apply(&self.registry, apps);
        self.gateway.set_routes(plan::routes(config, &self.registry));
        self.follow(config);
    }

    fn follow(&mut self, config: &Config) {
        let names = config.apps.iter().map(|app| app.name.as_str());
        let logs = names.filter_map(|name| Some((name.to_owned(), self.engine.log(name)?)));
        self.outputs.follow(logs.collect::<Vec<_>>());
    }

    /// Waits until something ends that must not. Answers what.
    pub(super) async fn broken(&mut self) -> String {
        let ended = tokio::select! {
            ended = self.tasks.join_next() => ended,
            () = self.workers.ended() => return "the threads that serve requests ended unexpectedly".to_owned(),
        };
        match ended {
            Some(Ok(name)) => format!("{name} ended unexpectedly"),
            Some(Err(error)) => format!("a task broke: {error}"),
            None => "nothing runs any more".to_owned(),
        }
    }

    /// Ends the admin API.
    pub(super) async fn close_admin(&mut self) {
        self.end_admin.cancel();
        while let Some(ended) = self.tasks.join_next().await
            && ended.ok() != Some(ADMIN)
        {}
    }
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("System").finish_non_exhaustive()
    }
}

async fn named(name: &'static str, task: impl Future<Output = ()>) -> &'static str {
    task.await;
    name
}

/// How the gateway behaves.
fn front(up: &Up, clock: TokioClock) -> gateway::Settings {
    let capacity = Capacity::now();
    let connections = up.max_connections.map_or(capacity.connections, NonZeroUsize::get);
    let connections = connections.min(capacity.by_files);
    let pod_connections = capacity.pod_connections_for(connections);
    gateway::Settings {
        id: format!("{:016x}", random()),
        trusted: up.trusted_proxies.clone().unwrap_or_else(TrustedProxies::private),
        bounds: bounds(up, capacity),
        clock,
        limits: gateway::Limits {
            connections,
            idle: up.idle_timeout.get(),
            head: up.header_timeout.get(),
            kept: pod_connections.min(gateway::Limits::default().kept * 2) / 2,
            pod_connections,
            buffers: capacity.buffers,
            ..gateway::Limits::default()
        },
        cold_start: gateway::ColdStartHeaders::default(),
        access: None,
    }
}

/// How many may wait. One service may have a quarter of them all.
fn bounds(up: &Up, capacity: Capacity) -> Bounds {
    let (default, per_service) = (Bounds::default(), up.max_holds.get());
    let total = default.total.max(per_service.saturating_mul(4));
    Bounds { per_service, total, bytes: capacity.holds, ..default }
}
