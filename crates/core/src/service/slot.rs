//! A slot: the right to send one request to one endpoint, and what a refused request keeps for its next try.

use std::sync::Arc;
use std::time::Duration;

use super::Port;
use crate::endpoint::{Endpoint, EndpointId, State};
use crate::hold::Ticket;
use crate::snapshot::PortView;
use crate::start::REFUSED_FOR;
use crate::time::Moment;
use crate::timeline::Anatomy;

/// How long a request waits before it asks an endpoint again that refused it without being ejected.
const REST: Duration = Duration::from_millis(100);

/// What a request keeps for its next try: its place in the wait queue, and the endpoints that refused it.
#[derive(Debug)]
pub struct Retry {
    pub(super) ticket: Option<Ticket>,
    pub(super) refused: Vec<EndpointId>,
    /// When an endpoint that refused it may be tried again, if no other endpoint can take it.
    pub(super) rest: Moment,
    pub(super) waited: Duration,
    pub(super) cold: Cold,
}

impl Retry {
    /// How many endpoints have refused the request.
    pub fn refusals(&self) -> usize {
        self.refused.len()
    }
}

/// Whether the request waited for a pod to start, and the record of the cold start if it was the first to wait.
#[derive(Debug, Default)]
pub(super) struct Cold {
    pub(super) start: bool,
    pub(super) anatomy: Option<Anatomy>,
}

/// The right to send one request to one endpoint. Dropping it gives the slot back.
pub struct Slot {
    pub(super) port: Arc<Port>,
    pub(super) endpoint: Arc<Endpoint>,
    /// It holds a place in the herd.
    pub(super) herd: bool,
    /// What the next try needs, if this one comes to nothing.
    pub(super) retry: Retry,
}

impl Retry {
    pub(super) fn none() -> Self {
        Self {
            ticket: None,
            refused: Vec::new(),
            rest: Moment::ZERO,
            waited: Duration::ZERO,
            cold: Cold::default(),
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
            // It is no longer ejected: waiting requests can have its slots.
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
            // Waiting requests are tried again when the ejection ends.
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
