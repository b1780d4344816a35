//! Waiting for a slot: first come, first served, bounded, and nothing leaks when somebody leaves.
//!
//! One line per port of a service. Whoever brings capacity (a publication, a slot given back) hands slots
//! over to the first in line, under the line's lock; nobody is woken to compete. Whoever comes while others
//! wait goes to the end of the line.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::pick::{EndpointId, NoPick};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, fence, lock};
use crate::time::Moment;

/// Why a request got no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Its time was up.
    #[error("no pod took the request before its deadline")]
    Deadline,
    /// Too many wait already.
    #[error("too many requests wait already: the bound on {0} is reached")]
    QueueFull(Bound),
    /// The service has no such port.
    #[error("the service has no such port")]
    NoSuchPort,
    /// The service was deleted.
    #[error("the service does not exist any more")]
    ServiceGone,
    /// This process is leaving.
    #[error("this gateway is shutting down")]
    ShuttingDown,
}

/// A bound on holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bound {
    /// Holds of one service.
    Service,
    /// Holds of all services.
    Total,
    /// Bytes that all holds keep in memory.
    Bytes,
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Bound::Service => "holds of this service",
            Bound::Total => "holds of all services",
            Bound::Bytes => "bytes that holds keep in memory",
        })
    }
}

/// How many requests may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// In one service.
    pub per_service: usize,
    /// In all services. No service may have more than a quarter of it.
    pub total: usize,
    /// How many bytes they may keep in memory.
    pub bytes: usize,
    /// How long any of them may wait, whatever its own deadline.
    pub longest: Duration,
}

impl Bounds {
    /// When a hold that begins now ends at the latest, if its request wants to wait until `wanted`.
    pub fn deadline(&self, now: Moment, wanted: Option<Moment>) -> Moment {
        let latest = now + self.longest;
        wanted.map_or(latest, |wanted| wanted.min(latest))
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self { per_service: 10_000, total: 40_000, bytes: 256 << 20, longest: Duration::from_mins(5) }
    }
}

/// What all holds of all services use up.
#[derive(Debug)]
pub(crate) struct Budget {
    bounds: Bounds,
    holds: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

/// A place among the holds. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Permit {
    _service: Share,
    _total: Share,
    _bytes: Share,
}

impl Budget {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, holds: Arc::default(), bytes: Arc::default() }
    }

    /// A place for a hold that keeps `bytes` in memory, beside the holds that `service` counts.
    pub(crate) fn admit(&self, service: &Arc<AtomicUsize>, bytes: usize) -> Result<Permit, AcquireError> {
        let Bounds { per_service, total, bytes: most, .. } = self.bounds;
        let full = |bound: Bound| move || AcquireError::QueueFull(bound);
        Ok(Permit {
            _service: Share::of(service, 1, per_service.min(total / 4)).ok_or_else(full(Bound::Service))?,
            _total: Share::of(&self.holds, 1, total).ok_or_else(full(Bound::Total))?,
            _bytes: Share::of(&self.bytes, bytes, most).ok_or_else(full(Bound::Bytes))?,
        })
    }

    pub(crate) fn holds(&self) -> usize {
        self.holds.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// A part of something bounded, given back when dropped.
#[derive(Debug)]
struct Share {
    of: Arc<AtomicUsize>,
    amount: usize,
}

impl Share {
    fn of(used: &Arc<AtomicUsize>, amount: usize, most: usize) -> Option<Self> {
        let add = |used: usize| used.checked_add(amount).filter(|sum| *sum <= most);
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Self { of: Arc::clone(used), amount })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// A place in a line. Lower is earlier; a request that comes back keeps its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(u64);

/// Somebody in line.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// The randomness for its pick.
    pub(crate) seed: u64,
    /// Whom it will not ask while it rests: they have just refused it.
    pub(crate) refused: Vec<EndpointId>,
    waker: Option<Waker>,
}

impl Waiter {
    pub(crate) fn new(seed: u64, refused: Vec<EndpointId>) -> Self {
        Self { seed, refused, waker: None }
    }
}

/// An endpoint with a slot taken on it.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) endpoint: Arc<Endpoint>,
    /// A place in the endpoint's herd was taken with it.
    pub(crate) herd: bool,
}

