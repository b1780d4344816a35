//! One client connection: which protocol it speaks, and its end.

use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rouse_core::drain::Work;
use rouse_core::host::Host;
use rouse_core::time::Clock as _;
use rouse_net::tls::{Alpn, PolicyId, ServerTls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, timeout};
use tokio_util::task::TaskTracker;

use crate::crowd::{Member, Seat};
use crate::gateway::Limits;
use crate::guarded::Guarded;
use crate::request;
use crate::serve::Accepted;
use crate::signal::Signal;
use crate::socket::{Pulse, Socket, has_unread};
use crate::worker::Worker;

/// What an HTTP/2 connection with prior knowledge begins with, as far as it takes to tell it from HTTP/1: no
/// method begins like this.
const PREFACE: &[u8] = b"PRI ";
/// How long a client may take for its first bytes once we are leaving.
const LAST_BYTES: Duration = Duration::from_millis(500);
/// How long what has arrived may take to be read before the client is told that we are leaving.
const LAST_LOOK: Duration = Duration::from_millis(100);
/// How long answers may take to get out once the drain is over.
const LAST_FLUSH: Duration = Duration::from_millis(250);
/// How long answers may take to get out once the client has to go.
const LINGER: Duration = Duration::from_secs(1);
/// How often, and how many times, to look again at first bytes that may become either.
const LOOK: Duration = Duration::from_millis(2);
const LOOKS: usize = 500;
/// How much a client may send on one HTTP/2 stream before somebody takes it.
pub(crate) const STREAM_WINDOW: u32 = 64 * 1024;
/// More headers hyper refuses, unless told otherwise.
const USUAL_HEADERS: usize = 100;
/// How much hyper may buffer of one body, each way.
pub(crate) const BUFFER: usize = STREAM_WINDOW as usize;
/// The largest window that HTTP/2 allows.
const LARGEST_WINDOW: u32 = (1 << 31) - 1;

/// Whom a request came from.
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) pulse: Pulse,
    /// What the handshake agreed on, if there was one.
    pub(crate) tls: Option<Secured>,
    /// Counts the connection as under way until its first request is; a drain must not overlook what has arrived.
    pub(crate) arrival: Cell<Option<Work>>,
    pub(crate) member: Rc<Member>,
    /// Its place among the connections. An upgraded connection keeps it.
    pub(crate) seat: Rc<Seat>,
}

/// What a TLS handshake agreed on.
#[derive(Debug)]
pub(crate) struct Secured {
    pub(crate) tls: Arc<ServerTls>,
    pub(crate) policy: PolicyId,
}

