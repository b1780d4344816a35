//! Headers of messages on their way between client and pod: what stays on one connection, what is unsafe to forward, and
//! what the gateway adds.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::message::{HeaderEdit, HeaderEdits, is_hop_by_hop};

const COLD_START: HeaderName = HeaderName::from_static("x-rouse-cold-start");
const KEDA_COLD_START: HeaderName = HeaderName::from_static("x-keda-http-cold-start");

/// The headers of a response that say whether its request waited for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColdStartHeaders {
    /// `X-Rouse-Cold-Start`.
    pub rouse: bool,
    /// `X-KEDA-HTTP-Cold-Start`.
    pub keda: bool,
}

impl Default for ColdStartHeaders {
    fn default() -> Self {
        Self { rouse: true, keda: false }
    }
}

/// Applies `edits` in order.
pub(super) fn apply(headers: &mut HeaderMap, edits: HeaderEdits) {
    for edit in edits {
        match edit {
            HeaderEdit::Set(name, value) => drop(headers.insert(name, value)),
            HeaderEdit::Append(name, value) => drop(headers.append(name, value)),
            HeaderEdit::Remove(name) => drop(headers.remove(name)),
            HeaderEdit::RemovePrefix(prefix) => {
                remove_all(headers, |name| name.as_str().starts_with(prefix));
            }
        }
    }
}

/// Removes the headers that concern one connection only: the fixed list, and those that `Connection` names, except for `Host`
/// and `Via`. `TE: trailers` is kept, since it concerns the message.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // Most messages have one such header at most: one pass over all names costs less than a search for each.
    let concerned: Vec<HeaderName> = headers.keys().filter(|name| is_hop_by_hop(name)).cloned().collect();
    if concerned.is_empty() {
        return;
    }
    let trailers = lists(headers, header::TE, "trailers");
    let connection: Vec<HeaderValue> = headers.get_all(header::CONNECTION).iter().cloned().collect();
    let passes = |name: &&str| name.eq_ignore_ascii_case("host") || name.eq_ignore_ascii_case("via");
    for name in connection.iter().flat_map(names).filter(|name| !passes(name)) {
        headers.remove(name);
    }
    for name in concerned {
        headers.remove(name);
    }
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// The comma-separated names in a value.
fn names(value: &HeaderValue) -> impl Iterator<Item = &str> {
    value.to_str().unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// Whether one of the headers named `list` has `name` in its comma-separated values.
fn lists(headers: &HeaderMap, list: HeaderName, name: &str) -> bool {
    headers.get_all(list).iter().flat_map(names).any(|one| one.eq_ignore_ascii_case(name))
}

/// Whether readers may disagree about the end of a response's body: its length is not given exactly once.
pub(super) fn is_ambiguous(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let (length, coding) = (lengths.next(), codings.next());
    let unknown = |coding: &HeaderValue| !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    let digits =
        |length: &HeaderValue| !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit);
    lengths.next().is_some()
        || codings.next().is_some()
        || length.is_some() && coding.is_some()
        || coding.is_some_and(unknown)
        || length.is_some_and(|length| !digits(length))
}

/// Adds the headers that say whether the request waited for a pod.
pub(super) fn add_cold_start(headers: &mut HeaderMap, wanted: ColdStartHeaders, cold: bool) {
    let value = HeaderValue::from_static(if cold { "true" } else { "false" });
    if wanted.keda {
        headers.insert(KEDA_COLD_START, value.clone());
    }
    if wanted.rouse {
        headers.insert(COLD_START, value);
    }
}

/// Removes trailers of a request that pods must not get: those that concern one connection, which HTTP/2 rejects, and
/// `X-Forwarded-*`, which a pod that merges trailers into headers would trust.
pub(super) fn clean_request_trailers(trailers: &mut HeaderMap) {
    remove_all(trailers, |name| {
        let begins = |prefix| name.as_str().starts_with(prefix);
        is_hop_by_hop(name) || begins("x-rouse-") || begins("x-forwarded-") || *name == header::FORWARDED
    });
}

/// Removes trailers of a response that concern one connection only.
pub(super) fn clean_response_trailers(trailers: &mut HeaderMap) {
    remove_all(trailers, is_hop_by_hop);
}

fn remove_all(headers: &mut HeaderMap, is_unwanted: impl Fn(&HeaderName) -> bool) {
    let unwanted: Vec<HeaderName> = headers.keys().filter(|name| is_unwanted(name)).cloned().collect();
    for name in unwanted {
        headers.remove(name);
    }
}

/// The protocol that an HTTP/1.1 request wants to switch to, if it may pass: `h2c` would let a client send requests to the pod
/// that the gateway does not see.
pub fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let upgrade = headers.get(header::UPGRADE)?;
    let asked = lists(headers, header::CONNECTION, "upgrade");
    let is_h2c = |name: &str| name.split('/').next().is_some_and(|name| name.eq_ignore_ascii_case("h2c"));
    let h2c = names(upgrade).any(is_h2c);
    (asked && !h2c).then(|| upgrade.clone())
}

/// How many bytes the names and values have.
pub(super) fn length(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    fn shown(headers: &HeaderMap) -> Vec<String> {
        let mut shown: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        shown.sort();
        shown
    }

    #[test]
    fn hop_by_hop_headers_are_not_forwarded() {
        let mut headers = map(&[
            ("connection", "keep-alive, X-Secret"),
            ("connection", "close"),
            ("keep-alive", "timeout=5"),
            ("x-secret", "1"),
            ("te", "gzip, trailers"),
            ("upgrade", "h2c"),
            ("transfer-encoding", "chunked"),
            ("accept", "*/*"),
        ]);
        remove_hop_by_hop(&mut headers);
        assert_eq!(shown(&headers), ["accept: */*", "te: trailers"]);
    }

    #[test]
    fn an_upgrade_passes_only_if_it_is_asked_for_and_is_not_h2c() {
        for (connection, upgrade, passes) in [
            ("Upgrade", "websocket", true),
            ("keep-alive, upgrade", "rot13", true),
            ("keep-alive", "websocket", false),
            ("Upgrade, HTTP2-Settings", "h2c", false),
            ("upgrade", "websocket, H2C", false),
        ] {
            let headers = map(&[("connection", connection), ("upgrade", upgrade)]);
            assert_eq!(wanted_upgrade(&headers).is_some(), passes, "{connection} / {upgrade}");
        }
    }

    #[test]
    fn a_response_with_more_than_one_length_is_ambiguous() {
        for (pairs, ambiguous) in [
            (&[][..], false),
            (&[("content-length", "5")], false),
            (&[("transfer-encoding", "Chunked")], false),
            (&[("content-length", "5"), ("transfer-encoding", "chunked")], true),
            (&[("content-length", "5"), ("content-length", "5")], true),
            (&[("content-length", "5, 5")], true),
            (&[("content-length", "+5")], true),
            (&[("transfer-encoding", "gzip, chunked")], true),
            (&[("transfer-encoding", "identity")], true),
            (&[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], true),
        ] {
            assert_eq!(is_ambiguous(&map(pairs)), ambiguous, "{pairs:?}");
        }
    }
}
