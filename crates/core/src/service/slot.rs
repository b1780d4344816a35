//! A slot: the right to send one request to one endpoint, and the state that a refused request keeps for its retry.

use std::sync::Arc;
use std::time::Duration;

use super::Port;
use crate::cold_start::ColdStartRecorder;
use crate::endpoint::{Endpoint, EndpointId, State};
use crate::hold::Ticket;
use crate::load_meter::LoadGuard;
use crate::snapshot::PortView;
use crate::start_failure::REFUSED_FOR;
use crate::time::Moment;

/// The retry backoff for an endpoint that refused a request without being ejected.
const REST: Duration = Duration::from_millis(100);

/// What a request keeps for its next attempt: its place in the wait queue, and the endpoints that refused it.
#[derive(Debug)]
pub struct Retry {
    pub(super) ticket: Option<Ticket>,
    pub(super) refused: Vec<EndpointId>,
    /// The end of the backoff: when the endpoints that refused the request may be tried again.
    pub(super) rest: Moment,
    pub(super) waited: Duration,
    pub(super) cold: Cold,
    /// Counts the request as load of the service; `None` for a request that is no load.
    #[expect(dead_code, reason = "a guard: it counts until it is dropped")]
    pub(super) load: Option<LoadGuard>,
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
    pub(super) recorder: Option<ColdStartRecorder>,
}

/// The right to send one request to one endpoint. Dropping it gives the slot back.
pub struct Slot {
    pub(super) port: Arc<Port>,
    pub(super) endpoint: Arc<Endpoint>,
    /// Whether the slot counts against the limit on released requests.
    pub(super) max_released: bool,
    /// What the next attempt needs, if this one fails.
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
            load: None,
        }
    }
}

impl Slot {
    /// The endpoint to send the request to.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Whether the newest snapshot still has this endpoint at the same addresses. Check it before sending a request that
    /// was delayed after it got the slot: the pod may be gone or have another address.
    pub fn is_current(&self) -> bool {
        self.newest().is_some_and(|one| matches!(one.state, State::Ready | State::Draining))
    }

    /// The endpoint as the newest snapshot has it, at the same addresses; `None` if it has left.
    pub fn newest(&self) -> Option<Arc<Endpoint>> {
        let snapshot = self.port.feed.newest();
        let endpoints = snapshot.port(&self.port.name).map(PortView::endpoints).unwrap_or_default();
        endpoints.iter().find(|one| Arc::ptr_eq(&one.health, &self.endpoint.health)).map(Arc::clone)
    }

    /// Whether the request was held because no endpoint was routable.
    pub fn cold_start(&self) -> bool {
        self.retry.cold.start
    }

    /// How long the request was held, in all its attempts.
    pub fn waited(&self) -> Duration {
        self.retry.waited
    }

    /// A connection to the endpoint is established.
    pub fn connected(&mut self) {
        if let Some(recorder) = &mut self.retry.cold.recorder {
            recorder.cold_start.connected = Some(self.port.shared.clock.now());
        }
        if self.endpoint.health.connected() {
            // The endpoint is no longer ejected: held requests can use its slots.
            self.port.hand_out();
        }
    }

    /// The request was sent and got no response: the pod reset the connection, or the request timed out. Several in a row
    /// eject the endpoint. Returns whether this one did.
    pub fn unanswered(&self) -> bool {
        self.port.service.upgrade().is_some_and(|service| service.unanswered(&self.port.name, &self.endpoint))
    }

    /// The response began. The slot no longer counts against the limit on released requests: a request that never ends,
    /// like an upgraded connection, would otherwise count for ever.
    pub fn answered(&mut self) {
        if self.endpoint.health.answered() {
            self.port.hand_out();
        }
        if let Some(recorder) = self.retry.cold.recorder.take() {
            recorder.served(self.port.shared.clock.now());
        }
        if std::mem::take(&mut self.max_released) {
            self.endpoint.load.give_released();
            self.port.hand_out_on_all();
        }
    }

    /// The endpoint did not take the request: gives the slot back, and returns what the next attempt needs. Set `eject` if
    /// the endpoint caused the failure, and not our own side.
    pub fn refused(mut self, eject: bool) -> Retry {
        let now = self.port.shared.clock.now();
        let mut retry = std::mem::replace(&mut self.retry, Retry::none());
        retry.rest = if eject { self.eject(now) } else { now + REST };
        retry.refused.push(self.endpoint.id());
        if eject && let Some(service) = self.port.service.upgrade() {
            // Held requests are tried again when the ejection ends.
            service.reschedule();
        }
        retry
    }
}

impl Slot {
    /// Ejects the endpoint. Returns when this request may try it again: at the latest after it has refused connections for
    /// [`REFUSED_FOR`], so that the decision to fail the request is based on a fresh attempt.
    fn eject(&self, now: Moment) -> Moment {
        let health = &self.endpoint.health;
        let until = health.refused(now);
        let known = health.refusing_since().map(|since| since + REFUSED_FOR).filter(|known| now < *known);
        known.map_or(until, |known| until.min(known))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.max_released {
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
