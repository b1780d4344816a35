//! Connections to pods, owned by their endpoints: when an endpoint drains or goes, its idle connections close.
//!
//! One pool per endpoint and worker. No connection is shared between threads.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use rouse_core::endpoint::{Endpoint, ServiceId, State};
use rouse_core::pick::EndpointId;
use rouse_core::service::Service;
use rouse_core::snapshot::{PortView, Snapshot};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::body::RequestBody;
use crate::connection::Local;
use crate::gateway::Upstream;
use crate::worker::Worker;

/// Idle connections per endpoint and worker.
const MOST_IDLE: usize = 512;
/// So many sweeps old, an idle connection is closed. Servers close theirs after 5 s and more, and a request that
/// meets that closing is lost.
const OLDEST: u32 = 3;
/// Streams at a time on one HTTP/2 connection; the next request gets another one.
const STREAMS: u16 = 100;
/// How much a pod may send on one HTTP/2 stream before the client takes it.
const STREAM_WINDOW: u32 = 256 * 1024;
/// And on all of one connection: with less than all streams together, those that nobody reads would stall the others.
const CONNECTION_WINDOW: u32 = STREAMS as u32 * STREAM_WINDOW;
/// A pod that has streams open and says nothing is asked this often whether it is still there.
const PING: Duration = Duration::from_secs(10);
/// How long a connection may take from the end of a response until it takes the next request.
const SETTLE: Duration = Duration::from_millis(100);

/// The pools of one service on one worker.
#[derive(Debug)]
pub(crate) struct Pools {
    service: ServiceId,
    of: Weak<Service>,
    by_endpoint: RefCell<HashMap<EndpointId, Rc<Pool>>>,
}

/// The connections to one endpoint.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The endpoint takes new requests as a matter of course: connections are worth keeping.
    open: Cell<bool>,
    idle: RefCell<Vec<Idle>>,
    /// Every HTTP/2 connection that may take another stream, in use or not.
    shared: RefCell<Vec<Rc<Shared>>>,
    /// One who connects over HTTP/2 connects for all who wait.
    connecting: Semaphore,
}

#[derive(Debug)]
struct Idle {
    line: Line,
    age: u32,
}

/// An HTTP/1 connection. Dropping it ends the connection, whatever is still under way on it.
#[derive(Debug)]
pub(crate) struct Line {
    sender: http1::SendRequest<RequestBody>,
    task: AbortHandle,
    /// How many bytes have come from the pod.
    read: Arc<AtomicU64>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type H2 = http2::Connection<TokioIo<TcpStream>, RequestBody, Local>;

/// An HTTP/2 connection.
#[derive(Debug)]
struct Shared {
    sender: http2::SendRequest<RequestBody>,
    /// For what the pod allows; its task moves its bytes, and lets go of it when it has ended.
    connection: Rc<RefCell<Option<Pin<Box<H2>>>>>,
    streams: Cell<usize>,
    age: Cell<u32>,
}

impl Shared {
    /// Whether it takes one more stream: hyper would make it wait for the others, and everybody behind it.
    fn has_room(&self) -> bool {
        let connection = self.connection.try_borrow().ok();
        let connection = connection.as_ref().and_then(|connection| connection.as_ref());
        let allowed = connection.map_or(0, |connection| connection.current_max_send_streams());
        self.sender.is_ready() && self.streams.get() < allowed.min(usize::from(STREAMS))
    }
}

impl Pools {
    pub(crate) fn new(service: &Arc<Service>) -> Self {
        Self { service: service.id().clone(), of: Arc::downgrade(service), by_endpoint: RefCell::default() }
    }

    pub(crate) fn service(&self) -> &ServiceId {
        &self.service
    }

    /// Whether they are those of this very service, not of a namesake.
    pub(crate) fn are_of(&self, service: &Arc<Service>) -> bool {
        Weak::as_ptr(&self.of) == Arc::as_ptr(service)
    }

    /// The pool of `endpoint`.
    pub(crate) fn pool(&self, endpoint: &Endpoint) -> Rc<Pool> {
        let mut pools = self.by_endpoint.borrow_mut();
        let pool = pools.entry(endpoint.id()).or_insert_with(|| {
            // By the newest snapshot, not by the one that the slot is from: nobody would close it later.
            let service = self.of.upgrade();
            let open = service.is_some_and(|service| is_ready(&service.snapshot(), endpoint));
            Rc::new(Pool {
                open: Cell::new(open),
                idle: RefCell::default(),
                shared: RefCell::default(),
                connecting: Semaphore::new(1),
            })
        });
        Rc::clone(pool)
    }

