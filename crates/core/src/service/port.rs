//! One port of one service: `acquire` takes a free slot for a request, or holds the request until there is one.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use super::slot::{Retry, Slot};
use super::{Service, Shared};
use crate::budget::RetryBudget;
use crate::endpoint::{EndpointId, PortName, SlotLimit, State};
use crate::hold::{AcquireError, Grant, Permit, Taken, Ticket, WaitQueue, Waiter};
use crate::load_meter::LoadMeter;
use crate::pick::{PickError, pick};
use crate::snapshot::{PortView, SnapshotFeed};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::fence;
use crate::time::Moment;

/// One port of one service: where slots are acquired.
pub struct Port {
    pub(super) name: PortName,
    pub(super) service: Weak<Service>,
    pub(super) feed: Arc<SnapshotFeed>,
    retries: Arc<RetryBudget>,
    /// The load of the service, on all its ports.
    meter: Arc<LoadMeter>,
    /// How many requests are held, on any port of the service.
    waiting: Arc<AtomicUsize>,
    queue: WaitQueue,
    pub(super) shared: Arc<Shared>,
}

/// The parameters of [`Port::acquire`].
#[derive(Debug, Default)]
pub struct SlotRequest {
    /// A fresh random number for the load balancer.
    pub seed: u64,
    /// How many bytes the request keeps in memory while it is held.
    pub buffered: usize,
    /// What [`Slot::refused`] returned, if this is not the first attempt.
    pub retry: Option<Retry>,
}

impl Port {
    pub(crate) fn new(
        name: PortName,
        service: &Arc<Service>,
        feed: Arc<SnapshotFeed>,
        (retries, meter): (Arc<RetryBudget>, Arc<LoadMeter>),
        shared: Arc<Shared>,
    ) -> Self {
        let waiting = Arc::clone(service.hold_count());
        Self {
            name,
            service: Arc::downgrade(service),
            feed,
            retries,
            meter,
            waiting,
            queue: WaitQueue::default(),
            shared,
        }
    }

    /// Its name.
    pub fn name(&self) -> &PortName {
        &self.name
    }

    /// How many requests are held on this port.
    pub fn holds(&self) -> usize {
        self.queue.holds()
    }

    /// Takes a slot if one is free now and no request is held. Otherwise returns `None` and does not count the request: call
    /// [`Port::acquire`].
    pub fn try_acquire(self: &Arc<Self>, seed: u64) -> Option<Slot> {
        let taken = self.pick_now(seed, &[])?;
        Some(self.slot(taken, self.begin()))
    }

    /// Like [`Port::try_acquire`], for a request that must not count as load: it is not counted and wakes no service.
    pub fn try_acquire_uncounted(self: &Arc<Self>, seed: u64) -> Option<Slot> {
        let taken = self.look(seed, &[])?;
        Some(self.slot(taken, Retry::none()))
    }

    /// Like [`Port::try_acquire_uncounted`], for a retry: excludes the endpoints that have refused the request.
    pub fn retry_uncounted(self: &Arc<Self>, seed: u64, retry: Retry) -> Option<Slot> {
        let taken = self.look(seed, &retry.refused)?;
        Some(self.slot(taken, retry))
    }

    /// Counts a request that does not wait for a pod, and wakes the service for later requests.
    pub fn announce(&self) {
        self.retries.earn();
        self.meter.count();
        // No pod is started for a removed port, or during a shutdown.
        if self.queue.closed().is_none() {
            self.want_wake();
        }
    }

    /// Wakes the service, unless it has a `Ready` endpoint.
    fn want_wake(&self) {
        if let Some(service) = self.service.upgrade().filter(|service| !service.snapshot().ready()) {
            service.want_wake();
        }
    }

