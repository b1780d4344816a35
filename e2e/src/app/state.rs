//! State of the test app that its requests share: counters, readiness, and the gate that tests open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::settings::Settings;

/// State that all requests share.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    /// Owns the tasks that feed streams and upgraded connections.
    pub(crate) tasks: TaskTracker,
    /// One permit for each `/next`.
    pub(crate) gate: Semaphore,
    /// Whether `/healthz` answers 200.
    pub(crate) ready: AtomicBool,
    /// How many requests wait at the gate.
    waiting: AtomicUsize,
    connections: AtomicUsize,
    requests: AtomicUsize,
    probes: AtomicUsize,
    order: AtomicUsize,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
    over_limit: AtomicUsize,
    cancelled: AtomicUsize,
    sent: AtomicU64,
    received: AtomicU64,
}

impl State {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            ready: AtomicBool::new(settings.ready),
            settings,
            tasks: TaskTracker::new(),
            gate: Semaphore::new(0),
            waiting: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            probes: AtomicUsize::new(0),
            order: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            most_in_flight: AtomicUsize::new(0),
            over_limit: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    /// Counts a connection. Returns its number, from 1.
    pub(crate) fn connected(&self) -> usize {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts a request. It is in flight until the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> InFlight {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_in_flight.fetch_max(now, Ordering::Relaxed);
        if self.settings.die_above.is_some_and(|most| now > most) {
            die("more requests at once than it bears");
        }
        let over_limit = self.settings.limit.is_some_and(|most| now > most);
        if over_limit {
            self.over_limit.fetch_add(1, Ordering::Relaxed);
        }
        InFlight { state: Arc::clone(self), over_limit }
    }

    /// Counts a request for `/healthz`.
    pub(crate) fn probed(&self) {
        self.probes.fetch_add(1, Ordering::Release);
    }

    /// How many requests were not probes.
    pub(crate) fn asked(&self) -> usize {
        // Reads the probes first: a probe is counted after its request, so the difference is never negative.
        let probes = self.probes.load(Ordering::Acquire);
        self.requests.load(Ordering::Relaxed).saturating_sub(probes)
    }

    /// Waits for a `/next`.
    pub(crate) async fn next(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if let Ok(permit) = self.gate.acquire().await {
            permit.forget();
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// The place in the order of arrival, from 1.
    pub(crate) fn arrival(&self) -> usize {
        self.order.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> Value {
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        json!({
            "pid": std::process::id(),
            "uid": self.settings.uid,
            "connections": count(&self.connections),
            "requests": count(&self.requests),
            "in_flight": count(&self.in_flight),
            "most_in_flight": count(&self.most_in_flight),
            "over_limit": count(&self.over_limit),
            "waiting": count(&self.waiting),
            "cancelled": count(&self.cancelled),
            "sent": self.sent.load(Ordering::Relaxed),
            "received": self.received.load(Ordering::Relaxed),
        })
    }
}

/// A request in flight: until its response is made, or, for a streamed body, until the body ends.
#[derive(Debug)]
pub(crate) struct InFlight {
    state: Arc<State>,
    pub(crate) over_limit: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.state.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends the process as a crash does: without finishing requests or closing connections in order.
pub(crate) fn die(why: &str) -> ! {
    eprintln!("rouse-test-app dies: {why}");
    std::process::exit(1)
}
