//! Registrations per CPU-second of the gateway's side, by credential. `make bench-registrations` runs it, and
//! `bench/README.md` explains the figures.
//!
//! The server has a thread of its own, whose CPU time is counted: HTTP, TLS, the check of the credential, the merge and the
//! answer. Ownership is granted at once; the connections are kept.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    missing_docs,
    reason = "a benchmark"
)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, SystemTime};

use jsonwebtoken::Algorithm;
use prometheus_client::registry::Registry as Metrics;
use rouse_core::budget::Rate;
use rouse_core::endpoint::PodUid;
use rouse_net::auth::{
    Authenticators, BoxFuture, Claim, ClaimError, ClaimGrant, KeyScope, Ownership, PodIdentity, PushMode,
    SharedKey, SharedKeys,
};
use rouse_net::tls::{
    Alpn, CertEntry, ClientSettings, ClientTls, Roots, ServerName, ServerSettings, ServerTls,
};
use rouse_register::server::{
    ListenerLimits, ListenerTransport, RegistrationMetrics, RegistrationParts, RegistrationRates,
    RegistrationServer, RegistrationSettings,
};
use rouse_register::wire::{PATH, RegistrationBody};
use rouse_testkit::certificates::Authority;
use rouse_testkit::fakes::Bench;
use rouse_testkit::token_issuer::{PublishedKeys, START, SigningKey, claims_of};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const PODS: usize = 1_000;
const SERVICES: usize = 20;
const CONNECTIONS: usize = 16;
const ROUNDS: usize = 3;
const NAME: &str = "rouse-register.rouse-system.svc";

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(START)
}

/// Grants everything.
struct Granted;

impl Ownership for Granted {
    fn check<'a>(&'a self, _: &'a Claim) -> BoxFuture<'a, Result<ClaimGrant, ClaimError>> {
        Box::pin(async { Ok(ClaimGrant::default()) })
    }

    fn granted(&self, _: &Claim) -> Option<ClaimGrant> {
        Some(ClaimGrant::default())
    }
}

fn key() -> SharedKey {
    SharedKey::new("one", b"0123456789abcdef0123456789abcdef", KeyScope::All).unwrap()
}

/// The CPU time of this thread so far.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Serves on this thread until `stop`, and returns its CPU time.
fn serve(
    keys: &Arc<PublishedKeys>,
    transport: ListenerTransport,
    stop: CancellationToken,
    told: impl FnOnce(SocketAddr),
) -> Duration {
    let (bench, mut metrics) = (Bench::new(), Metrics::default());
    let most = Rate { per_second: u32::MAX, burst: u32::MAX };
    let settings = RegistrationSettings {
        mode: PushMode::On,
        lease: Duration::from_mins(1),
        rates: RegistrationRates {
            total: most,
            source: most,
            failures: most,
            known: most,
            known_total: most,
            connections: most,
            source_connections: most,
        },
    };
    for n in 0..SERVICES {
        bench.registry.service(&format!("shop/s{n}").parse().unwrap());
    }
    let authenticators = Authenticators::default()
        .with_shared_keys(Arc::new(SharedKeys::fixed(vec![key()], now).with_nonces_per_key(usize::MAX)))
        .with_tokens(keys.authenticator(now));
    let gateways: Vec<SocketAddr> = (1..4).map(|n| SocketAddr::from(([10, 1, 0, n], 9443))).collect();
    let parts = RegistrationParts {
        authenticators,
        ownership: Arc::new(Granted),
        registry: Arc::clone(&bench.registry),
        clock: Arc::clone(&bench.clock) as _,
        time_of_day: SystemTime::now,
        gateways: Arc::new(move || gateways.clone()),
        metrics: RegistrationMetrics::new(&mut metrics),
    };
    let server = RegistrationServer::new(settings, parts);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        told(listener.local_addr().unwrap());
        server.serve(listener, transport, ListenerLimits::default(), stop).await;
    });
    cpu()
}

/// What pod `n` says. It has the address of the client.
fn body(n: usize, sequence: u64) -> String {
    let body = RegistrationBody {
        namespace: "shop".into(),
        service: format!("s{}", n % SERVICES),
        pod: format!("pod-{n}"),
        uid: format!("00000000-0000-0000-0000-{n:012}"),
        boot: "1700000000000-000000000000feed".into(),
        sequence,
        ips: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
        ports: BTreeMap::from([("http".into(), u16::try_from(n + 1).unwrap())]),
        event: "ready".into(),
    };
    serde_json::to_string(&body).unwrap()
}

