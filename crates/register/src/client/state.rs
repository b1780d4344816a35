//! The newest state of the pod, and its order among all that the pod has ever said.

use rouse_core::merge::{BootId, PushEvent, PushOrder};

/// What the gateways should know. Only the newest state is sent; each report has a sequence number of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PodState {
    boot: BootId,
    sequence: u64,
    /// `None` before the first report.
    event: Option<PushEvent>,
}

impl PodState {
    pub(super) fn new(boot: BootId) -> Self {
        Self { boot, sequence: 0, event: None }
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
        // Saturating: a forged answer may have set it to the largest number.
        self.sequence = self.sequence.saturating_add(1);
        self.event = Some(event);
        true
    }

    /// A gateway knows `newest` of this pod. If that is newer than the state, the state takes an order after it: otherwise a
    /// sidecar that restarted with its clock set back would be stale for good. Returns whether the order changed.
    pub(super) fn continue_after(&mut self, newest: PushOrder) -> bool {
        if newest <= self.order() {
            return false;
        }
        if newest.boot == self.boot {
            self.sequence = newest.sequence.saturating_add(1);
        } else {
            self.boot.started = newest.boot.started.saturating_add(1);
        }
        true
    }
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
            started in 0..u64::MAX - 1, id: u64, sequence in 0..u64::MAX - 1, reports in 1..5_u64
        ) {
            let mut state = PodState::new(BOOT);
            (0..reports).for_each(|_| assert!(state.report(PushEvent::Ready)));
            let (before, newest) = (state.order(), PushOrder { boot: BootId { started, id }, sequence });
            let changed = state.continue_after(newest);
            prop_assert_eq!(changed, newest > before);
            prop_assert!(state.order() >= before && (state.order() > newest || state.order() == before));
            prop_assert_eq!(state.order().boot.id, BOOT.id, "it is the same process");
            prop_assert!(!state.continue_after(newest));
        }
    }
}
