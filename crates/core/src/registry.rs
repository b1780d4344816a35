//! All services, and what they share: clock, engine, budgets, timers.

use std::cmp::Ordering::{Greater, Less};
use std::collections::{BTreeSet, HashMap};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use crate::budget::{WakeBudget, WakeRates};
use crate::endpoint::ServiceId;
use crate::engine::Engine;
use crate::hold::{AcquireError, Bounds, Budget};
use crate::merge::Policy;
use crate::service::{Service, Spec};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, lock};
use crate::time::{Clock, Moment};
use crate::timeline::ColdStarts;

/// What an operator may set for all services together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How many requests may wait.
    pub holds: Bounds,
    /// How often services may be woken.
    pub wakes: WakeRates,
    /// How many cold starts are remembered.
    pub cold_starts: usize,
    /// The merge's policy for services that do not say otherwise.
    pub policy: Policy,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            holds: Bounds::default(),
            wakes: WakeRates::default(),
            cold_starts: 1000,
            policy: Policy::default(),
        }
    }
}

/// All services.
pub struct Registry {
    services: Mutex<HashMap<ServiceId, Arc<Service>>>,
    policy: Policy,
    closed: AtomicBool,
    shared: Arc<Shared>,
}

/// What the services share.
pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) holds: Budget,
    pub(crate) tickets: AtomicU64,
    pub(crate) wakes: Mutex<WakeBudget>,
    pub(crate) timers: Timers,
    pub(crate) cold_starts: Arc<ColdStarts>,
    /// Which services are at which address, so that a pod that takes an address over does so in all of them.
    addresses: Mutex<BTreeSet<(SocketAddr, ServiceId)>>,
    /// Where to find a service by its name.
    registry: Mutex<Weak<Registry>>,
}

impl Registry {
    /// No services yet.
    pub fn new(settings: Settings, clock: Arc<dyn Clock>, engine: Arc<dyn Engine>) -> Arc<Self> {
        let shared = Arc::new(Shared {
            holds: Budget::new(settings.holds),
            tickets: AtomicU64::new(0),
            wakes: Mutex::new(WakeBudget::new(settings.wakes, clock.now())),
            timers: Timers::default(),
            cold_starts: Arc::new(ColdStarts::new(settings.cold_starts)),
            addresses: Mutex::default(),
            registry: Mutex::default(),
            clock,
            engine,
        });
        let registry = Arc::new(Self {
            services: Mutex::default(),
            policy: settings.policy,
            closed: AtomicBool::new(false),
            shared: Arc::clone(&shared),
        });
        *lock(&shared.registry) = Arc::downgrade(&registry);
        registry
    }

    /// The service `id`, if it is known.
    pub fn get(&self, id: &ServiceId) -> Option<Arc<Service>> {
        lock(&self.services).get(id).map(Arc::clone)
    }

    /// The service `id`, known from now on. Slices may come before anybody declared the service.
    pub fn service(&self, id: &ServiceId) -> Arc<Service> {
        let mut services = lock(&self.services);
        if let Some(service) = services.get(id) {
            return Arc::clone(service);
        }
        let service = Arc::new(Service::new(id.clone(), self.policy.clone(), Arc::clone(&self.shared)));
        services.insert(id.clone(), Arc::clone(&service));
        service
    }

    /// The operator's word on a service.
    pub fn declare(&self, id: &ServiceId, spec: &Spec) -> Arc<Service> {
        let service = self.service(id);
        service.declare(spec);
        if self.closed.load(Ordering::SeqCst) {
            service.close(&AcquireError::ShuttingDown);
        }
        service
    }

    /// The service was deleted: whoever waits for it is told so.
    pub fn remove(&self, id: &ServiceId) {
        let service = lock(&self.services).remove(id);
        if let Some(service) = service {
            service.remove();
        }
    }

    /// All services, in no order.
    pub fn services(&self) -> Vec<Arc<Service>> {
        lock(&self.services).values().map(Arc::clone).collect()
    }

    /// The last cold starts.
    pub fn cold_starts(&self) -> &ColdStarts {
        &self.shared.cold_starts
    }

    /// How many requests wait, in all services.
    pub fn holds(&self) -> usize {
        self.shared.holds.holds()
    }

    /// How many bytes they keep in memory.
    pub fn held_bytes(&self) -> usize {
        self.shared.holds.bytes()
    }

    /// The drain is over: whoever still waits is told so, and nobody may begin to.
    pub fn shut_down(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for service in self.services() {
            service.close(&AcquireError::ShuttingDown);
        }
    }

    /// Does what is due by now. [`Registry::drive`] calls it in time.
    pub fn tick(&self) {
        let now = self.shared.clock.now();
        for id in self.shared.timers.take_due(now) {
            if let Some(service) = self.get(&id) {
                service.tick(now);
            }
        }
    }

