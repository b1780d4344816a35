//! The URL of the controllers.

use std::fmt;
use std::str::FromStr;

use rouse_net::peers::PeerUrl;
use rouse_net::tls::{Alpn, ClientSettings, Roots};

/// The port of reports, unless a URL says otherwise.
pub const DEFAULT_REPORT_PORT: u16 = 9444;
/// The headless Service of the controllers.
const SERVICE: &str = "rouse-controller";

/// Where load is reported: `https://rouse-controller.rouse-system.svc.cluster.local:9444`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerUrl(PeerUrl);

/// A text is not a [`ControllerUrl`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the URL of the controllers: expected https://HOST:PORT without a path, where HOST is a name or an IP address \
     (IPv6 in brackets). Without TLS, no token is sent"
)]
pub struct BadControllerUrl(String);

impl ControllerUrl {
    /// The controllers that are installed in `namespace`.
    pub fn of_namespace(namespace: &str) -> Result<Self, BadControllerUrl> {
        let url = PeerUrl::of_service(SERVICE, namespace, DEFAULT_REPORT_PORT);
        url.map(Self).map_err(|_| BadControllerUrl(namespace.to_owned()))
    }

    /// The TLS settings: the certificates of controllers must have the host of the URL as their name.
    pub(super) fn tls(&self, roots: Roots) -> Option<ClientSettings> {
        self.0.tls(roots, None, Alpn::H2)
    }

    pub(super) fn peers(&self) -> &PeerUrl {
        &self.0
    }
}

impl FromStr for ControllerUrl {
    type Err = BadControllerUrl;

    fn from_str(text: &str) -> Result<Self, BadControllerUrl> {
        let url = text.parse::<PeerUrl>().ok().filter(PeerUrl::is_tls);
        url.map(Self).ok_or_else(|| BadControllerUrl(text.to_owned()))
    }
}

impl fmt::Display for ControllerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_derived_from_the_namespace() {
        let url = ControllerUrl::of_namespace("rouse-system").unwrap();
        assert_eq!(url.to_string(), "https://rouse-controller.rouse-system.svc.cluster.local:9444");
        assert_eq!(url.tls(Roots::System).unwrap().alpn, [Alpn::H2]);
    }

    #[test]
    fn a_url_without_tls_is_refused_with_the_reason() {
        assert!("https://127.0.0.1:1".parse::<ControllerUrl>().is_ok());
        for bad in ["http://127.0.0.1:1", "controller:9444", "https://controller"] {
            let error = bad.parse::<ControllerUrl>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{bad:?} is not the URL of the controllers")), "{error}");
            assert!(error.contains("expected https://HOST:PORT") && error.contains("Without TLS"), "{error}");
        }
    }
}