impl Secured {
    /// Whether a request for `host` may come on this connection.
    pub(crate) fn admits(&self, host: Option<&Host<'_>>) -> bool {
        self.policy.admits(&self.tls.policy_of(host))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Serves one connection until it ends.
pub(crate) async fn serve(worker: Rc<Worker>, accepted: Accepted, seat: Seat, arrival: Work) {
    let Accepted { stream, client: address, tls } = accepted;
    let seat = Rc::new(seat);
    let protocol = match tls {
        Some(_) => None,
        None => match recognise(&worker, &stream, &seat).await {
            None => return,
            protocol => protocol,
        },
    };
    let (socket, pulse) = Socket::new(stream);
    let client = Client {
        address,
        pulse,
        tls: None,
        arrival: Cell::new(Some(arrival)),
        member: Rc::clone(&seat.member),
        seat: Rc::clone(&seat),
    };
    match (tls, protocol) {
        // Boxed, so that those who speak in the clear do not carry its room along.
        (Some(tls), _) => Box::pin(secure(&worker, socket, tls, client, &seat)).await,
        (None, protocol) => {
            speak(&worker, protocol.unwrap_or(Protocol::Http1), socket, Rc::new(client), &seat).await;
        }
    }
}

/// Shakes hands, and then the same.
async fn secure(worker: &Rc<Worker>, socket: Socket, tls: Arc<ServerTls>, client: Client, seat: &Seat) {
    let deadline = Instant::now() + worker.gateway.settings.limits.head;
    let shaking = tls.accept(socket, deadline);
    let shaken = tokio::select! {
        shaken = shaking => shaken,
        () = seat.outstayed(&worker.deadlines, || false) => return,
        () = unheard(worker, seat) => return,
    };
    // Whatever went wrong, the client has been told in the handshake's own words.
    let Ok((stream, peer)) = shaken else { return };
    let protocol = if peer.alpn == Some(Alpn::H2) { Protocol::Http2 } else { Protocol::Http1 };
    let secured = Secured { tls: Arc::clone(&tls), policy: peer.policy };
    let client = Client { tls: Some(secured), ..client };
    speak(worker, protocol, stream, Rc::new(client), seat).await;
}

async fn speak<IO>(worker: &Rc<Worker>, protocol: Protocol, io: IO, client: Rc<Client>, seat: &Seat)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match protocol {
        Protocol::Http1 => {
            let settings = &worker.gateway.settings;
            let guarded = Guarded::new(io, settings.limits.heads, settings.clock, seat.member.tracker());
            http1(worker, guarded, client, seat).await;
        }
        Protocol::Http2 => {
            // Until its first request, preface and all, it is as good as a head that does not end.
            seat.member.tracker().head_begins(worker.gateway.settings.clock.now());
            // Boxed, so that those who speak HTTP/1 do not carry its room along.
            Box::pin(http2(worker, io, client, seat)).await;
        }
    }
}

enum Protocol {
    Http1,
    Http2,
}

/// Looks at the first bytes without taking them; `None` if there are none.
async fn recognise(worker: &Worker, stream: &TcpStream, seat: &Seat) -> Option<Protocol> {
    let mut looks = interval(LOOK);
    let look = async {
        let mut first = [0; PREFACE.len()];
        for _ in 0..LOOKS {
            let length = stream.peek(&mut first).await.ok().filter(|length| *length > 0)?;
            let seen = first.get(..length)?;
            if seen == PREFACE {
                return Some(Protocol::Http2);
            }
            if !PREFACE.starts_with(seen) {
                return Some(Protocol::Http1);
            }
            // `P` may become `PRI` or `POST`.
            looks.tick().await;
        }
        // Whoever sends its first letters as slowly as this gets what hyper makes of them.
        Some(Protocol::Http1)
    };
    let mut look = pin!(look);
    tokio::select! {
        biased;
        seen = &mut look => seen,
        () = seat.outstayed(&worker.deadlines, || has_unread(stream)) => None,
        () = worker.drain.cancelled() => timeout(LAST_BYTES, look).await.ok()?,
    }
}

/// The most that is read ahead of an HTTP/1 connection.
pub(crate) fn read_ahead(limits: &Limits) -> usize {
    // A head, which may grow where its request line has to be escaped.
    limits.heads.head + limits.heads.line
}

async fn http1<IO>(worker: &Rc<Worker>, io: IO, client: Rc<Client>, seat: &Seat)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| Box::pin(request::serve(worker, &client, request)));
    let mut builder = http1::Builder::new();
    // Not `pipeline_flush`: with it, hyper buffers a response without bound, and keeps answers back.
    builder.max_buf_size(read_ahead(&worker.gateway.settings.limits));
    let headers = worker.gateway.settings.limits.heads.headers;
    if headers > USUAL_HEADERS {
        // Not always: hyper would allocate a list for them.
        builder.max_headers(headers);
    }
    let connection = pin!(builder.serve_connection(TokioIo::new(io), service).with_upgrades());
    live(worker, &client, seat, connection, http1::UpgradeableConnection::graceful_shutdown).await;
}

