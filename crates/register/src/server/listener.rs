//! The connections of the registration server: limits, TLS, and one HTTP/1.1 request after another.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
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
use rouse_net::fair_limiter::{FairLimiter, FairPermit, network};
use rouse_net::tls::{ClientCertificates, ServerTls, client_certificates, peer_certificate};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::outcome::Refusal;
use super::{RegistrationRequest, RegistrationServer, Reply};
use crate::wire::{MAX_BODY, PATH};

/// After this time, a TLS handshake has stalled, and may be cancelled for another one.
const HANDSHAKE_STALLED: Duration = Duration::from_secs(1);
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
    /// Without TLS: only shared keys are accepted. For loopback (`rouse up`).
    Plain,
}

/// The client certificate of a connection.
struct ConnectionCertificate {
    /// Who it is for.
    sender: Result<Sender, AuthError>,
    certificates: ClientCertificates,
    tls: Arc<ServerTls>,
}

/// The limits of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerLimits {
    /// The most connections at a time. One source gets at most a sixteenth of them. While more than half are open, each is
    /// closed after its answer, so that others get their turn.
    pub connections: usize,
    /// The most TLS handshakes at a time. One source gets at most half of them.
    pub handshakes: usize,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self { connections: 8_192, handshakes: 512 }
    }
}

impl ListenerLimits {
    /// The connections that one source gets at least.
    const LEAST_OF_SOURCE: usize = 16;

    fn connections(&self) -> Arc<FairLimiter> {
        FairLimiter::new(self.connections, (self.connections / 16).max(Self::LEAST_OF_SOURCE), Duration::ZERO)
    }

    fn handshakes(&self) -> Arc<FairLimiter> {
        FairLimiter::new(self.handshakes, self.handshakes / 2, HANDSHAKE_STALLED)
    }
}

impl RegistrationServer {
    /// Answers all connections to `listener`, until `stop`.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        transport: ListenerTransport,
        limits: ListenerLimits,
        stop: CancellationToken,
    ) {
        let (limiter, handshakes) = (limits.connections(), limits.handshakes());
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                // A connection over a limit is closed at once.
                Ok((_, peer)) if !self.admits_connection(peer.ip()) => {}
                Ok((stream, peer)) => {
                    let cancel = CancellationToken::new();
                    if let Some(permit) = limiter.take(network(peer.ip()), cancel.clone(), self.now()) {
                        let connection = Connection {
                            server: Arc::clone(&self),
                            peer,
                            permit,
                            cancel: cancel.clone(),
                            stop: stop.clone(),
                        };
                        let run = connection.run(stream, transport.clone(), Arc::clone(&handshakes));
                        connections.spawn(cancel.run_until_cancelled_owned(run));
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "cannot accept a connection for registrations");
                    sleep_until(Instant::now() + ACCEPT_PAUSE).await;
                }
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
    permit: FairPermit,
    /// Cancels the connection.
    cancel: CancellationToken,
    stop: CancellationToken,
}

impl Connection {
    async fn run(self, stream: TcpStream, transport: ListenerTransport, handshakes: Arc<FairLimiter>) {
        // Without this, the kernel may delay small answers.
        stream.set_nodelay(true).ok();
        match transport {
            ListenerTransport::Plain => self.serve(stream, None, false).await,
            ListenerTransport::Tls(tls) => {
                let Some(handshake) =
                    handshakes.take(network(self.peer.ip()), self.cancel.clone(), self.server.now())
                else {
                    return;
                };
                let accepted = tls.accept(stream, Instant::now() + HANDSHAKE_TIMEOUT).await;
                drop(handshake);
                // A client that fails the handshake is not an error of the gateway.
                let Ok((stream, _)) = accepted else { return self.server.count_failure(self.peer.ip()) };
                let certificate = client_certificates(&stream).and_then(|certificates| {
                    let sender = self.server.certificate_sender(peer_certificate(&stream)?)?;
                    Some(ConnectionCertificate { sender, certificates, tls })
                });
                self.serve(stream, certificate, true).await;
            }
        }
    }

    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        certificate: Option<ConnectionCertificate>,
        secure: bool,
    ) {
        let service = service_fn(|request| self.answer(request, certificate.as_ref(), secure));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT).max_buf_size(BUFFER);
        let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = connection.as_mut() => {
                // A client that closes the connection early is not an error; hyper has answered a malformed head.
                if ended.is_err_and(|error| error.is_parse()) {
                    self.server.refuse_other(self.peer.ip());
                }
                return;
            }
            () = self.stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        connection.await.ok();
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        certificate: Option<&ConnectionCertificate>,
        secure: bool,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let reply = match (request.uri().path(), request.method()) {
            (PATH, &Method::POST) => self.register(request, certificate, secure).await,
            (PATH, _) => self.other(405, "method", "registrations are sent with POST"),
            _ => self.other(404, "path", "registrations are sent to /v1/registrations"),
        };
        let mut response = Response::new(Full::new(reply.body.into()));
        *response.status_mut() =
            StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = reply.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if reply.close || self.permit.is_half_taken() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    async fn register(
        &self,
        request: Request<Incoming>,
        certificate: Option<&ConnectionCertificate>,
        secure: bool,
    ) -> Reply {
        let (head, body) = request.into_parts();
        // Two credentials: a proxy in between and the gateway could check different ones.
        if head.headers.get_all(AUTHORIZATION).iter().nth(1).is_some() {
            return self.other(400, "malformed", "more than one Authorization header");
        }
        if body.size_hint().lower() > MAX_BODY as u64 {
            return self.server.too_large(self.peer.ip());
        }
        let body = match timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => {
                return self.server.too_large(self.peer.ip());
            }
            Ok(Err(_)) => return self.other(400, "body", "the body ended early"),
            Err(_) => return self.other(408, "timeout", "the body took too long"),
        };
        let sender = match certificate {
            // The connection may be older than the end of the certificate or of the trust in its authority.
            Some(certificate) if !head.headers.contains_key(AUTHORIZATION) => {
                let ConnectionCertificate { sender, certificates, tls } = certificate;
                if !tls.still_accepts(certificates, self.server.time_of_day()) {
                    return self.server.refuse_certificate(self.peer.ip());
                }
                Some(sender)
            }
            _ => None,
        };
        let request = RegistrationRequest {
            peer: self.peer.ip(),
            secure,
            certificate: sender,
            authorization: head.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes),
            body: &body,
        };
        let _busy = self.permit.begin();
        match timeout(ANSWER_TIMEOUT, self.server.register(&request)).await {
            Ok(reply) => {
                if reply.status == 200 {
                    self.permit.prove();
                }
                reply
            }
            Err(_) => Reply::refusal(&Refusal::Unavailable("the check took too long".to_owned())),
        }
    }

    /// Answers a request that is not a registration.
    fn other(&self, status: u16, error: &str, reason: &str) -> Reply {
        self.server.refuse_other(self.peer.ip());
        Reply::other(status, error, reason)
    }
}
