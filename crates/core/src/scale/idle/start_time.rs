//! How long a pod of a service takes to become ready: what a pre-warmed pod needs ahead.

use std::time::Duration;

/// Before a start was seen.
const UNKNOWN: Duration = Duration::from_secs(5);
/// The longest that counts. A start that takes longer is not waited for.
const LONGEST: Duration = Duration::from_mins(10);
/// The shortest that a byte can say.
const SHORTEST: Duration = Duration::from_millis(100);

/// The longest start that was seen lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct StartTime(Option<Duration>);

impl StartTime {
    /// A pod became ready this long after it was wanted. A longer start counts at once, a shorter one by and by.
    pub(super) fn observe(&mut self, took: Duration) {
        let took = took.min(LONGEST);
        let before = self.0.unwrap_or(took);
        self.0 = Some(took.max(before.saturating_sub(before.saturating_sub(took) / 8)));
    }

    /// What to expect.
    pub(super) fn get(self) -> Duration {
        self.0.unwrap_or(UNKNOWN)
    }

    /// In steps of a tenth, rounded up; 0 if no start was seen.
    pub(super) fn to_byte(self) -> u8 {
        let Some(took) = self.0 else { return 0 };
        (1..u8::MAX).find(|byte| nth(*byte) >= took).unwrap_or(u8::MAX)
    }

    /// What [`StartTime::to_byte`] returned.
    pub(super) fn from_byte(byte: u8) -> Self {
        Self((byte > 0).then(|| nth(byte)))
    }
}

/// The duration that a byte stands for.
fn nth(byte: u8) -> Duration {
    (1..byte)
        .try_fold(SHORTEST, |took, _| (took < LONGEST).then(|| (took * 11 / 10).min(LONGEST)))
        .unwrap_or(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_start_counts_at_once_and_a_shorter_one_by_and_by() {
        let mut start = StartTime::default();
        assert_eq!(start.get(), UNKNOWN);
        start.observe(Duration::from_secs(2));
        assert_eq!(start.get(), Duration::from_secs(2));
        start.observe(Duration::from_secs(10));
        assert_eq!(start.get(), Duration::from_secs(10));
        start.observe(Duration::from_secs(2));
        assert_eq!(start.get(), Duration::from_secs(9));
        (0..100).for_each(|_| start.observe(Duration::from_secs(2)));
        assert!(start.get() < Duration::from_millis(2001));
        start.observe(Duration::MAX);
        assert_eq!(start.get(), LONGEST);
    }

    #[test]
    fn a_byte_says_a_start_time_to_a_tenth() {
        assert_eq!(StartTime::from_byte(StartTime::default().to_byte()), StartTime::default());
        for byte in 0..=u8::MAX {
            let start = StartTime::from_byte(byte);
            assert_eq!(StartTime::from_byte(start.to_byte()), start);
            assert!(start.get() <= LONGEST);
        }
        for millis in [1, 99, 100, 101, 1234, 59_000, 599_999] {
            let took = Duration::from_millis(millis);
            let restored = StartTime::from_byte(StartTime(Some(took)).to_byte()).get();
            assert!(restored >= took && restored <= SHORTEST.max(took * 112 / 100), "{took:?}: {restored:?}");
        }
    }
}
