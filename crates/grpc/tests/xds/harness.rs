//! A server over a cache, and scripted clients. Contents of resources are plain texts: the server does not read them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream::poll_fn;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prometheus_client::registry::Registry as Metrics;
use rouse_grpc::GrpcTransport;
use rouse_grpc::xds::cache::{ResourceCache, ResourceChange};
use rouse_grpc::xds::resource_type::ResourceType;
use rouse_grpc::xds::{Access, XdsLimits, XdsMetrics, XdsParts, XdsServer, XdsSettings};
use rouse_net::clock::TokioClock;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use crate::channel::Http2Channel;
use crate::proto::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use crate::proto::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Status as ErrorDetail,
};
use crate::proto::service::endpoint::v3::endpoint_discovery_service_client::EndpointDiscoveryServiceClient;

pub(crate) use ResourceType::{Cluster as Cds, Endpoints as Eds, Listener as Lds, Routes as Rds};

/// In real time nothing takes as long; in paused time it costs nothing.
pub(crate) const GENEROUS: Duration = Duration::from_mins(5);

/// Where clients connect from.
pub(crate) fn peer() -> SocketAddr {
    SocketAddr::from(([10, 1, 0, 9], 50_000))
}

/// A server.
pub(crate) struct Scene {
    pub(crate) cache: Arc<ResourceCache>,
    pub(crate) server: XdsServer,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: Mutex<JoinSet<()>>,
    metrics: Mutex<Metrics>,
}

impl Scene {
    /// One without resources, for all clients.
    pub(crate) fn new() -> Self {
        Self::with(XdsLimits::default(), Access::Any)
    }

    pub(crate) fn with(limits: XdsLimits, access: Access) -> Self {
        let (cache, stop) = (Arc::<ResourceCache>::default(), CancellationToken::new());
        let mut metrics = Metrics::default();
        let parts = XdsParts {
            cache: Arc::clone(&cache),
            access,
            clock: Arc::new(TokioClock::new()),
            metrics: XdsMetrics::new(&mut metrics),
        };
        let server = XdsServer::new(XdsSettings { limits }, parts, stop.clone());
        Self { cache, server, stop, tasks: Mutex::default(), metrics: Mutex::new(metrics) }
    }

    /// Sets a resource.
    pub(crate) fn set(&self, kind: ResourceType, name: &str, content: &str) {
        self.cache.update([set(kind, name, content)]);
    }

    /// Removes a resource.
    pub(crate) fn remove(&self, kind: ResourceType, name: &str) {
        self.cache.update([remove(kind, name)]);
    }

    /// A connection in memory, served without TLS.
    pub(crate) fn dial(&self) -> DuplexStream {
        let (ours, theirs) = duplex(64 * 1024);
        let server = self.server.clone();
        let serve = async move { server.serve_connection(theirs, peer(), GrpcTransport::Plain).await };
        self.tasks.lock().unwrap().spawn(serve);
        ours
    }

    /// A client connects, without TLS.
    pub(crate) async fn connect(&self) -> Connection {
        Connection::over(self.dial()).await
    }

    /// A client with an aggregated stream.
    pub(crate) async fn envoy(&self) -> Envoy {
        self.connect().await.delta().await.unwrap()
    }

    /// The value of a series; 0 if there is none.
    pub(crate) fn metric(&self, series: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics.lock().unwrap()).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }

    /// How many streams ended for this reason.
    pub(crate) fn ended(&self, reason: &str) -> u64 {
        self.metric(&format!("rouse_xds_streams_ended_total{{reason=\"{reason}\"}}"))
    }
}

pub(crate) fn set(kind: ResourceType, name: &str, content: &str) -> ResourceChange {
    ResourceChange { kind, name: name.into(), encoded: Some(content.as_bytes().to_vec().into()) }
}

pub(crate) fn remove(kind: ResourceType, name: &str) -> ResourceChange {
    ResourceChange { kind, name: name.into(), encoded: None }
}

