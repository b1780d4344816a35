//! Serves one client connection: detects its protocol, gives its requests to the handler, and closes it.

use std::cell::Cell;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, Version};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rouse_core::shutdown::InFlightGuard;
use rouse_net::tls::{Alpn, ServerTls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, timeout};

use super::answer::{self, AnswerBody};
use super::limiter::{ConnectionLimiter, ConnectionPermit, TrackedConnection};
use super::reject::rejected;
use super::socket::Socket;
use super::validated_stream::ValidatedStream;
use crate::budget::{CLIENT_STREAM_WINDOW, ConnectionLimits, HYPER_BUFFER};
use crate::client::{ClientConnection, TlsSession, has_unread};
use crate::request::{NoAnswer, RequestHandler};
use crate::runtime::Runtime;
use crate::telemetry::metrics::Metrics;
use crate::upstream::{ClientRequest, LocalExecutor, closed};

/// The beginning of an HTTP/2 connection with prior knowledge, long enough to tell it from HTTP/1: no method begins like this.
const PREFACE: &[u8] = b"PRI ";
/// How long a client may take for its first bytes while the gateway drains.
const DRAIN_FIRST_BYTES: Duration = Duration::from_millis(500);
/// How long bytes that have arrived may take to be read before the connection is closed.
const UNREAD_GRACE: Duration = Duration::from_millis(100);
/// How long responses may take to be written once the connection has to close.
const LINGER: Duration = Duration::from_secs(1);
/// How often, and how many times, to peek again at first bytes that may become either protocol.
const PEEK_INTERVAL: Duration = Duration::from_millis(2);
const MAX_PEEKS: usize = 500;
/// The number of headers that hyper allows by default.
const DEFAULT_HEADERS: usize = 100;
/// The largest window that HTTP/2 allows.
const LARGEST_WINDOW: u32 = (1 << 31) - 1;

/// A connection that was accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: TcpStream,
    /// Where it came from.
    pub(crate) client: SocketAddr,
    pub(crate) options: ListenerOptions,
}

/// How the connections of a listener begin.
#[derive(Debug, Clone, Default)]
pub struct ListenerOptions {
    /// How to do the TLS handshake; `None`: without TLS.
    pub tls: Option<Arc<ServerTls>>,
}

impl ListenerOptions {
    /// The same, with this TLS handshake, or none.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<&Arc<ServerTls>>) -> Self {
        self.tls = tls.cloned();
        self
    }
}

/// What the client connections of one worker thread share.
#[derive(Debug)]
pub(crate) struct Downstream {
    pub(crate) runtime: Rc<Runtime>,
    pub(crate) limits: ConnectionLimits,
    pub(crate) limiter: Rc<ConnectionLimiter>,
    pub(crate) handler: Rc<RequestHandler>,
    pub(crate) metrics: Metrics,
}

impl Downstream {
    /// Serves a connection in a task of its own, if the limiter admits it. `counted` ends with it.
    pub(crate) fn spawn<C: 'static>(self: &Rc<Self>, accepted: Accepted, counted: C, arrival: InFlightGuard) {
        let Some(permit) = self.limiter.admit() else {
            return self.metrics.connection_refused();
        };
        let downstream = Rc::clone(self);
        self.runtime.spawn(async move {
            let _counted = counted;
            serve(downstream, accepted, permit, arrival).await;
        });
    }
}

/// Serves one connection until it ends.
async fn serve(
    downstream: Rc<Downstream>,
    accepted: Accepted,
    permit: ConnectionPermit,
    arrival: InFlightGuard,
) {
    let Accepted { stream, client: address, options: ListenerOptions { tls } } = accepted;
    let permit = Rc::new(permit);
    let protocol = match tls {
        Some(_) => None,
        None => match detect(&downstream, &stream, &permit).await {
            None => return,
            protocol => protocol,
        },
    };
    let (socket, presence) = Socket::new(stream);
    let client = ClientConnection {
        address,
        presence,
        tls: None,
        arrival: Cell::new(Some(arrival)),
        state: Rc::clone(permit.connection.client()),
        _permit: Rc::clone(&permit) as _,
    };
    match (tls, protocol) {
        // Boxed, so that the futures of connections without TLS stay small.
        (Some(tls), _) => Box::pin(secure(&downstream, socket, tls, client, &permit)).await,
        (None, protocol) => {
            serve_protocol(
                &downstream,
                protocol.unwrap_or(RequestProtocol::Http1),
                socket,
                Rc::new(client),
                &permit,
            )
            .await;
        }
    }
}

