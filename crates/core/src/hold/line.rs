//! The line itself: who waits, who rests beside it, and what was handed to whom.

#[cfg(all(test, loom))]
mod models;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::AcquireError;
use crate::endpoint::Endpoint;
use crate::pick::{EndpointId, NoPick};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, fence, lock};
use crate::time::Moment;

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
        lock(&self.inner).closed.clone()
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
        if let Some(closed) = &inner.closed {
            return Err(closed.clone());
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

    /// Turns away every request that waits, and all later ones.
    pub(crate) fn close(&self, why: &AcquireError) {
        let mut inner = lock(&self.inner);
        inner.closed = Some(why.clone());
        self.turn_away_locked(inner, why, |_| true);
    }

    /// Turns away those who wait now.
    pub(crate) fn turn_away(&self, why: &AcquireError) {
        self.turn_away_locked(lock(&self.inner), why, |_| true);
    }

    /// Turns away the holder of `ticket`, unless it has got something.
    pub(crate) fn turn_away_one(&self, ticket: Ticket, why: &AcquireError) {
        self.turn_away_locked(lock(&self.inner), why, |other| other == ticket);
    }

    fn turn_away_locked(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        why: &AcquireError,
        mut whom: impl FnMut(Ticket) -> bool,
    ) {
        let waiting = inner.waiting.extract_if(.., |ticket, _| whom(*ticket));
        let mut turned_away: Vec<(Ticket, Waiter)> = waiting.collect();
        let resting = inner.resting.extract_if(.., |ticket, _| whom(*ticket));
        turned_away.extend(resting.map(|(ticket, (_, waiter))| (ticket, waiter)));
        inner.granted.extend(turned_away.iter().map(|(ticket, _)| (*ticket, Err(why.clone()))));
        self.count(&inner);
        drop(inner);
        turned_away.into_iter().filter_map(|(_, waiter)| waiter.waker).for_each(Waker::wake);
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
