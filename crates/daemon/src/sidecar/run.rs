//! Runs `rouse sidecar`: the data plane of the gateway with one service of one pod, the app.

use std::sync::Arc;

use rouse_config::settings::{SettingWarning, Values};
use rouse_core::endpoint::{
    Conditions, PodRef, PodUid, PortName, ServiceId, Slice, SliceEndpoint, SlicePort,
};
use rouse_core::engine::Engine;
use rouse_core::hold::HoldLimits;
use rouse_core::registry::RegistrySettings;
use rouse_core::service::{Service, ServiceSpec};
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_net::clock::TokioClock;
use rouse_net::random::system_seed;
use rouse_proxy::budget::ConnectionLimits;
use rouse_proxy::listen::ProxySettings;
use rouse_proxy::message::Placement;
use rouse_proxy::request::TrustedProxies;
use rouse_proxy::routing::{NoPodPolicy, Route, RouteTable, Rule, Target};
use rouse_proxy::upstream::{Backend, ColdStartHeaders, Timeouts, UpstreamProtocol};
use tokio::sync::watch;

use super::admin::{Hooks, router};
use super::app_probe::AppProbe;
use super::lifecycle::{Drain, DrainLimits, Lifecycle};
use super::push::PushSettings;
use super::settings::{self as set, AppProtocol};
use crate::data_plane::{AdminApi, DataPlane, MetricNames, Serving};
use crate::failure::CommandError;
use crate::listeners::{ListenAddresses, Listeners, Purpose};
use crate::process::capacity::ConnectionCapacity;
use crate::process::console::Console;
use crate::process::drain::{DrainOutcome, DrainTimes};
use crate::process::ready::Ready;
use crate::process::signals::Signals;
use crate::role::{self, ConsoleOutput, Role, RunEnd};
use crate::settings::{HEADER_TIMEOUT, IDLE_TIMEOUT, MAX_CONNECTIONS, STREAM_IDLE_TIMEOUT};

/// The name of the only service, port, pod and slice.
const APP: &str = "app";
/// The length of the queue, as a multiple of the concurrency limit.
const QUEUE_PER_REQUEST: usize = 10;
/// A sidecar has less to buffer than a gateway.
const BUFFERS: usize = 8 << 20;
/// Connections to the app that are kept. With fewer than requests at a time, each request beyond them opens a new one.
const IDLE_CONNECTIONS: usize = 1024;

/// Runs until a signal or a failure.
pub(super) fn run(
    values: &Values,
    warnings: &[SettingWarning],
    push: PushSettings,
) -> Result<(), CommandError> {
    let limits = drain_limits(values);
    let times = DrainTimes { delay: std::time::Duration::ZERO.into(), timeout: limits.longest().into() };
    role::run(values, ConsoleOutput::Log, times, async |console| {
        for warning in warnings {
            console.warn(&warning.to_string());
        }
        SidecarRole::start(values, open_listeners(values)?, push, console)
    })
}

fn open_listeners(values: &Values) -> Result<Listeners, CommandError> {
    let addresses = ListenAddresses {
        plain: values.get(&set::LISTEN),
        secure: Vec::new(),
        admin: values.get(&set::ADMIN),
        register: None,
        xds: None,
    };
    Listeners::open(&addresses, |error, purpose| {
        let flag = if purpose == Purpose::Admin { "--admin" } else { "--listen" };
        CommandError::Failed(format!("{error}\n  choose another address with {flag}"))
    })
}

fn drain_limits(values: &Values) -> DrainLimits {
    DrainLimits { grace: values.get(&set::GRACE_PERIOD), quiet: values.get(&set::DRAIN_QUIET) }
}

/// Wakes nothing: the app is started by the pod.
struct NoEngine;

impl Engine for NoEngine {
    fn wake(&self, _service: &ServiceId) {}
}

/// A running `rouse sidecar`.
#[derive(Debug)]
pub(super) struct SidecarRole {
    serving: Serving,
    drain: Arc<Drain>,
}

