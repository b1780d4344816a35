//! Value types of the sidecar's settings: probes, the drain secret, ports and URLs.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use rouse_config::settings::SettingKind;
use rouse_core::endpoint::PortName;
use rouse_register::client::GatewayUrl;

/// The forms of an [`AppCheck`].
const PROBE_FORMS: &str = "tcp, http:PATH like http:/ready, or grpc:SERVICE";

/// How the sidecar checks whether the app is ready. As text: `tcp`, `http:PATH` or `grpc:SERVICE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppCheck {
    /// The app accepts a connection.
    Tcp,
    /// A GET of this path succeeds.
    Http(String),
    /// The gRPC health check of this service says SERVING.
    Grpc(String),
}

/// A text that is no [`AppCheck`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {PROBE_FORMS}")]
pub struct BadAppCheck;

impl fmt::Display for AppCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => f.write_str("tcp"),
            Self::Http(path) => write!(f, "http:{path}"),
            Self::Grpc(service) => write!(f, "grpc:{service}"),
        }
    }
}

impl FromStr for AppCheck {
    type Err = BadAppCheck;

    fn from_str(text: &str) -> Result<Self, BadAppCheck> {
        match text.split_once(':') {
            None if text == "tcp" => Ok(Self::Tcp),
            Some(("http", path)) if path.starts_with('/') => Ok(Self::Http(path.to_owned())),
            Some(("grpc", service)) => Ok(Self::Grpc(service.to_owned())),
            _ => Err(BadAppCheck),
        }
    }
}

/// `tcp`, `http:PATH` or `grpc:SERVICE`.
#[derive(Debug, Clone, Copy)]
pub struct AppCheckText;

impl SettingKind for AppCheckText {
    type Value = AppCheck;

    fn placeholder(&self) -> &'static str {
        "PROBE"
    }

    fn allowed(&self) -> String {
        PROBE_FORMS.to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<AppCheck, String> {
        text.parse().map_err(|BadAppCheck| self.allowed())
    }

    fn show(&self, probe: &AppCheck) -> String {
        probe.to_string()
    }
}

/// The header with the secret of `/drain` and `/wait-for-drain`.
pub const DRAIN_SECRET_HEADER: &str = "X-Rouse-Drain-Secret";
/// What a drain secret must be: see [`is_drain_secret`].
pub const DRAIN_SECRET_RULE: &str = "16 to 128 printable ASCII characters without spaces";

/// Whether `text` is long enough for a secret, and can be the value of a header.
pub fn is_drain_secret(text: &str) -> bool {
    (16..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The secret that opens `/drain` to the kubelet. Its `Debug` output does not contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct DrainSecret(String);

impl DrainSecret {
    /// Whether `text` is the secret, in a time that does not depend on where they differ.
    pub fn is(&self, text: &[u8]) -> bool {
        rouse_net::auth::equal_in_constant_time(self.0.as_bytes(), text)
    }
}

impl DrainSecret {
    /// Whether it is one by [`is_drain_secret`].
    pub(crate) fn is_long_enough(&self) -> bool {
        is_drain_secret(&self.0)
    }
}

impl fmt::Debug for DrainSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DrainSecret")
    }
}

/// A secret that goes into a header.
#[derive(Debug, Clone, Copy)]
pub struct DrainSecretText;

impl SettingKind for DrainSecretText {
    type Value = DrainSecret;

    fn placeholder(&self) -> &'static str {
        "SECRET"
    }

    fn allowed(&self) -> String {
        DRAIN_SECRET_RULE.to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<DrainSecret, String> {
        // `check` rejects a bad one: an error here would quote it.
        Ok(DrainSecret(text.to_owned()))
    }

    /// Not the secret: `--check-config` prints it.
    fn show(&self, _secret: &DrainSecret) -> String {
        "(secret)".to_owned()
    }
}

/// Where the sidecar registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushTarget {
    /// Nowhere.
    Off,
    /// At the gateways of this URL.
    At(GatewayUrl),
}

/// The URL of the gateways, or nothing or `none` to turn push off.
#[derive(Debug, Clone, Copy)]
pub struct PushTargetText;

impl SettingKind for PushTargetText {
    type Value = PushTarget;

    fn placeholder(&self) -> &'static str {
        "URL"
    }

    fn allowed(&self) -> String {
        "https://HOST:PORT or http://HOST:PORT, or none to turn push off".to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<PushTarget, String> {
        let off = text == "none";
        let url = GatewayUrl::from_setting(if off { "" } else { text }).map_err(|_| self.allowed())?;
        Ok(url.map_or(PushTarget::Off, PushTarget::At))
    }

    fn show(&self, target: &PushTarget) -> String {
        match target {
            PushTarget::Off => "none".to_owned(),
            PushTarget::At(url) => url.to_string(),
        }
    }
}

/// A port of the Service on this pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPort {
    /// Its name in the Service; empty for the only port of a Service.
    pub name: PortName,
    /// Its number on the pod.
    pub number: u16,
}

/// `NAME=PORT`.
#[derive(Debug, Clone, Copy)]
pub struct NamedPortText;

impl SettingKind for NamedPortText {
    type Value = NamedPort;

    fn placeholder(&self) -> &'static str {
        "NAME=PORT"
    }

    fn allowed(&self) -> String {
        "the name of a port, an equals sign and a number from 1 to 65535, like http=8012; an unnamed port is =8012"
            .to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<NamedPort, String> {
        let port = text.split_once('=').and_then(|(name, number)| {
            let number = number.parse().ok().filter(|number| *number > 0)?;
            (name.len() <= 63).then(|| NamedPort { name: PortName::new(name), number })
        });
        port.ok_or_else(|| self.allowed())
    }

    fn show(&self, NamedPort { name, number }: &NamedPort) -> String {
        format!("{}={number}", name.as_str())
    }
}

/// An IP address.
#[derive(Debug, Clone, Copy)]
pub struct IpText;

impl SettingKind for IpText {
    type Value = IpAddr;

    fn placeholder(&self) -> &'static str {
        "IP"
    }

    fn allowed(&self) -> String {
        "an IP address".to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<IpAddr, String> {
        text.trim().parse().map_err(|_| self.allowed())
    }

    fn show(&self, ip: &IpAddr) -> String {
        ip.to_string()
    }
}
