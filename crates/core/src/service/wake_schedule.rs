//! The wake schedule: one wake for the first request that needs a pod, repeated with exponential backoff while requests wait.

use std::time::Duration;

use crate::start_failure::Attempts;
use crate::time::Moment;

/// Decides when to send a service's wakes: one for the first request that needs a pod, repeated with backoff while requests
/// wait, never one per request.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    asked: Option<Asked>,
    /// The outcomes of the wakes.
    pub(crate) attempts: Attempts,
}

/// The wakes that were sent since a pod was last ready.
#[derive(Debug)]
struct Asked {
    times: u32,
    /// When the wake is repeated; `None` once that time came and no request waited.
    again: Option<Moment>,
    /// The wake budget was charged for this service. Repetitions are free.
    allowed: bool,
}

impl Wake {
    const FIRST_PAUSE: Duration = Duration::from_millis(250);
    const LONGEST_PAUSE: Duration = Duration::from_secs(10);

    /// A request needs a pod. Returns whether to send a wake now; `budget` takes one wake from the budget, if there is one.
    pub(crate) fn want(&mut self, now: Moment, budget: impl FnOnce() -> bool) -> bool {
        self.next().is_none() && self.send(now, budget)
    }

    /// The timer fired. Returns whether to repeat the wake; `wanted`: a request still waits.
    pub(crate) fn again(&mut self, now: Moment, wanted: bool, budget: impl FnOnce() -> bool) -> bool {
        if self.next().is_none_or(|due| now < due) {
            return false;
        }
        if let (false, Some(asked)) = (wanted, &mut self.asked) {
            (asked.again, asked.allowed) = (None, false);
            return false;
        }
        self.send(now, budget)
    }

    fn send(&mut self, now: Moment, budget: impl FnOnce() -> bool) -> bool {
        let asked = self.asked.get_or_insert(Asked { times: 0, again: None, allowed: false });
        asked.allowed = asked.allowed || budget();
        if !asked.allowed {
            // The budget caused this delay, not the engine: try again soon, without backoff.
            asked.again = Some(now + Self::FIRST_PAUSE);
            return false;
        }
        let pause = Self::FIRST_PAUSE.saturating_mul(1 << asked.times.min(16)).min(Self::LONGEST_PAUSE);
        (asked.times, asked.again) = (asked.times + 1, Some(now + pause));
        self.attempts.sent();
        true
    }

    /// A pod is ready: the schedule starts over.
    pub(crate) fn satisfied(&mut self) {
        *self = Self::default();
    }

    /// When [`Wake::again`] is to be called.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.asked.as_ref()?.again
    }

    /// The next deadline: a repeated wake, or a failure that becomes final.
    pub(crate) fn due(&self, now: Moment) -> Option<Moment> {
        self.next().into_iter().chain(self.attempts.due(now)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wake_is_sent_however_many_want_it_and_repeated_ever_more_slowly() {
        let (mut wake, mut now, mut leave) = (Wake::default(), Moment::ZERO, 0);
        let mut budget = || {
            leave += 1;
            true
        };
        assert_eq!((0..1000).filter(|_| wake.want(now, &mut budget)).count(), 1);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let due = wake.next().unwrap();
            pauses.push(due.since(now).as_millis());
            now = due;
            assert!(wake.again(now, true, &mut budget) && !wake.again(now, true, &mut budget));
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        assert_eq!(leave, 1, "a repetition wakes no further service");
    }

    #[test]
    fn without_waiting_requests_nothing_is_due_and_the_backoff_is_kept() {
        let mut wake = Wake::default();
        assert!(wake.want(Moment::ZERO, || true));
        assert!(!wake.again(Moment::from_secs(1), false, || true));
        assert_eq!(wake.next(), None);
        assert!(!wake.want(Moment::from_secs(2), || false), "it is a new wake for the budget");
        assert!(wake.again(Moment::from_secs(3), true, || true));
        assert_eq!(wake.next(), Some(Moment::from_millis(3500)), "the second pause, not the first again");
    }

    #[test]
    fn a_wake_beyond_the_budget_is_tried_again_soon() {
        let mut wake = Wake::default();
        assert!(!wake.want(Moment::ZERO, || false));
        for _ in 0..5 {
            let due = wake.next().unwrap();
            assert!(!wake.again(due, true, || false));
            assert_eq!(wake.next(), Some(due + Wake::FIRST_PAUSE));
        }
    }
}
