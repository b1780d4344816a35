//! Registrations, slices, changes of capacity, requests and shutdowns at once, on real threads: everything always progresses
//! and ends.
//!
//! Runs for `ROUSE_STRESS_SECONDS` (default 3), in rounds: each ends with a shutdown in the middle of all the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rouse_core::budget::Rate;
use rouse_core::hold::AcquireError;
use rouse_core::service::{Port, Service, ServiceSpec, SlotRequest};
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_net::auth::{ClaimGrant, PushMode};
use rouse_register::server::RegistrationRates;
use rouse_register::wire::RegistrationBody;
use rouse_testkit::fakes::{READY, STARTING, http, ip, slice};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::harness::{Scene, body};

/// Far longer than anything takes here.
const GENEROUS: Duration = Duration::from_mins(1);
const ROUND: Duration = Duration::from_secs(3);
const PODS: u32 = 8;
/// The pods that slices list too.
const LISTED: u32 = 4;

/// What has happened so far, by kind.
#[derive(Default)]
struct Progress {
    registrations: AtomicU64,
    slices: AtomicU64,
    capacities: AtomicU64,
    requests: AtomicU64,
    ticks: AtomicU64,
}

impl Progress {
    fn all(&self) -> [u64; 5] {
        [&self.registrations, &self.slices, &self.capacities, &self.requests, &self.ticks]
            .map(|count| count.load(Ordering::Relaxed))
    }
}

/// One round: a scene and what runs on it.
struct Round {
    scene: Scene,
    service: Arc<Service>,
    port: Arc<Port>,
    progress: Arc<Progress>,
    stop: AtomicBool,
}

impl Round {
    fn new(progress: &Arc<Progress>) -> Arc<Self> {
        let most = Rate { per_second: u32::MAX, burst: u32::MAX };
        let rates =
            RegistrationRates { total: most, source: most, failures: most, ..RegistrationRates::default() };
        let scene = Scene::with(PushMode::On, rates);
        for n in 0..PODS {
            scene.grant(&format!("uid-{n}"), Ok(ClaimGrant::default()));
        }
        let (service, port) = scene.bench.service("cart", ConcurrencyLimits::new(0, 2));
        let progress = Arc::clone(progress);
        Arc::new(Self { scene, service, port, progress, stop: AtomicBool::new(false) })
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// A pod that registers all the time. Each registration is sent twice at once.
    async fn pod(self: Arc<Self>, n: u32) {
        let address = ip(n).to_string();
        let mut sequence = 0;
        while self.goes_on() {
            sequence += 1;
            let event = if sequence % 3 == 0 { "not-ready" } else { "ready" };
            let body = RegistrationBody {
                pod: format!("pod-{n}"),
                uid: format!("uid-{n}"),
                ips: vec![ip(n)],
                ..body(sequence, event)
            };
            let text = serde_json::to_vec(&body).unwrap();
            let send = || async {
                let reply = self.scene.send(&address, Some(&self.scene.signed(&text)), &text).await;
                assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
            };
            tokio::join!(send(), send());
            self.progress.registrations.fetch_add(2, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    }

    async fn slices(self: Arc<Self>) {
        let mut turn = 0_u32;
        while self.goes_on() {
            turn += 1;
            let listed = (0..LISTED).filter(|n| !(turn + n).is_multiple_of(5));
            let conditions = |n: u32| if (turn + n).is_multiple_of(3) { STARTING } else { READY };
            self.service.put_slice("a", slice(listed.map(|n| (n, conditions(n)))));
            self.progress.slices.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    }

    async fn capacities(self: Arc<Self>) {
        let mut limit = 0;
        while self.goes_on() {
            limit = (limit + 1) % 4;
            let spec = ServiceSpec { ports: vec![http()], concurrency: ConcurrencyLimits::new(0, limit) };
            self.scene.bench.registry.declare(self.service.id(), &spec);
            self.progress.capacities.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    }

    /// Leases end, and timers run.
    async fn time(self: Arc<Self>) {
        while self.goes_on() {
            self.scene.bench.clock.advance(Duration::from_secs(7));
            self.scene.bench.registry.tick();
            self.progress.ticks.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    }

    async fn requests(self: Arc<Self>, seed: u64) {
        let mut seed = seed;
        loop {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let wait = tokio::time::sleep_until(Instant::now() + GENEROUS);
            match self.port.acquire(SlotRequest { seed, ..SlotRequest::default() }, wait).await {
                Ok(mut slot) => {
                    slot.connected();
                    tokio::task::yield_now().await;
                    slot.answered();
                    self.progress.requests.fetch_add(1, Ordering::Relaxed);
                }
                Err(AcquireError::ShuttingDown) => return,
                Err(other) => panic!("a request ended with {other}"),
            }
            if !self.goes_on() {
                return;
            }
        }
    }

    /// Runs everything, shuts down in the middle, and waits for the end of all tasks.
    async fn run(self: Arc<Self>, length: Duration) {
        let mut tasks = JoinSet::new();
        for n in 0..PODS {
            tasks.spawn(Arc::clone(&self).pod(n));
        }
        for seed in 0..16 {
            tasks.spawn(Arc::clone(&self).requests(seed));
        }
        tasks.spawn(Arc::clone(&self).slices());
        tasks.spawn(Arc::clone(&self).capacities());
        tasks.spawn(Arc::clone(&self).time());
        // A task that ends early has failed.
        if let Ok(Some(ended)) = timeout(length, tasks.join_next()).await {
            panic!("a task ended before the shutdown: {ended:?}");
        }
        self.scene.bench.registry.shut_down();
        self.stop.store(true, Ordering::Relaxed);
        let all = async {
            while let Some(ended) = tasks.join_next().await {
                ended.unwrap();
            }
        };
        timeout(GENEROUS, all).await.expect("a task hangs");
        assert_eq!((self.service.in_flight(), self.scene.bench.registry.holds()), (0, 0));
    }
}

#[test]
fn registrations_slices_capacities_requests_and_shutdowns_at_once_always_progress() {
    let seconds = std::env::var("ROUSE_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    let progress = Arc::<Progress>::default();
    runtime.block_on(async {
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            let before = progress.all();
            let left = end.saturating_duration_since(Instant::now());
            Round::new(&progress).run(left.min(ROUND)).await;
            let after = progress.all();
            assert!(before.iter().zip(after).all(|(before, after)| *before < after), "{before:?} {after:?}");
        }
    });
    let [registrations, slices, capacities, requests, _] = progress.all();
    println!(
        "{seconds} s: {registrations} registrations, {slices} slices, {capacities} limits, {requests} requests"
    );
}
