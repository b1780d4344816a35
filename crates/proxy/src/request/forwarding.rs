//! The request headers that the gateway sets for pods: `X-Forwarded-*` and `Via`. Recognises routing loops by `Via`.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};

use http::Version;
use http::header::{self, HeaderName, HeaderValue};
use ipnet::IpNet;

use crate::error::Failure;
use crate::message::{HeaderEdits, RequestHead};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Proxies in front of the gateway whose `X-Forwarded-*` headers are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

/// A text that is not a list of networks.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a network: expected CIDRs like 10.0.0.0/8 separated by commas, or none")]
pub struct BadNetworks(String);

impl TrustedProxies {
    /// Loopback and the private ranges.
    pub fn private() -> Self {
        let all = ["127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"];
        Self(all.into_iter().filter_map(|net| net.parse().ok()).collect())
    }

    /// Whether a peer at `ip` is trusted.
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

/// The changes that make the client's headers those for the pod. `head` is without the headers that concern the client's
/// connection: a `Connection` header must not remove what the gateway adds.
pub(super) fn edits(
    head: &impl RequestHead,
    peer: SocketAddr,
    over_tls: bool,
    trusted: &TrustedProxies,
    via: &ViaMark,
) -> Result<HeaderEdits, Failure> {
    if via.is_in(head) {
        return Err(Failure::Loop);
    }
    let (mut edits, authority) = translation(head);
    edits.append(header::VIA, via.hop.clone());
    edits.remove_prefix("x-rouse-");
    let is_trusted = trusted.contains(peer.ip());
    if !is_trusted {
        edits.remove_prefix("x-forwarded-");
        edits.remove(header::FORWARDED);
    }
    let lacks = |name: &HeaderName| !is_trusted || head.header(name).is_none();
    if let Some(list) = forwarded_for(head, is_trusted, peer.ip().to_canonical()) {
        edits.set(FORWARDED_FOR, list);
    }
    if lacks(&FORWARDED_HOST)
        && let Some(host) = authority.or_else(|| head.kept_header(&header::HOST))
    {
        edits.set(FORWARDED_HOST, host);
    }
    if lacks(&FORWARDED_PROTO) {
        edits.set(FORWARDED_PROTO, HeaderValue::from_static(if over_tls { "https" } else { "http" }));
    }
    Ok(edits)
}

/// The changes that a sidecar makes: only those between HTTP/2 and HTTP/1. All others are the gateway's.
pub(super) fn edits_of_sidecar(head: &impl RequestHead) -> HeaderEdits {
    translation(head).0
}

/// What the other version of HTTP needs, and the authority of the request if it has one.
fn translation(head: &impl RequestHead) -> (HeaderEdits, Option<HeaderValue>) {
    let mut edits = HeaderEdits::new();
    let authority = head.authority().and_then(|authority| HeaderValue::from_str(authority).ok());
    if let Some(host) = &authority {
        edits.set(header::HOST, host.clone());
    }
    if head.version() == Version::HTTP_2 {
        join_cookies(&mut edits, head);
        // The proxy cannot pass the 100 on, so the pod must not wait for it to have an effect.
        edits.remove(header::EXPECT);
    }
    (edits, authority)
}

/// HTTP/2 lets a client send a cookie in several headers, and HTTP/1 does not: many servers would read the first one only.
fn join_cookies(edits: &mut HeaderEdits, head: &impl RequestHead) {
    let crumbs: Vec<&[u8]> = head.header_values(&header::COOKIE).collect();
    if crumbs.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        edits.set(header::COOKIE, cookie);
    }
}

/// One list in one header: a careless reader of several headers would take the wrong one.
fn forwarded_for(head: &impl RequestHead, is_trusted: bool, peer: IpAddr) -> Option<HeaderValue> {
    let mut list: Vec<u8> = Vec::with_capacity(64);
    for value in head.header_values(&FORWARDED_FOR).filter(|_| is_trusted) {
        list.extend_from_slice(value);
        list.extend_from_slice(b", ");
    }
    // Writing to a Vec cannot fail. The list has valid values, commas and an address: it is always valid.
    write!(list, "{peer}").ok()?;
    HeaderValue::from_bytes(&list).ok()
}

