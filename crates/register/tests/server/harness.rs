//! A registration server over a registry, with ownership that a test scripts and real authenticators.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, SystemTime};

use prometheus_client::registry::Registry as Metrics;
use rouse_core::endpoint::{PodUid, ServiceId, Source, State};
use rouse_core::snapshot::PortView;
use rouse_net::auth::{
    AuthError, Authenticators, BoxFuture, CertificateAuthenticator, Claim, ClaimError, ClaimGrant, KeyScope,
    Ownership, PodIdentity, PushMode, SharedKey, SharedKeys, TokenAuthenticator, TokenCheck, TokenReviewer,
    TokenSettings,
};
use rouse_register::server::{
    RegistrationMetrics, RegistrationParts, RegistrationRates, RegistrationRequest, RegistrationServer,
    RegistrationSettings, Reply,
};
use rouse_register::wire::{AnswerStatus, PATH, RegistrationAnswer, RegistrationBody};
use rouse_testkit::fakes::Bench;
use rouse_testkit::token_issuer::{START, SigningKey, claims_of};

pub(crate) const POD_IP: &str = "10.0.0.1";
pub(crate) const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
/// The token of the pod `cart-1`, as the fake reviewer knows it.
pub(crate) static TOKEN: LazyLock<String> =
    LazyLock::new(|| SigningKey::new("k1").sign(&claims_of(&cart_1(), START)));
/// A token that the fake reviewer cannot review.
pub(crate) static UNREVIEWED: LazyLock<String> =
    LazyLock::new(|| SigningKey::new("k1").sign(&claims_of(&cart_1(), START)));

/// The Service of the pods.
pub(crate) fn cart() -> ServiceId {
    ServiceId::new("shop", "cart").unwrap()
}

/// The pod `cart-1`, as tokens name it.
pub(crate) fn cart_1() -> PodIdentity {
    PodIdentity {
        namespace: "shop".into(),
        pod: "cart-1".into(),
        uid: PodUid::new("uid-1"),
        service_account: "cart".into(),
    }
}

pub(crate) fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(START)
}

/// Knows the token of one pod. It stands for the API server.
struct FakeReviewer;

impl TokenReviewer for FakeReviewer {
    fn review<'a>(
        &'a self,
        token: &'a str,
        _audience: &'a str,
    ) -> BoxFuture<'a, Result<PodIdentity, AuthError>> {
        Box::pin(async move {
            match token {
                token if token == *TOKEN => Ok(cart_1()),
                token if token == *UNREVIEWED => {
                    Err(AuthError::Unavailable("the API server does not answer".into()))
                }
                _ => Err(AuthError::Refused("the token is not valid".into())),
            }
        })
    }
}

/// Grants what a test says, and nothing else.
#[derive(Default)]
pub(crate) struct ScriptedOwnership {
    pub(crate) answers: Mutex<HashMap<PodUid, Result<ClaimGrant, ClaimError>>>,
    pub(crate) claims: Mutex<Vec<Claim>>,
    /// Pods that lose their grant between the check and the push.
    pub(crate) revoked: Mutex<Vec<PodUid>>,
    /// Pods whose deletion begins between the check and the push.
    pub(crate) leaving: Mutex<Vec<PodUid>>,
}

impl Ownership for ScriptedOwnership {
    fn check<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<ClaimGrant, ClaimError>> {
        self.claims.lock().unwrap().push(claim.clone());
        let answer = self.answers.lock().unwrap().get(&claim.uid).cloned();
        let none = || Err(ClaimError::Denied("there is no such pod".into()));
        Box::pin(async move { answer.unwrap_or_else(none) })
    }

    fn granted(&self, claim: &Claim) -> Option<ClaimGrant> {
        if self.revoked.lock().unwrap().contains(&claim.uid) {
            return None;
        }
        let leaving = self.leaving.lock().unwrap().contains(&claim.uid);
        let grant = self.answers.lock().unwrap().get(&claim.uid).cloned()?.ok()?;
        Some(ClaimGrant { leaving: leaving || grant.leaving, ..grant })
    }
}

