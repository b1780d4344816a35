//! The registry: all services by name, and the loop that drives their timers.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::budget::{WakeBudget, WakeRates};
use crate::cold_start::ColdStartLog;
use crate::endpoint::ServiceId;
use crate::engine::Engine;
use crate::hold::{AcquireError, Budget, HoldLimits};
use crate::load_meter::{LoadFeed, LoadKey, LoadMeter};
use crate::merge::MergePolicy;
use crate::service::{Service, ServiceSpec, Services, Shared, Timers};
use crate::service_changes::ServiceChangeSubscription;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, lock};
use crate::time::{Clock, Moment};

/// The settings that apply to all services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrySettings {
    /// The limits on held requests.
    pub holds: HoldLimits,
    /// The rate limits on wakes.
    pub wakes: WakeRates,
    /// How many finished cold starts are kept.
    pub cold_starts: usize,
    /// The merge policy of every service.
    pub policy: MergePolicy,
}

impl Default for RegistrySettings {
    fn default() -> Self {
        Self {
            holds: HoldLimits::default(),
            wakes: WakeRates::default(),
            cold_starts: 1000,
            policy: MergePolicy::default(),
        }
    }
}

/// All services.
pub struct Registry {
    services: Arc<Services>,
    policy: MergePolicy,
    closed: AtomicBool,
    shared: Arc<Shared>,
}

impl Registry {
    /// A registry without services.
    pub fn new(settings: RegistrySettings, clock: Arc<dyn Clock>, engine: Arc<dyn Engine>) -> Arc<Self> {
        let services = Arc::new(Services::default());
        let shared = Shared {
            holds: Budget::new(settings.holds),
            tickets: AtomicU64::new(0),
            wakes: Mutex::new(WakeBudget::new(settings.wakes, clock.now())),
            timers: Timers::default(),
            cold_starts: Arc::new(ColdStartLog::new(settings.cold_starts)),
            loads: Arc::default(),
            changes: Arc::default(),
            addresses: Mutex::default(),
            services: Arc::downgrade(&services),
            clock,
            engine,
        };
        let closed = AtomicBool::new(false);
        Arc::new(Self { services, policy: settings.policy, closed, shared: Arc::new(shared) })
    }

    /// The service `id`, if it is known.
    pub fn get(&self, id: &ServiceId) -> Option<Arc<Service>> {
        lock(&self.services).get(id).map(Arc::clone)
    }

    /// The service `id`. Creates it if it is new: slices may arrive before the service is declared.
    pub fn service(&self, id: &ServiceId) -> Arc<Service> {
        let mut services = lock(&self.services);
        if let Some(service) = services.get(id) {
            return Arc::clone(service);
        }
        let service = Arc::new(Service::new(id.clone(), self.policy.clone(), Arc::clone(&self.shared)));
        services.insert(id.clone(), Arc::clone(&service));
        service
    }

    /// Applies the operator's configuration to a service. Creates the service if it is new.
    pub fn declare(&self, id: &ServiceId, spec: &ServiceSpec) -> Arc<Service> {
        let service = self.service(id);
        service.declare(spec);
        if self.closed.load(Ordering::SeqCst) {
            service.close(&AcquireError::ShuttingDown);
        }
        service
    }

    /// Removes a deleted service, and ends the requests that wait for it with an error.
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

    /// Subscribes to new snapshots of all services.
    pub fn subscribe(&self) -> ServiceChangeSubscription {
        self.shared.changes.subscribe(|| lock(&self.services).keys().cloned().collect())
    }

    /// The most recent cold starts.
    pub fn cold_starts(&self) -> &ColdStartLog {
        &self.shared.cold_starts
    }

    /// The meters that have load.
    pub fn loads(&self) -> &Arc<LoadFeed> {
        &self.shared.loads
    }

    /// A new meter for a route. The caller keeps it while the route exists: another one would begin at zero.
    pub fn route_meter(&self, name: Arc<str>) -> Arc<LoadMeter> {
        self.shared.meter(LoadKey::Route(name), Arc::default())
    }

    /// Takes one wake from the budget, for a start that no request asks for. Returns false if the budget is used up.
    pub fn take_wake(&self, id: &ServiceId) -> bool {
        self.shared.may_wake(id, self.shared.clock.now())
    }

    /// How many requests are held, in all services.
    pub fn holds(&self) -> usize {
        self.shared.holds.holds()
    }

    /// How many bytes the held requests keep in memory.
    pub fn held_bytes(&self) -> usize {
        self.shared.holds.bytes()
    }

    /// Ends all held requests with an error and refuses new ones. Called at the end of the drain.
    pub fn shut_down(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for service in self.services() {
            service.close(&AcquireError::ShuttingDown);
        }
    }

    /// Runs every timer that is due. [`Registry::drive`] calls it.
    pub fn tick(&self) {
        let now = self.shared.clock.now();
        for id in self.shared.timers.take_due(now) {
            if let Some(service) = self.get(&id) {
                service.tick(now);
            }
        }
    }

    /// When the next timer is due.
    pub fn due(&self) -> Option<Moment> {
        self.shared.timers.earliest()
    }

    /// Runs the timers of all services for ever: expires leases, repeats wakes, ends ejections. `sleep_until` is the caller's
    /// timer.
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
