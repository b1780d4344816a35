//! A connection of a pool, with the right to send one request on it.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::Scheme;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use rouse_net::tls::TlsError;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::either::Either;

use super::dial::{Observed, PodStream};
use super::{DialError, Pool, STREAM_WINDOW, STREAMS};
use crate::budget::{HYPER_BUFFER, PodRequestPermit};
use crate::error::Failure;
use crate::upstream::body::RequestBody;
use crate::upstream::context::UpstreamContext;
use crate::upstream::executor::LocalExecutor;

/// How much a pod may send on all streams of one connection: with less, streams that are not read would stall the others.
/// Four times as much, since h2 counts 256 bytes for each unread frame, and ends the connection at half of its window.
const CONNECTION_WINDOW: u32 = 4 * STREAMS as u32 * STREAM_WINDOW;
/// How often a pod that has open streams and sends nothing gets a PING.
const PING: Duration = Duration::from_secs(10);
/// How long a connection may take after a response until it is ready for the next request.
const SETTLE: Duration = Duration::from_millis(100);

/// The right to send one request on one connection.
#[derive(Debug)]
pub(crate) enum PooledConnection {
    /// `turn`: the right of the client connection that uses it.
    Http1 {
        connection: Http1Connection,
        pool: Rc<Pool>,
        reused: bool,
        turn: Option<PodRequestPermit>,
    },
    Http2 {
        stream: Http2Stream,
        reused: bool,
        turn: Option<PodRequestPermit>,
    },
}

/// An HTTP/1 connection. Dropping it closes the connection, also in the middle of a request.
#[derive(Debug)]
pub(crate) struct Http1Connection {
    sender: http1::SendRequest<RequestBody>,
    task: AbortHandle,
    observed: Arc<Observed>,
}

impl Http1Connection {
    pub(super) async fn on(upstream: &UpstreamContext, stream: PodStream) -> Result<Self, DialError> {
        let observed = stream.observed();
        let handshake =
            http1::Builder::new().max_buf_size(HYPER_BUFFER).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|_| DialError::Pod)?;
        let task = own(upstream, connection.with_upgrades());
        Ok(Self { sender, task, observed })
    }

    pub(super) fn is_usable(&self) -> bool {
        self.sender.is_ready() && !self.sender.is_closed()
    }
}

impl Drop for Http1Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type H2 = http2::Connection<TokioIo<PodStream>, RequestBody, LocalExecutor>;

/// An HTTP/2 connection.
#[derive(Debug)]
pub(super) struct Http2Connection {
    sender: http2::SendRequest<RequestBody>,
    /// Asked for the stream limit of the pod. Its task moves its bytes, and removes it when it has ended.
    connection: Rc<RefCell<Option<Pin<Box<H2>>>>>,
    scheme: Scheme,
    observed: Arc<Observed>,
    pub(super) streams: Cell<usize>,
    pub(super) age: Cell<u32>,
}

impl Http2Connection {
    pub(super) async fn on(
        upstream: &UpstreamContext,
        stream: PodStream,
        scheme: Scheme,
    ) -> Result<Rc<Self>, DialError> {
        let observed = stream.observed();
        let mut builder = http2::Builder::new(LocalExecutor::new(&upstream.runtime));
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(HYPER_BUFFER)
            // As over HTTP/1, where a head has to fit into the buffer.
            .max_header_list_size(u32::try_from(HYPER_BUFFER).unwrap_or(u32::MAX))
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING);
        // Does not wait for the pod: its settings are read later.
        let handshake = builder.handshake(TokioIo::new(stream)).await;
        let Ok((sender, connection)) = handshake else { return Err(Observed::refusal(observed)) };
        let connection = Rc::new(RefCell::new(Some(Box::pin(connection))));
        own(upstream, Moving(Rc::clone(&connection)));
        let (streams, age) = (Cell::new(0), Cell::new(0));
        Ok(Rc::new(Self { sender, connection, scheme, observed, streams, age }))
    }

    /// Whether it takes one more stream. hyper would make a stream beyond the limit wait, and all behind it.
    pub(super) fn has_room(&self) -> bool {
        let connection = self.connection.try_borrow().ok();
        let connection = connection.as_ref().and_then(|connection| connection.as_ref());
        let allowed = connection.map_or(0, |connection| connection.current_max_send_streams());
        self.sender.is_ready() && self.streams.get() < allowed.min(usize::from(STREAMS))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// Moves the bytes of an HTTP/2 connection, and removes the connection when it has ended: otherwise its senders would take it
/// for open, and its streams would wait for ever.
struct Moving(Rc<RefCell<Option<Pin<Box<H2>>>>>);

impl Future for Moving {
    type Output = hyper::Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        let mut connection = self.0.borrow_mut();
        connection.as_mut().map_or(Poll::Ready(Ok(())), |one| one.as_mut().poll(context))
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        let ended = self.0.borrow_mut().take();
        drop(ended);
    }
}

