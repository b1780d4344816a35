//! The xDS server: its settings, its services, and the streams that it accepts.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream as streams};
use http::{Request as HttpRequest, Response as HttpResponse};
use hyper::body::Incoming;
use rouse_core::time::Clock;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::{Request, Response, Status, Streaming};
use tower_service::Service;

use super::access::{Access, ClientIdentity};
use super::cache::ResourceCache;
use super::clients::{ClientLimits, Clients, ConnectedClient};
use super::delta::{DeltaStream, StreamBounds};
use super::load::EnvoyLoadServer;
use super::metrics::XdsMetrics;
use super::resource_type::{PerType, ResourceType};
use super::sotw::{SotwCall, SotwStream};
use super::stream::{SharedStream, StreamRules, StreamTask};
use super::stream_end::StreamEnd;
use crate::connections::{CallerConnection, Connections, GrpcLimits, GrpcTransport};
use crate::proto::envoy::service::discovery::v3 as discovery;
use crate::proto::envoy::service::endpoint::v3 as endpoint;
use crate::proto::envoy::service::load_stats::v3::load_reporting_service_server as load_stats;
use discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use endpoint::endpoint_discovery_service_server::{EndpointDiscoveryService, EndpointDiscoveryServiceServer};

/// How many responses wait for a client to read them. There is at most one of each type.
const QUEUE: usize = 4;

/// The limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XdsLimits {
    /// The most open streams.
    pub streams: usize,
    /// The most open streams of clients with one certificate name (SAN), or of one source without a certificate. Envoys that share a
    /// `ServiceAccount` share the name.
    pub streams_per_client: usize,
    /// The most names that one stream may subscribe to.
    pub names_per_stream: usize,
    /// The most bytes of a request.
    pub request_bytes: usize,
    /// The most bytes of the resources in one response. A larger resource goes alone.
    pub response_bytes: usize,
}

impl Default for XdsLimits {
    fn default() -> Self {
        Self {
            streams: 8192,
            streams_per_client: 4096,
            names_per_stream: 65_536,
            request_bytes: 8 * 1024 * 1024,
            response_bytes: 1024 * 1024,
        }
    }
}

/// The settings of the server.
#[derive(Debug, Clone, Copy, Default)]
pub struct XdsSettings {
    /// Its limits.
    pub limits: XdsLimits,
}

/// What the server uses.
pub struct XdsParts {
    /// The resources.
    pub cache: Arc<ResourceCache>,
    /// Which clients may connect.
    pub access: Access,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Counts what happens.
    pub metrics: XdsMetrics,
}

/// What the streams of a server share.
pub(super) struct ServerParts {
    pub(super) cache: Arc<ResourceCache>,
    pub(super) access: Access,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: XdsMetrics,
    pub(super) limits: XdsLimits,
    pub(super) clients: Arc<Clients>,
    pub(super) stop: CancellationToken,
}

type CallFuture = Pin<Box<dyn Future<Output = Result<HttpResponse<Body>, Infallible>> + Send>>;
/// Answers the calls of a service.
type Calls = Arc<dyn Fn(HttpRequest<Incoming>) -> CallFuture + Send + Sync>;

/// The xDS server. Clones are the same server.
#[derive(Clone)]
pub struct XdsServer {
    parts: Arc<ServerParts>,
    load_reports: Option<Calls>,
    tasks: TaskTracker,
}

impl XdsServer {
    /// A server without connections. `stop` ends its streams: Envoys keep what they have, and connect again.
    pub fn new(settings: XdsSettings, parts: XdsParts, stop: CancellationToken) -> Self {
        let XdsSettings { limits } = settings;
        let XdsParts { cache, access, clock, metrics } = parts;
        let client_limits = ClientLimits { streams: limits.streams, per_client: limits.streams_per_client };
        let clients = Arc::new(Clients::new(client_limits));
        let parts = ServerParts { cache, access, clock, metrics, limits, clients, stop };
        Self { parts: Arc::new(parts), load_reports: None, tasks: TaskTracker::new() }
    }

    /// Also serves load reports (LRS). Its calls have the [`ClientIdentity`] in the extensions of their requests, and come from clients
    /// that may connect. The service ends its streams itself when the server stops.
    fn with_load_reports<L: load_stats::LoadReportingService>(mut self, load_reports: L) -> Self {
        let service = load_stats::LoadReportingServiceServer::new(load_reports)
            .max_decoding_message_size(self.parts.limits.request_bytes);
        self.load_reports = Some(Arc::new(move |request| service.clone().call(request)));
        self
    }

