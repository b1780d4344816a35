//! Pods that speak TLS: which certificates the gateway trusts, which it presents, and the protocol inside.

use std::sync::{Arc, Mutex};

use h2::server::SendResponse;
use rouse_net::tls::{
    Alpn, CertEntry, ClientAuth, ClientSettings, ClientTls, Identity, Roots, ServerName, ServerSettings,
    ServerTls, TlsVersion, Versions,
};
use rouse_proxy::upstream::UpstreamProtocol;
use rouse_testkit::fakes::READY;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::certificates::Authority;
use crate::rig::{Options, PATIENCE, Pod, Rig};

const SERVICE: &str = "cart.shop.svc";

/// The TLS settings for `shop/cart`.
fn service(authority: &Authority) -> ClientSettings {
    let accepted = ["cart.shop", "cart.shop.svc.cluster.local"].map(name).to_vec();
    ClientSettings { accepted, ..ClientSettings::new(name(SERVICE), Roots::Pem(vec![authority.ca()])) }
}

fn name(name: &str) -> ServerName<'static> {
    ServerName::try_from(name.to_owned()).unwrap()
}

/// A gateway with one ready pod, to which it connects with these TLS settings.
async fn with_pod(settings: ClientSettings) -> (Rig, Pod) {
    let (tls, warnings) = ClientTls::new(settings).unwrap();
    assert_eq!(warnings, []);
    Rig::with_pod(Options { protocol: UpstreamProtocol::Tls(Arc::new(tls)), ..Options::default() }).await
}

/// The same with a pod that serves with a trusted certificate.
async fn with_trusted_pod() -> (Rig, TlsPod) {
    let authority = Authority::new();
    let (rig, pod) = with_pod(service(&authority)).await;
    (rig, TlsPod::serve(pod, server(authority.leaf(&[SERVICE])), false))
}

pub(crate) fn server(identity: Identity) -> ServerSettings {
    ServerSettings::new(vec![CertEntry { identity, names: Vec::new() }])
}

/// What a pod saw of a connection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shaken {
    pub(crate) sni: Option<Box<str>>,
    alpn: Option<Alpn>,
    /// The gateway presented a certificate.
    certified: bool,
    resumed: bool,
}

/// A pod that answers over TLS. Dropping it ends it.
pub(crate) struct TlsPod {
    seen: Seen,
    _tasks: JoinSet<()>,
}

#[derive(Clone, Default)]
struct Seen {
    shaken: Arc<Mutex<Vec<Shaken>>>,
    /// The first line of every request, or the URI in HTTP/2.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Seen {
    /// Performs the handshake on one connection, and answers its requests.
    async fn answer(self, stream: TcpStream, tls: Arc<ServerTls>, last: bool) {
        // The last bytes must not wait for an acknowledgement: closing the connection would lose them.
        stream.set_nodelay(true).unwrap();
        let accepted = tls.accept(stream, Instant::now() + PATIENCE).await;
        let Ok((stream, peer)) = accepted else { return };
        let resumed = format!("{:?}", stream.get_ref().1.handshake_kind()).contains("Resumed");
        let certified = peer.client_cert;
        self.shaken.lock().unwrap().push(Shaken { sni: peer.sni, alpn: peer.alpn, certified, resumed });
        match peer.alpn {
            Some(Alpn::H2) => http2(stream, &self.asked).await,
            _ => http1(stream, &self.asked, last).await,
        }
    }
}

