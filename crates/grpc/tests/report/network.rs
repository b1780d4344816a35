//! A network in memory, with its DNS: connections to controllers that tests can cut and stall.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rouse_grpc::report::server::ReportServer;
use rouse_net::peers::{Dialer, DialerFuture, PeerStream, Resolver, ResolverFuture};
use rouse_net::tls::ServerTls;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How many bytes a connection buffers. Little, so that a controller that reads nothing is noticed soon.
const BUFFER: usize = 16 * 1024;

/// The address of controller `n`.
pub(crate) fn address(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 2, 0, n], 9444))
}

/// A host on the network.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) server: ReportServer,
    pub(crate) tls: Arc<ServerTls>,
}

struct Link {
    host: Option<Host>,
    cut: CancellationToken,
    stalled: watch::Sender<bool>,
}

/// The network.
#[derive(Default)]
pub(crate) struct Network {
    links: Mutex<BTreeMap<SocketAddr, Link>>,
    /// What the name of the controllers resolves to. `None`: the look-up fails.
    dns: Mutex<Option<Vec<SocketAddr>>>,
    pub(crate) dials: Mutex<Vec<SocketAddr>>,
    pub(crate) tasks: Mutex<JoinSet<()>>,
}

impl Network {
    /// A host takes connections.
    pub(crate) fn up(&self, n: u8, host: Host) {
        let link =
            Link { host: Some(host), cut: CancellationToken::new(), stalled: watch::Sender::new(false) };
        if let Some(before) = self.links.lock().unwrap().insert(address(n), link) {
            before.cut.cancel();
        }
    }

    /// All connections to a host break, and it takes no new ones.
    pub(crate) fn down(&self, n: u8) {
        let mut links = self.links.lock().unwrap();
        let link = links.get_mut(&address(n)).unwrap();
        link.host = None;
        link.cut.cancel();
    }

    /// All connections to a host break.
    pub(crate) fn cut(&self, n: u8) {
        let mut links = self.links.lock().unwrap();
        let link = links.get_mut(&address(n)).unwrap();
        std::mem::take(&mut link.cut).cancel();
    }

    /// Nothing passes to a host or from it, and no end sees an error.
    pub(crate) fn stall(&self, n: u8, stalled: bool) {
        self.links.lock().unwrap()[&address(n)].stalled.send_replace(stalled);
    }

    /// What DNS says.
    pub(crate) fn name(&self, controllers: &[u8]) {
        *self.dns.lock().unwrap() = Some(controllers.iter().copied().map(address).collect());
    }

    /// A connection to a host, from `source`.
    pub(crate) fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn PeerStream>> {
        let links = self.links.lock().unwrap();
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let link = links.get(&to).ok_or_else(refused)?;
        let Host { server, tls } = link.host.clone().ok_or_else(refused)?;
        let (ours, near) = duplex(BUFFER);
        let (far, theirs) = duplex(BUFFER);
        let ((near_read, near_write), (far_read, far_write)) = (split(near), split(far));
        let mut tasks = self.tasks.lock().unwrap();
        for (from, to) in [(near_read, far_write), (far_read, near_write)] {
            let pump = pump(from, to, link.stalled.subscribe());
            let cut = link.cut.clone();
            tasks.spawn(async move { _ = cut.run_until_cancelled_owned(pump).await });
        }
        let source = SocketAddr::from(([10, 1, 0, 1], 40_000));
        let cut = link.cut.clone();
        tasks.spawn(async move {
            cut.run_until_cancelled_owned(Box::pin(server.serve_connection(theirs, source, tls))).await;
        });
        Ok(Box::new(ours))
    }
}

/// Copies bytes, unless the link is stalled.
async fn pump<S: tokio::io::AsyncRead + tokio::io::AsyncWrite>(
    mut from: ReadHalf<S>,
    mut to: WriteHalf<S>,
    mut stalled: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if stalled.wait_for(|stalled| !stalled).await.is_err() || to.write_all(&buffer[..read]).await.is_err()
        {
            return;
        }
    }
    to.shutdown().await.ok();
}

impl Dialer for Network {
    fn dial(&self, peer: SocketAddr) -> DialerFuture<'_> {
        self.dials.lock().unwrap().push(peer);
        Box::pin(async move { self.connect(peer) })
    }
}

impl Resolver for Network {
    fn lookup<'a>(&'a self, _name: &'a str, _port: u16) -> ResolverFuture<'a> {
        let found = self.dns.lock().unwrap().clone();
        Box::pin(async move { found.ok_or_else(|| io::Error::other("no such name")) })
    }
}
