//! The server over real connections: one HTTP/1.1 request after another, with and without TLS.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rouse_core::budget::Rate;
use rouse_net::auth::PushMode;
use rouse_net::tls::{
    Alpn, CertEntry, ClientAuth, ClientSettings, ClientTls, Roots, ServerName, ServerSettings, ServerTls,
};
use rouse_register::server::{ListenerLimits, ListenerTransport, RegistrationRates};
use rouse_register::wire::MAX_BODY;
use rouse_testkit::certificates::Authority;
use rouse_testkit::certificates::rcgen::{KeyPair, SanType, date_time_ymd};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::harness::{Scene, body};

const GENEROUS: Duration = Duration::from_secs(30);

struct Served {
    scene: Arc<Scene>,
    address: SocketAddr,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

async fn served(transport: ListenerTransport) -> Served {
    served_within(transport, RegistrationRates::default(), ListenerLimits::default()).await
}

async fn served_within(
    transport: ListenerTransport,
    rates: RegistrationRates,
    limits: ListenerLimits,
) -> Served {
    let scene = Arc::new(Scene::with(PushMode::On, rates));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    tasks.spawn(Arc::clone(&scene.server).serve(listener, transport, limits, stop.clone()));
    Served { scene, address, stop, tasks }
}

impl Served {
    /// Connects from the source 127.0.0.`source`.
    async fn connect(&self, source: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, source], 0))).unwrap();
        timeout(GENEROUS, socket.connect(self.address)).await.unwrap().unwrap()
    }

    fn request(&self, sequence: u64) -> String {
        self.request_from(1, sequence)
    }

    /// A good request of the source 127.0.0.`source`.
    fn request_from(&self, source: u8, sequence: u64) -> String {
        let mut body = body(sequence, "ready");
        body.ips = vec![IpAddr::from([127, 0, 0, source])];
        let text = serde_json::to_string(&body).unwrap();
        let signature = self.scene.signed(text.as_bytes());
        let length = text.len();
        format!(
            "POST /v1/registrations HTTP/1.1\r\nhost: gateway\r\nauthorization: {signature}\r\n\
             content-length: {length}\r\n\r\n{text}"
        )
    }
}

const NAME: &str = "rouse-register.rouse-system.svc";

fn over_tls(authority: &Authority) -> ListenerTransport {
    let identity = authority.leaf(&[NAME]).identity();
    let settings = ServerSettings::new(vec![CertEntry { identity, names: Vec::new() }]);
    let settings = ServerSettings { alpn: vec![Alpn::Http1], ..settings };
    ListenerTransport::Tls(Arc::new(ServerTls::new(settings).unwrap().0))
}

fn tls_client(authority: &Authority) -> ClientTls {
    let name = ServerName::try_from(NAME).unwrap();
    ClientTls::new(ClientSettings::new(name, Roots::Pem(vec![authority.ca()]))).unwrap().0
}

/// Waits until the server closes the connection, and returns what it sent before.
async fn closed(mut stream: impl AsyncRead + Unpin) -> String {
    let mut rest = Vec::new();
    // A reset is also an end.
    timeout(GENEROUS, stream.read_to_end(&mut rest)).await.expect("it is closed").ok();
    String::from_utf8_lossy(&rest).into_owned()
}

/// Sends a request, and returns the status line and the rest of the response.
async fn exchange(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    let whole = async {
        loop {
            let mut piece = [0; 4096];
            let length = stream.read(&mut piece).await.unwrap();
            read.extend_from_slice(&piece[..length]);
            let text = String::from_utf8_lossy(&read).into_owned();
            let expected = text.split_once("\r\n\r\n").and_then(|(head, rest)| {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
                Some(rest.len() >= length.parse().ok()?)
            });
            if expected == Some(true) || length == 0 {
                return text;
            }
        }
    };
    let text = timeout(GENEROUS, whole).await.expect("an answer");
    let (status, rest) = text.split_once("\r\n").unwrap_or((&text, ""));
    (status.to_owned(), rest.to_owned())
}

#[tokio::test]
async fn one_connection_carries_many_registrations() {
    let served = served(ListenerTransport::Plain).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    for sequence in 1..=50 {
        let (status, rest) = exchange(&mut stream, &served.request(sequence)).await;
        assert_eq!(status, "HTTP/1.1 200 OK", "{rest}");
        assert!(rest.contains("application/json") && rest.contains("\"accepted\""), "{rest}");
    }
    assert_eq!(served.scene.generation(), 50);
}

