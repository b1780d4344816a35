//! The settings of push: where pods register, and how they prove who they are.

use std::net::SocketAddr;
use std::path::PathBuf;

use rouse_config::settings::{Address, Choice, Group, Setting, Switch, Text};
use rouse_core::endpoint::ServiceId;
use rouse_net::auth::PushMode;

use super::{FILE, PATH};
use crate::settings::ServiceName;
use crate::token_check::TOKEN_CHECKS;
pub use crate::token_check::TokenCheckMode;

const CREDENTIAL_KINDS: &[(&str, CredentialKind)] =
    &[("token", CredentialKind::Token), ("hmac", CredentialKind::Hmac), ("mtls", CredentialKind::Mtls)];
const PUSH_MODES: &[(&str, PushMode)] =
    &[("off", PushMode::Off), ("observe", PushMode::Observe), ("on", PushMode::On)];

/// How pods prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialKind {
    /// A pod-bound `ServiceAccount` token.
    Token,
    /// A shared key.
    Hmac,
    /// A client certificate.
    Mtls,
}

pub(super) static REGISTRATION: Group = Group {
    title: "Push",
    settings: &[
        &REGISTER_LISTEN,
        &PUSH,
        &REGISTER_AUTH,
        &REGISTER_TLS_CERT,
        &REGISTER_TLS_KEY,
        &REGISTER_TOKEN_CHECK,
        &REGISTER_ISSUER,
        &REGISTER_KEYS,
        &REGISTER_CLIENT_CA,
        &REGISTER_TRUST_DOMAIN,
        &REGISTER_HOST_NETWORK,
        &REGISTER_SERVICE,
    ],
};

/// `--register-listen`.
pub static REGISTER_LISTEN: Setting<Option<SocketAddr>> = Setting::optional(
    "register-listen",
    &Address,
    "none",
    "The address to listen on for registrations of pods (push)",
);

/// `--push`.
pub static PUSH: Setting<PushMode> = Setting::new(
    "push",
    &Choice(PUSH_MODES),
    || PushMode::On,
    "What registrations do: on, observe (they are checked and counted, and change nothing) or off; the annotation \
     rouse.dev/push of a Service overrides it",
);

/// `--register-auth`.
pub static REGISTER_AUTH: Setting<Vec<CredentialKind>> = Setting::new(
    "register-auth",
    &Choice(CREDENTIAL_KINDS),
    || vec![CredentialKind::Token],
    "How pods may prove who they are: token, hmac or mtls; may be repeated",
);

/// `--register-tls-cert`.
pub static REGISTER_TLS_CERT: Setting<Option<PathBuf>> = Setting::optional(
    "register-tls-cert",
    &PATH,
    "none",
    "A PEM file with the certificate of --register-listen, for the name of the registration Service",
);

/// `--register-tls-key`.
pub static REGISTER_TLS_KEY: Setting<Option<PathBuf>> =
    Setting::optional("register-tls-key", &PATH, "none", "The PEM file with the key of --register-tls-cert");

/// `--register-token-check`.
pub static REGISTER_TOKEN_CHECK: Setting<TokenCheckMode> = Setting::new(
    "register-token-check",
    &Choice(TOKEN_CHECKS),
    || TokenCheckMode::Jwks,
    "How tokens are checked: jwks (offline, with the keys of the issuer) or tokenreview (by the API server)",
);

/// `--register-issuer`.
pub static REGISTER_ISSUER: Setting<Option<String>> =
    Setting::optional("register-issuer", &Text, "the cluster's own", "The issuer that tokens must have");

/// `--register-keys`.
pub static REGISTER_KEYS: Setting<Option<PathBuf>> = Setting::optional(
    "register-keys",
    &PATH,
    "none",
    "A folder with the shared keys of --register-auth hmac, one file per key",
);

/// `--register-client-ca`.
pub static REGISTER_CLIENT_CA: Setting<Option<PathBuf>> = Setting::optional(
    "register-client-ca",
    &FILE,
    "none",
    "A PEM file with the root certificates of --register-auth mtls",
);

/// `--register-trust-domain`.
pub static REGISTER_TRUST_DOMAIN: Setting<String> = Setting::new(
    "register-trust-domain",
    &Text,
    || "cluster.local".to_owned(),
    "The trust domain in the SPIFFE names of client certificates",
);

/// `--register-host-network`.
pub static REGISTER_HOST_NETWORK: Setting<bool> = Setting::new(
    "register-host-network",
    &Switch,
    || false,
    "Whether pods on the network of their node may register: they share its addresses with other pods",
);

/// `--register-service`.
pub static REGISTER_SERVICE: Setting<Option<ServiceId>> = Setting::optional(
    "register-service",
    &ServiceName,
    "none",
    "The headless Service of the gateways' registration port, as NAMESPACE/NAME: answers to pods list its endpoints",
);
