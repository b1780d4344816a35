//! Holds the newest state of the pod and its version. Raises the version if a gateway plausibly reports a newer one.

use rouse_core::merge::{BootId, PushEvent, PushOrder};

/// What the gateways should know. Only the newest state is sent; each report has a sequence number of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PodState {
    boot: BootId,
    sequence: u64,
    /// `None` before the first report.
    event: Option<PushEvent>,
    /// The start time that this process took from its own clock.
    process_start: u64,
}

impl PodState {
    pub(super) fn new(boot: BootId) -> Self {
        Self { boot, sequence: 0, event: None, process_start: boot.started }
    }

    /// The order and the event; `None` before the first report.
    pub(super) fn newest(&self) -> Option<(PushOrder, PushEvent)> {
        Some((self.order(), self.event?))
    }

    fn order(&self) -> PushOrder {
        PushOrder { boot: self.boot, sequence: self.sequence }
    }

    /// Reports an event. Returns false after `draining`, which is final.
    pub(super) fn report(&mut self, event: PushEvent) -> bool {
        if self.event == Some(PushEvent::Draining) {
            return false;
        }
        self.sequence = self.sequence.saturating_add(1);
        self.event = Some(event);
        true
    }

    /// A gateway says that it knows `newest` of this pod. If that is newer than the state, the state takes an order after it:
    /// otherwise a sidecar that restarted with its clock set back would be stale for good.
    pub(super) fn advance_past(&mut self, newest: PushOrder, trust: AnswerTrust) -> Advance {
        if newest <= self.order() {
            return Advance::NotNeeded;
        }
        if !self.is_plausible(newest, trust) {
            return Advance::Rejected;
        }
        if newest.boot == self.boot {
            self.sequence = newest.sequence.saturating_add(1);
        } else {
            self.boot.started = newest.boot.started.saturating_add(1);
        }
        Advance::Advanced
    }

    /// Whether a gateway may know `newest`. An order that is too high would make every later state stale: no later state, and
    /// no later sidecar of the pod, would be newer.
    fn is_plausible(&self, newest: PushOrder, trust: AnswerTrust) -> bool {
        let limit = match trust {
            AnswerTrust::Verified => MAX_VERSION,
            AnswerTrust::Unverified { now } => {
                now.max(self.process_start).saturating_add(MAX_CLOCK_SKEW_MS).min(MAX_VERSION)
            }
        };
        let of_this_boot = newest.boot == self.boot;
        // A gateway has the sequence numbers of this boot from this process alone.
        let sequence = !of_this_boot || (trust == AnswerTrust::Verified && newest.sequence < MAX_VERSION);
        newest.boot.started < limit && sequence
    }
}

/// The latest start time, in milliseconds, and the highest sequence number of this boot that an answer can cause. Far from
/// the overflow, so that there is always a later one.
const MAX_VERSION: u64 = 1 << 62;
/// How much later than this process, in milliseconds, another sidecar of the pod can have started by its own clock. A gateway
/// accepts signatures of clocks that are 30 s ahead or behind, so the clocks of two sidecars differ by 60 s at most.
const MAX_CLOCK_SKEW_MS: u64 = 60_000;

/// How far an answer is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerTrust {
    /// It came over verified TLS.
    Verified,
    /// It may come from anywhere. `now` is the time of day, in milliseconds.
    Unverified { now: u64 },
}

/// What a stale answer has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advance {
    /// The state has an order after that of the answer.
    Advanced,
    /// The state is as new.
    NotNeeded,
    /// The answer cannot be true.
    Rejected,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOOT: BootId = BootId { started: 1000, id: 7 };

    #[test]
    fn draining_is_final() {
        let mut state = PodState::new(BOOT);
        assert_eq!(state.newest(), None);
        assert!(state.report(PushEvent::Ready) && state.report(PushEvent::Draining));
        assert!(!state.report(PushEvent::Ready));
        assert_eq!(state.newest(), Some((PushOrder { boot: BOOT, sequence: 2 }, PushEvent::Draining)));
    }

    proptest! {
        #[test]
        fn after_a_stale_answer_the_state_is_newer_than_what_the_gateway_knows(
            started in 0..MAX_VERSION, id: u64, sequence in 0..u64::MAX, reports in 1..5_u64
        ) {
            let mut state = PodState::new(BOOT);
            (0..reports).for_each(|_| assert!(state.report(PushEvent::Ready)));
            let (before, newest) = (state.order(), PushOrder { boot: BootId { started, id }, sequence });
            let changed = state.advance_past(newest, AnswerTrust::Verified);
            prop_assert_eq!(changed == Advance::Advanced, newest > before);
            prop_assert!(state.order() >= before && (state.order() > newest || state.order() == before));
            prop_assert_eq!(state.order().boot.id, BOOT.id, "it is the same process");
            prop_assert_eq!(state.advance_past(newest, AnswerTrust::Verified), Advance::NotNeeded);
        }

        #[test]
        fn no_forged_answer_moves_the_state_more_than_a_minute_ahead_of_the_clock_and_none_to_the_end_of_time(
            answers in prop::collection::vec((any::<bool>(), prop_oneof![0..200_000_u64, any::<u64>()], any::<u64>(), any::<u64>()), 1..20)
        ) {
            let (mut state, now) = (PodState::new(BOOT), BOOT.started + 5000);
            for (own, started, id, sequence) in answers {
                let boot = if own { state.order().boot } else { BootId { started, id } };
                let forged = PushOrder { boot, sequence };
                state.advance_past(forged, AnswerTrust::Unverified { now });
                prop_assert!(state.order().boot.started <= now + MAX_CLOCK_SKEW_MS);
                prop_assert_eq!(state.order().sequence, 0, "no answer knows more of this process than itself");
                // Also the true gateways are not believed everything.
                let mut verified = state;
                verified.advance_past(forged, AnswerTrust::Verified);
                prop_assert!(verified.order().boot.started <= MAX_VERSION && verified.order().sequence <= MAX_VERSION);
            }
        }
    }
}
