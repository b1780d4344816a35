//! One registration over HTTP/1.1: connects or reuses a connection, sends the request and reads the answer.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rouse_core::merge::{PushEvent, PushOrder};
use rouse_net::peers::{Dialer, PeerStream};
use rouse_net::tls::{ClientTls, ClientTlsConfig, TlsError};
use tokio::time::{Instant, timeout_at};

use super::credential::CredentialError;
use super::{PodClaims, PushCredential};
use crate::wire::{ErrorBody, PATH, RegistrationAnswer, RegistrationBody, event_text};

/// How long one registration may take, with the connection.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);
/// The longest answer: 64 gateways need less than 4 KiB.
const MAX_ANSWER: usize = 16 * 1024;
/// The most characters of a gateway's reason that are logged.
const MAX_REASON: usize = 300;

/// Sends registrations of one pod.
pub(super) struct HttpClient {
    pub(super) dialer: Arc<dyn Dialer>,
    pub(super) tls: Option<Arc<ClientTls>>,
    pub(super) credential: PushCredential,
    pub(super) pod: PodClaims,
    pub(super) authority: HeaderValue,
    pub(super) time_of_day: fn() -> SystemTime,
}

/// A connection without a request. It must be polled, so that its end is seen.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: Driver,
    /// The driver has ended, and must not be polled again.
    closed: bool,
    /// The TLS configuration that it was made with.
    terms: Option<Arc<ClientTlsConfig>>,
}

/// Reads and writes the connection.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The end of a registration.
pub(super) struct RequestResult {
    pub(super) result: Result<RegistrationAnswer, SendError>,
    /// It went over a connection that was there before.
    pub(super) reused: bool,
    /// The connection, if it can be used again.
    pub(super) connection: Option<Connection>,
}

/// Why a registration failed. No text contains a credential.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("the TLS handshake failed: {0}")]
    Tls(TlsError),
    #[error("the connection broke: {0}")]
    Broken(String),
    #[error("the gateway answered {status}: {reason}")]
    Refused { status: u16, reason: String, retry_after: Option<Duration> },
    #[error("the gateway's answer cannot be read: {0}")]
    BadAnswer(String),
    #[error(
        "rejected the gateway's answer: it has a version of this pod that is too far ahead of this clock, or that this sidecar \
         never sent (a wrong clock, or a forged answer); register over https"
    )]
    ImplausibleVersion,
    #[error("{0}")]
    Credential(#[from] CredentialError),
    #[error("internal error: the task that sends registrations has stopped")]
    Ended,
}

/// The log level of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    Warn,
    Error,
}

impl SendError {
    pub(super) fn severity(&self) -> Severity {
        match self {
            Self::Timeout => Severity::Warn,
            Self::Refused { status, .. } if (400..500).contains(status) => Severity::Warn,
            _ => Severity::Error,
        }
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The TLS error in an error of hyper, if there is one: in TLS 1.3 a rejected client certificate is seen only now.
    fn of_hyper(error: &hyper::Error) -> Self {
        let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        match (io.and_then(TlsError::of_stream), error.source()) {
            (Some(error), _) => Self::Tls(error),
            (None, Some(source)) => Self::Broken(format!("{error}: {source}")),
            (None, None) => Self::Broken(error.to_string()),
        }
    }
}

/// The head and the body of a response.
struct RawAnswer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl HttpClient {
    /// Sends the state to a gateway, over `idle` if that still works.
    pub(super) async fn send(
        self: Arc<Self>,
        gateway: SocketAddr,
        idle: Option<Connection>,
        order: PushOrder,
        event: PushEvent,
    ) -> RequestResult {
        let deadline = Instant::now() + TIMEOUT;
        let sent = timeout_at(deadline, self.attempt(gateway, idle, order, event, deadline)).await;
        let failed = |error| RequestResult { result: Err(error), reused: false, connection: None };
        sent.map_or_else(|_| failed(SendError::Timeout), |sent| sent.unwrap_or_else(failed))
    }

    async fn attempt(
        &self,
        gateway: SocketAddr,
        idle: Option<Connection>,
        order: PushOrder,
        event: PushEvent,
        deadline: Instant,
    ) -> Result<RequestResult, SendError> {
        let body = Bytes::from(self.body(order, event));
        let terms = self.tls.as_ref().map(|tls| tls.terms());
        let same = |connection: &Connection| match (&connection.terms, &terms) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        if let Some(connection) = idle.filter(same) {
            // The gateway may close an idle connection at any time. A registration can be sent twice.
            if let Ok(exchanged) = self.exchange(connection, &body, true).await {
                return Ok(exchanged);
            }
        }
        let connection = self.connect(gateway, terms, deadline).await?;
        self.exchange(connection, &body, false).await
    }

