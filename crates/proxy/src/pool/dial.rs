//! From an address to a connection: TCP, the handshake where the service asks for it, and whose fault it is if there is
//! none.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use rouse_net::tls::{Alpn, ClientStream, ClientTls, Terms, TlsError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_util::either::Either;

use super::permit::PodConnection;
use crate::gateway::Upstream;

/// How long a TLS handshake may take. Longer than a connect: a pod that has just started may need a second for its
/// first one.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);

/// How connections of one pool are made. Those that were made otherwise are no substitute.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    Http1,
    H2c,
    Tls(Arc<Terms>),
}

/// Tells ways apart. The pool holds on to the terms, so that no others can have their address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum WayId {
    Http1,
    H2c,
    Tls(*const Terms),
}

impl Way {
    /// As `upstream` is reached at this moment; `None`: it cannot be.
    pub(crate) fn to(upstream: &Upstream) -> Option<Self> {
        match upstream {
            Upstream::Http1 => Some(Self::Http1),
            Upstream::H2c => Some(Self::H2c),
            Upstream::Tls(tls) => Some(Self::Tls(ClientTls::terms(tls))),
            Upstream::Unusable(_) => None,
        }
    }

    pub(super) fn id(&self) -> WayId {
        match self {
            Self::Http1 => WayId::Http1,
            Self::H2c => WayId::H2c,
            Self::Tls(terms) => WayId::Tls(Arc::as_ptr(terms)),
        }
    }

    /// A connection to one of `addresses`, within `limit` each, and the protocol that is spoken on it.
    pub(super) async fn dial(
        &self,
        addresses: &[SocketAddr],
        limit: Duration,
        upgrade: bool,
    ) -> Result<(PodStream, Alpn), Refusal> {
        let mut refusal = Refusal::Pod;
        for &address in addresses {
            match timeout(limit, connect(address)).await {
                Ok(Ok(stream)) => return self.shake_hands(stream, address, upgrade).await,
                Ok(Err(error)) if is_local(&error) => refusal = Refusal::Local,
                Ok(Err(_)) | Err(_) => refusal = Refusal::Pod,
            }
        }
        Err(refusal)
    }

    async fn shake_hands(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        upgrade: bool,
    ) -> Result<(PodStream, Alpn), Refusal> {
        let terms = match self {
            Self::Http1 => return Ok((PodStream::new(Either::Left(stream), peer), Alpn::Http1)),
            Self::H2c => return Ok((PodStream::new(Either::Left(stream), peer), Alpn::H2)),
            Self::Tls(terms) => terms,
        };
        // HTTP/2 has no upgrades that pods would know.
        let only = upgrade.then_some(Alpn::Http1);
        let (stream, agreed) = terms.connect(stream, only, Instant::now() + HANDSHAKE).await?;
        Ok((PodStream::new(Either::Right(Box::new(stream)), peer), agreed.unwrap_or(Alpn::Http1)))
    }
}

/// Makes a connection to whoever is there, and it is not ourselves.
pub(crate) async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
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
pub(crate) enum Refusal {
    /// The pod did not take it.
    Pod,
    /// Our own side could not: nothing against the pod.
    Local,
    /// The handshake says why; another attempt would end alike.
    Tls(TlsError),
}

impl From<TlsError> for Refusal {
    fn from(error: TlsError) -> Self {
        match error {
            // What a pod that starts or dies looks like.
            TlsError::Timeout | TlsError::Io(_) => Self::Pod,
            error => Self::Tls(error),
        }
    }
}

/// What we lack, not the pod.
pub(crate) fn is_local(error: &io::Error) -> bool {
    let ours = [libc::EMFILE, libc::ENFILE, libc::EADDRNOTAVAIL, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| ours.contains(&code))
}

/// The type of the frame that an HTTP/2 connection begins with.
const SETTINGS: u8 = 4;
/// The types of the records that a TLS connection may begin with.
const TLS_ALERT: u8 = 21;
const TLS_HANDSHAKE: u8 = 22;
/// As many bytes tell one protocol from another.
const FIRST: usize = 8;

/// What is seen of a connection from the outside.
#[derive(Debug)]
pub(super) struct Seen {
    /// Whom it leads to.
    peer: SocketAddr,
    /// How many bytes have come.
    read: AtomicU64,
    /// The first [`FIRST`] of them, the lowest byte first: they tell one protocol from another. 0 for what has not come.
    first: AtomicU64,
    /// What was wrong with TLS after the handshake.
    tls: OnceLock<TlsError>,
}