/// What somebody in line got.
pub(crate) type Grant = Result<Taken, AcquireError>;

/// Those who wait for one port of one service.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// How many wait and must not be overtaken; to be read without the lock.
    length: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: BTreeMap<Ticket, Waiter>,
    /// Those whom everybody has refused: until then, or until somebody else can take them, they stand beside
    /// the line. In the line they would hold up the others, or be sent to the same pod again and again.
    resting: BTreeMap<Ticket, (Moment, Waiter)>,
    /// Handed over, but not yet picked up. Whoever leaves instead gives it back.
    granted: HashMap<Ticket, Grant>,
    closed: Option<AcquireError>,
}

impl Inner {
    fn waiter(&mut self, ticket: Ticket) -> Option<&mut Waiter> {
        let waiting = self.waiting.get_mut(&ticket);
        waiting.or_else(|| self.resting.get_mut(&ticket).map(|(_, waiter)| waiter))
    }
}

impl Line {
    /// How many of those who rest are looked at when capacity comes, so that a crowd of them costs the others
    /// nothing.
    const RESTING_LOOKED_AT: usize = 16;

    /// Whether a newcomer would overtake somebody, or the line is closed.
    pub(crate) fn blocks(&self) -> bool {
        self.length.load(Ordering::Relaxed) > 0
    }

    /// How many wait, those who rest included.
    pub(crate) fn holds(&self) -> usize {
        let inner = lock(&self.inner);
        inner.waiting.len() + inner.resting.len()
    }

    /// Why nobody may get in line any more.
    pub(crate) fn closed(&self) -> Option<AcquireError> {
        lock(&self.inner).closed
    }

    /// Gets in line: at the end, with a number from `tickets`, or back to the place of an earlier `ticket`; or
    /// beside it, to rest until `rest`. `grant` is then asked for everybody who can be served, the newcomer
    /// included.
    pub(crate) fn join(
        &self,
        waiter: Waiter,
        ticket: Option<Ticket>,
        tickets: &AtomicU64,
        rest: Option<Moment>,
        grant: impl FnMut(&Waiter) -> Result<Taken, NoPick>,
    ) -> Result<Ticket, AcquireError> {
        let mut inner = lock(&self.inner);
        if let Some(closed) = inner.closed {
            return Err(closed);
        }
        // Numbers are unique among all lines, or a ticket brought from another line could push somebody out.
        // Drawn under the lock, so in order.
        let ticket = ticket.unwrap_or_else(|| Ticket(tickets.fetch_add(1, Ordering::Relaxed)));
        match rest {
            Some(rest) => drop(inner.resting.insert(ticket, (rest, waiter))),
            None => drop(inner.waiting.insert(ticket, waiter)),
        }
        let wakers = self.hand_out_locked(&mut inner, grant);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
        Ok(ticket)
    }

    /// Hands slots to the first in line, for as long as `grant` finds any.
    pub(crate) fn hand_out(&self, grant: impl FnMut(&Waiter) -> Result<Taken, NoPick>) {
        let mut inner = lock(&self.inner);
        let wakers = self.hand_out_locked(&mut inner, grant);
        drop(inner);
        // Woken without the lock: they will want it at once.
        wakers.into_iter().for_each(Waker::wake);
    }

    fn hand_out_locked(
        &self,
        inner: &mut Inner,
        mut grant: impl FnMut(&Waiter) -> Result<Taken, NoPick>,
    ) -> Vec<Waker> {
        self.count(inner);
        // The other half of this fence is in `Port::hand_out_on_all`.
        fence();
        let mut served = Vec::new();
        for (&ticket, (_, waiter)) in inner.resting.iter().take(Self::RESTING_LOOKED_AT) {
            served.extend(grant(waiter).ok().map(|taken| (ticket, taken)));
        }
        for (&ticket, waiter) in &inner.waiting {
            match grant(waiter) {
                Ok(taken) => served.push((ticket, taken)),
                Err(_) => break,
            }
        }
        let mut wakers = Vec::with_capacity(served.len());
        for (ticket, taken) in served {
            wakers.extend(inner.waiter(ticket).and_then(|waiter| waiter.waker.take()));
            inner.waiting.remove(&ticket);
            inner.resting.remove(&ticket);
            inner.granted.insert(ticket, Ok(taken));
        }
        self.count(inner);
        wakers
    }

