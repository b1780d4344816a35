//! Restart backoff: when the pods of an app may be started again after a failure, and the crash-loop detection.

use std::time::Duration;

use rouse_core::time::Moment;

/// The pause after the first failure.
pub const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A pod that was ready for this long has recovered: its next failure counts as the first.
pub const STEADY: Duration = Duration::from_secs(10);
/// This many failures in a row are a crash loop.
pub const LOOPING: u32 = 3;

/// The failures in a row of one app or one pod: the unit that is restarted.
///
/// A failure is a pod that ended without an order to stop, with any exit code, or that could not be started.
#[derive(Debug, Clone, Default)]
pub struct RestartBackoff {
    failures: u32,
    /// Since when a pod has been ready.
    ready: Option<Moment>,
    /// When it may be started again.
    due: Option<Moment>,
    /// The reason of the last failure.
    reason: String,
}

impl RestartBackoff {
    /// A pod was started.
    pub fn started(&mut self) {
        self.due = None;
        self.ready = None;
    }

    /// A pod is ready.
    pub fn ready(&mut self, now: Moment) {
        self.ready.get_or_insert(now);
    }

    /// No pod is ready.
    pub fn unready(&mut self, now: Moment) {
        self.recover(now);
        self.ready = None;
    }

    /// A pod failed because of `reason`. Returns when the next may be started.
    pub fn failed(&mut self, now: Moment, reason: &str) -> Moment {
        self.unready(now);
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        reason.clone_into(&mut self.reason);
        *self.due.insert(now + pause)
    }

    /// The configuration changed, or an operator restarted the app: earlier failures no longer count.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether a pod may be started now.
    pub fn may_start(&self, now: Moment) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    /// When a pod may be started again, after a failure.
    pub fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Whether the failures in a row are a crash loop.
    pub fn is_looping(&self) -> bool {
        self.failures >= LOOPING
    }

    /// A text for people about the failures; `None` if there are none. `wanted`: the next start needs no request.
    pub fn trouble(&self, now: Moment, wanted: bool) -> Option<String> {
        if self.failures == 0 || self.has_recovered(now) {
            return None;
        }
        let reason = &self.reason;
        let what = match self.failures {
            1 => reason.clone(),
            failures @ 2..LOOPING => format!("{reason}, {failures} times in a row"),
            failures => format!("crash-looping: {reason}, {failures} times in a row"),
        };
        let then = match self.due {
            Some(due) if wanted => format!("next start in {:.1} s", due.since(now).as_secs_f64()),
            Some(_) => "the next request starts it again".into(),
            None => "started again".into(),
        };
        Some(format!("{what}; {then}"))
    }

    fn has_recovered(&self, now: Moment) -> bool {
        self.ready.is_some_and(|since| now.since(since) >= STEADY)
    }

    fn recover(&mut self, now: Moment) {
        if self.has_recovered(now) {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    enum Then {
        Start,
        Ready,
        Unready,
        Fail,
        Forget,
    }
    use Then::{Fail, Forget, Ready, Start, Unready};

    /// Times in milliseconds, and what happens then.
    type Story<'a> = &'a [(u64, Then)];

    /// Plays `story` and returns the pauses after its failures.
    fn pauses(story: Story<'_>) -> Vec<u128> {
        let mut restarts = RestartBackoff::default();
        let mut pauses = Vec::new();
        for (millis, then) in story {
            let now = Moment::from_millis(*millis);
            match then {
                Start => restarts.started(),
                Ready => restarts.ready(now),
                Unready => restarts.unready(now),
                Fail => pauses.push(restarts.failed(now, "exited with code 1").since(now).as_millis()),
                Forget => restarts.forget(),
            }
        }
        pauses
    }

    #[test]
    fn the_pauses_double_up_to_the_longest() {
        let story: Vec<_> = (0..10).flat_map(|at| [(at, Start), (at, Fail)]).collect();
        assert_eq!(pauses(&story), [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]);
        let ever: Vec<_> = (0..100).map(|at| (at, Fail)).collect();
        assert_eq!(pauses(&ever).last(), Some(&10_000));
    }

    #[test]
    fn only_who_was_ready_for_long_enough_begins_anew() {
        let cases: [(Story<'_>, &[u128]); 8] = [
            (&[(0, Fail), (0, Start), (0, Ready), (9_999, Fail)], &[100, 200]),
            (&[(0, Fail), (0, Start), (0, Ready), (10_000, Fail)], &[100, 100]),
            (&[(0, Fail), (0, Start), (60_000, Fail)], &[100, 200]),
            (&[(0, Fail), (0, Start), (0, Ready), (5_000, Ready), (10_000, Fail)], &[100, 100]),
            (
                &[(0, Fail), (0, Start), (0, Ready), (5_000, Unready), (5_000, Ready), (12_000, Fail)],
                &[100, 200],
            ),
            (&[(0, Fail), (0, Start), (0, Ready), (10_000, Unready), (11_000, Fail)], &[100, 100]),
            (&[(0, Ready), (0, Start), (20_000, Fail), (20_000, Fail)], &[100, 200]),
            (&[(0, Fail), (0, Fail), (0, Forget), (0, Fail)], &[100, 200, 100]),
        ];
        for (story, expected) in cases {
            assert_eq!(pauses(story), expected);
        }
    }

    #[test]
    fn it_may_be_started_exactly_when_the_pause_is_over() {
        let mut restarts = RestartBackoff::default();
        assert!(restarts.may_start(Moment::ZERO));
        let due = restarts.failed(Moment::ZERO, "x");
        assert_eq!(restarts.due(), Some(due));
        assert!(!restarts.may_start(due - Duration::from_nanos(1)) && restarts.may_start(due));
    }

    #[test]
    fn trouble_is_told_in_words_until_it_is_over() {
        let mut restarts = RestartBackoff::default();
        let mut said = Vec::new();
        for _ in 0..4 {
            restarts.failed(Moment::ZERO, "exited with code 3");
            said.push(restarts.trouble(Moment::ZERO, true).unwrap());
        }
        said.push(restarts.trouble(Moment::ZERO, false).unwrap());
        restarts.started();
        said.push(restarts.trouble(Moment::ZERO, true).unwrap());
        let expected = [
            "exited with code 3; next start in 0.1 s",
            "exited with code 3, 2 times in a row; next start in 0.2 s",
            "crash-looping: exited with code 3, 3 times in a row; next start in 0.4 s",
            "crash-looping: exited with code 3, 4 times in a row; next start in 0.8 s",
            "crash-looping: exited with code 3, 4 times in a row; the next request starts it again",
            "crash-looping: exited with code 3, 4 times in a row; started again",
        ];
        assert_eq!(said, expected);
        restarts.ready(Moment::from_secs(1));
        assert!(restarts.trouble(Moment::from_secs(10), true).is_some());
        assert_eq!(restarts.trouble(Moment::from_secs(11), true), None);
    }
}
