//! Waking one service: when a wake is sent, when a failed start ends the wait, and the record of a cold start.

use std::sync::Arc;

use super::Service;
use crate::endpoint::State;
use crate::hold::AcquireError;
use crate::snapshot::{PortView, Snapshot};
use crate::start::StartFailure;
use crate::sync::lock;
use crate::time::Moment;
use crate::timeline::{Anatomy, ColdStart, ColdStartOutcome};

/// What [`Service::claim_wake`] decided.
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
    /// Why the last wake came to nothing, if it did and no pod has come since.
    pub fn wake_failure(&self) -> Option<Arc<StartFailure>> {
        lock(&self.wake).attempts.failure().cloned()
    }

    /// The engine could not wake the service, or not yet. If waiting does not mend that and no pod is starting, all
    /// holds end now.
    pub fn wake_failed(&self, failure: StartFailure) {
        let now = self.shared.clock.now();
        lock(&self.wake).attempts.failed(now, failure);
        self.judge(now);
        self.reschedule();
    }

    /// The engine does what a wake asked for. What failed before does not count any more.
    pub fn wake_progressed(&self) {
        lock(&self.wake).attempts.progressed();
        self.reschedule();
    }

    /// The service is another than the one whose starts failed: nothing that was before counts, and a wake is sent at
    /// once if requests wait.
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
            // Looked at under the lock: a pod that becomes ready after this clears the verdict after this.
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

    /// Why a request that would have to wait is turned away at once.
    pub fn start_failed(&self) -> Option<Arc<StartFailure>> {
        let wake = lock(&self.wake);
        let snapshot = self.feed.newest();
        wake.attempts.open().filter(|_| !snapshot.starting() && !snapshot.routable())
    }

    /// A request found no `Ready` endpoint.
    pub(crate) fn want_wake(&self) {
        self.send_claimed(&self.claim_wake());
    }

    /// Decides whether a wake is to be sent now. The claim must reach [`Service::send_claimed`], or the wake is lost.
    pub(crate) fn claim_wake(&self) -> WakeClaim {
        let now = self.shared.clock.now();
        let mut wake = lock(&self.wake);
        let before = wake.next();
        let send = wake.want(now, || self.shared.may_wake(&self.id, now));
        WakeClaim { now, send, rescheduled: wake.next() != before }
    }

    /// Sends the wake of `claim`, if it has one.
    pub(crate) fn send_claimed(&self, claim: &WakeClaim) {
        if claim.send {
            self.send_wake(claim.now);
        }
        if claim.rescheduled {
            self.reschedule();
        }
    }

    /// With no lock held: the engine may answer at once.
    pub(super) fn send_wake(&self, now: Moment) {
        if let Some(cold) = lock(&self.cold).as_mut() {
            cold.wake_sent.get_or_insert(now);
        }
        self.shared.engine.wake(&self.id);
    }

    /// A request begins to wait because nothing is routable.
    pub(crate) fn begin_cold_start(&self, now: Moment) {
        lock(&self.cold).get_or_insert_with(|| Box::new(ColdStart::new(self.id.clone(), now)));
        // A pod may be on its way already.
        self.stamp(&self.feed.newest(), now);
    }

    /// The request that began a cold start at `held` was turned away at once, since the start had failed before. No
    /// client waited for a pod, so there was no cold start. One that is waited for has a wake of its own.
    pub(crate) fn discard_cold_start(&self, held: Moment) {
        let mut cold = lock(&self.cold);
        cold.take_if(|cold| {
            cold.held == held && cold.wake_sent.is_none() && cold.outcome == ColdStartOutcome::Waiting
        });
    }

    /// The cold start under way, for the first request that it ends for.
    pub(crate) fn take_cold_start(&self) -> Option<Anatomy> {
        let cold_start = lock(&self.cold).take()?;
        Some(self.anatomy(cold_start))
    }

    fn anatomy(&self, cold_start: Box<ColdStart>) -> Anatomy {
        Anatomy::new(cold_start, Arc::clone(&self.shared.cold_starts), Arc::clone(&self.shared.clock))
    }

    /// A request reached its deadline. Other requests may wait longer and still be served.
    pub(crate) fn waited_in_vain(&self) {
        if let Some(cold) = lock(&self.cold).as_mut() {
            cold.outcome = ColdStartOutcome::Failed;
        }
    }

    /// A request left without a slot. If it was the last, the cold start is over.
    pub(crate) fn left(&self) {
        let mut cold = lock(&self.cold);
        // Counted under the lock: a request is counted before it begins a cold start.
        let over = if self.holds() == 0 { cold.take() } else { None };
        drop(cold);
        drop(over.map(|cold| self.anatomy(cold)));
    }

    /// Writes down how far the pods have come.
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