#[tokio::test]
async fn anything_else_than_a_registration_is_answered_with_what_is_allowed() {
    let served = served(ListenerTransport::Plain).await;
    let head = |start: &str, more: &str| format!("{start} HTTP/1.1\r\nhost: g\r\n{more}\r\n");
    let long = "x".repeat(MAX_BODY + 1);
    let chunked = format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n", long.len());
    let twice = "authorization: Bearer a\r\nauthorization: Bearer b\r\ncontent-length: 0\r\n";
    let cases = [
        (head("GET /v1/registrations", ""), "405"),
        (head("POST /v2/registrations", "content-length: 0\r\n"), "404"),
        (head("POST /v1/registrations", &format!("content-length: {}\r\n", MAX_BODY + 1)), "413"),
        (head("POST /v1/registrations", &chunked), "413"),
        (head("POST /v1/registrations", twice), "400"),
        (head("POST /v1/registrations", "content-length: 0\r\n"), "401"),
    ];
    for (request, expected) in cases {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        let (status, rest) = exchange(&mut stream, &request).await;
        assert!(status.contains(expected), "{status} instead of {expected}: {rest}");
        assert!(rest.contains("\"reason\""), "{rest}");
    }
    assert_eq!(served.scene.attempts("_other", "unknown", "too-large"), 2);
}

