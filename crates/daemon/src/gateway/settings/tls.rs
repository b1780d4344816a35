//! The settings of TLS: certificates of listeners and connections to pods.

use std::net::SocketAddr;
use std::path::PathBuf;

use rouse_config::settings::{Address, Group, List, Optional, Required, AllowedSources, Setting, Switch, Choice};
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

/// Whether clients of a TLS listener show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuthMode {
    /// They are not asked.
    None,
    /// They may.
    Optional,
    /// They must.
    Required,
}

/// Whether connections to pods use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamTls {
    /// Only where an annotation or `appProtocol` says so.
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
pub static TLS_LISTEN: Setting<Vec<SocketAddr>> =
    Setting::list("tls-listen", &List(Address), "none", "Where requests come in over TLS; may be repeated")
        .aliases(&keda::TLS_LISTEN);

/// `--tls-cert`.
pub static TLS_CERT: Setting<Vec<PathBuf>> = Setting::list("tls-cert", &List(PATH), "none", "A PEM file with a certificate and its chain, chosen by the client's server name; may be repeated, the first \
         is for all other clients")
.places(AllowedSources::Part { list: "tls-certs", part: "cert" })
.aliases(&keda::TLS_CERT);

/// `--tls-key`.
pub static TLS_KEY: Setting<Vec<PathBuf>> = Setting::list(
    "tls-key",
    &List(PATH),
    "none",
    "The PEM file with the key of each --tls-cert, in the same order",
)
.places(AllowedSources::Part { list: "tls-certs", part: "key" })
.aliases(&keda::TLS_KEY);

/// `--tls-cert-dir`.
pub static TLS_CERT_DIR: Setting<Vec<PathBuf>> = Setting::list(
    "tls-cert-dir",
    &List(PATH),
    "none",
    "A folder with pairs like tls.crt and tls.key, or shop.crt and shop.key; may be repeated",
)
.aliases(&keda::TLS_CERT_DIR);

/// `--tls-min-version`.
pub static TLS_MIN_VERSION: Setting<TlsVersion> = Setting::new(
    "tls-min-version",
    &Required(Choice(TLS_VERSIONS)),
    || TlsVersion::Tls12,
    "The lowest TLS version that is spoken, 1.2 or 1.3",
)
.aliases(&keda::TLS_MIN_VERSION);

/// `--tls-max-version`.
pub static TLS_MAX_VERSION: Setting<TlsVersion> = Setting::new(
    "tls-max-version",
    &Required(Choice(TLS_VERSIONS)),
    || TlsVersion::Tls13,
    "The highest TLS version that is spoken, 1.2 or 1.3",
)
.aliases(&keda::TLS_MAX_VERSION);

/// `--tls-client-ca`.
pub static TLS_CLIENT_CA: Setting<Option<PathBuf>> = Setting::optional(
    "tls-client-ca",
    &Optional(FILE),
    "none",
    "A PEM file with the roots of the clients' certificates",
);

/// `--tls-client-auth`.
pub static TLS_CLIENT_AUTH: Setting<ClientAuthMode> = Setting::new(
    "tls-client-auth",
    &Required(Choice(CLIENT_AUTH_MODES)),
    || ClientAuthMode::None,
    "Whether clients show a certificate: none, optional or required; needs --tls-client-ca",
);

/// `--upstream-tls`.
pub static UPSTREAM_TLS: Setting<UpstreamTls> = Setting::new("upstream-tls", &Required(Choice(UPSTREAM_TLS_MODES)), || UpstreamTls::Off, "Whether pods are spoken to over TLS if neither annotation nor appProtocol says so: off, on, or as-received \
         for requests that came over TLS")
.aliases(&keda::UPSTREAM_TLS);

/// `--upstream-ca`.
pub static UPSTREAM_CA: Setting<Option<PathBuf>> = Setting::optional(
    "upstream-ca",
    &Optional(FILE),
    "the system's roots alone",
    "A PEM file with roots of pods' certificates, beside the system's; a Service's own CA counts instead of both",
);

/// `--upstream-skip-verify`.
pub static UPSTREAM_SKIP_VERIFY: Setting<bool> = Setting::new(
    "upstream-skip-verify",
    &Required(Switch),
    || false,
    "Whether the certificates of pods are not verified: an attacker in between can read and change all requests",
)
.places(AllowedSources::AliasesOnly)
.aliases(&keda::SKIP_VERIFY);
