//! The settings of `rouse up`: addresses, limits, timeouts and logs of one run. The apps are in `rouse.yaml`.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rouse_config::settings::{Group, PrivateAddress, Setting, SettingKind, SettingsTable};

use crate::logging::{LOG_FORMAT, LOG_LEVEL};
use crate::settings::{
    COUNT, HEADER_TIMEOUT, IDLE_TIMEOUT, MAX_CONNECTIONS, TRUSTED_PROXIES, WORKERS, drain_timeout,
    shutdown_delay,
};

/// The table of `rouse up`.
pub static TABLE: SettingsTable = SettingsTable::new(&[&LISTENING, &LIMITS, &LEAVING, &OBSERVABILITY]);

static LISTENING: Group = Group { title: "Listening", settings: &[&LISTEN, &ADMIN, &XDS, &TRUSTED_PROXIES] };

static LIMITS: Group = Group {
    title: "Limits",
    settings: &[&WORKERS, &MAX_HOLDS, &MAX_CONNECTIONS, &IDLE_TIMEOUT, &HEADER_TIMEOUT],
};

static LEAVING: Group = Group { title: "Shutdown", settings: &[&SHUTDOWN_DELAY, &DRAIN_TIMEOUT] };

static OBSERVABILITY: Group = Group { title: "Observability", settings: &[&LOG_FORMAT, &LOG_LEVEL] };

/// `--listen`.
pub static LISTEN: Setting<Vec<SocketAddr>> = Setting::list(
    "listen",
    &PrintedAddress { admin: false },
    "from the file",
    "The address to listen on for requests, instead of the file's; may be repeated. Port 0 is any free port",
);

/// `--admin`.
pub static ADMIN: Setting<Option<SocketAddr>> = Setting::optional(
    "admin",
    &PrintedAddress { admin: true },
    "from the file",
    "The address of the admin API and the metrics, instead of the file's",
);

/// `--xds`.
pub static XDS: Setting<Option<SocketAddr>> = Setting::optional(
    "xds",
    &PrintedAddress { admin: true },
    "off",
    "The address at which Envoys fetch routes and endpoints of the apps (docs/envoy.md)",
);

/// `--max-holds`.
pub static MAX_HOLDS: Setting<usize> = Setting::new(
    "max-holds",
    &COUNT,
    || 10_000,
    "How many requests may wait for one service; further requests get 503",
);

/// `--shutdown-delay`.
pub static SHUTDOWN_DELAY: Setting<Duration> = shutdown_delay(|| Duration::ZERO);

/// `--drain-timeout`.
pub static DRAIN_TIMEOUT: Setting<Duration> = drain_timeout(|| Duration::from_secs(3));

/// An address as `rouse up` prints it, or as the file has it.
#[derive(Debug, Clone, Copy)]
pub struct PrintedAddress {
    /// True for the admin API, which may not listen on all addresses.
    admin: bool,
}

impl PrintedAddress {
    /// The address that `text` means: `127.0.0.1:8080`, `localhost:8080` or `http://127.0.0.1:8080/`.
    pub fn read(text: &str) -> Option<SocketAddr> {
        let bare = text.strip_prefix("http://").unwrap_or(text);
        let bare = bare.strip_suffix('/').unwrap_or(bare);
        let local = bare.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        local.as_deref().unwrap_or(bare).parse().ok()
    }

    /// The allowed form, for errors.
    pub const ALLOWED: &str = "an IP address and a port, like 127.0.0.1:8080 or [::1]:8080";
}

impl SettingKind for PrintedAddress {
    type Value = SocketAddr;

    fn placeholder(&self) -> &'static str {
        "ADDRESS"
    }

    fn allowed(&self) -> String {
        let allowed = if self.admin { PrivateAddress::ALLOWED } else { Self::ALLOWED };
        allowed.to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<SocketAddr, String> {
        let address = Self::read(text).filter(|address| !self.admin || PrivateAddress::is_allowed(*address));
        address.ok_or_else(|| self.allowed())
    }

    fn show(&self, address: &SocketAddr) -> String {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_copied_from_what_rouse_up_prints() {
        for text in ["127.0.0.1:9080", "http://127.0.0.1:9080", "http://localhost:9080/", "localhost:9080"] {
            assert_eq!(PrintedAddress::read(text), Some(SocketAddr::from(([127, 0, 0, 1], 9080))), "{text}");
        }
        for bad in ["", "9080", "127.0.0.1", "https://127.0.0.1:1", "example.com:80", "localhost:x"] {
            assert!(PrintedAddress::read(bad).is_none(), "{bad}");
        }
    }
}
