//! One port of one service: a request takes a free slot here, or waits for one.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use super::slot::{Retry, Slot};
use super::{Service, Shared};
use crate::budget::RetryBudget;
use crate::endpoint::{Capacity, EndpointId, PortName, State};
use crate::hold::{AcquireError, Grant, Permit, Taken, Ticket, WaitQueue, Waiter};
use crate::pick::{NoPick, pick};
use crate::snapshot::{PortView, SnapshotFeed};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::fence;
use crate::time::Moment;

/// One port of one service: where slots are acquired.
pub struct Port {
    pub(super) name: PortName,
    pub(super) service: Weak<Service>,
    pub(super) feed: Arc<SnapshotFeed>,
    retries: Arc<RetryBudget>,
    /// How many requests have asked for a slot, on any port.
    asked: Arc<AtomicU64>,
    /// How many wait for any port of the service.
    waiting: Arc<AtomicUsize>,
    queue: WaitQueue,
    pub(super) shared: Arc<Shared>,
}

/// What a request asks for when it acquires a slot.
#[derive(Debug, Default)]
pub struct SlotRequest {
    /// Fresh randomness for the choice.
    pub seed: u64,
    /// How many bytes the request keeps in memory while it waits.
    pub buffered: usize,
    /// What [`Slot::refused`] gave back, if this is not the first try.
    pub retry: Option<Retry>,
}

impl Port {
    pub(crate) fn new(
        name: PortName,
        service: &Arc<Service>,
        feed: Arc<SnapshotFeed>,
        (retries, asked): (Arc<RetryBudget>, Arc<AtomicU64>),
        shared: Arc<Shared>,
    ) -> Self {
        let waiting = Arc::clone(service.hold_count());
        Self {
            name,
            service: Arc::downgrade(service),
            feed,
            retries,
            asked,
            waiting,
            queue: WaitQueue::default(),
            shared,
        }
    }

    /// Its name.
    pub fn name(&self) -> &PortName {
        &self.name
    }

    /// How many requests wait for this port.
    pub fn holds(&self) -> usize {
        self.queue.holds()
    }

    /// A slot, if one is free now and no request waits for it. Otherwise nothing is counted: call [`Port::acquire`].
    pub fn try_acquire(self: &Arc<Self>, seed: u64) -> Option<Slot> {
        let taken = self.pick_now(seed, &[])?;
        self.count();
        Some(self.slot(taken, Retry::none()))
    }

    /// As [`Port::try_acquire`], for a request that is no load: it is not counted, and asks for no pod.
    pub fn try_acquire_uncounted(self: &Arc<Self>, seed: u64) -> Option<Slot> {
        let taken = self.look(seed, &[])?;
        Some(self.slot(taken, Retry::none()))
    }

    /// The same for a request that was refused before: only another endpoint will do.
    pub fn retry_uncounted(self: &Arc<Self>, seed: u64, retry: Retry) -> Option<Slot> {
        let taken = self.look(seed, &retry.refused)?;
        Some(self.slot(taken, retry))
    }

    /// A request came that does not wait for a pod, but wants one for the next. It counts as load.
    pub fn announce(&self) {
        self.count();
        // No pod is started for a removed port, or during a shutdown.
        if self.queue.closed().is_none() {
            self.want_wake();
        }
    }

    /// Asks for a pod, unless there is one.
    fn want_wake(&self) {
        if let Some(service) = self.service.upgrade().filter(|service| !service.snapshot().ready()) {
            service.want_wake();
        }
    }

    /// Waits for a slot until `deadline` is over. Dropping the future leaves the wait queue and leaks nothing.
    ///
    /// A service whose pods are up but offer everything but this port makes its requests wait: a caller that has
    /// another way for them asks [`Snapshot::routable`](crate::snapshot::Snapshot::routable) first.
    pub async fn acquire(
        self: &Arc<Self>,
        ask: SlotRequest,
        deadline: impl Future<Output = ()>,
    ) -> Result<Slot, AcquireError> {
        let retry = ask.retry.unwrap_or_else(|| {
            self.count();
            Retry::none()
        });
        if let Some(taken) = self.pick_now(ask.seed, &retry.refused) {
            return Ok(self.slot(taken, retry));
        }
        let mut hold = self.hold(ask.seed, ask.buffered, retry)?;
        let mut deadline = pin!(deadline);
        poll_fn(|context| {
            if let Poll::Ready(grant) = hold.poll(context) {
                return Poll::Ready(grant);
            }
            if deadline.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            // A slot may have come between the two looks, and a slot is better than an error.
            match hold.poll(context) {
                Poll::Ready(grant) => Poll::Ready(grant),
                Poll::Pending => {
                    if let Some(service) = self.service.upgrade() {
                        service.waited_in_vain();
                    }
                    Poll::Ready(Err(AcquireError::Deadline))
                }
            }
        })
        .await
    }

