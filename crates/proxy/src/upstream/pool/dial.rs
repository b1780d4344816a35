//! Opens a connection to an address: TCP, then TLS where the service asks for it, and the cause if it fails.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use rouse_net::tls::{Alpn, ClientStream, ClientTls, ClientTlsConfig, TlsError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_util::either::Either;

use crate::budget::PodConnection;
use crate::upstream::backend::UpstreamProtocol;

/// How long a TLS handshake may take. Longer than a connect: a pod that has just started may need a second for its
/// first one.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);

/// How the connections of one pool are made: protocol and TLS terms. Connections with other terms are not used instead.
#[derive(Debug, Clone)]
pub(crate) enum Transport {
    Http1,
    H2c,
    Tls(Arc<ClientTlsConfig>),
}

/// Tells transports apart. The pool keeps the TLS terms, so that no other terms can have their address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TransportId {
    Http1,
    H2c,
    Tls(*const ClientTlsConfig),
}

impl Transport {
    /// The present transport for `protocol`; `None` if it cannot be used.
    pub(crate) fn to(protocol: &UpstreamProtocol) -> Option<Self> {
        match protocol {
            UpstreamProtocol::Http1 => Some(Self::Http1),
            UpstreamProtocol::H2c => Some(Self::H2c),
            UpstreamProtocol::Tls(tls) => Some(Self::Tls(ClientTls::terms(tls))),
            UpstreamProtocol::Unusable(_) => None,
        }
    }

    pub(super) fn id(&self) -> TransportId {
        match self {
            Self::Http1 => TransportId::Http1,
            Self::H2c => TransportId::H2c,
            Self::Tls(terms) => TransportId::Tls(Arc::as_ptr(terms)),
        }
    }

