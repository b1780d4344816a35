//! One service: facts in, slots out.
//!
//! Writers change the [`Ledger`] one at a time and publish a whole new [`Snapshot`]; requests read the newest
//! snapshot without a lock. Wait and pick are one operation: [`Port::acquire`].

mod port;
mod shared;
mod slot;
mod timers;
mod wake;
mod wake_schedule;

use std::net::SocketAddr;
use std::sync::Arc;

pub use port::{Port, SlotRequest};
pub(crate) use shared::{Services, Shared};
pub use slot::{Retry, Slot};
pub(crate) use timers::Timers;
use wake_schedule::Wake;

use crate::budget::RetryBudget;
use crate::endpoint::{Endpoint, EndpointLoad, PodUid, PortName, ServiceId, Slice, SliceEndpoint, State};
use crate::hold::AcquireError;
use crate::merge::{Ledger, MergePolicy, Push, PushOutcome, PushRefused};
use crate::probe::ProbePlan;
use crate::snapshot::{PortView, Snapshot, SnapshotFeed, Spread, Subscription};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, fence, lock};
use crate::time::Moment;
use crate::timeline::ColdStart;

/// What an operator configures for a service.
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
    feed: Arc<SnapshotFeed>,
    written: Mutex<Written>,
    ports: Mutex<Vec<Arc<Port>>>,
    /// How many requests wait, on all ports.
    holds: Arc<AtomicUsize>,
    retries: Arc<RetryBudget>,
    asked: Arc<AtomicU64>,
    wake: Mutex<Wake>,
    /// The cold start under way.
    cold: Mutex<Option<Box<ColdStart>>>,
    shared: Arc<Shared>,
}

/// The writers' side. Its lock is what makes writers take turns; no reader takes it.
#[derive(Debug)]
struct Written {
    ledger: Ledger,
    spread: Spread,
    stale: bool,
    /// The registry has let go of it; its name may belong to a successor by now.
    gone: bool,
    /// The addresses by which the registry finds this service.
    addresses: Vec<SocketAddr>,
}

