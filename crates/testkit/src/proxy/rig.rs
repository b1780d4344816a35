//! A gateway with one service, `shop/cart`; its pods are listeners that the test controls.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fakes::{CountingEngine, READY};
use prometheus_client::encoding::text::encode;
use rouse_core::endpoint::{
    Conditions, PodRef, PodUid, PortName, ServiceId, Slice, SliceEndpoint, SlicePort,
};
use rouse_core::hold::HoldLimits;
use rouse_core::load_meter::LoadMeter;
use rouse_core::registry::{Registry, RegistrySettings};
use rouse_core::routing_mode::RoutingMode;
use rouse_core::service::{Service, ServiceSpec};
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_net::clock::TokioClock;
use rouse_net::listen;
use rouse_net::tls::ServerTls;
use rouse_proxy::budget::ConnectionLimits;
use rouse_proxy::listen::{Gateway, ListenerOptions, ProxyListener, ProxySettings, Workers};
use rouse_proxy::message::Placement;
use rouse_proxy::request::TrustedProxies;
use rouse_proxy::routing::{NoPodPolicy, Route, RouteTable, Rule, Target};
use rouse_proxy::telemetry::access_log::AccessLog;
use rouse_proxy::telemetry::metrics::Metrics;
use rouse_proxy::upstream::{Backend, ClusterIp, ColdStartHeaders, Timeouts, UpstreamProtocol};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::wire::{Wire, take_head};

/// Far longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A request after which the connection stays open.
pub const GET: &str = "GET / HTTP/1.1\r\nHost: cart.test\r\n\r\n";
/// A request after whose response the gateway closes the connection.
pub const GET_AND_CLOSE: &str = "GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\n\r\n";

/// A running gateway.
pub struct Rig {
    pub address: SocketAddr,
    pub registry: Arc<Registry>,
    pub service: Arc<Service>,
    pub gateway: Arc<Gateway>,
    pub workers: Workers,
    pub engine: Arc<CountingEngine>,
    metrics: prometheus_client::registry::Registry,
    _driver: JoinSet<()>,
}

/// What a test can change.
#[derive(Clone)]
pub struct Options {
    pub timeouts: Timeouts,
    pub protocol: UpstreamProtocol,
    pub concurrency: ConcurrencyLimits,
    pub bounds: HoldLimits,
    pub limits: ConnectionLimits,
    /// No proxy is trusted with `X-Forwarded-*`.
    pub edge: bool,
    /// No routes are known yet.
    pub starting: bool,
    pub over_tls: Option<UpstreamProtocol>,
    pub direct: RoutingMode,
    pub cluster_ip: Vec<SocketAddr>,
    pub cold_start: ColdStartHeaders,
    pub access: Option<Arc<dyn AccessLog>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeouts: Timeouts { readiness: Some(Duration::from_secs(20)), ..Timeouts::default() },
            protocol: UpstreamProtocol::Http1,
            concurrency: ConcurrencyLimits::default(),
            bounds: HoldLimits::default(),
            limits: ConnectionLimits::default(),
            edge: false,
            starting: false,
            over_tls: None,
            direct: RoutingMode::default(),
            cluster_ip: Vec::new(),
            cold_start: ColdStartHeaders::default(),
            access: None,
        }
    }
}

impl Rig {
    pub fn new(options: Options) -> Self {
        Self::behind(options, None)
    }