/// The entry of this gateway in `Via`, by which it recognises a request that it has sent itself.
#[derive(Debug, Clone)]
pub(crate) struct ViaMark {
    name: String,
    hop: HeaderValue,
}

impl ViaMark {
    /// The entry of the gateway `id`, without the characters that a header may not have.
    pub(crate) fn new(id: &str) -> Self {
        let id: String = id.chars().filter(char::is_ascii_alphanumeric).collect();
        let name = format!("rouse-{id}");
        let hop = HeaderValue::from_str(&format!("1.1 {name}"));
        Self { name, hop: hop.unwrap_or_else(|_| HeaderValue::from_static("1.1 rouse")) }
    }

    /// Whether the request has been here already.
    fn is_in(&self, head: &impl RequestHead) -> bool {
        let names = |value: &[u8]| {
            let text = str::from_utf8(value).unwrap_or_default();
            text.split(',').any(|hop| hop.split_whitespace().nth(1) == Some(self.name.as_str()))
        };
        head.header_values(&header::VIA).any(names)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http::request::Parts;

    use super::*;
    use crate::message::HeaderEdit;

    fn head(pairs: &[(&str, &str)]) -> Parts {
        let request = Request::builder();
        let request = pairs.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    /// The edits of a request from `peer`, in words.
    fn edited(pairs: &[(&str, &str)], peer: &str, over_tls: bool) -> Vec<String> {
        let (trusted, via) = (TrustedProxies::private(), ViaMark::new("7f"));
        let edits = edits(&head(pairs), peer.parse().unwrap(), over_tls, &trusted, &via).unwrap();
        let shown = |edit| match edit {
            HeaderEdit::Set(name, value) => format!("set {name}: {}", value.to_str().unwrap()),
            HeaderEdit::Append(name, value) => format!("append {name}: {}", value.to_str().unwrap()),
            HeaderEdit::Remove(name) => format!("remove {name}"),
            HeaderEdit::RemovePrefix(prefix) => format!("remove {prefix}*"),
        };
        edits.into_iter().map(shown).collect()
    }

    #[test]
    fn headers_of_a_trusted_peer_are_kept_and_continued() {
        let pairs = [
            ("host", "shop.example.com"),
            ("x-forwarded-for", "203.0.113.7"),
            ("x-forwarded-for", "10.1.1.1"),
            ("x-forwarded-proto", "https"),
            ("x-rouse-cold-start", "true"),
        ];
        assert_eq!(
            edited(&pairs, "10.0.0.9:1234", false),
            [
                "append via: 1.1 rouse-7f",
                "remove x-rouse-*",
                "set x-forwarded-for: 203.0.113.7, 10.1.1.1, 10.0.0.9",
                "set x-forwarded-host: shop.example.com",
            ]
        );
    }

    #[test]
    fn headers_of_an_untrusted_peer_are_dropped() {
        let pairs = [
            ("host", "shop.example.com"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-host", "admin"),
            ("x-forwarded-user", "root"),
            ("forwarded", "for=127.0.0.1"),
        ];
        assert_eq!(
            edited(&pairs, "203.0.113.7:1", true),
            [
                "append via: 1.1 rouse-7f",
                "remove x-rouse-*",
                "remove x-forwarded-*",
                "remove forwarded",
                "set x-forwarded-for: 203.0.113.7",
                "set x-forwarded-host: shop.example.com",
                "set x-forwarded-proto: https",
            ]
        );
    }

    #[test]
    fn a_request_that_comes_back_is_recognised() {
        let found = |id: &str, via: &str| ViaMark::new(id).is_in(&head(&[("via", via)]));
        assert!(!found("7f", "1.0 fred, 1.1 other"));
        assert!(!found("80", "1.0 fred, 1.1 other, 1.1 rouse-7f"));
        assert!(found("7f", "1.0 fred, 1.1 other, 1.1 rouse-7f"));
    }

    #[test]
    fn proxies_are_trusted_by_network() {
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