/// Moves the bytes of a connection in a task of the worker.
fn own(
    upstream: &UpstreamContext,
    connection: impl Future<Output = hyper::Result<()>> + 'static,
) -> AbortHandle {
    let close = upstream.runtime.close.clone();
    let task = upstream.runtime.spawn(async move {
        tokio::select! {
            // A request that waits for a response gets the error.
            _ = connection => {}
            () = close.cancelled() => {}
        }
    });
    task.abort_handle()
}

/// One stream of an HTTP/2 connection. Dropping it ends its count.
#[derive(Debug)]
pub(crate) struct Http2Stream(Rc<Http2Connection>);

impl Http2Stream {
    pub(super) fn on(http2: &Rc<Http2Connection>) -> Self {
        http2.streams.set(http2.streams.get() + 1);
        Self(Rc::clone(http2))
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get().saturating_sub(1));
    }
}

impl PooledConnection {
    /// Whether it has carried a request before.
    pub(crate) fn is_reused(&self) -> bool {
        match self {
            PooledConnection::Http1 { reused, .. } | PooledConnection::Http2 { reused, .. } => *reused,
        }
    }

    /// Attaches the permit of the client connection that uses it.
    pub(crate) fn in_turn(mut self, of: PodRequestPermit) -> Self {
        let (PooledConnection::Http1 { turn, .. } | PooledConnection::Http2 { turn, .. }) = &mut self;
        *turn = Some(of);
        self
    }

    /// The scheme of HTTP/2 requests; `None` for HTTP/1.
    pub(crate) fn scheme(&self) -> Option<&Scheme> {
        match self {
            PooledConnection::Http1 { .. } => None,
            PooledConnection::Http2 { stream, .. } => Some(&stream.0.scheme),
        }
    }

    /// How many bytes of responses have arrived; `None` where other streams share the connection.
    pub(crate) fn bytes_read(&self) -> Option<u64> {
        match self {
            PooledConnection::Http1 { connection, .. } => Some(connection.observed.bytes_read()),
            PooledConnection::Http2 { .. } => None,
        }
    }

    /// The address of the pod.
    pub(crate) fn peer(&self) -> SocketAddr {
        match self {
            PooledConnection::Http1 { connection, .. } => connection.observed.peer(),
            PooledConnection::Http2 { stream, .. } => stream.0.observed.peer(),
        }
    }

    /// A TLS error after the handshake.
    pub(crate) fn tls_error(&self) -> Option<&TlsError> {
        match self {
            PooledConnection::Http1 { connection, .. } => connection.observed.tls_error(),
            PooledConnection::Http2 { stream, .. } => stream.0.observed.tls_error(),
        }
    }

    /// The failure for a pod that speaks another protocol, if `error` means that.
    pub(crate) fn wrong_protocol(&self, error: &hyper::Error) -> Option<Failure> {
        let reason = match self {
            PooledConnection::Http1 { connection, .. } => connection.observed.instead_of_http1(error),
            PooledConnection::Http2 { stream, .. } => {
                stream.0.observed.instead_of_http2().or_else(|| refused_by_us(error))
            }
        };
        reason.map(|reason| Failure::BadUpstreamProtocol { reason: reason.into() })
    }

    /// Sends the request. A request that was not sent at all comes back with the error.
    pub(crate) fn send(
        &mut self,
        request: http::Request<RequestBody>,
    ) -> impl Future<Output = Result<http::Response<Incoming>, TrySendError<http::Request<RequestBody>>>> + use<>
    {
        match self {
            PooledConnection::Http1 { connection, .. } => {
                Either::Left(connection.sender.try_send_request(request))
            }
            PooledConnection::Http2 { stream, .. } => {
                let mut sender = stream.0.sender.clone();
                Either::Right(sender.try_send_request(request))
            }
        }
    }

    /// Puts the connection back: the response has been read to its end, and the whole request was sent.
    pub(crate) fn finished(self, upstream: &UpstreamContext) {
        if let PooledConnection::Http1 { mut connection, pool, .. } = self {
            if connection.sender.is_ready() {
                pool.put(connection, &upstream.idle);
            } else if pool.is_open() && !connection.sender.is_closed() {
                // It is ready a moment later, when its task has also seen the end of the response.
                let room = Rc::clone(&upstream.idle);
                upstream.runtime.spawn(async move {
                    if let Ok(Ok(())) = timeout(SETTLE, connection.sender.ready()).await {
                        pool.put(connection, &room);
                    }
                });
            }
        }
    }
}

/// The reason if h2 itself reset the stream because of the head of its response. Not if it ended the whole connection: another
/// stream may be the cause.
fn refused_by_us(error: &hyper::Error) -> Option<&'static str> {
    let error = std::error::Error::source(error)?.downcast_ref::<h2::Error>()?;
    let ours = error.is_reset() && error.is_library() && error.reason() == Some(h2::Reason::PROTOCOL_ERROR);
    ours.then_some("the head of its response is too long, or not valid HTTP/2")
}
