//! The client over real sockets: connections, file descriptors, and a gateway with TLS.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rouse_core::endpoint::State;
use rouse_core::merge::PushEvent;
use rouse_net::auth::PushMode;
use rouse_net::clock::TokioClock;
use rouse_net::peers::{Dialer, DialerFuture, Resolver, ResolverFuture, TcpDialer};
use rouse_net::tls::Roots;
use rouse_register::client::{PushClientSettings, PushCredential, client};
use rouse_register::server::{ListenerLimits, ListenerTransport};
use rouse_testkit::certificates::Authority;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::credentials::{server_tls, token_file};
use crate::harness::{GENEROUS, Gateway, Sidecar, claims, default_url, now, pass, plain, seconds};

/// The addresses of a pod and a gateway on the loopback interface, which differ as in a cluster.
const POD: &str = "127.77.0.2";
const GATEWAY: &str = "127.77.0.1";

/// Counts connections.
#[derive(Default)]
struct Counter {
    dials: AtomicUsize,
    dialer: Mutex<Option<TcpDialer>>,
}

impl Dialer for Counter {
    fn dial(&self, peer: SocketAddr) -> DialerFuture<'_> {
        self.dials.fetch_add(1, Ordering::SeqCst);
        let dialer = self.dialer.lock().unwrap().clone().unwrap();
        Box::pin(async move { dialer.dial(peer).await })
    }
}

/// Resolves every name to one gateway.
struct To(SocketAddr);

impl Resolver for To {
    fn lookup<'a>(&'a self, _name: &'a str, _port: u16) -> ResolverFuture<'a> {
        Box::pin(async { Ok(vec![self.0]) })
    }
}

fn counter() -> Arc<Counter> {
    let own: IpAddr = POD.parse().unwrap();
    Arc::new(Counter { dialer: Mutex::new(Some(TcpDialer::new(&[own]))), ..Counter::default() })
}

struct Served {
    gateway: Arc<Gateway>,
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

async fn served(transport: ListenerTransport) -> Served {
    let gateway = Gateway::new(TokioClock::new(), PushMode::On, &Arc::default(), &Arc::default());
    let listener = TcpListener::bind((GATEWAY, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&gateway.server).serve(
        listener,
        transport,
        ListenerLimits::default(),
        CancellationToken::new(),
    ));
    Served { gateway, address, _tasks: tasks }
}

#[tokio::test]
async fn a_thousand_events_use_at_most_two_connections() {
    let served = served(ListenerTransport::Plain).await;
    // The address of the URL is dialled, from the address of the pod: the gateway refuses any other source.
    let gateways = format!("http://{}", served.address).parse().unwrap();
    let settings = PushClientSettings { gateways, pod: claims(POD), ..plain() };
    let (reporter, client) = client(settings, TokioClock::new(), 7, now).unwrap();
    let counter = counter();
    let client = client.with_network(Arc::new(To(served.address)), Arc::clone(&counter) as _);
    let sidecar = Sidecar::run(reporter, client);
    for round in 0..1000 {
        sidecar.report(if round % 2 == 0 { PushEvent::Ready } else { PushEvent::NotReady }).await;
    }
    assert_eq!(served.gateway.attempts("accepted"), 1000);
    assert_eq!(served.gateway.state(), Some(State::Starting));
    assert!(counter.dials.load(Ordering::SeqCst) <= 2);
}

#[tokio::test]
async fn over_tls_the_address_is_dialled_and_the_name_of_the_service_is_verified() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let served = served(ListenerTransport::Tls(server_tls(&authority, None))).await;
    let settings = PushClientSettings {
        gateways: default_url(),
        credential: PushCredential::Token(token_file(folder.path(), 0)),
        tls: default_url().tls(Roots::Pem(vec![authority.ca()]), None),
        pod: claims(POD),
    };
    let (reporter, client) = client(settings, TokioClock::new(), 7, now).unwrap();
    let sidecar = Sidecar::run(reporter, client.with_network(Arc::new(To(served.address)), counter()));
    assert_eq!(sidecar.report(PushEvent::Ready).await.acknowledged, 1);
    assert_eq!(served.gateway.state(), Some(State::Ready));
    timeout(GENEROUS, sidecar.stop()).await.unwrap();
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// In paused time, so that the backoff costs nothing: a request fails because it is refused, or because time passes first.
#[tokio::test(start_paused = true)]
async fn ten_thousand_failures_leave_no_file_open() {
    // A listener that never answers, and one that is closed.
    let (silent, closed) =
        (TcpListener::bind((GATEWAY, 0)).await.unwrap(), TcpListener::bind((GATEWAY, 0)).await.unwrap());
    let addresses = [silent.local_addr().unwrap(), closed.local_addr().unwrap()];
    drop(closed);
    for address in addresses {
        let gateways = format!("http://{address}").parse().unwrap();
        let settings = PushClientSettings { gateways, pod: claims(POD), ..plain() };
        let (reporter, client) = client(settings, TokioClock::new(), 7, now).unwrap();
        let counter = counter();
        let client = client.with_network(Arc::new(To(address)), Arc::clone(&counter) as _);
        let sidecar = Sidecar::run(reporter, client);
        sidecar.reporter.report(PushEvent::Ready);
        let dials = || counter.dials.load(Ordering::SeqCst);
        while dials() < 100 {
            pass(seconds(60)).await;
        }
        let before = open_files();
        while dials() < 5_000 {
            pass(seconds(60)).await;
            // What the silent listener has accepted is its own.
            while let Ok(Ok(_)) = timeout(seconds(0), silent.accept()).await {}
        }
        let after = open_files();
        assert!(after <= before + 5, "{before} files, then {after}");
        sidecar.stop().await;
    }
}
