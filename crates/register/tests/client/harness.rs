//! Gateways with real registration servers, and a network in memory between them and the client of one pod.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use prometheus_client::registry::Registry as Metrics;
use rouse_core::endpoint::{PodUid, PortName, Source, State};
use rouse_core::merge::PushEvent;
use rouse_core::random::Random;
use rouse_core::registry::{Registry, RegistrySettings};
use rouse_core::snapshot::PortView;
use rouse_core::time::{Clock as _, Moment};
use rouse_net::auth::{
    AuthError, Authenticators, BoxFuture, CertificateAuthenticator, Claim, ClaimError, ClaimGrant, KeyScope,
    Ownership, PodIdentity, PushMode, Sender, SharedKey, SharedKeys, TokenAuthenticator, TokenCheck,
    TokenReviewer, TokenSettings,
};
use rouse_net::clock::TokioClock;
use rouse_net::peers::{Dialer, DialerFuture, PeerStream, Resolver, ResolverFuture};
use rouse_net::tls::{ServerTls, peer_certificate};
use rouse_register::client::{
    Delivery, GatewayUrl, PodClaims, PushClient, PushClientSettings, PushCredential, PushReporter, client,
};
use rouse_register::server::{
    RegistrationMetrics, RegistrationParts, RegistrationRates, RegistrationRequest, RegistrationServer,
    RegistrationSettings, Reply,
};
use rouse_register::wire::{RegistrationAnswer, RegistrationBody};
use rouse_testkit::fakes::CountingEngine;
use rouse_testkit::token_issuer::SigningKey;
use tokio::io::duplex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

pub(crate) const POD_IP: &str = "10.0.0.1";
pub(crate) const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
pub(crate) const NEXT_SECRET: &[u8] = b"fedcba9876543210fedcba9876543210";
/// In real time nothing takes as long; in paused time it costs nothing.
pub(crate) const GENEROUS: Duration = Duration::from_mins(5);

pub(crate) fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
}

pub(crate) fn gateway(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 1, 0, n], 9443))
}

/// Grants everything: what pods may say is tested with the server.
struct Trusting;

impl Ownership for Trusting {
    fn check<'a>(&'a self, _claim: &'a Claim) -> BoxFuture<'a, Result<ClaimGrant, ClaimError>> {
        Box::pin(async { Ok(ClaimGrant::default()) })
    }

    fn granted(&self, _claim: &Claim) -> Option<ClaimGrant> {
        Some(ClaimGrant::default())
    }
}

/// One of the two tokens of the pod `cart-1`, which the reviewer knows.
pub(crate) fn token(which: usize) -> &'static str {
    static TOKENS: LazyLock<[String; 2]> = LazyLock::new(|| {
        let claims = serde_json::json!({
            "iss": "https://issuer.test",
            "aud": ["rouse-register"],
            "exp": 1_900_000_000,
            "kubernetes.io": {
                "namespace": "shop",
                "pod": { "name": "cart-1", "uid": "uid-1" },
                "serviceaccount": { "name": "cart" },
            },
        });
        ["one", "two"].map(|key| SigningKey::new(key).sign(&claims))
    });
    &TOKENS[which]
}

/// Accepts one token, by its number.
struct Reviewer(Arc<Mutex<usize>>);

impl TokenReviewer for Reviewer {
    fn review<'a>(
        &'a self,
        token: &'a str,
        _audience: &'a str,
    ) -> BoxFuture<'a, Result<PodIdentity, AuthError>> {
        let pod = PodIdentity {
            namespace: "shop".into(),
            pod: "cart-1".into(),
            uid: PodUid::new("uid-1"),
            service_account: "cart".into(),
        };
        let good = token == self::token(*self.0.lock().unwrap());
        Box::pin(async move { if good { Ok(pod) } else { Err(AuthError::Refused("bad token".into())) } })
    }
}

/// What happens to requests to a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Link {
    Up,
    /// Connections are refused, and requests on old ones never answered.
    Down,
    /// Nothing is ever answered.
    BlackHole,
    /// Every registration is stale, without the server: the newest has this start time and sequence number.
    Stale(u64, u64),
    /// This is answered, without the server: status, `Retry-After` and reason.
    Answers(u16, Option<&'static str>, String),
    /// Answers list this many gateways, whatever is allowed.
    Lists(u8),
    /// Requests and answers are delayed, repeated, reordered and lost at random: see `hostile.rs`.
    Hostile,
}

