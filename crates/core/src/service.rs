//! One service: facts in, slots out.
//!
//! Writers change the [`Ledger`] one at a time and publish a whole new [`Snapshot`]; requests read the newest
//! snapshot without a lock. Wait and pick are one operation: [`Port::acquire`].

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use crate::budget::RetryBudget;
use crate::endpoint::{PodUid, PortName, ServiceId, Slice, State};
use crate::engine::Wake;
use crate::hold::AcquireError;
use crate::merge::{Ledger, Policy, Push, PushOutcome, PushRefused};
use crate::probe::ProbePlan;
use crate::registry::House;
use crate::slot::Port;
use crate::snapshot::{Feed, PortView, Snapshot, Spread, Subscription};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, lock};
use crate::time::Moment;
use crate::timeline::{Anatomy, ColdStart};

/// What an operator says of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spec {
    /// The ports that requests may ask for.
    pub ports: Vec<PortName>,
    /// How requests are spread over its pods.
    pub spread: Spread,
}

/// One service.
pub struct Service {
    id: ServiceId,
    feed: Arc<Feed>,
    written: Mutex<Written>,
    ports: Mutex<Vec<Arc<Port>>>,
    /// How many requests wait, on all ports.
    holds: Arc<AtomicUsize>,
    retries: Arc<RetryBudget>,
    wake: Mutex<Wake>,
    /// The cold start under way.
    cold: Mutex<Option<Box<ColdStart>>>,
    house: Arc<House>,
}

/// The writers' side. Its lock is what makes writers take turns; no reader takes it.
#[derive(Debug)]
struct Written {
    ledger: Ledger,
    spread: Spread,
    stale: bool,
    /// The addresses by which the house finds this service.
    homes: Vec<SocketAddr>,
}

impl Service {
    pub(crate) fn new(id: ServiceId, policy: Policy, house: Arc<House>) -> Self {
        let written = Written {
            ledger: Ledger::new(policy),
            spread: Spread::default(),
            stale: false,
            homes: Vec::new(),
        };
        Self {
            id,
            feed: Arc::default(),
            written: Mutex::new(written),
            ports: Mutex::default(),
            holds: Arc::default(),
            retries: Arc::default(),
            wake: Mutex::default(),
            cold: Mutex::default(),
            house,
        }
    }

    /// Its name.
    pub fn id(&self) -> &ServiceId {
        &self.id
    }

    /// The newest snapshot. Takes no lock.
    pub fn snapshot(&self) -> impl std::ops::Deref<Target = Arc<Snapshot>> + use<> {
        self.feed.newest()
    }

    /// Hears of every new snapshot of this service, and of no other.
    pub fn subscribe(&self) -> Subscription {
        self.feed.subscribe()
    }

    /// The port `name`, if the service has it. Keep it: it stays the same as long as the service has it.
    pub fn port(&self, name: &PortName) -> Option<Arc<Port>> {
        lock(&self.ports).iter().find(|port| port.name() == name).map(Arc::clone)
    }

    /// How many requests wait.
    pub fn holds(&self) -> usize {
        self.holds.load(Ordering::Relaxed)
    }

    /// Why the last wake came to nothing, if it did and no pod has come since.
    pub fn wake_failure(&self) -> Option<String> {
        lock(&self.wake).failure().map(str::to_owned)
    }

    /// Takes leave for a retry: at most one for five requests.
    pub fn may_retry(&self) -> bool {
        self.retries.spend()
    }

    /// The operator's word. Requests that wait for a port that is no more are turned away.
    pub(crate) fn declare(self: &Arc<Self>, spec: &Spec) {
        let mut ports = lock(&self.ports);
        let removed: Vec<Arc<Port>> =
            ports.extract_if(.., |port| !spec.ports.contains(port.name())).collect();
        for name in &spec.ports {
            if !ports.iter().any(|port| port.name() == name) {
                let (feed, retries) = (Arc::clone(&self.feed), Arc::clone(&self.retries));
                let (home, house) = (Arc::downgrade(self), Arc::clone(&self.house));
                ports.push(Arc::new(Port::new(name.clone(), home, feed, retries, house)));
            }
        }
        drop(ports);
        for port in removed {
            port.close(AcquireError::NoSuchPort);
        }
        let spread = spec.spread;
        self.update(|written, _| {
            let changed = written.spread != spread;
            written.spread = spread;
            (changed, ())
        });
    }

    /// A slice of this service was written.
    pub fn put_slice(&self, name: &str, slice: Slice) {
        self.update(|written, now| (written.ledger.put_slice(name, slice, now), ()));
    }

    /// A slice of this service was deleted.
    pub fn drop_slice(&self, name: &str) {
        self.update(|written, now| (written.ledger.drop_slice(name, now), ()));
    }

    /// These are all the slices of this service.
    pub fn replace_slices<N: AsRef<str>>(&self, slices: impl IntoIterator<Item = (N, Slice)>) {
        self.update(|written, now| (written.ledger.replace_slices(slices, now), ()));
    }

    /// The authoritative source is out of reach, or is back. The last word stands meanwhile.
    pub fn set_stale(&self, stale: bool) {
        self.update(|written, _| (std::mem::replace(&mut written.stale, stale) != stale, ()));
    }

    /// A verified push of a pod of this service.
    pub fn push(&self, push: Push) -> Result<PushOutcome, PushRefused> {
        let (uid, addresses) = (push.pod.uid.clone(), push.addresses());
        let (outcome, arrived) = self.update(|written, now| match written.ledger.push(push, now) {
            Ok((outcome, changed)) => (changed, (Ok(outcome), written.ledger.arrived(&uid))),
            Err(refused) => (false, (Err(refused), None)),
        });
        // Other services of these addresses learn of the newcomer too. Without our own lock: they have theirs.
        if let (Ok(PushOutcome::Accepted), Some(seen)) = (&outcome, arrived) {
            for service in self.house.at(&addresses).filter(|service| service.id != self.id) {
                service.update(|written, now| (written.ledger.displace(&addresses, &uid, seen, now), ()));
            }
        }
        outcome
    }

