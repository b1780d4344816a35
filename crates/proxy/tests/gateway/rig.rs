//! A gateway with one service, `shop/cart`, whose pods are sockets of the test.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use rouse_core::endpoint::{
    Conditions, PodRef, PodUid, PortName, ServiceId, Slice, SliceEndpoint, SlicePort,
};
use rouse_core::hold::Bounds;
use rouse_core::registry::{Registry, Settings as Core};
use rouse_core::service::{Service, Spec};
use rouse_core::snapshot::Spread;
use rouse_net::clock::TokioClock;
use rouse_net::listen;
use rouse_proxy::gateway::{Backend, Gateway, Route, Settings, Target, Timeouts, Upstream};
use rouse_proxy::headers::TrustedProxies;
use rouse_proxy::metrics::Metrics;
use rouse_proxy::route::{Rule, Table};
use rouse_proxy::serve::Workers;
use rouse_testkit::fakes::CountingEngine;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Far longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A running gateway.
pub(crate) struct Rig {
    pub(crate) address: SocketAddr,
    pub(crate) registry: Arc<Registry>,
    pub(crate) service: Arc<Service>,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) workers: Workers,
    pub(crate) engine: Arc<CountingEngine>,
    metrics: prometheus_client::registry::Registry,
    _driver: JoinSet<()>,
}

/// What a test may want otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) timeouts: Timeouts,
    pub(crate) protocol: Upstream,
    pub(crate) spread: Spread,
    pub(crate) bounds: Bounds,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeouts: Timeouts { readiness: Some(Duration::from_secs(20)), ..Timeouts::default() },
            protocol: Upstream::Http1,
            spread: Spread::default(),
            bounds: Bounds::default(),
        }
    }
}

impl Rig {
    pub(crate) fn new(options: Options) -> Self {
        let Options { timeouts, protocol, spread, bounds } = options;
        let clock = TokioClock::new();
        let engine = Arc::<CountingEngine>::default();
        let core = Core { holds: bounds, ..Core::default() };
        let registry = Registry::new(core, Arc::new(clock), Arc::clone(&engine) as _);
        let id: ServiceId = "shop/cart".parse().unwrap();
        let name = PortName::new("http");
        let service = registry.declare(&id, &Spec { ports: vec![name.clone()], spread });
        let mut metrics = prometheus_client::registry::Registry::default();
        let settings = Settings {
            id: "test".into(),
            trusted: TrustedProxies::private(),
            bounds,
            clock,
            seed: 7,
            tunnel_idle: Duration::from_hours(1),
        };
        let gateway = Gateway::new(settings, Metrics::new(&mut metrics));
        let backend = Backend { service: Arc::clone(&service), port: service.port(&name).unwrap(), protocol };
        let route = Route { name: "cart".into(), service: id, target: Target::Backend(backend), timeouts };
        gateway.set_routes(Table::new(vec![Rule {
            hosts: vec!["cart.test".parse().unwrap()],
            paths: Vec::new(),
            headers: Vec::new(),
            created: 0,
            name: "cart".into(),
            target: Arc::new(route),
        }]));
        let listeners = listen::bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let address = listeners[0].address();
        let workers = Workers::start(&gateway, listeners, NonZeroUsize::new(2).unwrap()).unwrap();
        let mut driver = JoinSet::new();
        let shared = Arc::clone(&registry);
        driver.spawn(async move { shared.drive(|moment| clock.sleep_until(moment)).await });
        Self { address, registry, service, gateway, workers, engine, metrics, _driver: driver }
    }

    /// These are the service's pods now.
    pub(crate) fn pods(&self, pods: &[(&Pod, Conditions)]) {
        self.slices(
            &pods.iter().map(|(pod, conditions)| (pod.number, pod.address, *conditions)).collect::<Vec<_>>(),
        );
    }

    pub(crate) fn slices(&self, pods: &[(u32, SocketAddr, Conditions)]) {
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
        self.service.replace_slices(slices);
    }

    /// A client's connection.
    pub(crate) async fn connect(&self) -> Wire {
        Wire::new(TcpStream::connect(self.address).await.unwrap())
    }

    /// One request on a connection of its own: the whole answer.
    pub(crate) async fn get(&self, path: &str) -> String {
        let mut client = self.connect().await;
        client.write(&format!("GET {path} HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\n\r\n")).await;
        client.rest().await
    }

