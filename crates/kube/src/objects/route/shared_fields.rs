//! Fields that both kinds of route objects have: targets, hosts, paths, headers, metrics.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use rouse_core::endpoint::ServiceId;
use rouse_core::host::Host;

use super::{ANY, RateSpec, RuleSpec, TargetSpec};
use crate::objects::Meta;
use crate::objects::route::field::Field;
use crate::objects::service_summary::PortRef;

/// Reads a target below `at`: the Service from the field `name`, and either `port` or `portName`.
pub(super) fn target(at: &Field<'_>, name: &str, namespace: &str) -> Option<TargetSpec> {
    let service = at.get(name);
    let expected = "a Service's name";
    let service_name = if service.is_set() { service.word(expected) } else { service.missing(expected) };
    let (number, named) = (at.get("port"), at.get("portName"));
    let port = match (number.is_set(), named.is_set()) {
        (true, false) => {
            let number = number.number(1, 65535).and_then(|number| u16::try_from(number).ok());
            number.map(PortRef::Number)
        }
        (false, true) => named.word("a port's name").map(|name| PortRef::Name(name.into())),
        _ => {
            at.fault("needs exactly one of port and portName");
            None
        }
    };
    let id = ServiceId::new(namespace, service_name?);
    let id = id.inspect_err(|error| service.fault(format_args!("is not valid: {error}"))).ok()?;
    Some(TargetSpec { service: id, port: port? })
}

/// Reads a host, in the normalized spelling that requests, claims and the route table use.
pub(super) fn host(at: &Field<'_>) -> Option<Arc<str>> {
    let text = at.text()?;
    if text == ANY {
        return Some(ANY.into());
    }
    let below = text.strip_prefix("*.");
    let parsed = Host::parse_without_port(below.unwrap_or(text)).ok();
    match (parsed.filter(|host| below.is_none() || !host.is_ipv6()), below) {
        (Some(host), Some(_)) => Some(format!("*.{}", host.name()).into()),
        (Some(host), None) => Some(host.name().into()),
        (None, _) => {
            at.fault(format_args!(
                "is {text:?}: expected a host like shop.example.com, *.example.com or *, without a port"
            ));
            None
        }
    }
}

/// The readable part of a rule of an invalid object. `rule` reads it from `at`, whose paths are at `paths`.
///
/// A rule none of whose hosts can be read is left out: without hosts it would match every host. If paths or headers cannot
/// be read, a rule with the hosts alone stands for the unreadable part. It matches more requests than the whole rule, but
/// every rule of these hosts with a path or a header takes precedence over it.
pub(super) fn salvaged(at: &Field<'_>, paths: &str, rule: impl Fn(&Field<'_>) -> RuleSpec) -> Vec<RuleSpec> {
    let found = rule(at);
    if found.hosts.is_empty() && !at.get("hosts").is_blank() {
        return Vec::new();
    }
    let rest = RuleSpec { hosts: found.hosts.clone(), ..RuleSpec::default() };
    let whole = |at: Field<'_>, read: usize| at.is_blank() || at.count() == Some(read);
    if !whole(at.get("headers"), found.headers.len()) {
        return vec![rest];
    }
    match (whole(at.get(paths), found.paths.len()), found.paths.is_empty()) {
        (true, _) => vec![found],
        (false, true) => vec![rest],
        (false, false) => vec![found, rest],
    }
}

pub(super) fn path(at: &Field<'_>) -> Option<String> {
    let text = at.text()?;
    if text.starts_with('/') && !text.contains(['?', '#']) {
        return Some(text.to_owned());
    }
    at.fault(format_args!("is {text:?}: expected a path that begins with a slash and has no ? and no #"));
    None
}

pub(super) fn header_name(at: &Field<'_>, text: &str) -> Option<HeaderName> {
    let name = HeaderName::from_bytes(text.as_bytes()).ok();
    if name.is_none() {
        at.fault(format_args!("has {text:?}: expected a header's name"));
    }
    name
}

pub(super) fn header_value(at: &Field<'_>, text: &str) -> Option<HeaderValue> {
    let value = HeaderValue::from_str(text).ok();
    if value.is_none() {
        at.fault(format_args!("has {text:?}: expected a header's value, without line breaks"));
    }
    value
}

/// Reads the list `headers[]{name, value?}`.
pub(super) fn header_matches(at: &Field<'_>) -> Vec<(HeaderName, Option<HeaderValue>)> {
    let read = |header: &Field<'_>| {
        let name = header.get("name");
        let text = if name.is_set() { name.text() } else { name.missing("a header's name") };
        let value = header.get("value");
        let value = value.text().map(|text| header_value(&value, text));
        match value {
            Some(None) => None,
            value => Some((header_name(&name, text?)?, value.flatten())),
        }
    };
    at.list().iter().filter_map(read).collect()
}

/// Reads `scalingMetric{concurrency, requestRate}`.
pub(super) fn scaling_metric(at: &Field<'_>) -> (Option<u32>, Option<RateSpec>) {
    const DEFAULT_TARGET: u32 = 100;
    let target = |at: &Field<'_>| at.get("targetValue").number(1, u32::MAX).unwrap_or(DEFAULT_TARGET);
    let concurrency = at.get("concurrency").object().map(|at| target(&at));
    let rate = at.get("requestRate").object().map(|at| {
        let granularity = at.get("granularity");
        let rate = RateSpec {
            target: target(&at),
            window: at.get("window").duration().unwrap_or(Duration::from_mins(1)),
            granularity: granularity.duration().unwrap_or(Duration::from_secs(1)),
        };
        if rate.granularity < Duration::from_secs(1) {
            granularity.fault("is less than 1s");
        } else if rate.window < rate.granularity {
            at.get("window").fault("is less than the granularity");
        }
        rate
    });
    (concurrency, rate)
}

/// When the object was created. The API server always sets it; an object without it counts as the newest.
pub(super) fn created(meta: &Meta) -> u64 {
    let text = meta.creation_timestamp.as_deref().unwrap_or_default();
    let parsed = text.parse::<k8s_openapi::jiff::Timestamp>().ok();
    parsed.and_then(|time| u64::try_from(time.as_second()).ok()).unwrap_or(u64::MAX)
}
