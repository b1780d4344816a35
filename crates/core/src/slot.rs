//! The right to send one request to one endpoint, and how it is acquired.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::budget::RetryBudget;
use crate::endpoint::{Endpoint, PortName, State};
use crate::hold::{AcquireError, Grant, Line, Permit, Taken, Ticket, Waiter};
use crate::pick::{Capacity, EndpointId, NoPick, pick};
use crate::registry::Shared;
use crate::service::Service;
use crate::snapshot::{Feed, PortView};
use crate::start::REFUSED_FOR;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::fence;
use crate::time::Moment;
use crate::timeline::Anatomy;

/// How long a request waits before it asks an endpoint again that refused it without being ejected.
const REST: Duration = Duration::from_millis(100);

/// One port of one service: where slots are acquired.
pub struct Port {
    name: PortName,
    service: Weak<Service>,
    feed: Arc<Feed>,
    retries: Arc<RetryBudget>,
    /// How many requests have asked for a slot, on any port.
    asked: Arc<AtomicU64>,
    /// How many wait for any port of the service.
    waiting: Arc<AtomicUsize>,
    line: Line,
    shared: Arc<Shared>,
}

/// A request's wish for a slot.
#[derive(Debug, Default)]
pub struct Ask {
    /// Fresh randomness for the choice.
    pub seed: u64,
    /// How many bytes the request keeps in memory while it waits.
    pub buffered: usize,
    /// What [`Slot::refused`] gave back, if this is not the first try.
    pub retry: Option<Retry>,
}

/// What a request takes along to its next try: its place in line, and who refused it.
#[derive(Debug)]
pub struct Retry {
    ticket: Option<Ticket>,
    refused: Vec<EndpointId>,
    /// When whoever refused it may be asked again, if nobody else can take it.
    rest: Moment,
    waited: Duration,
    cold: Cold,
}

impl Retry {
    /// How many endpoints have refused the request.
    pub fn refusals(&self) -> usize {
        self.refused.len()
    }
}

/// Whether the request waited for a pod to come up, and the anatomy of it if it was the first to.
#[derive(Debug, Default)]
struct Cold {
    start: bool,
    anatomy: Option<Anatomy>,
}

/// The right to send one request to one endpoint. Dropping it gives the slot back.
pub struct Slot {
    port: Arc<Port>,
    endpoint: Arc<Endpoint>,
    /// It holds a place in the herd.
    herd: bool,
    /// What the next try needs, if this one comes to nothing.
    retry: Retry,
}

