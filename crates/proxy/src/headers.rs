//! What is told along the way: who asked, through whom, and what stays between two neighbours.

use std::net::{IpAddr, SocketAddr};

use http::header::{self, Entry, HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;

use crate::gateway::ColdStartHeaders;

/// Whether a header concerns one connection, and never passes.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const COLD_START: HeaderName = HeaderName::from_static("x-rouse-cold-start");
const KEDA_COLD_START: HeaderName = HeaderName::from_static("x-keda-http-cold-start");

/// Whose word on the client counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

/// Why a text is not a list of networks.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a network: expected CIDRs like 10.0.0.0/8 separated by commas, or none")]
pub struct BadNetworks(String);

impl TrustedProxies {
    /// Loopback and the private ranges.
    pub fn private() -> Self {
        let all = ["127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"];
        Self(all.into_iter().filter_map(|net| net.parse().ok()).collect())
    }

    /// Whether a peer at `ip` is believed.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|net| net.contains(&ip))
    }
}

impl std::str::FromStr for TrustedProxies {
    type Err = BadNetworks;

    fn from_str(text: &str) -> Result<Self, BadNetworks> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        let net = |part: &str| {
            let part = part.trim();
            let single = || part.parse::<IpAddr>().map(IpNet::from);
            part.parse::<IpNet>().or_else(|_| single()).map_err(|_| BadNetworks(part.into()))
        };
        text.split(',').map(net).collect::<Result<_, _>>().map(Self)
    }
}

/// Removes what concerns the connection only: the fixed list, and what `Connection` names, but for what no hop may
/// name away. A `TE: trailers` that came is kept, since it is a promise about the message.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // Most messages have one such header at most, and a look at all names costs less than a search for each.
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

/// Whether one of the headers `list` has `name` in it.
fn lists(headers: &HeaderMap, list: HeaderName, name: &str) -> bool {
    headers.get_all(list).iter().flat_map(names).any(|one| one.eq_ignore_ascii_case(name))
}

/// Whether the headers of a response leave open where its body ends.
pub fn is_ambiguous(headers: &HeaderMap) -> bool {
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

/// HTTP/2 lets a client send a cookie in crumbs, and HTTP/1 does not: many servers would read the first one only.
pub fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, cookie);
    }
}

/// Tells the pod who asked. What an untrusted peer says about that is dropped first, and nobody may speak in
/// our own name.
pub fn tell_origin(headers: &mut HeaderMap, peer: SocketAddr, tls: bool, trusted: &TrustedProxies) {
    remove_all(headers, |name| name.as_str().starts_with("x-rouse-"));
    if !trusted.contains(peer.ip()) {
        remove_all(headers, |name| name.as_str().starts_with("x-forwarded-"));
        headers.remove(header::FORWARDED);
    }
    append_forwarded_for(headers, peer.ip().to_canonical());
    if let Some(host) = headers.get(header::HOST).cloned()
        && let Entry::Vacant(vacant) = headers.entry(FORWARDED_HOST)
    {
        vacant.insert(host);
    }
    if let Entry::Vacant(vacant) = headers.entry(FORWARDED_PROTO) {
        vacant.insert(HeaderValue::from_static(if tls { "https" } else { "http" }));
    }
}

/// Says whether the request waited for a pod, in as many ways as are asked for.
pub(crate) fn tell_cold_start(headers: &mut HeaderMap, told: ColdStartHeaders, cold: bool) {
    let value = HeaderValue::from_static(if cold { "true" } else { "false" });
    if told.keda {
        headers.insert(KEDA_COLD_START, value.clone());
    }
    if told.rouse {
        headers.insert(COLD_START, value);
    }
}

/// Removes from a request's trailers what may not be said there: what concerns one connection, which HTTP/2 refuses,
/// and who asked, which a pod that adds trailers to the headers would believe.
pub(crate) fn clean_request_trailers(trailers: &mut HeaderMap) {
    remove_all(trailers, |name| {
        let begins = |prefix| name.as_str().starts_with(prefix);
        is_hop_by_hop(name) || begins("x-rouse-") || begins("x-forwarded-") || *name == header::FORWARDED
    });
}

/// The same for a response's.
pub(crate) fn clean_response_trailers(trailers: &mut HeaderMap) {
    remove_all(trailers, is_hop_by_hop);
}

fn remove_all(headers: &mut HeaderMap, is_unwanted: impl Fn(&HeaderName) -> bool) {
    let unwanted: Vec<HeaderName> = headers.keys().filter(|name| is_unwanted(name)).cloned().collect();
    for name in unwanted {
        headers.remove(name);
    }
}