    /// The same, with TLS for its clients.
    pub fn behind(options: Options, tls: Option<&Arc<ServerTls>>) -> Self {
        let Options { timeouts, protocol, concurrency, bounds, limits, edge, .. } = options;
        let Options { over_tls, direct, cluster_ip, cold_start, access, starting, .. } = options;
        let clock = TokioClock::new();
        let engine = Arc::<CountingEngine>::default();
        let core = RegistrySettings { holds: bounds, ..RegistrySettings::default() };
        let registry = Registry::new(core, Arc::new(clock), Arc::clone(&engine) as _);
        let id: ServiceId = "shop/cart".parse().unwrap();
        let name = PortName::new("http");
        let service = registry.declare(&id, &ServiceSpec { ports: vec![name.clone()], concurrency });
        let mut metrics = prometheus_client::registry::Registry::default();
        let settings = ProxySettings {
            id: "test".into(),
            placement: Placement::Gateway,
            trusted: if edge { "none".parse().unwrap() } else { TrustedProxies::private() },
            bounds,
            clock,
            limits,
            cold_start,
            access,
        };
        let gateway = Gateway::new(settings, Metrics::new(&mut metrics));
        let listeners = listen::bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let address = listeners[0].address();
        let tls = ListenerOptions::default().with_tls(tls);
        let listeners =
            listeners.into_iter().map(|listener| ProxyListener { listener, options: tls.clone() }).collect();
        let workers = Workers::start(&gateway, listeners, NonZeroUsize::new(2).unwrap()).unwrap();
        let mut driver = JoinSet::new();
        let shared = Arc::clone(&registry);
        driver.spawn(async move { shared.drive(|moment| clock.sleep_until(moment)).await });
        let rig = Self { address, registry, service, gateway, workers, engine, metrics, _driver: driver };
        let backend = Backend {
            over_tls,
            direct,
            cluster_ip: ClusterIp::new(cluster_ip.into()),
            ..backend(&rig.service, protocol)
        };
        if !starting {
            rig.route(rule("cart", Target::Backend(backend), timeouts, NoPodPolicy::default()));
        }
        rig
    }

    /// The same with one pod, which is ready.
    pub async fn with_pod(options: Options) -> (Self, Pod) {
        let (rig, [pod]) = Self::with_pods(options).await;
        (rig, pod)
    }

    /// The same with `N` pods, which are ready and have the numbers from 1 on.
    pub async fn with_pods<const N: usize>(options: Options) -> (Self, [Pod; N]) {
        let (rig, mut pods) = (Self::new(options), Vec::new());
        for number in (1..).take(N) {
            pods.push(Pod::new(number).await);
        }
        rig.pods(&pods.iter().map(|pod| (pod, READY)).collect::<Vec<_>>());
        let Ok(pods) = pods.try_into() else { unreachable!("there are N of them") };
        (rig, pods)
    }

    /// One more service, without pods: `shop/{name}` at `{name}.test`.
    pub fn add(&self, name: &str) -> Arc<Service> {
        let id: ServiceId = format!("shop/{name}").parse().unwrap();
        let spec =
            ServiceSpec { ports: vec![PortName::new("http")], concurrency: ConcurrencyLimits::default() };
        let service = self.registry.declare(&id, &spec);
        let target = Target::Backend(backend(&service, UpstreamProtocol::Http1));
        self.route(rule(name, target, Timeouts::default(), NoPodPolicy::default()));
        service
    }

    /// Sets what the first route does without a pod.
    pub fn no_pod(&self, no_pod: NoPodPolicy) {
        self.replace_cart(no_pod, None);
    }

    /// The same, and meters its load.
    pub fn metered(&self, no_pod: NoPodPolicy) -> Arc<LoadMeter> {
        let meter = self.registry.route_meter("cart".into());
        self.replace_cart(no_pod, Some(Arc::clone(&meter)));
        meter
    }

    fn replace_cart(&self, no_pod: NoPodPolicy, meter: Option<Arc<LoadMeter>>) {
        let mut rules = self.gateway.routes().rules().to_vec();
        let cart = rules.iter_mut().find(|rule| &*rule.name == "cart").unwrap();
        let Route { target: Target::Backend(backend), timeouts, .. } = &*cart.target else { unreachable!() };
        *cart = rule("cart", Target::Backend(backend.clone()), *timeouts, no_pod);
        Arc::get_mut(&mut cart.target).unwrap().meter = meter;
        self.gateway.set_routes(RouteTable::new(rules));
    }

