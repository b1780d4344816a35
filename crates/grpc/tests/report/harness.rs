//! Controllers with real report servers, gateways with real clients and meters, and a scripted reporter.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::stream::poll_fn;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prometheus_client::registry::Registry as Metrics;
use rouse_core::endpoint::{PodUid, ServiceId};
use rouse_core::load_meter::{LoadKey, LoadMeter};
use rouse_core::registry::{Registry, RegistrySettings};
use rouse_core::scale::{EnvoyTable, EnvoyUpdate, LoadTable, LoadUpdate, Reporter};
use rouse_core::time::{Clock as _, Moment};
use rouse_grpc::report::ReporterRole;
use rouse_grpc::report::client::{
    ControllerUrl, EnvoyReports, PreparedServices, ReportClient, ReportClientMetrics, ReportClientParts,
    ReportClientSettings, ZeroCommands,
};
use rouse_grpc::report::server::{
    ReportMetrics, ReportServer, ReportServerParts, ReportServerSettings, ReportSink, ReporterAccount,
};
use rouse_net::auth::{PodIdentity, REPORT_AUDIENCE, TokenAuthenticator, TokenSettings};
use rouse_net::clock::TokioClock;
use rouse_net::peers::{Dialer, PeerStream, Resolver};
use rouse_net::tls::{
    Alpn, CertEntry, ClientSettings, ClientTls, Roots, ServerName, ServerSettings, ServerTls,
};
use rouse_testkit::certificates::Authority;
use rouse_testkit::fakes::CountingEngine;
use rouse_testkit::token_issuer::{PublishedKeys, START, SigningKey, claims_of};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status, Streaming};

use crate::channel::Http2Channel;
use crate::network::{Host, Network, address};
use crate::proto::load_reports_client::LoadReportsClient;
use crate::proto::reporter_message::Kind;
use crate::proto::{ControllerMessage, Hello, Load, Loads, ReporterMessage};

/// The name that the certificates of controllers have.
pub(crate) const NAME: &str = "rouse-controller.rouse-system.svc.cluster.local";
/// In real time nothing takes as long; in paused time it costs nothing.
pub(crate) const GENEROUS: Duration = Duration::from_mins(5);

thread_local! {
    /// The time of day of the servers, in seconds after the start of the tokens. Each test has a thread of its own.
    static TIME: Cell<u64> = const { Cell::new(0) };
}

/// The time of day.
pub(crate) fn time_of_day() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(START + TIME.get())
}

/// Sets the time of day to this many seconds after the start of the tokens.
pub(crate) fn set_time_of_day(seconds: u64) {
    TIME.set(seconds);
}

/// The certificate authority and the key that signs tokens, for all tests.
pub(crate) static AUTHORITY: LazyLock<Authority> = LazyLock::new(Authority::new);
pub(crate) static KEY: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::new("k1"));

/// A pod of the gateways.
pub(crate) fn gateway_pod(name: &str) -> PodIdentity {
    PodIdentity {
        namespace: "rouse-system".into(),
        pod: name.into(),
        uid: PodUid::new(&format!("uid-of-{name}")),
        service_account: "rouse-gateway".into(),
    }
}

/// The claims of the token with which a pod reports.
pub(crate) fn report_claims(pod: &PodIdentity) -> Value {
    let mut claims = claims_of(pod, START);
    claims["aud"] = json!([REPORT_AUDIENCE]);
    claims
}

/// A good token of a gateway.
pub(crate) fn token(name: &str) -> String {
    KEY.sign(&report_claims(&gateway_pod(name)))
}

pub(crate) fn reporter(name: &str) -> Reporter {
    Reporter::new(&format!("uid-of-{name}"))
}

pub(crate) fn cart() -> ServiceId {
    ServiceId::new("shop", "cart").unwrap()
}

/// One thing that a sink was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    StreamEvent { from: Reporter, update: LoadUpdate },
    Parked { from: Reporter, services: BTreeMap<ServiceId, u64> },
    Left { from: Reporter },
}