impl Port {
    pub(crate) fn new(
        name: PortName,
        service: &Arc<Service>,
        feed: Arc<Feed>,
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
            line: Line::default(),
            shared,
        }
    }

    /// Its name.
    pub fn name(&self) -> &PortName {
        &self.name
    }

    /// How many requests wait for this port.
    pub fn holds(&self) -> usize {
        self.line.holds()
    }

    /// A slot, if one is free now and nobody waits for it. Otherwise nothing is counted: ask [`Port::acquire`].
    pub fn try_acquire(self: &Arc<Self>, seed: u64) -> Option<Slot> {
        let taken = self.pick_now(seed, &[])?;
        self.count();
        Some(self.slot(taken, Retry::none()))
    }

    /// As [`Port::try_acquire`], for a request that is no load: it is not counted, and asks for no pod.
    pub fn try_acquire_quietly(self: &Arc<Self>, seed: u64) -> Option<Slot> {
        let taken = self.look(seed, &[])?;
        Some(self.slot(taken, Retry::none()))
    }

    /// The same for one that was refused before: only somebody else will do.
    pub fn retry_quietly(self: &Arc<Self>, seed: u64, retry: Retry) -> Option<Slot> {
        let taken = self.look(seed, &retry.refused)?;
        Some(self.slot(taken, retry))
    }

    /// A request came that does not wait for a pod, but wants one for the next. It counts as load.
    pub fn announce(&self) {
        self.count();
        // Nobody starts a pod for a port that is no more, or while the gateway leaves.
        if self.line.closed().is_none() {
            self.want_wake();
        }
    }

    /// Asks for a pod, unless there is one.
    fn want_wake(&self) {
        if let Some(service) = self.service.upgrade().filter(|service| !service.snapshot().ready()) {
            service.want_wake();
        }
    }

    /// Waits for a slot until `deadline` is over. Dropping the future leaves the line and leaks nothing.
    ///
    /// A service whose pods are up but offer everything but this port makes its requests wait: whoever has
    /// another way for them asks [`Snapshot::routable`](crate::snapshot::Snapshot::routable) first.
    pub async fn acquire(
        self: &Arc<Self>,
        ask: Ask,
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

    /// The quick way: no lock, no wait, no clock. Not while others wait, who were here first.
    fn pick_now(&self, seed: u64, refused: &[EndpointId]) -> Option<Taken> {
        let taken = self.look(seed, refused)?;
        if taken.endpoint.state != State::Ready {
            // The last pod is leaving: it serves, but somebody must come after it.
            self.want_wake();
        }
        Some(taken)
    }

    fn look(&self, seed: u64, refused: &[EndpointId]) -> Option<Taken> {
        if self.line.blocks() {
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

    /// Gets in line.
    fn hold(self: &Arc<Self>, seed: u64, buffered: usize, mut retry: Retry) -> Result<Hold, AcquireError> {
        let service = self.service.upgrade().ok_or(AcquireError::ServiceGone)?;
        if let Some(closed) = self.line.closed() {
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
        // Also when the line is full: the next request should find a pod.
        let claim = (!ready).then(|| service.claim_wake());
        // After the claim: a wake of our own is waited for, whatever became of the last one.
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
        // Whoever was refused stands beside the line for a while, unless somebody else can take it.
        let refused = std::mem::take(&mut retry.refused);
        let rest = (!refused.is_empty()).then_some(retry.rest);
        if rest.is_some() && view.is_some_and(|view| view.refuses(since)) {
            // Ready, and yet of no use: perhaps the engine can do something about it.
            service.want_wake();
            return Err(AcquireError::Refused);
        }
        let earlier = retry.ticket;
        // From here on the guard leaves again for us, also if the line was closed just now.
        let mut hold = Hold { port: Arc::clone(self), ticket: None, retry, since, permit: Some(permit?) };
        let waiter = Waiter::new(seed, refused);
        let tickets = &self.shared.tickets;
        let ticket = self.line.join(waiter, earlier, tickets, rest, |waiter| self.pick_held(waiter))?;
        (hold.ticket, hold.retry.ticket) = (Some(ticket), Some(ticket));
        // In this order: a failure that became final before we joined turned others away, but not us.
        if let Some(failure) = service.start_failed() {
            self.line.turn_away_one(ticket, &AcquireError::StartFailed(failure));
            service.discard_cold_start(since);
        }
        // A rest or an ejection ends by time, and somebody must look then. Whoever is ejected from now on looks
        // after that itself, since we are counted.
        if rest.is_some() || view.is_some_and(|view| view.somebody_is_out(since)) {
            service.reschedule();
        }
        Ok(hold)
    }

    /// Hands out what is free to those who wait.
    pub(crate) fn hand_out(&self) {
        self.line.hand_out(|waiter| self.pick_held(waiter));
    }

    /// A pod has room again, on whichever of its ports somebody waits for it.
    fn hand_out_on_all(&self) {
        // A giver that sees nobody and a newcomer that sees no free slot must not both be right, or the
        // newcomer sleeps beside the slot. The other half of this fence is in `Line::hand_out_locked`.
        fence();
        if self.waiting.load(Ordering::Relaxed) > 0
            && let Some(service) = self.service.upgrade()
        {
            service.hand_out();
        }
    }

    /// Lets those who have rested back into the line.
    pub(crate) fn end_rests(&self, now: Moment) {
        self.line.end_rests(now);
    }

    /// When the next of those has rested.
    pub(crate) fn next_end_of_rest(&self) -> Option<Moment> {
        self.line.next_end_of_rest()
    }

    /// Turns away those who wait now.
    pub(crate) fn turn_away(&self, why: &AcquireError) {
        self.line.turn_away(why);
    }

    /// Turns away every request that waits, and all later ones.
    pub(crate) fn close(&self, why: &AcquireError) {
        self.line.close(why);
    }

    fn slot(self: &Arc<Self>, taken: Taken, mut retry: Retry) -> Slot {
        if let Some(anatomy) = &mut retry.cold.anatomy {
            anatomy.cold_start.pod = taken.endpoint.pod.as_ref().map(|pod| Arc::clone(&pod.name));
        }
        Slot { port: Arc::clone(self), endpoint: taken.endpoint, herd: taken.herd, retry }
    }
}

impl Retry {
    fn none() -> Self {
        Self {
            ticket: None,
            refused: Vec::new(),
            rest: Moment::ZERO,
            waited: Duration::ZERO,
            cold: Cold::default(),
        }
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("name", &self.name).field("holds", &self.holds()).finish_non_exhaustive()
    }
}

/// A place in line. Dropping it leaves the line.
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
        self.port.line.poll(ticket, context).map(|grant| {
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
            && let Some(Ok(taken)) = self.port.line.leave(ticket)
        {
            // Handed over just before we left: the guard gives it back, and so passes it on.
            drop(self.port.slot(taken, Retry::none()));
        }
        // Before `left`, which asks whether anybody is left.
        let waited = self.permit.take().is_some();
        if waited && let Some(service) = self.port.service.upgrade() {
            service.left();
        }
    }
}

impl Slot {
    /// Where to send the request.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Whether the newest snapshot still offers this endpoint at its addresses. A request that has waited since it got
    /// the slot asks before it is sent: the pod may have left, or be at another address.
    pub fn is_current(&self) -> bool {
        let snapshot = self.port.feed.newest();
        let endpoints = snapshot.port(&self.port.name).map(PortView::endpoints).unwrap_or_default();
        let same = endpoints.iter().find(|one| Arc::ptr_eq(&one.health, &self.endpoint.health));
        same.is_some_and(|one| matches!(one.state, State::Ready | State::Draining))
    }

    /// Whether the request waited because nothing was routable.
    pub fn cold_start(&self) -> bool {
        self.retry.cold.start
    }

    /// How long the request waited, in all its tries.
    pub fn waited(&self) -> Duration {
        self.retry.waited
    }

    /// A connection to the endpoint stands.
    pub fn connected(&mut self) {
        if let Some(anatomy) = &mut self.retry.cold.anatomy {
            anatomy.cold_start.connected = Some(self.port.shared.clock.now());
        }
        if self.endpoint.health.connected() {
            // It was out, and is not any more: room for those who wait.
            self.port.hand_out();
        }
    }

    /// The request was sent, and no response came: the pod reset the connection, or its time was up. Several in a row
    /// eject the endpoint. Answers whether this one did.
    pub fn unanswered(&self) -> bool {
        self.port.service.upgrade().is_some_and(|service| service.unanswered(&self.port.name, &self.endpoint))
    }

    /// The response began. The endpoint has shown that it copes, so the next of the herd may come; a request
    /// that never ends, like an upgraded connection, would otherwise keep its place for good.
    pub fn answered(&mut self) {
        if self.endpoint.health.answered() {
            self.port.hand_out();
        }
        if let Some(anatomy) = self.retry.cold.anatomy.take() {
            anatomy.served(self.port.shared.clock.now());
        }
        if std::mem::take(&mut self.herd) {
            self.endpoint.load.give_released();
            self.port.hand_out_on_all();
        }
    }

    /// The endpoint did not take the request: gives the slot back, and what the next try needs.
    /// `eject`: the endpoint is to blame, not our own side.
    pub fn refused(mut self, eject: bool) -> Retry {
        let now = self.port.shared.clock.now();
        let mut retry = std::mem::replace(&mut self.retry, Retry::none());
        retry.rest = if eject { self.eject(now) } else { now + REST };
        retry.refused.push(self.endpoint.id());
        if eject && let Some(service) = self.port.service.upgrade() {
            // Those who wait get their chance when the ejection ends.
            service.reschedule();
        }
        retry
    }
}

impl Slot {
    /// Keeps the endpoint out for a while. Answers when the request may ask it again: not later than when it is known
    /// to refuse for good, so that there is fresh evidence of it.
    fn eject(&self, now: Moment) -> Moment {
        let health = &self.endpoint.health;
        let until = health.refused(now);
        let known = health.refusing_since().map(|since| since + REFUSED_FOR).filter(|known| now < *known);
        known.map_or(until, |known| until.min(known))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.herd {
            self.endpoint.load.give_released();
        }
        self.endpoint.load.give();
        self.port.hand_out_on_all();
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}
