//! The controller's side of the report channel: authenticates reporters, checks what they send, and delivers it to a sink.
//!
//! `stream.rs` reads one stream, by the rules of `stream_protocol.rs`. `reporters.rs` knows who is connected. `stream_end.rs` has
//! all the ways in which a stream ends.

mod metrics;
mod reporters;
mod stream;
mod stream_end;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream as streams};
use rouse_core::endpoint::ServiceId;
use rouse_core::scale::{EnvoyUpdate, LoadUpdate, MAX_REPORTERS, Reporter};
use rouse_core::time::Clock;
use rouse_net::auth::{PodIdentity, TokenAuthenticator};
use rouse_net::tls::ServerTls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::connections::{CallerConnection, Connections, GrpcLimits, GrpcTransport};
use crate::proto::report::controller_message::Kind;
use crate::proto::report::load_reports_server::{LoadReports, LoadReportsServer};
use crate::proto::report::{CancelZero, ControllerMessage, PrepareZero, ReporterMessage};

pub use metrics::ReportMetrics;
pub use reporters::ConnectedReporter;

use super::wire::{self, MAX_MESSAGE, ReporterRole};
use reporters::Reporters;
use stream::ReporterStream;
use stream_end::StreamEnd;

/// How long a stream may take to send its hello.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a stream may take to send its complete state.
const STATE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a stream may be silent. Its reporter is stale before.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many messages wait for a reporter to read them.
const MAX_COMMANDS: usize = 256;
/// How many streams there may be for each reporter that may be connected: also those that have not said hello, and those that
/// are being replaced.
const STREAMS_PER_REPORTER: usize = 2;

/// Takes what reporters say. Called by several streams at once, but for one reporter in order. The calls must be quick: they
/// run on the threads that serve the streams.
pub trait ReportSink: Send + Sync + 'static {
    /// A reporter is connected, and has said what it is. Called first.
    fn joined(&self, _from: &Reporter, _role: ReporterRole) {}

    /// A reporter has sent readings, or a heartbeat.
    fn heard(&self, from: &Reporter, update: LoadUpdate);

    /// The services that a reporter has prepared for zero, each with the id of [`ReportServer::prepare_zero`]: all of them, after
    /// each change. Called after [`ReportSink::heard`] for the message that says so.
    fn parked(&self, _from: &Reporter, _services: &BTreeMap<ServiceId, u64>) {}

    /// The Envoys of an xds replica that have changed. Called after [`ReportSink::heard`] for the same message, also if there are none.
    fn envoys(&self, _from: &Reporter, _update: EnvoyUpdate) {}

    /// The stream of a reporter has ended, and none has replaced it. What it has prepared for zero does not count any more.
    fn left(&self, from: &Reporter);
}

/// A `ServiceAccount`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReporterAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The settings of the server.
#[derive(Debug, Clone)]
pub struct ReportServerSettings {
    /// The `ServiceAccounts` whose pods may report.
    pub accounts: Vec<ReporterAccount>,
    /// The most reporters at a time.
    pub reporters: usize,
    /// The version of this controller, for people.
    pub version: String,
}

impl ReportServerSettings {
    /// Settings that accept as many reporters as the autoscaler can tell apart.
    pub fn new(accounts: Vec<ReporterAccount>, version: &str) -> Self {
        Self { accounts, reporters: MAX_REPORTERS, version: version.to_owned() }
    }
}

/// What the server uses.
pub struct ReportServerParts {
    /// Checks tokens, for the audience [`rouse_net::auth::REPORT_AUDIENCE`].
    pub authenticator: TokenAuthenticator,
    /// Takes the reports.
    pub sink: Arc<dyn ReportSink>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Counts what happens.
    pub metrics: ReportMetrics,
}

/// What the streams of a server share.
struct ServerParts {
    authenticator: TokenAuthenticator,
    accounts: Vec<ReporterAccount>,
    version: String,
    sink: Arc<dyn ReportSink>,
    clock: Arc<dyn Clock>,
    metrics: ReportMetrics,
    reporters: Reporters,
}

