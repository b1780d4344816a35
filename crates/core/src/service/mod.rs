//! One service: takes in slices, pushes and probes, publishes snapshots, and owns the ports where requests get slots.
//!
//! Writers change the [`EndpointMerge`] one at a time and publish a whole new [`Snapshot`]; requests read the newest
//! snapshot without a lock. [`Port::acquire`] waits for a slot and takes it in one operation.

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
use crate::cold_start::ColdStart;
use crate::endpoint::{Endpoint, EndpointLoad, PodUid, PortName, ServiceId, Slice, SliceEndpoint, State};
use crate::hold::AcquireError;
use crate::load_meter::{LoadKey, LoadMeter};
use crate::merge::{AddressChanges, EndpointMerge, MergePolicy, Push, PushOutcome, PushRefused};
use crate::probe::ProbePlan;
use crate::snapshot::{ConcurrencyLimits, PortView, Snapshot, SnapshotFeed, Subscription};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, fence, lock};
use crate::time::Moment;

/// What an operator configures for a service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceSpec {
    /// The ports that requests can be sent to.
    pub ports: Vec<PortName>,
    /// How many requests one pod may have.
    pub concurrency: ConcurrencyLimits,
}

/// One service.
pub struct Service {
    id: ServiceId,
    feed: Arc<SnapshotFeed>,
    written: Mutex<Written>,
    ports: Mutex<Vec<Arc<Port>>>,
    /// How many requests are held, on all ports.
    holds: Arc<AtomicUsize>,
    retries: Arc<RetryBudget>,
    meter: Arc<LoadMeter>,
    wake: Mutex<Wake>,
    /// The cold start in progress.
    cold: Mutex<Option<Box<ColdStart>>>,
    shared: Arc<Shared>,
}

/// The writers' state. Its lock serializes writers; no reader takes it.
#[derive(Debug)]
struct Written {
    merge: EndpointMerge,
    concurrency: ConcurrencyLimits,
    stale: bool,
    /// The registry has removed this service. Another service may have its name by now.
    gone: bool,
}

