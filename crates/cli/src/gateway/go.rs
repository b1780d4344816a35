//! Values as Go programs read them, since KEDA's variables were written for one.

/// In nanoseconds.
const UNITS: [(&str, u128); 8] = [
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
/// More digits after the point than this are less than a nanosecond of any unit.
const DIGITS: usize = 18;

/// A truth value.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A length of time like `1m30s`, `1.5h` or `0` in milliseconds, rounded up: what is not zero stays so.
pub(super) fn millis(text: &str) -> Option<u64> {
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
    let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit)?;
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
            assert_eq!(millis(text), Some(expected), "{text}");
        }
        let endless = "9".repeat(30) + "h";
        for bad in ["", "s", "30", "-1s", "+1s", "1d", "1 s", "1m30", "1..5s", ".", ".s", "1sm", &endless] {
            assert_eq!(millis(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_truth_value_is_read_as_go_reads_it() {
        for (text, expected) in
            [("true", Some(true)), ("1", Some(true)), ("F", Some(false)), ("False", Some(false))]
        {
            assert_eq!(boolean(text), expected, "{text}");
        }
        for bad in ["", "yes", "on", "tRUE", "2"] {
            assert_eq!(boolean(bad), None, "{bad}");
        }
    }
}
