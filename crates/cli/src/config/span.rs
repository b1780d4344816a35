//! Lengths of time as people write them: `500ms`, `30s`, `5m`, `1h`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A length of time, written as a whole number and a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Duration);

/// Why a text is not a [`Span`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a duration: expected a whole number and a unit, like 500ms, 30s, 5m or 1h")]
pub struct BadSpan(String);

/// From the largest, so that a span is shown in the fewest digits.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

impl Span {
    /// So many milliseconds.
    pub(crate) const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// So many seconds.
    pub(crate) const fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// The length.
    pub fn get(self) -> Duration {
        self.0
    }

    /// The length; `None` if it is zero, where zero means no limit.
    pub fn limit(self) -> Option<Duration> {
        (!self.0.is_zero()).then_some(self.0)
    }
}

impl From<Duration> for Span {
    fn from(length: Duration) -> Self {
        Self(length)
    }
}

impl FromStr for Span {
    type Err = BadSpan;

    fn from_str(text: &str) -> Result<Self, BadSpan> {
        let bad = || BadSpan(text.into());
        let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
        let number = text.strip_suffix(unit).and_then(|number| number.parse::<u64>().ok()).ok_or_else(bad)?;
        let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        number.checked_mul(*millis).map(Self::millis).ok_or_else(bad)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.as_millis();
        let whole = |(_, millis): &&(&str, u64)| all > 0 && all.is_multiple_of(u128::from(*millis));
        let (unit, millis) = UNITS.iter().find(whole).unwrap_or(&("s", 1000));
        write!(f, "{}{unit}", all / u128::from(*millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_a_whole_number_and_a_unit() {
        for (text, millis) in [("500ms", 500), ("0s", 0), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000)]
        {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.get(), Duration::from_millis(millis));
            assert_eq!(span.to_string(), text);
        }
        for bad in
            ["", "s", "30", "-1s", "+1s", "1.5s", "1m30s", "1 s", "1S", "1d", "1sec", "99999999999999999h"]
        {
            assert_eq!(bad.parse::<Span>(), Err(BadSpan(bad.into())));
        }
    }

    #[test]
    fn a_span_is_shown_in_its_largest_whole_unit() {
        for (text, shown) in
            [("60s", "1m"), ("90s", "90s"), ("1500ms", "1500ms"), ("0h", "0s"), ("720h", "720h")]
        {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), shown);
        }
    }
}
