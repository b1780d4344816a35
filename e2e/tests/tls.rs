//! The TLS listener of `rouse up`: certificates that come from files and change there, both protocols, and clients that do
//! not shake hands as they should.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test may panic, also in its helpers"
)]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use http::{Method, Version};
use http_body_util::BodyExt as _;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rouse_e2e::client::raw::Raw;
use rouse_e2e::client::session::{Http, get};
use rouse_e2e::config::{App, Config};
use rouse_e2e::pattern::{self, Checker};
use rouse_e2e::proc::Memory;
use rouse_e2e::rouse::{Launch, Rouse};
use rouse_e2e::target::Target;
use rouse_e2e::wait::{PATIENCE, eventually, within};
use rouse_e2e::{body, command, programs};
use rouse_net::tls::{Alpn, ClientSettings, ClientStream, ClientTls, Pem, Roots, ServerName, TlsError};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

const HOST: &str = "app.localhost";
/// Longer than any handshake; what is to fail must not wait for it.
const HANDSHAKE: Duration = Duration::from_secs(30);

type Stream = ClientStream<TcpStream>;

/// Issues the certificates of a test, and is trusted by its clients.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
struct Leaf {
    chain: String,
    key: String,
    der: Vec<u8>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn leaf(&self, name: &str) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        Leaf { chain: certificate.pem(), key: key.serialize_pem(), der: certificate.der().to_vec() }
    }

    /// What a client of `host` knows. Each has its own, so that no session is resumed and every certificate is seen.
    fn client(&self, host: &str, alpn: &[Alpn]) -> ClientTls {
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let roots = Roots::Pem(vec![Pem::Bytes(self.0.pem().as_bytes().into())]);
        client(ClientSettings { alpn: alpn.to_vec(), ..ClientSettings::new(name, roots) })
    }
}

fn client(settings: ClientSettings) -> ClientTls {
    ClientTls::new(settings).unwrap().0
}

async fn shake(client: &ClientTls, address: SocketAddr) -> Result<(Stream, Option<Alpn>), TlsError> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    client.connect(stream, Instant::now() + HANDSHAKE).await
}

fn shown(stream: &Stream) -> &[u8] {
    &stream.get_ref().1.peer_certificates().unwrap()[0]
}

impl Leaf {
    /// In the place of `a.crt` and `a.key`, as tools do it: each at once, one after the other.
    fn replace(&self, folder: &Path) {
        for (name, text) in [("a.crt", &self.chain), ("a.key", &self.key)] {
            put(folder, name, text);
        }
    }
}

fn put(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(".new"), text).unwrap();
    fs::rename(folder.join(".new"), folder.join(name)).unwrap();
}

fn yaml(app: App, certs: &str) -> String {
    let tls = format!("tls: {{listen: 127.0.0.1:0, certs: [{certs}]}}\n");
    tls + &Config::of(app).yaml(&programs!())
}

const A: &str = "{cert: a.crt, key: a.key}";

/// `rouse up` with a certificate for [`HOST`].
struct Secure {
    rouse: Rouse,
    authority: Authority,
    address: SocketAddr,
}

impl Secure {
    async fn up(app: App) -> Self {
        Self::with(app, |launch| launch).await
    }

    async fn with(app: App, more: impl FnOnce(Launch) -> Launch) -> Self {
        let authority = Authority::new();
        let leaf = authority.leaf(HOST);
        let launch = Launch::of(&yaml(app, A)).file("a.crt", &leaf.chain).file("a.key", &leaf.key);
        let rouse = more(launch).up(&programs!()).await;
        let address = secure_address(&rouse).await;
        Self { rouse, authority, address }
    }

    /// A connection that speaks `alpn`.
    async fn stream(&self, alpn: Alpn) -> Stream {
        let (stream, agreed) = shake(&self.authority.client(HOST, &[alpn]), self.address).await.unwrap();
        assert_eq!(agreed, Some(alpn));
        stream
    }

    async fn one(&self) -> Http {
        Http::one_over(self.stream(Alpn::Http1).await, HOST).await
    }

    async fn two(&self) -> Http {
        Http::two_over(self.stream(Alpn::H2).await, "https", HOST).await
    }

    /// The way in without TLS.
    fn plain(&self) -> Target {
        self.rouse.target(false).with_host(HOST)
    }
}

