//! The connections of a gRPC listener: limits, TLS, HTTP/2, and their end.

mod tasks;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rouse_core::time::Clock;
use rouse_net::auth::certificate_names;
use rouse_net::fair_limiter::{FairLimiter, FairPermit, network};
use rouse_net::tls::{Alpn, ServerTls, peer_certificate};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower_service::Service;

pub(crate) use tasks::ConnectionTasks;

/// After this time, a TLS handshake has stalled, and may be cancelled for another one.
const HANDSHAKE_STALLED: Duration = Duration::from_secs(1);
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long calls may go on after the stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection that the server closes has to send what was answered.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a failed accept, for example without free file descriptors: an immediate retry would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most bytes of the headers of a call. A token has about one kilobyte.
const MAX_HEADERS: u32 = 16 * 1024;
/// HTTP/2 pings: a client that is gone without a word is noticed.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// How clients connect.
#[derive(Debug, Clone)]
pub enum GrpcTransport {
    /// Over TLS. Its settings offer HTTP/2.
    Tls(Arc<ServerTls>),
    /// Without TLS.
    Plain,
}

/// The limits of a listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrpcLimits {
    /// The most connections at a time.
    pub(crate) connections: usize,
    /// The most connections of one source.
    pub(crate) per_source: usize,
    /// The most TLS handshakes at a time. One source gets at most half of them.
    pub(crate) handshakes: usize,
    /// The most calls at a time on one connection.
    pub(crate) calls: u32,
    /// A connection without a call for this long is closed.
    pub(crate) idle: Duration,
    /// The HTTP/2 window of one call: how much a client may send that is not read yet.
    pub(crate) call_window: u32,
    /// The HTTP/2 window of all calls of a connection.
    pub(crate) connection_window: u32,
}

/// The connection that a call came over, in the extensions of its request.
#[derive(Debug, Clone)]
pub(crate) struct CallerConnection {
    /// The address of the client.
    pub(crate) peer: SocketAddr,
    /// The names (SAN) of the certificate that the client presented and that was verified.
    pub(crate) certificate_names: Arc<[String]>,
    proven: Arc<Notify>,
    closed: Arc<Notify>,
}

impl CallerConnection {
    fn new(peer: SocketAddr, certificate_names: Vec<String>) -> Self {
        Self {
            peer,
            certificate_names: certificate_names.into(),
            proven: Arc::default(),
            closed: Arc::default(),
        }
    }

    /// The client has proven who it is: at the limit, its connection goes after those that have not.
    pub(crate) fn prove(&self) {
        self.proven.notify_one();
    }

    /// Closes the connection: what was answered has [`CLOSE_TIMEOUT`] to be sent. Without this, a client that reads nothing would
    /// keep the connection for ever.
    pub(crate) fn close(&self) {
        self.closed.notify_one();
    }
}

/// Answers calls, as the generated servers do.
pub(crate) trait CallService:
    Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> CallService for S where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// The connections of one listener.
#[derive(Clone)]
pub(crate) struct Connections<S> {
    service: S,
    limits: GrpcLimits,
    limiter: Arc<FairLimiter>,
    handshakes: Arc<FairLimiter>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
}

impl<S: CallService> Connections<S> {
    /// Connections whose calls `service` answers, until `stop`.
    pub(crate) fn new(
        service: S,
        limits: GrpcLimits,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> Self {
        let limiter = FairLimiter::new(limits.connections, limits.per_source, Duration::ZERO);
        let handshakes = FairLimiter::new(limits.handshakes, limits.handshakes / 2, HANDSHAKE_STALLED);
        Self { service, limits, limiter, handshakes, clock, stop }
    }

    /// Serves all connections to `listener`. After the stop, calls have a few seconds to end.
    pub(crate) async fn serve(self, listener: TcpListener, transport: GrpcTransport) {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let accepted = tokio::select! {
                () = self.stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    // Without this, the kernel may delay small messages.
                    stream.set_nodelay(true).ok();
                    connections.spawn(self.clone().serve_one(stream, peer, transport.clone()));
                }
                Err(error) => {
                    tracing::error!(%error, "cannot accept a gRPC connection");
                    sleep_until(Instant::now() + ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        timeout(DRAIN_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await.ok();
    }

    /// Serves one connection.
    pub(crate) async fn serve_one<IO>(self, stream: IO, peer: SocketAddr, transport: GrpcTransport)
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let cancel = CancellationToken::new();
        let source = network(peer.ip());
        // A connection over the limit is closed at once.
        let Some(permit) = self.limiter.take(source, cancel.clone(), self.clock.now()) else { return };
        let serve = async {
            match transport {
                GrpcTransport::Plain => {
                    self.http2(stream, CallerConnection::new(peer, Vec::new()), &permit).await;
                }
                GrpcTransport::Tls(tls) => {
                    let handshake = self.handshakes.take(source, cancel.clone(), self.clock.now());
                    let Some(handshake) = handshake else { return };
                    let accepted = tls.accept(stream, Instant::now() + HANDSHAKE_TIMEOUT).await;
                    drop(handshake);
                    match accepted {
                        Ok((stream, shaken)) if shaken.alpn != Some(Alpn::Http1) => {
                            let names = peer_certificate(&stream).map(certificate_names).unwrap_or_default();
                            self.http2(stream, CallerConnection::new(peer, names), &permit).await;
                        }
                        // A client that fails the handshake, or does not speak HTTP/2, is not an error of ours.
                        _ => {}
                    }
                }
            }
        };
        cancel.run_until_cancelled(serve).await;
    }

    async fn http2<IO>(&self, stream: IO, caller: CallerConnection, permit: &FairPermit)
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (tasks, _end) = ConnectionTasks::new();
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(caller.clone());
            // The generated services are always ready.
            self.service.clone().call(request)
        });
        let connection = self.builder(&tasks).serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let (mut active, mut stopped) = (None, false);
        let (mut seen, mut check) = (tasks.activity(), Instant::now() + self.limits.idle);
        // Also a client that does not say goodbye, or has not even said hello, has no connection after this.
        let mut end: Option<Instant> = None;
        loop {
            tokio::select! {
                // A client that closes the connection early is not an error.
                _ = connection.as_mut() => return,
                () = self.stop.cancelled(), if !stopped => {
                    stopped = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = caller.proven.notified(), if active.is_none() => {
                    permit.prove();
                    active = Some(permit.begin());
                }
                () = caller.closed.notified(), if end.is_none() => {
                    end = Some(Instant::now() + CLOSE_TIMEOUT);
                    connection.as_mut().graceful_shutdown();
                }
                () = sleep_until(check), if end.is_none() => {
                    let now = tasks.activity();
                    if now.is_idle_since(seen) {
                        end = Some(Instant::now() + CLOSE_TIMEOUT);
                        connection.as_mut().graceful_shutdown();
                    }
                    (seen, check) = (now, Instant::now() + self.limits.idle);
                }
                () = sleep_until(end.unwrap_or(check)), if end.is_some() => return,
            }
        }
    }

    fn builder(&self, tasks: &ConnectionTasks) -> http2::Builder<ConnectionTasks> {
        let mut http = http2::Builder::new(tasks.clone());
        http.timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .max_concurrent_streams(self.limits.calls)
            .max_header_list_size(MAX_HEADERS)
            .initial_stream_window_size(self.limits.call_window)
            .initial_connection_window_size(self.limits.connection_window);
        http
    }
}
