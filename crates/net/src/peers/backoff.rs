//! Exponential backoff with jitter.

use std::time::Duration;

use rouse_core::random::between;

/// The pauses after failures in a row: each is twice as long as the one before, up to a limit, and shortened by up to a half at
/// random, so that clients that failed together do not return together.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Starts with `first` and never exceeds `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// The pause after one more failure.
    pub fn next_pause(&mut self, random: u64) -> Duration {
        let pause = self.first.saturating_mul(1 << self.failures.min(31)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        between(pause / 2, pause, random)
    }

    /// How many failures there were in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The next failure is the first again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_mins(1);

    #[test]
    fn pauses_double_up_to_the_limit_and_start_again_after_a_reset() {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        let longest: Vec<u128> = (0..12).map(|_| backoff.next_pause(u64::MAX).as_millis()).collect();
        let expected = [99, 199, 399, 799, 1599, 3199, 6399, 12799, 25599, 51199, 59999, 59999];
        assert_eq!(longest, expected, "almost 100 ms, 200 ms and so on");
        backoff.reset();
        assert_eq!((backoff.failures(), backoff.next_pause(0)), (0, FIRST / 2));
    }

    proptest! {
        #[test]
        fn no_pause_is_below_half_or_above_the_limit(failures in 0..200_u32, random: u64) {
            let mut backoff = Backoff { failures, ..Backoff::new(FIRST, LONGEST) };
            let whole = (0..failures).fold(FIRST, |pause, _| (pause * 2).min(LONGEST));
            let pause = backoff.next_pause(random);
            prop_assert!(whole / 2 <= pause && pause <= whole, "{:?} of {:?}", pause, whole);
        }
    }
}