async fn secure_address(rouse: &Rouse) -> SocketAddr {
    rouse
        .output
        .find("the TLS address", |line| line.strip_prefix("listening on https://")?.parse().ok())
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_and_http_2_are_chosen_by_alpn_cold_and_warm_and_the_pod_hears_of_https() {
    for alpn in [Alpn::Http1, Alpn::H2] {
        let up = Secure::up(App::http().env("START_DELAY_MS", 100)).await;
        let (mut http, version) = match alpn {
            Alpn::Http1 => (up.one().await, Version::HTTP_11),
            Alpn::H2 => (up.two().await, Version::HTTP_2),
        };
        for cold in ["true", "false"] {
            let answer = http.get("/headers").await;
            assert_eq!((answer.status.as_u16(), answer.version), (200, version));
            assert_eq!(answer.header("x-rouse-cold-start"), cold, "{alpn:?}");
            let heard = answer.json()["headers"].clone();
            assert_eq!(heard["x-forwarded-proto"][0], "https", "{heard}");
            assert_eq!(heard["host"][0], HOST, "{heard}");
        }
        let plain = get(&up.plain(), "/headers").await.json()["headers"].clone();
        assert_eq!(plain["x-forwarded-proto"][0], "http", "{plain}");
        drop(http);
        up.rouse.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_offers_both_gets_http_2_and_who_offers_nothing_gets_http_1() {
    let up = Secure::up(App::http().warm()).await;
    let both = up.authority.client(HOST, &[Alpn::Http1, Alpn::H2]);
    let (stream, agreed) = shake(&both, up.address).await.unwrap();
    assert_eq!(agreed, Some(Alpn::H2));
    assert_eq!(Http::two_over(stream, "https", HOST).await.get("/").await.status, 200);
    let (stream, agreed) = shake(&up.authority.client(HOST, &[]), up.address).await.unwrap();
    assert_eq!(agreed, None);
    assert_eq!(Http::one_over(stream, HOST).await.get("/").await.status, 200);
    up.rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_in_the_handshake_chooses_the_certificate() {
    let authority = Authority::new();
    let (first, wild) = (authority.leaf(HOST), authority.leaf("*.shop.localhost"));
    let launch = Launch::of(&yaml(App::http(), &format!("{A}, {{cert: keys/b.crt, key: keys/b.key}}")))
        .file("a.crt", &first.chain)
        .file("a.key", &first.key)
        .file("keys/b.crt", &wild.chain)
        .file("keys/b.key", &wild.key);
    let rouse = launch.up(&programs!()).await;
    let address = secure_address(&rouse).await;
    for (name, leaf) in [
        (HOST, &first),
        ("cart.shop.localhost", &wild),
        ("CART.Shop.localhost", &wild),
        // A wildcard stands for one label; whom nothing fits, and who names nobody, gets the first.
        ("a.cart.shop.localhost", &first),
        ("shop.localhost", &first),
        ("elsewhere.test", &first),
        ("127.0.0.1", &first),
    ] {
        let server_name = ServerName::try_from(name.to_owned()).unwrap();
        let trustful = ClientSettings { verify: false, ..ClientSettings::new(server_name, Roots::System) };
        let (stream, _) = shake(&client(trustful), address).await.unwrap();
        assert!(shown(&stream) == leaf.der, "{name}");
    }
    // And it is one that its clients trust.
    shake(&authority.client("cart.shop.localhost", &[Alpn::H2]), address).await.unwrap();
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_speaks_the_wrong_language_at_a_door_is_sent_away_and_harms_nobody() {
    let up = Secure::up(App::http().warm()).await;
    let mut neighbour = up.two().await;
    assert_eq!(neighbour.get("/").await.status, 200);
    let mut raw = Raw::connect(&Target::plain(up.address)).await;
    raw.get(&up.plain(), "/").await;
    let said = raw.ended().await;
    assert!(said.len() < 16, "at most an alert: {said:?}");
    let mut raw = Raw::connect(&Target::plain(up.address)).await;
    raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    raw.ended().await;
    let wrong = shake(&up.authority.client(HOST, &[Alpn::H2]), up.rouse.address).await;
    assert!(matches!(wrong, Err(TlsError::NotTls | TlsError::Io(_))), "{:?}", wrong.err());
    assert_eq!(neighbour.get("/").await.status, 200, "the connection that was there");
    assert_eq!(up.one().await.get("/").await.status, 200, "a new one");
    assert_eq!(get(&up.plain(), "/").await.status, 200, "and one without TLS");
    up.rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_shake_hands_is_dropped_after_the_header_timeout() {
    let up =
        Secure::with(App::http().warm(), |launch| launch.argument("--header-timeout").argument("1s")).await;
    // Nothing at all; the beginning of a record; and a record that says it is longer.
    for said in [&b""[..], b"\x16\x03", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let began = Instant::now();
        let mut raw = Raw::connect(&Target::plain(up.address)).await;
        raw.send(said).await;
        raw.ended().await;
        let lasted = began.elapsed();
        assert!((900..6000).contains(&lasted.as_millis()), "{said:?}: {lasted:?}");
    }
    assert_eq!(up.two().await.get("/").await.status, 200);
    up.rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_is_replaced_is_served_without_a_failed_request() {
    let up = Secure::up(App::http().warm()).await;
    up.rouse.ready("app").await;
    let (mut one, mut two) = (up.one().await, up.two().await);
    let new = up.authority.leaf(HOST);
    new.replace(up.rouse.dir());
    let (mut asked, mut fresh) = (0, 0);
    let deadline = Instant::now() + PATIENCE;
    // A few more after the change.
    while fresh < 20 {
        assert!(Instant::now() < deadline, "the new certificate does not come");
        let stream = up.stream(if asked % 2 == 0 { Alpn::Http1 } else { Alpn::H2 }).await;
        let is_new = shown(&stream) == new.der;
        assert!(is_new || fresh == 0, "the old one is back");
        fresh += u32::from(is_new);
        let mut http = match asked % 2 {
            0 => Http::one_over(stream, HOST).await,
            _ => Http::two_over(stream, "https", HOST).await,
        };
        for http in [&mut http, &mut one, &mut two] {
            assert_eq!(http.get("/").await.status, 200);
        }
        asked += 1;
    }
    assert!(asked > 20, "some came before the change");
    drop((one, two));
    up.rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_new_certificate_is_told_once_and_the_old_one_keeps_serving() {
    let up = Secure::up(App::http().warm()).await;
    let before = shown(&up.stream(Alpn::H2).await).to_vec();
    let complaints = || {
        let lines = up.rouse.output.lines();
        lines.iter().filter(|line| line.contains("the old certificates keep serving")).count()
    };
    let stranger = up.authority.leaf(HOST);
    for (number, name, text, complaint) in [
        (1, "a.crt", "nothing", "holds no certificate"),
        (2, "a.crt", stranger.chain.as_str(), "the key does not match the certificate in"),
    ] {
        put(up.rouse.dir(), name, text);
        eventually(complaint, async || (complaints() == number).then_some(())).await;
        let lines = up.rouse.output.lines();
        let told = lines.iter().any(|line| line.contains(complaint) && line.contains("/a."));
        assert!(told, "{complaint:?} in {lines:#?}");
        let now = up.stream(Alpn::H2).await;
        assert!(shown(&now) == before);
        assert_eq!(Http::two_over(now, "https", HOST).await.get("/").await.status, 200);
    }
    // The key comes later than its certificate.
    put(up.rouse.dir(), "a.key", &stranger.key);
    eventually("the new certificate", async || {
        (shown(&up.stream(Alpn::H2).await) == stranger.der).then_some(())
    })
    .await;
    assert_eq!(complaints(), 2, "nothing is said twice");
    up.rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_cannot_be_used_at_the_start_are_bad_usage_and_named() {
    let authority = Authority::new();
    let (leaf, other) = (authority.leaf(HOST), authority.leaf(HOST));
    for (certs, file, complaint) in [
        ("{cert: none.crt, key: a.key}", "none.crt", "cannot be read"),
        ("{cert: a.crt, key: none.key}", "none.key", "cannot be read"),
        ("{cert: a.crt, key: a.key}, {cert: b.crt, key: none.key}", "none.key", "cannot be read"),
        ("{cert: a.key, key: a.key}", "a.key", "holds no certificate"),
        ("{cert: a.crt, key: a.crt}", "a.crt", "holds no unencrypted private key"),
        ("{cert: b.crt, key: a.key}", "a.key", "the key does not match the certificate in"),
    ] {
        let launch = Launch::of(&yaml(App::http(), certs))
            .file("a.crt", &leaf.chain)
            .file("a.key", &leaf.key)
            .file("b.crt", &other.chain);
        let ran = launch.refused(&programs!()).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        for word in ["rouse.yaml", "tls.certs", file, complaint] {
            assert!(ran.stderr.contains(word), "no {word:?} for {certs}: {}", ran.stderr);
        }
        assert!(!ran.stderr.contains("PRIVATE"), "{}", ran.stderr);
    }
}

/// HTTP/2 by hand: answers pings until the connection ends. The error codes of the GOAWAYs that came.
async fn farewells(stream: &mut Stream) -> std::io::Result<Vec<u32>> {
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    let mut codes = Vec::new();
    loop {
        let mut head = [0; 9];
        if stream.read(&mut head[..1]).await? == 0 {
            return Ok(codes);
        }
        stream.read_exact(&mut head[1..]).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await?;
        match head[3] {
            PING if head[4] == 0 => {
                head[4] = 1;
                stream.write_all(&[&head[..], &payload].concat()).await?;
                stream.flush().await?;
            }
            GOAWAY => codes.push(u32::from_be_bytes(payload[4..8].try_into().unwrap())),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_takes_leave_in_the_words_of_the_protocols() {
    let mut up = Secure::up(App::http().warm()).await;
    up.rouse.ready("app").await;
    let children = up.rouse.children();
    let mut one = up.stream(Alpn::Http1).await;
    one.write_all(format!("GET /status/204 HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(one.read_u8().await.unwrap());
    }
    let mut two = up.stream(Alpn::H2).await;
    two.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    two.flush().await.unwrap();
    // Once its settings have come, it is being served.
    let mut head = [0; 9];
    two.read_exact(&mut head).await.unwrap();
    two.read_exact(&mut vec![0; usize::from(head[2])]).await.unwrap();

    up.rouse.signal(Signal::TERM);
    assert_eq!(within("the end of HTTP/1", one.read(&mut [0; 16])).await.unwrap(), 0, "with a close_notify");
    let codes = within("the end of HTTP/2", farewells(&mut two)).await.expect("a close_notify");
    assert!(!codes.is_empty() && codes.iter().all(|code| *code == 0), "{codes:?}");
    assert_eq!(up.rouse.ended().await, Some(0));
    assert!(children.iter().all(|child| !child.runs()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_talks_over_tls() {
    let up = Secure::up(App::http().env("START_DELAY_MS", 100)).await;
    let url = format!("ws://{HOST}/ws");
    let shaken = Box::pin(tokio_tungstenite::client_async(url, up.stream(Alpn::Http1).await));
    let (mut socket, response) = within("the handshake", shaken).await.unwrap();
    assert_eq!(response.status(), 101);
    let mega: Vec<u8> = pattern::whole(1024 * 1024).into();
    for message in [Message::text("hello"), Message::binary(mega), Message::text("")] {
        socket.send(message.clone()).await.unwrap();
        assert_eq!(within("the echo", socket.next()).await.unwrap().unwrap(), message);
    }
    socket.close(None).await.unwrap();
    while let Some(message) = within("the end", socket.next()).await {
        assert!(message.unwrap().is_close());
    }
    up.rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_megabytes_come_down_over_tls_in_little_memory() {
    const LENGTH: u64 = 100_000_000;
    const GROWS_AT_MOST: u64 = 32 * 1024;
    let up = Secure::up(App::http().warm()).await;
    for mut http in [up.one().await, up.two().await] {
        // The first request's memory is no growth.
        assert_eq!(http.get("/").await.status, 200);
        let memory = Memory::watch(up.rouse.pid);
        let request = http.request(Method::GET, &format!("/bytes/{LENGTH}")).body(body::empty()).unwrap();
        let mut incoming = http.send(request).await.into_body();
        let mut checker = Checker::default();
        while let Some(frame) = within("more", incoming.frame()).await {
            if let Ok(data) = frame.unwrap().into_data() {
                checker.take(&data);
            }
        }
        assert!(checker.intact());
        assert_eq!(checker.count, LENGTH);
        let grown = memory.grown();
        assert!(grown < GROWS_AT_MOST, "the gateway grew by {grown} KiB");
    }
    up.rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_clients_at_once_wake_an_app_once_over_tls() {
    let up = Secure::up(App::http().env("START_DELAY_MS", 300)).await;
    let mut tasks = JoinSet::new();
    for number in 0..100 {
        let mut http = if number % 2 == 0 { up.one().await } else { up.two().await };
        tasks.spawn(async move { http.get("/").await.status.as_u16() });
    }
    while let Some(status) = within("all answers", tasks.join_next()).await {
        assert_eq!(status.unwrap(), 200);
    }
    assert_eq!(up.rouse.admin.cold_starts("app").await.len(), 1);
    up.rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_is_served_over_tls() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| folder.join("curl").is_file()) {
        eprintln!("SKIPPED: curl_is_served_over_tls: there is no curl here (Debian: apt-get install curl)");
        return;
    }
    let up = Secure::up(App::http().env("START_DELAY_MS", 100)).await;
    put(up.rouse.dir(), "ca.crt", &up.authority.0.pem());
    let port = up.address.port();
    for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "60", "--cacert"])
            .arg(up.rouse.dir().join("ca.crt"))
            .args([flag, "--write-out", "%{http_code} %{http_version}", "--output", "/dev/null", "--resolve"])
            .arg(format!("{HOST}:{port}:127.0.0.1"))
            .arg(format!("https://{HOST}:{port}/"));
        assert_eq!(command::run(curl).await.ok(), format!("200 {version}"));
    }
    up.rouse.stop().await;
}