impl SidecarRole {
    fn start(
        values: &Values,
        listeners: Listeners,
        push: PushSettings,
        console: &Console,
    ) -> Result<Self, CommandError> {
        let (addresses, clock, holds) = (listeners.addresses(), TokioClock::new(), holds(values));
        let (reporter, client) = push.client(clock)?;
        let registry = RegistrySettings { holds, ..RegistrySettings::default() };
        let proxy = proxy_settings(values, clock, holds);
        let plane = DataPlane::new(clock, registry, Arc::new(NoEngine), proxy, MetricNames::Own);
        let service = declare(values, &plane)?;
        plane.gateway.set_routes(routes(values, &service)?);
        let (drain, ready) = (Arc::<Drain>::default(), Arc::<Ready>::default());
        let hooks = Hooks {
            drain: Arc::clone(&drain),
            ready: Arc::clone(&ready),
            secret: values.get(&set::DRAIN_SECRET),
        };
        let api = AdminApi::Own(ready, Box::new(|state| router(state, hooks)));
        let workers = Some(values.get(&set::SIDECAR_WORKERS));
        let mut serving = plane.serve((listeners, None), workers, api, console)?;
        let readiness = follow_app(values, &service, &mut serving)?;
        let lifecycle = Lifecycle {
            drain: Arc::clone(&drain),
            limits: drain_limits(values),
            readiness,
            reporter,
            gateway: Arc::clone(&serving.gateway),
            registry: Arc::clone(&serving.registry),
            service,
        };
        serving.tasks.spawn("the drain", lifecycle.run());
        if let Some(client) = client {
            serving.tasks.spawn("the client of registrations", client.run(serving.end.clone()));
        }
        for address in &addresses.plain {
            tracing::info!("listening on http://{address}");
        }
        tracing::info!("admin on http://{}", addresses.admin);
        Ok(Self { serving, drain })
    }
}

impl Role for SidecarRole {
    const CONTROL_THREADS: usize = 1;

    async fn run(&mut self) -> RunEnd {
        tokio::select! {
            broken = self.serving.broken() => RunEnd::Broken(broken),
            () = self.drain.over() => {
                tracing::warn!(
                    "the grace period of the drain is over, and no signal came: stopping, so that the container starts again \
                     if the pod goes on"
                );
                RunEnd::Finished
            }
        }
    }

    fn reload(&mut self) {
        tracing::info!(
            "settings are read at the start only; tokens, keys and certificates are read whenever they change"
        );
    }

    /// Drains, unless a hook has done so before.
    async fn stop(&mut self, times: DrainTimes, signals: &mut Signals) -> DrainOutcome {
        self.drain.begin();
        tokio::select! {
            () = self.drain.done() => {}
            () = signals.leave() => {
                let drained = DrainOutcome { forced: true, ..self.serving.close() };
                self.serving.end().await;
                return drained;
            }
        }
        // The grace period is used up: cuts the rest off.
        let left = DrainTimes { timeout: std::time::Duration::ZERO.into(), ..times };
        let DrainOutcome { forced, cut } = self.serving.drain(left, signals).await;
        if cut > 0 {
            tracing::warn!(cut, "requests were cut off at the end of the grace period");
        }
        self.serving.end().await;
        DrainOutcome { forced, cut: 0 }
    }
}

fn internal(what: &str) -> CommandError {
    CommandError::Failed(format!("{what}: this is an error of Rouse"))
}

/// The only service: its limit and its queue are those of the app.
fn declare(values: &Values, plane: &DataPlane) -> Result<Arc<Service>, CommandError> {
    let id = ServiceId::new(APP, APP).map_err(|_| internal("the app has no name"))?;
    let concurrency = ConcurrencyLimits::new(0, values.get(&set::CONCURRENCY));
    let service = plane.registry.declare(&id, &ServiceSpec { ports: vec![PortName::new(APP)], concurrency });
    service.put_slice(APP, slice(values, false));
    Ok(service)
}

/// The app as the only endpoint.
fn slice(values: &Values, ready: bool) -> Slice {
    let app = values.get(&set::APP);
    let pod = PodRef { uid: PodUid::new(APP), name: format!("{APP}/{APP}").into() };
    let conditions = Conditions::new(ready, ready, false);
    Slice {
        ports: vec![SlicePort { name: PortName::new(APP), number: app.port() }],
        endpoints: vec![SliceEndpoint { ip: app.ip(), conditions, pod: Some(pod) }],
    }
}

