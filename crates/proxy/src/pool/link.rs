//! The right to send one request on one connection.

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

use super::dial::{PodStream, Seen};
use super::{Pool, Refusal, STREAM_WINDOW, STREAMS, Turn};
use crate::body::RequestBody;
use crate::connection::{BUFFER, Local};
use crate::error::Failure;
use crate::worker::Worker;

/// And on all of one connection: with less than all streams together, those that nobody reads would stall the others. Four times
/// as much, since h2 counts 256 bytes for each unread frame, and ends the connection at half of its window.
const CONNECTION_WINDOW: u32 = 4 * STREAMS as u32 * STREAM_WINDOW;
/// A pod that has streams open and says nothing is asked this often whether it is still there.
const PING: Duration = Duration::from_secs(10);
/// How long a connection may take from the end of a response until it takes the next request.
const SETTLE: Duration = Duration::from_millis(100);

/// The right to send one request on one connection.
#[derive(Debug)]
pub(crate) enum Link {
    /// `turn`: that of the client connection that uses it.
    Http1 {
        line: Line,
        pool: Rc<Pool>,
        reused: bool,
        turn: Option<Turn>,
    },
    Http2 {
        stream: Stream,
        reused: bool,
        turn: Option<Turn>,
    },
}

/// An HTTP/1 connection. Dropping it ends the connection, whatever is still under way on it.
#[derive(Debug)]
pub(crate) struct Line {
    sender: http1::SendRequest<RequestBody>,
    task: AbortHandle,
    seen: Arc<Seen>,
}

impl Line {
    pub(super) async fn on(worker: &Worker, stream: PodStream) -> Result<Self, Refusal> {
        let seen = stream.seen();
        let shaken = http1::Builder::new().max_buf_size(BUFFER).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|_| Refusal::Pod)?;
        let task = own(worker, connection.with_upgrades());
        Ok(Self { sender, task, seen })
    }

    pub(super) fn is_usable(&self) -> bool {
        self.sender.is_ready() && !self.sender.is_closed()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type H2 = http2::Connection<TokioIo<PodStream>, RequestBody, Local>;

/// An HTTP/2 connection.
#[derive(Debug)]
pub(super) struct Shared {
    sender: http2::SendRequest<RequestBody>,
    /// For what the pod allows; its task moves its bytes, and lets go of it when it has ended.
    connection: Rc<RefCell<Option<Pin<Box<H2>>>>>,
    scheme: Scheme,
    seen: Arc<Seen>,
    pub(super) streams: Cell<usize>,
    pub(super) age: Cell<u32>,
}

impl Shared {
    pub(super) async fn on(worker: &Worker, stream: PodStream, scheme: Scheme) -> Result<Rc<Self>, Refusal> {
        let seen = stream.seen();
        let mut builder = http2::Builder::new(Local::of(worker));
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(BUFFER)
            // As over HTTP/1, where a head has to fit into the buffer.
            .max_header_list_size(u32::try_from(BUFFER).unwrap_or(u32::MAX))
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING);
        // It waits for nobody: the pod's settings are read later.
        let shaken = builder.handshake(TokioIo::new(stream)).await;
        let Ok((sender, connection)) = shaken else { return Err(Seen::refusal(seen)) };
        let connection = Rc::new(RefCell::new(Some(Box::pin(connection))));
        own(worker, Moving(Rc::clone(&connection)));
        let (streams, age) = (Cell::new(0), Cell::new(0));
        Ok(Rc::new(Self { sender, connection, scheme, seen, streams, age }))
    }

    /// Whether it takes one more stream: hyper would make it wait for the others, and everybody behind it.
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

/// Moves the bytes of an HTTP/2 connection. When that has ended, or is ended, nobody may keep it: its senders would take
/// it for alive, and its streams would wait for room.
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

/// The connection moves its bytes for as long as somebody has a use for it.
fn own(worker: &Worker, connection: impl Future<Output = hyper::Result<()>> + 'static) -> AbortHandle {
    let close = worker.close.clone();
    let task = worker.tasks.spawn_local(async move {
        tokio::select! {
            // How it ended is told to whoever waits for a response.
            _ = connection => {}
            () = close.cancelled() => {}
        }
    });
    task.abort_handle()
}

/// One stream of an HTTP/2 connection. Dropping it ends its count.
#[derive(Debug)]
pub(crate) struct Stream(Rc<Shared>);

impl Stream {
    pub(super) fn on(shared: &Rc<Shared>) -> Self {
        shared.streams.set(shared.streams.get() + 1);
        Self(Rc::clone(shared))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get().saturating_sub(1));
    }
}

