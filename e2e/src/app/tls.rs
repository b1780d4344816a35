//! The test app's TLS server side, and what the client presented in the handshake.

use std::time::Duration;

use rouse_e2e::Error;
use rouse_net::tls::{CertEntry, ClientAuth, Identity, Pem, ServerSettings, ServerStream, ServerTls};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::settings::Tls;

/// What the client presented.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The server name it asked for.
    pub(crate) sni: Option<Box<str>>,
    /// Whether it has a certificate, which was verified.
    pub(crate) certificate: bool,
}

/// Performs the handshake, with certificates freshly read from their files.
pub(crate) async fn accept(
    settings: &Tls,
    stream: TcpStream,
) -> Result<(ServerStream<TcpStream>, Seen), Error> {
    let identity =
        Identity { chain: Pem::File(settings.chain.clone()), key: Pem::File(settings.key.clone()) };
    let mut server = ServerSettings::new(vec![CertEntry { identity, names: Vec::new() }]);
    if let Some(roots) = &settings.client_ca {
        server.client_auth = ClientAuth::Required(Pem::File(roots.clone()));
    }
    let (server, _cautions) = ServerTls::new(server)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    let (stream, peer) = server.accept(stream, deadline).await?;
    Ok((stream, Seen { sni: peer.sni, certificate: peer.client_cert }))
}
