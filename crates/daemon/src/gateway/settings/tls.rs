//! The settings of TLS for listeners and for connections to pods.

use std::net::SocketAddr;
use std::path::PathBuf;

use rouse_config::settings::{Address, AllowedSources, Choice, Group, Setting, Switch};
use rouse_net::tls::TlsVersion;

use super::{FILE, PATH};
use crate::gateway::keda;

const TLS_VERSIONS: &[(&str, TlsVersion)] = &[("1.2", TlsVersion::Tls12), ("1.3", TlsVersion::Tls13)];
const CLIENT_AUTH_MODES: &[(&str, ClientAuthMode)] = &[
    ("none", ClientAuthMode::None),
    ("optional", ClientAuthMode::Optional),
    ("required", ClientAuthMode::Required),
];
const UPSTREAM_TLS_MODES: &[(&str, UpstreamTls)] =
    &[("off", UpstreamTls::Off), ("on", UpstreamTls::On), ("as-received", UpstreamTls::AsReceived)];

/// Whether clients of a TLS listener present a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuthMode {
    /// Clients are not asked for one.
    None,
    /// Clients may present one.
    Optional,
    /// Clients must present one.
    Required,
}

/// Whether connections to pods use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamTls {
    /// Only if an annotation or the `appProtocol` of the Service sets it.
    Off,
    /// Always.
    On,
    /// If the request came over TLS.
    AsReceived,
}

pub(super) static TLS: Group = Group {
    title: "TLS",
    settings: &[
        &TLS_LISTEN,
        &TLS_CERT,
        &TLS_KEY,
        &TLS_CERT_DIR,
        &TLS_MIN_VERSION,
        &TLS_MAX_VERSION,
        &TLS_CLIENT_CA,
        &TLS_CLIENT_AUTH,
        &UPSTREAM_TLS,
        &UPSTREAM_CA,
        &UPSTREAM_SKIP_VERIFY,
    ],
};

/// `--tls-listen`.
pub static TLS_LISTEN: Setting<Vec<SocketAddr>> = Setting::list(
    "tls-listen",
    &Address,
    "none",
    "The address to listen on for requests over TLS; may be repeated",
)
.aliases(&keda::TLS_LISTEN);

/// `--tls-cert`.
pub static TLS_CERT: Setting<Vec<PathBuf>> = Setting::list(
    "tls-cert",
    &PATH,
    "none",
    "A PEM file with a certificate and its chain, chosen by the client's server name; may be repeated, and \
     the first is the default",
)
.places(AllowedSources::Part { list: "tls-certs", part: "cert" })
.aliases(&keda::TLS_CERT);

/// `--tls-key`.
pub static TLS_KEY: Setting<Vec<PathBuf>> = Setting::list(
    "tls-key",
    &PATH,
    "none",
    "The PEM file with the key of each --tls-cert, in the same order",
)
.places(AllowedSources::Part { list: "tls-certs", part: "key" })
.aliases(&keda::TLS_KEY);

/// `--tls-cert-dir`.
pub static TLS_CERT_DIR: Setting<Vec<PathBuf>> = Setting::list(
    "tls-cert-dir",
    &PATH,
    "none",
    "A folder with pairs like tls.crt and tls.key, or shop.crt and shop.key; may be repeated",
)
.aliases(&keda::TLS_CERT_DIR);

/// `--tls-min-version`.
pub static TLS_MIN_VERSION: Setting<TlsVersion> = Setting::new(
    "tls-min-version",
    &Choice(TLS_VERSIONS),
    || TlsVersion::Tls12,
    "The lowest TLS version to accept, 1.2 or 1.3",
)
.aliases(&keda::TLS_MIN_VERSION);

/// `--tls-max-version`.
pub static TLS_MAX_VERSION: Setting<TlsVersion> = Setting::new(
    "tls-max-version",
    &Choice(TLS_VERSIONS),
    || TlsVersion::Tls13,
    "The highest TLS version to accept, 1.2 or 1.3",
)
.aliases(&keda::TLS_MAX_VERSION);

/// `--tls-client-ca`.
pub static TLS_CLIENT_CA: Setting<Option<PathBuf>> =
    Setting::optional("tls-client-ca", &FILE, "none", "A PEM file with the root certificates for clients");

/// `--tls-client-auth`.
pub static TLS_CLIENT_AUTH: Setting<ClientAuthMode> = Setting::new(
    "tls-client-auth",
    &Choice(CLIENT_AUTH_MODES),
    || ClientAuthMode::None,
    "Whether clients present a certificate: none, optional or required; needs --tls-client-ca",
);

/// `--upstream-tls`.
pub static UPSTREAM_TLS: Setting<UpstreamTls> = Setting::new(
    "upstream-tls",
    &Choice(UPSTREAM_TLS_MODES),
    || UpstreamTls::Off,
    "Whether to connect to pods over TLS if neither annotation nor appProtocol of the Service sets it: off, \
     on, or as-received (only for requests that came over TLS)",
)
.aliases(&keda::UPSTREAM_TLS);

/// `--upstream-ca`.
pub static UPSTREAM_CA: Setting<Option<PathBuf>> = Setting::optional(
    "upstream-ca",
    &FILE,
    "the system's roots only",
    "A PEM file with root certificates for pods, in addition to the system's; a Service's own CA replaces both",
);

/// Turns off the verification of pods' certificates. It has no flag and no key of the file: only KEDA's variables set it.
pub static UPSTREAM_SKIP_VERIFY: Setting<bool> = Setting::new(
    "upstream-skip-verify",
    &Switch,
    || false,
    "Whether to skip the verification of pods' certificates: an attacker in between can read and change all requests",
)
.places(AllowedSources::AliasesOnly)
.aliases(&keda::SKIP_VERIFY);
