//! Waking one service: sends wakes, ends all holds when a start fails for good, and records the cold start.

use std::sync::Arc;

use super::Service;
use crate::cold_start::{ColdStart, ColdStartOutcome, ColdStartRecorder};
use crate::endpoint::State;
use crate::hold::AcquireError;
use crate::snapshot::{PortView, Snapshot};
use crate::start_failure::StartFailure;
use crate::sync::lock;
use crate::time::Moment;

/// The decision of [`Service::claim_wake`].
#[derive(Debug)]
#[must_use = "a claimed wake that is not sent is lost"]
pub(crate) struct WakeClaim {
    now: Moment,
    /// This request sends the wake.
    send: bool,
    /// The time of the next wake changed.
    rescheduled: bool,
}

impl Service {
    /// Why the last wake failed, if it failed and the engine has made no progress since.
    pub fn wake_failure(&self) -> Option<Arc<StartFailure>> {
        lock(&self.wake).attempts.failure().cloned()
    }

    /// The engine failed to wake the service, or has not woken it yet. If the failure is final and no pod is starting, all
    /// holds end now.
    pub fn wake_failed(&self, failure: StartFailure) {
        let now = self.shared.clock.now();
        lock(&self.wake).attempts.failed(now, failure);
        self.judge(now);
        self.reschedule();
    }

    /// The engine makes progress with the wake. Earlier failures no longer count.
    pub fn wake_progressed(&self) {
        lock(&self.wake).attempts.progressed();
        self.reschedule();
    }

    /// The service's configuration changed: earlier failures no longer count, and a wake is sent at once if requests are
    /// held.
    pub fn start_over(&self) {
        lock(&self.wake).satisfied();
        if self.holds() > 0 && !self.feed.newest().ready() {
            self.want_wake();
        }
        self.reschedule();
    }

    /// Ends all holds if the last failure is final.
    pub(super) fn judge(&self, now: Moment) {
        let failure = {
            let mut wake = lock(&self.wake);
            // Read under the lock: a pod that becomes ready later then also clears the failure later.
            let snapshot = self.feed.newest();
            wake.attempts.judge(now, snapshot.starting() || snapshot.routable())
        };
        let Some(failure) = failure else { return };
        if let Some(cold) = lock(&self.cold).as_mut() {
            cold.outcome = ColdStartOutcome::Failed;
        }
        let why = AcquireError::StartFailed(failure);
        self.ports().iter().for_each(|port| port.turn_away(&why));
    }

    /// Why a request that would have to wait fails at once, if it does.
    pub fn start_failed(&self) -> Option<Arc<StartFailure>> {
        let wake = lock(&self.wake);
        let snapshot = self.feed.newest();
        wake.attempts.open().filter(|_| !snapshot.starting() && !snapshot.routable())
    }

    /// Wakes the service, because a request found no `Ready` endpoint. The schedule and the budget limit how often.
    pub(crate) fn want_wake(&self) {
        self.send_claimed(&self.claim_wake());
    }

    /// Decides whether to send a wake now. The caller must pass the claim to [`Service::send_claimed`], or the wake is lost.
    pub(crate) fn claim_wake(&self) -> WakeClaim {
        let now = self.shared.clock.now();
        let mut wake = lock(&self.wake);
        let before = wake.next();
        let send = wake.want(now, || self.shared.may_wake(&self.id, now));
        WakeClaim { now, send, rescheduled: wake.next() != before }
    }

    /// Sends the wake if `claim` has one.
    pub(crate) fn send_claimed(&self, claim: &WakeClaim) {
        if claim.send {
            self.send_wake(claim.now);
        }
        if claim.rescheduled {
            self.reschedule();
        }
    }

    /// Sends a wake. Must be called without a lock: the engine may call back into the service.
    pub(super) fn send_wake(&self, now: Moment) {
        if let Some(cold) = lock(&self.cold).as_mut() {
            cold.wake_sent.get_or_insert(now);
        }
        self.shared.engine.wake(&self.id);
    }

    /// A request is held because no endpoint is routable: begins the record of a cold start, unless there is one.
    pub(crate) fn begin_cold_start(&self, now: Moment) {
        lock(&self.cold).get_or_insert_with(|| Box::new(ColdStart::new(self.id.clone(), now)));
        // A pod may be starting already.
        self.stamp(&self.feed.newest(), now);
    }

    /// Discards the cold start that began at `held`, because its request failed at once: the start had failed before. No
    /// client waited for a pod, so there was no cold start. A cold start whose wake was sent is kept.
    pub(crate) fn discard_cold_start(&self, held: Moment) {
        let mut cold = lock(&self.cold);
        cold.take_if(|cold| {
            cold.held == held && cold.wake_sent.is_none() && cold.outcome == ColdStartOutcome::Waiting
        });
    }

    /// Takes the cold start in progress, for the first request that gets a slot.
    pub(crate) fn take_cold_start(&self) -> Option<ColdStartRecorder> {
        let cold_start = lock(&self.cold).take()?;
        Some(self.recorder(cold_start))
    }

    fn recorder(&self, cold_start: Box<ColdStart>) -> ColdStartRecorder {
        ColdStartRecorder::new(
            cold_start,
            Arc::clone(&self.shared.cold_starts),
            Arc::clone(&self.shared.clock),
        )
    }

    /// A held request reached its deadline. Other requests may wait longer and still be served.
    pub(crate) fn waited_in_vain(&self) {
        if let Some(cold) = lock(&self.cold).as_mut() {
            cold.outcome = ColdStartOutcome::Failed;
        }
    }

    /// A held request left without a slot. If it was the last, the cold start is over.
    pub(crate) fn left(&self) {
        let mut cold = lock(&self.cold);
        // Count under the lock: a request is counted before it begins a cold start.
        let over = if self.holds() == 0 { cold.take() } else { None };
        drop(cold);
        drop(over.map(|cold| self.recorder(cold)));
    }

    /// Records in the cold start when a pod was first seen and when one became ready.
    pub(super) fn stamp(&self, snapshot: &Snapshot, now: Moment) {
        let mut cold = lock(&self.cold);
        let Some(cold) = cold.as_mut() else { return };
        let endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
        let Some(best) = endpoints.max_by_key(|endpoint| endpoint.state) else { return };
        if best.state > State::Gone {
            cold.pod_seen.get_or_insert(now);
        }
        if best.state >= State::Draining && cold.pod_ready.is_none() {
            cold.pod_ready = Some(now);
            cold.ready_by = Some(best.source);
        }
    }
}