/// Does the TLS handshake, and serves the connection.
async fn secure(
    downstream: &Rc<Downstream>,
    socket: Socket,
    tls: Arc<ServerTls>,
    client: ClientConnection,
    permit: &ConnectionPermit,
) {
    let deadline = Instant::now() + downstream.limits.head;
    let handshake = tls.accept(socket, deadline);
    let done = tokio::select! {
        done = handshake => done,
        () = permit.expired(&downstream.runtime.deadlines, || false) => return,
        () = without_request(downstream, permit) => return,
    };
    // The client gets a TLS alert for every error.
    let Ok((stream, peer)) = done else { return };
    let protocol = if peer.alpn == Some(Alpn::H2) { RequestProtocol::Http2 } else { RequestProtocol::Http1 };
    let session = TlsSession { tls: Arc::clone(&tls), policy: peer.policy };
    let client = ClientConnection { tls: Some(session), ..client };
    serve_protocol(downstream, protocol, stream, Rc::new(client), permit).await;
}

async fn serve_protocol<IO>(
    downstream: &Rc<Downstream>,
    protocol: RequestProtocol,
    io: IO,
    client: Rc<ClientConnection>,
    permit: &ConnectionPermit,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match protocol {
        RequestProtocol::Http1 => {
            let tracker = permit.connection.tracker();
            let guarded =
                ValidatedStream::new(io, downstream.limits.heads, downstream.runtime.clock, tracker);
            http1(downstream, guarded, client, permit).await;
        }
        RequestProtocol::Http2 => {
            // Until its first request, the connection counts as an incomplete head.
            permit.connection.tracker().head_begins(downstream.runtime.now());
            // Boxed, so that the futures of HTTP/1 connections stay small.
            Box::pin(http2(downstream, io, client, permit)).await;
        }
    }
}

enum RequestProtocol {
    Http1,
    Http2,
}

/// Detects the protocol by peeking at the first bytes; `None` if there are none.
async fn detect(
    downstream: &Downstream,
    stream: &TcpStream,
    permit: &ConnectionPermit,
) -> Option<RequestProtocol> {
    let mut peeks = interval(PEEK_INTERVAL);
    let look = async {
        let mut first = [0; PREFACE.len()];
        for _ in 0..MAX_PEEKS {
            let length = stream.peek(&mut first).await.ok().filter(|length| *length > 0)?;
            let seen = first.get(..length)?;
            if seen == PREFACE {
                return Some(RequestProtocol::Http2);
            }
            if !PREFACE.starts_with(seen) {
                return Some(RequestProtocol::Http1);
            }
            // `P` may become `PRI` or `POST`.
            peeks.tick().await;
        }
        // A client that sends its first letters this slowly is treated as HTTP/1.
        Some(RequestProtocol::Http1)
    };
    let mut look = pin!(look);
    tokio::select! {
        biased;
        seen = &mut look => seen,
        () = permit.expired(&downstream.runtime.deadlines, || has_unread(stream)) => None,
        () = downstream.runtime.drain.cancelled() => timeout(DRAIN_FIRST_BYTES, look).await.ok()?,
    }
}

async fn http1<IO>(
    downstream: &Rc<Downstream>,
    io: IO,
    client: Rc<ClientConnection>,
    permit: &ConnectionPermit,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| Box::pin(respond(downstream, &client, &permit.connection, request)));
    let mut builder = http1::Builder::new();
    // Not `pipeline_flush`: with it, hyper buffers responses without a limit, and delays them.
    builder.max_buf_size(downstream.limits.read_ahead());
    let headers = downstream.limits.heads.headers;
    if headers > DEFAULT_HEADERS {
        // Only above the default: with a custom limit, hyper allocates a list for each request.
        builder.max_headers(headers);
    }
    let connection = pin!(builder.serve_connection(TokioIo::new(io), service).with_upgrades());
    run(downstream, &client, permit, connection, http1::UpgradeableConnection::graceful_shutdown).await;
}

