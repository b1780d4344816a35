//! Parses and prints durations like `500ms`, `30s`, `5m`, `1h`, and parses those of Go programs like `1m30s`, `1.5h`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A length of time, written as a whole number and a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanDuration(Duration);

/// Why a text is not a [`HumanDuration`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a duration: expected a whole number and a unit, like 500ms, 30s, 5m or 1h")]
pub struct BadDuration(String);

/// Our units, in milliseconds, largest first: a duration is printed with the fewest digits.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
/// The units of Go, in nanoseconds.
const GO_UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];
const NANOS_PER_MILLI: u128 = 1_000_000;
/// Digits after the point beyond these are less than a nanosecond in any unit.
const DIGITS: usize = 18;

impl HumanDuration {
    /// A duration of `millis` milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// A duration of `secs` seconds.
    pub const fn secs(secs: u64) -> Self {
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

impl From<Duration> for HumanDuration {
    fn from(length: Duration) -> Self {
        Self(length)
    }
}

impl FromStr for HumanDuration {
    type Err = BadDuration;

    fn from_str(text: &str) -> Result<Self, BadDuration> {
        let bad = || BadDuration(text.into());
        let is_unit =
            |(unit, _): &(&str, u64)| text.trim_start_matches(|c: char| c.is_ascii_digit()) == *unit;
        match part(text) {
            Some((nanos, "")) if UNITS.iter().any(is_unit) => {
                u64::try_from(nanos / NANOS_PER_MILLI).map(Self::millis).map_err(|_| bad())
            }
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.as_millis();
        let whole = |(_, millis): &&(&str, u64)| all > 0 && all.is_multiple_of(u128::from(*millis));
        let (unit, millis) = UNITS.iter().find(whole).unwrap_or(&("s", 1000));
        write!(f, "{}{unit}", all / u128::from(*millis))
    }
}

/// The milliseconds of a duration as Go writes it, like `1m30s`, `1.5h` or `0`; rounded up, so that only zero becomes zero.
pub fn go_millis(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let (mut rest, mut nanos) = (text, 0_u128);
    loop {
        let (part, after) = part(rest)?;
        nanos = nanos.checked_add(part)?;
        rest = after;
        if rest.is_empty() {
            return u64::try_from(nanos.div_ceil(NANOS_PER_MILLI)).ok();
        }
    }
}

/// The nanoseconds of the number and unit that `text` begins with, and what comes after.
fn part(text: &str) -> Option<(u128, &str)> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let unit = rest.trim_start_matches(|c: char| c != '.' && !c.is_ascii_digit());
    let (unit, rest) = (rest.strip_suffix(unit)?, unit);
    let (_, nanos) = GO_UNITS.iter().find(|(name, _)| *name == unit)?;
    let whole: u128 = if whole.is_empty() { 0 } else { u128::from(whole.parse::<u64>().ok()?) };
    let fraction = fraction.get(..fraction.len().min(DIGITS))?;
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    Some((whole.checked_mul(*nanos)?.checked_add(fraction * nanos / scale)?, rest))
}

fn digits(text: &str) -> (&str, &str) {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    (text.strip_suffix(rest).unwrap_or_default(), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_whole_number_and_a_unit() {
        for (text, millis) in [("500ms", 500), ("0s", 0), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000)]
        {
            let span: HumanDuration = text.parse().unwrap();
            assert_eq!(span.get(), Duration::from_millis(millis));
            assert_eq!(span.to_string(), text);
        }
        for bad in
            ["", "s", "30", "-1s", "+1s", "1.5s", "1m30s", "1 s", "1S", "1d", "1sec", "99999999999999999h"]
        {
            assert_eq!(bad.parse::<HumanDuration>(), Err(BadDuration(bad.into())));
        }
    }

    #[test]
    fn a_duration_is_shown_in_its_largest_whole_unit() {
        for (text, shown) in
            [("60s", "1m"), ("90s", "90s"), ("1500ms", "1500ms"), ("0h", "0s"), ("720h", "720h")]
        {
            assert_eq!(text.parse::<HumanDuration>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_duration_is_read_as_go_reads_it() {
        let good = [
            ("0", 0),
            ("0s", 0),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("1.s", 1000),
            ("2h45m10s", 9_910_000),
            ("1ns", 1),
            ("1500us", 2),
            ("1500µs", 2),
            ("0.3333333333333333333333s", 334),
        ];
        for (text, expected) in good {
            assert_eq!(go_millis(text), Some(expected), "{text}");
        }
        let endless = "9".repeat(30) + "h";
        for bad in ["", "s", "30", "-1s", "+1s", "1d", "1 s", "1m30", "1..5s", ".", ".s", "1sm", &endless] {
            assert_eq!(go_millis(bad), None, "{bad}");
        }
    }
}
