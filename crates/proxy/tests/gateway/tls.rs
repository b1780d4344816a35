//! Hosts that require client certificates, on a listener with other hosts that do not: a connection for one of the others
//! cannot reach them.

use std::sync::Arc;

use h2::client::SendRequest;
use http::{Request, StatusCode};
use rouse_net::tls::{
    Alpn, CertEntry, ClientAuth, ClientSettings, ClientStream, ClientTls, Roots, ServerName, ServerSettings,
    ServerTls, TlsPolicy,
};
use rouse_testkit::fakes::READY;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::certificates::Authority;
use crate::rig::{Options, PATIENCE, Pod, Rig, Served, eventually};

/// Requires a client certificate.
const STRICT: &str = "cart.test";
/// Requires no client certificate.
const LAX: &str = "window.test";

/// A gateway with both hosts, and what its clients need.
struct Bank {
    rig: Rig,
    strict: Served,
    lax: Served,
    authority: Authority,
}

impl Bank {
    async fn open() -> Self {
        let authority = Authority::new();
        let identity = authority.leaf(&[STRICT, LAX]);
        let policy = TlsPolicy {
            hosts: vec![STRICT.parse().unwrap()],
            client_auth: ClientAuth::Required(authority.ca()),
        };
        let settings = ServerSettings {
            policies: vec![policy],
            ..ServerSettings::new(vec![CertEntry { identity, names: Vec::new() }])
        };
        let (tls, warnings) = ServerTls::new(settings).unwrap();
        assert_eq!(warnings, []);
        let rig = Rig::behind(Options::default(), Some(&Arc::new(tls)));
        let (strict, lax) = (Pod::new(1).await, Pod::new(2).await);
        rig.pods(&[(&strict, READY)]);
        Rig::slices_of(&rig.add("window"), &[(2, lax.address, READY)]);
        Self { rig, strict: strict.serve(), lax: lax.serve(), authority }
    }

    /// A connection made for `host`, by a client with or without a certificate.
    async fn connect(&self, host: &str, alpn: Alpn, certified: bool) -> ClientStream<TcpStream> {
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let roots = Roots::Pem(vec![self.authority.ca()]);
        let settings = ClientSettings {
            identity: certified.then(|| self.authority.leaf(&["teller.test"])),
            alpn: vec![alpn],
            ..ClientSettings::new(name, roots)
        };
        let (client, _) = ClientTls::new(settings).unwrap();
        let stream = TcpStream::connect(self.rig.address).await.unwrap();
        let (stream, agreed) = client.connect(stream, Instant::now() + PATIENCE).await.unwrap();
        assert_eq!(agreed, Some(alpn));
        stream
    }
}

/// HTTP/2 over a connection, driven by `tasks`.
async fn http2(stream: ClientStream<TcpStream>, tasks: &mut JoinSet<()>) -> SendRequest<bytes::Bytes> {
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tasks.spawn(async move { drop(connection.await) });
    sender
}

async fn status(sender: &SendRequest<bytes::Bytes>, host: &str) -> StatusCode {
    let mut sender = sender.clone().ready().await.unwrap();
    let request = Request::get(format!("https://{host}/")).body(()).unwrap();
    let (response, _) = sender.send_request(request, true).unwrap();
    timeout(PATIENCE, response).await.expect("an answer").unwrap().status()
}

#[tokio::test]
async fn a_strict_host_is_misdirected_on_a_lax_hosts_connection_and_admitted_on_its_own() {
    let bank = Bank::open().await;
    let mut tasks = JoinSet::new();
    let lax = http2(bank.connect(LAX, Alpn::H2, true).await, &mut tasks).await;
    assert_eq!(status(&lax, LAX).await, 200);
    // In every spelling of the host.
    for host in [STRICT, "CART.test", "cart.test:443"] {
        assert_eq!(status(&lax, host).await, 421, "{host}");
    }
    assert_eq!(bank.strict.paths(), [""; 0], "its pod gets nothing of it");
    assert_eq!(status(&lax, LAX).await, 200, "the connection goes on");

    let strict = http2(bank.connect(STRICT, Alpn::H2, true).await, &mut tasks).await;
    assert_eq!(status(&strict, STRICT).await, 200);
    assert_eq!(status(&strict, LAX).await, 200, "a client with a certificate may go where none is needed");
    assert_eq!((bank.strict.paths().len(), bank.lax.paths().len()), (1, 3));
    eventually("the refusals are counted", || {
        bank.rig.metric(r#"rouse_requests_total{route="cart",code="421",protocol="http2"}"#) == 3
    })
    .await;
}

#[tokio::test]
async fn http_1_is_misdirected_by_host_and_by_the_absolute_form() {
    let bank = Bank::open().await;
    for (target, host, refusal) in [
        ("/".to_owned(), STRICT, "421 Misdirected Request"),
        (format!("https://{STRICT}/"), STRICT, "421 Misdirected Request"),
        // A request with two different hosts is rejected.
        (format!("https://{STRICT}/"), LAX, "400 Bad Request"),
        (format!("https://{LAX}/"), STRICT, "400 Bad Request"),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let mut stream = bank.connect(LAX, Alpn::Http1, false).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("an answer");
        read.expect("it ends with a close_notify");
        assert!(answer.starts_with(&format!("HTTP/1.1 {refusal}\r\n")), "{request:?}: {answer}");
    }
    assert_eq!(bank.strict.paths(), [""; 0]);
}

#[tokio::test]
async fn a_host_with_mutual_tls_rejects_clients_without_a_certificate() {
    let bank = Bank::open().await;
    // In TLS 1.3, the client's handshake ends before the server notices the missing certificate.
    let mut stream = bank.connect(STRICT, Alpn::Http1, false).await;
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {STRICT}\r\n\r\n").as_bytes()).await.ok();
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an end");
    assert!(read.is_err() && answer.is_empty(), "{read:?} {answer:?}");
    assert_eq!(bank.strict.paths(), [""; 0]);
}