    /// Also takes the load reports of the Envoys.
    #[must_use]
    pub fn with_loads(self, loads: &EnvoyLoadServer) -> Self {
        self.with_load_reports(loads.calls())
    }

    /// Serves all connections to `listener`, until the stop; then ends all streams.
    pub async fn serve(&self, listener: TcpListener, transport: GrpcTransport) {
        tokio::join!(self.connections().serve(listener, transport), self.count_resources());
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Serves one connection that the caller has accepted.
    pub async fn serve_connection<IO>(&self, stream: IO, peer: SocketAddr, transport: GrpcTransport)
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.connections().serve_one(stream, peer, transport).await;
    }

    /// The connected clients, in the order in which they connected.
    pub fn clients(&self) -> Vec<ConnectedClient> {
        self.parts.clients.list()
    }

    /// Whether every connected client that is subscribed to the endpoints of a name has accepted this version of them, which
    /// [`ResourceCache::version`] says; `None`: that there are none. Also true if no client is subscribed. A client that rejects it, or
    /// that has a newer version, has not accepted it.
    pub fn acknowledged_endpoints(&self, name: &str, version: Option<u64>) -> bool {
        self.parts.clients.acknowledged(name, version)
    }

    /// Changes whenever [`XdsServer::clients`] or [`XdsServer::acknowledged_endpoints`] may have changed.
    pub fn watch_clients(&self) -> watch::Receiver<u64> {
        self.parts.clients.watch()
    }

    fn connections(&self) -> Connections<Router> {
        let XdsLimits { streams, streams_per_client, request_bytes, .. } = self.parts.limits;
        // Many Envoys may come from one address, with one connection each.
        let limits = GrpcLimits {
            connections: streams.saturating_mul(2),
            per_source: streams,
            handshakes: 64,
            // An Envoy that does not use the aggregated stream has one stream for each cluster. Some more, so that one over the limit
            // gets a status: HTTP/2 would let it wait in silence.
            calls: u32::try_from(streams_per_client.saturating_add(16)).unwrap_or(u32::MAX),
            idle: Duration::from_mins(1),
            call_window: 256 * 1024,
            connection_window: 1024 * 1024,
        };
        let calls = DiscoveryCalls(self.clone());
        let router = Router {
            server: self.clone(),
            aggregated: AggregatedDiscoveryServiceServer::new(calls.clone())
                .max_decoding_message_size(request_bytes),
            endpoints: EndpointDiscoveryServiceServer::new(calls).max_decoding_message_size(request_bytes),
        };
        Connections::new(router, limits, Arc::clone(&self.parts.clock), self.parts.stop.clone())
    }

    /// Counts the resources whenever they change.
    async fn count_resources(&self) {
        let ServerParts { cache, metrics, stop, .. } = &*self.parts;
        let mut changes = cache.watch();
        loop {
            for kind in ResourceType::ALL {
                metrics.cached(kind, cache.count(kind));
            }
            tokio::select! {
                () = stop.cancelled() => return,
                _ = changes.changed() => {}
            }
        }
    }

    /// Accepts a stream, and serves it in a task of the server.
    fn accept<R: StreamRules>(
        &self,
        request: Request<Streaming<R::Request>>,
        rules: R,
    ) -> Result<ResponseStream<R::Response>, StreamEnd> {
        let caller = request.extensions().get::<CallerConnection>().cloned();
        let identity = request.extensions().get::<ClientIdentity>().cloned().ok_or(StreamEnd::Broken)?;
        let stream = Arc::new(SharedStream::new(rules));
        let place = self.parts.clients.enter(identity.clone(), Arc::clone(&stream) as _)?;
        let (outgoing, queue) = mpsc::channel(QUEUE);
        let (tell_end, end) = oneshot::channel();
        let task = StreamTask {
            server: Arc::clone(&self.parts),
            identity: identity.clone(),
            number: place.number,
            stream,
            incoming: request.into_inner(),
            outgoing,
            requests: 0,
            rejected: PerType::default(),
        };
        let (metrics, guard) = (self.parts.metrics.clone(), self.parts.metrics.stream());
        self.tasks.spawn(async move {
            let end = task.run().await;
            metrics.ended(end.reason());
            log_end(&identity, place.number, &end);
            drop((place, guard));
            if let Some(caller) = caller.filter(|_| end == StreamEnd::Unread) {
                caller.close();
            }
            tell_end.send(end).ok();
        });
        let responses = streams::unfold(queue, |mut queue| async move {
            let response = queue.recv().await?;
            Some((Ok(response), queue))
        });
        // The queue closes when the task has ended.
        let status = streams::once(end).filter_map(|end| async { end.ok()?.status().map(Err) });
        Ok(Box::pin(responses.chain(status)))
    }