/// An HTTP/2 connection.
pub(crate) struct Connection {
    pub(crate) channel: Http2Channel,
    /// Drives the connection while it is there.
    pub(crate) _task: JoinSet<()>,
}

impl Connection {
    pub(crate) async fn over<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) -> Self {
        let handshake = timeout(GENEROUS, http2::handshake(TokioExecutor::new(), TokioIo::new(stream)));
        let (sender, driver) = handshake.await.unwrap().unwrap();
        let mut task = JoinSet::new();
        task.spawn(async { driver.await.unwrap_or_default() });
        Self { channel: Http2Channel(sender), _task: task }
    }

    pub(crate) fn aggregated(&self) -> AggregatedDiscoveryServiceClient<Http2Channel> {
        AggregatedDiscoveryServiceClient::with_origin(self.channel.clone(), origin())
    }

    pub(crate) fn endpoints(&self) -> EndpointDiscoveryServiceClient<Http2Channel> {
        EndpointDiscoveryServiceClient::with_origin(self.channel.clone(), origin())
    }

    /// Opens an aggregated stream.
    pub(crate) async fn delta(self) -> Result<Envoy, Status> {
        let (outgoing, request) = queue();
        let mut client = self.aggregated();
        let response = timeout(GENEROUS, client.delta_aggregated_resources(request)).await.unwrap()?;
        Ok(Envoy::new(outgoing, response.into_inner(), self))
    }

    /// Opens a stream of endpoints alone.
    pub(crate) async fn delta_endpoints(self) -> Result<Envoy, Status> {
        let (outgoing, request) = queue();
        let mut client = self.endpoints();
        let response = timeout(GENEROUS, client.delta_endpoints(request)).await.unwrap()?;
        Ok(Envoy::new(outgoing, response.into_inner(), self))
    }
}

fn origin() -> http::Uri {
    "http://xds:18000".parse().unwrap()
}

/// A stream of requests, and where to put them.
pub(crate) fn queue<M: Send + 'static>()
-> (mpsc::Sender<M>, impl futures_util::Stream<Item = M> + Send + 'static) {
    let (outgoing, mut queue) = mpsc::channel(64);
    (outgoing, poll_fn(move |context| queue.poll_recv(context)))
}

/// The status with which a stream ends, after any messages.
pub(crate) async fn end_of<M>(incoming: &mut Streaming<M>) -> (Code, String) {
    loop {
        match timeout(GENEROUS, incoming.message()).await.unwrap() {
            Ok(Some(_)) => {}
            Ok(None) => return (Code::Ok, String::new()),
            Err(status) => return (status.code(), status.message().to_owned()),
        }
    }
}

/// The nonce of a response that a test answers later.
#[derive(Debug, Clone)]
pub(crate) struct Nonce(ResourceType, String);

/// A client with one incremental stream.
pub(crate) struct Envoy {
    pub(crate) outgoing: mpsc::Sender<DeltaDiscoveryRequest>,
    pub(crate) incoming: Streaming<DeltaDiscoveryResponse>,
    _connection: Connection,
    node: Option<Node>,
    barriers: u64,
    /// The versions that were received, for a reconnect.
    pub(crate) versions: HashMap<(&'static str, String), String>,
}

impl Envoy {
    fn new(
        outgoing: mpsc::Sender<DeltaDiscoveryRequest>,
        incoming: Streaming<DeltaDiscoveryResponse>,
        connection: Connection,
    ) -> Self {
        let node = Some(Node { id: "envoy-1".into(), ..Node::default() });
        Self { outgoing, incoming, _connection: connection, node, barriers: 0, versions: HashMap::new() }
    }

    /// Sends a request. The first one of a stream says who the client is.
    pub(crate) async fn send(&mut self, request: DeltaDiscoveryRequest) {
        let node = self.node.take();
        self.outgoing.send(DeltaDiscoveryRequest { node, ..request }).await.unwrap();
    }

    /// Subscribes to names.
    pub(crate) async fn subscribe(&mut self, kind: ResourceType, names: &[&str]) {
        self.change(kind, names, &[]).await;
    }

