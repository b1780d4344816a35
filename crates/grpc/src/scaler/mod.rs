//! KEDA's external scaler: tells KEDA which routes are active, their metrics and their targets.
//!
//! `trigger.rs` reads which route a `ScaledObject` means, `calls.rs` answers KEDA, `active_stream.rs` has the timing of
//! `StreamIsActive`, and `health.rs` answers health checks. The load comes from [`RouteLoadSource`].

mod active_stream;
mod calls;
mod health;
mod metrics;
mod route_load;
pub(crate) mod trigger;

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use rouse_core::time::Clock;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use crate::connections::{CallerConnection, Connections, GrpcLimits, GrpcTransport};
use crate::proto::externalscaler::external_scaler_server::ExternalScalerServer;
use crate::proto::health::health_server::HealthServer;
use calls::ScalerCalls;
use health::HealthCalls;
use metrics::StreamGuard;

pub use metrics::ScalerMetrics;
pub use route_load::{RouteLoad, RouteLoadSource, RouteLoadStore};
pub use trigger::{ScaledRoute, ScaledRouteKind};

/// The most open streams. KEDA has one for each trigger, on one of the replicas.
const MAX_STREAMS: usize = 20_000;
/// How many calls at a time may wait for their message, on all connections. The listener has no authentication: without this, calls
/// that never send one would fill the memory.
const MAX_PENDING: usize = 4096;
/// How long a call may take to send its message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest request, in bytes: the metadata of a trigger.
const MAX_REQUEST: usize = 64 * 1024;

/// The limits of connections. KEDA has one connection for each address and TLS setting that triggers name, with all its streams.
const LIMITS: GrpcLimits = GrpcLimits {
    connections: 256,
    per_source: 64,
    handshakes: 32,
    calls: 20_000,
    idle: Duration::from_mins(5),
    call_window: 64 * 1024,
    connection_window: 1024 * 1024,
};

/// What the scaler uses.
pub struct ScalerServerParts {
    /// The load of routes.
    pub loads: Arc<dyn RouteLoadSource>,
    /// Whether this replica knows the load of all gateways. While it does not, it only says that a route is active; other calls are
    /// refused and health is `NOT_SERVING`, so that KEDA asks another replica: an answer of 0 would scale down.
    pub serving: watch::Receiver<bool>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Counts what happens.
    pub metrics: ScalerMetrics,
}

/// What the calls share.
struct ScalerParts {
    loads: Arc<dyn RouteLoadSource>,
    serving: watch::Receiver<bool>,
    metrics: ScalerMetrics,
    streams: Arc<Semaphore>,
    pending: Semaphore,
    stop: CancellationToken,
}

impl ScalerParts {
    /// Waits for the head of the response: a call has it when its message is read.
    async fn answer(&self, call: impl Future<Output = Result<Response<Body>, Infallible>>) -> Response<Body> {
        let Ok(_pending) = self.pending.try_acquire() else {
            return Status::resource_exhausted("too many calls have not sent their message").into_http();
        };
        match timeout(MESSAGE_TIMEOUT, call).await {
            Ok(Ok(response)) => response,
            Err(_) => Status::deadline_exceeded("the call has not sent its message in time").into_http(),
        }
    }

    /// A place among the open streams.
    fn place(&self) -> Result<(OwnedSemaphorePermit, StreamGuard), Status> {
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        let full =
            |_| Status::resource_exhausted(format!("{MAX_STREAMS} streams are open, which is the limit"));
        Ok((permit.map_err(full)?, self.metrics.stream()))
    }
}

/// The external scaler of one controller replica. Clones are the same server.
#[derive(Clone)]
pub struct ScalerServer {
    parts: Arc<ScalerParts>,
    clock: Arc<dyn Clock>,
}

impl ScalerServer {
    /// A server without connections. `stop` ends its streams, with OK.
    pub fn new(parts: ScalerServerParts, stop: CancellationToken) -> Self {
        let ScalerServerParts { loads, serving, clock, metrics } = parts;
        let (streams, pending) = (Arc::new(Semaphore::new(MAX_STREAMS)), Semaphore::new(MAX_PENDING));
        Self { parts: Arc::new(ScalerParts { loads, serving, metrics, streams, pending, stop }), clock }
    }

    /// Serves all connections to `listener`, until the stop.
    pub async fn serve(&self, listener: TcpListener, transport: GrpcTransport) {
        self.connections().serve(listener, transport).await;
    }

    /// Serves one connection that the caller has accepted.
    pub async fn serve_connection<IO>(&self, stream: IO, peer: SocketAddr, transport: GrpcTransport)
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.connections().serve_one(stream, peer, transport).await;
    }

    fn connections(&self) -> Connections<ScalerRouter> {
        let scaler = ExternalScalerServer::new(ScalerCalls(Arc::clone(&self.parts)));
        let health = HealthServer::new(HealthCalls(Arc::clone(&self.parts)));
        let router = ScalerRouter {
            scaler: scaler.max_decoding_message_size(MAX_REQUEST),
            health: health.max_decoding_message_size(MAX_REQUEST),
            parts: Arc::clone(&self.parts),
        };
        Connections::new(router, LIMITS, Arc::clone(&self.clock), self.parts.stop.clone())
    }
}

/// Routes calls to the two services of the listener.
#[derive(Clone)]
struct ScalerRouter {
    scaler: ExternalScalerServer<ScalerCalls>,
    health: HealthServer<HealthCalls>,
    parts: Arc<ScalerParts>,
}

impl Service<Request<Incoming>> for ScalerRouter {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        if let Some(caller) = request.extensions().get::<CallerConnection>() {
            caller.prove();
        }
        let call = if request.uri().path().starts_with("/grpc.health.v1.Health/") {
            self.health.call(request)
        } else {
            // It answers unknown calls with UNIMPLEMENTED.
            self.scaler.call(request)
        };
        let parts = Arc::clone(&self.parts);
        Box::pin(async move { Ok(parts.answer(call).await) })
    }
}

impl fmt::Debug for ScalerServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScalerServer").field("serving", &*self.parts.serving.borrow()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ScalerServerParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScalerServerParts").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rouse_core::time::Moment;
    use tonic::Code;

    use super::*;

    #[derive(Debug)]
    struct NoTime;

    impl Clock for NoTime {
        fn now(&self) -> Moment {
            Moment::ZERO
        }
    }

    #[test]
    fn at_the_limit_of_streams_another_one_is_refused_until_one_ends() {
        let parts = ScalerServerParts {
            loads: Arc::new(RouteLoadStore::default()),
            serving: watch::Sender::new(true).subscribe(),
            clock: Arc::new(NoTime),
            metrics: ScalerMetrics::new(&mut prometheus_client::registry::Registry::default()),
        };
        let server = ScalerServer::new(parts, CancellationToken::new());
        let mut places: Vec<_> = (0..MAX_STREAMS).map(|_| server.parts.place().unwrap()).collect();
        let refused = server.parts.place().err().unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("20000 streams are open"), "{refused:?}");
        places.pop();
        assert!(server.parts.place().is_ok());
    }
}
