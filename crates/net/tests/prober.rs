//! The prober on real sockets: which pods it promotes, demotes or leaves alone, and its limits.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rouse_core::endpoint::{Conditions, Slice, SliceEndpoint, SlicePort, Source, State};
use rouse_core::probe::{ProbeCheck, ProbePlan, ProbeSpec, ReadinessProbe};
use rouse_core::service::Service;
use rouse_core::snapshot::{ConcurrencyLimits, Snapshot, Subscription};
use rouse_net::probe_limiter::ProbeLimits;
use rouse_net::probe_schedule::ProbeSchedule;
use rouse_net::prober::{ProbeLookup, ProbeTarget, Prober};
use rouse_testkit::fakes::{Bench, READY, STARTING, http, pod};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A test waits this long only if it fails.
const PATIENCE: Duration = Duration::from_secs(20);

fn tcp() -> ProbeLookup {
    Box::new(|_, _, port| ProbePlan::new(&ProbeSpec::default(), port, true).ok().map(Arc::new).map(at_home))
}

fn at_home(plan: Arc<ProbePlan>) -> ProbeTarget {
    ProbeTarget { plan, node: "home".into(), steady: ProbeSchedule::SLOWEST }
}

/// A plan to probe a pod by HTTP on `port`.
fn get(port: u16) -> Arc<ProbePlan> {
    let check = ProbeCheck::Http { port, path: "/".into(), tls: false, headers: Vec::new() };
    let probe = ReadinessProbe { check, foreign_host: false };
    let spec = ProbeSpec { containers: vec![Some(probe)], readiness_gates: 0 };
    Arc::new(ProbePlan::new(&spec, port, true).unwrap())
}

/// Pods, by number, at their addresses and one port.
fn slice(port: u16, pods: &[(u32, IpAddr)], conditions: Conditions) -> Slice {
    let endpoint = |&(n, ip): &(u32, IpAddr)| SliceEndpoint { ip, conditions, pod: Some(pod(n)) };
    Slice {
        ports: vec![SlicePort { name: http(), number: port }],
        endpoints: pods.iter().map(endpoint).collect(),
    }
}

/// A service that is being probed.
struct Shop {
    bench: Bench,
    service: Arc<Service>,
    changes: Subscription,
    prober: Arc<Prober>,
    cancel: CancellationToken,
    tasks: JoinSet<()>,
}

impl Shop {
    fn new(plans: ProbeLookup, limits: ProbeLimits) -> Self {
        let bench = Bench::new();
        let (service, _) = bench.service("cart", ConcurrencyLimits::default());
        let prober = Arc::new(Prober {
            plans,
            schedule: ProbeSchedule::local(),
            limits: Arc::new(limits),
            // Longer than any test waits, so that no test passes because a probe timed out.
            timeout: PATIENCE * 3,
            random: Box::new(|| 0),
        });
        let (cancel, mut tasks) = (CancellationToken::new(), JoinSet::new());
        tasks.spawn(Arc::clone(&prober).run(Arc::clone(&service), cancel.clone()));
        Self { bench, changes: service.subscribe(), service, prober, cancel, tasks }
    }

    /// Waits until the first endpoint has this state and source.
    async fn becomes(&mut self, state: State, source: Source) {
        let first = |snapshot: Arc<Snapshot>| {
            let endpoint = snapshot.port(&http())?.endpoints().first()?;
            Some((endpoint.state, endpoint.source))
        };
        let until = async { while first(self.changes.changed().await) != Some((state, source)) {} };
        timeout(PATIENCE, until).await.unwrap_or_else(|_| panic!("never {state} by {source}"));
    }

