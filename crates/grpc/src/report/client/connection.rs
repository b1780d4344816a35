//! One connection to one controller: TLS, then one stream on which the readings go out and commands come in.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::poll_fn;
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use rouse_core::time::Clock as _;
use rouse_net::auth::{TokenFileError, read_bearer_token};
use rouse_net::clock::TokioClock;
use rouse_net::peers::{Dialer, PeerStream};
use rouse_net::tls::{Alpn, ClientTls, TlsError};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataValue;
use tonic::{Status, Streaming};
use tower_service::Service;

use super::ZeroCommands;
use super::outbox::Outbox;
use crate::connections::ConnectionTasks;
use crate::proto::report::controller_message::Kind as Command;
use crate::proto::report::load_reports_client::LoadReportsClient;
use crate::proto::report::reporter_message::Kind;
use crate::proto::report::{ControllerMessage, Hello, Loads, ReporterMessage};
use crate::report::wire;

/// How long TCP and TLS may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the controller may take to accept the stream: it may have to fetch keys.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(5);
/// HTTP/2 pings: a controller that is gone without a word is noticed.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// How often the token is read again. kubelet replaces it minutes before it expires.
const TOKEN_READ_INTERVAL: Duration = Duration::from_mins(1);
/// The longest message of a controller.
const MAX_MESSAGE: usize = 64 * 1024;
/// The most characters of a controller's reason that are logged.
const MAX_REASON: usize = 300;

/// What all connections share.
pub(super) struct ConnectionParts {
    pub(super) outbox: Arc<Outbox>,
    pub(super) dialer: Arc<dyn Dialer>,
    pub(super) tls: Arc<ClientTls>,
    pub(super) token_file: PathBuf,
    /// The scheme and the authority of requests.
    pub(super) origin: Uri,
    pub(super) hello: Hello,
    pub(super) commands: Option<Arc<dyn ZeroCommands>>,
    pub(super) clock: TokioClock,
    /// Told when a controller has accepted the stream.
    pub(super) welcome: mpsc::Sender<SocketAddr>,
    /// Streams end, once everything is sent.
    pub(super) leave: CancellationToken,
}

/// Why a connection ended. No text contains a token.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionEnd {
    #[error("cannot connect within {} s", CONNECT_TIMEOUT.as_secs())]
    Timeout,
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("the TLS handshake failed: {0}")]
    Tls(TlsError),
    #[error("the controller does not speak HTTP/2")]
    NoHttp2,
    #[error("{0}")]
    Token(#[from] TokenFileError),
    #[error("the controller has not accepted the stream within {} s", WELCOME_TIMEOUT.as_secs())]
    NotWelcome,
    #[error("the controller refused or ended the stream: {code}: {reason}")]
    Refused { code: String, reason: String },
    #[error("the controller ended the stream")]
    Ended,
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The token file has another one: the stream must begin again before the old one expires.
    #[error("the token was replaced")]
    NewToken,
    #[error("internal error: the task of the connection has stopped")]
    Stopped,
}

impl ConnectionEnd {
    /// The value of the label `reason`.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Timeout | Self::Connect(_) => "connect",
            Self::Tls(_) | Self::NoHttp2 => "tls",
            Self::Token(_) => "token",
            Self::NotWelcome => "late",
            Self::Refused { .. } => "refused",
            Self::Ended => "ended",
            Self::Broken(_) => "broken",
            Self::NewToken => "new_token",
            Self::Stopped => "internal",
        }
    }
}