    /// When [`Registry::tick`] has something to do.
    pub fn due(&self) -> Option<Moment> {
        self.shared.timers.earliest()
    }

    /// Does what time brings, for ever: leases end, wakes are repeated. `sleep_until` is the caller's timer.
    pub async fn drive<S: Future<Output = ()>>(&self, mut sleep_until: impl FnMut(Moment) -> S) {
        loop {
            match self.due() {
                None => self.shared.timers.earlier_than(None).await,
                Some(due) => {
                    let mut sleep = pin!(sleep_until(due));
                    let mut earlier = pin!(self.shared.timers.earlier_than(Some(due)));
                    poll_fn(|context| match earlier.as_mut().poll(context) {
                        Poll::Ready(()) => Poll::Ready(()),
                        Poll::Pending => sleep.as_mut().poll(context),
                    })
                    .await;
                }
            }
            self.tick();
        }
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("services", &lock(&self.services).len()).finish_non_exhaustive()
    }
}

impl Shared {
    /// Takes leave to wake one more service.
    pub(crate) fn may_wake(&self, id: &ServiceId, now: Moment) -> bool {
        lock(&self.wakes).take(id.namespace(), now)
    }

    /// A service left some addresses and came to others. Both lists are sorted and hold each address once.
    pub(crate) fn move_addresses(&self, id: &ServiceId, from: &[SocketAddr], to: &[SocketAddr]) {
        let mut addresses = lock(&self.addresses);
        let (mut from, mut to) = (from.iter().peekable(), to.iter().peekable());
        loop {
            let order = match (from.peek(), to.peek()) {
                (None, None) => break,
                (Some(_), None) => Less,
                (None, Some(_)) => Greater,
                (Some(left), Some(came)) => left.cmp(came),
            };
            let left = from.next_if(|_| order.is_le());
            let came = to.next_if(|_| order.is_ge());
            match (left, came) {
                (Some(&left), None) => addresses.remove(&(left, id.clone())),
                (None, Some(&came)) => addresses.insert((came, id.clone())),
                _ => false,
            };
        }
    }

    /// The services at any of `addresses`.
    pub(crate) fn at(&self, addresses: &[SocketAddr]) -> impl Iterator<Item = Arc<Service>> + use<> {
        let known = lock(&self.addresses);
        let mut ids = BTreeSet::new();
        for &address in addresses {
            let from = (address, ServiceId::first());
            let here = known.range(from..).take_while(|(at, _)| *at == address);
            ids.extend(here.map(|(_, id)| id.clone()));
        }
        drop(known);
        let registry = lock(&self.registry).upgrade();
        ids.into_iter().filter_map(move |id| registry.as_ref()?.get(&id))
    }
}

/// When each service has something to do by time alone.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    inner: Mutex<Due>,
}

#[derive(Debug, Default)]
struct Due {
    by_time: BTreeSet<(Moment, ServiceId)>,
    by_service: HashMap<ServiceId, Moment>,
    waker: Option<Waker>,
}

impl Timers {
    /// The service is due at `due`, or never.
    pub(crate) fn set(&self, id: &ServiceId, due: Option<Moment>) {
        let mut inner = lock(&self.inner);
        if inner.by_service.get(id).copied() == due {
            return;
        }
        if let Some(before) = inner.by_service.remove(id) {
            inner.by_time.remove(&(before, id.clone()));
        }
        if let Some(due) = due {
            inner.by_service.insert(id.clone(), due);
            inner.by_time.insert((due, id.clone()));
        }
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn earliest(&self) -> Option<Moment> {
        lock(&self.inner).by_time.first().map(|(due, _)| *due)
    }

    fn take_due(&self, now: Moment) -> Vec<ServiceId> {
        let mut inner = lock(&self.inner);
        let mut due = Vec::new();
        while let Some((at, _)) = inner.by_time.first()
            && *at <= now
            && let Some((_, id)) = inner.by_time.pop_first()
        {
            inner.by_service.remove(&id);
            due.push(id);
        }
        due
    }

    /// Waits until something is due earlier than `than`.
    async fn earlier_than(&self, than: Option<Moment>) {
        poll_fn(|context| self.poll_earlier(than, context)).await;
    }

    fn poll_earlier(&self, than: Option<Moment>, context: &Context<'_>) -> Poll<()> {
        let mut inner = lock(&self.inner);
        let earliest = inner.by_time.first().map(|(due, _)| *due);
        let earlier = earliest.is_some_and(|earliest| than.is_none_or(|than| earliest < than));
        if earlier {
            return Poll::Ready(());
        }
        inner.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
