//! TLS over real sockets, with certificates made for each test.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

mod inbound;
mod inspect;
mod keys;
mod outbound;
mod reload;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use rouse_net::tls::{
    Alpn, CertEntry, ClientAuth, ClientSettings, ClientStream, ClientTls, Pem, Roots, ServerName,
    ServerSettings, ServerStream, ServerTls, TlsError, TlsHandshake, TlsVersion, Versions,
};
use rouse_testkit::certificates::{Authority, Leaf};
use rustls::HandshakeKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

type Accepted = Result<(ServerStream<TcpStream>, TlsHandshake), TlsError>;
type Connected = Result<(ClientStream<TcpStream>, Option<Alpn>), TlsError>;

/// A deadline that is reached only on failure.
fn patience() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (accepted, connected) = tokio::join!(listener.accept(), TcpStream::connect(address));
    (accepted.unwrap().0, connected.unwrap())
}

/// The results of a handshake for the server and for the client.
async fn shake(server: &ServerTls, client: &ClientTls) -> (Accepted, Connected) {
    let (ours, theirs) = pair().await;
    tokio::join!(server.accept(ours, patience()), client.connect(theirs, patience()))
}

/// A successful handshake and a byte each way (in TLS 1.3, tickets arrive with the first). Returns the kind of handshake.
async fn talk(
    server: &ServerTls,
    client: &ClientTls,
) -> (ClientStream<TcpStream>, TlsHandshake, HandshakeKind) {
    let (accepted, connected) = shake(server, client).await;
    let ((mut ours, peer), (mut theirs, _)) = (accepted.unwrap(), connected.unwrap());
    for byte in [1, 2] {
        ours.write_u8(byte).await.unwrap();
        ours.flush().await.unwrap();
        assert_eq!(theirs.read_u8().await.unwrap(), byte);
        theirs.write_u8(byte).await.unwrap();
        theirs.flush().await.unwrap();
        assert_eq!(ours.read_u8().await.unwrap(), byte);
    }
    let kind = theirs.get_ref().1.handshake_kind().unwrap();
    (theirs, peer, kind)
}

fn name(name: &str) -> ServerName<'static> {
    ServerName::try_from(name.to_owned()).unwrap()
}

fn server(leaves: &[&Leaf]) -> ServerSettings {
    ServerSettings::new(leaves.iter().map(|leaf| entry(leaf)).collect())
}

fn entry(leaf: &Leaf) -> CertEntry {
    CertEntry { identity: leaf.identity(), names: Vec::new() }
}

fn serve(settings: ServerSettings) -> Arc<ServerTls> {
    let (server, warnings) = ServerTls::new(settings).unwrap();
    assert_eq!(warnings, []);
    Arc::new(server)
}

fn client(settings: ClientSettings) -> ClientTls {
    let (client, warnings) = ClientTls::new(settings).unwrap();
    assert_eq!(warnings, []);
    client
}

/// A client that trusts `authority`.
fn trusting(authority: &Authority, host: &str) -> ClientSettings {
    ClientSettings::new(name(host), Roots::Pem(vec![authority.ca()]))
}

/// A client that accepts every certificate.
fn trustful(host: &str) -> ClientTls {
    client(ClientSettings { verify: false, ..ClientSettings::new(name(host), Roots::System) })
}

fn only(version: TlsVersion) -> Versions {
    Versions::new(version, version).unwrap()
}

fn shown(stream: &ClientStream<TcpStream>) -> Vec<u8> {
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}