    /// One more route.
    pub fn route(&self, rule: Rule<Arc<Route>>) {
        let mut rules = self.gateway.routes().rules().to_vec();
        rules.push(rule);
        self.gateway.set_routes(RouteTable::new(rules));
    }

    /// Replaces the service's pods.
    pub fn pods(&self, pods: &[(&Pod, Conditions)]) {
        self.slices(
            &pods.iter().map(|(pod, conditions)| (pod.number, pod.address, *conditions)).collect::<Vec<_>>(),
        );
    }

    /// The same once a request is held.
    pub async fn pods_once_held(&self, pods: &[(&Pod, Conditions)]) {
        eventually("the request is held", || self.service.holds() == 1).await;
        self.pods(pods);
    }

    pub fn slices(&self, pods: &[(u32, SocketAddr, Conditions)]) {
        Self::slices_of(&self.service, pods);
    }

    /// Replaces the pods of the given service.
    pub fn slices_of(service: &Service, pods: &[(u32, SocketAddr, Conditions)]) {
        // Each has its own port number, so each is in a slice of its own.
        let slices = pods.iter().map(|&(number, address, conditions)| {
            let pod = PodRef {
                uid: PodUid::new(&format!("uid-{number}")),
                name: format!("shop/pod-{number}").into(),
            };
            let slice = Slice {
                ports: vec![SlicePort { name: PortName::new("http"), number: address.port() }],
                endpoints: vec![SliceEndpoint { ip: address.ip(), conditions, pod: Some(pod) }],
            };
            (format!("slice-{number}"), slice)
        });
        service.replace_slices(slices);
    }

    /// A client's connection.
    pub async fn connect(&self) -> Wire {
        Wire::new(TcpStream::connect(self.address).await.unwrap())
    }

    /// Sends `request` on a new connection. Returns the client's side.
    pub async fn send(&self, request: &str) -> Wire {
        let mut client = self.connect().await;
        client.write(request).await;
        client
    }

    /// Sends `request` on a new connection, and waits until `pod` has read its head from a new connection. Returns the
    /// client's side and the pod's side.
    pub async fn send_to(&self, pod: &Pod, request: &str) -> (Wire, Wire) {
        let client = self.send(request).await;
        (client, pod.accept_request().await)
    }

    /// Sends `request` on a new connection, and waits until one more request is held. Returns the client's side.
    pub async fn send_held(&self, request: &str) -> Wire {
        let before = self.service.holds();
        let client = self.send(request).await;
        eventually("the request is held", || self.service.holds() == before + 1).await;
        client
    }

    /// One request on a connection of its own: the whole answer.
    pub async fn get(&self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\n\r\n");
        self.send(&request).await.rest().await
    }

    /// All metrics.
    pub fn metrics_text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.metrics).unwrap();
        text
    }

    /// The value of one line of the metrics; 0 if it is not there.
    pub fn metric(&self, line: &str) -> u64 {
        let text = self.metrics_text();
        let value = text.lines().find_map(|l| l.strip_prefix(line)?.trim().parse().ok());
        value.unwrap_or(0)
    }

    /// Waits until `count` requests of the route `cart` are counted with this status and protocol.
    pub async fn requests_counted(&self, status: u16, protocol: &str, count: u64) {
        let line = format!(r#"rouse_requests_total{{route="cart",code="{status}",protocol="{protocol}"}}"#);
        eventually(&format!("{count} are counted with {status}"), || self.metric(&line) == count).await;
    }
}

/// Straight to the pods of `service`.
pub fn backend(service: &Arc<Service>, protocol: UpstreamProtocol) -> Backend {
    Backend::direct(Arc::clone(service), service.port(&PortName::new("http")).unwrap(), protocol)
}