impl TlsPod {
    /// `last`: every HTTP/1 connection ends with its first answer.
    pub(crate) fn serve(pod: Pod, settings: ServerSettings, last: bool) -> Self {
        let tls = Arc::new(ServerTls::new(settings).unwrap().0);
        Self::run(|seen| async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, tls) = (pod.accept_raw().await, Arc::clone(&tls));
                connections.spawn(seen.clone().answer(stream, tls, last));
            }
        })
    }

    /// The same on an existing connection.
    pub(crate) fn shake(stream: TcpStream, settings: ServerSettings) -> Self {
        let tls = Arc::new(ServerTls::new(settings).unwrap().0);
        Self::run(|seen| seen.answer(stream, tls, false))
    }

    fn run<F: Future<Output = ()> + Send + 'static>(serve: impl FnOnce(Seen) -> F) -> Self {
        let (seen, mut tasks) = (Seen::default(), JoinSet::new());
        tasks.spawn(serve(seen.clone()));
        Self { seen, _tasks: tasks }
    }

    pub(crate) fn shaken(&self) -> Vec<Shaken> {
        self.seen.shaken.lock().unwrap().clone()
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.seen.asked.lock().unwrap().clone()
    }
}

type Stream = rouse_net::tls::ServerStream<TcpStream>;

async fn http1(mut stream: Stream, asked: &Mutex<Vec<String>>, last: bool) {
    let mut read = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        while let Some(at) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(read.drain(..at + 4).collect()).unwrap();
            asked.lock().unwrap().push(head.lines().next().unwrap().to_owned());
            if head.contains("upgrade: echo") {
                let switched =
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
                stream.write_all(switched.as_bytes()).await.unwrap();
                let (mut reader, mut writer) = tokio::io::split(stream);
                tokio::io::copy(&mut reader, &mut writer).await.ok();
                return;
            }
            let close = if last { "Connection: close\r\n" } else { "" };
            let answer = format!("HTTP/1.1 200 OK\r\n{close}Content-Length: 5\r\n\r\nhello");
            stream.write_all(answer.as_bytes()).await.unwrap();
            if last {
                stream.shutdown().await.ok();
                return;
            }
        }
        match stream.read(&mut chunk).await {
            Ok(length) if length > 0 => read.extend(&chunk[..length]),
            _ => return,
        }
    }
}

async fn http2(stream: Stream, asked: &Mutex<Vec<String>>) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        asked.lock().unwrap().push(request.uri().to_string());
        answer(&mut respond);
    }
}

fn answer(respond: &mut SendResponse<bytes::Bytes>) {
    crate::http2_peers::answer(respond, "hello");
}

fn is_served(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("hello"), "{answer}");
}

/// Asserts a 502 with `tls_failed` and the reason.
fn is_refused(answer: &str, reason: &str) {
    assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
    assert!(answer.contains("\r\nx-rouse-error: tls_failed\r\n"), "{answer}");
    assert!(answer.contains(reason), "{reason}: {answer}");
}

#[tokio::test]
async fn a_pods_address_is_dialled_and_its_services_name_is_asked_for() {
    let authority = Authority::new();
    for certified in [SERVICE, "cart.shop", "cart.shop.svc.cluster.local", "*.shop.svc"] {
        let (rig, pod) = with_pod(service(&authority)).await;
        let pod = TlsPod::serve(pod, server(authority.leaf(&[certified])), false);
        is_served(&rig.get("/").await);
        let shaken =
            Shaken { sni: Some(SERVICE.into()), alpn: Some(Alpn::H2), certified: false, resumed: false };
        assert_eq!(pod.shaken(), [shaken], "{certified}");
        assert_eq!(pod.asked(), ["https://cart.test/"], "the host is the client's");
    }
}

