//! A load generator that opens a new connection for each request, optionally with a TLS handshake, because h2load keeps
//! connections. It prints the outcomes as JSON.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{SMALL, block_on, is_whole};
use crate::Result;
use crate::args::{Connect, Handshake};
use crate::clock::Stopwatch;
use crate::stats::float;

/// The timeout of one request, including its connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// The outcomes of the requests.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) succeeded: u32,
    pub(crate) failed: u32,
    pub(crate) per_second: f64,
    /// Full and resumed handshakes of successful requests; both 0 without TLS.
    pub(crate) full: u32,
    pub(crate) resumed: u32,
}

/// Sends all requests and prints the outcomes.
pub(crate) fn run(connect: &Connect) -> Result<()> {
    let clients = (0..connect.at_once).map(|_| Client::new(connect)).collect::<Result<Vec<_>>>()?;
    block_on(async {
        let began = Stopwatch::start();
        let left = Arc::new(AtomicU32::new(connect.count));
        let mut sending = JoinSet::new();
        for client in clients {
            sending.spawn(client.send(Arc::clone(&left)));
        }
        let done: Vec<Done> = sending.join_all().await.into_iter().flatten().collect();
        let kinds = |kind: HandshakeKind| count(done.iter().filter(|done| **done == Done::Tls(kind)));
        let succeeded = count(done.iter());
        let tally = Tally {
            succeeded,
            failed: connect.count - succeeded,
            per_second: float(succeeded.into()) / began.elapsed().as_secs_f64(),
            full: kinds(HandshakeKind::Full),
            resumed: kinds(HandshakeKind::Resumed),
        };
        println!("{}", serde_json::to_string(&tally)?);
        Ok(())
    })
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// A successful request, by its kind of handshake.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Done {
    Clear,
    Tls(HandshakeKind),
}

/// A client that sends each request over a new connection.
struct Client {
    connect: Connect,
    request: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Client {
    fn new(connect: &Connect) -> Result<Self> {
        let request = format!("GET / HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", connect.host);
        let tls = connect.handshake.map(|handshake| tls(connect, handshake)).transpose()?;
        Ok(Self { connect: connect.clone(), request, tls })
    }

    /// Sends one request after the other while any are left. Returns those that succeeded.
    async fn send(self, left: Arc<AtomicU32>) -> Vec<Done> {
        let mut succeeded = Vec::new();
        let take = |left: u32| left.checked_sub(1);
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            if let Ok(Ok(Some(done))) = timeout(PATIENCE, self.one()).await {
                succeeded.push(done);
            }
        }
        succeeded
    }

    async fn one(&self) -> std::io::Result<Option<Done>> {
        let mut stream = TcpStream::connect(self.connect.address).await?;
        stream.set_nodelay(true)?;
        let Some((connector, name)) = &self.tls else {
            return Ok(self.ask(&mut stream).await?.then_some(Done::Clear));
        };
        let mut stream = connector.connect(name.clone(), stream).await?;
        let answered = self.ask(&mut stream).await?;
        let kind = stream.get_ref().1.handshake_kind();
        Ok(kind.filter(|_| answered).map(Done::Tls))
    }

    async fn ask(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> std::io::Result<bool> {
        stream.write_all(self.request.as_bytes()).await?;
        let mut answer = Vec::with_capacity(SMALL * 2);
        let end = stream.read_to_end(&mut answer).await;
        // Some servers end a TLS connection without `close_notify`.
        let whole = answer.starts_with(b"HTTP/1.1 200 ") && is_whole(&answer);
        if whole { Ok(true) } else { end.map(|_| false) }
    }
}

/// TLS 1.3 with one cipher suite and one group, so that all proxies negotiate the same. Each client has its own ticket
/// store: a shared one would run out of tickets.
fn tls(connect: &Connect, handshake: Handshake) -> Result<(TlsConnector, ServerName<'static>)> {
    let file = connect.certificate.as_deref().ok_or("a handshake needs --certificate")?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file)?)?;
    let provider = CryptoProvider {
        cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![aws_lc_rs::kx_group::X25519],
        ..aws_lc_rs::default_provider()
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = match handshake {
        Handshake::Full => Resumption::disabled(),
        Handshake::Resumed => Resumption::in_memory_sessions(8),
    };
    Ok((TlsConnector::from(Arc::new(config)), ServerName::try_from(connect.host.clone())?))
}
