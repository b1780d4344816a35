//! Reads the fields of a JSON object, and collects all faults at once, each with the path of its field.

use std::cell::RefCell;
use std::time::Duration;

use serde_json::Value;

/// All faults of one object, as text.
pub(super) type Faults = RefCell<Vec<String>>;

/// The JSON value at a path, or the path without a value.
#[derive(Clone)]
pub(super) struct Field<'a> {
    value: Option<&'a Value>,
    path: String,
    faults: &'a Faults,
}

impl<'a> Field<'a> {
    pub(super) fn root(value: &'a Value, path: &str, faults: &'a Faults) -> Self {
        Self { value: Some(value), path: path.to_owned(), faults }
    }

    /// The member `name`. `null` is like absent, as everywhere in Kubernetes.
    pub(super) fn get(&self, name: &str) -> Field<'a> {
        let value = self.value.and_then(|value| match value {
            Value::Object(members) => members.get(name),
            _ => None,
        });
        Field {
            value: value.filter(|value| !value.is_null()),
            path: format!("{}.{name}", self.path),
            faults: self.faults,
        }
    }

    pub(super) fn is_set(&self) -> bool {
        self.value.is_some()
    }

    /// Whether there is nothing here, or an empty list.
    pub(super) fn is_blank(&self) -> bool {
        match self.value {
            None => true,
            Some(Value::Array(items)) => items.is_empty(),
            Some(_) => false,
        }
    }

    /// How many items the list here has, if there is one.
    pub(super) fn count(&self) -> Option<usize> {
        self.value?.as_array().map(Vec::len)
    }

    /// The object here, if there is one.
    pub(super) fn object(&self) -> Option<Field<'a>> {
        match self.value? {
            Value::Object(_) => Some(self.clone()),
            other => self.invalid(other, "an object"),
        }
    }

    pub(super) fn fault(&self, words: impl std::fmt::Display) {
        self.faults.borrow_mut().push(format!("{} {words}", self.path));
    }

    fn invalid<T>(&self, value: &Value, expected: &str) -> Option<T> {
        let mut text = value.to_string();
        if text.len() > 60 {
            let end = (0..=60).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            text.truncate(end);
            text.push('…');
        }
        self.fault(format_args!("is {text}: expected {expected}"));
        None
    }

    /// Adds the fault that a value is missing.
    pub(super) fn missing<T>(&self, expected: &str) -> Option<T> {
        self.fault(format_args!("is missing: expected {expected}"));
        None
    }

    pub(super) fn list(&self) -> Vec<Field<'a>> {
        let items = match self.value {
            None => return Vec::new(),
            Some(Value::Array(items)) => items,
            Some(other) => {
                return self.invalid::<()>(other, "a list").map(|()| Vec::new()).unwrap_or_default();
            }
        };
        let item = |(at, value): (usize, &'a Value)| Field {
            value: Some(value),
            path: format!("{}[{at}]", self.path),
            faults: self.faults,
        };
        items.iter().enumerate().map(item).collect()
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        match self.value? {
            Value::String(text) => Some(text),
            other => self.invalid(other, "a string"),
        }
    }

    /// A text that is not empty.
    pub(super) fn word(&self, expected: &str) -> Option<&'a str> {
        let value = self.value?;
        self.text().and_then(|text| if text.is_empty() { self.invalid(value, expected) } else { Some(text) })
    }

    pub(super) fn number(&self, least: u32, most: u32) -> Option<u32> {
        let value = self.value?;
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let allowed = number.filter(|number| (least..=most).contains(number));
        allowed.or_else(|| match most {
            u32::MAX => self.invalid(value, &format!("a whole number from {least}")),
            most => self.invalid(value, &format!("a whole number from {least} to {most}")),
        })
    }

    pub(super) fn duration(&self) -> Option<Duration> {
        let value = self.value?;
        let parsed = value.as_str().and_then(duration);
        parsed.or_else(|| self.invalid(value, EXPECTED_DURATION))
    }

    /// The keys and values of an object whose values are strings.
    pub(super) fn texts(&self) -> Vec<(&'a str, &'a str)> {
        let members = match self.value {
            None => return Vec::new(),
            Some(Value::Object(members)) => members,
            Some(other) => return self.invalid(other, "an object of strings").unwrap_or_default(),
        };
        members.keys().filter_map(|key| Some((key.as_str(), self.get(key).text()?))).collect()
    }
}

pub(super) const EXPECTED_DURATION: &str = "a duration like 500ms, 30s or 5m";

/// A duration as Go writes it, but never a negative one. The parser of `kube` panics at `1s-2s`, so a route could crash
/// the gateway.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut nanos: u64 = 0;
    loop {
        let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.');
        let (unit, after) = split(after, |c| !c.is_ascii_digit() && c != '.');
        let part = part(number, unit_nanos(unit)?)?;
        // Go's durations are signed 64-bit numbers of nanoseconds.
        nanos = nanos.checked_add(part).filter(|nanos| i64::try_from(*nanos).is_ok())?;
        if after.is_empty() {
            return Some(Duration::from_nanos(nanos));
        }
        rest = after;
    }
}

/// Splits `text` after the first characters, all of which `belong`.
fn split(text: &str, belong: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !belong(c)).unwrap_or(text.len());
    (text.get(..end).unwrap_or_default(), text.get(end..).unwrap_or_default())
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// `1.5` of a unit, in nanoseconds.
fn part(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut nanos = whole.checked_mul(unit)?;
    let mut place = unit;
    for digit in fraction.chars() {
        place /= 10;
        nanos = nanos.checked_add(u64::from(digit.to_digit(10)?) * place)?;
    }
    Some(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("+5s", 5_000_000_000),
            ("500ms", 500_000_000),
            ("1m30s", 90_000_000_000),
            ("1h0m0.5s", 3_600_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("7us8µs9ns", 15_009),
            ("2562047h47m16.854775807s", u64::try_from(i64::MAX).unwrap()),
        ] {
            assert_eq!(duration(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_or_a_negative_one_is_refused() {
        let invalid = [
            "", "+", "s", "5", "-1s", "1s-2s", "1m-30s", "1 s", "1s ", ".s", "1..2s", "1.2.3s", "1d", "1S",
            "ü",
        ];
        let long = ["2562047h47m16.854775808s", "99999999999999999999h", "18446744073709551615h"];
        for text in invalid.into_iter().chain(long) {
            assert_eq!(duration(text), None, "{text}");
        }
        assert_eq!(duration(&"9".repeat(100_000)), None);
    }
}