    /// Connects to one of `addresses`, within `limit` each. Also returns the protocol of the connection.
    pub(super) async fn dial(
        &self,
        addresses: &[SocketAddr],
        limit: Duration,
        upgrade: bool,
    ) -> Result<(PodStream, Alpn), DialError> {
        let mut refusal = DialError::Pod;
        for &address in addresses {
            match timeout(limit, connect(address)).await {
                Ok(Ok(stream)) => return self.handshake(stream, address, upgrade).await,
                Ok(Err(error)) if is_local(&error) => refusal = DialError::Local,
                Ok(Err(_)) | Err(_) => refusal = DialError::Pod,
            }
        }
        Err(refusal)
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        upgrade: bool,
    ) -> Result<(PodStream, Alpn), DialError> {
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

/// Connects, and rejects a connection to ourselves (the ephemeral port case).
pub(crate) async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    if address.ip().is_loopback() && stream.local_addr()? == address {
        // The kernel chose the port that we connect to as our own: no other process is there.
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Why no connection could be opened.
#[derive(Debug)]
pub(crate) enum DialError {
    /// The pod did not accept it.
    Pod,
    /// The gateway itself lacked something, for example file descriptors: not the pod's fault.
    Local,
    /// The TLS handshake failed; another attempt would fail like it.
    Tls(TlsError),
}

impl From<TlsError> for DialError {
    fn from(error: TlsError) -> Self {
        match error {
            // A pod that starts or stops fails like this.
            TlsError::Timeout | TlsError::Io(_) => Self::Pod,
            error => Self::Tls(error),
        }
    }
}

/// Whether the gateway lacks something: not the pod's fault.
pub(crate) fn is_local(error: &io::Error) -> bool {
    let ours = [libc::EMFILE, libc::ENFILE, libc::EADDRNOTAVAIL, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| ours.contains(&code))
}

/// The type of the frame that an HTTP/2 connection begins with.
const SETTINGS: u8 = 4;
/// The types of the records that a TLS connection may begin with.
const TLS_ALERT: u8 = 21;
const TLS_HANDSHAKE: u8 = 22;
/// The number of first bytes that tell one protocol from another.
const FIRST: usize = 8;

/// What has been observed on a connection: how many bytes, the first of them, and TLS errors.
#[derive(Debug)]
pub(super) struct Observed {
    /// The address of the pod.
    peer: SocketAddr,
    /// How many bytes have arrived.
    read: AtomicU64,
    /// The first [`FIRST`] of them, the lowest byte first: they tell one protocol from another. 0 for bytes that have not
    /// arrived.
    first: AtomicU64,
    /// A TLS error after the handshake.
    tls: OnceLock<TlsError>,
}

impl Observed {
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    fn came(&self, bytes: &[u8]) {
        let before = self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        // They may arrive in several pieces: the first piece alone could look like another protocol.
        for (place, byte) in (before..FIRST as u64).zip(bytes) {
            self.first.fetch_or(u64::from(*byte) << (8 * place), Ordering::Relaxed);
        }
    }

    /// The first bytes, if any have arrived.
    fn first(&self) -> Option<[u8; FIRST]> {
        (self.bytes_read() > 0).then(|| self.first.load(Ordering::Relaxed).to_le_bytes())
    }

    /// The protocol that the pod speaks instead of HTTP/1.1, and what to change.
    pub(super) fn instead_of_http1(&self, error: &hyper::Error) -> Option<&'static str> {
        match self.first() {
            _ if error.is_parse_too_large() => Some("the head of its response is too long"),
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

    /// The protocol that the pod speaks instead of HTTP/2, and what to change.
    pub(super) fn instead_of_http2(&self) -> Option<&'static str> {
        match self.first()? {
            [0, 0, ..] if self.bytes_read() < 4 => None,
            [0, 0, _, SETTINGS, ..] => None,
            [b'H', b'T', b'T', b'P', b'/', b'1', b'.', _] => Some(
                "it speaks HTTP/1.1, not HTTP/2; remove h2c from the Service's appProtocol, or from its protocol in \
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

    /// Why HTTP/2 could not begin on the connection: a TLS error after the handshake, or else the pod.
    pub(super) fn refusal(observed: Arc<Self>) -> DialError {
        Arc::into_inner(observed)
            .and_then(|observed| observed.tls.into_inner())
            .map_or(DialError::Pod, DialError::Tls)
    }

    fn note<T>(&self, polled: &Poll<io::Result<T>>) {
        if let Poll::Ready(Err(error)) = polled
            && let Some(error) = TlsError::of_stream(error)
        {
            self.tls.set(error).ok();
        }
    }
}

/// A connection to a pod that records what is observed on it. In TLS 1.3 a pod rejects our certificate after the handshake;
/// hyper's HTTP/2 would keep only the text of that error.
#[derive(Debug)]
pub(super) struct PodStream {
    stream: Either<TcpStream, Box<ClientStream<TcpStream>>>,
    observed: Arc<Observed>,
    /// Sending has failed, and what the pod sent before has been read.
    read_last: bool,
    /// Counts it for as long as the socket is open, also after an upgrade.
    _permit: Option<PodConnection>,
}

impl PodStream {
    fn new(stream: Either<TcpStream, Box<ClientStream<TcpStream>>>, peer: SocketAddr) -> Self {
        let observed =
            Observed { peer, read: AtomicU64::new(0), first: AtomicU64::new(0), tls: OnceLock::new() };
        Self { stream, observed: Arc::new(observed), read_last: false, _permit: None }
    }

    pub(super) fn counted(self, permit: PodConnection) -> Self {
        Self { _permit: Some(permit), ..self }
    }

    pub(super) fn observed(&self) -> Arc<Observed> {
        Arc::clone(&self.observed)
    }

    /// When sending fails, reads what the pod sent last before the error is reported: it may say why.
    fn read_first<T>(&mut self, context: &mut Context<'_>, sent: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Either::Right(stream) = &self.stream else { return sent };
        if !matches!(sent, Poll::Ready(Err(_))) || self.read_last {
            return sent;
        }
        if stream.get_ref().0.poll_read_ready(context).is_ready() {
            self.read_last = true;
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
        this.observed.came(buf.filled().get(before..).unwrap_or_default());
        this.observed.note(&polled);
        polled
    }
}

impl AsyncWrite for PodStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.read_first(context, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // One part, like most heads, is cheaper to write without the list.
        if let [part] = parts {
            return self.poll_write(context, part);
        }
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
        this.read_first(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(context);
        this.read_first(context, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
