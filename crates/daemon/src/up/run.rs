//! The role of `rouse up`: starts the local engine and the proxy, reloads the file when it changes, and stops the apps.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rouse_config::settings::Values;
use rouse_core::endpoint::ServiceId;
use rouse_core::hold::HoldLimits;
use rouse_core::registry;
use rouse_grpc::GrpcTransport;
use rouse_grpc::xds::publisher::EnvoyPublisherHandle;
use rouse_grpc::xds::{Access, EndpointAcks};
use rouse_local::engine::{self, LocalEngine, OtherProxies, SidecarLauncher};
use rouse_local::process::Launcher;
use rouse_net::clock::TokioClock;
use rouse_net::random::system_seed;
use rouse_net::tls::{ServerSettings, ServerTls};
use rouse_proxy::budget::ConnectionLimits;
use rouse_proxy::listen::ProxySettings;
use rouse_proxy::message::Placement;
use rouse_proxy::upstream::ColdStartHeaders;
use rouse_register::server::RegistrationMetrics;
use tokio::time::timeout;

use super::events::{self, Outputs};
use super::settings::MAX_HOLDS;
use super::sidecars::RunKey;
use super::source::{Changes, ConfigSource};
use super::{GUARDIAN, listen, messages, plan, reload};
use crate::admin::PodBackend;
use crate::admin::metrics::CertificateCollector;
use crate::certificates::{self, CertificateFiles, Certificates, HTTPS, OpenError};
use crate::data_plane::{AdminApi, DataPlane, MetricNames, Serving};
use crate::envoy::{EnvoyClients, EnvoyControlPlane, translate};
use crate::failure::{CommandError, failed};
use crate::listeners::Listeners;
use crate::process::capacity::ConnectionCapacity;
use crate::process::console::Console;
use crate::process::drain::{DrainOutcome, DrainTimes};
use crate::process::signals::Signals;
use crate::process::time_of_day;
use crate::role::{AT_ONCE, Role, RunEnd};
use crate::rouse_yaml::{Cert, Config, Tls};
use crate::settings::{HEADER_TIMEOUT, IDLE_TIMEOUT, MAX_CONNECTIONS, TRUSTED_PROXIES, WORKERS};

/// How long a terminal may take to show the last lines of the apps.
const LAST_LINES: Duration = Duration::from_secs(2);

/// A running `rouse up`.
#[derive(Debug)]
pub(super) struct UpRole {
    serving: Serving,
    engine: Arc<LocalEngine>,
    /// The certificates of the TLS listener.
    tls: Option<Arc<ServerTls>>,
    /// What Envoys get, if they may connect.
    envoys: Option<EnvoyPublisherHandle>,
    outputs: Outputs,
    source: ConfigSource,
    changes: Changes,
    config: Config,
    values: Values,
}

