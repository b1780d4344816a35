//! The right to send one request to one endpoint, and how it is acquired.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::budget::RetryBudget;
use crate::endpoint::{Endpoint, PortName, State};
use crate::hold::{AcquireError, Grant, Line, Permit, Taken, Ticket, Waiter};
use crate::pick::{Capacity, EndpointId, NoPick, pick};
use crate::registry::House;
use crate::service::Home;
use crate::snapshot::{Feed, PortView};
use crate::time::Moment;
use crate::timeline::Anatomy;

/// One port of one service: where slots are acquired.
pub struct Port {
    name: PortName,
    service: Home,
    feed: Arc<Feed>,
    retries: Arc<RetryBudget>,
    line: Line,
    house: Arc<House>,
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
    waited: Duration,
    cold: Cold,
}

impl Retry {
    /// How many endpoints have refused the request.
    pub fn refusals(&self) -> usize {
        self.refused.len()
    }

    /// Forgets who refused: they may be asked again.
    pub fn forgive(&mut self) {
        self.refused.clear();
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
        service: Home,
        feed: Arc<Feed>,
        retries: Arc<RetryBudget>,
        house: Arc<House>,
    ) -> Self {
        Self { name, service, feed, retries, line: Line::default(), house }
    }

    /// Its name.
    pub fn name(&self) -> &PortName {
        &self.name
    }

    /// How many requests wait for this port.
    pub fn holds(&self) -> usize {
        self.line.len()
    }

    /// A slot, if one is free now and nobody waits for it.
    pub fn try_acquire(self: &Arc<Self>, seed: u64) -> Option<Slot> {
        self.retries.earn();
        Some(self.slot(self.pick_now(seed, &[])?, Retry::none()))
    }

    /// Waits for a slot until `deadline` is over. Dropping the future leaves the line and leaks nothing.
    pub async fn acquire(
        self: &Arc<Self>,
        ask: Ask,
        deadline: impl Future<Output = ()>,
    ) -> Result<Slot, AcquireError> {
        let retry = ask.retry.unwrap_or_else(|| {
            self.retries.earn();
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
                Poll::Pending => Poll::Ready(Err(AcquireError::Deadline)),
            }
        })
        .await
    }

    /// The quick way: no lock, no wait, no clock. Not while others wait, who were here first.
    fn pick_now(&self, seed: u64, refused: &[EndpointId]) -> Option<Taken> {
        if self.line.len() > 0 {
            return None;
        }
        let snapshot = self.feed.newest();
        let capacity = snapshot.spread.limit.map_or(Capacity::Unlimited, Capacity::PerPod);
        let view = snapshot.port(&self.name)?;
        let endpoint = pick(view, capacity, refused, seed, &*self.house.clock).ok()?;
        if endpoint.state != State::Ready {
            // The last pod is leaving: it serves, but somebody must come after it.
            self.want_wake();
        }
        Some(Taken { endpoint: Arc::clone(endpoint), herd: false })
    }

    /// What a hold may get.
    fn pick_held(&self, waiter: &Waiter) -> Result<Taken, NoPick> {
        let snapshot = self.feed.newest();
        let view = snapshot.port(&self.name).ok_or(NoPick::Nothing)?;
        let capacity = snapshot.spread.limit.map_or(Capacity::Herd(snapshot.spread.herd), Capacity::PerPod);
        let endpoint = pick(view, capacity, &waiter.refused, waiter.seed, &*self.house.clock)?;
        Ok(Taken { endpoint: Arc::clone(endpoint), herd: matches!(capacity, Capacity::Herd(_)) })
    }

    /// Gets in line.
    fn hold(self: &Arc<Self>, seed: u64, buffered: usize, retry: Retry) -> Result<Hold, AcquireError> {
        let service = self.service.upgrade().ok_or(AcquireError::ServiceGone)?;
        let since = self.house.clock.now();
        let (ready, routable) = {
            let snapshot = self.feed.newest();
            let view = snapshot.port(&self.name);
            (view.is_some_and(|view| view.best() == State::Ready), view.is_some_and(PortView::routable))
        };
        let permit = self.house.holds.admit(service.hold_count(), buffered);
        if permit.is_ok() && !routable {
            service.cold_start(since);
        }
        if !ready {
            // Also when the line is full: whoever comes next should find a pod.
            service.want_wake();
        }
        let permit = permit?;
        let waiter = Waiter::new(seed, retry.refused.clone());
        let ticket =
            self.line.join(waiter, retry.ticket, &self.house.tickets, |waiter| self.pick_held(waiter))?;
        let cold = Cold { start: retry.cold.start || !routable, ..retry.cold };
        let retry = Retry { ticket: Some(ticket), cold, ..retry };
        Ok(Hold { port: Arc::clone(self), place: Some((ticket, retry)), since, permit: Some(permit) })
    }

    /// Hands out what is free to those who wait.
    pub(crate) fn hand_out(&self) {
        if self.line.somebody_waits() {
            self.line.hand_out(|waiter| self.pick_held(waiter));
        }
    }

    /// Turns everybody away.
    pub(crate) fn close(&self, why: AcquireError) {
        self.line.close(why);
    }

    fn slot(self: &Arc<Self>, taken: Taken, retry: Retry) -> Slot {
        Slot { port: Arc::clone(self), endpoint: taken.endpoint, herd: taken.herd, retry }
    }

    fn want_wake(&self) {
        if let Some(service) = self.service.upgrade() {
            service.want_wake();
        }
    }
}

