//! What all workers share: the routes, the settings, the books.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use rouse_core::drain::UnderWay;
use rouse_core::endpoint::ServiceId;
use rouse_core::hold::Bounds;
use rouse_core::service::Service;
use rouse_core::slot::Port;
use rouse_core::snapshot::PortView;
use rouse_net::clock::TokioClock;
use rouse_net::tls::ClientTls;

use crate::access::AccessLog;
use crate::buffers::Budget;
use crate::cluster_ip::{ClusterIp, Direct};
use crate::error::Failure;
use crate::guard;
use crate::headers::{Mark, TrustedProxies};
use crate::metrics::{Metrics, NO_ROUTE, RouteName};
use crate::podless::Podless;
use crate::pool::PodConnections;
use crate::route::Table;

/// What an operator decides about a gateway.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Tells this gateway from every other, so that a request that comes back is recognised.
    pub id: String,
    /// Whose `X-Forwarded-*` is believed.
    pub trusted: TrustedProxies,
    /// How long and how many requests may wait. The same as the registry's.
    pub bounds: Bounds,
    /// The clock that the registry goes by, too.
    pub clock: TokioClock,
    /// What clients may take up.
    pub limits: Limits,
    /// How responses say whether their request waited for a pod.
    pub cold_start: ColdStartHeaders,
    /// Where requests are written down; `None`: nowhere.
    pub access: Option<Arc<dyn AccessLog>>,
}

/// The headers of a response that say whether its request waited for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColdStartHeaders {
    /// `X-Rouse-Cold-Start`.
    pub rouse: bool,
    /// `X-KEDA-HTTP-Cold-Start`.
    pub keda: bool,
}

impl Default for ColdStartHeaders {
    fn default() -> Self {
        Self { rouse: true, keda: false }
    }
}

/// What clients may take up, and what is kept for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// How long a connection may be without a request.
    pub idle: Duration,
    /// How long the head of a request may take.
    pub head: Duration,
    /// How long and how many the lines of a request may be.
    pub heads: guard::Limits,
    /// Requests at a time on one HTTP/2 connection.
    pub streams: u32,
    /// How long a request or an upgraded connection under way may be silent.
    pub stream_idle: Duration,
    /// How long a client that has closed its sending side stays without a byte of its answer, held or not. Most such
    /// clients have left: a FIN looks the same, and only a write shows that nothing reads any more. Without a limit,
    /// clients that lost patience in a cold start would keep their holds until the readiness timeout: they would fill the
    /// queue, and then the first pod, ahead of clients that still wait. Nor does a limit from the FIN on do, which would cut
    /// downloads that make progress.
    pub half_closed: Duration,
    /// Connections that are kept to one pod while nobody uses them, on each worker.
    pub kept_per_pod: usize,
    /// And to all pods together, on all workers.
    pub kept: usize,
    /// Connections to all pods at a time.
    pub pod_connections: usize,
    /// HTTP/1 connections to pods that the requests of one client connection may use at a time.
    pub pod_connections_per_client: usize,
    /// Bytes in all buffers of bodies that their receivers have not taken.
    pub buffers: usize,
    /// The same for one client connection.
    pub buffers_per_connection: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8192,
            idle: Duration::from_secs(75),
            head: Duration::from_secs(10),
            heads: guard::Limits::default(),
            streams: 256,
            stream_idle: Duration::from_hours(1),
            half_closed: Duration::from_secs(30),
            kept_per_pod: 512,
            kept: 8192,
            pod_connections: 8192,
            pod_connections_per_client: 100,
            buffers: 64 << 20,
            buffers_per_connection: 1 << 20,
        }
    }
}

/// Where a route leads, and how.
#[derive(Debug)]
pub struct Route {
    /// What metrics call it.
    pub name: RouteName,
    /// The service that it names.
    pub service: ServiceId,
    /// What stands behind that name.
    pub target: Target,
    /// How long its requests may take.
    pub timeouts: Timeouts,
    /// What it answers without its pods.
    pub podless: Podless,
}

/// What stands behind the service and the port that a route names.
#[derive(Debug, Clone)]
pub enum Target {
    /// Both exist.
    Backend(Backend),
    /// There is no such service.
    NoService,
    /// The service has no such port.
    BadPort,
}

impl Target {
    /// Where requests go.
    pub(crate) fn backend(&self) -> Result<&Backend, Failure> {
        match self {
            Target::Backend(backend) => Ok(backend),
            Target::NoService => Err(Failure::NoService),
            Target::BadPort => Err(Failure::BadPort),
        }
    }

    /// Whether a request would be taken at once, as far as pods are ready for it.
    pub(crate) fn is_available(&self) -> bool {
        let Target::Backend(Backend { service, port, cluster_ip, .. }) = self else { return false };
        let snapshot = service.snapshot();
        snapshot.port(port.name()).is_some_and(PortView::routable)
            || (cluster_ip.is_some() && snapshot.routable())
    }
}

/// A port of a service.
#[derive(Debug, Clone)]
pub struct Backend {
    /// The service.
    pub service: Arc<Service>,
    /// Its port.
    pub port: Arc<Port>,
    /// What its pods speak.
    pub protocol: Upstream,
    /// What they speak if the client's own request came over TLS; `None`: the same.
    pub over_tls: Option<Upstream>,
    /// When requests go straight to a pod.
    pub direct: Direct,
    /// The address of all pods together, if there is one.
    pub cluster_ip: Option<Arc<ClusterIp>>,
}

