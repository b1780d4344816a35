//! The FIFO wait queue of one service port: waiting requests, requests in retry backoff, and granted slots.

#[cfg(all(test, loom))]
mod models;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::AcquireError;
use crate::endpoint::{Endpoint, EndpointId};
use crate::pick::PickError;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, fence, lock};
use crate::time::Moment;

/// The position of a request in a wait queue. Lower is earlier; a request that is retried keeps its ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(u64);

/// A request in the wait queue.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// The random number for the load balancer.
    pub(crate) seed: u64,
    /// The endpoints that have just refused it. It does not try them again during its backoff.
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
    /// Whether the slot counts against the limit on released requests.
    pub(crate) max_released: bool,
}

/// The outcome for a waiting request.
pub(crate) type Grant = Result<Taken, AcquireError>;

/// The requests that wait for one port of one service, in FIFO order.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    /// How many requests wait, without those in backoff; `usize::MAX` if the queue is closed. Read without the lock.
    length: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: BTreeMap<Ticket, Waiter>,
    /// Requests in retry backoff, because all endpoints have refused them: until that moment, or until another endpoint can
    /// take them. In the queue they would block the others, or be sent to the same pod again and again.
    resting: BTreeMap<Ticket, (Moment, Waiter)>,
    /// Outcomes that the requests have not polled yet. A request that leaves instead must give its slot back.
    granted: HashMap<Ticket, Grant>,
    closed: Option<AcquireError>,
}

impl Inner {
    fn waiter(&mut self, ticket: Ticket) -> Option<&mut Waiter> {
        let waiting = self.waiting.get_mut(&ticket);
        waiting.or_else(|| self.resting.get_mut(&ticket).map(|(_, waiter)| waiter))
    }
}

impl WaitQueue {
    /// How many requests in backoff are tried when capacity appears, so that many of them do not slow down the others.
    const RESTING_LOOKED_AT: usize = 16;

    /// Whether a new request would overtake a waiting one, or the queue is closed.
    pub(crate) fn blocks(&self) -> bool {
        self.length.load(Ordering::Relaxed) > 0
    }

    /// How many requests wait, including those in backoff.
    pub(crate) fn holds(&self) -> usize {
        let inner = lock(&self.inner);
        inner.waiting.len() + inner.resting.len()
    }

    /// Why the queue is closed, if it is.
    pub(crate) fn closed(&self) -> Option<AcquireError> {
        lock(&self.inner).closed.clone()
    }

    /// Adds a request: at the end, with a new number from `tickets`, or at the position of its earlier `ticket`; with `rest`,
    /// in backoff until then. `grant` is then called for the requests in order, including this one, until one gets no slot.
    pub(crate) fn join(
        &self,
        waiter: Waiter,
        ticket: Option<Ticket>,
        tickets: &AtomicU64,
        rest: Option<Moment>,
        grant: impl FnMut(&Waiter) -> Result<Taken, PickError>,
    ) -> Result<Ticket, AcquireError> {
        let mut inner = lock(&self.inner);
        if let Some(closed) = &inner.closed {
            return Err(closed.clone());
        }
        // Numbers are unique across all queues: otherwise a ticket from another queue could replace a waiting request.
        // They are drawn under the lock, so they are in FIFO order.
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

    /// Gives slots to the first requests in the queue, as long as `grant` finds a free one.
    pub(crate) fn hand_out(&self, grant: impl FnMut(&Waiter) -> Result<Taken, PickError>) {
        let mut inner = lock(&self.inner);
        let wakers = self.hand_out_locked(&mut inner, grant);
        drop(inner);
        // Wake without the lock: the woken tasks take it at once.
        wakers.into_iter().for_each(Waker::wake);
    }

    fn hand_out_locked(
        &self,
        inner: &mut Inner,
        mut grant: impl FnMut(&Waiter) -> Result<Taken, PickError>,
    ) -> Vec<Waker> {
        self.count(inner);
        // Pairs with the fence in `Port::hand_out_on_all`.
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

    /// Moves requests whose backoff is over back into the queue. They may be sent to any endpoint again.
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

    /// When the first backoff ends.
    pub(crate) fn next_end_of_rest(&self) -> Option<Moment> {
        lock(&self.inner).resting.values().map(|(until, _)| *until).min()
    }

    /// Ends all waiting requests with `why`, and refuses later ones.
    pub(crate) fn close(&self, why: &AcquireError) {
        let mut inner = lock(&self.inner);
        inner.closed = Some(why.clone());
        self.turn_away_locked(inner, why, |_| true);
    }

    /// Ends all requests that wait now with `why`.
    pub(crate) fn turn_away(&self, why: &AcquireError) {
        self.turn_away_locked(lock(&self.inner), why, |_| true);
    }

    /// Ends the request with `ticket` with `why`, unless it has a slot already.
    pub(crate) fn turn_away_one(&self, ticket: Ticket, why: &AcquireError) {
        self.turn_away_locked(lock(&self.inner), why, |other| other == ticket);
    }

    fn turn_away_locked(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        why: &AcquireError,
        mut which: impl FnMut(Ticket) -> bool,
    ) {
        let waiting = inner.waiting.extract_if(.., |ticket, _| which(*ticket));
        let mut turned_away: Vec<(Ticket, Waiter)> = waiting.collect();
        let resting = inner.resting.extract_if(.., |ticket, _| which(*ticket));
        turned_away.extend(resting.map(|(ticket, (_, waiter))| (ticket, waiter)));
        inner.granted.extend(turned_away.iter().map(|(ticket, _)| (*ticket, Err(why.clone()))));
        self.count(&inner);
        drop(inner);
        turned_away.into_iter().filter_map(|(_, waiter)| waiter.waker).for_each(Waker::wake);
    }

    /// Polls for the outcome of the request with `ticket`.
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

    /// Removes a request from the queue. Returns a grant that it has not polled; the caller must give the slot back.
    pub(crate) fn leave(&self, ticket: Ticket) -> Option<Grant> {
        let mut inner = lock(&self.inner);
        if inner.waiting.remove(&ticket).is_some() || inner.resting.remove(&ticket).is_some() {
            self.count(&inner);
            return None;
        }
        inner.granted.remove(&ticket)
    }

    /// Stores the length for lock-free readers. A closed queue counts as endless, so that no request passes it.
    fn count(&self, inner: &Inner) {
        let length = if inner.closed.is_some() { usize::MAX } else { inner.waiting.len() };
        self.length.store(length, Ordering::Relaxed);
    }
}