/// One list, one line: several lines would let a careless reader take the wrong one.
fn append_forwarded_for(headers: &mut HeaderMap, peer: IpAddr) {
    let mut list: Vec<u8> = Vec::new();
    for value in &headers.get_all(FORWARDED_FOR) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(peer.to_string().as_bytes());
    // Made of valid values, commas and an address: always valid.
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(FORWARDED_FOR, value);
    }
}

/// What a gateway leaves in `Via`.
#[derive(Debug, Clone)]
pub struct Mark {
    name: String,
    hop: HeaderValue,
}

impl Mark {
    /// The mark of the gateway `id`. Whatever of it may not stand in a header is left out.
    pub fn new(id: &str) -> Self {
        let id: String = id.chars().filter(char::is_ascii_alphanumeric).collect();
        let name = format!("rouse-{id}");
        let hop = HeaderValue::from_str(&format!("1.1 {name}"));
        Self { name, hop: hop.unwrap_or_else(|_| HeaderValue::from_static("1.1 rouse")) }
    }

    /// Whether the request has been here already. If not, it has now.
    pub fn found_in(&self, headers: &mut HeaderMap) -> bool {
        let ours = |value: &HeaderValue| {
            let text = value.to_str().unwrap_or_default();
            text.split(',').any(|hop| hop.split_whitespace().nth(1) == Some(self.name.as_str()))
        };
        if headers.get_all(header::VIA).iter().any(ours) {
            return true;
        }
        headers.append(header::VIA, self.hop.clone());
        false
    }
}

/// The upgrade that an HTTP/1.1 request asks for, if it is one that may pass: `h2c` would let a client speak past
/// us to the pod.
pub fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let upgrade = headers.get(header::UPGRADE)?;
    let asked = lists(headers, header::CONNECTION, "upgrade");
    let is_h2c = |name: &str| name.split('/').next().is_some_and(|name| name.eq_ignore_ascii_case("h2c"));
    let h2c = names(upgrade).any(is_h2c);
    (asked && !h2c).then(|| upgrade.clone())
}

/// How many bytes the names and values have.
pub(crate) fn length(headers: &HeaderMap) -> usize {
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
    fn what_concerns_the_connection_does_not_pass() {
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
    fn a_trusted_peers_word_is_kept_and_continued() {
        let mut headers = map(&[
            ("host", "shop.example.com"),
            ("x-forwarded-for", "203.0.113.7"),
            ("x-forwarded-for", "10.1.1.1"),
            ("x-forwarded-proto", "https"),
            ("x-rouse-cold-start", "true"),
        ]);
        tell_origin(&mut headers, "10.0.0.9:1234".parse().unwrap(), false, &TrustedProxies::private());
        assert_eq!(
            shown(&headers),
            [
                "host: shop.example.com",
                "x-forwarded-for: 203.0.113.7, 10.1.1.1, 10.0.0.9",
                "x-forwarded-host: shop.example.com",
                "x-forwarded-proto: https",
            ]
        );
    }

    #[test]
    fn a_strangers_word_is_dropped() {
        let mut headers = map(&[
            ("host", "shop.example.com"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-host", "admin"),
            ("x-forwarded-user", "root"),
            ("forwarded", "for=127.0.0.1"),
        ]);
        tell_origin(&mut headers, "203.0.113.7:1".parse().unwrap(), true, &TrustedProxies::private());
        assert_eq!(
            shown(&headers),
            [
                "host: shop.example.com",
                "x-forwarded-for: 203.0.113.7",
                "x-forwarded-host: shop.example.com",
                "x-forwarded-proto: https",
            ]
        );
    }

    #[test]
    fn a_request_that_comes_back_is_recognised() {
        let mut headers = map(&[("via", "1.0 fred, 1.1 other")]);
        assert!(!Mark::new("7f").found_in(&mut headers));
        assert!(!Mark::new("80").found_in(&mut headers));
        assert!(Mark::new("7f").found_in(&mut headers));
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
    fn a_response_says_only_once_where_its_body_ends() {
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

    #[test]
    fn trust_is_given_by_network() {
        let trusted: TrustedProxies = "203.0.113.0/24, 2001:db8::1".parse().unwrap();
        for (ip, believed) in [
            ("203.0.113.9", true),
            ("::ffff:203.0.113.9", true),
            ("203.0.114.9", false),
            ("2001:db8::1", true),
            ("10.0.0.1", false),
        ] {
            assert_eq!(trusted.contains(ip.parse().unwrap()), believed, "{ip}");
        }
        assert!(!"none".parse::<TrustedProxies>().unwrap().contains("127.0.0.1".parse().unwrap()));
        assert_eq!("10.0.0.0/33".parse::<TrustedProxies>(), Err(BadNetworks("10.0.0.0/33".into())));
    }
}
