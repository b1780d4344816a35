//! The command-line arguments and help of `rouse xds bootstrap`, and the parsers of its values.

#![allow(clippy::doc_markdown, reason = "doc comments are help texts here, and backticks would be printed")]

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::path::PathBuf;

use clap::Args;
use rouse_core::host::Host;
use rouse_daemon::xds::settings::DEFAULT_XDS_PORT;

/// The text at the end of `rouse xds bootstrap --help`.
pub const HELP: &str = "\
Prints a complete configuration for Envoy 1.30 and later: its admin API on loopback, a listener whose routes come from Rouse, and \
everything else (clusters, endpoints, further listeners) over one stream to the servers. Envoy reports the load of the clusters \
to the same servers. The same arguments give the same text.

With several servers, Envoy uses one and turns to another when it fails; meanwhile it keeps what it has. A host name is resolved again \
and again, so the headless Service of `rouse install --xds` stands for all replicas.

Without --ca, Envoy reads the configuration in plain text: only on loopback or for trials. --cert and --key are the client \
certificate that `rouse xds --xds-client-ca` asks for. Each Envoy needs a --node-id of its own, or Envoy's flag --service-node: the \
load of two Envoys with one name could not be told apart when one of them fails.

Examples:
  rouse xds bootstrap --server 127.0.0.1:18000 > envoy.yaml
  rouse xds bootstrap --server rouse-xds.rouse-system.svc.cluster.local:18000 --ca ca.crt --cert tls.crt --key tls.key --node-id edge-1
  rouse xds bootstrap --server 10.0.0.7:18000 --server [fd00::7]:18000 --ca ca.crt --listen 0.0.0.0:8080
  rouse xds bootstrap --server 127.0.0.1:18000 --listen none

Exit codes: 0 done, 1 failed while running, 2 bad usage.";

/// `rouse xds bootstrap`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct BootstrapArgs {
    /// An address of xDS, HOST or HOST:PORT; may be repeated for several replicas
    #[arg(long, value_name = "ADDRESS", required = true, value_parser = server)]
    pub server: Vec<XdsServerAddress>,
    /// Where Envoy listens for requests, or none: then its listeners are those of `rouse xds --envoy-listen`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10000", value_parser = listen)]
    pub listen: StaticListener,
    /// A PEM file with the CAs of the servers' certificate, as a path on the machine of Envoy
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// A PEM file with Envoy's own certificate, as a path on the machine of Envoy
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"])]
    pub cert: Option<PathBuf>,
    /// The PEM file with the key of --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// The name of this Envoy, which no other Envoy has
    #[arg(long, value_name = "ID", default_value = "envoy", value_parser = node_id)]
    pub node_id: String,
    /// Where Envoy's admin API listens; loopback only, because it has no authentication
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9901", value_parser = loopback)]
    pub envoy_admin: SocketAddr,
}

/// Where xDS is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdsServerAddress {
    /// The host.
    pub host: XdsServerHost,
    /// The port.
    pub port: NonZeroU16,
}

/// The host of an [`XdsServerAddress`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XdsServerHost {
    /// Looked up by Envoy.
    Name(String),
    /// Dialled as it is.
    Ip(IpAddr),
}

/// The listener that the bootstrap itself has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StaticListener {
    /// At this address.
    At(SocketAddr),
    /// None: all listeners come over LDS.
    None,
}

fn server(text: &str) -> Result<XdsServerAddress, String> {
    let expected = || {
        "expected HOST or HOST:PORT with a port from 1 to 65535, like rouse-xds.rouse-system.svc.cluster.local:18000, \
         10.0.0.7:18000 or [fd00::7]:18000"
            .to_owned()
    };
    let host = Host::parse(text.as_bytes()).map_err(|_| expected())?;
    let port = NonZeroU16::new(host.port().unwrap_or(DEFAULT_XDS_PORT)).ok_or_else(expected)?;
    let ip: Option<IpAddr> = host.name().trim_matches(['[', ']']).parse().ok();
    if ip.is_some_and(|ip| ip.is_unspecified()) {
        return Err(format!(
            "{text} is where a server listens, not where it is: name its host or its address"
        ));
    }
    let host = ip.map_or_else(|| XdsServerHost::Name(host.name().to_owned()), XdsServerHost::Ip);
    Ok(XdsServerAddress { host, port })
}

fn listen(text: &str) -> Result<StaticListener, String> {
    if text == "none" {
        return Ok(StaticListener::None);
    }
    text.parse().map(StaticListener::At).map_err(|_| {
        "expected an address with a port, like 127.0.0.1:10000, 0.0.0.0:8080 or [::]:8080, or none".to_owned()
    })
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: Option<SocketAddr> = text.parse().ok();
    address.filter(|address| address.ip().is_loopback()).ok_or_else(|| {
        "expected an address on loopback, like 127.0.0.1:9901: Envoy's admin API has no authentication"
            .to_owned()
    })
}

fn node_id(text: &str) -> Result<String, String> {
    let fits = (1..=253).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| text.to_owned())
        .ok_or_else(|| "expected 1 to 253 printable ASCII characters without spaces, like edge-1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_name_or_an_address_with_a_port() {
        let ip = |text: &str| XdsServerHost::Ip(text.parse().unwrap());
        let name = |text: &str| XdsServerHost::Name(text.to_owned());
        for (text, host, port) in [
            ("127.0.0.1:18001", ip("127.0.0.1"), 18001),
            ("[fd00::7]:18000", ip("fd00::7"), 18000),
            ("[FD00:0::7]", ip("fd00::7"), DEFAULT_XDS_PORT),
            ("rouse-xds.rouse-system.svc", name("rouse-xds.rouse-system.svc"), DEFAULT_XDS_PORT),
            ("Edge_1:1", name("edge_1"), 1),
        ] {
            let port = NonZeroU16::new(port).unwrap();
            assert_eq!(server(text), Ok(XdsServerAddress { host, port }), "{text}");
        }
        for bad in ["", "fd00::7", "a:0", "a:65536", "http://a:1", "a b:1", ":18000", "a:", "[::1", "a:1/x"] {
            assert!(server(bad).unwrap_err().contains("expected HOST or HOST:PORT"), "{bad}");
        }
        for bad in ["0.0.0.0:18000", "[::]:18000"] {
            assert!(server(bad).unwrap_err().contains("not where it is"), "{bad}");
        }
    }

    #[test]
    fn envoy_listens_anywhere_but_its_admin_api_only_on_loopback() {
        assert_eq!(listen("none"), Ok(StaticListener::None));
        assert_eq!(listen("[::]:8080"), Ok(StaticListener::At("[::]:8080".parse().unwrap())));
        for bad in ["", "8080", "localhost:8080", "1.2.3.4", "off"] {
            assert!(listen(bad).unwrap_err().contains("or none"), "{bad}");
        }
        assert!(loopback("127.0.0.1:0").is_ok() && loopback("[::1]:9901").is_ok());
        for bad in ["0.0.0.0:9901", "10.0.0.7:9901", "9901", "localhost:9901"] {
            assert!(loopback(bad).unwrap_err().contains("no authentication"), "{bad}");
        }
    }

    #[test]
    fn a_node_id_is_one_word() {
        assert!(node_id("edge-1.zone/a").is_ok());
        for bad in ["", "a b", "a\n", "ü", &*"a".repeat(254)] {
            assert!(node_id(bad).unwrap_err().contains("printable ASCII"), "{bad:?}");
        }
    }
}