#[tokio::test]
async fn a_pod_with_an_untrusted_certificate_gets_no_request() {
    let authority = Authority::new();
    for (identity, reason) in [
        (authority.leaf(&["till.shop.svc"]), "not for cart.shop.svc but for"),
        (authority.leaf(&["127.0.0.1"]), "not for cart.shop.svc but for"),
        (Authority::new().leaf(&[SERVICE]), "not issued by a trusted CA"),
        (authority.leaf_of(&[SERVICE], [2001, 2002]), "has expired"),
        (authority.leaf_of(&[SERVICE], [2301, 2302]), "not valid yet"),
    ] {
        let (rig, pod) = with_pod(service(&authority)).await;
        let pod = TlsPod::serve(pod, server(identity.clone()), false);
        is_refused(&rig.get("/").await, reason);
        assert_eq!(pod.asked(), [""; 0]);
        rig.requests_counted(502, "http1", 1).await;

        // Another pod with a valid certificate serves every request.
        let good = Pod::new(2).await;
        let bad = Pod::new(1).await;
        rig.pods(&[(&bad, READY), (&good, READY)]);
        let (bad, good) = (
            TlsPod::serve(bad, server(identity), false),
            TlsPod::serve(good, server(authority.leaf(&[SERVICE])), false),
        );
        for _ in 0..20 {
            is_served(&rig.get("/").await);
        }
        assert_eq!((bad.asked().len(), good.asked().len()), (0, 20));
    }
}

#[tokio::test]
async fn a_pod_without_tls_is_recognised() {
    let (rig, pod) = with_pod(service(&Authority::new())).await;
    let serving = async {
        let mut wire = pod.accept().await;
        wire.write("HTTP/1.1 400 Bad Request\r\n\r\n").await;
        // Closing it with unread bytes would reset it, and the response could be lost.
        wire
    };
    let (answer, _wire) = tokio::join!(rig.get("/"), serving);
    is_refused(&answer, "does not speak TLS");
}

#[tokio::test]
async fn certificates_are_not_verified_only_if_that_is_configured() {
    let (rig, pod) = with_pod(ClientSettings { verify: false, ..service(&Authority::new()) }).await;
    let _pod = TlsPod::serve(pod, server(Authority::new().leaf_of(&["else.test"], [2001, 2002])), false);
    is_served(&rig.get("/").await);
}

#[tokio::test]
async fn a_pod_that_wants_a_certificate_gets_ours_or_refuses_us() {
    let authority = Authority::new();
    for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
        for alpn in [Alpn::Http1, Alpn::H2] {
            let required = || ServerSettings {
                client_auth: ClientAuth::Required(authority.ca()),
                versions: Versions::new(version, version).unwrap(),
                alpn: vec![alpn],
                ..server(authority.leaf(&[SERVICE]))
            };
            for (identity, refusal) in [
                (Some(authority.leaf(&["gateway"])), None),
                (None, Some("requires a client certificate")),
                (Some(Authority::new().leaf(&["gateway"])), Some("rejected our certificate")),
            ] {
                let (rig, pod) = with_pod(ClientSettings { identity, ..service(&authority) }).await;
                let pod = TlsPod::serve(pod, required(), false);
                let answer = rig.get("/").await;
                match refusal {
                    None => {
                        is_served(&answer);
                        assert!(pod.shaken().iter().all(|shaken| shaken.certified));
                    }
                    Some(reason) => is_refused(&answer, reason),
                }
                assert_eq!(pod.asked().is_empty(), refusal.is_some(), "{version:?} {alpn:?}");
            }
        }
    }
}

#[tokio::test]
async fn sessions_are_resumed_by_every_connection_after_the_first() {
    let authority = Authority::new();
    for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
        let (rig, pod) = with_pod(service(&authority)).await;
        let settings = ServerSettings {
            versions: Versions::new(version, version).unwrap(),
            alpn: vec![Alpn::Http1],
            ..server(authority.leaf(&[SERVICE]))
        };
        let pod = TlsPod::serve(pod, settings, true);
        for _ in 0..8 {
            is_served(&rig.get("/").await);
        }
        let resumed: Vec<bool> = pod.shaken().iter().map(|shaken| shaken.resumed).collect();
        assert_eq!(resumed, [false, true, true, true, true, true, true, true], "{version:?}");
    }
}