#[tokio::test]
async fn over_tls_a_client_that_speaks_plain_text_gets_nowhere_and_others_are_served() {
    let served = served(over_tls(&Authority::new())).await;
    let mut plain = TcpStream::connect(served.address).await.unwrap();
    plain.write_all(served.request(1).as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    timeout(GENEROUS, plain.read_to_end(&mut answer)).await.unwrap().ok();
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1"), "no answer in plain text");
    assert_eq!(served.scene.generation(), 0);
}

#[tokio::test]
async fn a_stop_closes_idle_connections_and_ends() {
    let mut served = served(ListenerTransport::Plain).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    exchange(&mut stream, &served.request(1)).await;
    served.stop.cancel();
    let mut rest = Vec::new();
    timeout(GENEROUS, stream.read_to_end(&mut rest)).await.expect("it is closed").unwrap();
    assert!(timeout(GENEROUS, served.tasks.join_next()).await.expect("it ends").is_some());
}

#[tokio::test]
async fn new_connections_of_one_source_beyond_its_rate_are_closed_at_once() {
    let rates = RegistrationRates {
        source_connections: Rate { per_second: 1, burst: 5 },
        ..RegistrationRates::default()
    };
    let served = served_within(ListenerTransport::Plain, rates, ListenerLimits::default()).await;
    let mut open = Vec::new();
    for _ in 0..5 {
        open.push(served.connect(2).await);
    }
    for _ in 0..3 {
        assert_eq!(closed(served.connect(2).await).await, "");
    }
    assert_eq!(served.scene.attempts("_other", "unknown", "limited"), 3);
    let (status, _) = exchange(&mut open[4], &served.request_from(2, 1)).await;
    assert!(status.contains("200"), "{status}");
    let (status, _) = exchange(&mut served.connect(3).await, &served.request_from(3, 2)).await;
    assert!(status.contains("200"), "another source: {status}");
    served.scene.bench.clock.advance(Duration::from_secs(1));
    let (status, _) = exchange(&mut served.connect(2).await, &served.request_from(2, 3)).await;
    assert!(status.contains("200"), "a second later: {status}");
}

#[tokio::test]
async fn every_refused_request_closes_its_connection_and_counts_as_a_failure_of_its_source() {
    let long =
        format!("POST /v1/registrations HTTP/1.1\r\nhost: g\r\ncontent-length: {}\r\n\r\n", MAX_BODY + 1);
    let cases = [
        "GET /v1/registrations HTTP/1.1\r\nhost: g\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: g\r\ncontent-length: 0\r\n\r\n",
        "no HTTP\r\n\r\n",
        &long,
    ];
    for case in cases {
        let rates =
            RegistrationRates { failures: Rate { per_second: 1, burst: 3 }, ..RegistrationRates::default() };
        let served = served_within(ListenerTransport::Plain, rates, ListenerLimits::default()).await;
        for _ in 0..3 {
            let mut stream = served.connect(2).await;
            stream.write_all(case.as_bytes()).await.unwrap();
            let answer = closed(stream).await;
            assert!(answer.starts_with("HTTP/1.1 4"), "{case}: {answer}");
        }
        let (status, _) = exchange(&mut served.connect(2).await, &served.request_from(2, 1)).await;
        assert!(status.contains("429"), "{case}: {status}");
        let (status, _) = exchange(&mut served.connect(3).await, &served.request_from(3, 1)).await;
        assert!(status.contains("200"), "{case}: {status}");
    }
}

#[tokio::test]
async fn a_handshake_that_fails_counts_as_a_failure_of_its_source() {
    let authority = Authority::new();
    let rates =
        RegistrationRates { failures: Rate { per_second: 1, burst: 2 }, ..RegistrationRates::default() };
    let served = served_within(over_tls(&authority), rates, ListenerLimits::default()).await;
    for _ in 0..2 {
        let mut stream = served.connect(2).await;
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        closed(stream).await;
    }
    for (source, expected) in [(2, "429"), (3, "200")] {
        let deadline = Instant::now() + GENEROUS;
        let stream = tls_client(&authority).connect(served.connect(source).await, deadline).await;
        let (status, _) = exchange(&mut stream.unwrap().0, &served.request_from(source, 1)).await;
        assert!(status.contains(expected), "{status}");
    }
}

#[tokio::test]
async fn handshakes_that_stall_leave_places_for_others() {
    let authority = Authority::new();
    let limits = ListenerLimits { handshakes: 4, ..ListenerLimits::default() };
    let rates =
        RegistrationRates { failures: Rate { per_second: 1, burst: 1 }, ..RegistrationRates::default() };
    let served = served_within(over_tls(&authority), rates, limits).await;
    let mut stalled = Vec::new();
    for source in [2, 2, 2, 3, 3, 4, 5, 6] {
        stalled.push(Some(served.connect(source).await));
    }
    // The third of the first source is beyond its share. The next take a place of the source with the most, until each has one.
    for closed_at_once in [2, 0, 3, 7] {
        assert_eq!(closed(stalled[closed_at_once].take().unwrap()).await, "");
    }
    served.scene.bench.clock.advance(Duration::from_secs(1));
    let deadline = Instant::now() + GENEROUS;
    let stream = tls_client(&authority).connect(served.connect(7).await, deadline).await;
    let (status, _) = exchange(&mut stream.unwrap().0, &served.request_from(7, 1)).await;
    assert!(status.contains("200"), "{status}");
    assert_eq!(closed(stalled[1].take().unwrap()).await, "", "the oldest has stalled");
    // They were cut for others: a handshake that takes too long is a failure of its source.
    let stream = tls_client(&authority).connect(served.connect(2).await, deadline).await;
    let (status, _) = exchange(&mut stream.unwrap().0, &served.request_from(2, 2)).await;
    assert!(status.contains("200"), "{status}");
}

#[tokio::test]
async fn a_full_listener_closes_idle_connections_of_the_source_with_the_most_and_serves_others() {
    let limits = ListenerLimits { connections: 32, ..ListenerLimits::default() };
    let served = served_within(ListenerTransport::Plain, RegistrationRates::default(), limits).await;
    let mut flood = Vec::new();
    for source in [2, 3] {
        for _ in 0..16 {
            flood.push(served.connect(source).await);
        }
    }
    let mut honest = served.connect(4).await;
    let first = flood.remove(0);
    assert_eq!(closed(first).await, "", "the oldest of the first source");
    for source in [2, 3] {
        for _ in 0..10 {
            flood.push(served.connect(source).await);
        }
    }
    let (status, _) = exchange(&mut honest, &served.request_from(4, 1)).await;
    assert!(status.contains("200"), "{status}");
    let (status, _) = exchange(&mut served.connect(5).await, &served.request_from(5, 2)).await;
    assert!(status.contains("200"), "{status}");
    // A source that has its share replaces its own connections.
    let (status, _) = exchange(&mut served.connect(2).await, &served.request_from(2, 3)).await;
    assert!(status.contains("200"), "{status}");
}

/// A listener that accepts client certificates of `authority`, and one of source 2 that is valid in these years.
async fn with_certificates(authority: &Authority, years: [i32; 2]) -> (Served, Arc<ServerTls>, ClientTls) {
    let settings = mtls(authority, authority);
    let tls = Arc::new(ServerTls::new(settings).unwrap().0);
    let served = served(ListenerTransport::Tls(Arc::clone(&tls))).await;
    let leaf = authority.leaf_by(&["cart.shop"], &KeyPair::generate().unwrap(), |params| {
        let name = "spiffe://cluster.local/ns/shop/sa/cart";
        params.subject_alt_names.push(SanType::URI(name.try_into().unwrap()));
        params.not_before = date_time_ymd(years[0], 1, 1);
        params.not_after = date_time_ymd(years[1], 1, 1);
    });
    let name = ServerName::try_from(NAME).unwrap();
    let client = ClientSettings {
        identity: Some(leaf.identity()),
        ..ClientSettings::new(name, Roots::Pem(vec![authority.ca()]))
    };
    (served, tls, ClientTls::new(client).unwrap().0)
}

/// The settings of a listener with a certificate of `own`, which accepts client certificates of `clients`.
fn mtls(own: &Authority, clients: &Authority) -> ServerSettings {
    let identity = own.leaf(&[NAME]).identity();
    ServerSettings {
        client_auth: ClientAuth::Optional(clients.ca()),
        alpn: vec![Alpn::Http1],
        ..ServerSettings::new(vec![CertEntry { identity, names: Vec::new() }])
    }
}

impl Served {
    /// A request of source 2 without a credential but its certificate.
    fn unsigned(&self, sequence: u64) -> String {
        let request = self.request_from(2, sequence);
        let lines = request.split("\r\n").filter(|line| !line.starts_with("authorization:"));
        lines.collect::<Vec<_>>().join("\r\n")
    }
}

#[tokio::test]
async fn a_client_certificate_counts_on_an_open_connection_only_while_its_authority_is_trusted() {
    let authority = Authority::new();
    let (served, tls, client) = with_certificates(&authority, [2000, 2100]).await;
    let deadline = Instant::now() + GENEROUS;
    let (mut stream, _) = client.connect(served.connect(2).await, deadline).await.unwrap();
    let (status, rest) = exchange(&mut stream, &served.unsigned(1)).await;
    assert!(status.contains("200"), "{status} {rest}");
    tls.replace(mtls(&authority, &Authority::new())).unwrap();
    let (status, rest) = exchange(&mut stream, &served.unsigned(2)).await;
    assert!(status.contains("401") && rest.contains("no longer trusted"), "{status} {rest}");
    assert_eq!(closed(stream).await, "", "so that it presents another one");
    assert_eq!(served.scene.generation(), 1);
}

/// The clock of the scene is in 2023, and that of the handshake is the system's: the certificate is valid for the handshake only.
#[tokio::test]
async fn a_client_certificate_counts_on_an_open_connection_only_while_it_is_valid() {
    let authority = Authority::new();
    let (served, _tls, client) = with_certificates(&authority, [2025, 2100]).await;
    let deadline = Instant::now() + GENEROUS;
    let (mut stream, _) = client.connect(served.connect(2).await, deadline).await.unwrap();
    let (status, rest) = exchange(&mut stream, &served.unsigned(1)).await;
    assert!(status.contains("401") && rest.contains("no longer trusted"), "{status} {rest}");
    // Another credential counts on this connection as on every other.
    let (mut stream, _) = client.connect(served.connect(2).await, deadline).await.unwrap();
    let (status, _) = exchange(&mut stream, &served.request_from(2, 1)).await;
    assert!(status.contains("200"), "{status}");
}

#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_restart_and_open_connections_go_on() {
    let (folder, old, new) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    let identity = old.leaf(&[NAME]).write(folder.path());
    let settings = ServerSettings::new(vec![CertEntry { identity, names: Vec::new() }]);
    let settings = ServerSettings { alpn: vec![Alpn::Http1], ..settings };
    let tls = Arc::new(ServerTls::new(settings).unwrap().0);
    let mut served = served(ListenerTransport::Tls(Arc::clone(&tls))).await;
    let (tell, mut told) = mpsc::channel(8);
    let watched = tls.watch(served.stop.clone(), move |loaded| {
        tell.try_send(loaded.is_ok()).ok();
    });
    served.tasks.spawn(watched);
    let deadline = || Instant::now() + GENEROUS;
    let open = served.connect(1).await;
    let (mut open, _) = tls_client(&old).connect(open, deadline()).await.unwrap();
    let (status, rest) = exchange(&mut open, &served.request(1)).await;
    assert_eq!(status, "HTTP/1.1 200 OK", "{rest}");
    tls_client(&new)
        .connect(served.connect(1).await, deadline())
        .await
        .expect_err("it is of the old authority");

    new.leaf(&[NAME]).write(folder.path());
    // Between the two files, key and certificate do not match: that is told too.
    while !timeout(GENEROUS, told.recv()).await.expect("the files are watched").unwrap() {}
    let (mut renewed, _) = tls_client(&new).connect(served.connect(1).await, deadline()).await.unwrap();
    for (stream, sequence) in [(&mut renewed, 2), (&mut open, 3)] {
        let (status, rest) = exchange(stream, &served.request(sequence)).await;
        assert_eq!(status, "HTTP/1.1 200 OK", "{rest}");
    }
    tls_client(&old).connect(served.connect(1).await, deadline()).await.expect_err("it is renewed");
    served.stop.cancel();
}
