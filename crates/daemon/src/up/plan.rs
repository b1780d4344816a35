//! Converts the apps of the file into specs for the local engine and routes for the proxy.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rouse_core::endpoint::PortName;
use rouse_core::registry::Registry;
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_local::command::CommandSpec;
use rouse_local::engine::{AppSpec, PORT_NAME, PortChoice};
use rouse_proxy::routing::{NoPodPolicy, Route, RouteTable, Rule, Target};
use rouse_proxy::upstream::{Backend, Timeouts, UpstreamProtocol};

use super::source::ConfigSource;
use crate::rouse_yaml::{App, AppPort, AppTransport, Config};

/// The specs of all apps for the engine.
pub fn apps(config: &Config, source: &ConfigSource) -> Vec<AppSpec> {
    config.apps.iter().map(|app| spec(app, source)).collect()
}

fn spec(app: &App, source: &ConfigSource) -> AppSpec {
    let (program, folder) = match source {
        ConfigSource::File { folder, .. } => (app.command.program.clone(), folder.clone()),
        // The demo's apps are this very program.
        ConfigSource::Demo => (ourselves(), std::env::current_dir().unwrap_or_else(|_| "/".into())),
    };
    let settings = app.scale.settings();
    AppSpec {
        service: app.name.service().clone(),
        command: CommandSpec {
            argv: [program].into_iter().chain(app.command.arguments.iter().cloned()).collect(),
            env: app.env.clone(),
            workdir: tidy(&folder, &app.workdir),
        },
        port: match app.port {
            AppPort::Auto => PortChoice::Auto,
            AppPort::Fixed(port) => PortChoice::Fixed(port),
        },
        h2c: app.protocol == AppTransport::H2c,
        readiness: app.readiness.clone(),
        probe_interval: app.probe_interval,
        policy: app.scale.policy().clone(),
        concurrency: ConcurrencyLimits::new(whole(settings.concurrency), settings.limit),
        stop_grace: app.stop_grace,
        sidecar: app.sidecar,
    }
}

/// Warnings about apps that cannot be started now. Not errors: the missing program may exist when a request comes.
pub fn warnings(apps: &[AppSpec]) -> Vec<String> {
    let warning = |app: &AppSpec| {
        // Checks the command for the first pod, whose port is not known yet.
        let port = match app.port {
            PortChoice::Auto => 0,
            PortChoice::Fixed(port) => port.get(),
        };
        let (name, address) = (format!("{}-1", app.service.name()), (Ipv4Addr::LOCALHOST, port).into());
        let error = app.command.check_at(&name, address).err()?;
        Some(format!("{}: {error}; checked again at each start of the app", app.service.name()))
    };
    apps.iter().filter_map(warning).collect()
}

/// The path of this program, which works even after a build has replaced its file.
pub(super) fn ourselves() -> String {
    if cfg!(target_os = "linux") {
        return "/proc/self/exe".to_owned();
    }
    std::env::current_exe().map_or_else(|_| "rouse".to_owned(), |path| path.to_string_lossy().into_owned())
}

/// Joins the paths and drops `.`, the default of every file, which would only clutter errors.
fn tidy(folder: &Path, workdir: &Path) -> PathBuf {
    folder.join(workdir).components().collect()
}

/// The target concurrency, rounded up to whole requests.
fn whole(target: Option<f64>) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a range that both types hold"
    )]
    let target = target.unwrap_or_default().ceil().clamp(0.0, 1e6) as u32;
    target
}

/// The routes of the apps. The engine must have declared their services before.
pub fn routes(config: &Config, registry: &Registry) -> RouteTable<Arc<Route>> {
    // All routes come from one file, so they have one owner.
    let owner: Arc<str> = Arc::default();
    let rules = (0..).zip(&config.apps).map(|(created, app)| Rule {
        hosts: app.hosts.clone(),
        paths: app.paths.clone(),
        headers: Vec::new(),
        created,
        name: app.name.to_string(),
        owner: Arc::clone(&owner),
        target: Arc::new(route(app, registry)),
    });
    RouteTable::new(rules.collect())
}

fn route(app: &App, registry: &Registry) -> Route {
    let protocol = match app.protocol {
        AppTransport::Http => UpstreamProtocol::Http1,
        AppTransport::H2c => UpstreamProtocol::H2c,
    };
    let target = match registry.get(app.name.service()) {
        None => Target::NoService,
        Some(service) => match service.port(&PortName::new(PORT_NAME)) {
            None => Target::BadPort,
            Some(port) => Target::Backend(Backend::direct(service, port, protocol)),
        },
    };
    let crate::rouse_yaml::AppTimeouts { readiness, request, response_header, connect } = app.timeouts;
    Route {
        name: app.name.as_str().into(),
        service: app.name.service().clone(),
        target,
        timeouts: Timeouts { readiness, request, response_header, connect },
        no_pod: NoPodPolicy::default(),
        meter: None,
    }
}