impl ConnectionParts {
    /// Connects, and reports until the connection ends.
    pub(super) async fn run(self: Arc<Self>, controller: SocketAddr) -> ConnectionEnd {
        let stream = match self.leave.run_until_cancelled(self.connect(controller)).await {
            Some(Ok(stream)) => stream,
            Some(Err(end)) => return end,
            None => return ConnectionEnd::Ended,
        };
        let (tasks, _end) = ConnectionTasks::new();
        let handshake = http2::Builder::new(tasks)
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream));
        let (sender, driver) = match timeout(CONNECT_TIMEOUT, handshake).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return ConnectionEnd::Broken(error.to_string()),
            Err(_) => return ConnectionEnd::Timeout,
        };
        let mut report = pin!(self.report(controller, Http2Channel(sender)));
        tokio::select! {
            biased;
            end = report.as_mut() => end,
            ended = driver => {
                let broken = || ConnectionEnd::Broken(ended.err().map_or("closed".to_owned(), |error| error.to_string()));
                // The last bytes may have said why.
                timeout(Duration::ZERO, report).await.unwrap_or_else(|_| broken())
            }
        }
    }

    /// Connects, and verifies the name of the controller: nothing is sent before.
    async fn connect(&self, controller: SocketAddr) -> Result<Box<dyn PeerStream>, ConnectionEnd> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let dialled = timeout_at(deadline, self.dialer.dial(controller)).await;
        let stream = dialled.map_err(|_| ConnectionEnd::Timeout)?.map_err(ConnectionEnd::Connect)?;
        match self.tls.connect(stream, deadline).await {
            Ok((stream, Some(Alpn::H2))) => Ok(Box::new(stream)),
            Ok(_) => Err(ConnectionEnd::NoHttp2),
            Err(TlsError::Timeout) => Err(ConnectionEnd::Timeout),
            Err(error) => Err(ConnectionEnd::Tls(error)),
        }
    }

    /// Reports over a connection whose controller was verified.
    async fn report(&self, controller: SocketAddr, channel: Http2Channel) -> ConnectionEnd {
        let token = match read_bearer_token(&self.token_file).await {
            Ok(token) => token,
            Err(error) => return error.into(),
        };
        let Ok(mut credential) = MetadataValue::try_from(token.as_bytes()) else {
            return TokenFileError::NoToken(self.token_file.clone()).into();
        };
        credential.set_sensitive(true);
        // One message waits until the controller takes it. Newer readings go into the next one.
        let (outgoing, mut queue) = mpsc::channel(1);
        let messages = poll_fn(move |context| queue.poll_recv(context));
        let mut request = tonic::Request::new(messages);
        request.metadata_mut().insert("authorization", credential);
        let receive = async {
            let mut client = LoadReportsClient::with_origin(channel, self.origin.clone())
                .max_decoding_message_size(MAX_MESSAGE);
            let accepted = timeout(WELCOME_TIMEOUT, async {
                let mut incoming = client.report(request).await?.into_inner();
                let first = incoming.message().await?;
                Ok::<_, Status>((incoming, first))
            });
            let (incoming, first) = match accepted.await {
                Ok(Ok((incoming, Some(first)))) => (incoming, first),
                Ok(Ok((_, None))) => return ConnectionEnd::Ended,
                Ok(Err(status)) => return refused(&status, &token),
                Err(_) => return ConnectionEnd::NotWelcome,
            };
            // The worker reads this queue, and has room for one entry of each controller.
            self.welcome.send(controller).await.ok();
            self.receive(first, incoming, &token).await
        };
        tokio::select! {
            end = receive => end,
            () = self.send(outgoing) => pending().await,
            () = self.token_replaced(&token) => ConnectionEnd::NewToken,
        }
    }

    /// Sends the state, then changes and heartbeats. Never returns: the controller's side of the stream ends last.
    async fn send(&self, outgoing: mpsc::Sender<ReporterMessage>) {
        if outgoing.send(message(Kind::Hello(self.hello.clone()))).await.is_err() {
            return pending().await;
        }
        let (mut cursor, mut beats) = self.outbox.subscribe();
        let mut ticks = beats.borrow_and_update().ticks;
        loop {
            while self.outbox.has_news(&cursor) {
                let Ok(place) = outgoing.reserve().await else { return pending().await };
                // Read when there is a place, so that it is the newest.
                let loads = self.outbox.next_message(&mut cursor, self.clock.now());
                ticks = beats.borrow_and_update().ticks;
                place.send(message(Kind::Loads(loads)));
            }
            tokio::select! {
                biased;
                // The outbox holds the sender, so this does not fail.
                _changed = beats.changed() => {}
                () = self.leave.cancelled() => {
                    drop(outgoing);
                    return pending().await;
                }
            }
            let beat = *beats.borrow_and_update();
            if beat.ticks != ticks && !self.outbox.has_news(&cursor) {
                ticks = beat.ticks;
                let Ok(place) = outgoing.reserve().await else { return pending().await };
                let loads: Loads = self.outbox.next_message(&mut cursor, self.clock.now());
                place.send(message(Kind::Loads(loads)));
            }
        }
    }

    /// Reads the messages of the controller.
    async fn receive(
        &self,
        first: ControllerMessage,
        mut incoming: Streaming<ControllerMessage>,
        token: &HeaderValue,
    ) -> ConnectionEnd {
        let mut next = Some(first);
        loop {
            let Some(message) = next.take() else {
                match incoming.message().await {
                    Ok(Some(message)) => next = Some(message),
                    Ok(None) => return ConnectionEnd::Ended,
                    Err(status) => return refused(&status, token),
                }
                continue;
            };
            let Some(commands) = &self.commands else { continue };
            match message.kind {
                Some(Command::PrepareZero(prepare)) => {
                    if let Ok(service) = wire::service(&prepare.service) {
                        commands.prepare_zero(&service, prepare.id);
                    }
                }
                Some(Command::CancelZero(cancel)) => {
                    if let Ok(service) = wire::service(&cancel.service) {
                        commands.cancel_zero(&service, cancel.id);
                    }
                }
                Some(Command::Welcome(_)) | None => {}
            }
        }
    }

    /// Ends when the token file has another token.
    async fn token_replaced(&self, token: &HeaderValue) {
        loop {
            sleep_until(Instant::now() + TOKEN_READ_INTERVAL).await;
            // A file that cannot be read now may be being replaced.
            if read_bearer_token(&self.token_file).await.is_ok_and(|now| now != *token) {
                return;
            }
        }
    }
}