/// The report server of one controller replica. Clones are the same server.
#[derive(Clone)]
pub struct ReportServer {
    parts: Arc<ServerParts>,
    limits: GrpcLimits,
    streams: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl ReportServer {
    /// A server without connections. `stop` ends its streams.
    pub fn new(settings: ReportServerSettings, parts: ReportServerParts, stop: CancellationToken) -> Self {
        let ReportServerSettings { accounts, reporters, version } = settings;
        let ReportServerParts { authenticator, sink, clock, metrics } = parts;
        let most = reporters.max(1);
        let limits = GrpcLimits {
            connections: most.saturating_mul(4),
            per_source: most,
            handshakes: 64,
            calls: 4,
            idle: IDLE_TIMEOUT,
            call_window: 256 * 1024,
            connection_window: 512 * 1024,
        };
        let reporters = Reporters::new(most, Arc::clone(&sink), metrics.clone());
        let parts = ServerParts { authenticator, accounts, version, sink, clock, metrics, reporters };
        Self {
            parts: Arc::new(parts),
            limits,
            streams: Arc::new(Semaphore::new(
                most.saturating_mul(STREAMS_PER_REPORTER).min(Semaphore::MAX_PERMITS),
            )),
            tasks: TaskTracker::new(),
            stop,
        }
    }

    /// Serves all connections to `listener`, until the stop; then ends all streams.
    pub async fn serve(&self, listener: TcpListener, tls: Arc<ServerTls>) {
        self.connections().serve(listener, GrpcTransport::Tls(tls)).await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Serves one connection that the caller has accepted.
    pub async fn serve_connection<IO>(&self, stream: IO, peer: SocketAddr, tls: Arc<ServerTls>)
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.connections().serve_one(stream, peer, GrpcTransport::Tls(tls)).await;
    }

    /// Asks all connected reporters to route new requests of a service to the gateways, so that its pods can go. Returns who
    /// was asked. A reporter that connects later is not: ask again.
    pub fn prepare_zero(&self, service: &ServiceId, id: u64) -> Vec<Reporter> {
        let kind = Kind::PrepareZero(PrepareZero { service: service.to_string(), id });
        self.parts.reporters.send(&wire::command(kind))
    }

    /// Takes [`ReportServer::prepare_zero`] back. Returns who was told.
    pub fn cancel_zero(&self, service: &ServiceId, id: u64) -> Vec<Reporter> {
        let kind = Kind::CancelZero(CancelZero { service: service.to_string(), id });
        self.parts.reporters.send(&wire::command(kind))
    }

    /// Who is connected, in no order.
    pub fn connected(&self) -> Vec<ConnectedReporter> {
        self.parts.reporters.list()
    }

    fn connections(&self) -> Connections<LoadReportsServer<Calls>> {
        let service = LoadReportsServer::new(Calls(self.clone())).max_decoding_message_size(MAX_MESSAGE);
        Connections::new(service, self.limits, Arc::clone(&self.parts.clock), self.stop.clone())
    }

    /// Which pod sends a stream, and its token.
    async fn authenticate(&self, metadata: &MetadataMap) -> Result<(PodIdentity, String), StreamEnd> {
        let refused = |reason: &str| Err(StreamEnd::Unauthenticated(reason.to_owned()));
        let mut all = metadata.get_all("authorization").iter();
        let (Some(value), None) = (all.next(), all.next()) else {
            return refused(
                "expected one header: authorization: Bearer TOKEN, with the token of a ServiceAccount",
            );
        };
        let token = value.to_str().ok().and_then(|text| {
            let (scheme, token) = text.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
        });
        let Some(token) = token else { return refused("the authorization is not Bearer TOKEN") };
        let pod = self.parts.authenticator.authenticate(&token).await?;
        let account = ReporterAccount { namespace: pod.namespace.clone(), name: pod.service_account.clone() };
        if !self.parts.accounts.contains(&account) {
            let allowed: Vec<String> = self.parts.accounts.iter().map(ToString::to_string).collect();
            let allowed = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
            return Err(StreamEnd::Denied { account: account.to_string(), allowed });
        }
        Ok((pod, token))
    }

    /// Accepts a stream, and reads it in a task of the server.
    async fn accept(&self, request: Request<Streaming<ReporterMessage>>) -> Result<CommandStream, StreamEnd> {
        let (pod, token) = self.authenticate(request.metadata()).await?;
        let caller = request.extensions().get::<CallerConnection>().cloned();
        if let Some(caller) = &caller {
            caller.prove();
        }
        let permit = Arc::clone(&self.streams).try_acquire_owned().map_err(|_| StreamEnd::TooManyStreams)?;
        let (commands, queue) = mpsc::channel(MAX_COMMANDS);
        let (tell_end, end) = oneshot::channel();
        let ended = CancellationToken::new();
        let stream = ReporterStream {
            server: Arc::clone(&self.parts),
            pod: pod.clone(),
            token,
            incoming: request.into_inner(),
            commands,
            ended: ended.clone(),
            stop: self.stop.clone(),
        };
        let metrics = self.parts.metrics.clone();
        self.tasks.spawn(async move {
            let end = stream.read().await;
            metrics.ended(&end);
            log_end(&pod, &end);
            drop(permit);
            // A newer stream may use the same connection.
            if let Some(caller) = caller.filter(|_| end != StreamEnd::Replaced) {
                caller.close();
            }
            tell_end.send(end).ok();
        });
        // hyper drops the response when the connection is gone.
        let gone = ended.drop_guard();
        let commands = streams::unfold((queue, gone), |(mut queue, gone)| async move {
            let command = queue.recv().await?;
            Some((Ok(command), (queue, gone)))
        });
        // The queue closes when the task has ended.
        let status = streams::once(end).filter_map(|end| async { end.ok()?.status().map(Err) });
        Ok(Box::pin(commands.chain(status)))
    }
}

/// What a reporter gets.
type CommandStream = Pin<Box<dyn Stream<Item = Result<ControllerMessage, Status>> + Send>>;

/// Answers the calls of reporters.
struct Calls(ReportServer);

#[tonic::async_trait]
impl LoadReports for Calls {
    type ReportStream = CommandStream;

    async fn report(
        &self,
        request: Request<Streaming<ReporterMessage>>,
    ) -> Result<Response<CommandStream>, Status> {
        let peer = request.extensions().get::<CallerConnection>().map(|caller| caller.peer);
        self.0.accept(request).await.map(Response::new).map_err(|end| {
            self.0.parts.metrics.ended(&end);
            let peer = peer.map(tracing::field::display);
            tracing::warn!(peer, result = end.result(), reason = %end, "refused a load reporter");
            end.status().unwrap_or_else(|| Status::unknown(end.to_string()))
        })
    }
}

fn log_end(pod: &PodIdentity, end: &StreamEnd) {
    let PodIdentity { namespace, pod, .. } = pod;
    if end.is_fault() {
        tracing::warn!(namespace, pod, result = end.result(), reason = %end, "ended the stream of a load reporter");
    } else {
        tracing::info!(namespace, pod, result = end.result(), "a load reporter is not connected any more");
    }
}

impl fmt::Display for ReporterAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for ReportServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportServer").field("connected", &self.connected().len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ReportServerParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportServerParts").finish_non_exhaustive()
    }
}
