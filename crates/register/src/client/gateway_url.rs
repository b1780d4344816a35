//! Parses the URL of the gateways (`--register`): scheme, host and port.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use rouse_core::host::Host;
use rouse_net::tls::{Alpn, ClientSettings, Identity, Roots, ServerName};

/// The port of registrations, unless a URL says otherwise.
pub const DEFAULT_PORT: u16 = 9443;
/// The headless Service of the gateways' registration port.
const SERVICE: &str = "rouse-register";
/// What follows the namespace in the DNS name of a Service.
const CLUSTER_SUFFIX: &str = ".svc.cluster.local";

/// Where a sidecar registers: `https://rouse-register.rouse-system.svc.cluster.local:9443`, `http://127.0.0.1:9080`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayUrl {
    tls: bool,
    host: GatewayHost,
    port: u16,
}

/// The host of a [`GatewayUrl`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayHost {
    /// One gateway.
    Address(IpAddr),
    /// A name that DNS resolves to the addresses of all gateways. In lower case, without a dot at the end.
    Name(String),
}

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
        format!("https://{SERVICE}.{namespace}{CLUSTER_SUFFIX}:{DEFAULT_PORT}").parse()
    }

    /// Whether the scheme is `https`.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// The host.
    pub fn host(&self) -> &GatewayHost {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The TLS settings for this URL: its host is the name that the gateways' certificates must have, whatever addresses are
    /// dialled. The name of a Service may also be written without the domain of the cluster. `None` for `http`.
    pub fn tls(&self, roots: Roots, identity: Option<Identity>) -> Option<ClientSettings> {
        if !self.tls {
            return None;
        }
        let (server_name, accepted) = match &self.host {
            GatewayHost::Address(ip) => (ServerName::from(*ip), Vec::new()),
            GatewayHost::Name(name) => {
                let short = name.strip_suffix(CLUSTER_SUFFIX).map(|service| format!("{service}.svc"));
                let accepted = short.and_then(|short| ServerName::try_from(short).ok());
                (ServerName::try_from(name.clone()).ok()?, accepted.into_iter().collect())
            }
        };
        let settings = ClientSettings::new(server_name, roots);
        Some(ClientSettings { accepted, identity, alpn: vec![Alpn::Http1], ..settings })
    }

    /// The `Host` header of requests.
    pub(super) fn authority(&self) -> String {
        match &self.host {
            GatewayHost::Address(ip) => SocketAddr::new(*ip, self.port).to_string(),
            GatewayHost::Name(name) => format!("{name}:{}", self.port),
        }
    }

    /// The name for the look-up: with a dot at the end, so that the search domains of the pod are not tried. `None` if the
    /// host is an address.
    pub(super) fn lookup_name(&self) -> Option<String> {
        match &self.host {
            GatewayHost::Address(_) => None,
            // A name without a dot, like `localhost`, is not a name of the DNS.
            GatewayHost::Name(name) if !name.contains('.') => Some(name.clone()),
            GatewayHost::Name(name) => Some(format!("{name}.")),
        }
    }
}

impl FromStr for GatewayUrl {
    type Err = BadGatewayUrl;

    fn from_str(text: &str) -> Result<Self, BadGatewayUrl> {
        let parse = || {
            let (scheme, rest) = text.split_once("://")?;
            let tls = match &*scheme.to_ascii_lowercase() {
                "https" => true,
                "http" => false,
                _ => return None,
            };
            let host = Host::parse(rest.strip_suffix('/').unwrap_or(rest).as_bytes()).ok()?;
            let port = host.port().filter(|port| *port != 0)?;
            let name = host.name();
            let address = name.trim_start_matches('[').trim_end_matches(']').parse();
            let host = match address {
                Ok(ip) => GatewayHost::Address(ip),
                // Certificates have no names with underscores, and all digits would be an address in another notation.
                Err(_) if ServerName::try_from(name).is_err() => return None,
                Err(_) => GatewayHost::Name(name.to_owned()),
            };
            Some(Self { tls, host, port })
        };
        parse().ok_or_else(|| BadGatewayUrl(text.to_owned()))
    }
}

impl fmt::Display for GatewayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_derived_from_the_namespace() {
        let url = GatewayUrl::of_namespace("rouse-system").unwrap();
        assert_eq!(url.to_string(), "https://rouse-register.rouse-system.svc.cluster.local:9443");
        let name = "rouse-register.rouse-system.svc.cluster.local.";
        assert_eq!(url.lookup_name().as_deref(), Some(name), "search domains are not tried");
        let tls = url.tls(Roots::System, None).unwrap();
        let server_name = |name: &'static str| ServerName::try_from(name).unwrap();
        assert_eq!(tls.server_name, server_name("rouse-register.rouse-system.svc.cluster.local"));
        assert_eq!(tls.accepted, [server_name("rouse-register.rouse-system.svc")]);
        assert!(tls.verify);
        assert!(GatewayUrl::of_namespace("a b").is_err());
    }

    #[test]
    fn urls_are_read_and_written() {
        for (text, written, lookup) in [
            ("http://127.0.0.1:9080", "http://127.0.0.1:9080", None),
            ("HTTPS://[FD00:0::1]:9443/", "https://[fd00::1]:9443", None),
            ("https://Gateway.Example.:9443", "https://gateway.example:9443", Some("gateway.example.")),
            ("http://localhost:80", "http://localhost:80", Some("localhost")),
        ] {
            let url: GatewayUrl = text.parse().unwrap();
            assert_eq!((&*url.to_string(), url.lookup_name().as_deref()), (written, lookup));
            assert_eq!(url.is_tls(), written.starts_with("https"));
            assert_eq!(url.tls(Roots::System, None).is_some(), url.is_tls());
        }
    }

    #[test]
    fn an_empty_value_turns_push_off_and_anything_else_is_refused_with_what_is_allowed() {
        assert_eq!(GatewayUrl::from_setting(" "), Ok(None));
        assert!(GatewayUrl::from_setting(" http://127.0.0.1:1 ").unwrap().is_some());
        for bad in [
            "gateway:9443",
            "https://gateway",
            "https://gateway:0",
            "https://gateway:65536",
            "ftp://gateway:1",
            "https://user:secret@gateway:1",
            "https://gateway:1/v1/registrations",
            "https://gateway:1?x",
            "https://:1",
            "https://fd00::1:1",
            "https://a b:1",
            "//gateway:1",
        ] {
            let error = GatewayUrl::from_setting(bad).unwrap_err();
            assert!(error.to_string().contains("expected https://HOST:PORT"), "{error}");
        }
    }
}
