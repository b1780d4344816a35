//! A server of load reports over a registry, and scripted Envoys.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream::poll_fn;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prometheus_client::registry::Registry as Metrics;
use rouse_core::endpoint::ServiceId;
use rouse_core::load_meter::LoadSample;
use rouse_core::registry::{Registry, RegistrySettings};
use rouse_core::scale::{EnvoyId, EnvoyLoad, EnvoyState};
use rouse_grpc::GrpcTransport;
use rouse_grpc::xds::load::{ConnectedEnvoy, EnvoyLoadMetrics, EnvoyLoadParts, EnvoyLoadServer};
use rouse_net::clock::TokioClock;
use rouse_testkit::fakes::CountingEngine;
use tokio::io::duplex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Streaming};

use crate::channel::Http2Channel;
use crate::proto::envoy::service::discovery::v3::Node;
use crate::proto::envoy::service::load_stats::v3::load_reporting_service_client::LoadReportingServiceClient;
use crate::proto::envoy::service::load_stats::v3::{
    ClusterStats, LoadStatsRequest, LoadStatsResponse, Locality, UpstreamLocalityStats,
};

pub(crate) const GENEROUS: Duration = Duration::from_mins(5);

pub(crate) fn service(name: &str) -> ServiceId {
    ServiceId::new("shop", name).unwrap()
}

/// A replica whose registry has services `cart` and `till` of `shop`.
pub(crate) struct Scene {
    pub(crate) registry: Arc<Registry>,
    pub(crate) connected: watch::Sender<Arc<[ConnectedEnvoy]>>,
    pub(crate) stop: CancellationToken,
    states: watch::Receiver<BTreeMap<EnvoyId, EnvoyState>>,
    server: EnvoyLoadServer,
    tasks: Mutex<JoinSet<()>>,
    metrics: Mutex<Metrics>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let clock = TokioClock::new();
        let engine = Arc::<CountingEngine>::default();
        let registry = Registry::new(RegistrySettings::default(), Arc::new(clock), engine);
        for name in ["cart", "till"] {
            registry.service(&service(name));
        }
        let (mut metrics, stop) = (Metrics::default(), CancellationToken::new());
        let parts = EnvoyLoadParts {
            meters: Arc::clone(&registry) as _,
            clock: Arc::new(clock),
            metrics: EnvoyLoadMetrics::new(&mut metrics),
        };
        let server = EnvoyLoadServer::new(parts, stop.clone());
        let (connected, envoys) = watch::channel(Arc::from([]));
        let (publish, states) = watch::channel(BTreeMap::new());
        let mut tasks = JoinSet::new();
        let running = server.clone();
        tasks.spawn(async move {
            running.run(envoys, |states| drop(publish.send_replace(states.clone()))).await;
        });
        let (tasks, metrics) = (Mutex::new(tasks), Mutex::new(metrics));
        Self { registry, connected, stop, states, server, tasks, metrics }
    }

    /// An Envoy connects and opens a stream, and has said nothing yet.
    pub(crate) async fn stream(&self) -> Envoy {
        let (ours, theirs) = duplex(256 * 1024);
        let (server, peer) = (self.server.clone(), SocketAddr::from(([10, 1, 0, 9], 50_000)));
        let serve = async move { server.serve_connection(theirs, peer, GrpcTransport::Plain).await };
        self.tasks.lock().unwrap().spawn(serve);
        let handshake = timeout(GENEROUS, http2::handshake(TokioExecutor::new(), TokioIo::new(ours)));
        let (sender, driver) = handshake.await.unwrap().unwrap();
        let mut connection = JoinSet::new();
        connection.spawn(async { driver.await.unwrap_or_default() });
        let (outgoing, mut queue) = mpsc::channel(256);
        let request = tonic::Request::new(poll_fn(move |context| queue.poll_recv(context)));
        let channel = Http2Channel(sender);
        let mut client = LoadReportingServiceClient::with_origin(channel, "http://xds:9000".parse().unwrap());
        let incoming =
            timeout(GENEROUS, client.stream_load_stats(request)).await.unwrap().unwrap().into_inner();
        Envoy { outgoing, incoming, connection }
    }

    /// An Envoy that has said who it is, and was answered.
    pub(crate) async fn envoy(&self, node: &str) -> Envoy {
        let mut envoy = self.stream().await;
        envoy.hello(node).await;
        envoy
    }

    /// Waits until the registry's meter of `cart` has this many requests so far, and present.
    pub(crate) async fn until_cart(&self, requests: u64, present: u32) {
        let meter = Arc::clone(self.registry.get(&service("cart")).unwrap().meter());
        self.until(&format!("{requests} requests, {present} present"), || {
            let LoadSample { requests: so_far, present: now, .. } = meter.sample();
            (so_far, now) == (requests, present)
        })
        .await;
    }

    /// Waits for a condition, while time passes.
    pub(crate) async fn until(&self, what: &str, is: impl Fn() -> bool) {
        let wait = async {
            while !is() {
                tokio::time::sleep_until(tokio::time::Instant::now() + Duration::from_millis(20)).await;
            }
        };
        assert!(timeout(GENEROUS, wait).await.is_ok(), "waited in vain until {what}: {:?}", self.cart());
    }

    pub(crate) fn cart(&self) -> LoadSample {
        self.registry.get(&service("cart")).unwrap().meter().sample()
    }

    /// Whether an Envoy is silent; `None`: it is not known.
    pub(crate) fn silent(&self, node: &str) -> Option<bool> {
        let states = self.states.borrow();
        states.get(&EnvoyId::new("", node)).map(|state| state.load != EnvoyLoad::Reported)
    }

    pub(crate) async fn until_silent(&self, node: &str, expected: Option<bool>) {
        self.until(&format!("{node} is silent: {expected:?}"), || self.silent(node) == expected).await;
    }

    pub(crate) fn state(&self, node: &str) -> Option<EnvoyState> {
        self.states.borrow().get(&EnvoyId::new("", node)).cloned()
    }

    pub(crate) fn metric(&self, series: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics.lock().unwrap()).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }
}