async fn http2<IO>(
    downstream: &Rc<Downstream>,
    io: IO,
    client: Rc<ClientConnection>,
    permit: &ConnectionPermit,
) where
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (own, asking, tracked) = (Rc::clone(downstream), Rc::clone(&client), Rc::clone(&permit.connection));
    let service = service_fn(move |request| {
        let (downstream, client, connection) = (Rc::clone(&own), Rc::clone(&asking), Rc::clone(&tracked));
        // Boxed: hyper moves the future several times on its way into a task.
        Box::pin(async move { respond(&downstream, &client, &connection, request).await })
    });
    let mut builder = http2::Builder::new(LocalExecutor::new(&downstream.runtime));
    let limits = &downstream.limits;
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(CLIENT_STREAM_WINDOW)
        // With less than all streams together, streams that are held would stall the others.
        .initial_connection_window_size(
            limits.streams.saturating_mul(CLIENT_STREAM_WINDOW).min(LARGEST_WINDOW),
        )
        .max_send_buf_size(HYPER_BUFFER)
        .max_header_list_size(header_list(limits))
        .max_concurrent_streams(limits.streams);
    let connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    run(downstream, &client, permit, connection, http2::Connection::graceful_shutdown).await;
}

/// The longest list of headers that h2 reads. Twice as long as allowed, so that too long heads are rejected like all other bad
/// requests: h2 answers 431 by itself, without a text, metrics or access log. Not more: h2 keeps all of it until the request is
/// answered.
fn header_list(limits: &ConnectionLimits) -> u32 {
    u32::try_from(limits.heads.head.saturating_mul(2)).unwrap_or(u32::MAX)
}

/// A connection, or a stream, that ends without a response. hyper resets a stream with the reason of the source.
#[derive(Debug, thiserror::Error)]
enum Unresponded {
    #[error("the client closed the connection")]
    ClientGone,
    #[error("the request is refused")]
    Refused(#[source] h2::Error),
}

impl From<NoAnswer> for Unresponded {
    fn from(none: NoAnswer) -> Self {
        match none {
            NoAnswer::ClientGone => Self::ClientGone,
            NoAnswer::Refused => Self::Refused(h2::Reason::REFUSED_STREAM.into()),
        }
    }
}

/// Answers one request.
async fn respond(
    downstream: &Downstream,
    client: &Rc<ClientConnection>,
    connection: &TrackedConnection,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Unresponded> {
    let guard = connection.begin_request();
    let rejected = rejected(&request, connection.refused(), &downstream.limits.heads);
    let bodiless = request.method() == Method::HEAD && request.version() == Version::HTTP_2;
    let answer = downstream.handler.handle(client, ClientRequest::new(request), rejected, guard).await?;
    Ok(answer::response(answer, bodiless))
}

/// Runs the connection until it ends by itself, or until it has to close and has had time to. Errors are ignored here: each
/// request records its own end.
async fn run<C: Future>(
    downstream: &Downstream,
    client: &ClientConnection,
    permit: &ConnectionPermit,
    mut connection: Pin<&mut C>,
    close_gracefully: impl FnOnce(Pin<&mut C>),
) {
    tokio::select! {
        biased;
        _ = connection.as_mut() => return,
        () = downstream.runtime.drain.cancelled() => {}
        () = permit.expired(&downstream.runtime.deadlines, || client.presence.has_unread()) => {}
    }
    if permit.connection.is_cut() {
        return;
    }
    // A request has arrived and is not read yet: hyper would close the connection without an answer.
    if client.presence.has_unread() {
        let look = downstream.runtime.now() + UNREAD_GRACE;
        tokio::select! {
            biased;
            _ = connection.as_mut() => return,
            () = downstream.runtime.deadline(look) => {}
        }
    }
    close_gracefully(connection.as_mut());
    tokio::select! {
        // First, so that the last bytes are written.
        biased;
        _ = connection => {}
        () = lingered(downstream, permit) => {}
        () = without_request(downstream, permit) => {}
        () = closed(&downstream.runtime.close) => {}
    }
}

/// Ends when the connection has expired, and the client has had time to take the last response.
async fn lingered(downstream: &Downstream, permit: &ConnectionPermit) {
    loop {
        permit.expired(&downstream.runtime.deadlines, || false).await;
        if permit.connection.is_cut() {
            return;
        }
        downstream.runtime.deadline(downstream.runtime.now() + LINGER).await;
        // A request that arrived at the last moment is answered.
        if !permit.connection.has_request() {
            return;
        }
    }
}

/// Ends when the gateway drains and the client has not sent a first request in time.
async fn without_request(downstream: &Downstream, permit: &ConnectionPermit) {
    downstream.runtime.drain.cancelled().await;
    tokio::time::sleep_until(Instant::now() + DRAIN_FIRST_BYTES).await;
    if permit.connection.client().has_had_request() {
        std::future::pending::<()>().await;
    }
}
