//! Loom models of the wait queue (`make loom`): every interleaving of threads that grant, take and give back slots.

use std::future::poll_fn;
use std::num::NonZeroU32;

use loom::future::block_on;
use loom::sync::atomic::{AtomicUsize as Count, Ordering::AcqRel};
use loom::thread;

use super::*;
use crate::endpoint::SlotLimit;
use crate::endpoint::{Conditions, Source, State};
use crate::hold::{HoldLimit, Share};

/// One endpoint with one slot and its wait queue: a port reduced to its concurrency. Whole ports are too large for loom;
/// shuttle tests those.
struct Gate {
    queue: WaitQueue,
    tickets: AtomicU64,
    waiting: Arc<AtomicUsize>,
    endpoint: Arc<Endpoint>,
    capacity: SlotLimit,
}

impl Gate {
    fn new(capacity: fn(NonZeroU32) -> SlotLimit) -> Arc<Self> {
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
        let (queue, tickets, waiting) = (WaitQueue::default(), AtomicU64::new(0), Arc::default());
        Arc::new(Self { queue, tickets, waiting, endpoint: Arc::new(endpoint), capacity })
    }

    fn grant(&self, _: &Waiter) -> Result<Taken, PickError> {
        let max_released = matches!(self.capacity, SlotLimit::Released(_));
        let taken = || Taken { endpoint: Arc::clone(&self.endpoint), max_released };
        self.endpoint.load.take(self.capacity).then(taken).ok_or(PickError::AtLimit)
    }

    /// Tries the fast path, then the wait queue, as a request does.
    fn acquire(&self) -> Result<Taken, AcquireError> {
        if !self.queue.blocks()
            && let Ok(taken) = self.grant(&Waiter::new(0, Vec::new()))
        {
            return Ok(taken);
        }
        let (ticket, _share) = self.join()?;
        block_on(poll_fn(|context| self.queue.poll(ticket, context)))
    }

    fn join(&self) -> Result<(Ticket, Share), AcquireError> {
        let share = Share::of(&self.waiting, 1, 9).ok_or(AcquireError::QueueFull(HoldLimit::Service))?;
        let ticket = self
            .queue
            .join(Waiter::new(0, Vec::new()), None, &self.tickets, None, |waiter| self.grant(waiter))?;
        Ok((ticket, share))
    }

    /// Gives a slot back, as dropping it does.
    fn give(&self, taken: &Taken) {
        if taken.max_released {
            self.endpoint.load.give_released();
        }
        self.endpoint.load.give();
        fence();
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.queue.hand_out(|waiter| self.grant(waiter));
        }
    }

    fn assert_nothing_left(&self) {
        let load = &self.endpoint.load;
        assert_eq!((load.in_flight(), load.released(), self.queue.holds()), (0, 0, 0));
        assert!(lock(&self.queue.inner).granted.is_empty(), "a slot was granted and not picked up");
    }
}

/// All schedules with up to three preemptions, which is enough for most bugs. All schedules without a bound take hours.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_slot_is_held_by_one_at_a_time_and_no_request_waits_for_ever() {
    check(|| {
        let gate = Gate::new(SlotLimit::InFlight);
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
    // The fast path has no limit on released requests, so both requests go through the wait queue.
    check(|| {
        let gate = Gate::new(SlotLimit::Released);
        let threads = [(); 2].map(|()| {
            let gate = Arc::clone(&gate);
            thread::spawn(move || {
                let (ticket, _share) = gate.join().unwrap();
                let taken = block_on(poll_fn(|context| gate.queue.poll(ticket, context))).unwrap();
                assert!(gate.endpoint.load.released() <= 1);
                gate.give(&taken);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        gate.assert_nothing_left();
    });
}

#[test]
fn a_slot_granted_to_a_request_that_leaves_goes_to_the_next() {
    check(|| {
        let gate = Gate::new(SlotLimit::InFlight);
        let taken = gate.acquire().unwrap();
        let leaver = thread::spawn({
            let gate = Arc::clone(&gate);
            move || {
                let (ticket, _share) = gate.join().unwrap();
                if let Some(Ok(taken)) = gate.queue.leave(ticket) {
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
fn no_request_waits_in_a_closed_queue() {
    check(|| {
        let gate = Gate::new(SlotLimit::InFlight);
        let taken = gate.acquire().unwrap();
        let closer = thread::spawn({
            let gate = Arc::clone(&gate);
            move || gate.queue.close(&AcquireError::ShuttingDown)
        });
        assert_eq!(gate.acquire().unwrap_err(), AcquireError::ShuttingDown);
        closer.join().unwrap();
        gate.give(&taken);
        gate.assert_nothing_left();
    });
}