    /// Brings back into the line those who have rested. They may be sent to anybody again.
    pub(crate) fn end_rests(&self, now: Moment) {
        let mut inner = lock(&self.inner);
        let rested: Vec<Ticket> =
            inner.resting.iter().filter(|(_, (until, _))| *until <= now).map(|(ticket, _)| *ticket).collect();
        for ticket in rested {
            if let Some((_, waiter)) = inner.resting.remove(&ticket) {
                inner.waiting.insert(ticket, Waiter { refused: Vec::new(), ..waiter });
            }
        }
        self.count(&inner);
    }

    /// When the first of those who rest has rested.
    pub(crate) fn next_end_of_rest(&self) -> Option<Moment> {
        lock(&self.inner).resting.values().map(|(until, _)| *until).min()
    }

    /// Turns everybody away, now and later.
    pub(crate) fn close(&self, why: AcquireError) {
        let mut inner = lock(&self.inner);
        inner.closed = Some(why);
        let mut turned_away = std::mem::take(&mut inner.waiting);
        let resting = std::mem::take(&mut inner.resting);
        turned_away.extend(resting.into_iter().map(|(ticket, (_, waiter))| (ticket, waiter)));
        inner.granted.extend(turned_away.keys().map(|ticket| (*ticket, Err(why))));
        self.count(&inner);
        drop(inner);
        turned_away.into_values().filter_map(|waiter| waiter.waker).for_each(Waker::wake);
    }

    /// What the holder of `ticket` got, if it got something.
    pub(crate) fn poll(&self, ticket: Ticket, context: &Context<'_>) -> Poll<Grant> {
        let mut inner = lock(&self.inner);
        if let Some(grant) = inner.granted.remove(&ticket) {
            return Poll::Ready(grant);
        }
        if let Some(waiter) = inner.waiter(ticket) {
            match &mut waiter.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
        }
        Poll::Pending
    }

    /// Leaves the line. Answers what was handed over in the meantime; it must be given back.
    pub(crate) fn leave(&self, ticket: Ticket) -> Option<Grant> {
        let mut inner = lock(&self.inner);
        if inner.waiting.remove(&ticket).is_some() || inner.resting.remove(&ticket).is_some() {
            self.count(&inner);
            return None;
        }
        inner.granted.remove(&ticket)
    }

    /// Writes down for those without the lock how many there are. A closed line is never to be overtaken.
    fn count(&self, inner: &Inner) {
        let length = if inner.closed.is_some() { usize::MAX } else { inner.waiting.len() };
        self.length.store(length, Ordering::Relaxed);
    }
}

/// Every interleaving of givers, takers and leavers, walked through by loom (`make loom`).
#[cfg(all(test, loom))]
mod models {
    use std::future::poll_fn;
    use std::num::NonZeroU32;

    use loom::future::block_on;
    use loom::sync::atomic::{AtomicUsize as Count, Ordering::AcqRel};
    use loom::thread;

    use super::*;
    use crate::endpoint::{Conditions, Source, State};
    use crate::pick::Capacity;

    /// One endpoint with one slot, and the line before it: what a port does, and nothing else. Whole ports are
    /// too large for loom; shuttle tries those.
    struct Gate {
        line: Line,
        tickets: AtomicU64,
        waiting: Arc<AtomicUsize>,
        endpoint: Arc<Endpoint>,
        capacity: Capacity,
    }

    impl Gate {
        fn new(capacity: fn(NonZeroU32) -> Capacity) -> Arc<Self> {
            let endpoint = Endpoint {
                pod: None,
                addresses: Box::new([]),
                state: State::Ready,
                source: Source::Slice,
                conditions: Conditions::default(),
                load: Arc::default(),
                health: Arc::default(),
            };
            let capacity = capacity(NonZeroU32::MIN);
            let (line, tickets, waiting) = (Line::default(), AtomicU64::new(0), Arc::default());
            Arc::new(Self { line, tickets, waiting, endpoint: Arc::new(endpoint), capacity })
        }

        fn grant(&self, _: &Waiter) -> Result<Taken, NoPick> {
            let herd = matches!(self.capacity, Capacity::Herd(_));
            let taken = || Taken { endpoint: Arc::clone(&self.endpoint), herd };
            self.endpoint.load.take(self.capacity).then(taken).ok_or(NoPick::Full)
        }