    /// Refuses a call.
    fn refuse(&self, peer: Option<SocketAddr>, end: &StreamEnd) -> Status {
        self.parts.metrics.ended(end.reason());
        let peer = peer.map(tracing::field::display);
        tracing::warn!(peer, reason = end.reason(), cause = %end, "refused a stream of an Envoy");
        end.status().unwrap_or_else(|| Status::unknown(end.to_string()))
    }

    fn open<R: StreamRules>(
        &self,
        request: Request<Streaming<R::Request>>,
        rules: R,
    ) -> Result<Response<ResponseStream<R::Response>>, Status> {
        let peer = request.extensions().get::<CallerConnection>().map(|caller| caller.peer);
        self.accept(request, rules).map(Response::new).map_err(|end| self.refuse(peer, &end))
    }

    fn bounds(&self) -> StreamBounds {
        let XdsLimits { names_per_stream, response_bytes, .. } = self.parts.limits;
        StreamBounds { names: names_per_stream, response: response_bytes }
    }
}

/// What a client gets.
type ResponseStream<M> = Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>;

/// Answers the calls of clients.
#[derive(Clone)]
struct DiscoveryCalls(XdsServer);

#[tonic::async_trait]
impl AggregatedDiscoveryService for DiscoveryCalls {
    type StreamAggregatedResourcesStream = ResponseStream<discovery::DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = ResponseStream<discovery::DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<discovery::DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        self.0.open(request, SotwStream::new(SotwCall::Aggregated, self.0.bounds()))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<discovery::DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        self.0.open(request, DeltaStream::new(self.0.bounds()))
    }
}

#[tonic::async_trait]
impl EndpointDiscoveryService for DiscoveryCalls {
    type StreamEndpointsStream = ResponseStream<discovery::DiscoveryResponse>;
    type DeltaEndpointsStream = ResponseStream<discovery::DeltaDiscoveryResponse>;

    async fn stream_endpoints(
        &self,
        request: Request<Streaming<discovery::DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamEndpointsStream>, Status> {
        self.0.open(request, SotwStream::new(SotwCall::Endpoints, self.0.bounds()))
    }

    async fn delta_endpoints(
        &self,
        request: Request<Streaming<discovery::DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaEndpointsStream>, Status> {
        self.0.open(request, DeltaStream::of_endpoints(self.0.bounds()))
    }
}

/// Identifies clients, and routes their calls to the services of the listener.
#[derive(Clone)]
struct Router {
    server: XdsServer,
    aggregated: AggregatedDiscoveryServiceServer<DiscoveryCalls>,
    endpoints: EndpointDiscoveryServiceServer<DiscoveryCalls>,
}

impl Service<HttpRequest<Incoming>> for Router {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = CallFuture;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: HttpRequest<Incoming>) -> CallFuture {
        let Some(caller) = request.extensions().get::<CallerConnection>().cloned() else {
            return answer(Status::internal("the call has no connection"));
        };
        let access = &self.server.parts.access;
        let Some(identity) = access.identify(&caller.certificate_names, caller.peer) else {
            let found = caller.certificate_names.join(", ");
            let found = if found.is_empty() { "(none)".to_owned() } else { found };
            caller.close();
            return answer(self.server.refuse(Some(caller.peer), &StreamEnd::Denied { found }));
        };
        caller.prove();
        request.extensions_mut().insert(identity);
        let path = request.uri().path();
        if path.starts_with("/envoy.service.endpoint.v3.EndpointDiscoveryService/") {
            return self.endpoints.call(request);
        }
        match &self.server.load_reports {
            Some(load_reports) if path.starts_with("/envoy.service.load_stats.v3.LoadReportingService/") => {
                load_reports(request)
            }
            // It answers unknown calls with UNIMPLEMENTED.
            _ => self.aggregated.call(request),
        }
    }
}

fn answer(status: Status) -> CallFuture {
    Box::pin(async move { Ok(status.into_http()) })
}

fn log_end(identity: &ClientIdentity, stream: u64, end: &StreamEnd) {
    let client = identity.to_string();
    if end.is_fault() {
        tracing::warn!(client, stream, reason = end.reason(), cause = %end, "ended the stream of an Envoy");
    } else {
        tracing::info!(client, stream, reason = end.reason(), "an Envoy has no stream any more");
    }
}

impl fmt::Debug for XdsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdsServer").field("clients", &self.clients().len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for XdsParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdsParts").finish_non_exhaustive()
    }
}
