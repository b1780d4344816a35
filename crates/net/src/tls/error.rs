//! Errors of TLS handshakes, with texts that name the certificate, name or setting that is wrong.

use std::io;

use rustls::{AlertDescription, CertificateError, PeerIncompatible};

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The peer did not finish the handshake in time.
    #[error("no TLS handshake in time")]
    Timeout,
    /// The peer's certificate is for other names.
    #[error("the peer's certificate is not for {wanted} but for [{}]", presented.join(", "))]
    WrongName {
        /// What it should have been for.
        wanted: String,
        /// What it is for, as far as is known.
        presented: Vec<String>,
    },
    /// The peer's certificate leads to no root that we trust.
    #[error("the peer's certificate was not issued by a trusted CA")]
    UnknownCa,
    /// The time of a certificate in the peer's chain is over.
    #[error("the peer's certificate has expired")]
    Expired,
    /// The time of a certificate in the peer's chain has not come.
    #[error("the peer's certificate is not valid yet")]
    NotYetValid,
    /// The peer's certificate is unfit in another way.
    #[error("the peer's certificate cannot be accepted: {0}")]
    BadCertificate(CertificateError),
    /// The peer gave no certificate where one is required.
    #[error("the peer gave no certificate")]
    NoCertificate,
    /// The peer asks for a certificate, and we gave none.
    #[error("the peer requires a certificate of ours, and none is configured")]
    OursMissing,
    /// The peer does not accept the certificate that we gave.
    #[error("the peer refused our certificate: {0:?}")]
    OursRefused(AlertDescription),
    /// No version of TLS that both may speak.
    #[error("no common TLS version")]
    NoCommonVersion,
    /// No protocol that both may speak inside.
    #[error("no common protocol (ALPN)")]
    NoCommonProtocol,
    /// No cipher suite, group or signature that both may use.
    #[error("nothing in common: {0:?}")]
    NothingInCommon(PeerIncompatible),
    /// The peer ended the handshake for a reason of its own.
    #[error("the peer ended the handshake: {0:?}")]
    Alert(AlertDescription),
    /// What came is not TLS.
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

    /// What a stream's error says of TLS, if anything. In TLS 1.3 a client learns only with its first read that the
    /// server refused its certificate: the handshake was over by then.
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
            // A bad signature is what a CA of the same name with another key looks like: one that was renewed.
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
            // What some say where the CA has the right name and another key.
            | A::DecryptError
            | A::AccessDenied => Self::OursRefused(alert),
            A::ProtocolVersion => Self::NoCommonVersion,
            A::NoApplicationProtocol => Self::NoCommonProtocol,
            alert => Self::Alert(alert),
        }
    }
}

/// A name without its kind, as people write it: webpki says `DnsName("cart.shop.svc")` and `IpAddress(10.0.0.1)`.
fn plain(name: &str) -> &str {
    let inner = |kind: &str| name.strip_prefix(kind)?.strip_suffix(')');
    let of_known_kind = inner("DnsName(").or_else(|| inner("IpAddress("));
    of_known_kind.map_or(name, |inner| inner.trim_matches('"'))
}