    /// Waits until `count` pods are watched, by the references to the prober: one per watch, ours and its owner's.
    async fn watches(&self, count: usize) {
        let until = async {
            while Arc::strong_count(&self.prober) != 2 + count {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, until).await.unwrap_or_else(|_| panic!("never {count} watches"));
    }

    async fn ended(mut self) {
        timeout(PATIENCE, self.tasks.join_next()).await.unwrap().unwrap().unwrap();
        assert_eq!(Arc::strong_count(&self.prober), 1, "no watch outlives its owner");
    }
}

/// A port that no other test can get while the socket is kept, and on which nothing listens yet.
fn reserve() -> (TcpSocket, u16) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(SocketAddr::new(HOME, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

#[tokio::test]
async fn a_pod_is_promoted_when_it_listens_and_taken_back_when_it_dies() {
    let mut shop = Shop::new(tcp(), ProbeLimits::default());
    let (_reserved, port) = reserve();
    shop.service.put_slice("a", slice(port, &[(1, HOME)], STARTING));
    shop.becomes(State::Starting, Source::Slice).await;
    shop.watches(1).await;
    let app = TcpListener::bind((HOME, port)).await.unwrap();
    shop.becomes(State::Ready, Source::Probe).await;
    drop(app);
    shop.becomes(State::Starting, Source::Slice).await;
    shop.watches(1).await;
    let _app = TcpListener::bind((HOME, port)).await.unwrap();
    shop.becomes(State::Ready, Source::Probe).await;
}

#[tokio::test]
async fn probing_stops_when_the_slice_has_spoken_for_the_pod() {
    let mut shop = Shop::new(tcp(), ProbeLimits::default());
    let (app, port) = reserve();
    for (end, then) in [(Some(READY), 0), (Some(STARTING), 1), (None, 0)] {
        shop.service.put_slice("a", slice(port, &[(1, HOME)], STARTING));
        shop.watches(1).await;
        match end {
            Some(conditions) => shop.service.put_slice("a", slice(port, &[(1, HOME)], conditions)),
            None => shop.service.drop_slice("a"),
        }
        shop.watches(then).await;
    }
    // The same for a pod that a probe promoted.
    let _app = app.listen(8).unwrap();
    shop.service.put_slice("a", slice(port, &[(2, HOME)], STARTING));
    shop.becomes(State::Ready, Source::Probe).await;
    shop.watches(1).await;
    shop.service.put_slice("a", slice(port, &[(2, HOME)], READY));
    shop.becomes(State::Ready, Source::Slice).await;
    shop.watches(0).await;
}

#[tokio::test]
async fn a_probe_under_way_is_given_up_with_its_pod() {
    let plans: ProbeLookup = Box::new(|_, _, port| Some(at_home(get(port))));
    let shop = Shop::new(plans, ProbeLimits::default());
    let (app, port) = reserve();
    let _never_answers = app.listen(8).unwrap();
    shop.service.put_slice("a", slice(port, &[(1, HOME)], STARTING));
    let asked = async {
        while shop.prober.limits.in_flight() == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, asked).await.unwrap();
    shop.service.put_slice("a", slice(port, &[(1, HOME)], READY));
    shop.watches(0).await;
    assert_eq!(shop.prober.limits.in_flight(), 0);
}

#[tokio::test]
async fn a_promotion_that_the_slice_ended_is_proved_anew() {
    let mut shop = Shop::new(tcp(), ProbeLimits::default());
    let (app, port) = reserve();
    let _app = app.listen(8).unwrap();
    for said in [STARTING, Conditions { terminating: None, ..STARTING }, STARTING] {
        shop.service.put_slice("a", slice(port, &[(1, HOME)], said));
        let generation = shop.service.snapshot().generation;
        let promoted = async { while shop.changes.changed().await.generation <= generation {} };
        timeout(PATIENCE, promoted).await.unwrap();
        let ready = shop.service.snapshot().ports[0].endpoints()[0].state;
        assert_eq!(ready, State::Ready);
    }
}

#[tokio::test]
async fn a_plan_that_comes_late_is_used() {
    let known = Arc::new(AtomicBool::new(false));
    let (asked, tcp) = (Arc::new(AtomicUsize::new(0)), tcp());
    let plans: ProbeLookup = Box::new({
        let (known, asked) = (Arc::clone(&known), Arc::clone(&asked));
        move |uid, ips, port| {
            asked.fetch_add(1, Ordering::SeqCst);
            if known.load(Ordering::SeqCst) { tcp(uid, ips, port) } else { None }
        }
    });
    let mut shop = Shop::new(plans, ProbeLimits::default());
    let (app, port) = reserve();
    let _app = app.listen(8).unwrap();
    shop.service.put_slice("a", slice(port, &[(1, HOME)], STARTING));
    while asked.load(Ordering::SeqCst) < 3 {
        tokio::task::yield_now().await;
    }
    assert!(!shop.service.snapshot().routable(), "nothing vouches for it");
    known.store(true, Ordering::SeqCst);
    shop.becomes(State::Ready, Source::Probe).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_asked_at_once_and_then_at_the_pace_of_its_age() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let plans: ProbeLookup = Box::new({
        let (times, start) = (Arc::clone(&times), Instant::now());
        move |_, _, _| {
            times.lock().unwrap().push(start.elapsed());
            None
        }
    });
    let shop = Shop::new(plans, ProbeLimits::default());
    shop.service.put_slice("a", slice(1, &[(1, HOME)], STARTING));
    tokio::time::advance(Duration::ZERO).await;
    tokio::time::sleep_until(Instant::now() + Duration::from_secs(30)).await;
    let times = times.lock().unwrap().clone();
    assert_eq!(times[0], Duration::ZERO);
    for pair in times.windows(2) {
        let (pause, due) = (pair[1].abs_diff(pair[0]), ProbeSchedule::local().next(pair[0], 0));
        // The runtime's timer counts in milliseconds.
        assert!(pause >= due && pause <= due + Duration::from_millis(1), "{pause:?} after {:?}", pair[0]);
    }
    assert!((300..500).contains(&times.len()), "{}", times.len());
}

#[tokio::test]
async fn a_dual_stack_pod_is_found_at_its_second_address() {
    let Ok(app) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await else {
        eprintln!("SKIPPED: this machine has no IPv6");
        return;
    };
    let port = app.local_addr().unwrap().port();
    let mut shop = Shop::new(tcp(), ProbeLimits::default());
    // Nothing listens at the first address.
    let slices = [("v4", HOME), ("v6", Ipv6Addr::LOCALHOST.into())];
    let slices = slices.map(|(name, ip)| (name, slice(port, &[(1, ip)], STARTING)));
    shop.service.replace_slices(slices);
    assert_eq!(shop.service.snapshot().ports[0].endpoints()[0].addresses.len(), 2);
    shop.becomes(State::Ready, Source::Probe).await;
}

#[tokio::test]
async fn it_ends_when_cancelled_or_when_the_service_is_gone() {
    let start = |plans| {
        let shop = Shop::new(plans, ProbeLimits::default());
        let (socket, port) = reserve();
        shop.service.put_slice("a", slice(port, &[(1, HOME)], STARTING));
        (shop, socket)
    };
    let (shop, _socket) = start(tcp());
    shop.watches(1).await;
    shop.cancel.cancel();
    shop.ended().await;

    // Also when no pod has a plan.
    for plans in [tcp(), Box::new(|_, _, _| None)] {
        let (mut shop, _socket) = start(plans);
        shop.watches(1).await;
        shop.bench.registry.remove(shop.service.id());
        let (other, _) = shop.bench.service("other", ConcurrencyLimits::default());
        drop(std::mem::replace(&mut shop.service, other));
        shop.ended().await;
    }
}

/// The most connections that `app` had open at a time, after `count` of them. No connection is answered before there were `most`.
async fn peak(app: TcpListener, count: usize, most: usize) -> usize {
    let (open, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut connections = JoinSet::new();
    for _ in 0..count {
        let (mut stream, _) = timeout(PATIENCE, app.accept()).await.unwrap().unwrap();
        let (open, peak) = (Arc::clone(&open), Arc::clone(&peak));
        connections.spawn(async move {
            peak.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let mut head = [0; 1024];
            assert!(stream.read(&mut head).await.unwrap() > 0);
            let full = async {
                while peak.load(Ordering::SeqCst) < most {
                    tokio::task::yield_now().await;
                }
            };
            timeout(PATIENCE, full).await.unwrap_or_else(|_| panic!("never {most} at a time"));
            // Long enough for further connections.
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
            // Before the answer: the next probe may begin as soon as it is out.
            open.fetch_sub(1, Ordering::SeqCst);
            // The probe may have been aborted with its test.
            _ = stream.write_all(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").await;
        });
    }
    // Connections that are still open are closed.
    while let Some(ended) = connections.join_next().await {
        ended.unwrap();
    }
    peak.load(Ordering::SeqCst)
}

#[tokio::test]
async fn no_more_probes_are_under_way_than_allowed() {
    // Limits in total and per node; the number of nodes, each with its own address; the expected peak.
    for (limits, nodes, most) in [((3, 3), 8, 3), ((8, 2), 1, 2), ((8, 1), 4, 4)] {
        let app = TcpListener::bind(("0.0.0.0", 0)).await.unwrap();
        let plan = get(app.local_addr().unwrap().port());
        let node_of = |ips: &[IpAddr]| ips[0].to_string().into();
        let plans: ProbeLookup = Box::new(move |_, ips, _| {
            Some(ProbeTarget { plan: Arc::clone(&plan), node: node_of(ips), steady: ProbeSchedule::SLOWEST })
        });
        let shop = Shop::new(plans, ProbeLimits::new(limits.0, limits.1));
        // Each at a port of its own, which is not dialled: pods at one address would be one endpoint.
        for n in 0..8 {
            let ip = IpAddr::from([127, 0, 0, 1 + n % nodes]);
            let (name, pods) = (n.to_string(), [(n.into(), ip)]);
            shop.service.put_slice(&name, slice(1 + u16::from(n), &pods, STARTING));
        }
        shop.watches(8).await;
        let peak = peak(app, 100, most).await;
        assert_eq!(peak, most, "at a time with {limits:?} and {nodes} nodes");
        assert!(shop.prober.limits.in_flight() <= most);
        shop.cancel.cancel();
        let limits = Arc::clone(&shop.prober.limits);
        shop.ended().await;
        assert_eq!(limits.in_flight(), 0, "an aborted probe gives its turn back");
    }
}