    #[expect(
        clippy::mutable_key_type,
        reason = "an endpoint is hashed by who it is, not by what is written in it"
    )]
    /// Closes the pools of all that do not take new requests any more.
    pub(crate) fn follow(&self, snapshot: &Snapshot) {
        let mut pools = self.by_endpoint.borrow_mut();
        if pools.is_empty() {
            return;
        }
        let known: HashMap<EndpointId, State> = snapshot
            .ports
            .iter()
            .flat_map(PortView::endpoints)
            .map(|endpoint| (endpoint.id(), endpoint.state))
            .collect();
        pools.retain(|id, pool| {
            let state = known.get(id).copied();
            pool.set_open(state == Some(State::Ready));
            // Its requests keep it as long as they need it.
            state.is_some()
        });
    }

    /// Closes what has been idle for too long.
    pub(crate) fn sweep(&self) {
        self.by_endpoint.borrow().values().for_each(|pool| pool.sweep());
    }
}

fn is_ready(snapshot: &Snapshot, endpoint: &Endpoint) -> bool {
    let mut endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
    let same = |one: &&Arc<Endpoint>| Arc::ptr_eq(&one.health, &endpoint.health);
    endpoints.find(same).is_some_and(|one| one.state == State::Ready)
}

impl Pool {
    fn set_open(&self, open: bool) {
        self.open.set(open);
        if !open {
            self.idle.borrow_mut().clear();
            // Those in use go on until their last stream ends.
            self.shared.borrow_mut().clear();
        }
    }

    fn sweep(&self) {
        self.idle.borrow_mut().retain_mut(|idle| {
            idle.age += 1;
            idle.age <= OLDEST && idle.line.is_usable()
        });
        self.shared.borrow_mut().retain(|shared| {
            let age = if shared.streams.get() > 0 { 0 } else { shared.age.get() + 1 };
            shared.age.set(age);
            age <= OLDEST && !shared.sender.is_closed()
        });
    }

    /// A connection that stands already.
    pub(crate) fn take(self: &Rc<Self>, protocol: Upstream) -> Option<Link> {
        match protocol {
            Upstream::Http1 => {
                let mut idle = self.idle.borrow_mut();
                // The youngest first: the others may grow old and be closed.
                let line = std::iter::from_fn(|| idle.pop()).map(|idle| idle.line).find(Line::is_usable)?;
                Some(Link::Http1 { line, pool: Rc::clone(self), reused: true })
            }
            Upstream::H2c => {
                let shared = self.shared.borrow();
                let shared = shared.iter().find(|shared| shared.has_room())?;
                Some(Link::Http2 { stream: Stream::on(shared), reused: true })
            }
        }
    }

    /// A new connection to one of `addresses`, within `limit` each.
    pub(crate) async fn connect(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        addresses: &[SocketAddr],
        protocol: Upstream,
        limit: Duration,
    ) -> Result<Link, Refusal> {
        if protocol == Upstream::Http1 {
            return self.dial(worker, addresses, protocol, limit).await;
        }
        // A herd needs one connection, not one each.
        let turn = timeout(limit, self.connecting.acquire()).await.map_err(|_| Refusal { local: false })?;
        if let Some(link) = self.take(protocol) {
            return Ok(link);
        }
        let link = self.dial(worker, addresses, protocol, limit).await;
        drop(turn);
        link
    }

    async fn dial(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        addresses: &[SocketAddr],
        protocol: Upstream,
        limit: Duration,
    ) -> Result<Link, Refusal> {
        let mut refusal = Refusal { local: false };
        for &address in addresses {
            match timeout(limit, dial(address)).await {
                Ok(Ok(stream)) => return self.shake_hands(worker, stream, protocol, limit).await,
                Ok(Err(error)) => refusal = Refusal { local: is_local(&error) },
                Err(_) => refusal = Refusal { local: false },
            }
        }
        Err(refusal)
    }

