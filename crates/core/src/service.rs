//! One service: facts in, slots out.
//!
//! Writers change the [`Ledger`] one at a time and publish a whole new [`Snapshot`]; requests read the newest
//! snapshot without a lock. Wait and pick are one operation: [`Port::acquire`].

use std::net::SocketAddr;
use std::sync::Arc;

use crate::budget::RetryBudget;
use crate::endpoint::{Endpoint, PodUid, PortName, ServiceId, Slice, SliceEndpoint, State};
use crate::engine::Wake;
use crate::hold::AcquireError;
use crate::merge::{Ledger, Policy, Push, PushOutcome, PushRefused};
use crate::pick::Load;
use crate::probe::ProbePlan;
use crate::registry::Shared;
use crate::slot::Port;
use crate::snapshot::{Feed, PortView, Snapshot, Spread, Subscription};
use crate::start::StartFailure;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, fence, lock};
use crate::time::Moment;
use crate::timeline::{Anatomy, ColdStart, Outcome};

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

/// What [`Service::claim_wake`] decided.
#[derive(Debug)]
#[must_use = "a claimed wake that is not sent is lost"]
pub(crate) struct WakeClaim {
    now: Moment,
    /// This request sends the wake.
    send: bool,
    /// The time of the next wake changed.
    rescheduled: bool,
}

impl Service {
    pub(crate) fn new(id: ServiceId, policy: Policy, shared: Arc<Shared>) -> Self {
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
        let mut pods: Vec<&Arc<Load>> =
            snapshot.ports.iter().flat_map(PortView::endpoints).map(|endpoint| &endpoint.load).collect();
        // A pod with several ports has one load.
        pods.sort_unstable_by_key(|load| Arc::as_ptr(load));
        pods.dedup_by_key(|load| Arc::as_ptr(load));
        pods.into_iter().map(|load| load.in_flight()).sum()
    }

    /// Why the last wake came to nothing, if it did and no pod has come since.
    pub fn wake_failure(&self) -> Option<Arc<StartFailure>> {
        lock(&self.wake).attempts.failure().cloned()
    }

    /// The pods that take requests, if all of them on some port have refused connections for
    /// [`REFUSED_FOR`](crate::start::REFUSED_FOR) and none is starting; otherwise none.
    pub fn refusing(&self) -> Vec<SocketAddr> {
        let (now, snapshot) = (self.shared.clock.now(), self.feed.newest());
        let refusing = snapshot.ports.iter().filter(|port| port.refuses(now)).flat_map(PortView::endpoints);
        let taking = refusing.filter(|endpoint| endpoint.state >= State::Draining);
        taking.filter_map(|endpoint| endpoint.addresses.first().copied()).collect()
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

    /// The engine could not wake the service, or not yet. If waiting does not mend that and no pod is starting, all
    /// holds end now.
    pub fn wake_failed(&self, failure: StartFailure) {
        let now = self.shared.clock.now();
        lock(&self.wake).attempts.failed(now, failure);
        self.judge(now);
        self.reschedule();
    }

    /// The engine does what a wake asked for. What failed before does not count any more.
    pub fn wake_progressed(&self) {
        lock(&self.wake).attempts.progressed();
        self.reschedule();
    }

    /// The service is another than the one whose starts failed: nothing that was before counts, and a wake is sent at
    /// once if requests wait.
    pub fn start_over(&self) {
        lock(&self.wake).satisfied();
        if self.holds() > 0 && !self.feed.newest().ready() {
            self.want_wake();
        }
        self.reschedule();
    }

    /// Ends all holds if the last failure is final.
    fn judge(&self, now: Moment) {
        let failure = {
            let mut wake = lock(&self.wake);
            // Looked at under the lock: a pod that becomes ready after this clears the verdict after this.
            let snapshot = self.feed.newest();
            wake.attempts.judge(now, snapshot.starting() || snapshot.routable())
        };
        let Some(failure) = failure else { return };
        if let Some(cold) = lock(&self.cold).as_mut() {
            cold.outcome = Outcome::Failed;
        }
        let why = AcquireError::StartFailed(failure);
        self.ports().iter().for_each(|port| port.turn_away(&why));
    }

    /// Why a request that would have to wait is turned away at once.
    pub fn start_failed(&self) -> Option<Arc<StartFailure>> {
        let wake = lock(&self.wake);
        let snapshot = self.feed.newest();
        wake.attempts.open().filter(|_| !snapshot.starting() && !snapshot.routable())
    }

    /// What time alone brings: leases, rests and ejections end, wakes are repeated.
    pub(crate) fn tick(&self, now: Moment) {
        self.update(|written, now| (written.ledger.expire(now), ()));
        self.ports().iter().for_each(|port| port.end_rests(now));
        self.hand_out();
        let sent = {
            let mut wake = lock(&self.wake);
            // Asked under the lock: whoever begins to wait after this asks for a wake after this.
            let wanted = self.holds() > 0 && !self.feed.newest().ready();
            wake.again(now, wanted, || self.shared.may_wake(&self.id, now))
        };
        if sent {
            self.send_wake(now);
        }
        self.judge(now);
        self.reschedule();
    }

    /// Turns away everybody who waits, now and later.
    pub(crate) fn close(&self, why: &AcquireError) {
        for port in self.ports() {
            port.close(why);
        }
        drop(self.take_cold_start());
    }

    /// The service was deleted. Whoever still has it in hand finds it empty and closed.
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

    /// One change by one writer: ledger, then snapshot, then whoever waits for it.
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
        // The other half of this fence is in `Port::hold`: a publication that takes the last pod away sees who
        // waits, or whoever is about to wait sees the publication.
        fence();
        if !ready && self.holds() > 0 {
            self.want_wake();
        }
        result
    }

