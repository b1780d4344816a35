//! Parses the host of a request (`Host`, `:authority`, SNI): host name or IP address, and port.
//!
//! Every protocol uses this parser, so that routing, TLS policies and the pod cannot read one text as two hosts.

use std::borrow::Cow;
use std::net::Ipv6Addr;

/// The longest host name in bytes, without a trailing dot.
const LONGEST_NAME: usize = 253;
/// The longest label of a host name in bytes.
const LONGEST_LABEL: usize = 63;

/// A host with an optional port: `shop.example.com`, `127.0.0.1:8080`, `[::1]:8080`.
///
/// Case, a trailing dot and the notation of an IPv6 address do not matter for equality.
///
/// ```
/// use rouse_core::host::Host;
///
/// let host = Host::parse(b"Shop.Example.COM.:8080").unwrap();
/// assert_eq!((host.name(), host.port()), ("shop.example.com", Some(8080)));
/// assert!(Host::parse(b"shop.example.com:80@evil.test").is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host<'a> {
    name: Cow<'a, str>,
    port: Option<u16>,
}

/// Why a text is not a [`Host`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a host name or an IP address (IPv6 in brackets), with an optional port from 0 to 65535")]
pub struct NotAHost;

impl<'a> Host<'a> {
    /// Parses a host with an optional port. Allocates only for an IPv6 address or a name with upper-case letters.
    pub fn parse(text: &'a [u8]) -> Result<Self, NotAHost> {
        let text = str::from_utf8(text).map_err(|_| NotAHost)?;
        let end = match text.strip_prefix('[') {
            // The colons of an IPv6 address are inside its brackets.
            Some(rest) => rest.find(']').ok_or(NotAHost)? + 2,
            None => text.find(':').unwrap_or(text.len()),
        };
        let (name, rest) = text.split_at_checked(end).ok_or(NotAHost)?;
        let port = match rest.strip_prefix(':') {
            Some(digits) => Some(port(digits).ok_or(NotAHost)?),
            None if rest.is_empty() => None,
            None => return Err(NotAHost),
        };
        Ok(Self { name: parse_name(name)?, port })
    }

    /// Parses a host that must not have a port, as in certificates, routes and TLS handshakes.
    pub fn parse_without_port(text: &'a str) -> Result<Self, NotAHost> {
        Ok(Self { name: parse_name(text)?, port: None })
    }

    /// The name in lower case, without a trailing dot; an IPv6 address in brackets and in its shortest form.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is an IPv6 address.
    pub fn is_ipv6(&self) -> bool {
        self.name.starts_with('[')
    }

    /// The port, if the text has one.
    pub fn port(&self) -> Option<u16> {
        self.port
    }
}

fn parse_name(text: &str) -> Result<Cow<'_, str>, NotAHost> {
    if let Some(address) = text.strip_prefix('[') {
        let address = address.strip_suffix(']').and_then(|address| address.parse::<Ipv6Addr>().ok());
        return address.map(|address| Cow::Owned(format!("[{address}]"))).ok_or(NotAHost);
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let (mut label, mut upper) = (0, false);
    for byte in name.bytes() {
        match byte {
            // An empty label.
            b'.' if label == 0 => return Err(NotAHost),
            b'.' => label = 0,
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => label += 1,
            b'A'..=b'Z' => (label, upper) = (label + 1, true),
            _ => return Err(NotAHost),
        }
        if label > LONGEST_LABEL {
            return Err(NotAHost);
        }
    }
    if label == 0 || name.len() > LONGEST_NAME {
        return Err(NotAHost);
    }
    Ok(if upper { Cow::Owned(name.to_ascii_lowercase()) } else { Cow::Borrowed(name) })
}

/// Accepts up to five digits: some parsers truncate a longer number.
fn port(digits: &str) -> Option<u16> {
    let plain = (1..=5).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_with_a_numeric_port() {
        for (text, name, port) in [
            ("a", "a", None),
            ("Shop.Example.COM:8080", "shop.example.com", Some(8080)),
            ("shop.example.com.", "shop.example.com", None),
            ("shop.example.com.:80", "shop.example.com", Some(80)),
            ("my_app-1.test:0", "my_app-1.test", Some(0)),
            ("127.0.0.1:65535", "127.0.0.1", Some(65535)),
            ("[::1]", "[::1]", None),
            ("[FD00:0::1]:80", "[fd00::1]", Some(80)),
            ("[::ffff:10.0.0.1]", "[::ffff:10.0.0.1]", None),
            ("a:00080", "a", Some(80)),
        ] {
            let host = Host::parse(text.as_bytes()).unwrap();
            assert_eq!((host.name(), host.port()), (name, port), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let (label, name) = ("a".repeat(64), "abcdefg.".repeat(32));
        for text in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a..",
            ":80",
            "a:",
            "a:x",
            "a:80x",
            "a:+80",
            "a:-1",
            "a:65536",
            "a:000080",
            "a:80:80",
            "a:@b",
            "u@a",
            "a:80@b",
            "a, b",
            "a:80, b",
            "a b",
            " a",
            "a ",
            "a/b",
            "a:80/b",
            "a?b",
            "a#b",
            "a%2eb",
            "%61",
            "a~b",
            "*",
            "*.a",
            "ä.test",
            "a\0",
            "a\r\n",
            "::1",
            "[::1",
            "[::1]x",
            "[::1]80",
            "[::g]",
            "[]",
            "[",
            "]",
            "[a]",
            "[127.0.0.1]",
            "[::1%25eth0]",
            "[::1].",
            "[[::1]]",
            &label,
            &name,
        ] {
            assert_eq!(Host::parse(text.as_bytes()), Err(NotAHost), "{text:?}");
        }
        assert_eq!(Host::parse(b"a\xff"), Err(NotAHost));
        assert_eq!(Host::parse_without_port("a:80"), Err(NotAHost));
    }

    proptest! {
        /// A host that is printed and parsed again is the same host, so a pod that parses what we forward sees the same one.
        #[test]
        fn what_is_a_host_is_the_same_host_when_it_is_read_again(
            text in "[a-cA-C0-9.:_\\[\\]@, -]{0,12}|[a-z]{1,3}(\\.[a-zA-Z]{0,3}){0,3}\\.?(:[0-9x]{0,6})?",
        ) {
            if let Ok(host) = Host::parse(text.as_bytes()) {
                let port = host.port().map(|port| format!(":{port}")).unwrap_or_default();
                let again = format!("{}{port}", host.name());
                prop_assert_eq!(Host::parse(again.as_bytes()), Ok(host.clone()));
                // What a naive parser takes for the host: everything before the first colon outside brackets.
                let careless = if text.starts_with('[') { None } else { text.split(':').next() };
                if let Some(careless) = careless {
                    let careless = careless.to_ascii_lowercase();
                    prop_assert_eq!(careless.strip_suffix('.').unwrap_or(&careless), host.name());
                }
            }
        }
    }
}