/// Keeps everything.
pub(crate) struct RecordingSink {
    clock: TokioClock,
    pub(crate) table: Mutex<LoadTable>,
    pub(crate) told: Mutex<Vec<(Moment, Told)>>,
    /// Which reporters are connected, and what they are.
    pub(crate) roles: Mutex<BTreeMap<Reporter, ReporterRole>>,
    pub(crate) envoys: Mutex<EnvoyTable>,
    changed: watch::Sender<()>,
}

impl RecordingSink {
    fn tell(&self, told: Told) {
        self.told.lock().unwrap().push((self.clock.now(), told));
        self.changed.send_replace(());
    }

    /// Everything so far.
    pub(crate) fn all(&self) -> Vec<Told> {
        self.told.lock().unwrap().iter().map(|(_, told)| told.clone()).collect()
    }

    /// The updates of one reporter.
    pub(crate) fn updates(&self, name: &str) -> Vec<LoadUpdate> {
        let from = reporter(name);
        let updates = self.all().into_iter().filter_map(|told| match told {
            Told::StreamEvent { from: by, update } if by == from => Some(update),
            _ => None,
        });
        updates.collect()
    }

    /// Waits until what the sink knows fulfils a condition.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let mut changed = self.changed.subscribe();
        let wait = async {
            while !condition(self) {
                changed.changed().await.unwrap();
            }
        };
        let waited = timeout(GENEROUS, wait).await;
        assert!(waited.is_ok(), "waited in vain until {what}; last: {:?}", self.all().last());
    }

    pub(crate) fn present(&self, key: &LoadKey) -> u64 {
        self.table.lock().unwrap().present(key).total()
    }
}

impl ReportSink for RecordingSink {
    fn joined(&self, from: &Reporter, role: ReporterRole) {
        self.roles.lock().unwrap().insert(from.clone(), role);
        self.changed.send_replace(());
    }

    fn envoys(&self, from: &Reporter, update: EnvoyUpdate) {
        self.envoys.lock().unwrap().update(from, update);
        self.changed.send_replace(());
    }

    fn heard(&self, from: &Reporter, update: LoadUpdate) {
        self.table.lock().unwrap().heard(self.clock.now(), from, update.clone());
        self.tell(Told::StreamEvent { from: from.clone(), update });
    }

    fn parked(&self, from: &Reporter, services: &BTreeMap<ServiceId, u64>) {
        self.tell(Told::Parked { from: from.clone(), services: services.clone() });
    }

    fn left(&self, from: &Reporter) {
        self.roles.lock().unwrap().remove(from);
        self.envoys.lock().unwrap().left(self.clock.now(), from);
        self.tell(Told::Left { from: from.clone() });
    }
}

/// A controller replica.
pub(crate) struct Controller {
    pub(crate) server: ReportServer,
    pub(crate) sink: Arc<RecordingSink>,
    pub(crate) keys: Arc<PublishedKeys>,
    pub(crate) stop: CancellationToken,
    metrics: Mutex<Metrics>,
}

impl Controller {
    /// One that gateways of `rouse-system` may report to.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut ReportServerSettings)) -> Self {
        let (clock, keys, stop) = (TokioClock::new(), PublishedKeys::new(&[&KEY]), CancellationToken::new());
        let sink = Arc::new(RecordingSink {
            clock,
            table: Mutex::new(LoadTable::new(clock.now())),
            told: Mutex::default(),
            roles: Mutex::default(),
            envoys: Mutex::default(),
            changed: watch::Sender::new(()),
        });
        let mut metrics = Metrics::default();
        let parts = ReportServerParts {
            authenticator: authenticator(&keys),
            sink: Arc::clone(&sink) as _,
            clock: Arc::new(clock),
            metrics: ReportMetrics::new(&mut metrics),
        };
        let account = ReporterAccount { namespace: "rouse-system".into(), name: "rouse-gateway".into() };
        let mut settings = ReportServerSettings::new(vec![account], "0.2.0");
        change(&mut settings);
        let server = ReportServer::new(settings, parts, stop.clone());
        Self { server, sink, keys, stop, metrics: Mutex::new(metrics) }
    }

    /// Puts it on the network, with a certificate for its name.
    pub(crate) fn up(&self, network: &Network, n: u8) {
        network.up(n, Host { server: self.server.clone(), tls: tls(&AUTHORITY, NAME) });
    }

    /// A metric, by its series.
    pub(crate) fn metric(&self, series: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics.lock().unwrap()).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }

    /// How many streams and messages had this result.
    pub(crate) fn results(&self, result: &str) -> u64 {
        self.metric(&format!("rouse_load_reports_total{{result=\"{result}\"}}"))
    }
}