    pub(crate) async fn unsubscribe(&mut self, kind: ResourceType, names: &[&str]) {
        self.change(kind, &[], names).await;
    }

    pub(crate) async fn change(&mut self, kind: ResourceType, subscribe: &[&str], unsubscribe: &[&str]) {
        self.send(request(kind, subscribe, unsubscribe)).await;
    }

    pub(crate) async fn ack(&mut self, nonce: &Nonce) {
        let Nonce(kind, nonce) = nonce.clone();
        self.send(DeltaDiscoveryRequest { response_nonce: nonce, ..request(kind, &[], &[]) }).await;
    }

    pub(crate) async fn nack(&mut self, nonce: &Nonce, reason: &str) {
        let Nonce(kind, nonce) = nonce.clone();
        let error_detail = Some(ErrorDetail { code: 13, message: reason.into() });
        let answer = DeltaDiscoveryRequest { response_nonce: nonce, error_detail, ..request(kind, &[], &[]) };
        self.send(answer).await;
    }

    /// Waits for the next response, and checks what it has, such as `cds a=1 b=2 -c`.
    pub(crate) async fn expect(&mut self, expected: &str) -> Nonce {
        let response = self.next().await;
        assert_eq!(shown(&response), expected);
        let kind = ResourceType::of_url(&response.type_url).unwrap();
        for resource in &response.resources {
            self.versions.insert((kind.as_str(), resource.name.clone()), resource.version.clone());
        }
        Nonce(kind, response.nonce)
    }

    /// Like [`Envoy::expect`], and accepts it.
    pub(crate) async fn accept(&mut self, expected: &str) {
        let nonce = self.expect(expected).await;
        self.ack(&nonce).await;
    }

    pub(crate) async fn next(&mut self) -> DeltaDiscoveryResponse {
        timeout(GENEROUS, self.incoming.message()).await.unwrap().unwrap().unwrap()
    }

    /// Checks that the server has nothing to send: the answer to a request for a type that it does not serve comes after all that is due.
    pub(crate) async fn expect_nothing(&mut self) {
        self.barriers += 1;
        let url = format!("type.googleapis.com/barrier.{}", self.barriers);
        self.send(DeltaDiscoveryRequest { type_url: url.clone(), ..DeltaDiscoveryRequest::default() }).await;
        let response = self.next().await;
        assert_eq!(response.type_url, url, "{}", shown(&response));
    }

    /// The status with which the server ends the stream.
    pub(crate) async fn end(&mut self) -> (Code, String) {
        end_of(&mut self.incoming).await
    }

    /// The first request of a type after a reconnect, with what an earlier stream has received.
    pub(crate) async fn resume(&mut self, kind: ResourceType, names: &[&str], before: &Envoy) {
        let of_kind = before.versions.iter().filter(|((of, _), _)| *of == kind.as_str());
        let initial_resource_versions = of_kind.map(|((_, name), version)| (name.clone(), version.clone()));
        let initial_resource_versions = initial_resource_versions.collect();
        self.send(DeltaDiscoveryRequest { initial_resource_versions, ..request(kind, names, &[]) }).await;
    }
}

pub(crate) fn request(kind: ResourceType, subscribe: &[&str], unsubscribe: &[&str]) -> DeltaDiscoveryRequest {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    DeltaDiscoveryRequest {
        type_url: kind.url().to_owned(),
        resource_names_subscribe: names(subscribe),
        resource_names_unsubscribe: names(unsubscribe),
        ..DeltaDiscoveryRequest::default()
    }
}

/// A response in one line.
pub(crate) fn shown(response: &DeltaDiscoveryResponse) -> String {
    let kind = ResourceType::of_url(&response.type_url);
    let mut line = kind.map_or(response.type_url.clone(), |kind| kind.as_str().to_owned());
    for resource in &response.resources {
        let value = resource.resource.as_ref().unwrap();
        assert_eq!(value.type_url, response.type_url);
        line = format!("{line} {}={}", resource.name, str::from_utf8(&value.value).unwrap());
    }
    for name in &response.removed_resources {
        line = format!("{line} -{name}");
    }
    line
}