impl Service {
    pub(crate) fn new(id: ServiceId, policy: MergePolicy, shared: Arc<Shared>) -> Self {
        let written = Written {
            merge: EndpointMerge::new(policy),
            concurrency: ConcurrencyLimits::default(),
            stale: false,
            gone: false,
        };
        let holds = Arc::<AtomicUsize>::default();
        let meter = shared.meter(LoadKey::Service(id.clone()), Arc::clone(&holds));
        Self {
            id,
            feed: Arc::default(),
            written: Mutex::new(written),
            ports: Mutex::default(),
            holds,
            retries: Arc::default(),
            meter,
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

    /// Subscribes to new snapshots of this service.
    pub fn subscribe(&self) -> Subscription {
        self.feed.subscribe()
    }

    /// The port `name`, if the service has it. Callers may cache it: it stays the same until the port is removed.
    pub fn port(&self, name: &PortName) -> Option<Arc<Port>> {
        lock(&self.ports).iter().find(|port| port.name() == name).map(Arc::clone)
    }

    /// How many requests are held.
    pub fn holds(&self) -> usize {
        self.holds.load(Ordering::Relaxed)
    }

    /// How many requests have asked for a slot so far, whatever their outcome.
    pub fn asked(&self) -> u64 {
        self.meter.requests()
    }

    /// The meter of its load.
    pub fn meter(&self) -> &Arc<LoadMeter> {
        &self.meter
    }

    /// How many slots of its pods are in use.
    pub fn in_flight(&self) -> u32 {
        let snapshot = self.feed.newest();
        let mut pods: Vec<&Arc<EndpointLoad>> =
            snapshot.ports.iter().flat_map(PortView::endpoints).map(|endpoint| &endpoint.load).collect();
        // A pod with several ports has one load.
        pods.sort_unstable_by_key(|load| Arc::as_ptr(load));
        pods.dedup_by_key(|load| Arc::as_ptr(load));
        pods.into_iter().map(|load| load.in_flight()).sum()
    }

    /// The addresses of the pods that take requests, for each port on which all of them have refused connections for
    /// [`REFUSED_FOR`](crate::start_failure::REFUSED_FOR) and no pod is starting. Empty if there is no such port.
    pub fn refusing(&self) -> Vec<SocketAddr> {
        let (now, snapshot) = (self.shared.clock.now(), self.feed.newest());
        let refusing = snapshot.ports.iter().filter(|port| port.refuses(now)).flat_map(PortView::endpoints);
        let taking = refusing.filter(|endpoint| endpoint.state >= State::Draining);
        taking.filter_map(|endpoint| endpoint.addresses.first().copied()).collect()
    }

    /// Takes one retry from the retry budget (one per five requests). Returns false if the budget is used up.
    pub fn may_retry(&self) -> bool {
        self.retries.spend()
    }

    /// Sets the ports and the concurrency limits. Requests held on a removed port end with an error.
    pub(crate) fn declare(self: &Arc<Self>, spec: &ServiceSpec) {
        let mut ports = lock(&self.ports);
        let removed: Vec<Arc<Port>> =
            ports.extract_if(.., |port| !spec.ports.contains(port.name())).collect();
        for name in &spec.ports {
            if !ports.iter().any(|port| port.name() == name) {
                let counts = (Arc::clone(&self.retries), Arc::clone(&self.meter));
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
        let concurrency = spec.concurrency;
        self.update(|written, _| {
            let changed = written.concurrency != concurrency;
            written.concurrency = concurrency;
            (changed, ())
        });
    }

    /// Adds or replaces a slice.
    pub fn put_slice(&self, name: &str, slice: Slice) {
        self.update(|written, now| (written.merge.put_slice(name, slice, now), ()));
    }

    /// Removes a slice.
    pub fn drop_slice(&self, name: &str) {
        self.update(|written, now| (written.merge.drop_slice(name, now), ()));
    }

    /// Replaces all slices.
    pub fn replace_slices<N: AsRef<str>>(&self, slices: impl IntoIterator<Item = (N, Slice)>) {
        self.update(|written, now| (written.merge.replace_slices(slices, now), ()));
    }

    /// Removes endpoints from the stored slices, as if the slices had been written without them.
    pub fn retain_endpoints(&self, keep: impl Fn(&SliceEndpoint) -> bool) {
        self.update(|written, now| (written.merge.retain_endpoints(&keep, now), ()));
    }

    /// Marks the snapshot as stale (the slice source is disconnected) or as current. Endpoints stay as they are meanwhile.
    pub fn set_stale(&self, stale: bool) {
        self.update(|written, _| (std::mem::replace(&mut written.stale, stale) != stale, ()));
    }

    /// Applies a push of a pod of this service. The caller has verified the sender.
    pub fn push(&self, push: Push) -> Result<PushOutcome, PushRefused> {
        self.push_if(push, || true)
    }

    /// Applies a push, if it is still true once it can be withdrawn: a change before that finds nothing to withdraw.
    /// `is_true` is called without a lock. Pods of other services are replaced only after it, since that is final.
    pub fn push_if(&self, push: Push, is_true: impl FnOnce() -> bool) -> Result<PushOutcome, PushRefused> {
        let (uid, addresses, owns) = (push.pod.uid.clone(), push.addresses(), push.owns_addresses);
        let (outcome, arrived) = self.update(|written, now| match written.merge.push(push, now) {
            Ok((outcome, changed)) => (changed, (Ok(outcome), written.merge.arrived(&uid))),
            Err(refused) => (false, (Err(refused), None)),
        });
        if outcome.is_ok() && !is_true() {
            self.withdraw_push(&uid);
            return Err(PushRefused::Outdated);
        }
        // A pod that takes over an address replaces the old pod in every service. Our lock is free here: each of the
        // others takes its own, and two at a time could deadlock.
        if let (Ok(PushOutcome::Accepted), Some(seen)) = (&outcome, arrived.filter(|_| owns)) {
            for service in self.shared.at(&addresses).filter(|service| service.id != self.id) {
                service.update(|written, now| {
                    (written.merge.replace_previous_pods(&addresses, &uid, seen, now), ())
                });
            }
        }
        outcome
    }

    /// Withdraws the push of a pod, as if its lease had ended.
    pub fn withdraw_push(&self, uid: &PodUid) {
        self.update(|written, _| (written.merge.withdraw_push(uid), ()));
    }

    /// A probe of a pod passed all checks of its plan.
    pub fn probe_passed(&self, uid: &PodUid, plan: &ProbePlan) {
        self.update(|written, _| (written.merge.probe_passed(uid, plan), ()));
    }

    /// A probe of a pod failed.
    pub fn probe_failed(&self, uid: &PodUid) {
        self.update(|written, _| (written.merge.probe_failed(uid), ()));
    }

    /// Runs the timers: expires leases, ends retry backoffs and ejections, repeats wakes.
    pub(crate) fn tick(&self, now: Moment) {
        self.update(|written, now| (written.merge.expire(now), ()));
        self.ports().iter().for_each(|port| port.end_rests(now));
        self.hand_out();
        let sent = {
            let mut wake = lock(&self.wake);
            // Read under the lock: a request that is held later requests its wake after this.
            let wanted = self.holds() > 0 && !self.feed.newest().ready();
            wake.again(now, wanted, || self.shared.may_wake(&self.id, now))
        };
        if sent {
            self.send_wake(now);
        }
        self.judge(now);
        self.reschedule();
    }

    /// Ends all held requests with `why`, and refuses later ones.
    pub(crate) fn close(&self, why: &AcquireError) {
        for port in self.ports() {
            port.close(why);
        }
        drop(self.take_cold_start());
    }

    /// The service was deleted: publishes an empty snapshot and closes all ports, for callers that still have a reference.
    pub(crate) fn remove(&self) {
        let mut written = lock(&self.written);
        written.gone = true;
        let left = written.merge.addresses().collect();
        self.shared.move_addresses(&self.id, &AddressChanges { came: Vec::new(), left });
        self.shared.timers.set(&self.id, None);
        let generation = self.feed.newest().generation + 1;
        self.feed.publish(Snapshot { generation, gone: true, ..Snapshot::default() });
        drop(written);
        self.shared.changes.mark(&self.id);
        self.close(&AcquireError::ServiceGone);
        self.meter.retire();
    }

    /// Applies one change, publishes the new snapshot, then gives slots to held requests. `change` returns whether the
    /// snapshot changes.
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
        let snapshot = Snapshot {
            generation: self.feed.newest().generation + 1,
            ports: written.merge.view(),
            concurrency: written.concurrency,
            stale: written.stale,
            gone: false,
        };
        let (ready, routable) = (snapshot.ready(), snapshot.routable());
        self.stamp(&snapshot, now);
        // Publish under the writers' lock: otherwise two writers could publish in the wrong order.
        self.feed.publish(snapshot);
        self.shared.move_addresses(&self.id, &written.merge.take_address_changes());
        if ready {
            lock(&self.wake).satisfied();
        }
        self.reschedule_locked(&written);
        drop(written);
        self.shared.changes.mark(&self.id);
        if routable {
            self.hand_out();
        }
        // Pairs with the fence in `Port::hold`: either this thread, which may have removed the last pod, sees the held
        // request, or the request that is about to wait sees this snapshot.
        fence();
        if !ready && self.holds() > 0 {
            self.want_wake();
        }
        result
    }

    /// Gives free slots to held requests, on every port.
    pub(crate) fn hand_out(&self) {
        for port in self.ports() {
            port.hand_out();
        }
    }

    fn ports(&self) -> Vec<Arc<Port>> {
        lock(&self.ports).clone()
    }

    /// Sets the service's timer to its next deadline: a lease, a wake, a retry backoff or an ejection.
    pub(crate) fn reschedule(&self) {
        self.reschedule_locked(&lock(&self.written));
    }

    fn reschedule_locked(&self, written: &Written) {
        if written.gone {
            return;
        }
        let lease = written.merge.next_expiry();
        let wake = lock(&self.wake).due(self.shared.clock.now());
        let due = lease.into_iter().chain(wake).chain(self.next_chance()).min();
        // Under the writers' lock: otherwise a thread with an older state could overwrite a newer timer.
        self.shared.timers.set(&self.id, due);
    }

    /// Records that `endpoint` did not answer a request. Returns whether that ejects the endpoint.
    pub(crate) fn unanswered(&self, port: &PortName, endpoint: &Endpoint) -> bool {
        let now = self.shared.clock.now();
        // Under the lock: two endpoints judged at once could together exceed the limit on ejected endpoints.
        let written = lock(&self.written);
        let snapshot = Arc::clone(&self.feed.newest());
        let (out, all) = snapshot.port(port).map_or((0, 0), |view| view.ejected(now));
        let ejected = endpoint.health.unanswered(now, out, all);
        if ejected {
            // Held requests are tried again when the ejection ends.
            self.reschedule_locked(&written);
        }
        ejected
    }

    /// When the next retry backoff or ejection ends, if requests are held.
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