impl Seen {
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    fn came(&self, bytes: &[u8]) {
        let before = self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        // They may come in several pieces: judged by the first alone, a good pod would speak another protocol.
        for (place, byte) in (before..FIRST as u64).zip(bytes) {
            self.first.fetch_or(u64::from(*byte) << (8 * place), Ordering::Relaxed);
        }
    }

    /// The first bytes, if any have come.
    fn first(&self) -> Option<[u8; FIRST]> {
        (self.bytes_read() > 0).then(|| self.first.load(Ordering::Relaxed).to_le_bytes())
    }

    /// What the pod speaks in place of HTTP/1.1, and what to change.
    pub(super) fn instead_of_http1(&self, error: &hyper::Error) -> Option<&'static str> {
        match self.first() {
            _ if error.is_parse_too_large() => Some("the head of its answer is too long"),
            Some([0, 0, _, SETTINGS, ..]) => Some(
                "it speaks HTTP/2; set appProtocol to kubernetes.io/h2c on the Service's port, or protocol to h2c \
                 in rouse.yaml",
            ),
            Some([TLS_ALERT | TLS_HANDSHAKE, 3, ..]) => {
                Some("it speaks TLS; set appProtocol to https on the Service's port")
            }
            _ => error.is_parse().then_some("what it sent is not valid HTTP/1.1"),
        }
    }

    /// The same for HTTP/2.
    pub(super) fn instead_of_http2(&self) -> Option<&'static str> {
        match self.first()? {
            [0, 0, ..] if self.bytes_read() < 4 => None,
            [0, 0, _, SETTINGS, ..] => None,
            [b'H', b'T', b'T', b'P', b'/', b'1', b'.', _] => Some(
                "it speaks HTTP/1.1, not HTTP/2; take h2c from the Service's appProtocol, or from its protocol in \
                 rouse.yaml",
            ),
            [TLS_ALERT | TLS_HANDSHAKE, 3, ..] => {
                Some("it speaks TLS; set appProtocol to https on the Service's port")
            }
            _ => Some("what it sent is not valid HTTP/2"),
        }
    }

    pub(super) fn tls_error(&self) -> Option<&TlsError> {
        self.tls.get()
    }

    /// Why there is no connection after all.
    pub(super) fn refusal(seen: Arc<Self>) -> Refusal {
        Arc::into_inner(seen).and_then(|seen| seen.tls.into_inner()).map_or(Refusal::Pod, Refusal::Tls)
    }

    fn note<T>(&self, polled: &Poll<io::Result<T>>) {
        if let Poll::Ready(Err(error)) = polled
            && let Some(error) = TlsError::of_stream(error)
        {
            self.tls.set(error).ok();
        }
    }
}

/// A pod's connection that says what is seen of it. In TLS 1.3 a pod that does not want our certificate says so after
/// the handshake; HTTP/2 would keep the words and not the meaning.
#[derive(Debug)]
pub(super) struct PodStream {
    stream: Either<TcpStream, Box<ClientStream<TcpStream>>>,
    seen: Arc<Seen>,
    /// Sending has failed, and there was time to read.
    heeded: bool,
    /// Counts it for as long as the socket is open, also after an upgrade.
    _permit: Option<PodConnection>,
}

impl PodStream {
    fn new(stream: Either<TcpStream, Box<ClientStream<TcpStream>>>, peer: SocketAddr) -> Self {
        let seen = Seen { peer, read: AtomicU64::new(0), first: AtomicU64::new(0), tls: OnceLock::new() };
        Self { stream, seen: Arc::new(seen), heeded: false, _permit: None }
    }

    pub(super) fn counted(self, permit: PodConnection) -> Self {
        Self { _permit: Some(permit), ..self }
    }

    pub(super) fn seen(&self) -> Arc<Seen> {
        Arc::clone(&self.seen)
    }

    /// When nothing can be sent any more, the pod's last words may still be there to read: that goes first.
    fn heed<T>(&mut self, context: &mut Context<'_>, sent: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Either::Right(stream) = &self.stream else { return sent };
        if !matches!(sent, Poll::Ready(Err(_))) || self.heeded {
            return sent;
        }
        if stream.get_ref().0.poll_read_ready(context).is_ready() {
            self.heeded = true;
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl AsyncRead for PodStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(context, buf);
        this.seen.came(buf.filled().get(before..).unwrap_or_default());
        this.seen.note(&polled);
        polled
    }
}

impl AsyncWrite for PodStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.heed(context, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // One part, as most heads are, is cheaper without the list.
        if let [part] = parts {
            return self.poll_write(context, part);
        }
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
        this.heed(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(context);
        this.heed(context, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