fn message(kind: Kind) -> ReporterMessage {
    ReporterMessage { kind: Some(kind) }
}

/// The status of the controller, as it may be logged: on one line, not too long, and without the token, which a strange server
/// may repeat.
fn refused(status: &Status, token: &HeaderValue) -> ConnectionEnd {
    let sent = String::from_utf8_lossy(token.as_bytes());
    let secrets = sent.split([' ', '.']).filter(|part| part.len() >= 16);
    let reason = if secrets.into_iter().any(|part| status.message().contains(part)) {
        "(hidden: the status repeats the token)".to_owned()
    } else {
        status.message().chars().filter(|letter| !letter.is_control()).take(MAX_REASON).collect()
    };
    ConnectionEnd::Refused { code: format!("{:?}", status.code()), reason }
}

/// The HTTP/2 connection, as the generated client uses it.
struct Http2Channel(http2::SendRequest<tonic::body::Body>);

impl Service<Request<tonic::body::Body>> for Http2Channel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn the_status_of_a_controller_is_one_short_line_without_the_token() {
        let token =
            HeaderValue::from_static("Bearer 0123456789abcdef.0123456789ABCDEF.signature-of-the-token");
        let shown = |message: &str| refused(&Status::new(Code::Unauthenticated, message), &token).to_string();
        let usual = shown("the token\nhas expired");
        assert_eq!(
            usual,
            "the controller refused or ended the stream: Unauthenticated: the tokenhas expired"
        );
        assert!(shown(&"x".repeat(5000)).len() < 400);
        for secret in ["0123456789abcdef", "bad: 0123456789ABCDEF", "signature-of-the-token!"] {
            let hidden = shown(secret);
            assert!(hidden.ends_with("(hidden: the status repeats the token)"), "{hidden}");
        }
    }
}
