//! Checks during a flood: other clients are served, `/livez` answers in time, and memory stays bounded.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rouse_e2e::client::session;
use rouse_e2e::proc::Memory;
use rouse_e2e::rouse::Rouse;
use rouse_e2e::target::Target;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};

use crate::number;

/// The gateway's memory, in KiB.
const MOST_MEMORY: u64 = 256 * 1024;
/// How long a request of another client may take, on a machine that is busy with the flood.
const SERVED: Duration = Duration::from_secs(30);

/// Sends requests as another client and as a kubelet until it is stopped.
pub(crate) struct Watch {
    memory: Memory,
    over: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    served: Arc<AtomicU64>,
    slowest: Arc<AtomicU64>,
    /// Tasks that still send requests.
    alive: Arc<AtomicU64>,
}

/// Another client, and a kubelet.
const WATCHERS: u64 = 2;

/// Counts a task until it ends, also by a panic.
struct Alive(Arc<AtomicU64>);

impl Alive {
    fn one_of(all: &Arc<AtomicU64>) -> Self {
        all.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(all))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Watch {
    /// Starts; the other client sends its requests to `target`.
    pub(crate) async fn begin(rouse: &Rouse, target: Target) -> Self {
        let (over, served, slowest) = (Arc::<AtomicBool>::default(), Arc::default(), Arc::default());
        let (mut tasks, alive) = (JoinSet::new(), Arc::default());
        let (other, kubelet) = (Alive::one_of(&alive), Alive::one_of(&alive));
        let asking = others(target, Arc::clone(&over), Arc::clone(&served));
        let probing = livez(rouse.admin.address(), Arc::clone(&over), Arc::clone(&slowest));
        tasks.spawn(async move {
            let _alive = other;
            asking.await;
        });
        tasks.spawn(async move {
            let _alive = kubelet;
            probing.await;
        });
        let watch = Self { memory: Memory::watch(rouse.pid), over, tasks, served, slowest, alive };
        watch.goes_on().await;
        watch
    }

    /// Waits until the other client has been served again.
    pub(crate) async fn goes_on(&self) {
        let before = self.served.load(Ordering::SeqCst);
        rouse_e2e::wait::eventually("another client to be served", async || {
            let served = self.served.load(Ordering::SeqCst) > before + 5;
            // A monitoring task has panicked; its message is printed above.
            assert_eq!(self.alive.load(Ordering::SeqCst), WATCHERS, "a client was not served");
            served.then_some(())
        })
        .await;
    }

    /// Stops, and asserts that all limits were kept.
    pub(crate) async fn end(mut self, flood: &str) {
        self.goes_on().await;
        self.over.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        let (peak, served) = (self.memory.peak(), self.served.load(Ordering::SeqCst));
        let slowest = Duration::from_micros(self.slowest.load(Ordering::SeqCst));
        eprintln!("{flood}: {} MiB at most, {served} served, /livez within {slowest:?}", peak / 1024);
        assert!(peak < MOST_MEMORY, "{flood}: the gateway took {} MiB", peak / 1024);
        let allowed = Duration::from_secs(number("ROUSE_SIEGE_LIVEZ_SECONDS", 5));
        assert!(slowest < allowed, "{flood}: /livez took {slowest:?}, over {allowed:?}");
    }
}

fn pace(millis: u64) -> Interval {
    let mut pace = interval(Duration::from_millis(millis));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
}

async fn others(target: Target, over: Arc<AtomicBool>, served: Arc<AtomicU64>) {
    let mut pace = pace(20);
    while !over.load(Ordering::SeqCst) {
        let answer = timeout(SERVED, session::get(&target, "/")).await.expect("another client waits");
        assert_eq!(answer.status, 200, "another client got {answer:?}");
        served.fetch_add(1, Ordering::SeqCst);
        pace.tick().await;
    }
}

async fn livez(admin: SocketAddr, over: Arc<AtomicBool>, slowest: Arc<AtomicU64>) {
    let target = Target { address: admin, host: admin.to_string(), gateway: None };
    let mut pace = pace(50);
    while !over.load(Ordering::SeqCst) {
        let began = Instant::now();
        let answer = timeout(SERVED, session::get(&target, "/livez")).await.expect("/livez does not answer");
        assert_eq!(answer.status, 200, "/livez answered {answer:?}");
        slowest.fetch_max(u64::try_from(began.elapsed().as_micros()).unwrap(), Ordering::SeqCst);
        pace.tick().await;
    }
}