async fn http2<IO>(worker: &Rc<Worker>, io: IO, client: Rc<Client>, seat: &Seat)
where
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (own, tasks, asking) = (Rc::clone(worker), Local::of(worker), Rc::clone(&client));
    let service = service_fn(move |request| {
        let (worker, client) = (Rc::clone(&own), Rc::clone(&asking));
        // Boxed: on its way into a task of its own it is moved half a dozen times.
        Box::pin(async move { request::serve(&worker, &client, request).await })
    });
    let mut builder = http2::Builder::new(tasks);
    let limits = &worker.gateway.settings.limits;
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        // With less than all streams together, those that are held would stall the others.
        .initial_connection_window_size(limits.streams.saturating_mul(STREAM_WINDOW).min(LARGEST_WINDOW))
        .max_send_buf_size(BUFFER)
        .max_header_list_size(header_list(limits))
        .max_concurrent_streams(limits.streams);
    let connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    live(worker, &client, seat, connection, http2::Connection::graceful_shutdown).await;
}

/// The longest list of headers that h2 reads. Twice as long as allowed, so that `request` sees what is too long and answers it
/// like all others: h2 answers 431 by itself, without a sentence and unseen by metrics and access log. Not more: h2 keeps
/// all of it until the request is answered.
fn header_list(limits: &Limits) -> u32 {
    u32::try_from(limits.heads.head.saturating_mul(2)).unwrap_or(u32::MAX)
}

/// Until the connection ends by itself, or has been told to and has had its time. What became of it is the business of its
/// requests: each has an end of its own.
async fn live<C: Future>(
    worker: &Worker,
    client: &Client,
    seat: &Seat,
    mut connection: Pin<&mut C>,
    say_goodbye: impl FnOnce(Pin<&mut C>),
) {
    tokio::select! {
        biased;
        _ = connection.as_mut() => return,
        () = worker.drain.cancelled() => {}
        () = seat.outstayed(&worker.deadlines, || client.pulse.has_unread()) => {}
    }
    if seat.member.is_cut() {
        return;
    }
    // A request that has come and that nobody has read yet: hyper would close over it.
    if client.pulse.has_unread() {
        let look = worker.gateway.settings.clock.now() + LAST_LOOK;
        tokio::select! {
            biased;
            _ = connection.as_mut() => return,
            () = worker.deadlines.at(look) => {}
        }
    }
    say_goodbye(connection.as_mut());
    tokio::select! {
        // First, so that the farewell is written.
        biased;
        _ = connection => {}
        () = lingered(worker, seat) => {}
        () = unheard(worker, seat) => {}
        () = closed(&worker.close) => {}
    }
}

/// The client has been quiet for too long, or has to make room, and has had a moment to take what was answered last.
async fn lingered(worker: &Worker, seat: &Seat) {
    loop {
        seat.outstayed(&worker.deadlines, || false).await;
        if seat.member.is_cut() {
            return;
        }
        worker.deadlines.at(worker.gateway.settings.clock.now() + LINGER).await;
        // A request may have crossed our farewell, and was taken: it is answered.
        if !seat.member.is_asking() {
            return;
        }
    }
}

/// We are leaving, and the client has had its moment to ask for something for the first time.
async fn unheard(worker: &Worker, seat: &Seat) {
    worker.drain.cancelled().await;
    tokio::time::sleep_until(Instant::now() + LAST_BYTES).await;
    if seat.member.is_known() {
        std::future::pending::<()>().await;
    }
}

/// The drain is over, and what was answered last has had a moment to get out.
async fn closed(close: &Signal) {
    close.cancelled().await;
    tokio::time::sleep_until(Instant::now() + LAST_FLUSH).await;
}

/// Runs hyper's own tasks on the worker's thread, under its tracker, and no longer than the worker.
#[derive(Debug, Clone)]
pub(crate) struct Local {
    tasks: TaskTracker,
    close: Signal,
}

impl Local {
    pub(crate) fn of(worker: &Worker) -> Self {
        Self { tasks: worker.tasks.clone(), close: worker.close.clone() }
    }
}

impl<F: Future + 'static> Executor<F> for Local {
    fn execute(&self, task: F) {
        let close = self.close.clone();
        drop(self.tasks.spawn_local(async move {
            tokio::select! {
                biased;
                _ = task => {}
                // A peer that does not read would keep it for ever.
                () = closed(&close) => {}
            }
        }));
    }
}