/// A scripted Envoy with one stream.
pub(crate) struct Envoy {
    pub(crate) outgoing: mpsc::Sender<LoadStatsRequest>,
    pub(crate) incoming: Streaming<LoadStatsResponse>,
    connection: JoinSet<()>,
}

impl Envoy {
    /// Says who it is. Returns the answer.
    pub(crate) async fn hello(&mut self, node: &str) -> LoadStatsResponse {
        let node = Some(Node { id: node.into(), ..Node::default() });
        self.outgoing.send(LoadStatsRequest { node, cluster_stats: Vec::new() }).await.unwrap();
        timeout(GENEROUS, self.incoming.message()).await.unwrap().unwrap().unwrap()
    }

    /// Sends a report with these clusters.
    pub(crate) async fn report(&self, clusters: Vec<ClusterStats>) {
        self.outgoing.send(LoadStatsRequest { node: None, cluster_stats: clusters }).await.unwrap();
    }

    /// The status with which the stream ends.
    pub(crate) async fn end(mut self) -> (Code, String) {
        loop {
            match timeout(GENEROUS, self.incoming.message()).await.unwrap() {
                Ok(Some(_)) => {}
                Ok(None) => return (Code::Ok, String::new()),
                Err(status) => return (status.code(), status.message().to_owned()),
            }
        }
    }

    /// The connection breaks.
    pub(crate) async fn cut(mut self) {
        self.connection.shutdown().await;
    }
}

/// The load of a cluster in one locality.
pub(crate) fn cluster(name: &str, issued: u64, present: u64) -> ClusterStats {
    let stats = UpstreamLocalityStats {
        total_issued_requests: issued,
        total_requests_in_progress: present,
        ..UpstreamLocalityStats::default()
    };
    ClusterStats {
        cluster_name: name.into(),
        upstream_locality_stats: vec![stats],
        ..ClusterStats::default()
    }
}

/// The same cluster, with load at the gateways too.
pub(crate) fn with_gateways(mut cluster: ClusterStats, issued: u64, present: u64) -> ClusterStats {
    cluster.upstream_locality_stats.push(UpstreamLocalityStats {
        locality: Some(Locality { region: rouse_grpc::xds::load::GATEWAY_REGION.into() }),
        total_issued_requests: issued,
        total_requests_in_progress: present,
        ..UpstreamLocalityStats::default()
    });
    cluster
}