impl UpRole {
    /// Builds the engine and the data plane, and serves.
    pub(super) fn start(
        values: Values,
        source: ConfigSource,
        config: Config,
        (mut listeners, certificates): (Listeners, Option<Certificates>),
        clock: TokioClock,
        console: &Console,
    ) -> Result<Self, CommandError> {
        let addresses = listeners.addresses();
        let tls = certificates.as_ref().map(Certificates::server).cloned();
        let (key, register) = (RunKey::new()?, listeners.register.take());
        let sidecar = register.as_ref().map(|listener| key.launcher(listener.address()));
        let engine = local_engine(&source, &config, clock, sidecar)?;
        let holds =
            registry::RegistrySettings { holds: holds(&values), ..registry::RegistrySettings::default() };
        let proxy = proxy_settings(&values, clock);
        let mut plane = DataPlane::new(clock, holds, Arc::clone(&engine) as _, proxy, MetricNames::Own);
        let registrations = RegistrationMetrics::new(&mut plane.metrics);
        let envoys = listeners.xds.take().map(|listener| {
            let most = u32::try_from(values.get(&MAX_HOLDS)).unwrap_or(u32::MAX);
            (listener, EnvoyControlPlane::new(&plane.registry, clock, most, &mut plane.metrics))
        });
        CertificateCollector::register(tls.clone().map(|tls| (HTTPS, tls)), &mut plane.metrics);
        // Subscribe before the engine does anything: the reverse order loses events.
        let engine_events = engine.events();
        let apps = plan::apps(&config, &source);
        let missing = plan::warnings(&apps);
        engine.apply(&plane.registry, apps);
        let routes = plan::routes(&config, &plane.registry);
        let view = envoys.as_ref().map(|(_, envoys)| {
            envoys.view.set_gateways(addresses.plain.iter().map(|address| listen::near(*address)).collect());
            envoys.view.set_routes(translate(&routes, |_| true));
            envoys.view.clone()
        });
        plane.gateway.set_routes(routes);
        // Print these lines before any other.
        for line in messages::greeting(&source, &config, &addresses) {
            console.say(line);
        }
        let backend = AdminApi::Pods(PodBackend::Apps(Arc::clone(&engine) as _));
        let mut serving = plane.serve((listeners, certificates), values.get(&WORKERS), backend, console)?;
        for warning in &missing {
            console.warn(warning);
        }
        let events = events::follow(
            engine_events,
            Arc::clone(&serving.registry),
            serving.event_metrics.clone(),
            console.clone(),
        );
        serving.tasks.spawn("the reader of events", events);
        if let Some(listener) = register {
            key.serve(listener, registrations, &engine, &mut serving)?;
        }
        if let Some((listener, envoys)) = envoys {
            // On loopback: programs of this machine may send requests too.
            let clients =
                EnvoyClients { transport: GrpcTransport::Plain, access: Access::Any, reports: None };
            let end = serving.end.clone();
            let served = envoys.serve(listener, clients, async {}, (&mut serving.tasks, end))?;
            engine.wait_for_proxies(Arc::new(Followers(served.followers)));
        }
        // Start the engine last: an earlier failure leaves no pod behind.
        serving.tasks.spawn("the engine", Arc::clone(&engine).run(Arc::clone(&serving.registry)));
        let (outputs, changes) = (Outputs::new(console.clone()), source.watch());
        let mut role = Self { serving, engine, tls, envoys: view, outputs, source, changes, config, values };
        role.follow_output();
        role.serving.ready.set(true);
        Ok(role)
    }

    /// Reads the file again and applies it whole, or not at all.
    fn reload_file(&mut self) {
        self.changes.seen();
        let Self { source, config, values, serving, .. } = self;
        let Some(new) = reload::read(source, config, values, &serving.console) else { return };
        self.apply(&new);
        self.config = reload::merged(&self.config, new);
        self.serving.console.say(format!("reloaded {}", self.source.name()));
    }

    /// Applies another configuration. New services exist before routes lead to them, and removed services finish their
    /// requests.
    fn apply(&mut self, config: &Config) {
        let console = &self.serving.console;
        if let (Some(server), Some(tls)) = (&self.tls, &config.tls) {
            certificates::replace(server, &certificate_files(&self.source, tls), console);
        }
        let apps = plan::apps(config, &self.source);
        for warning in &plan::warnings(&apps) {
            console.warn(warning);
        }
        let registry = &self.serving.registry;
        self.engine.apply(registry, apps);
        let routes = plan::routes(config, registry);
        if let Some(envoys) = &self.envoys {
            envoys.set_routes(translate(&routes, |_| true));
        }
        self.serving.gateway.set_routes(routes);
        self.config.apps.clone_from(&config.apps);
        self.follow_output();
    }

    fn follow_output(&mut self) {
        let names = self.config.apps.iter().map(|app| app.name.as_str());
        let logs = names.filter_map(|name| Some((name.to_owned(), self.engine.log(name)?)));
        self.outputs.follow(logs.collect::<Vec<_>>());
    }

    /// Stops all pods. Returns true if a second signal forced it.
    async fn stop_apps(&self, signals: &mut Signals, forced: bool) -> bool {
        let engine = &self.engine;
        if forced {
            engine.stop_now();
            timeout(AT_ONCE, engine.stop()).await.ok();
            return true;
        }
        let pods: usize = engine.apps().iter().map(|app| app.pods.len()).sum();
        if pods > 0 {
            let pods = if pods == 1 { "1 pod".to_owned() } else { format!("{pods} pods") };
            self.serving.console.say(format!("stopping {pods}; press Ctrl-C again to stop at once"));
        }
        tokio::select! {
            // Bounded by the longest stop-grace, after which the engine kills.
            () = engine.stop() => false,
            () = signals.leave() => {
                engine.stop_now();
                timeout(AT_ONCE, engine.stop()).await.ok();
                true
            }
        }
    }
}