    async fn connect(
        &self,
        gateway: SocketAddr,
        terms: Option<Arc<ClientTlsConfig>>,
        deadline: Instant,
    ) -> Result<Connection, SendError> {
        let stream = self.dialer.dial(gateway).await.map_err(SendError::Connect)?;
        let stream: Box<dyn PeerStream> = match &terms {
            None => stream,
            Some(terms) => {
                let connected = terms.connect(stream, None, deadline).await;
                let (stream, _) = connected.map_err(|error| match error {
                    TlsError::Timeout => SendError::Timeout,
                    error => SendError::Tls(error),
                })?;
                Box::new(stream)
            }
        };
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| SendError::of_hyper(&error))?;
        // The sender gets the error too.
        let driver = Box::pin(async { connection.await.unwrap_or_default() });
        Ok(Connection { sender, driver, closed: false, terms })
    }

    async fn exchange(
        &self,
        mut connection: Connection,
        body: &Bytes,
        reused: bool,
    ) -> Result<RequestResult, SendError> {
        let authorization = self.credential.authorization(body, self.time_of_day).await?;
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = http::Uri::from_static(PATH);
        let headers = request.headers_mut();
        headers.insert(HOST, self.authority.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(authorization) = &authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let answer = connection.request(request).await?;
        let closes = answer.headers.get(CONNECTION).is_some_and(|it| it.as_bytes() == b"close");
        let result = read(&answer, authorization.as_ref());
        let usable = !closes && !connection.closed && !connection.sender.is_closed();
        Ok(RequestResult { result, reused, connection: usable.then_some(connection) })
    }

    fn body(&self, order: PushOrder, event: PushEvent) -> Vec<u8> {
        let pod = &self.pod;
        let body = RegistrationBody {
            namespace: pod.service.namespace().to_owned(),
            service: pod.service.name().to_owned(),
            pod: pod.pod.clone(),
            uid: pod.uid.to_string(),
            boot: order.boot.to_string(),
            sequence: order.sequence,
            ips: pod.ips.clone(),
            ports: pod.ports.iter().map(|(name, number)| (name.to_string(), *number)).collect(),
            event: event_text(event).to_owned(),
        };
        // All its keys are text, and nothing else can fail.
        serde_json::to_vec(&body).unwrap_or_default()
    }
}

impl Connection {
    /// Polls the idle connection. Ready when it was closed.
    pub(super) fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.closed && self.driver.as_mut().poll(context).is_ready() {
            self.closed = true;
        }
        if self.closed { Poll::Ready(()) } else { Poll::Pending }
    }

    async fn request(&mut self, request: Request<Full<Bytes>>) -> Result<RawAnswer, SendError> {
        let Self { sender, driver, closed, .. } = self;
        let mut answer = std::pin::pin!(async {
            let failed = |error: hyper::Error| SendError::of_hyper(&error);
            sender.ready().await.map_err(failed)?;
            let (head, body) = sender.send_request(request).await.map_err(failed)?.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            let body = body.map_err(|error| SendError::BadAnswer(error.to_string()))?.to_bytes();
            Ok(RawAnswer { status: head.status, headers: head.headers, body })
        });
        poll_fn(|context| {
            if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                return Poll::Ready(answer);
            }
            if !*closed && driver.as_mut().poll(context).is_ready() {
                *closed = true;
                // The last bytes of the connection may have been the answer.
                return answer.as_mut().poll(context);
            }
            Poll::Pending
        })
        .await
    }
}

fn read(answer: &RawAnswer, authorization: Option<&HeaderValue>) -> Result<RegistrationAnswer, SendError> {
    if answer.status == StatusCode::OK {
        // The text of the error may quote the answer.
        let unreadable =
            |error: serde_json::Error| SendError::BadAnswer(redacted(&error.to_string(), authorization));
        return serde_json::from_slice(&answer.body).map_err(unreadable);
    }
    let error: Option<ErrorBody> = serde_json::from_slice(&answer.body).ok();
    let seconds = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Err(SendError::Refused {
        status: answer.status.as_u16(),
        reason: redacted(error.as_ref().map_or("no reason", |error| &error.reason), authorization),
        retry_after: seconds.map(Duration::from_secs),
    })
}

/// A reason as it may be logged: on one line, not too long, and without the credential, which a strange server may repeat.
fn redacted(reason: &str, authorization: Option<&HeaderValue>) -> String {
    let sent = authorization.map(|value| String::from_utf8_lossy(value.as_bytes()));
    let secrets = sent.iter().flat_map(|sent| sent.split([' ', ',', '='])).filter(|part| part.len() >= 16);
    if secrets.into_iter().any(|part| reason.contains(part)) {
        return "(hidden: the answer repeats the credential)".to_owned();
    }
    reason.chars().filter(|letter| !letter.is_control()).take(MAX_REASON).collect()
}