/// One gateway. Its registry has no slices.
pub(crate) struct Gateway {
    pub(crate) registry: Arc<Registry>,
    pub(crate) server: Arc<RegistrationServer>,
    /// What arrived, in order.
    pub(crate) requests: Mutex<Vec<RegistrationBody>>,
    link: Mutex<Link>,
    connections: Mutex<CancellationToken>,
    metrics: Mutex<Metrics>,
}

/// The network, DNS included.
pub(crate) struct Network {
    pub(crate) clock: TokioClock,
    gateways: Mutex<BTreeMap<SocketAddr, Arc<Gateway>>>,
    /// What the look-up answers. `None`: it fails.
    dns: Mutex<Option<BTreeSet<SocketAddr>>>,
    /// What answers list.
    pub(crate) listed: Arc<Mutex<Vec<SocketAddr>>>,
    pub(crate) dials: Mutex<Vec<(SocketAddr, Moment)>>,
    pub(crate) lookups: Mutex<Vec<Moment>>,
    pub(crate) tls: Option<Arc<ServerTls>>,
    pub(crate) token: Arc<Mutex<usize>>,
    pub(crate) tasks: Mutex<JoinSet<()>>,
    pub(crate) random: Mutex<Random>,
    /// Told after each request that a gateway handled.
    handled: Notify,
}

impl Network {
    pub(crate) fn new(tls: Option<Arc<ServerTls>>) -> Arc<Self> {
        Arc::new(Self {
            clock: TokioClock::new(),
            gateways: Mutex::default(),
            dns: Mutex::new(Some(BTreeSet::new())),
            listed: Arc::default(),
            dials: Mutex::default(),
            lookups: Mutex::default(),
            tls,
            token: Arc::default(),
            tasks: Mutex::default(),
            random: Mutex::new(Random::new(rouse_net::random::system_seed())),
            handled: Notify::new(),
        })
    }

    /// A network whose DNS names these gateways, which are new.
    pub(crate) fn of(gateways: &[u8]) -> Arc<Self> {
        let network = Self::new(None);
        for n in gateways {
            network.start(*n, PushMode::On);
        }
        network.name(gateways);
        network
    }

    /// Starts a gateway that knows nothing, in place of the one that was there.
    pub(crate) fn start(self: &Arc<Self>, n: u8, mode: PushMode) -> Arc<Gateway> {
        let gateway_n = Gateway::new(self.clock, mode, &self.listed, &self.token);
        let registry = Arc::clone(&gateway_n.registry);
        let clock = self.clock;
        self.tasks.lock().unwrap().spawn(async move {
            registry.drive(|moment| clock.sleep_until(moment)).await;
        });
        self.stop(n);
        self.gateways.lock().unwrap().insert(gateway(n), Arc::clone(&gateway_n));
        gateway_n
    }

    /// Stops a gateway: its connections close, and new ones are refused.
    pub(crate) fn stop(&self, n: u8) {
        if let Some(gateway) = self.gateways.lock().unwrap().remove(&gateway(n)) {
            gateway.connections.lock().unwrap().cancel();
        }
    }

    /// Closes the connections of a gateway, which goes on.
    pub(crate) fn drop_connections(&self, n: u8) {
        let connections = std::mem::take(&mut *self.gateway(n).connections.lock().unwrap());
        connections.cancel();
    }

    pub(crate) fn link(&self, n: u8, link: Link) {
        *self.gateway(n).link.lock().unwrap() = link;
    }

    pub(crate) fn gateway(&self, n: u8) -> Arc<Gateway> {
        Arc::clone(&self.gateways.lock().unwrap()[&gateway(n)])
    }

    pub(crate) fn all(&self) -> Vec<Arc<Gateway>> {
        self.gateways.lock().unwrap().values().cloned().collect()
    }

    /// DNS names these.
    pub(crate) fn name(&self, gateways: &[u8]) {
        *self.dns.lock().unwrap() = Some(gateways.iter().map(|n| gateway(*n)).collect());
    }