/// The Envoys that fetch their endpoints here.
struct Followers(EndpointAcks);

impl OtherProxies for Followers {
    fn know(&self, service: &ServiceId, generation: u64) -> bool {
        self.0.know(service, generation)
    }
}

impl Role for UpRole {
    async fn run(&mut self) -> RunEnd {
        loop {
            tokio::select! {
                () = self.changes.next() => {}
                broken = self.serving.broken() => return RunEnd::Broken(broken),
            }
            self.reload_file();
        }
    }

    fn reload(&mut self) {
        self.reload_file();
    }

    /// Requests first, then the apps. All pods are gone when it returns.
    async fn stop(&mut self, times: DrainTimes, signals: &mut Signals) -> DrainOutcome {
        let drained = self.serving.drain(times, signals).await;
        let forced = drained.forced | self.stop_apps(signals, drained.forced).await;
        self.outputs.finish(LAST_LINES).await;
        self.serving.end().await;
        DrainOutcome { forced, ..drained }
    }

    fn next_step(&self, what: String) -> String {
        format!("{what}; start it again with `rouse up`")
    }
}

/// Opens the certificates of the file, if it has any.
pub(super) fn open_certificates(
    source: &ConfigSource,
    config: &Config,
) -> Result<Option<Certificates>, CommandError> {
    let Some(tls) = &config.tls else { return Ok(None) };
    let opened = Certificates::open(certificate_files(source, tls)).map_err(|error| {
        let what = match error {
            OpenError::Folders(what) => what,
            OpenError::File(error) => error.to_string(),
        };
        CommandError::Input(format!("{}: tls.certs: {what}", source.name()))
    });
    opened.map(Some)
}

fn certificate_files(source: &ConfigSource, tls: &Tls) -> CertificateFiles {
    let folder = match source {
        ConfigSource::File { folder, .. } => folder.as_path(),
        ConfigSource::Demo => Path::new(""),
    };
    let joined = |pair: &Cert| Cert { cert: folder.join(&pair.cert), key: folder.join(&pair.key) };
    CertificateFiles {
        certs: tls.certs.iter().map(joined).collect(),
        folders: Vec::new(),
        template: ServerSettings::new(Vec::new()),
    }
}

fn local_engine(
    source: &ConfigSource,
    config: &Config,
    clock: TokioClock,
    sidecar: Option<SidecarLauncher>,
) -> Result<Arc<LocalEngine>, CommandError> {
    let launcher =
        Launcher::this_program([GUARDIAN]).map_err(failed("cannot find the program `rouse` itself"))?;
    let (log_keep, log_folder) = (config.logs.keep, source.log_folder(config));
    Ok(LocalEngine::new(engine::LocalSettings {
        launcher,
        clock,
        seed: system_seed(),
        log_keep,
        log_folder,
        sidecar,
        wall_clock: time_of_day,
    }))
}

fn proxy_settings(values: &Values, clock: TokioClock) -> ProxySettings {
    let capacity = ConnectionCapacity::now();
    let connections = values.get(&MAX_CONNECTIONS).unwrap_or(capacity.connections).min(capacity.by_files);
    let pod_connections = capacity.pod_connections_for(connections);
    ProxySettings {
        id: format!("{:016x}", system_seed()),
        placement: Placement::Gateway,
        trusted: values.get(&TRUSTED_PROXIES).networks,
        bounds: holds(values),
        clock,
        limits: ConnectionLimits {
            connections,
            idle: values.get(&IDLE_TIMEOUT),
            head: values.get(&HEADER_TIMEOUT),
            kept: pod_connections.min(ConnectionLimits::default().kept * 2) / 2,
            pod_connections,
            buffers: capacity.buffers,
            ..ConnectionLimits::default()
        },
        cold_start: ColdStartHeaders::default(),
        access: None,
    }
}

/// The limits of held requests. One service may have a quarter of the total.
fn holds(values: &Values) -> HoldLimits {
    let (default, per_service) = (HoldLimits::default(), values.get(&MAX_HOLDS));
    let total = default.total.max(per_service.saturating_mul(4));
    HoldLimits { per_service, total, bytes: ConnectionCapacity::now().holds, ..default }
}