    /// The value of one line of the metrics; 0 if it is not there.
    pub(crate) fn metric(&self, line: &str) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.metrics).unwrap();
        let value = text.lines().find_map(|l| l.strip_prefix(line)?.trim().parse().ok());
        value.unwrap_or(0)
    }
}

/// A pod: a socket that accepts.
pub(crate) struct Pod {
    pub(crate) number: u32,
    pub(crate) address: SocketAddr,
    listener: TcpListener,
}

impl Pod {
    pub(crate) async fn new(number: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { number, address: listener.local_addr().unwrap(), listener }
    }

    /// The same, in the raw.
    pub(crate) async fn accept_raw(&self) -> TcpStream {
        let accepted = timeout(PATIENCE, self.listener.accept()).await.expect("the gateway should connect");
        accepted.unwrap().0
    }

    /// The next connection that the gateway makes.
    pub(crate) async fn accept(&self) -> Wire {
        let accepted = timeout(PATIENCE, self.listener.accept()).await.expect("the gateway should connect");
        Wire::new(accepted.unwrap().0)
    }
}

/// A pod that answers by itself. Dropping it ends it.
pub(crate) struct Served {
    seen: Arc<Mutex<Seen>>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    paths: Vec<String>,
    now: usize,
    most: usize,
}

impl Pod {
    /// Answers every request with "hello" from now on.
    pub(crate) fn serve(self) -> Served {
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
        Served { seen, _tasks: tasks }
    }
}

impl Served {
    pub(crate) fn paths(&self) -> Vec<String> {
        self.seen.lock().unwrap().paths.clone()
    }

    pub(crate) fn most_at_once(&self) -> usize {
        self.seen.lock().unwrap().most
    }
}

/// One side of a connection, in plain bytes.
pub(crate) struct Wire {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, read: Vec::new() }
    }

    pub(crate) async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    pub(crate) async fn bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Everything up to and with `end`.
    pub(crate) async fn until(&mut self, end: &str) -> String {
        loop {
            let at = self.read.windows(end.len()).position(|window| window == end.as_bytes());
            if let Some(at) = at {
                let text: Vec<u8> = self.read.drain(..at + end.len()).collect();
                return String::from_utf8_lossy(&text).into_owned();
            }
            assert!(self.more().await, "ended before {end:?}: {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    /// The head of the next message, unless the connection ends before it.
    async fn next_head(&mut self) -> Option<String> {
        loop {
            let at = self.read.windows(4).position(|window| window == b"\r\n\r\n");
            if let Some(at) = at {
                return String::from_utf8(self.read.drain(..at + 4).collect()).ok();
            }
            let mut chunk = [0; 4096];
            let length = self.stream.read(&mut chunk).await.unwrap_or(0);
            if length == 0 {
                return None;
            }
            self.read.extend(&chunk[..length]);
        }
    }

    /// The head of a message.
    pub(crate) async fn head(&mut self) -> String {
        self.until("\r\n\r\n").await
    }

    /// Everything up to the end of the connection, however it ends.
    pub(crate) async fn rest(&mut self) -> String {
        while self.more().await {}
        String::from_utf8(std::mem::take(&mut self.read)).unwrap()
    }

    /// The same in bytes.
    pub(crate) async fn raw_rest(&mut self) -> Vec<u8> {
        while self.more().await {}
        std::mem::take(&mut self.read)
    }

    async fn more(&mut self) -> bool {
        let mut chunk = [0; 4096];
        let read = timeout(PATIENCE, self.stream.read(&mut chunk)).await.expect("something should come");
        let length = read.unwrap_or(0);
        self.read.extend(&chunk[..length]);
        length > 0
    }

    /// Whether anything has come, as far as one can know now.
    pub(crate) fn has_read(&self) -> bool {
        let mut byte = [0];
        !self.read.is_empty() || self.stream.try_read(&mut byte).is_ok()
    }

    /// Answers 200 with `body`.
    pub(crate) async fn answer(&mut self, body: &str) {
        self.write(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())).await;
    }
}

/// Waits until `what` holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep_until(tokio::time::Instant::now() + Duration::from_millis(2)).await;
        }
    };
    assert!(timeout(PATIENCE, waiting).await.is_ok(), "{what}");
}