    /// Hands out what is free to those who wait, on every port.
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
            // Those who wait get their chance when the ejection ends.
            self.reschedule_locked(&written);
        }
        ejected
    }

    /// When somebody who waits may be served although nothing happens: a rest ends, or an ejection.
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

    /// A request found no `Ready` endpoint.
    pub(crate) fn want_wake(&self) {
        self.send_claimed(&self.claim_wake());
    }

    /// Decides whether a wake is to be sent now. The claim must reach [`Service::send_claimed`], or the wake is lost.
    pub(crate) fn claim_wake(&self) -> WakeClaim {
        let now = self.shared.clock.now();
        let mut wake = lock(&self.wake);
        let before = wake.next();
        let send = wake.want(now, || self.shared.may_wake(&self.id, now));
        WakeClaim { now, send, rescheduled: wake.next() != before }
    }

    /// Sends the wake of `claim`, if it has one.
    pub(crate) fn send_claimed(&self, claim: &WakeClaim) {
        if claim.send {
            self.send_wake(claim.now);
        }
        if claim.rescheduled {
            self.reschedule();
        }
    }

    /// With no lock held: the engine may answer at once.
    fn send_wake(&self, now: Moment) {
        if let Some(cold) = lock(&self.cold).as_mut() {
            cold.wake_sent.get_or_insert(now);
        }
        self.shared.engine.wake(&self.id);
    }

    /// A request begins to wait because nothing is routable.
    pub(crate) fn begin_cold_start(&self, now: Moment) {
        lock(&self.cold).get_or_insert_with(|| Box::new(ColdStart::new(self.id.clone(), now)));
        // A pod may be on its way already.
        self.stamp(&self.feed.newest(), now);
    }

    /// The request that began a cold start at `held` was turned away at once, since the start had failed before. No
    /// client waited for a pod, so there was no cold start. One that is waited for has a wake of its own.
    pub(crate) fn discard_cold_start(&self, held: Moment) {
        let mut cold = lock(&self.cold);
        cold.take_if(|cold| {
            cold.held == held && cold.wake_sent.is_none() && cold.outcome == Outcome::Waiting
        });
    }

    /// The cold start under way, for the first request that it ends for.
    pub(crate) fn take_cold_start(&self) -> Option<Anatomy> {
        let cold_start = lock(&self.cold).take()?;
        Some(self.anatomy(cold_start))
    }

    fn anatomy(&self, cold_start: Box<ColdStart>) -> Anatomy {
        Anatomy::new(cold_start, Arc::clone(&self.shared.cold_starts), Arc::clone(&self.shared.clock))
    }

    /// A request waited for as long as it may. Other requests may wait longer and still be served.
    pub(crate) fn waited_in_vain(&self) {
        if let Some(cold) = lock(&self.cold).as_mut() {
            cold.outcome = Outcome::Failed;
        }
    }

    /// Somebody left without a slot. If it was the last, the cold start is over.
    pub(crate) fn left(&self) {
        let mut cold = lock(&self.cold);
        // Counted under the lock: whoever begins a cold start has been counted before.
        let over = if self.holds() == 0 { cold.take() } else { None };
        drop(cold);
        drop(over.map(|cold| self.anatomy(cold)));
    }

    /// Writes down how far the pods have come.
    fn stamp(&self, snapshot: &Snapshot, now: Moment) {
        let mut cold = lock(&self.cold);
        let Some(cold) = cold.as_mut() else { return };
        let endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
        let Some(best) = endpoints.max_by_key(|endpoint| endpoint.state) else { return };
        if best.state > State::Gone {
            cold.pod_seen.get_or_insert(now);
        }
        if best.state >= State::Draining && cold.pod_ready.is_none() {
            cold.pod_ready = Some(now);
            cold.ready_by = Some(best.source);
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