#[tokio::test]
async fn a_herd_shares_one_http_2_connection_on_each_worker() {
    let (rig, pod) = with_trusted_pod().await;
    let (rig, mut max_released) = (Arc::new(rig), JoinSet::new());
    for _ in 0..50 {
        let rig = Arc::clone(&rig);
        max_released.spawn(async move { is_served(&rig.get("/").await) });
    }
    max_released.join_all().await;
    assert!(pod.shaken().len() <= 2, "{:?}", pod.shaken());
    assert_eq!(pod.asked().len(), 50);
}

#[tokio::test]
async fn a_pod_without_http_2_is_spoken_to_in_http_1_on_kept_connections() {
    let authority = Authority::new();
    let (rig, pod) = with_pod(service(&authority)).await;
    // The pod does not support ALPN.
    let settings = ServerSettings { alpn: Vec::new(), ..server(authority.leaf(&[SERVICE])) };
    let pod = TlsPod::serve(pod, settings, false);
    for _ in 0..10 {
        is_served(&rig.get("/a").await);
    }
    assert_eq!(pod.asked(), ["GET /a HTTP/1.1"; 10]);
    assert!(pod.shaken().len() <= 2, "one for each worker: {:?}", pod.shaken());
}

#[tokio::test]
async fn an_upgrade_is_negotiated_in_http_1_although_the_pod_prefers_http_2() {
    let (rig, pod) = with_trusted_pod().await;
    is_served(&rig.get("/").await);
    let mut client =
        rig.send("GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    client.write("there and back").await;
    client.until("there and back").await;
    let spoken: Vec<_> = pod.shaken().iter().map(|shaken| shaken.alpn).collect();
    assert_eq!(spoken, [Some(Alpn::H2), Some(Alpn::Http1)]);
    // The next plain request uses HTTP/2 again.
    is_served(&rig.get("/").await);
    assert_eq!(pod.asked().last().unwrap(), "https://cart.test/");
}

#[tokio::test]
async fn what_is_no_longer_trusted_is_not_used_although_its_connection_still_stands() {
    let (old, new) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.crt");
    let write = |authority: &Authority| {
        let rouse_net::tls::Pem::Bytes(bytes) = authority.ca() else { unreachable!("it is made in memory") };
        std::fs::write(&file, &*bytes).unwrap();
    };
    write(&old);
    for alpn in [Alpn::H2, Alpn::Http1] {
        write(&old);
        let roots = Roots::Pem(vec![rouse_net::tls::Pem::File(file.clone())]);
        let (tls, _) = ClientTls::new(ClientSettings::new(name(SERVICE), roots)).unwrap();
        let tls = Arc::new(tls);
        let options = Options { protocol: UpstreamProtocol::Tls(Arc::clone(&tls)), ..Options::default() };
        let (rig, pod) = Rig::with_pod(options).await;
        let settings = ServerSettings { alpn: vec![alpn], ..server(old.leaf(&[SERVICE])) };
        let pod = TlsPod::serve(pod, settings, false);
        is_served(&rig.get("/").await);
        write(&new);
        tls.reload().unwrap();
        is_refused(&rig.get("/").await, "not issued by a trusted CA");
        write(&old);
        tls.reload().unwrap();
        is_served(&rig.get("/").await);
        assert_eq!(pod.asked().len(), 2, "{alpn:?}");
    }
}

#[tokio::test]
async fn what_was_dialled_for_an_upgrade_is_no_substitute_for_http2() {
    let (rig, pod) = with_trusted_pod().await;
    for _ in 0..8 {
        let request =
            "GET /up HTTP/1.1\r\nHost: cart.test\r\nConnection: upgrade\r\nUpgrade: nothing\r\n\r\n";
        is_served(&rig.send(request).await.rest().await);
    }
    let before = pod.asked().len();
    let client = crate::http2_peers::H2Client::new(&rig).await;
    let grpc = http::Request::post("http://cart.test/grpc").header("content-type", "application/grpc");
    client.send(grpc.header("te", "trailers"), true).await.0.body().await;
    assert_eq!(pod.asked()[before..], ["https://cart.test/grpc"]);
}
