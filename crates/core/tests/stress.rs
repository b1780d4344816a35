//! Stress test on real threads: concurrent updates, acquires, cancelled holds and changes of capacity. No request may hang,
//! and no slot may leak.
//!
//! Runs for `ROUSE_STRESS_SECONDS` (default 3).
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rouse_core::endpoint::EndpointLoad;
use rouse_core::hold::AcquireError;
use rouse_core::merge::{BootId, Push, PushEvent, PushOrder};
use rouse_core::service::{Port, Service, ServiceSpec, SlotRequest};
use rouse_core::snapshot::{ConcurrencyLimits, PortView};
use rouse_testkit::fakes::{Bench, DRAINING, READY, STARTING, http, ip, pod, slice};

/// Far longer than any wait here; a request that waits this long was lost.
const FORGOTTEN: Duration = Duration::from_secs(20);
const PODS: u32 = 5;

#[derive(Default)]
struct Tally {
    served: AtomicU64,
    left: AtomicU64,
    updates: AtomicU64,
}

/// A small random number generator, so that a run can be repeated from its seed.
struct RandomChoices(u64);

impl RandomChoices {
    fn roll(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Takes slots, keeps them for a while, and sometimes leaves the wait queue.
async fn client(port: Arc<Port>, tally: Arc<Tally>, stop: Arc<AtomicBool>, seed: u64) {
    let mut random = RandomChoices(seed);
    while !stop.load(Ordering::Relaxed) {
        let ask = SlotRequest { seed: random.roll(u64::MAX), buffered: 64, ..SlotRequest::default() };
        let impatient = random.roll(4) == 0;
        let patience = if impatient { Duration::from_micros(random.roll(300)) } else { FORGOTTEN };
        match port.acquire(ask, tokio::time::sleep(patience)).await {
            Ok(mut slot) => {
                tally.served.fetch_add(1, Ordering::Relaxed);
                if random.roll(8) == 0 {
                    drop(slot.refused(random.roll(2) == 0));
                    continue;
                }
                slot.connected();
                for _ in 0..random.roll(3) {
                    tokio::task::yield_now().await;
                }
                slot.answered();
                if random.roll(2) == 0 {
                    tokio::task::yield_now().await;
                }
            }
            Err(AcquireError::Deadline) => {
                assert!(impatient, "a request was forgotten for {FORGOTTEN:?}");
                tally.left.fetch_add(1, Ordering::Relaxed);
            }
            Err(other) => unreachable!("{other}"),
        }
    }
}

/// Changes pods, limits and leases all the time. One pod is always ready in the end.
async fn writer(
    bench: Arc<Bench>,
    service: Arc<Service>,
    tally: Arc<Tally>,
    stop: Arc<AtomicBool>,
    seed: u64,
) {
    let mut random = RandomChoices(seed);
    let mut sequence = 0;
    while !stop.load(Ordering::Relaxed) {
        match random.roll(6) {
            0 => {
                let spec = ServiceSpec {
                    ports: vec![http()],
                    concurrency: ConcurrencyLimits::new(0, u32::try_from(random.roll(4)).unwrap()),
                };
                bench.registry.declare(service.id(), &spec);
            }
            1 => {
                sequence += 1;
                let event = [PushEvent::Ready, PushEvent::NotReady][usize::try_from(random.roll(2)).unwrap()];
                let push = Push {
                    pod: pod(4),
                    order: PushOrder { boot: BootId { started: seed, id: 0 }, sequence },
                    ips: vec![ip(4)],
                    owns_addresses: true,
                    ports: vec![],
                    event,
                };
                service.push(push).unwrap();
            }
            2 => {
                bench.clock.advance(Duration::from_secs(random.roll(30)));
                bench.registry.tick();
            }
            _ => {
                let mut conditions = || [READY, DRAINING, STARTING][usize::try_from(random.roll(3)).unwrap()];
                service.put_slice("a", slice((0..PODS).map(|n| (n, conditions()))));
            }
        }
        tally.updates.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

fn loads(service: &Service) -> Vec<Arc<EndpointLoad>> {
    let snapshot = service.snapshot();
    snapshot.ports.iter().flat_map(PortView::endpoints).map(|one| Arc::clone(&one.load)).collect()
}

#[test]
fn nothing_hangs_and_nothing_leaks_when_everything_happens_at_once() {
    let seconds = std::env::var("ROUSE_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    let bench = Arc::new(Bench::new());
    let (tally, stop) = (Arc::<Tally>::default(), Arc::<AtomicBool>::default());
    let services: Vec<_> =
        (0..3).map(|n| bench.service(&format!("s{n}"), ConcurrencyLimits::new(0, 2))).collect();
    for (service, _) in &services {
        service.put_slice("a", slice((0..PODS).map(|n| (n, READY))));
    }
    runtime.block_on(async {
        let mut clients = tokio::task::JoinSet::new();
        let mut writers = tokio::task::JoinSet::new();
        for (seed, (service, port)) in (1..).zip(&services) {
            for n in 0..20 {
                clients.spawn(client(
                    Arc::clone(port),
                    Arc::clone(&tally),
                    Arc::clone(&stop),
                    seed * 100 + n,
                ));
            }
            let service = Arc::clone(service);
            writers.spawn(writer(Arc::clone(&bench), service, Arc::clone(&tally), Arc::clone(&stop), seed));
        }
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end && !clients.is_empty() {
            // A client that ends early has failed: report it at once.
            let next =
                tokio::time::timeout(end.saturating_duration_since(Instant::now()), clients.join_next());
            if let Ok(Some(ended)) = next.await {
                ended.unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        writers.join_all().await;
        // Every request that still waits can be served now.
        for (service, _) in &services {
            bench.registry.declare(
                service.id(),
                &ServiceSpec { ports: vec![http()], concurrency: ConcurrencyLimits::default() },
            );
            bench.clock.advance(Duration::from_mins(2));
            bench.registry.tick();
            service.replace_slices([("a", slice((0..PODS).map(|n| (n, READY))))]);
        }
        tokio::time::timeout(FORGOTTEN, clients.join_all()).await.expect("a request waits for ever");
    });
    for (service, port) in &services {
        assert!(loads(service).iter().all(|load| load.in_flight() == 0 && load.released() == 0));
        assert_eq!(port.holds(), 0);
    }
    assert_eq!((bench.registry.holds(), bench.registry.held_bytes()), (0, 0));
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (served, left, updates) = (count(&tally.served), count(&tally.left), count(&tally.updates));
    println!("{seconds} s: {served} served, {left} left the line, {updates} updates");
    assert!(served > 1000 && left > 10 && updates > 100, "hardly anything happened");
}
