//! The connections of the registration server: limits, TLS, and one HTTP/1.1 request after another.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rouse_net::auth::{AuthError, Sender};
use rouse_net::tls::{ServerTls, peer_certificate};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::reply::Refusal;
use super::{RegistrationRequest, RegistrationServer, Reply};
use crate::wire::{MAX_BODY, PATH};

/// The most connections at a time.
const MAX_CONNECTIONS: usize = 8_192;
/// The most connections of one address at a time: one source must not take all of them.
const MAX_OF_SOURCE: usize = 1_024;
/// While more connections than this are open, each is closed after its answer, so that others get their turn.
const KEEP_ALIVE_BELOW: usize = MAX_CONNECTIONS / 2;
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be idle, or take to send a head. Sidecars renew each 20 s.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one answer may take, look-ups at the API server included.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The buffer of a connection, in bytes: a head with a token fits.
const BUFFER: usize = 16 * 1024;
/// The pause after a failed accept, for example without free file descriptors: an immediate retry would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How clients connect.
#[derive(Debug, Clone)]
pub enum ListenerTransport {
    /// Over TLS.
    Tls(Arc<ServerTls>),
    /// Without TLS: only shared keys are accepted, and only a machine of one's own uses it.
    Plain,
}

/// Who the client certificate of a connection is for.
type CertificateSender = Result<Sender, AuthError>;

/// How many connections each source has.
type Sources = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// A connection that counts for its source. Dropping it gives its place back.
struct Place {
    sources: Sources,
    source: IpAddr,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    fn take(sources: &Sources, source: IpAddr, permit: OwnedSemaphorePermit) -> Option<Self> {
        let mut counts = sources.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(source).or_default();
        if *count >= MAX_OF_SOURCE {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Self { sources: Arc::clone(sources), source, _permit: permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.source);
            }
        }
    }
}

impl RegistrationServer {
    /// Answers all connections to `listener`, until `stop`.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        transport: ListenerTransport,
        stop: CancellationToken,
    ) {
        let (free, sources) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), Sources::default());
        let mut connections = JoinSet::new();
        loop {
            // Reap first: the permit of a finished connection is free then.
            while connections.try_join_next().is_some() {}
            let next = async {
                // The semaphore is never closed.
                let permit = Arc::clone(&free).acquire_owned().await.ok();
                (permit, listener.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                () = stop.cancelled() => break,
                next = next => next,
            };
            match (permit, accepted) {
                (Some(permit), Ok((stream, peer))) => {
                    // A connection over the limit of its source is closed at once.
                    if let Some(place) = Place::take(&sources, peer.ip(), permit) {
                        let connection = Connection {
                            server: Arc::clone(&self),
                            peer,
                            free: Arc::clone(&free),
                            stop: stop.clone(),
                        };
                        connections.spawn(connection.run(stream, transport.clone(), place));
                    }
                }
                (_, Err(error)) => {
                    tracing::error!(%error, "cannot accept a connection for registrations");
                    sleep_until(Instant::now() + ACCEPT_PAUSE).await;
                }
                (None, Ok(_)) => break,
            }
        }
        // Registrations under way finish; idle connections close.
        timeout(BODY_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await.ok();
    }
}

/// One connection.
struct Connection {
    server: Arc<RegistrationServer>,
    peer: SocketAddr,
    free: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Connection {
    async fn run(self, stream: TcpStream, transport: ListenerTransport, place: Place) {
        // Without this, the kernel may delay small answers.
        stream.set_nodelay(true).ok();
        match transport {
            ListenerTransport::Plain => self.serve(stream, None, false).await,
            ListenerTransport::Tls(tls) => {
                // A client that fails the handshake is not an error of the gateway.
                let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
                if let Ok((stream, _)) = tls.accept(stream, deadline).await {
                    let certificate = peer_certificate(&stream)
                        .and_then(|certificate| self.server.certificate_sender(certificate));
                    self.serve(stream, certificate, true).await;
                }
            }
        }
        drop(place);
    }

    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        certificate: Option<CertificateSender>,
        secure: bool,
    ) {
        let service = service_fn(|request| self.answer(request, certificate.as_ref(), secure));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT).max_buf_size(BUFFER);
        let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            // A client that closes the connection early is not an error.
            _ = connection.as_mut() => return,
            () = self.stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        connection.await.ok();
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        certificate: Option<&CertificateSender>,
        secure: bool,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let reply = match (request.uri().path(), request.method()) {
            (PATH, &Method::POST) => self.register(request, certificate, secure).await,
            (PATH, _) => Reply::other(405, "method", "registrations are sent with POST"),
            _ => Reply::other(404, "path", "registrations are sent to /v1/registrations"),
        };
        let mut response = Response::new(Full::new(reply.body.into()));
        *response.status_mut() =
            StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = reply.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.free.available_permits() < MAX_CONNECTIONS - KEEP_ALIVE_BELOW {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    async fn register(
        &self,
        request: Request<Incoming>,
        certificate: Option<&CertificateSender>,
        secure: bool,
    ) -> Reply {
        let (head, body) = request.into_parts();
        // Two credentials: a proxy in between and the gateway could check different ones.
        if head.headers.get_all(AUTHORIZATION).iter().nth(1).is_some() {
            return Reply::other(400, "malformed", "more than one Authorization header");
        }
        if body.size_hint().lower() > MAX_BODY as u64 {
            return self.server.too_large();
        }
        let body = match timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => {
                return self.server.too_large();
            }
            Ok(Err(_)) => return Reply::other(400, "body", "the body ended early"),
            Err(_) => return Reply::other(408, "timeout", "the body took too long"),
        };
        let request = RegistrationRequest {
            peer: self.peer.ip(),
            secure,
            certificate,
            authorization: head.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes),
            body: &body,
        };
        match timeout(ANSWER_TIMEOUT, self.server.register(&request)).await {
            Ok(reply) => reply,
            Err(_) => Reply::refusal(&Refusal::Unavailable("the check took too long".to_owned())),
        }
    }
}