    pub(crate) fn break_dns(&self) {
        *self.dns.lock().unwrap() = None;
    }

    pub(crate) fn dials_to(&self, n: u8) -> Vec<Moment> {
        let dials = self.dials.lock().unwrap();
        dials.iter().filter(|(to, _)| *to == gateway(n)).map(|(_, at)| *at).collect()
    }

    /// Waits until `met`, which is checked whenever a gateway has handled a request.
    pub(crate) async fn until(&self, what: &str, met: impl Fn() -> bool) {
        self.within(GENEROUS, what, met).await;
    }

    /// The same with a deadline of the specification, in paused time.
    pub(crate) async fn within(&self, limit: Duration, what: &str, met: impl Fn() -> bool) {
        let wait = async {
            loop {
                let handled = self.handled.notified();
                if met() {
                    return;
                }
                handled.await;
            }
        };
        timeout(limit, wait).await.unwrap_or_else(|_| panic!("{what}"));
    }

    /// Waits until all gateways have the pod in this state.
    pub(crate) async fn all_know(&self, state: State) {
        let met = || self.all().iter().all(|gateway| gateway.state() == Some(state));
        self.until(&format!("all gateways know {state:?}"), met).await;
    }

    /// Delivers a request to a gateway, as it came from the pod.
    pub(crate) async fn deliver(
        &self,
        to: &Gateway,
        certificate: Option<&Result<Sender, AuthError>>,
        authorization: Option<&[u8]>,
        body: &[u8],
    ) -> Reply {
        to.requests.lock().unwrap().push(serde_json::from_slice(body).unwrap());
        let request = RegistrationRequest {
            peer: POD_IP.parse().unwrap(),
            secure: self.tls.is_some(),
            certificate,
            authorization,
            body,
        };
        let reply = to.server.register(&request).await;
        self.handled.notify_waiters();
        reply
    }

    async fn serve(self: Arc<Self>, gateway: Arc<Gateway>, stream: impl PeerStream + 'static) {
        let end = gateway.connections.lock().unwrap().clone();
        let serve = async {
            match self.tls.clone() {
                None => self.serve_http(&gateway, stream, None).await,
                Some(tls) => {
                    if let Ok((stream, _)) = tls.accept(stream, Instant::now() + GENEROUS).await {
                        let authenticators = authenticators(&self.token);
                        let certificate =
                            peer_certificate(&stream).and_then(|it| authenticators.certificate_sender(it));
                        self.serve_http(&gateway, stream, certificate).await;
                    }
                }
            }
        };
        end.run_until_cancelled(serve).await;
    }

    async fn serve_http(
        self: &Arc<Self>,
        gateway: &Arc<Gateway>,
        stream: impl PeerStream,
        certificate: Option<Result<Sender, AuthError>>,
    ) {
        let certificate = certificate.as_ref();
        let service = service_fn(async |request: Request<Incoming>| {
            let reply = self.answer(gateway, certificate, request).await;
            let mut response = Response::builder().status(reply.status);
            if let Some(seconds) = reply.retry_after {
                response = response.header("retry-after", seconds);
            }
            Ok::<_, Infallible>(response.body(Full::new(Bytes::from(reply.body))).unwrap())
        });
        http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
    }