impl Service {
    pub(crate) fn new(id: ServiceId, policy: MergePolicy, shared: Arc<Shared>) -> Self {
        let written = Written {
            ledger: Ledger::new(policy),
            spread: Spread::default(),
            stale: false,
            gone: false,
            addresses: Vec::new(),
        };
        Self {
            id,
            feed: Arc::default(),
            written: Mutex::new(written),
            ports: Mutex::default(),
            holds: Arc::default(),
            retries: Arc::default(),
            asked: Arc::default(),
            wake: Mutex::default(),
            cold: Mutex::default(),
            shared,
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

    /// How many requests have asked for a slot so far, however short they were and however they ended.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// How many slots of its pods are taken now.
    pub fn in_flight(&self) -> u32 {
        let snapshot = self.feed.newest();
        let mut pods: Vec<&Arc<EndpointLoad>> =
            snapshot.ports.iter().flat_map(PortView::endpoints).map(|endpoint| &endpoint.load).collect();
        // A pod with several ports has one load.
        pods.sort_unstable_by_key(|load| Arc::as_ptr(load));
        pods.dedup_by_key(|load| Arc::as_ptr(load));
        pods.into_iter().map(|load| load.in_flight()).sum()
    }

    /// The pods that take requests, if all of them on some port have refused connections for
    /// [`REFUSED_FOR`](crate::start::REFUSED_FOR) and none is starting; otherwise none.
    pub fn refusing(&self) -> Vec<SocketAddr> {
        let (now, snapshot) = (self.shared.clock.now(), self.feed.newest());
        let refusing = snapshot.ports.iter().filter(|port| port.refuses(now)).flat_map(PortView::endpoints);
        let taking = refusing.filter(|endpoint| endpoint.state >= State::Draining);
        taking.filter_map(|endpoint| endpoint.addresses.first().copied()).collect()
    }

    /// Takes one retry from the budget, if there is one: at most one for five requests.
    pub fn may_retry(&self) -> bool {
        self.retries.spend()
    }

    /// Sets the ports and the spread. Requests that wait for a removed port end with an error.
    pub(crate) fn declare(self: &Arc<Self>, spec: &Spec) {
        let mut ports = lock(&self.ports);
        let removed: Vec<Arc<Port>> =
            ports.extract_if(.., |port| !spec.ports.contains(port.name())).collect();
        for name in &spec.ports {
            if !ports.iter().any(|port| port.name() == name) {
                let counts = (Arc::clone(&self.retries), Arc::clone(&self.asked));
                let feed = Arc::clone(&self.feed);
                let shared = Arc::clone(&self.shared);
                ports.push(Arc::new(Port::new(name.clone(), self, feed, counts, shared)));
            }
        }
        drop(ports);
        for port in removed {
            port.close(&AcquireError::NoSuchPort);
        }
        if lock(&self.written).gone {
            self.close(&AcquireError::ServiceGone);
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

    /// Takes endpoints out of the slices, as if these had been written without them.
    pub fn retain_endpoints(&self, keep: impl Fn(&SliceEndpoint) -> bool) {
        self.update(|written, now| (written.ledger.retain_endpoints(&keep, now), ()));
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
            for service in self.shared.at(&addresses).filter(|service| service.id != self.id) {
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

    /// What time alone brings: leases, rests and ejections end, wakes are repeated.
    pub(crate) fn tick(&self, now: Moment) {
        self.update(|written, now| (written.ledger.expire(now), ()));
        self.ports().iter().for_each(|port| port.end_rests(now));
        self.hand_out();
        let sent = {
            let mut wake = lock(&self.wake);
            // Read under the lock: a request that begins to wait later also asks for a wake later.
            let wanted = self.holds() > 0 && !self.feed.newest().ready();
            wake.again(now, wanted, || self.shared.may_wake(&self.id, now))
        };
        if sent {
            self.send_wake(now);
        }
        self.judge(now);
        self.reschedule();
    }

    /// Ends all waiting requests with `why`, and refuses later ones.
    pub(crate) fn close(&self, why: &AcquireError) {
        for port in self.ports() {
            port.close(why);
        }
        drop(self.take_cold_start());
    }

    /// The service was deleted: publishes an empty snapshot and closes all ports, for callers that still hold it.
    pub(crate) fn remove(&self) {
        let mut written = lock(&self.written);
        written.gone = true;
        let addresses = std::mem::take(&mut written.addresses);
        self.shared.move_addresses(&self.id, &addresses, &[]);
        self.shared.timers.set(&self.id, None);
        let generation = self.feed.newest().generation + 1;
        self.feed.publish(Snapshot { generation, gone: true, ..Snapshot::default() });
        drop(written);
        self.close(&AcquireError::ServiceGone);
    }

    /// One change by one writer: the ledger, then the snapshot, then slots for waiting requests.
    fn update<R>(&self, change: impl FnOnce(&mut Written, Moment) -> (bool, R)) -> R {
        let now = self.shared.clock.now();
        let mut written = lock(&self.written);
        let (changed, result) = change(&mut written, now);
        if written.gone {
            return result;
        }
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
            gone: false,
        };
        let (ready, routable) = (snapshot.ready(), snapshot.routable());
        self.stamp(&snapshot, now);
        // Published under the writers' lock, or two writers could publish in the wrong order.
        self.feed.publish(snapshot);
        if moved {
            let mut addresses: Vec<SocketAddr> = written.ledger.addresses().collect();
            addresses.sort_unstable();
            addresses.dedup();
            self.shared.move_addresses(&self.id, &written.addresses, &addresses);
            written.addresses = addresses;
        }
        if ready {
            lock(&self.wake).satisfied();
        }
        self.reschedule_locked(&written);
        drop(written);
        if routable {
            self.hand_out();
        }
        // The other half of this fence is in `Port::hold`: a publication that takes the last pod away sees the
        // waiting request, or the request that is about to wait sees the publication.
        fence();
        if !ready && self.holds() > 0 {
            self.want_wake();
        }
        result
    }

    /// Gives free slots to waiting requests, on every port.
    pub(crate) fn hand_out(&self) {
        for port in self.ports() {
            port.hand_out();
        }
    }

    fn ports(&self) -> Vec<Arc<Port>> {
        lock(&self.ports).clone()
    }

    /// Tells the registry when time alone will change something here.
    pub(crate) fn reschedule(&self) {
        self.reschedule_locked(&lock(&self.written));
    }

    fn reschedule_locked(&self, written: &Written) {
        if written.gone {
            return;
        }
        let lease = written.ledger.next_expiry();
        let wake = lock(&self.wake).due(self.shared.clock.now());
        let due = lease.into_iter().chain(wake).chain(self.next_chance()).min();
        // Still under the writers' lock: of two threads that set the timer, the later must know more.
        self.shared.timers.set(&self.id, due);
    }

    /// A request to `endpoint` was sent and not answered. Answers whether that ejects the endpoint.
    pub(crate) fn unanswered(&self, port: &PortName, endpoint: &Endpoint) -> bool {
        let now = self.shared.clock.now();
        // One at a time: two that are judged at once could each be the last that may be out.
        let written = lock(&self.written);
        let snapshot = Arc::clone(&self.feed.newest());
        let (out, all) = snapshot.port(port).map_or((0, 0), |view| view.ejected(now));
        let ejected = endpoint.health.unanswered(now, out, all);
        if ejected {
            // Waiting requests are tried again when the ejection ends.
            self.reschedule_locked(&written);
        }
        ejected
    }

    /// When time alone can serve a waiting request: a rest ends, or an ejection.
    fn next_chance(&self) -> Option<Moment> {
        if self.holds() == 0 {
            return None;
        }
        let now = self.shared.clock.now();
        let snapshot = Arc::clone(&self.feed.newest());
        let endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
        let ejections = endpoints.filter_map(|endpoint| endpoint.health.ejected_until());
        let rests = self.ports().into_iter().filter_map(|port| port.next_end_of_rest());
        ejections.filter(|until| now < *until).chain(rests).min()
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