fn authenticator(keys: &Arc<PublishedKeys>) -> TokenAuthenticator {
    let settings = TokenSettings { audience: REPORT_AUDIENCE.to_owned(), ..TokenSettings::default() };
    keys.authenticator_with(settings, time_of_day)
}

/// The TLS of a server with a certificate for `name`.
pub(crate) fn tls(authority: &Authority, name: &str) -> Arc<ServerTls> {
    let entry = CertEntry { identity: authority.leaf(&[name]).identity(), names: Vec::new() };
    let settings = ServerSettings { alpn: vec![Alpn::H2], ..ServerSettings::new(vec![entry]) };
    Arc::new(ServerTls::new(settings).unwrap().0)
}

/// A gateway, or an xds replica.
pub(crate) struct Gateway {
    pub(crate) registry: Arc<Registry>,
    pub(crate) parking: PreparedServices,
    pub(crate) envoys: EnvoyReports,
    pub(crate) gone: Arc<Mutex<BTreeSet<LoadKey>>>,
    pub(crate) end: CancellationToken,
    client: JoinSet<()>,
    metrics: Mutex<Metrics>,
    folder: TempDir,
}

/// How a gateway differs from the usual one.
pub(crate) struct GatewayOptions {
    pub(crate) url: ControllerUrl,
    pub(crate) commands: Option<Arc<dyn ZeroCommands>>,
    pub(crate) role: ReporterRole,
    pub(crate) token: Option<String>,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        let url = ControllerUrl::of_namespace("rouse-system").unwrap();
        Self { url, commands: None, role: ReporterRole::Gateway, token: None }
    }
}

impl Gateway {
    /// A gateway whose client runs.
    pub(crate) fn start(network: &Arc<Network>, name: &str) -> Self {
        Self::start_with(Arc::clone(network) as _, Arc::clone(network) as _, name, GatewayOptions::default())
    }

    pub(crate) fn start_with(
        resolver: Arc<dyn Resolver>,
        dialer: Arc<dyn Dialer>,
        name: &str,
        options: GatewayOptions,
    ) -> Self {
        let GatewayOptions { url, commands, role, token } = options;
        let clock = TokioClock::new();
        let engine = Arc::<CountingEngine>::default();
        let registry = Registry::new(RegistrySettings::default(), Arc::new(clock), engine);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), token.unwrap_or_else(|| self::token(name))).unwrap();
        let gone = Arc::<Mutex<BTreeSet<LoadKey>>>::default();
        let mut metrics = Metrics::default();
        let settings = ReportClientSettings {
            controllers: url,
            roots: Roots::Pem(vec![AUTHORITY.ca()]),
            token_file: folder.path().join("token"),
            version: "0.1.0".into(),
            role,
        };
        let parts = ReportClientParts {
            feed: Arc::clone(registry.loads()),
            exists: Arc::new({
                let gone = Arc::clone(&gone);
                move |key| !gone.lock().unwrap().contains(key)
            }),
            commands,
            clock,
            random_seed: rouse_net::random::system_seed(),
            metrics: ReportClientMetrics::new(&mut metrics),
        };
        let client = ReportClient::new(settings, parts).unwrap().with_network(resolver, dialer);
        let (parking, envoys, end) = (client.parking(), client.envoys(), CancellationToken::new());
        let mut task = JoinSet::new();
        task.spawn(client.run(end.clone()));
        let metrics = Mutex::new(metrics);
        Self { registry, parking, envoys, gone, end, client: task, metrics, folder }
    }

    /// The meter of a service of `shop`.
    pub(crate) fn service(&self, name: &str) -> Arc<LoadMeter> {
        Arc::clone(self.registry.service(&ServiceId::new("shop", name).unwrap()).meter())
    }

    pub(crate) fn write_token(&self, token: &str) {
        std::fs::write(self.folder.path().join("token"), token).unwrap();
    }

    /// The client stops, and its connections close.
    pub(crate) async fn stop(mut self) {
        self.end.cancel();
        timeout(GENEROUS, self.client.join_next()).await.unwrap().unwrap().unwrap();
    }

    pub(crate) fn metric(&self, series: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics.lock().unwrap()).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }
}