fn request(authorization: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {PATH} HTTP/1.1\r\nhost: {NAME}\r\nauthorization: {authorization}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Requests, in the order in which they are sent.
fn signed(count: usize) -> Vec<Vec<u8>> {
    let one = |n: usize| {
        let (body, mut nonce) = (body(n % PODS, 1), [0; 16]);
        nonce[..8].copy_from_slice(&(n as u64).to_be_bytes());
        request(&key().sign("POST", PATH, body.as_bytes(), START, nonce), &body)
    };
    (0..count).map(one).collect()
}

/// Requests with `fresh` different tokens for each pod, over and over.
fn with_tokens(key: &SigningKey, count: usize, fresh: usize) -> Vec<Vec<u8>> {
    let token = |n: usize| {
        let pod = PodIdentity {
            namespace: "shop".into(),
            pod: format!("pod-{}", n % PODS),
            uid: PodUid::new(&format!("00000000-0000-0000-0000-{:012}", n % PODS)),
            service_account: "cart".into(),
        };
        let mut claims = claims_of(&pod, START);
        claims["jti"] = serde_json::json!(n);
        key.sign(&claims)
    };
    let tokens: Vec<String> = (0..fresh).map(token).collect();
    (0..count)
        .map(|n| request(&format!("Bearer {}", tokens[n % fresh]), &body(n % fresh % PODS, 1)))
        .collect()
}

async fn send(mut stream: impl AsyncRead + AsyncWrite + Unpin, requests: Vec<Vec<u8>>) {
    for request in requests {
        stream.write_all(&request).await.unwrap();
        stream.flush().await.unwrap();
        let mut read = Vec::new();
        loop {
            let mut piece = [0; 2048];
            let length = stream.read(&mut piece).await.unwrap();
            assert_ne!(length, 0, "{}", String::from_utf8_lossy(&read));
            read.extend_from_slice(&piece[..length]);
            if read.ends_with(b"}") {
                break;
            }
        }
        assert!(read.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&read));
    }
}

/// Sends the requests over kept connections, and returns the CPU time of the server for each.
fn measure(keys: &Arc<PublishedKeys>, authority: Option<&Authority>, requests: Vec<Vec<u8>>) -> Duration {
    let transport = authority.map_or(ListenerTransport::Plain, |authority| {
        let identity = authority.leaf(&[NAME]).identity();
        let settings = ServerSettings {
            alpn: vec![Alpn::Http1],
            ..ServerSettings::new(vec![CertEntry { identity, names: Vec::new() }])
        };
        ListenerTransport::Tls(Arc::new(ServerTls::new(settings).unwrap().0))
    });
    let client = authority.map(|authority| {
        let roots = Roots::Pem(vec![authority.ca()]);
        let name = ServerName::try_from(NAME).unwrap();
        let settings = ClientSettings { alpn: vec![Alpn::Http1], ..ClientSettings::new(name, roots) };
        Arc::new(ClientTls::new(settings).unwrap().0)
    });
    let (stop, count) = (CancellationToken::new(), requests.len());
    let (tell, told) = sync_channel(1);
    let server = std::thread::spawn({
        let (keys, stop) = (Arc::clone(keys), stop.clone());
        move || serve(&keys, transport, stop, |address| tell.send(address).unwrap())
    });
    let address = told.recv().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut shares: Vec<Vec<Vec<u8>>> = vec![Vec::new(); CONNECTIONS];
    for (n, request) in requests.into_iter().enumerate() {
        shares[n % CONNECTIONS].push(request);
    }
    LocalSet::new().block_on(&runtime, async {
        let mut connections = JoinSet::new();
        for share in shares {
            let client = client.clone();
            connections.spawn_local(async move {
                let stream = TcpStream::connect(address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                match client {
                    None => send(stream, share).await,
                    Some(client) => {
                        let deadline = Instant::now() + Duration::from_secs(30);
                        send(client.connect(stream, deadline).await.unwrap().0, share).await;
                    }
                }
            });
        }
        connections.join_all().await;
    });
    stop.cancel();
    server.join().unwrap() / u32::try_from(count).unwrap()
}

fn main() {
    let authority = Authority::new();
    let (rsa, ecdsa) = (SigningKey::of("rsa", Algorithm::RS256), SigningKey::new("ecdsa"));
    let keys = PublishedKeys::new(&[&rsa, &ecdsa]);
    println!("CPU of the gateway for each registration; median (range) of {ROUNDS} rounds\n");
    println!("{:<34}{:>22}{:>20}", "", "µs", "per CPU-second");
    let row = |name: &str, tls: bool, requests: &dyn Fn() -> Vec<Vec<u8>>| {
        let authority = tls.then_some(&authority);
        let mut took: Vec<f64> =
            (0..ROUNDS).map(|_| measure(&keys, authority, requests()).as_secs_f64() * 1e6).collect();
        took.sort_by(f64::total_cmp);
        let [least, median, most] = [took[0], took[ROUNDS / 2], took[ROUNDS - 1]];
        let range = format!("{median:.1} ({least:.1}..{most:.1})");
        println!("{name:<34}{range:>22}{:>20.0}", 1e6 / median);
    };
    row("shared key, plain", false, &|| signed(40_000));
    row("shared key, TLS", true, &|| signed(40_000));
    row("known token, TLS", true, &|| with_tokens(&rsa, 40_000, PODS));
    row("new token (RS256), TLS", true, &|| with_tokens(&rsa, 5_000, 5_000));
    row("new token (ES256), TLS", true, &|| with_tokens(&ecdsa, 10_000, 10_000));
}
