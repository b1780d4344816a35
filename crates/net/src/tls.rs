//! TLS: the server side for clients of the gateway, and the client side for connections to pods.
//!
//! Uses rustls with aws-lc-rs, passed to every configuration explicitly: another crate could set the process-wide default
//! first.

mod client;
mod client_config_cache;
mod error;
mod files;
mod hosts;
mod inspect;
mod server;
mod validity;
mod verify;

use std::sync::{Arc, LazyLock};

use rustls::SupportedProtocolVersion;
use rustls::crypto::CryptoProvider;

pub use client::{ClientSettings, ClientStream, ClientTls, ClientTlsConfig, Roots};
pub use client_config_cache::ClientConfigs;
pub use error::{FaultSide, TlsError};
pub use files::{CertificateWarningKind, Identity, LoadError, LoadProblem, Pem, Warning};
pub use hosts::{BadSniPattern, SniPattern};
pub use inspect::InspectedCertificate;
pub use rustls_pki_types::ServerName;
pub use server::{
    CertEntry, ClientAuth, ClientCertificates, PolicyId, ServedCertificate, ServerSettings, ServerStream,
    ServerTls, TlsHandshake, TlsPolicy, client_certificates, peer_certificate,
};

/// The crypto backend.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    Arc::clone(&PROVIDER)
}

/// A TLS version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TlsVersion {
    /// 1.2, with forward-secret AEAD cipher suites only.
    Tls12,
    /// 1.3.
    Tls13,
}

/// The allowed TLS versions: all by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Versions {
    min: TlsVersion,
    max: TlsVersion,
}

/// The minimum version is above the maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the minimum TLS version is above the maximum")]
pub struct NoVersion;

impl Versions {
    /// From `min` to `max`, both included.
    pub fn new(min: TlsVersion, max: TlsVersion) -> Result<Self, NoVersion> {
        if min > max { Err(NoVersion) } else { Ok(Self { min, max }) }
    }

    fn supported(self) -> Vec<&'static SupportedProtocolVersion> {
        let known =
            [(TlsVersion::Tls13, &rustls::version::TLS13), (TlsVersion::Tls12, &rustls::version::TLS12)];
        let spoken = known.into_iter().filter(|(version, _)| (self.min..=self.max).contains(version));
        spoken.map(|(_, supported)| supported).collect()
    }
}

impl Default for Versions {
    fn default() -> Self {
        Self { min: TlsVersion::Tls12, max: TlsVersion::Tls13 }
    }
}

/// An application protocol that is negotiated in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Alpn {
    /// HTTP/2.
    H2,
    /// HTTP/1.1.
    Http1,
}

impl Alpn {
    const fn id(self) -> &'static [u8] {
        match self {
            Self::H2 => b"h2",
            Self::Http1 => b"http/1.1",
        }
    }

    fn of(id: &[u8]) -> Option<Self> {
        [Self::H2, Self::Http1].into_iter().find(|alpn| alpn.id() == id)
    }

    fn ids(list: &[Self]) -> Vec<Vec<u8>> {
        list.iter().map(|alpn| alpn.id().to_vec()).collect()
    }
}