    async fn shake_hands(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        stream: TcpStream,
        protocol: Upstream,
        limit: Duration,
    ) -> Result<Link, Refusal> {
        let refused = |_| Refusal { local: false };
        match protocol {
            Upstream::Http1 => {
                let read = Arc::default();
                let io = TokioIo::new(Counting { stream, read: Arc::clone(&read) });
                let (sender, connection) =
                    http1::Builder::new().handshake(io).await.map_err(|_| Refusal { local: false })?;
                let task = own(worker, connection.with_upgrades());
                Ok(Link::Http1 { line: Line { sender, task, read }, pool: Rc::clone(self), reused: false })
            }
            Upstream::H2c => {
                let mut builder = http2::Builder::new(Local::of(worker));
                builder
                    .timer(TokioTimer::new())
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .keep_alive_interval(PING)
                    .keep_alive_timeout(PING);
                let shaken =
                    timeout(limit, builder.handshake(TokioIo::new(stream))).await.map_err(refused)?;
                let (sender, connection) = shaken.map_err(|_| Refusal { local: false })?;
                let connection = Rc::new(RefCell::new(Some(Box::pin(connection))));
                let moving = Rc::clone(&connection);
                own(worker, Moving(moving));
                let (streams, age) = (Cell::new(0), Cell::new(0));
                let shared = Rc::new(Shared { sender, connection, streams, age });
                if self.open.get() {
                    self.shared.borrow_mut().push(Rc::clone(&shared));
                }
                Ok(Link::Http2 { stream: Stream::on(&shared), reused: false })
            }
        }
    }

    fn put(&self, line: Line) {
        let mut idle = self.idle.borrow_mut();
        if self.open.get() && idle.len() < MOST_IDLE {
            idle.push(Idle { line, age: 0 });
        }
    }
}

impl Line {
    fn is_usable(&self) -> bool {
        self.sender.is_ready() && !self.sender.is_closed()
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

async fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    if address.ip().is_loopback() && stream.local_addr()? == address {
        // The kernel gave us the very port that we asked for: nobody is there but ourselves.
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// Our own side could not: nothing against the pod.
    pub(crate) local: bool,
}

/// What we lack, not the pod.
fn is_local(error: &io::Error) -> bool {
    let ours = [libc::EMFILE, libc::ENFILE, libc::EADDRNOTAVAIL, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| ours.contains(&code))
}

/// A pod's connection that counts what comes.
#[derive(Debug)]
struct Counting {
    stream: TcpStream,
    read: Arc<AtomicU64>,
}

impl AsyncRead for Counting {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(context, buf);
        let came = buf.filled().len().saturating_sub(before);
        this.read.fetch_add(came as u64, Ordering::Relaxed);
        polled
    }
}

impl AsyncWrite for Counting {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// The right to send one request on one connection.
#[derive(Debug)]
pub(crate) enum Link {
    Http1 { line: Line, pool: Rc<Pool>, reused: bool },
    Http2 { stream: Stream, reused: bool },
}

/// One stream of an HTTP/2 connection. Dropping it ends its count.
#[derive(Debug)]
pub(crate) struct Stream(Rc<Shared>);

impl Stream {
    fn on(shared: &Rc<Shared>) -> Self {
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

    /// How many bytes of responses have come; `None` where others' are among them.
    pub(crate) fn bytes_read(&self) -> Option<u64> {
        match self {
            Link::Http1 { line, .. } => Some(line.read.load(Ordering::Relaxed)),
            Link::Http2 { .. } => None,
        }
    }

    /// Sends the request. What was not sent at all comes back with the error.
    pub(crate) async fn send(
        &mut self,
        request: http::Request<RequestBody>,
    ) -> Result<http::Response<Incoming>, TrySendError<http::Request<RequestBody>>> {
        match self {
            Link::Http1 { line, .. } => line.sender.try_send_request(request).await,
            Link::Http2 { stream, .. } => {
                let mut sender = stream.0.sender.clone();
                sender.try_send_request(request).await
            }
        }
    }

    /// The response has been read to its end, and the request was sent whole.
    pub(crate) fn finished(self, worker: &Worker) {
        if let Link::Http1 { mut line, pool, .. } = self {
            if line.sender.is_ready() {
                pool.put(line);
            } else if pool.open.get() && !line.sender.is_closed() {
                // It is ready a moment later, when its task has seen the end, too.
                worker.tasks.spawn_local(async move {
                    if let Ok(Ok(())) = timeout(SETTLE, line.sender.ready()).await {
                        pool.put(line);
                    }
                });
            }
        }
    }
}
