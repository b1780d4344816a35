//! The server over real connections: one HTTP/1.1 request after another, with and without TLS.

use std::sync::Arc;
use std::time::Duration;

use rouse_net::tls::{CertEntry, ServerSettings, ServerTls};
use rouse_register::server::ListenerTransport;
use rouse_register::wire::MAX_BODY;
use rouse_testkit::certificates::Authority;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::harness::{Scene, body};

const GENEROUS: Duration = Duration::from_secs(30);

struct Served {
    scene: Arc<Scene>,
    address: std::net::SocketAddr,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

async fn served(transport: ListenerTransport) -> Served {
    let scene = Arc::new(Scene::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    tasks.spawn(Arc::clone(&scene.server).serve(listener, transport, stop.clone()));
    Served { scene, address, stop, tasks }
}

impl Served {
    fn request(&self, sequence: u64) -> String {
        let mut body = body(sequence, "ready");
        body.ips = vec![self.address.ip()];
        let text = serde_json::to_string(&body).unwrap();
        let signature = self.scene.signed(text.as_bytes());
        let length = text.len();
        format!(
            "POST /v1/registrations HTTP/1.1\r\nhost: gateway\r\nauthorization: {signature}\r\n\
             content-length: {length}\r\n\r\n{text}"
        )
    }
}

/// Sends a request, and returns the status line and the rest of the response.
async fn exchange(stream: &mut TcpStream, request: &str) -> (String, String) {
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
    let authority = Authority::new();
    let leaf = authority.leaf(&["rouse-register.rouse-system.svc"]);
    let identity = leaf.identity();
    let settings = ServerSettings::new(vec![CertEntry { identity, names: Vec::new() }]);
    let (tls, _) = ServerTls::new(settings).unwrap();
    let served = served(ListenerTransport::Tls(Arc::new(tls))).await;
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