impl Retry {
    fn none() -> Self {
        Self { ticket: None, refused: Vec::new(), waited: Duration::ZERO, cold: Cold::default() }
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
    /// `None` once it was served.
    place: Option<(Ticket, Retry)>,
    since: Moment,
    /// Counts among the holds until it is served or leaves.
    permit: Option<Permit>,
}

impl Hold {
    fn poll(&mut self, context: &Context<'_>) -> Poll<Result<Slot, AcquireError>> {
        let Some((ticket, retry)) = self.place.take() else { return Poll::Pending };
        match self.port.line.poll(ticket, context) {
            Poll::Pending => {
                self.place = Some((ticket, retry));
                Poll::Pending
            }
            Poll::Ready(grant) => Poll::Ready(self.serve(grant, retry)),
        }
    }

    fn serve(&mut self, grant: Grant, mut retry: Retry) -> Result<Slot, AcquireError> {
        let taken = grant?;
        self.permit = None;
        retry.waited += self.port.house.clock.now().since(self.since);
        if retry.cold.start && retry.cold.anatomy.is_none() {
            retry.cold.anatomy = self.port.service.upgrade().and_then(|service| service.take_cold_start());
        }
        if let Some(anatomy) = &mut retry.cold.anatomy {
            anatomy.chose(taken.endpoint.pod.as_ref().map(|pod| &pod.name));
        }
        Ok(self.port.slot(taken, retry))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some((ticket, retry)) = self.place.take()
            && let Some(Ok(taken)) = self.port.line.leave(ticket)
        {
            // Handed over just before we left: the guard gives it back, and so passes it on.
            drop(self.port.slot(taken, retry));
        }
        if self.permit.take().is_some()
            && let Some(service) = self.port.service.upgrade()
        {
            service.left();
        }
    }
}

impl Slot {
    /// Where to send the request.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
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
        self.endpoint.load.connected();
        if let Some(anatomy) = &mut self.retry.cold.anatomy {
            anatomy.connected(self.port.house.clock.now());
        }
    }

    /// The response began. The endpoint has shown that it copes, so the next of the herd may come; a request
    /// that never ends, like an upgraded connection, would otherwise keep its place for good.
    pub fn answered(&mut self) {
        if let Some(anatomy) = self.retry.cold.anatomy.take() {
            anatomy.served(self.port.house.clock.now());
        }
        if std::mem::take(&mut self.herd) {
            self.endpoint.load.give_released();
            self.port.hand_out();
        }
    }

    /// The endpoint did not take the request: gives the slot back, and what the next try needs.
    /// `eject`: the endpoint is to blame, not our own side.
    pub fn refused(mut self, eject: bool) -> Retry {
        if eject {
            self.endpoint.load.eject(self.port.house.clock.now());
        }
        let mut retry = std::mem::replace(&mut self.retry, Retry::none());
        retry.refused.push(self.endpoint.id());
        retry
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.herd {
            self.endpoint.load.give_released();
        }
        self.endpoint.load.give();
        self.port.hand_out();
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}