/// A network with three controllers of which DNS names the first `count`.
pub(crate) fn scene(count: u8) -> (Arc<Network>, Vec<Controller>) {
    let network = Arc::<Network>::default();
    let controllers: Vec<Controller> = (1..=count)
        .map(|n| {
            let controller = Controller::new();
            controller.up(&network, n);
            controller
        })
        .collect();
    network.name(&(1..=count).collect::<Vec<_>>());
    (network, controllers)
}

/// A reporter that says what a test wants.
pub(crate) struct Scripted {
    outgoing: mpsc::Sender<ReporterMessage>,
    pub(crate) incoming: Streaming<ControllerMessage>,
    channel: Channel,
}

/// An HTTP/2 connection, and its task.
pub(crate) struct Channel {
    sender: http2::SendRequest<tonic::body::Body>,
    task: JoinSet<()>,
}

impl Channel {
    /// Waits until the connection is closed.
    pub(crate) async fn closed(mut self) {
        let _sender = self.sender;
        timeout(GENEROUS, self.task.join_next()).await.unwrap();
    }
}

impl Scripted {
    /// Opens a stream with a token.
    pub(crate) async fn open(network: &Network, token: &str) -> Result<Self, Status> {
        Self::open_with(
            client_stream(network.connect(address(1)).unwrap()).await,
            Some(format!("Bearer {token}")),
        )
        .await
    }

    /// Opens a stream over a connection.
    pub(crate) async fn open_with(channel: Channel, authorization: Option<String>) -> Result<Self, Status> {
        let mut metadata = MetadataMap::new();
        if let Some(authorization) = authorization {
            metadata.insert("authorization", authorization.parse().unwrap());
        }
        Self::open_request(channel, metadata).await
    }

    /// Opens a stream with these headers.
    pub(crate) async fn open_request(channel: Channel, metadata: MetadataMap) -> Result<Self, Status> {
        let (outgoing, mut queue) = mpsc::channel(64);
        let mut request = tonic::Request::new(poll_fn(move |context| queue.poll_recv(context)));
        *request.metadata_mut() = metadata;
        let origin = format!("https://{NAME}:9444").parse().unwrap();
        let Channel { sender, task } = channel;
        let mut client = LoadReportsClient::with_origin(Http2Channel(sender.clone()), origin);
        let incoming = timeout(GENEROUS, client.report(request)).await.unwrap()?.into_inner();
        Ok(Self { outgoing, incoming, channel: Channel { sender, task } })
    }

    pub(crate) async fn send(&self, kind: Kind) {
        assert!(self.is_sent(kind).await, "the stream has ended");
    }

    /// Sends a message, unless the server has ended the stream.
    pub(crate) async fn is_sent(&self, kind: Kind) -> bool {
        self.outgoing.send(ReporterMessage { kind: Some(kind) }).await.is_ok()
    }