pub(crate) struct Scene {
    pub(crate) bench: Bench,
    pub(crate) ownership: Arc<ScriptedOwnership>,
    pub(crate) server: Arc<RegistrationServer>,
    metrics: Mutex<Metrics>,
    key: SharedKey,
    nonce: AtomicU64,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::with(PushMode::On, RegistrationRates::default())
    }

    pub(crate) fn with(mode: PushMode, rates: RegistrationRates) -> Self {
        let tokens = TokenCheck::Review(Arc::new(FakeReviewer));
        Self::with_tokens(mode, rates, TokenAuthenticator::new(tokens, TokenSettings::default(), now))
    }

    pub(crate) fn with_tokens(mode: PushMode, rates: RegistrationRates, tokens: TokenAuthenticator) -> Self {
        let (bench, mut metrics) = (Bench::new(), Metrics::default());
        let key = SharedKey::new("one", SECRET, KeyScope::Only(vec!["shop".into()])).unwrap();
        let ownership = Arc::<ScriptedOwnership>::default();
        let authenticators = Authenticators::default()
            // The stress test signs more requests in one round than a key may sign in its clock window.
            .with_shared_keys(Arc::new(
                SharedKeys::fixed(vec![key.clone()], now).with_nonces_per_key(usize::MAX),
            ))
            .with_tokens(tokens)
            .with_certificates(CertificateAuthenticator::new("cluster.local"));
        let gateways: Vec<SocketAddr> = (0..100).map(|n| SocketAddr::from(([10, 1, 0, n], 9443))).collect();
        let parts = RegistrationParts {
            authenticators,
            ownership: Arc::clone(&ownership) as _,
            registry: Arc::clone(&bench.registry),
            clock: Arc::clone(&bench.clock) as _,
            time_of_day: now,
            gateways: Arc::new(move || gateways.clone()),
            metrics: RegistrationMetrics::new(&mut metrics),
        };
        let settings = RegistrationSettings { mode, lease: Duration::from_mins(1), rates };
        let server = RegistrationServer::new(settings, parts);
        let scene =
            Self { bench, ownership, server, metrics: Mutex::new(metrics), key, nonce: AtomicU64::new(1) };
        scene.grant("uid-1", Ok(ClaimGrant::default()));
        scene.bench.registry.service(&cart());
        scene
    }

    pub(crate) fn grant(&self, uid: &str, answer: Result<ClaimGrant, ClaimError>) {
        self.ownership.answers.lock().unwrap().insert(PodUid::new(uid), answer);
    }

    /// The signature of a request with `body`.
    pub(crate) fn signed(&self, body: &[u8]) -> String {
        self.signed_at(START, body)
    }

    /// The same at another time, in Unix seconds.
    pub(crate) fn signed_at(&self, seconds: u64, body: &[u8]) -> String {
        let count = self.nonce.fetch_add(1, Ordering::Relaxed);
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&count.to_be_bytes());
        self.key.sign("POST", PATH, body, seconds, nonce)
    }

    /// Sends a request over TLS from `peer`.
    pub(crate) async fn send(&self, peer: &str, authorization: Option<&str>, body: &[u8]) -> Reply {
        let request = RegistrationRequest {
            peer: peer.parse().unwrap(),
            secure: true,
            certificate: None,
            authorization: authorization.map(str::as_bytes),
            body,
        };
        self.server.register(&request).await
    }

    /// Sends a signed registration from the pod.
    pub(crate) async fn register(&self, body: &RegistrationBody) -> Reply {
        let body = serde_json::to_vec(body).unwrap();
        self.send(POD_IP, Some(&self.signed(&body)), &body).await
    }

    /// Sends a signed registration, which is answered with 200.
    pub(crate) async fn answered(&self, body: &RegistrationBody) -> RegistrationAnswer {
        let reply = self.register(body).await;
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
        serde_json::from_slice(&reply.body).unwrap()
    }

    pub(crate) async fn status(&self, body: &RegistrationBody) -> AnswerStatus {
        self.answered(body).await.status
    }

    /// The endpoints of the service: name of the pod, state and source.
    pub(crate) fn endpoints(&self) -> Vec<(String, State, Source)> {
        let Some(service) = self.bench.registry.get(&"shop/cart".parse().unwrap()) else { return Vec::new() };
        let snapshot = Arc::clone(&service.snapshot());
        let endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
        let shown = endpoints.map(|endpoint| {
            let pod = endpoint.pod.as_ref().map_or("", |pod| &pod.name);
            (pod.to_owned(), endpoint.state, endpoint.source)
        });
        shown.collect()
    }

    pub(crate) fn generation(&self) -> u64 {
        let service = self.bench.registry.get(&"shop/cart".parse().unwrap());
        service.map_or(0, |service| service.snapshot().generation)
    }

    /// The metrics that are not zero, as `/metrics` shows them.
    pub(crate) fn counted(&self) -> BTreeMap<String, u64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics.lock().unwrap()).unwrap();
        let counters = text.lines().filter_map(|line| {
            let (series, value) = line.strip_prefix("pod_registration_")?.rsplit_once(' ')?;
            let counts = series.starts_with("attempts_total") || series.starts_with("duration_seconds_count");
            counts.then(|| (series.to_owned(), value.parse().unwrap()))
        });
        counters.collect()
    }

    pub(crate) fn attempts(&self, service: &str, event: &str, result: &str) -> u64 {
        let labels = format!("service=\"{service}\",event_type=\"{event}\",result=\"{result}\"");
        let durations = format!("event_type=\"{event}\",result=\"{result}\"");
        let counted = self.counted();
        let attempts = counted.get(&format!("attempts_total{{{labels}}}")).copied().unwrap_or_default();
        let observed = counted.get(&format!("duration_seconds_count{{{durations}}}")).copied();
        assert!(observed.unwrap_or_default() >= attempts, "{counted:?}");
        attempts
    }
}

/// What the pod `cart-1` truthfully says.
pub(crate) fn body(sequence: u64, event: &str) -> RegistrationBody {
    RegistrationBody {
        namespace: "shop".into(),
        service: "cart".into(),
        pod: "cart-1".into(),
        uid: "uid-1".into(),
        boot: "1700000000000-000000000000feed".into(),
        sequence,
        ips: vec![POD_IP.parse::<IpAddr>().unwrap()],
        ports: BTreeMap::from([("http".into(), 8080)]),
        event: event.into(),
    }
}
