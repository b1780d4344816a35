//! Parses the URL of peers: scheme, host and port.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use rouse_core::host::Host;

use crate::tls::{Alpn, ClientSettings, Identity, Roots, ServerName};

/// What follows the namespace in the DNS name of a Service.
const CLUSTER_SUFFIX: &str = ".svc.cluster.local";

/// Where peers are: `https://rouse-register.rouse-system.svc.cluster.local:9443`, `http://127.0.0.1:9080`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerUrl {
    tls: bool,
    host: PeerHost,
    port: u16,
}

/// The host of a [`PeerUrl`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerHost {
    /// One peer.
    Address(IpAddr),
    /// A name that DNS resolves to the addresses of all peers. In lower case, without a dot at the end.
    Name(String),
}

/// A text is not a [`PeerUrl`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected https://HOST:PORT or http://HOST:PORT without a path, where HOST is a name or an IP address (IPv6 in brackets)"
)]
pub struct BadPeerUrl;

impl PeerUrl {
    /// The pods behind the headless Service `service` of `namespace`, over TLS.
    pub fn of_service(service: &str, namespace: &str, port: u16) -> Result<Self, BadPeerUrl> {
        format!("https://{service}.{namespace}{CLUSTER_SUFFIX}:{port}").parse()
    }

    /// Whether the scheme is `https`.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// The host.
    pub fn host(&self) -> &PeerHost {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The TLS settings for this URL: its host is the name that the certificates of the peers must have, at any of the addresses
    /// are dialled. The name of a Service may also be written without the domain of the cluster. `None` for `http`.
    pub fn tls(&self, roots: Roots, identity: Option<Identity>, alpn: Alpn) -> Option<ClientSettings> {
        if !self.tls {
            return None;
        }
        let (server_name, accepted) = match &self.host {
            PeerHost::Address(ip) => (ServerName::from(*ip), Vec::new()),
            PeerHost::Name(name) => {
                let short = name.strip_suffix(CLUSTER_SUFFIX).map(|service| format!("{service}.svc"));
                let accepted = short.and_then(|short| ServerName::try_from(short).ok());
                (ServerName::try_from(name.clone()).ok()?, accepted.into_iter().collect())
            }
        };
        let settings = ClientSettings::new(server_name, roots);
        Some(ClientSettings { accepted, identity, alpn: vec![alpn], ..settings })
    }

    /// The host and the port, as requests name them.
    pub fn authority(&self) -> String {
        match &self.host {
            PeerHost::Address(ip) => SocketAddr::new(*ip, self.port).to_string(),
            PeerHost::Name(name) => format!("{name}:{}", self.port),
        }
    }

    /// The name for the look-up: with a dot at the end, so that the search domains of the pod are not tried. `None` if the
    /// host is an address.
    pub fn lookup_name(&self) -> Option<String> {
        match &self.host {
            PeerHost::Address(_) => None,
            // A name without a dot, like `localhost`, is not a name of the DNS.
            PeerHost::Name(name) if !name.contains('.') => Some(name.clone()),
            PeerHost::Name(name) => Some(format!("{name}.")),
        }
    }
}

impl FromStr for PeerUrl {
    type Err = BadPeerUrl;

    fn from_str(text: &str) -> Result<Self, BadPeerUrl> {
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
                Ok(ip) => PeerHost::Address(ip),
                // Certificates have no names with underscores, and all digits would be an address in another notation.
                Err(_) if ServerName::try_from(name).is_err() => return None,
                Err(_) => PeerHost::Name(name.to_owned()),
            };
            Some(Self { tls, host, port })
        };
        parse().ok_or(BadPeerUrl)
    }
}

impl fmt::Display for PeerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_of_a_service_are_looked_up_without_search_domains_and_verified_by_its_name() {
        let url = PeerUrl::of_service("rouse-register", "rouse-system", 9443).unwrap();
        assert_eq!(url.to_string(), "https://rouse-register.rouse-system.svc.cluster.local:9443");
        let name = "rouse-register.rouse-system.svc.cluster.local.";
        assert_eq!(url.lookup_name().as_deref(), Some(name), "search domains are not tried");
        let tls = url.tls(Roots::System, None, Alpn::H2).unwrap();
        let server_name = |name: &'static str| ServerName::try_from(name).unwrap();
        assert_eq!(tls.server_name, server_name("rouse-register.rouse-system.svc.cluster.local"));
        assert_eq!(tls.accepted, [server_name("rouse-register.rouse-system.svc")]);
        assert_eq!((tls.verify, tls.alpn), (true, vec![Alpn::H2]));
        assert!(PeerUrl::of_service("rouse-register", "a b", 9443).is_err());
    }

    #[test]
    fn urls_are_read_and_written() {
        for (text, written, lookup) in [
            ("http://127.0.0.1:9080", "http://127.0.0.1:9080", None),
            ("HTTPS://[FD00:0::1]:9443/", "https://[fd00::1]:9443", None),
            ("https://Gateway.Example.:9443", "https://gateway.example:9443", Some("gateway.example.")),
            ("http://localhost:80", "http://localhost:80", Some("localhost")),
        ] {
            let url: PeerUrl = text.parse().unwrap();
            assert_eq!((&*url.to_string(), url.lookup_name().as_deref()), (written, lookup));
            assert_eq!(url.is_tls(), written.starts_with("https"));
            assert_eq!(url.tls(Roots::System, None, Alpn::Http1).is_some(), url.is_tls());
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_is_allowed() {
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
            let error = bad.parse::<PeerUrl>().unwrap_err();
            assert!(error.to_string().contains("expected https://HOST:PORT"), "{error}");
        }
    }
}