impl Link {
    /// Whether it has carried a request before.
    pub(crate) fn is_reused(&self) -> bool {
        match self {
            Link::Http1 { reused, .. } | Link::Http2 { reused, .. } => *reused,
        }
    }

    /// The same, for a client connection that has its turn.
    pub(crate) fn in_turn(mut self, of: Turn) -> Self {
        let (Link::Http1 { turn, .. } | Link::Http2 { turn, .. }) = &mut self;
        *turn = Some(of);
        self
    }

    /// The scheme that HTTP/2 names in every request; `None` for HTTP/1.
    pub(crate) fn scheme(&self) -> Option<&Scheme> {
        match self {
            Link::Http1 { .. } => None,
            Link::Http2 { stream, .. } => Some(&stream.0.scheme),
        }
    }

    /// How many bytes of responses have come; `None` where others' are among them.
    pub(crate) fn bytes_read(&self) -> Option<u64> {
        match self {
            Link::Http1 { line, .. } => Some(line.seen.bytes_read()),
            Link::Http2 { .. } => None,
        }
    }

    /// Whom it leads to.
    pub(crate) fn peer(&self) -> SocketAddr {
        match self {
            Link::Http1 { line, .. } => line.seen.peer(),
            Link::Http2 { stream, .. } => stream.0.seen.peer(),
        }
    }

    /// What was wrong with TLS after the handshake.
    pub(crate) fn tls_error(&self) -> Option<&TlsError> {
        match self {
            Link::Http1 { line, .. } => line.seen.tls_error(),
            Link::Http2 { stream, .. } => stream.0.seen.tls_error(),
        }
    }

    /// What the pod speaks in place of what it should, and what to change, if `error` is for that.
    pub(crate) fn wrong_protocol(&self, error: &hyper::Error) -> Option<Failure> {
        let reason = match self {
            Link::Http1 { line, .. } => line.seen.instead_of_http1(error),
            Link::Http2 { stream, .. } => stream.0.seen.instead_of_http2().or_else(|| refused_by_us(error)),
        };
        reason.map(|reason| Failure::BadUpstreamProtocol { reason: reason.into() })
    }

    /// Sends the request. What was not sent at all comes back with the error.
    pub(crate) fn send(
        &mut self,
        request: http::Request<RequestBody>,
    ) -> impl Future<Output = Result<http::Response<Incoming>, TrySendError<http::Request<RequestBody>>>> + use<>
    {
        match self {
            Link::Http1 { line, .. } => Either::Left(line.sender.try_send_request(request)),
            Link::Http2 { stream, .. } => {
                let mut sender = stream.0.sender.clone();
                Either::Right(sender.try_send_request(request))
            }
        }
    }

    /// The response has been read to its end, and the request was sent whole.
    pub(crate) fn finished(self, worker: &Worker) {
        if let Link::Http1 { mut line, pool, .. } = self {
            if line.sender.is_ready() {
                pool.put(line, &worker.room);
            } else if pool.is_open() && !line.sender.is_closed() {
                // It is ready a moment later, when its task has seen the end, too.
                let room = Rc::clone(&worker.room);
                worker.tasks.spawn_local(async move {
                    if let Ok(Ok(())) = timeout(SETTLE, line.sender.ready()).await {
                        pool.put(line, &room);
                    }
                });
            }
        }
    }
}

/// What was wrong with the head of a response, if h2 itself reset the stream for it. Not if it ended the whole connection: the
/// fault may be that of another stream.
fn refused_by_us(error: &hyper::Error) -> Option<&'static str> {
    let error = std::error::Error::source(error)?.downcast_ref::<h2::Error>()?;
    let ours = error.is_reset() && error.is_library() && error.reason() == Some(h2::Reason::PROTOCOL_ERROR);
    ours.then_some("the head of its answer is too long, or not valid HTTP/2")
}
