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
    /// over and report a failure by [`Registry::wake_failed`](crate::registry::Registry::wake_failed).
    fn wake(&self, service: &ServiceId);
}

/// When to send a service's wakes: one for the first hold, repeated with backoff while holds remain, never one
/// per request.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    asked: Option<Asked>,
    /// Why the last one came to nothing, in the engine's words.
    failure: Option<String>,
}

#[derive(Debug)]
struct Asked {
    times: u32,
    again: Moment,
}

impl Wake {
    const FIRST_PAUSE: Duration = Duration::from_millis(250);
    const LONGEST_PAUSE: Duration = Duration::from_secs(10);
    /// Longer reasons are cut: they end up in responses.
    const LONGEST_REASON: usize = 512;

    /// Somebody needs a pod. Answers whether a wake is to be sent now.
    pub(crate) fn want(&mut self, now: Moment) -> bool {
        if self.asked.is_some() {
            return false;
        }
        self.ask(0, now);
        true
    }

    /// The pause is over. Answers whether a wake is to be sent now.
    pub(crate) fn again(&mut self, now: Moment, still_wanted: bool) -> bool {
        match &self.asked {
            Some(asked) if asked.again <= now => {
                let times = asked.times;
                self.asked = None;
                if still_wanted {
                    self.ask(times, now);
                }
                still_wanted
            }
            _ => false,
        }
    }

    fn ask(&mut self, times: u32, now: Moment) {
        let pause = Self::FIRST_PAUSE.saturating_mul(1 << times.min(16)).min(Self::LONGEST_PAUSE);
        self.asked = Some(Asked { times: times + 1, again: now + pause });
    }

    /// A pod takes requests: the next time nothing does is a new story.
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
        self.asked.as_ref().map(|asked| asked.again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wake_is_sent_however_many_want_it_and_repeated_ever_more_slowly() {
        let mut wake = Wake::default();
        let mut now = Moment::ZERO;
        assert!(wake.want(now));
        assert!(!wake.want(now) && !wake.again(now, true));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let due = wake.due().unwrap();
            pauses.push(due.since(now).as_millis());
            now = due;
            assert!(wake.again(now, true) && !wake.again(now, true));
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
    }

    #[test]
    fn nobody_left_means_no_more_wakes_until_somebody_comes() {
        let mut wake = Wake::default();
        assert!(wake.want(Moment::ZERO));
        assert!(!wake.again(Moment::from_secs(1), false));
        assert_eq!(wake.due(), None);
        assert!(wake.want(Moment::from_secs(2)));
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
