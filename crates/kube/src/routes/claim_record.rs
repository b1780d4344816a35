//! When a route's hosts were claimed, as the text of a status condition.
//!
//! `2026-01-31T12:00:00.000001Z a.test, b.test; 2026-02-01T08:30:00Z *.c.test`: hosts are grouped by their time, since
//! most are claimed together and a condition's message has at most 32,768 bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// The type of the condition.
pub const HOSTS_CLAIMED: &str = "HostsClaimed";
/// The longest text. Hosts that do not fit are counted instead of named.
pub const LONGEST_RECORD: usize = 32_000;

/// When a host was claimed, in microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimTime(pub i64);

/// The hosts of one route, each with the time of its claim.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimRecord(BTreeMap<Arc<str>, ClaimTime>);

impl ClaimRecord {
    /// Reads the record from the conditions of a route. A text in another format counts as no record.
    pub fn read(conditions: &[Value]) -> Self {
        let text = |value: &Value, field: &str| value.get(field)?.as_str().map(str::to_owned);
        let mut all = conditions.iter();
        let found = all.find(|value| text(value, "type").as_deref() == Some(HOSTS_CLAIMED));
        found.and_then(|value| text(value, "message")).and_then(|text| Self::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Option<Self> {
        let mut all = BTreeMap::new();
        for group in text.split("; ").filter(|group| !group.starts_with("and ")) {
            let (time, hosts) = group.split_once(' ')?;
            let time = ClaimTime(time.parse::<Timestamp>().ok()?.as_microsecond());
            for host in hosts.split(", ") {
                all.insert(Some(host).filter(|host| is_plain(host))?.into(), time);
            }
        }
        Some(Self(all))
    }

    /// Whether no host is claimed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When `host` was claimed.
    pub fn since(&self, host: &str) -> Option<ClaimTime> {
        self.0.get(host).copied()
    }

    /// Every host with the time of its claim.
    pub fn entries(&self) -> impl Iterator<Item = (&Arc<str>, ClaimTime)> {
        self.0.iter().map(|(host, time)| (host, *time))
    }
}

impl FromIterator<(Arc<str>, ClaimTime)> for ClaimRecord {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, ClaimTime)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl fmt::Display for ClaimRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups: BTreeMap<ClaimTime, Vec<&str>> = BTreeMap::new();
        for (host, time) in self.0.iter().filter(|(host, _)| is_plain(host)) {
            groups.entry(*time).or_default().push(host);
        }
        let (mut length, mut left_out, mut separator) = (0, 0, "");
        for (ClaimTime(time), hosts) in groups {
            let mut before = format!("{separator}{} ", Timestamp::from_microsecond(time).unwrap_or_default());
            for host in hosts {
                if length + before.len() + host.len() > LONGEST_RECORD {
                    left_out += 1;
                    continue;
                }
                length += before.len() + host.len();
                write!(f, "{before}{host}")?;
                (before, separator) = (", ".to_owned(), "; ");
            }
        }
        if left_out > 0 {
            write!(f, "{separator}and {left_out} more that do not fit: split the route")?;
        }
        Ok(())
    }
}

/// Whether `host` has no character that the record uses as a separator.
fn is_plain(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"*.-_:[]".contains(&byte);
    !host.is_empty() && host.bytes().all(plain)
}
