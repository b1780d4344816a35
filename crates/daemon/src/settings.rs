//! Settings that several roles share, and value types of Rouse's own. The table of a role lists them next to its own settings.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rouse_config::settings::{
    AnySetting, DurationRange, FilePath, Origin, Setting, SettingKind, Text, Values, Whole,
};
use rouse_core::endpoint::ServiceId;
use rouse_proxy::request::TrustedProxies;

use crate::process::capacity::ConnectionCapacity;

/// The longest duration: a longer one is a mistake. It is far below where clocks overflow.
const LONGEST: Duration = Duration::from_hours(30 * 24);
/// A duration where zero has a meaning.
pub const ANY_DURATION: DurationRange = DurationRange { least: Duration::ZERO, most: LONGEST };
/// A duration that may not be zero.
pub const POSITIVE_DURATION: DurationRange = DurationRange { least: Duration::from_millis(1), most: LONGEST };
/// A number of things that may not be zero.
pub const COUNT: Whole<usize> = Whole { least: 1, most: 1_000_000 };

/// A port on all IPv4 addresses.
pub(crate) const fn everywhere(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)
}

/// A port on 127.0.0.1.
pub(crate) const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// The value type of networks, or `none`.
#[derive(Debug, Clone, Copy)]
pub struct Networks;

/// Networks whose `X-Forwarded-*` headers are trusted, and the text that they were parsed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedNetworks {
    /// The networks.
    pub networks: TrustedProxies,
    text: String,
}

impl SettingKind for Networks {
    type Value = TrustedNetworks;

    fn placeholder(&self) -> &'static str {
        "NETWORKS"
    }

    fn allowed(&self) -> String {
        "networks like 10.0.0.0/8, separated by commas, or none".to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<TrustedNetworks, String> {
        let networks = text.parse().map_err(|_| self.allowed())?;
        Ok(TrustedNetworks { networks, text: text.to_owned() })
    }

    fn show(&self, value: &TrustedNetworks) -> String {
        value.text.clone()
    }

    fn is_joined(&self) -> bool {
        true
    }
}

/// `--trusted-proxies`.
pub static TRUSTED_PROXIES: Setting<TrustedNetworks> = Setting::new(
    "trusted-proxies",
    &Networks,
    || TrustedNetworks {
        networks: TrustedProxies::private(),
        text: "127.0.0.0/8,::1/128,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,fc00::/7".to_owned(),
    },
    "Networks of clients whose X-Forwarded-* headers are trusted, separated by commas, or none",
);

/// `--max-connections`.
pub static MAX_CONNECTIONS: Setting<Option<usize>> = Setting::optional(
    "max-connections",
    &Whole { least: 1, most: 10_000_000 },
    "by files and memory",
    "How many client connections may be open, at most about half of the limit of open files; the default is also at most \
     half of the memory limit at 32KiB each. At the limit, closes the connection that is idle longest, then the one stalled \
     longest",
)
.on_this_machine(|| ConnectionCapacity::now().connections);

/// `--header-timeout`.
pub static HEADER_TIMEOUT: Setting<Duration> = Setting::new(
    "header-timeout",
    &POSITIVE_DURATION,
    || Duration::from_secs(10),
    "How long a client may take to send the request line and headers of a request",
);

/// `--idle-timeout`.
pub static IDLE_TIMEOUT: Setting<Duration> = Setting::new(
    "idle-timeout",
    &POSITIVE_DURATION,
    || Duration::from_secs(75),
    "How long a client connection may have no request, and the body of an HTTP/1 request may receive no data",
);

/// `--stream-idle-timeout`.
pub static STREAM_IDLE_TIMEOUT: Setting<Duration> = Setting::new(
    "stream-idle-timeout",
    &POSITIVE_DURATION,
    || Duration::from_hours(1),
    "How long a request or an upgraded connection may transfer no data",
);

/// `--workers`.
pub static WORKERS: Setting<Option<usize>> = Setting::optional(
    "workers",
    &Whole { least: 1, most: 1024 },
    "one per core",
    "How many threads serve requests",
);

/// `--kubeconfig`.
pub static KUBECONFIG: Setting<Option<PathBuf>> = Setting::optional(
    "kubeconfig",
    &FilePath { placeholder: "FILE" },
    "the pod's ServiceAccount, else $KUBECONFIG or ~/.kube/config",
    "The kubeconfig file of the cluster",
);

/// `--context`.
pub static CONTEXT: Setting<Option<String>> =
    Setting::optional("context", &Text, "the current one", "The context of the kubeconfig to use");

/// `--shutdown-delay`, whose default depends on the role.
pub const fn shutdown_delay(default: fn() -> Duration) -> Setting<Duration> {
    Setting::new(
        "shutdown-delay",
        &ANY_DURATION,
        default,
        "How long to keep accepting requests after a signal to stop, while /readyz fails and HTTP/1 responses have \
         Connection: close",
    )
}

/// `--drain-timeout`, whose default depends on the role.
pub const fn drain_timeout(default: fn() -> Duration) -> Setting<Duration> {
    Setting::new(
        "drain-timeout",
        &ANY_DURATION,
        default,
        "How long requests under way may take to finish after the shutdown delay",
    )
}

/// The origin and text of a problem with the file that `setting` names. The text names the setting unless the origin is its
/// flag: a place in a file or a variable of KEDA does not always name it.
pub(crate) fn about_file(values: &Values, setting: &'static dyn AnySetting, what: &str) -> (Origin, String) {
    match values.origin(setting) {
        flag @ Origin::Flag(_) => (flag, what.to_owned()),
        other => (other, format!("{}: {what}", setting.name())),
    }
}

/// `NAMESPACE/NAME`.
#[derive(Debug, Clone, Copy)]
pub struct ServiceName;

impl SettingKind for ServiceName {
    type Value = ServiceId;

    fn placeholder(&self) -> &'static str {
        "NAMESPACE/NAME"
    }

    fn allowed(&self) -> String {
        "the namespace and the name of a Service, like rouse-system/rouse-register".to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<ServiceId, String> {
        text.parse().map_err(|_| self.allowed())
    }

    fn show(&self, service: &ServiceId) -> String {
        service.to_string()
    }
}
