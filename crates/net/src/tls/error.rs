//! TLS handshake errors: maps rustls errors and alerts to messages that name the wrong certificate, host name or setting.

use std::io;

use rustls::{AlertDescription, CertificateError, PeerIncompatible};

/// Why a TLS handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The peer did not finish the handshake in time.
    #[error("the TLS handshake timed out")]
    Timeout,
    /// The peer's certificate is valid for other names.
    #[error("the peer's certificate is not for {wanted} but for [{}]", presented.join(", "))]
    WrongName {
        /// The expected name.
        wanted: String,
        /// The names in the certificate, as far as they are known.
        presented: Vec<String>,
    },
    /// The peer's certificate does not chain to a trusted root.
    #[error("the peer's certificate was not issued by a trusted CA")]
    UnknownCa,
    /// A certificate in the peer's chain has expired.
    #[error("the peer's certificate has expired")]
    Expired,
    /// A certificate in the peer's chain is not valid yet.
    #[error("the peer's certificate is not valid yet")]
    NotYetValid,
    /// The peer's certificate is invalid for another reason.
    #[error("the peer's certificate cannot be accepted: {0}")]
    BadCertificate(CertificateError),
    /// The peer presented no certificate although one is required.
    #[error("the peer presented no certificate")]
    NoCertificate,
    /// The peer requires a client certificate, and we presented none.
    #[error("the peer requires a client certificate, and none is configured")]
    OursMissing,
    /// The peer rejected our certificate.
    #[error("the peer rejected our certificate: {0:?}")]
    OursRefused(AlertDescription),
    /// No TLS version that both sides allow.
    #[error("no common TLS version")]
    NoCommonVersion,
    /// No application protocol that both sides allow.
    #[error("no common protocol (ALPN)")]
    NoCommonProtocol,
    /// No cipher suite, key exchange group or signature scheme that both sides allow.
    #[error("no common TLS parameters: {0:?}")]
    NothingInCommon(PeerIncompatible),
    /// The peer aborted the handshake with another alert.
    #[error("the peer ended the handshake: {0:?}")]
    Alert(AlertDescription),
    /// The peer's data is not TLS.
    #[error("the peer does not speak TLS")]
    NotTls,
    /// The connection broke during the handshake.
    #[error("the connection broke during the handshake")]
    Io(#[source] io::Error),
    /// Anything else.
    #[error("the TLS handshake failed")]
    Other(#[source] rustls::Error),
}

/// The side that has to fix it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultSide {
    /// Our certificate or settings.
    Ours,
    /// The peer's certificate, settings or conduct.
    Peers,
    /// Two settings that do not fit, either of which may be wrong.
    Either,
}

impl TlsError {
    /// The side that has to fix it.
    pub fn fault(&self) -> FaultSide {
        match self {
            Self::OursMissing | Self::OursRefused(_) => FaultSide::Ours,
            Self::NoCommonVersion | Self::NoCommonProtocol | Self::NothingInCommon(_) | Self::Alert(_) => {
                FaultSide::Either
            }
            Self::Timeout
            | Self::WrongName { .. }
            | Self::UnknownCa
            | Self::Expired
            | Self::NotYetValid
            | Self::BadCertificate(_)
            | Self::NoCertificate
            | Self::NotTls
            | Self::Io(_)
            | Self::Other(_) => FaultSide::Peers,
        }
    }

    /// The TLS error in a stream's I/O error, if there is one. In TLS 1.3 a client learns only with its first read that the
    /// server rejected its certificate: its handshake is over by then.
    pub fn of_stream(error: &io::Error) -> Option<Self> {
        let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        Some(Self::of(inner.clone()))
    }

    pub(super) fn of_io(error: io::Error) -> Self {
        Self::of_stream(&error).unwrap_or(Self::Io(error))
    }

    fn of(error: rustls::Error) -> Self {
        use rustls::Error as E;
        match error {
            E::InvalidCertificate(error) => Self::of_certificate(error),
            E::NoCertificatesPresented => Self::NoCertificate,
            E::AlertReceived(alert) => Self::of_alert(alert),
            E::NoApplicationProtocol => Self::NoCommonProtocol,
            E::PeerIncompatible(
                PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                | PeerIncompatible::SupportedVersionsExtensionRequired
                | PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled,
            ) => Self::NoCommonVersion,
            E::PeerIncompatible(what) => Self::NothingInCommon(what),
            E::InvalidMessage(_) => Self::NotTls,
            error => Self::Other(error),
        }
    }

    fn of_certificate(error: CertificateError) -> Self {
        use CertificateError as C;
        match error {
            C::Expired | C::ExpiredContext { .. } => Self::Expired,
            C::NotValidYet | C::NotValidYetContext { .. } => Self::NotYetValid,
            // A CA that was renewed with the same name and another key appears as a bad signature.
            C::UnknownIssuer | C::BadSignature => Self::UnknownCa,
            C::NotValidForNameContext { expected, presented } => {
                let presented = presented.iter().map(|name| plain(name).to_owned()).collect();
                Self::WrongName { wanted: expected.to_str().into_owned(), presented }
            }
            error => Self::BadCertificate(error),
        }
    }

    fn of_alert(alert: AlertDescription) -> Self {
        use AlertDescription as A;
        match alert {
            A::CertificateRequired => Self::OursMissing,
            A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::UnknownCA
            // Some peers send this alert when the CA has the same name and another key.
            | A::DecryptError
            | A::AccessDenied => Self::OursRefused(alert),
            A::ProtocolVersion => Self::NoCommonVersion,
            A::NoApplicationProtocol => Self::NoCommonProtocol,
            alert => Self::Alert(alert),
        }
    }
}

/// The plain name: webpki formats names as `DnsName("cart.shop.svc")` and `IpAddress(10.0.0.1)`.
fn plain(name: &str) -> &str {
    let inner = |kind: &str| name.strip_prefix(kind)?.strip_suffix(')');
    let of_known_kind = inner("DnsName(").or_else(|| inner("IpAddress("));
    of_known_kind.map_or(name, |inner| inner.trim_matches('"'))
}
