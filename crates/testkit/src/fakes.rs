//! Fakes for the core: a clock that tests move, an engine that counts wakes, and a registry with both.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rouse_core::endpoint::{
    Conditions, PodRef, PodUid, PortName, ServiceId, Slice, SliceEndpoint, SlicePort,
};
use rouse_core::engine::Engine;
use rouse_core::registry::{Registry, RegistrySettings};
use rouse_core::service::{Port, Service, ServiceSpec};
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_core::time::{Clock, Moment};

/// A clock that stands still until a test moves it.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// An engine that starts nothing and counts the wakes.
#[derive(Debug, Default)]
pub struct CountingEngine {
    total: AtomicUsize,
    each: Mutex<HashMap<ServiceId, usize>>,
}

impl CountingEngine {
    /// All wakes so far.
    pub fn wakes(&self) -> usize {
        self.total.load(Ordering::SeqCst)
    }

    /// The wakes of one service.
    pub fn wakes_of(&self, service: &ServiceId) -> usize {
        self.each.lock().unwrap_or_else(PoisonError::into_inner).get(service).copied().unwrap_or(0)
    }
}

impl Engine for CountingEngine {
    fn wake(&self, service: &ServiceId) {
        self.total.fetch_add(1, Ordering::SeqCst);
        *self.each.lock().unwrap_or_else(PoisonError::into_inner).entry(service.clone()).or_default() += 1;
    }
}

/// A registry with its fakes.
#[derive(Debug)]
pub struct Bench {
    /// The thing under test.
    pub registry: Arc<Registry>,
    /// Its clock.
    pub clock: Arc<ManualClock>,
    /// Its engine.
    pub engine: Arc<CountingEngine>,
}

impl Bench {
    /// With default settings.
    pub fn new() -> Self {
        Self::with(RegistrySettings::default())
    }

    /// With these settings.
    pub fn with(settings: RegistrySettings) -> Self {
        let (clock, engine) = (Arc::<ManualClock>::default(), Arc::<CountingEngine>::default());
        let registry = Registry::new(settings, Arc::clone(&clock) as _, Arc::clone(&engine) as _);
        Self { registry, clock, engine }
    }

    /// A declared service `shop/<name>` with one port, `http`.
    pub fn service(&self, name: &str, concurrency: ConcurrencyLimits) -> (Arc<Service>, Arc<Port>) {
        let id = ServiceId::new("shop", name).unwrap_or_else(|error| unreachable!("{error}"));
        let spec = ServiceSpec { ports: vec![http()], concurrency };
        let service = self.registry.declare(&id, &spec);
        let port = service.port(&http()).unwrap_or_else(|| unreachable!("it was just declared"));
        (service, port)
    }
}

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}

/// The port called `http`.
pub fn http() -> PortName {
    PortName::new("http")
}

/// Ready, in the conditions of a slice.
pub const READY: Conditions = Conditions::new(true, true, false);
/// Terminating but serving.
pub const DRAINING: Conditions = Conditions::new(false, true, true);
/// Not ready yet.
pub const STARTING: Conditions = Conditions::new(false, false, false);

/// The pod number `n`.
pub fn pod(n: u32) -> PodRef {
    PodRef { uid: PodUid::new(&format!("uid-{n}")), name: format!("shop/pod-{n}").into() }
}

/// The address of pod number `n`.
pub fn ip(n: u32) -> IpAddr {
    IpAddr::from((0x0a00_0000 + n).to_be_bytes())
}

/// A slice of pods, each at its own address, on port `http` 8080.
pub fn slice(pods: impl IntoIterator<Item = (u32, Conditions)>) -> Slice {
    let endpoint = |(n, conditions)| SliceEndpoint { ip: ip(n), conditions, pod: Some(pod(n)) };
    Slice {
        ports: vec![SlicePort { name: http(), number: 8080 }],
        endpoints: pods.into_iter().map(endpoint).collect(),
    }
}

/// A slice of `count` ready pods.
pub fn ready_slice(count: u32) -> Slice {
    slice((0..count).map(|n| (n, READY)))
}