    /// A request came.
    fn count(&self) {
        self.retries.earn();
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// The quick way: no lock, no wait, no clock. Not while other requests wait, since those came first.
    fn pick_now(&self, seed: u64, refused: &[EndpointId]) -> Option<Taken> {
        let taken = self.look(seed, refused)?;
        if taken.endpoint.state != State::Ready {
            // The last pod is draining: it serves, but the service needs another pod.
            self.want_wake();
        }
        Some(taken)
    }

    fn look(&self, seed: u64, refused: &[EndpointId]) -> Option<Taken> {
        if self.queue.blocks() {
            return None;
        }
        let snapshot = self.feed.newest();
        let capacity = snapshot.spread.limit.map_or(Capacity::Unlimited, Capacity::PerPod);
        let view = snapshot.port(&self.name)?;
        let endpoint = pick(view, capacity, refused, seed, &*self.shared.clock).ok()?;
        Some(Taken { endpoint: Arc::clone(endpoint), herd: false })
    }

    /// What a hold may get.
    fn pick_held(&self, waiter: &Waiter) -> Result<Taken, NoPick> {
        let snapshot = self.feed.newest();
        let view = snapshot.port(&self.name).ok_or(NoPick::Nothing)?;
        let capacity = snapshot.spread.limit.map_or(Capacity::Herd(snapshot.spread.herd), Capacity::PerPod);
        let endpoint = pick(view, capacity, &waiter.refused, waiter.seed, &*self.shared.clock)?;
        Ok(Taken { endpoint: Arc::clone(endpoint), herd: matches!(capacity, Capacity::Herd(_)) })
    }

    /// Joins the wait queue.
    fn hold(self: &Arc<Self>, seed: u64, buffered: usize, mut retry: Retry) -> Result<Hold, AcquireError> {
        let service = self.service.upgrade().ok_or(AcquireError::ServiceGone)?;
        if let Some(closed) = self.queue.closed() {
            return Err(closed);
        }
        let since = self.shared.clock.now();
        let permit = self.shared.holds.admit(&self.waiting, buffered);
        // Counted before we look; see `Service::update`.
        fence();
        let snapshot = self.feed.newest();
        let (ready, view) = (snapshot.ready(), snapshot.port(&self.name));
        let routable = view.is_some_and(PortView::routable);
        let waits = permit.is_ok() && !routable;
        // Also when the wait queue is full: the next request should find a pod.
        let claim = (!ready).then(|| service.claim_wake());
        // After the claim: a request that sends a wake waits for it, even if the last wake failed.
        let failed = if waits { service.start_failed() } else { None };
        retry.cold.start |= waits && failed.is_none();
        if waits && failed.is_none() {
            // Before the wake is sent, or its time would be missing, and a failure that comes at once.
            service.begin_cold_start(since);
        }
        if let Some(claim) = &claim {
            service.send_claimed(claim);
        }
        if let Some(failure) = failed {
            drop(permit);
            service.left();
            return Err(AcquireError::StartFailed(failure));
        }
        // A refused request rests beside the wait queue for a while, unless another endpoint can take it.
        let refused = std::mem::take(&mut retry.refused);
        let rest = (!refused.is_empty()).then_some(retry.rest);
        if rest.is_some() && view.is_some_and(|view| view.refuses(since)) {
            // Ready, and yet of no use: perhaps the engine can do something about it.
            service.want_wake();
            return Err(AcquireError::Refused);
        }
        let earlier = retry.ticket;
        // From here on the guard leaves the queue for us, also if the queue was closed just now.
        let mut hold = Hold { port: Arc::clone(self), ticket: None, retry, since, permit: Some(permit?) };
        let waiter = Waiter::new(seed, refused);
        let tickets = &self.shared.tickets;
        let ticket = self.queue.join(waiter, earlier, tickets, rest, |waiter| self.pick_held(waiter))?;
        (hold.ticket, hold.retry.ticket) = (Some(ticket), Some(ticket));
        // In this order: a failure that became final before we joined turned others away, but not us.
        if let Some(failure) = service.start_failed() {
            self.queue.turn_away_one(ticket, &AcquireError::StartFailed(failure));
            service.discard_cold_start(since);
        }
        // A rest or an ejection ends by time, so a timer is needed. A later ejection sets its own timer, since this
        // request is counted by then.
        if rest.is_some() || view.is_some_and(|view| view.any_ejected(since)) {
            service.reschedule();
        }
        Ok(hold)
    }

    /// Gives free slots to waiting requests.
    pub(crate) fn hand_out(&self) {
        self.queue.hand_out(|waiter| self.pick_held(waiter));
    }

    /// A pod has a free slot again: gives it to a request that waits on any of its ports.
    pub(super) fn hand_out_on_all(&self) {
        // Without the fence, this thread could see no waiting request while a new request sees no free slot, and the
        // request would sleep beside the slot. The other half of this fence is in `WaitQueue::hand_out_locked`.
        fence();
        if self.waiting.load(Ordering::Relaxed) > 0
            && let Some(service) = self.service.upgrade()
        {
            service.hand_out();
        }
    }

    /// Moves requests whose rest is over back into the wait queue.
    pub(crate) fn end_rests(&self, now: Moment) {
        self.queue.end_rests(now);
    }

    /// When the next rest ends.
    pub(crate) fn next_end_of_rest(&self) -> Option<Moment> {
        self.queue.next_end_of_rest()
    }

    /// Ends all requests that wait now with `why`.
    pub(crate) fn turn_away(&self, why: &AcquireError) {
        self.queue.turn_away(why);
    }

    /// Ends all waiting requests with `why`, and refuses later ones.
    pub(crate) fn close(&self, why: &AcquireError) {
        self.queue.close(why);
    }

    fn slot(self: &Arc<Self>, taken: Taken, mut retry: Retry) -> Slot {
        if let Some(anatomy) = &mut retry.cold.anatomy {
            anatomy.cold_start.pod = taken.endpoint.pod.as_ref().map(|pod| Arc::clone(&pod.name));
        }
        Slot { port: Arc::clone(self), endpoint: taken.endpoint, herd: taken.herd, retry }
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("name", &self.name).field("holds", &self.holds()).finish_non_exhaustive()
    }
}

/// A place in the wait queue. Dropping it leaves the queue.
struct Hold {
    port: Arc<Port>,
    /// `None` once it was served or turned away.
    ticket: Option<Ticket>,
    retry: Retry,
    since: Moment,
    /// Counts among the holds until it is served or leaves.
    permit: Option<Permit>,
}

impl Hold {
    fn poll(&mut self, context: &Context<'_>) -> Poll<Result<Slot, AcquireError>> {
        let Some(ticket) = self.ticket else { return Poll::Pending };
        self.port.queue.poll(ticket, context).map(|grant| {
            self.ticket = None;
            self.serve(grant)
        })
    }

    fn serve(&mut self, grant: Grant) -> Result<Slot, AcquireError> {
        let taken = grant?;
        self.permit = None;
        let mut retry = std::mem::replace(&mut self.retry, Retry::none());
        retry.waited += self.port.shared.clock.now().since(self.since);
        if retry.cold.anatomy.is_none() {
            retry.cold.anatomy = self.port.service.upgrade().and_then(|service| service.take_cold_start());
        }
        Ok(self.port.slot(taken, retry))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && let Some(Ok(taken)) = self.port.queue.leave(ticket)
        {
            // Handed over just before we left: the guard gives it back, and so passes it on.
            drop(self.port.slot(taken, Retry::none()));
        }
        // Before `left`, which counts the requests that still wait.
        let waited = self.permit.take().is_some();
        if waited && let Some(service) = self.port.service.upgrade() {
            service.left();
        }
    }
}