    /// A pod's probe passed all the checks of its plan.
    pub fn probe_passed(&self, uid: &PodUid, plan: &ProbePlan) {
        self.update(|written, _| (written.ledger.probe_passed(uid, plan), ()));
    }

    /// A pod's probe failed.
    pub fn probe_failed(&self, uid: &PodUid) {
        self.update(|written, _| (written.ledger.probe_failed(uid), ()));
    }

    /// The engine could not wake the service.
    pub fn wake_failed(&self, reason: &str) {
        lock(&self.wake).failed(reason);
    }

    /// What time alone brings: leases end, wakes are repeated.
    pub(crate) fn tick(&self, now: Moment) {
        self.update(|written, now| (written.ledger.expire(now), ()));
        if lock(&self.wake).again(now, self.holds() > 0) {
            self.send_wake(now);
        }
        self.reschedule();
    }

    /// Turns away everybody who waits, now and later.
    pub(crate) fn close(&self, why: AcquireError) {
        let ports: Vec<Arc<Port>> = lock(&self.ports).clone();
        for port in ports {
            port.close(why);
        }
        if why == AcquireError::ServiceGone {
            let homes = std::mem::take(&mut lock(&self.written).homes);
            self.house.move_home(&self.id, &homes, &[]);
            self.house.timers.set(&self.id, None);
        }
    }

    /// One change by one writer: ledger, then snapshot, then whoever waits for it.
    fn update<R>(&self, change: impl FnOnce(&mut Written, Moment) -> (bool, R)) -> R {
        let now = self.house.clock.now();
        let mut written = lock(&self.written);
        let (changed, result) = change(&mut written, now);
        if !changed {
            self.reschedule_locked(&written);
            return result;
        }
        let moved = written.ledger.moved();
        let snapshot = Snapshot {
            generation: self.feed.newest().generation + 1,
            ports: written.ledger.view(),
            spread: written.spread,
            stale: written.stale,
        };
        let (routable, seen) =
            (snapshot.routable(), snapshot.ports.iter().any(|port| port.best() > State::Gone));
        if seen {
            self.stamp(&snapshot, now);
        }
        // Published under the writers' lock, or two writers could publish in the wrong order.
        self.feed.publish(snapshot);
        if moved {
            let mut homes: Vec<SocketAddr> = written.ledger.addresses().collect();
            homes.sort_unstable();
            homes.dedup();
            self.house.move_home(&self.id, &written.homes, &homes);
            written.homes = homes;
        }
        if routable {
            lock(&self.wake).satisfied();
        }
        self.reschedule_locked(&written);
        drop(written);
        if routable {
            let ports: Vec<Arc<Port>> = lock(&self.ports).clone();
            for port in ports {
                port.hand_out();
            }
        }
        result
    }

    /// Tells the house when time alone will change something here.
    fn reschedule(&self) {
        self.reschedule_locked(&lock(&self.written));
    }

    fn reschedule_locked(&self, written: &Written) {
        let lease = written.ledger.next_expiry();
        let wake = lock(&self.wake).due();
        // Still under the writers' lock: of two threads that set the timer, the later must know more.
        self.house.timers.set(&self.id, lease.into_iter().chain(wake).min());
    }

    /// Somebody found no `Ready` endpoint.
    pub(crate) fn want_wake(&self) {
        let now = self.house.clock.now();
        if lock(&self.wake).want(now) {
            self.send_wake(now);
            self.reschedule();
        }
    }

    fn send_wake(&self, now: Moment) {
        // Beyond the budget nothing is sent now; the repetition tries again while somebody waits.
        if !lock(&self.house.wakes).take(self.id.namespace(), now) {
            return;
        }
        if let Some(cold) = lock(&self.cold).as_mut() {
            cold.wake_sent.get_or_insert(now);
        }
        self.house.engine.wake(&self.id);
    }

    /// A request begins to wait because nothing is routable.
    pub(crate) fn cold_start(&self, now: Moment) {
        lock(&self.cold).get_or_insert_with(|| Box::new(ColdStart::new(self.id.clone(), now)));
    }

    /// The cold start under way, for the first request that it ends for.
    pub(crate) fn take_cold_start(&self) -> Option<Anatomy> {
        let cold_start = lock(&self.cold).take()?;
        Some(Anatomy::new(cold_start, Arc::clone(&self.house.cold_starts)))
    }

    /// Somebody left without a slot. If it was the last, the cold start is over.
    pub(crate) fn left(&self) {
        if self.holds() == 0
            && let Some(anatomy) = self.take_cold_start()
        {
            anatomy.abandoned();
        }
    }

    fn stamp(&self, snapshot: &Snapshot, now: Moment) {
        let mut cold = lock(&self.cold);
        let Some(cold) = cold.as_mut() else { return };
        cold.pod_seen.get_or_insert(now);
        let endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
        if cold.pod_ready.is_none()
            && let Some(ready) =
                endpoints.filter(|one| one.state >= State::Draining).max_by_key(|one| one.state)
        {
            cold.pod_ready = Some(now);
            cold.ready_by = Some(ready.source);
        }
    }

    pub(crate) fn hold_count(&self) -> &Arc<AtomicUsize> {
        &self.holds
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("id", &self.id).field("holds", &self.holds()).finish_non_exhaustive()
    }
}

/// Where a port finds its service: nowhere, once the service is gone.
pub(crate) type Home = Weak<Service>;