impl Backend {
    /// Straight to the pods of `port`, whatever the client speaks.
    pub fn direct(service: Arc<Service>, port: Arc<Port>, protocol: Upstream) -> Self {
        Self { service, port, protocol, over_tls: None, direct: Direct::Always, cluster_ip: None }
    }
}

/// What pods speak.
#[derive(Debug, Clone)]
pub enum Upstream {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 without TLS, with prior knowledge.
    H2c,
    /// HTTP/2 or HTTP/1.1 over TLS, as the handshake agrees. The server name is the service's; what is dialled is a
    /// pod's address.
    Tls(Arc<ClientTls>),
    /// TLS that cannot be had, and why: a certificate is missing. Never without it instead.
    Unusable(Arc<str>),
}

/// How long a request may take, part by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until a pod is ready; `None`: as long as the request may take.
    pub readiness: Option<Duration>,
    /// The whole request; `None`: no limit.
    pub request: Option<Duration>,
    /// From when it was sent until the response begins; `None`: no limit of its own.
    pub response_header: Option<Duration>,
    /// One attempt to connect.
    pub connect: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            readiness: None,
            request: None,
            response_header: Some(Duration::from_mins(5)),
            connect: Duration::from_millis(500),
        }
    }
}

/// What all workers share.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) settings: Settings,
    pub(crate) mark: Mark,
    pub(crate) metrics: Metrics,
    /// What metrics call requests that no route matches.
    pub(crate) no_route: RouteName,
    routes: ArcSwap<Table<Arc<Route>>>,
    /// The routes are known. Until then, that there is none for a request says nothing.
    started: AtomicBool,
    under_way: Arc<UnderWay>,
    pub(crate) buffers: Arc<Budget>,
    pub(crate) pod_connections: Arc<PodConnections>,
    leaving: AtomicBool,
}

impl Gateway {
    /// Answers `starting` until it is told its routes.
    pub fn new(settings: Settings, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            mark: Mark::new(&settings.id),
            buffers: Arc::new(Budget::new(settings.limits.buffers)),
            pod_connections: PodConnections::new(settings.limits.pod_connections),
            settings,
            metrics,
            no_route: NO_ROUTE.into(),
            routes: ArcSwap::default(),
            started: AtomicBool::new(false),
            under_way: Arc::default(),
            leaving: AtomicBool::new(false),
        })
    }

    /// Replaces all routes at once. Requests under way keep the one they have.
    pub fn set_routes(&self, table: Table<Arc<Route>>) {
        self.routes.store(Arc::new(table));
        // After the table: a request that sees this finds its route.
        self.started.store(true, Ordering::Release);
        let now = self.routes();
        let names = now.rules().iter().map(|rule| &*rule.target.name).collect();
        self.metrics.keep(&names, &self.services());
    }

    /// The names of all services that the present routes lead to.
    pub fn services(&self) -> HashSet<String> {
        let now = self.routes();
        let leads_to = |route: &Route| {
            let targets = [Some(&route.target), route.podless.fallback.as_ref()];
            let backends = targets.into_iter().flatten().filter_map(|target| target.backend().ok());
            let own = route.service.to_string();
            backends.map(|backend| backend.service.id().to_string()).chain([own]).collect::<Vec<_>>()
        };
        now.rules().iter().flat_map(|rule| leads_to(&rule.target)).collect()
    }

    /// The present routes.
    pub fn routes(&self) -> Arc<Table<Arc<Route>>> {
        self.routes.load_full()
    }

    /// What `look` finds in the present routes, or why it finds none.
    pub(crate) fn find<T>(&self, look: impl FnOnce(&Table<Arc<Route>>) -> Option<T>) -> Result<T, Failure> {
        // Before the table: the reverse order takes the empty table of the start for the first one that was set.
        let none = if self.started.load(Ordering::Acquire) { Failure::NoRoute } else { Failure::Starting };
        look(&self.routes.load()).ok_or(none)
    }

    /// It will drain soon: from now on HTTP/1 clients hear with each answer that the connection closes, so that few of
    /// them have one by then.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Requests, streams, upgraded connections and holds.
    pub fn under_way(&self) -> &Arc<UnderWay> {
        &self.under_way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_comes_as_the_first_routes_do_hears_that_we_start_and_not_that_there_is_none() {
        let clock = TokioClock::new();
        let settings = Settings {
            id: "test".into(),
            trusted: TrustedProxies::private(),
            bounds: Bounds::default(),
            clock,
            limits: Limits::default(),
            cold_start: ColdStartHeaders::default(),
            access: None,
        };
        let gateway =
            Gateway::new(settings, Metrics::new(&mut prometheus_client::registry::Registry::default()));
        let found = gateway.find(|table| {
            assert!(table.rules().is_empty());
            gateway.set_routes(Table::new(Vec::new()));
            None::<()>
        });
        assert_eq!(found, Err(Failure::Starting));
        assert_eq!(gateway.find(|_| None::<()>), Err(Failure::NoRoute));
    }
}
