//! A TCP relay that a test can cut: connections stay open and carry nothing, as in a network partition.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Relays connections to one address, until it is dropped.
#[derive(Debug)]
pub struct Relay {
    /// Where clients connect.
    pub address: SocketAddr,
    is_cut: watch::Sender<bool>,
    _accepting: JoinSet<()>,
}

impl Relay {
    /// A relay on a free port of the loopback address.
    pub async fn to(server: SocketAddr) -> Self {
        let listener =
            TcpListener::bind("127.0.0.1:0").await.unwrap_or_else(|error| panic!("no port: {error}"));
        let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
        let is_cut = watch::Sender::new(false);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, server, is_cut.subscribe()));
        Self { address, is_cut, _accepting: accepting }
    }

    /// From now on, nothing passes: not on open connections, and not on new ones.
    pub fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    /// What was held back passes, and all that follows.
    pub fn heal(&self) {
        self.is_cut.send_replace(false);
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, is_cut: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(relay(client, server, is_cut.clone()));
    }
}

async fn relay(client: TcpStream, server: SocketAddr, mut is_cut: watch::Receiver<bool>) {
    if is_cut.wait_for(|is_cut| !is_cut).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let back = is_cut.clone();
    // Either end closes both: the relay has no half-open connections.
    tokio::select! {
        _ended = copy(from_client, to_server, is_cut) => {}
        _ended = copy(from_server, to_client, back) => {}
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut is_cut: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 || is_cut.wait_for(|is_cut| !is_cut).await.is_err() {
            return Ok(());
        }
        to.write_all(&buffer[..read]).await?;
    }
}
