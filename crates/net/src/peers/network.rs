//! Traits for DNS look-ups and connections to peers, so that tests can script a network, and their implementations by the system.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, lookup_host};

/// The addresses of a name.
pub type ResolverFuture<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;
/// A connection.
pub type DialerFuture<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn PeerStream>>> + Send + 'a>>;

/// Looks up names.
pub trait Resolver: Send + Sync {
    /// The addresses of `name`, with `port`.
    fn lookup<'a>(&'a self, name: &'a str, port: u16) -> ResolverFuture<'a>;
}

/// Makes connections.
pub trait Dialer: Send + Sync {
    /// A connection to `peer`.
    fn dial(&self, peer: SocketAddr) -> DialerFuture<'_>;
}

/// A connection to a peer.
pub trait PeerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> PeerStream for S {}

/// The resolver of the system. A name with a dot at the end is not completed with search domains.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn lookup<'a>(&'a self, name: &'a str, port: u16) -> ResolverFuture<'a> {
        Box::pin(async move { Ok(lookup_host((name, port)).await?.collect()) })
    }
}

/// Connects over TCP, from one of our own addresses.
#[derive(Debug, Clone, Default)]
pub struct TcpDialer {
    /// Our own addresses on the loopback interface. There the system would choose 127.0.0.1, whichever of them is ours.
    loopback: Vec<IpAddr>,
}

impl TcpDialer {
    /// Connects from one of these addresses, if they are loopback addresses. Otherwise the system chooses.
    pub fn new(own: &[IpAddr]) -> Self {
        Self { loopback: own.iter().copied().filter(IpAddr::is_loopback).collect() }
    }

    async fn connect(&self, peer: SocketAddr) -> io::Result<Box<dyn PeerStream>> {
        let socket = if peer.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        let source = self.loopback.iter().find(|own| own.is_ipv4() == peer.is_ipv4());
        if let Some(source) = source.filter(|_| peer.ip().is_loopback()) {
            socket.bind(SocketAddr::new(*source, 0))?;
        }
        let stream = socket.connect(peer).await?;
        // Without this, the kernel may delay small requests.
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

impl Dialer for TcpDialer {
    fn dial(&self, peer: SocketAddr) -> DialerFuture<'_> {
        Box::pin(self.connect(peer))
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_system_resolves_a_name_to_addresses_with_the_port() {
        let found = SystemResolver.lookup("localhost", 9443).await.unwrap();
        assert!(!found.is_empty() && found.iter().all(|it| it.ip().is_loopback() && it.port() == 9443));
    }

    #[tokio::test]
    async fn on_the_loopback_interface_a_connection_comes_from_our_own_address() {
        let listener = TcpListener::bind("127.77.0.1:0").await.unwrap();
        let peer = listener.local_addr().unwrap();
        for (own, expected) in [("127.77.0.2", "127.77.0.2"), ("10.0.0.1", "127.0.0.1"), ("::1", "127.0.0.1")]
        {
            let _stream = TcpDialer::new(&[own.parse().unwrap()]).dial(peer).await.unwrap();
            let (_, source) = listener.accept().await.unwrap();
            assert_eq!(source.ip().to_string(), expected, "of a pod at {own}");
        }
    }
}
