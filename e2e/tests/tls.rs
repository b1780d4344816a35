//! The TLS listener of `rouse up`: certificates from files, their reload, HTTP/1.1 and HTTP/2, and clients with broken
//! handshakes.

#![expect(clippy::unwrap_used, reason = "a test may panic, also in its helpers")]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use http::{Method, Version};
use rouse_e2e::client::raw::Raw;
use rouse_e2e::client::session::{Http, get, whole};
use rouse_e2e::config::{App, Config};
use rouse_e2e::pattern;
use rouse_e2e::proc::Memory;
use rouse_e2e::rouse::{Launch, Rouse};
use rouse_e2e::target::Target;
use rouse_e2e::wait::{PATIENCE, eventually, within};
use rouse_e2e::{body, command, programs};
use rouse_net::tls::{Alpn, ClientSettings, ClientStream, ClientTls, Roots, ServerName, TlsError};
use rouse_testkit::certificates::{Authority, Leaf};
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

const HOST: &str = "app.localhost";
/// Longer than any handshake; an expected failure must come sooner.
const HANDSHAKE: Duration = Duration::from_secs(30);

type Stream = ClientStream<TcpStream>;

/// TLS of a client that trusts `authority`. Each has its own, so that no session is resumed and each gets the certificate.
fn client_of(authority: &Authority, host: &str, alpn: &[Alpn]) -> ClientTls {
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let roots = Roots::Pem(vec![authority.ca()]);
    client(ClientSettings { alpn: alpn.to_vec(), ..ClientSettings::new(name, roots) })
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

/// Replaces `a.crt` and `a.key` as tools do: one after the other, each atomically.
fn replace(folder: &Path, leaf: &Leaf) {
    for (name, text) in [("a.crt", &leaf.chain), ("a.key", &leaf.key)] {
        put(folder, name, text);
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
        let leaf = authority.leaf(&[HOST]);
        let launch = Launch::of(&yaml(app, A)).file("a.crt", &leaf.chain).file("a.key", &leaf.key);
        let rouse = more(launch).up(&programs!()).await;
        let address = secure_address(&rouse).await;
        Self { rouse, authority, address }
    }

    /// A connection that speaks `alpn`.
    async fn stream(&self, alpn: Alpn) -> Stream {
        let (stream, agreed) = shake(&client_of(&self.authority, HOST, &[alpn]), self.address).await.unwrap();
        assert_eq!(agreed, Some(alpn));
        stream
    }

    async fn one(&self) -> Http {
        Http::one_over(self.stream(Alpn::Http1).await, HOST).await
    }

    async fn two(&self) -> Http {
        Http::two_over(self.stream(Alpn::H2).await, "https", HOST).await
    }

    /// The listener without TLS.
    fn plain(&self) -> Target {
        self.rouse.target(false).with_host(HOST)
    }

    /// The address of its only pod.
    async fn pod(&self) -> Target {
        Target::plain(self.rouse.admin.service("app").await.endpoints[0].address)
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
    let both = client_of(&up.authority, HOST, &[Alpn::Http1, Alpn::H2]);
    let (stream, agreed) = shake(&both, up.address).await.unwrap();
    assert_eq!(agreed, Some(Alpn::H2));
    assert_eq!(Http::two_over(stream, "https", HOST).await.get("/").await.status, 200);
    let (stream, agreed) = shake(&client_of(&up.authority, HOST, &[]), up.address).await.unwrap();
    assert_eq!(agreed, None);
    assert_eq!(Http::one_over(stream, HOST).await.get("/").await.status, 200);
    up.rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_in_the_handshake_chooses_the_certificate() {
    let authority = Authority::new();
    let (first, wild) = (authority.leaf(&[HOST]), authority.leaf(&["*.shop.localhost"]));
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
        // A wildcard stands for one label. Without a matching certificate or without SNI, the first certificate is used.
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
    // A client that verifies certificates trusts it.
    shake(&client_of(&authority, "cart.shop.localhost", &[Alpn::H2]), address).await.unwrap();
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_the_wrong_protocol_is_refused_and_harms_no_other() {
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
    let wrong = shake(&client_of(&up.authority, HOST, &[Alpn::H2]), up.rouse.address).await;
    assert!(matches!(wrong, Err(TlsError::NotTls | TlsError::Io(_))), "{:?}", wrong.err());
    assert_eq!(neighbour.get("/").await.status, 200, "an existing connection");
    assert_eq!(up.one().await.get("/").await.status, 200, "a new connection");
    assert_eq!(get(&up.plain(), "/").await.status, 200, "a connection without TLS");
    up.rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_shake_hands_is_dropped_after_the_header_timeout() {
    let up =
        Secure::with(App::http().warm(), |launch| launch.argument("--header-timeout").argument("1s")).await;
    // No bytes; the beginning of a record; and a record that is shorter than its length field.
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
    let new = up.authority.leaf(&[HOST]);
    replace(up.rouse.dir(), &new);
    let (mut asked, mut fresh) = (0, 0);
    let deadline = Instant::now() + PATIENCE;
    // Goes on until 20 connections have had the new certificate.
    while fresh < 20 {
        assert!(Instant::now() < deadline, "the new certificate is not served");
        let stream = up.stream(if asked % 2 == 0 { Alpn::Http1 } else { Alpn::H2 }).await;
        let is_new = shown(&stream) == new.der;
        assert!(is_new || fresh == 0, "the old certificate is served again");
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
    assert!(asked > 20, "requests were sent before the change, too");
    drop((one, two));
    up.rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_new_certificate_is_told_once_and_the_old_one_keeps_serving() {
    let up = Secure::up(App::http().warm()).await;
    let before = shown(&up.stream(Alpn::H2).await).to_vec();
    let complaints = || {
        let lines = up.rouse.output.lines();
        lines.iter().filter(|line| line.contains("the old certificates stay in use")).count()
    };
    let stranger = up.authority.leaf(&[HOST]);
    for (number, name, text, complaint) in [
        (1, "a.crt", "nothing", "contains no certificate"),
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
    // The key is replaced after its certificate.
    put(up.rouse.dir(), "a.key", &stranger.key);
    eventually("the new certificate", async || {
        (shown(&up.stream(Alpn::H2).await) == stranger.der).then_some(())
    })
    .await;
    assert_eq!(complaints(), 2, "no complaint is logged twice");
    up.rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_cannot_be_used_at_the_start_are_bad_usage_and_named() {
    let authority = Authority::new();
    let (leaf, other) = (authority.leaf(&[HOST]), authority.leaf(&[HOST]));
    for (certs, file, complaint) in [
        ("{cert: none.crt, key: a.key}", "none.crt", "cannot be read"),
        ("{cert: a.crt, key: none.key}", "none.key", "cannot be read"),
        ("{cert: a.crt, key: a.key}, {cert: b.crt, key: none.key}", "none.key", "cannot be read"),
        ("{cert: a.key, key: a.key}", "a.key", "contains no certificate"),
        ("{cert: a.crt, key: a.crt}", "a.crt", "contains no unencrypted private key"),
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

/// Raw HTTP/2: answers pings until the connection ends. Returns the error codes of the received GOAWAYs.
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
    // Once the server's SETTINGS have arrived, the connection is being served.
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
async fn sigterm_lets_requests_over_tls_finish() {
    for alpn in [Alpn::Http1, Alpn::H2] {
        let mut up = Secure::up(App::http().warm()).await;
        up.rouse.ready("app").await;
        let pod = up.pod().await;
        let mut http = if alpn == Alpn::H2 { up.two().await } else { up.one().await };
        let request = http.request(Method::GET, "/wait").body(body::empty()).unwrap();
        let waiting = http.start(request).await;
        up.rouse.admin.until("app", "one under way", |service| service.in_flight == 1).await;
        up.rouse.signal(Signal::TERM);
        eventually("the listener to close", async || {
            TcpStream::connect(up.address).await.is_err().then_some(())
        })
        .await;
        assert_eq!(get(&pod, "/next").await.status, 200);
        let answer =
            within("the answer", waiting).await.unwrap_or_else(|error| panic!("{alpn:?}: {error:?}"));
        let answer = whole(answer).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, "waited\n"));
        assert_eq!(up.rouse.ended().await, Some(0));
    }
}

/// A connection without a request gets a short time to send one; the drain timeout applies to requests in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_have_asked_for_nothing_do_not_hold_up_sigterm() {
    // Far longer than the test waits for the process to end.
    let long = ["--drain-timeout", "1h", "--header-timeout", "1h"];
    let mut up =
        Secure::with(App::http().warm(), |launch| long.into_iter().fold(launch, Launch::argument)).await;
    up.rouse.ready("app").await;
    let mut half = Vec::new();
    for said in [&b""[..], b"\x16\x03", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut raw = Raw::connect(&Target::plain(up.address)).await;
        raw.send(said).await;
        half.push(raw);
    }
    let mut shaken = Vec::new();
    for (alpn, said) in [
        (Alpn::H2, ""),
        (Alpn::H2, "PRI * HT"),
        (Alpn::H2, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        (Alpn::H2, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"),
        (Alpn::Http1, ""),
        (Alpn::Http1, "GET / HTTP/1.1\r\nHost: "),
    ] {
        let mut stream = up.stream(alpn).await;
        stream.write_all(said.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        shaken.push(stream);
    }
    up.rouse.signal(Signal::TERM);
    assert_eq!(up.rouse.ended().await, Some(0));
}

/// Sends a raw request, and reads to the end of the connection.
async fn told(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> String {
    let asking = async {
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok();
        String::from_utf8_lossy(&answer).into_owned()
    };
    within("an answer", asking).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_at_either_door_reaches_the_admin_side() {
    let up = Secure::up(App::http().warm()).await;
    up.rouse.ready("app").await;
    let admin = up.rouse.admin.address();
    let port = admin.port();
    let mut asked = Vec::new();
    for path in ["/metrics", "/api/v1/services", "/livez", "/readyz", "/queue", "/"] {
        // The path exists on the admin listener, where it has another response than on the proxy's listeners.
        let (theirs, status) = (up.rouse.admin.get(path).await, "HTTP/1.1 404 Not Found");
        assert!(path == "/" || theirs.status.is_success(), "{path}: {theirs:?}");
        for (target, host, expected) in [
            (path.to_owned(), admin.to_string(), status),
            (path.to_owned(), format!("localhost:{port}"), status),
            (path.to_owned(), format!("LOCALHOST:{port}"), status),
            (format!("http://{admin}{path}"), admin.to_string(), status),
            (format!("http://{admin}{path}"), HOST.to_owned(), "HTTP/1.1 400 Bad Request"),
            (format!("http://{HOST}{path}"), admin.to_string(), "HTTP/1.1 400 Bad Request"),
            (format!("//{admin}{path}"), admin.to_string(), status),
        ] {
            asked.push((format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n"), expected));
        }
    }
    for host in [admin.to_string(), format!("localhost:{port}"), format!("{HOST}:{port}")] {
        let connect = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n");
        asked.push((connect, "HTTP/1.1 405 Method Not Allowed"));
    }
    for (head, expected) in asked {
        let request = format!("{head}X-Forwarded-Host: {admin}\r\nConnection: close\r\n\r\n");
        let plain = TcpStream::connect(up.rouse.address).await.unwrap();
        let secure = up.stream(Alpn::Http1).await;
        for answer in [told(plain, &request).await, told(secure, &request).await] {
            assert!(answer.starts_with(expected), "{request}: {answer}");
            assert!(!answer.contains("rouse_") && !answer.contains("endpoints"), "{request}: {answer}");
            // The 404 is the gateway's own, not a pod's.
            assert!(
                !answer.contains("404") || answer.contains("\r\nx-rouse-error: no_route\r\n"),
                "{answer}"
            );
        }
    }
    for host in [admin.to_string(), format!("localhost:{port}")] {
        let mut two = Http::two_over(up.stream(Alpn::H2).await, "https", &host).await;
        let answer = two.get("/metrics").await;
        assert_eq!((answer.status.as_u16(), answer.header("x-rouse-error")), (404, "no_route"));
    }
    // With the app's host, such a path goes to the app.
    let mut one = up.one().await;
    let answer = one.get("/metrics").await;
    assert!(!answer.text().contains("rouse_"), "{answer:?}");
    assert_eq!(answer.header("x-rouse-cold-start"), "false", "a pod answered");
    drop(one);
    up.rouse.stop().await;
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
        // Memory that the first request allocates does not count as growth.
        assert_eq!(http.get("/").await.status, 200);
        let memory = Memory::watch(up.rouse.pid);
        let checker = http.check_pattern(&format!("/bytes/{LENGTH}")).await;
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
    put(up.rouse.dir(), "ca.crt", &up.authority.pem());
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
