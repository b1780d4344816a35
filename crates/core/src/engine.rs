//! What the core asks of an engine: local processes, or Kubernetes.
//!
//! Facts come the other way: an engine writes slices, and the outcome of wakes, into the
//! [`Registry`](crate::registry::Registry).

use std::time::Duration;

use crate::endpoint::ServiceId;
use crate::time::Moment;

/// Brings pods up.
pub trait Engine: Send + Sync {
    /// Somebody waits for this service. Called from the request path, so it must return at once: hand the wake
    /// over and report a failure by [`Service::wake_failed`](crate::service::Service::wake_failed).
    fn wake(&self, service: &ServiceId);
}

/// When to send a service's wakes: one for the first who needs it, repeated with backoff while somebody waits,
/// never one per request.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    asked: Option<Asked>,
    /// Why the last one came to nothing, in the engine's words.
    failure: Option<String>,
}

/// The wakes since a pod was last ready.
#[derive(Debug)]
struct Asked {
    times: u32,
    /// When there may be another; `None` once that time has come and nobody waited.
    again: Option<Moment>,
    /// The budget has allowed for this service to be woken; repetitions cost nothing more.
    allowed: bool,
}

impl Wake {
    const FIRST_PAUSE: Duration = Duration::from_millis(250);
    const LONGEST_PAUSE: Duration = Duration::from_secs(10);
    /// Longer reasons are cut: they end up in responses.
    const LONGEST_REASON: usize = 512;

    /// Somebody needs a pod. Answers whether a wake is to be sent now; `budget` is asked for leave to wake one
    /// more service.
    pub(crate) fn want(&mut self, now: Moment, budget: impl FnOnce() -> bool) -> bool {
        self.due().is_none() && self.send(now, budget)
    }

    /// Time has passed. As [`Wake::want`], if somebody still waits.
    pub(crate) fn again(&mut self, now: Moment, wanted: bool, budget: impl FnOnce() -> bool) -> bool {
        if self.due().is_none_or(|due| now < due) {
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
            // Not the engine's delay but ours: soon again, and no slower each time.
            asked.again = Some(now + Self::FIRST_PAUSE);
            return false;
        }
        let pause = Self::FIRST_PAUSE.saturating_mul(1 << asked.times.min(16)).min(Self::LONGEST_PAUSE);
        (asked.times, asked.again) = (asked.times + 1, Some(now + pause));
        true
    }

    /// A pod is ready: the next time none is, is a new story.
    pub(crate) fn satisfied(&mut self) {
        *self = Self::default();
    }

    /// The engine could not.
    pub(crate) fn failed(&mut self, reason: &str) {
        let end = reason.char_indices().nth(Self::LONGEST_REASON).map_or(reason.len(), |(at, _)| at);
        self.failure = reason.get(..end).map(str::to_owned);
    }

    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// When [`Wake::again`] has something to do.
    pub(crate) fn due(&self) -> Option<Moment> {
        self.asked.as_ref()?.again
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
            let due = wake.due().unwrap();
            pauses.push(due.since(now).as_millis());
            now = due;
            assert!(wake.again(now, true, &mut budget) && !wake.again(now, true, &mut budget));
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        assert_eq!(leave, 1, "a repetition wakes no further service");
    }

    #[test]
    fn when_nobody_waits_there_is_nothing_due_and_the_backoff_is_kept() {
        let mut wake = Wake::default();
        assert!(wake.want(Moment::ZERO, || true));
        assert!(!wake.again(Moment::from_secs(1), false, || true));
        assert_eq!(wake.due(), None);
        assert!(!wake.want(Moment::from_secs(2), || false), "it is a new wake for the budget");
        assert!(wake.again(Moment::from_secs(3), true, || true));
        assert_eq!(wake.due(), Some(Moment::from_millis(3500)), "the second pause, not the first again");
    }

    #[test]
    fn a_wake_beyond_the_budget_is_tried_again_soon() {
        let mut wake = Wake::default();
        assert!(!wake.want(Moment::ZERO, || false));
        for _ in 0..5 {
            let due = wake.due().unwrap();
            assert!(!wake.again(due, true, || false));
            assert_eq!(wake.due(), Some(due + Wake::FIRST_PAUSE));
        }
    }

    #[test]
    fn a_failure_is_told_until_a_pod_is_there() {
        let mut wake = Wake::default();
        wake.failed(&"ü".repeat(600));
        assert_eq!(wake.failure().map(|reason| reason.chars().count()), Some(512));
        wake.satisfied();
        assert_eq!(wake.failure(), None);
    }
}