    /// A message of an unknown kind.
    pub(crate) async fn send_unknown(&self) {
        self.outgoing.send(ReporterMessage { kind: None }).await.unwrap();
    }

    /// Says hello and sends a complete state.
    pub(crate) async fn begin(&self) {
        self.send(Kind::Hello(hello())).await;
        self.send(Kind::Loads(Loads { complete: true, ..Loads::default() })).await;
    }

    /// Ends the stream, as a reporter does that stops. Returns its status.
    pub(crate) async fn finish(self) -> (Code, String) {
        let Self { outgoing, incoming, channel } = self;
        drop(outgoing);
        // A closed queue in its place.
        let (outgoing, _) = mpsc::channel(1);
        Self { outgoing, incoming, channel }.end().await
    }

    /// Waits until the server has closed the connection, and reads nothing.
    pub(crate) async fn disconnected(self) {
        let Self { outgoing: _outgoing, incoming: _unread, channel } = self;
        channel.closed().await;
    }

    /// Sends these bytes as the body of a report, and returns the status.
    pub(crate) async fn raw(channel: Channel, token: &str, body: &'static [u8]) -> (Code, String) {
        Self::call(channel, "/rouse.report.v1.LoadReports/Report", Some(token), body).await
    }

    /// Calls a method with a body, and returns the status.
    pub(crate) async fn call(
        channel: Channel,
        path: &str,
        token: Option<&str>,
        body: &'static [u8],
    ) -> (Code, String) {
        let Channel { mut sender, task: _connection } = channel;
        let mut request = http::Request::post(format!("https://{NAME}:9444{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = tonic::body::Body::new(http_body_util::Full::from(body));
        let response =
            timeout(GENEROUS, sender.send_request(request.body(body).unwrap())).await.unwrap().unwrap();
        let (head, body) = response.into_parts();
        let body = timeout(GENEROUS, http_body_util::BodyExt::collect(body)).await.unwrap().unwrap();
        let status = Status::from_header_map(body.trailers().unwrap_or(&head.headers));
        let status = status.unwrap();
        (status.code(), status.message().to_owned())
    }

    /// The status with which the stream ends.
    pub(crate) async fn end(mut self) -> (Code, String) {
        loop {
            match timeout(GENEROUS, self.incoming.message()).await.unwrap() {
                Ok(Some(_)) => {}
                Ok(None) => return (Code::Ok, String::new()),
                Err(status) => return (status.code(), status.message().to_owned()),
            }
        }
    }
}

pub(crate) fn hello() -> Hello {
    Hello { version: "0.1.0".into(), boot: 7, role: 1 }
}

/// A reading of a service of `shop`.
pub(crate) fn load(name: &str, requests: u64, in_flight: u32) -> Load {
    let key = Some(crate::proto::load::Key::Service(format!("shop/{name}")));
    Load { key, requests, in_flight, ..Load::default() }
}

/// Does the TLS handshake as a client that trusts the authority.
pub(crate) async fn client_stream(stream: Box<dyn PeerStream>) -> Channel {
    let settings = ClientSettings {
        alpn: vec![Alpn::H2],
        ..ClientSettings::new(ServerName::try_from(NAME).unwrap(), Roots::Pem(vec![AUTHORITY.ca()]))
    };
    let (client, _) = ClientTls::new(settings).unwrap();
    let (stream, _) = client.connect(stream, Instant::now() + GENEROUS).await.unwrap();
    channel(stream).await
}

/// HTTP/2 over a stream.
pub(crate) async fn channel<S: PeerStream + 'static>(stream: S) -> Channel {
    // A small window, so that a client that reads nothing soon gets nothing.
    let mut http = http2::Builder::new(TokioExecutor::new());
    let handshake = http.initial_stream_window_size(64 * 1024).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.unwrap();
    let mut task = JoinSet::new();
    task.spawn(async { connection.await.unwrap_or_default() });
    Channel { sender, task }
}