/// Probes the app, and publishes whether it is ready.
fn follow_app(
    values: &Values,
    service: &Arc<Service>,
    serving: &mut Serving,
) -> Result<watch::Receiver<bool>, CommandError> {
    let app = values.get(&set::APP);
    let check = set::probe_check(values.get(&set::PROBE), app.port());
    let (interval, timeout) = (values.get(&set::PROBE_INTERVAL), values.get(&set::PROBE_TIMEOUT));
    let probe =
        AppProbe::new(app, check, interval, timeout).ok_or_else(|| internal("the app cannot be probed"))?;
    let (sender, readiness) = watch::channel(false);
    let (values, service, flag) = (values.clone(), Arc::clone(service), Arc::clone(&serving.ready));
    let changed = move |ready| {
        service.put_slice(APP, slice(&values, ready));
        flag.set(ready);
        sender.send_replace(ready);
    };
    serving.tasks.spawn("the probe of the app", probe.run(changed));
    Ok(readiness)
}

/// Everything goes to the app.
fn routes(values: &Values, service: &Arc<Service>) -> Result<RouteTable<Arc<Route>>, CommandError> {
    let protocol = match values.get(&set::APP_PROTOCOL) {
        AppProtocol::Http1 => UpstreamProtocol::Http1,
        AppProtocol::H2c => UpstreamProtocol::H2c,
    };
    let port = service.port(&PortName::new(APP)).ok_or_else(|| internal("the app has no port"))?;
    let timeouts = Timeouts {
        readiness: None,
        request: values.get(&set::REQUEST_TIMEOUT),
        response_header: Some(values.get(&set::RESPONSE_HEADER_TIMEOUT)),
        ..Timeouts::default()
    };
    let route = Route {
        name: APP.into(),
        service: service.id().clone(),
        target: Target::Backend(Backend::direct(Arc::clone(service), port, protocol)),
        timeouts,
        no_pod: NoPodPolicy::default(),
        meter: None,
    };
    Ok(RouteTable::new(vec![Rule {
        hosts: Vec::new(),
        paths: Vec::new(),
        headers: Vec::new(),
        created: 0,
        name: APP.to_owned(),
        owner: Arc::default(),
        target: Arc::new(route),
    }]))
}

/// The queue: ten times the limit. Without a limit, requests wait only while the app is not ready.
fn holds(values: &Values) -> HoldLimits {
    let default = HoldLimits::default();
    let limit = usize::try_from(values.get(&set::CONCURRENCY)).unwrap_or(usize::MAX);
    let per_service = if limit == 0 { default.per_service } else { limit.saturating_mul(QUEUE_PER_REQUEST) };
    // One service may have a quarter of the total.
    let total = per_service.saturating_mul(4);
    HoldLimits { per_service, total, bytes: ConnectionCapacity::now().holds, ..default }
}

fn proxy_settings(values: &Values, clock: TokioClock, bounds: HoldLimits) -> ProxySettings {
    let capacity = ConnectionCapacity::now();
    let connections = values.get(&MAX_CONNECTIONS).unwrap_or(capacity.connections).min(capacity.by_files);
    let pod_connections = capacity.pod_connections_for(connections);
    ProxySettings {
        id: format!("{:016x}", system_seed()),
        placement: Placement::Sidecar,
        // Not used: forwarding headers stay as they are.
        trusted: TrustedProxies::private(),
        bounds,
        clock,
        limits: ConnectionLimits {
            connections,
            idle: values.get(&IDLE_TIMEOUT),
            head: values.get(&HEADER_TIMEOUT),
            stream_idle: values.get(&STREAM_IDLE_TIMEOUT),
            kept_per_pod: IDLE_CONNECTIONS,
            kept: IDLE_CONNECTIONS,
            pod_connections,
            // A gateway sends the requests of all its clients over one connection.
            pod_connections_per_client: pod_connections,
            buffers: capacity.buffers.min(BUFFERS),
            ..ConnectionLimits::default()
        },
        cold_start: ColdStartHeaders { rouse: false, keda: false },
        access: None,
    }
}