    async fn answer(
        self: &Arc<Self>,
        gateway: &Arc<Gateway>,
        certificate: Option<&Result<Sender, AuthError>>,
        request: Request<Incoming>,
    ) -> Reply {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let authorization = head.headers.get("authorization").map(http::HeaderValue::as_bytes);
        let link = gateway.link.lock().unwrap().clone();
        match link {
            Link::Up => self.deliver(gateway, certificate, authorization, &body).await,
            Link::Lists(count) => {
                let mut reply = self.deliver(gateway, certificate, authorization, &body).await;
                let mut answer: RegistrationAnswer = serde_json::from_slice(&reply.body).unwrap();
                answer.gateways = (1..=count).map(self::gateway).collect();
                reply.body = serde_json::to_vec(&answer).unwrap();
                reply
            }
            Link::Stale(started, sequence) => {
                let boot = format!("{started}-00000000000000ff");
                let answer = serde_json::json!({
                    "status": "stale", "lease_seconds": 60, "boot": boot, "sequence": sequence, "gateways": [],
                });
                self.handled.notify_waiters();
                Reply {
                    status: 200,
                    retry_after: None,
                    close: false,
                    body: serde_json::to_vec(&answer).unwrap(),
                }
            }
            Link::Hostile => self.mistreat(gateway, authorization, &body).await,
            Link::Down | Link::BlackHole => std::future::pending().await,
            Link::Answers(status, retry_after, reason) => {
                gateway.requests.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
                self.handled.notify_waiters();
                let sent = String::from_utf8_lossy(authorization.unwrap_or_default()).into_owned();
                let reason = reason.replace("{authorization}", &sent);
                // With 200, the status is none, and the parser's error quotes it.
                let body = serde_json::json!({ "error": "scripted", "reason": reason, "status": reason });
                let retry_after = retry_after.map(|text| text.parse().unwrap());
                Reply { status, retry_after, close: false, body: serde_json::to_vec(&body).unwrap() }
            }
        }
    }
}

fn authenticators(token: &Arc<Mutex<usize>>) -> Authenticators {
    let reviewer = TokenCheck::Review(Arc::new(Reviewer(Arc::clone(token))));
    Authenticators::default()
        .with_shared_keys(Arc::new(SharedKeys::fixed(vec![key(), next_key()], now)))
        .with_tokens(TokenAuthenticator::new(reviewer, TokenSettings::default(), now))
        .with_certificates(CertificateAuthenticator::new("cluster.local"))
}

pub(crate) fn key() -> SharedKey {
    SharedKey::new("one", SECRET, KeyScope::All).unwrap()
}

/// A second key, which the gateways accept as well.
pub(crate) fn next_key() -> SharedKey {
    SharedKey::new("two", NEXT_SECRET, KeyScope::All).unwrap()
}

impl Gateway {
    pub(crate) fn new(
        clock: TokioClock,
        mode: PushMode,
        listed: &Arc<Mutex<Vec<SocketAddr>>>,
        token: &Arc<Mutex<usize>>,
    ) -> Arc<Self> {
        let engine = Arc::<CountingEngine>::default();
        let registry = Registry::new(RegistrySettings::default(), Arc::new(clock), engine);
        registry.service(&"shop/cart".parse().unwrap());
        let (mut metrics, listed) = (Metrics::default(), Arc::clone(listed));
        let parts = RegistrationParts {
            authenticators: authenticators(token),
            ownership: Arc::new(Trusting),
            registry: Arc::clone(&registry),
            clock: Arc::new(clock),
            time_of_day: now,
            gateways: Arc::new(move || listed.lock().unwrap().clone()),
            metrics: RegistrationMetrics::new(&mut metrics),
        };
        let (lease, rates) = (Duration::from_mins(1), RegistrationRates::default());
        let server = RegistrationServer::new(RegistrationSettings { mode, lease, rates }, parts);
        Arc::new(Self {
            registry,
            server,
            requests: Mutex::default(),
            link: Mutex::new(Link::Up),
            connections: Mutex::default(),
            metrics: Mutex::new(metrics),
        })
    }

    /// The state of the pod, if the gateway knows it from a push.
    pub(crate) fn state(&self) -> Option<State> {
        let service = self.registry.get(&"shop/cart".parse().unwrap())?;
        let snapshot = Arc::clone(&service.snapshot());
        let mut endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
        let endpoint = endpoints.next()?;
        assert_eq!(endpoint.source, Source::Push);
        assert!(endpoints.next().is_none(), "one pod has one endpoint");
        Some(endpoint.state)
    }

    pub(crate) fn sequences(&self) -> Vec<u64> {
        self.requests.lock().unwrap().iter().map(|request| request.sequence).collect()
    }

    pub(crate) fn attempts(&self, result: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics.lock().unwrap()).unwrap();
        let counted = text.lines().filter(|line| {
            line.starts_with("pod_registration_attempts_total")
                && line.contains(&format!("result=\"{result}\""))
        });
        counted.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }
}