    /// Waits for a slot until `deadline` completes. Dropping the future leaves the wait queue and gives a granted slot back.
    ///
    /// Also waits while the service has pods but none of them offers this port. A caller with another route checks
    /// [`Snapshot::routable`](crate::snapshot::Snapshot::routable) first.
    pub async fn acquire(
        self: &Arc<Self>,
        ask: SlotRequest,
        deadline: impl Future<Output = ()>,
    ) -> Result<Slot, AcquireError> {
        let retry = ask.retry.unwrap_or_else(|| self.begin());
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
            // A slot may have been granted since the first poll, and a slot is better than an error.
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

    /// Counts a request, until its last attempt is over.
    fn begin(&self) -> Retry {
        self.retries.earn();
        Retry { load: Some(self.meter.begin()), ..Retry::none() }
    }

    /// The fast path: no lock, no wait, no clock. Takes no slot while other requests are held, since those came first.
    fn pick_now(&self, seed: u64, refused: &[EndpointId]) -> Option<Taken> {
        let taken = self.look(seed, refused)?;
        if taken.endpoint.state != State::Ready {
            // Only draining pods are left: they still serve, but the service needs a new pod.
            self.want_wake();
        }
        Some(taken)
    }

    fn look(&self, seed: u64, refused: &[EndpointId]) -> Option<Taken> {
        if self.queue.blocks() {
            return None;
        }
        let snapshot = self.feed.newest();
        let capacity = snapshot.concurrency.limit.map_or(SlotLimit::Unlimited, SlotLimit::InFlight);
        let view = snapshot.port(&self.name)?;
        let endpoint = pick(view, capacity, refused, seed, &*self.shared.clock).ok()?;
        Some(Taken { endpoint: Arc::clone(endpoint), max_released: false })
    }

    /// Picks an endpoint for a held request. Without a concurrency limit, the limit on released requests applies.
    fn pick_held(&self, waiter: &Waiter) -> Result<Taken, PickError> {
        let snapshot = self.feed.newest();
        let view = snapshot.port(&self.name).ok_or(PickError::NoEndpoint)?;
        let capacity = snapshot
            .concurrency
            .limit
            .map_or(SlotLimit::Released(snapshot.concurrency.max_released), SlotLimit::InFlight);
        let endpoint = pick(view, capacity, &waiter.refused, waiter.seed, &*self.shared.clock)?;
        Ok(Taken { endpoint: Arc::clone(endpoint), max_released: matches!(capacity, SlotLimit::Released(_)) })
    }

    /// Joins the wait queue.
    fn hold(self: &Arc<Self>, seed: u64, buffered: usize, mut retry: Retry) -> Result<Hold, AcquireError> {
        let service = self.service.upgrade().ok_or(AcquireError::ServiceGone)?;
        if let Some(closed) = self.queue.closed() {
            return Err(closed);
        }
        let since = self.shared.clock.now();
        let permit = self.shared.holds.admit(&self.waiting, buffered);
        // Count the hold before reading the snapshot. Pairs with the fence in `Service::update`.
        fence();
        let snapshot = self.feed.newest();
        let (ready, view) = (snapshot.ready(), snapshot.port(&self.name));
        let routable = view.is_some_and(PortView::routable);
        let waits = permit.is_ok() && !routable;
        // Wake the service even if the wait queue is full: later requests should find a pod.
        let claim = (!ready).then(|| service.claim_wake());
        // After the claim: a request that sends a wake waits for its outcome, even if the last wake failed.
        let failed = if waits { service.start_failed() } else { None };
        retry.cold.start |= waits && failed.is_none();
        if waits && failed.is_none() {
            // Before the wake is sent: otherwise the record would miss the time of the wake, or an immediate failure.
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
        // A refused request backs off before it tries the same endpoints again, unless another endpoint can take it.
        let refused = std::mem::take(&mut retry.refused);
        let rest = (!refused.is_empty()).then_some(retry.rest);
        if rest.is_some() && view.is_some_and(|view| view.refuses(since)) {
            // The pods are `Ready` but refuse connections: a wake lets the engine react.
            service.want_wake();
            drop(permit);
            service.left();
            return Err(AcquireError::Refused);
        }
        let earlier = retry.ticket;
        // From here on the guard cleans up, also if `join` fails because the queue was closed.
        let mut hold = Hold { port: Arc::clone(self), ticket: None, retry, since, permit: Some(permit?) };
        let waiter = Waiter::new(seed, refused);
        let tickets = &self.shared.tickets;
        let ticket = self.queue.join(waiter, earlier, tickets, rest, |waiter| self.pick_held(waiter))?;
        (hold.ticket, hold.retry.ticket) = (Some(ticket), Some(ticket));
        // After `join`: a failure that became final just before ended the other holds, but not this one.
        if let Some(failure) = service.start_failed() {
            self.queue.turn_away_one(ticket, &AcquireError::StartFailed(failure));
            service.discard_cold_start(since);
        }
        // A timer ends a backoff or an ejection. A later ejection sets the timer itself, since it sees that this request
        // is held.
        if rest.is_some() || view.is_some_and(|view| view.any_ejected(since)) {
            service.reschedule();
        }
        Ok(hold)
    }

    /// Gives free slots to held requests.
    pub(crate) fn hand_out(&self) {
        self.queue.hand_out(|waiter| self.pick_held(waiter));
    }

    /// A pod has a free slot again: gives it to a request that is held on any port of the service.
    pub(super) fn hand_out_on_all(&self) {
        // Without the fence, this thread could miss the held request while that request misses the free slot, and it would
        // wait although a slot is free. Pairs with the fence in `WaitQueue::hand_out_locked`.
        fence();
        if self.waiting.load(Ordering::Relaxed) > 0
            && let Some(service) = self.service.upgrade()
        {
            service.hand_out();
        }
    }

    /// Moves requests whose retry backoff is over back into the wait queue.
    pub(crate) fn end_rests(&self, now: Moment) {
        self.queue.end_rests(now);
    }

    /// When the next retry backoff ends.
    pub(crate) fn next_end_of_rest(&self) -> Option<Moment> {
        self.queue.next_end_of_rest()
    }

    /// Ends all requests that are held now with `why`.
    pub(crate) fn turn_away(&self, why: &AcquireError) {
        self.queue.turn_away(why);
    }

    /// Ends all held requests with `why`, and refuses later ones.
    pub(crate) fn close(&self, why: &AcquireError) {
        self.queue.close(why);
    }

    fn slot(self: &Arc<Self>, taken: Taken, mut retry: Retry) -> Slot {
        if let Some(recorder) = &mut retry.cold.recorder {
            recorder.cold_start.pod = taken.endpoint.pod.as_ref().map(|pod| Arc::clone(&pod.name));
        }
        Slot { port: Arc::clone(self), endpoint: taken.endpoint, max_released: taken.max_released, retry }
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
    /// `None` once the request has its slot or its error.
    ticket: Option<Ticket>,
    retry: Retry,
    since: Moment,
    /// Counts against the hold limits until the request is served or leaves.
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
        if retry.cold.recorder.is_none() {
            retry.cold.recorder = self.port.service.upgrade().and_then(|service| service.take_cold_start());
        }
        Ok(self.port.slot(taken, retry))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && let Some(Ok(taken)) = self.port.queue.leave(ticket)
        {
            // The slot was granted just before the request left. Dropping it gives the slot to the next request.
            drop(self.port.slot(taken, Retry::none()));
        }
        // Release the permit before `left`, which counts the requests that are still held.
        let waited = self.permit.take().is_some();
        if waited && let Some(service) = self.port.service.upgrade() {
            service.left();
        }
    }
}
