//! The URL of the gateways (`--register`).

use std::fmt;
use std::str::FromStr;

use rouse_net::peers::{PeerHost, PeerUrl};
use rouse_net::tls::{Alpn, ClientSettings, Identity, Roots};

/// The port of registrations, unless a URL says otherwise.
pub const DEFAULT_PORT: u16 = 9443;
/// The headless Service of the gateways' registration port.
const SERVICE: &str = "rouse-register";

/// Where a sidecar registers: `https://rouse-register.rouse-system.svc.cluster.local:9443`, `http://127.0.0.1:9080`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayUrl(PeerUrl);

/// A text is not a [`GatewayUrl`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the URL of a gateway: expected https://HOST:PORT or http://HOST:PORT without a path, where HOST is a name or \
     an IP address (IPv6 in brackets), or an empty value to turn push off"
)]
pub struct BadGatewayUrl(String);

impl GatewayUrl {
    /// Reads the value of a setting. An empty value turns push off.
    pub fn from_setting(text: &str) -> Result<Option<Self>, BadGatewayUrl> {
        if text.trim().is_empty() { Ok(None) } else { text.trim().parse().map(Some) }
    }

    /// The gateways that are installed in `namespace`.
    pub fn of_namespace(namespace: &str) -> Result<Self, BadGatewayUrl> {
        let url = PeerUrl::of_service(SERVICE, namespace, DEFAULT_PORT);
        url.map(Self).map_err(|_| BadGatewayUrl(namespace.to_owned()))
    }

    /// Whether the scheme is `https`.
    pub fn is_tls(&self) -> bool {
        self.0.is_tls()
    }

    /// The host.
    pub fn host(&self) -> &PeerHost {
        self.0.host()
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.0.port()
    }

    /// The TLS settings for this URL ([`PeerUrl::tls`]). `None` for `http`.
    pub fn tls(&self, roots: Roots, identity: Option<Identity>) -> Option<ClientSettings> {
        self.0.tls(roots, identity, Alpn::Http1)
    }

    pub(super) fn peers(&self) -> &PeerUrl {
        &self.0
    }
}

impl FromStr for GatewayUrl {
    type Err = BadGatewayUrl;

    fn from_str(text: &str) -> Result<Self, BadGatewayUrl> {
        text.parse().map(Self).map_err(|_| BadGatewayUrl(text.to_owned()))
    }
}

impl fmt::Display for GatewayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_derived_from_the_namespace() {
        let url = GatewayUrl::of_namespace("rouse-system").unwrap();
        assert_eq!(url.to_string(), "https://rouse-register.rouse-system.svc.cluster.local:9443");
        assert!(GatewayUrl::of_namespace("a b").is_err());
    }

    #[test]
    fn an_empty_value_turns_push_off_and_anything_else_is_refused_with_what_is_allowed() {
        assert_eq!(GatewayUrl::from_setting(" "), Ok(None));
        assert!(GatewayUrl::from_setting(" http://127.0.0.1:1 ").unwrap().is_some());
        let error = GatewayUrl::from_setting("gateway:9443").unwrap_err().to_string();
        assert!(
            error.starts_with("\"gateway:9443\" is not the URL of a gateway: expected https://HOST:PORT"),
            "{error}"
        );
    }
}