        /// The quick way, then the line: as a request does.
        fn acquire(&self) -> Result<Taken, AcquireError> {
            if !self.line.blocks()
                && let Ok(taken) = self.grant(&Waiter::new(0, Vec::new()))
            {
                return Ok(taken);
            }
            let (ticket, _share) = self.join()?;
            block_on(poll_fn(|context| self.line.poll(ticket, context)))
        }

        fn join(&self) -> Result<(Ticket, Share), AcquireError> {
            let share = Share::of(&self.waiting, 1, 9).ok_or(AcquireError::QueueFull(Bound::Service))?;
            let ticket = self
                .line
                .join(Waiter::new(0, Vec::new()), None, &self.tickets, None, |waiter| self.grant(waiter))?;
            Ok((ticket, share))
        }

        /// As dropping a slot does.
        fn give(&self, taken: &Taken) {
            if taken.herd {
                self.endpoint.load.give_released();
            }
            self.endpoint.load.give();
            fence();
            if self.waiting.load(Ordering::Relaxed) > 0 {
                self.line.hand_out(|waiter| self.grant(waiter));
            }
        }

        fn assert_nothing_left(&self) {
            let load = &self.endpoint.load;
            assert_eq!((load.in_flight(), load.released(), self.line.holds()), (0, 0, 0));
            assert!(lock(&self.line.inner).granted.is_empty(), "a slot was handed to nobody");
        }
    }

    /// All schedules with up to three preemptions: they find what there is to find, and all of them without a
    /// bound take hours.
    fn check(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    #[test]
    fn a_slot_is_held_by_one_at_a_time_and_nobody_waits_for_ever() {
        check(|| {
            let gate = Gate::new(Capacity::PerPod);
            let inside = Arc::new(Count::new(0));
            let threads = [(); 2].map(|()| {
                let (gate, inside) = (Arc::clone(&gate), Arc::clone(&inside));
                thread::spawn(move || {
                    let taken = gate.acquire().unwrap();
                    assert_eq!(inside.fetch_add(1, AcqRel), 0, "two hold the only slot");
                    inside.fetch_sub(1, AcqRel);
                    gate.give(&taken);
                })
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            gate.assert_nothing_left();
        });
    }

    #[test]
    fn so_is_a_place_in_the_herd() {
        // The quick way of a request without a limit is not bounded by the herd, so both go through the line.
        check(|| {
            let gate = Gate::new(Capacity::Herd);
            let threads = [(); 2].map(|()| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    let (ticket, _share) = gate.join().unwrap();
                    let taken = block_on(poll_fn(|context| gate.line.poll(ticket, context))).unwrap();
                    assert!(gate.endpoint.load.released() <= 1);
                    gate.give(&taken);
                })
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            gate.assert_nothing_left();
        });
    }

    #[test]
    fn a_slot_handed_to_somebody_who_leaves_goes_to_the_next() {
        check(|| {
            let gate = Gate::new(Capacity::PerPod);
            let taken = gate.acquire().unwrap();
            let leaver = thread::spawn({
                let gate = Arc::clone(&gate);
                move || {
                    let (ticket, _share) = gate.join().unwrap();
                    if let Some(Ok(taken)) = gate.line.leave(ticket) {
                        gate.give(&taken);
                    }
                }
            });
            let giver = thread::spawn({
                let gate = Arc::clone(&gate);
                move || gate.give(&taken)
            });
            let taken = gate.acquire().unwrap();
            gate.give(&taken);
            leaver.join().unwrap();
            giver.join().unwrap();
            gate.assert_nothing_left();
        });
    }

    #[test]
    fn nobody_waits_on_a_closed_line() {
        check(|| {
            let gate = Gate::new(Capacity::PerPod);
            let taken = gate.acquire().unwrap();
            let closer = thread::spawn({
                let gate = Arc::clone(&gate);
                move || gate.line.close(AcquireError::ShuttingDown)
            });
            assert_eq!(gate.acquire().unwrap_err(), AcquireError::ShuttingDown);
            closer.join().unwrap();
            gate.give(&taken);
            gate.assert_nothing_left();
        });
    }
}