/// The rule from `{name}.test` to `target`.
pub fn rule(name: &str, target: Target, timeouts: Timeouts, no_pod: NoPodPolicy) -> Rule<Arc<Route>> {
    Rule {
        hosts: vec![format!("{name}.test").parse().unwrap()],
        paths: Vec::new(),
        headers: Vec::new(),
        created: 0,
        name: name.into(),
        owner: "".into(),
        target: Arc::new(Route {
            name: name.into(),
            service: format!("shop/{name}").parse().unwrap(),
            target,
            timeouts,
            no_pod,
            meter: None,
        }),
    }
}

/// A pod: a listening socket.
pub struct Pod {
    pub number: u32,
    pub address: SocketAddr,
    listener: TcpListener,
}

impl Pod {
    pub async fn new(number: u32) -> Self {
        Self::on(number, TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    /// The same on this listener.
    pub fn on(number: u32, listener: TcpListener) -> Self {
        Self { number, address: listener.local_addr().unwrap(), listener }
    }

    /// The next connection that the gateway makes.
    pub async fn accept(&self) -> Wire {
        Wire::new(self.accept_raw().await)
    }

    /// The same as a plain socket.
    pub async fn accept_raw(&self) -> TcpStream {
        let accepted = timeout(PATIENCE, self.listener.accept()).await.expect("the gateway should connect");
        accepted.unwrap().0
    }

    /// The next connection that the gateway makes, once the head of its first request is read.
    pub async fn accept_request(&self) -> Wire {
        let mut wire = self.accept().await;
        wire.head().await;
        wire
    }

    /// The same as a plain socket, from which nothing but the head is read.
    pub async fn accept_request_raw(&self) -> TcpStream {
        let mut stream = self.accept_raw().await;
        take_head(&mut stream).await;
        stream
    }

    /// Accepts the next connection and answers its first request: 200 with `body`.
    pub async fn answer(&self, body: &str) -> Wire {
        let mut wire = self.accept_request().await;
        wire.answer(body).await;
        wire
    }
}

/// The next connection that the gateway makes to either pod.
pub async fn accept_either([first, second]: &[Pod; 2]) -> TcpStream {
    tokio::select! {
        stream = first.accept_raw() => stream,
        stream = second.accept_raw() => stream,
    }
}

/// A pod that answers by itself. Dropping it ends it.
pub struct Served {
    seen: Arc<Mutex<Seen>>,
    tasks: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    paths: Vec<String>,
    now: usize,
    most: usize,
}

impl Pod {
    /// Answers every request with "hello" from now on.
    pub fn serve(self) -> Served {
        let seen = Arc::<Mutex<Seen>>::default();
        let (mut tasks, shared) = (JoinSet::new(), Arc::clone(&seen));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = self.listener.accept().await {
                let seen = Arc::clone(&shared);
                connections.spawn(async move {
                    let mut wire = Wire::new(stream);
                    while let Some(head) = wire.next_head().await {
                        let path = head.split(' ').nth(1).unwrap().to_owned();
                        {
                            let mut seen = seen.lock().unwrap();
                            seen.paths.push(path);
                            seen.now += 1;
                            seen.most = seen.most.max(seen.now);
                        }
                        tokio::task::yield_now().await;
                        seen.lock().unwrap().now -= 1;
                        wire.answer("hello").await;
                    }
                });
            }
        });
        Served { seen, tasks }
    }
}

impl Served {
    pub fn paths(&self) -> Vec<String> {
        self.seen.lock().unwrap().paths.clone()
    }

    /// Stops listening, and ends its connections.
    pub async fn end(mut self) {
        self.tasks.shutdown().await;
    }

    pub fn most_at_once(&self) -> usize {
        self.seen.lock().unwrap().most
    }
}

/// Waits until `what` holds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep_until(tokio::time::Instant::now() + Duration::from_millis(2)).await;
        }
    };
    assert!(timeout(PATIENCE, waiting).await.is_ok(), "{what}");
}