impl Resolver for Network {
    fn lookup<'a>(&'a self, name: &'a str, port: u16) -> ResolverFuture<'a> {
        assert_eq!((name, port), ("rouse-register.rouse-system.svc.cluster.local.", 9443));
        self.lookups.lock().unwrap().push(self.clock.now());
        let answer = self.dns.lock().unwrap().clone();
        let failed = || io::Error::other("no such name");
        Box::pin(async move { Ok(answer.ok_or_else(failed)?.into_iter().collect()) })
    }
}

/// Connects the client of one pod to the network.
pub(crate) struct Wire(pub(crate) Arc<Network>);

impl Dialer for Wire {
    fn dial(&self, peer: SocketAddr) -> DialerFuture<'_> {
        let network = &self.0;
        network.dials.lock().unwrap().push((peer, network.clock.now()));
        let gateway = network.gateways.lock().unwrap().get(&peer).cloned();
        let link = gateway.as_ref().map_or(Link::Down, |gateway| gateway.link.lock().unwrap().clone());
        Box::pin(async move {
            match (gateway, link) {
                (Some(_), Link::BlackHole) => std::future::pending().await,
                (None, _) | (_, Link::Down) => Err(io::ErrorKind::ConnectionRefused.into()),
                (Some(gateway), _) => {
                    let (near, far) = duplex(64 * 1024);
                    network.tasks.lock().unwrap().spawn(Arc::clone(network).serve(gateway, far));
                    Ok(Box::new(near) as Box<dyn PeerStream>)
                }
            }
        })
    }
}

pub(crate) fn claims(ip: &str) -> PodClaims {
    PodClaims {
        service: "shop/cart".parse().unwrap(),
        pod: "cart-1".into(),
        uid: PodUid::new("uid-1"),
        ips: vec![ip.parse::<IpAddr>().unwrap()],
        ports: BTreeMap::from([(PortName::new("http"), 8080)]),
    }
}

/// The settings of a client with a shared key, without TLS.
pub(crate) fn plain() -> PushClientSettings {
    PushClientSettings {
        gateways: "http://rouse-register.rouse-system.svc.cluster.local:9443".parse().unwrap(),
        credential: PushCredential::SharedKey(key()),
        tls: None,
        pod: claims(POD_IP),
    }
}

pub(crate) fn default_url() -> GatewayUrl {
    GatewayUrl::of_namespace("rouse-system").unwrap()
}

/// A sidecar that runs. Dropping it kills it.
pub(crate) struct Sidecar {
    pub(crate) reporter: PushReporter,
    end: CancellationToken,
    tasks: JoinSet<()>,
}

impl Sidecar {
    /// The sidecar of the pod with a shared key.
    pub(crate) fn start(network: &Arc<Network>) -> Self {
        Self::with(network, plain(), now)
    }

    pub(crate) fn with(
        network: &Arc<Network>,
        settings: PushClientSettings,
        time_of_day: fn() -> SystemTime,
    ) -> Self {
        let seed = rouse_net::random::system_seed();
        let (reporter, client) = client(settings, network.clock, seed, time_of_day).unwrap();
        let wire = Arc::new(Wire(Arc::clone(network)));
        Self::run(reporter, client.with_network(Arc::clone(network) as _, wire))
    }

    pub(crate) fn run(reporter: PushReporter, client: PushClient) -> Self {
        let (end, mut tasks) = (CancellationToken::new(), JoinSet::new());
        tasks.spawn(client.run(end.clone()));
        Self { reporter, end, tasks }
    }

    pub(crate) async fn report(&self, event: PushEvent) -> Delivery {
        self.reporter.report(event);
        self.delivered().await
    }

    pub(crate) async fn delivered(&self) -> Delivery {
        timeout(GENEROUS, self.reporter.acknowledged()).await.expect("it is acknowledged").unwrap()
    }

    pub(crate) async fn stop(mut self) {
        self.end.cancel();
        timeout(GENEROUS, self.tasks.join_next()).await.expect("it ends");
    }
}

/// Lets paused time pass.
pub(crate) async fn pass(time: Duration) {
    timeout(time, std::future::pending::<()>()).await.ok();
}

pub(crate) fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
