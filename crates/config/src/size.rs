//! Parses and prints sizes in bytes, like `512B`, `64KiB`, `256MiB`, `1GiB`.

use std::fmt;
use std::ops::RangeInclusive;

/// Largest first, so that a size is printed with the fewest digits.
const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A number of bytes, printed with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, bytes): &&(&str, u64)| self.0 > 0 && self.0.is_multiple_of(*bytes);
        let (unit, bytes) = UNITS.iter().find(whole).unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

/// The sizes in `range`, as errors describe them.
pub fn allowed(range: &RangeInclusive<u64>) -> String {
    let (least, most) = (Bytes(*range.start()), Bytes(*range.end()));
    format!("a size from {least} to {most}, like 64KiB or 256MiB")
}

/// The bytes that `text` means, if it is a size in `range`.
pub fn parse(text: &str, range: &RangeInclusive<u64>) -> Option<u64> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let (_, bytes) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*bytes).filter(|bytes| range.contains(bytes))
}

/// The suggestion for a number without a unit: bytes, if they are in `range`.
pub fn with_unit(text: &str, range: &RangeInclusive<u64>) -> Option<String> {
    let meant = format!("{}B", text.parse::<u32>().ok()?);
    parse(&meant, range).map(|_| meant)
}
