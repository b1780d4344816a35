//! Verifies a pod's certificate against the names of its service, although the connection is to an IP; or skips verification.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, SignatureVerificationAlgorithm, UnixTime};

use super::CertificateWarningKind;
use super::validity::staleness;

/// The trusted certificate authorities.
#[derive(Debug)]
pub(super) struct Trusted {
    pub(super) roots: RootCertStore,
    /// The certificates of the configured bundles. A pod may present one of them itself.
    pub(super) pinned: Vec<CertificateDer<'static>>,
}

impl Trusted {
    pub(super) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), Error> {
        // Pods often present a self-signed certificate. Chain verification rejects it as a leaf, so it is compared as a whole.
        if self.pinned.iter().any(|pinned| pinned == leaf) {
            return match staleness(leaf, now) {
                Some(CertificateWarningKind::Expired) => Err(CertificateError::Expired.into()),
                Some(CertificateWarningKind::NotYetValid) => Err(CertificateError::NotValidYet.into()),
                _ => Ok(()),
            };
        }
        let leaf = ParsedCertificate::try_from(leaf)?;
        verify_server_cert_signed_by_trust_anchor(&leaf, &self.roots, intermediates, now, algorithms)
    }
}

/// Verifies the certificates of pods.
#[derive(Debug)]
pub(super) struct PodCertificates {
    pub(super) policy: PodCertificatePolicy,
    pub(super) provider: Arc<CryptoProvider>,
}

/// Which certificates of pods are accepted.
#[derive(Debug)]
pub(super) enum PodCertificatePolicy {
    /// Certificates that chain to a trusted root and are valid for the server name that was sent or for one of `names`.
    Verified { trusted: Trusted, names: Vec<ServerName<'static>> },
    /// All certificates, without parsing them: rustls cannot parse many self-made ones. Signatures are not checked either: a
    /// peer that may present any certificate may also sign with any key.
    Any,
}

impl ServerCertVerifier for PodCertificates {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let PodCertificatePolicy::Verified { trusted, names } = &self.policy else {
            return Ok(ServerCertVerified::assertion());
        };
        trusted.verify(leaf, intermediates, now, self.provider.signature_verification_algorithms.all)?;
        let leaf = ParsedCertificate::try_from(leaf)?;
        let sent = verify_server_name(&leaf, server_name);
        // The error names the server name that was sent, since the other names are only alternatives to it.
        if sent.is_ok() || names.iter().any(|name| verify_server_name(&leaf, name).is_ok()) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(sent.err().unwrap_or(Error::InvalidCertificate(CertificateError::NotValidForName)))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(verify_tls12_signature, message, leaf, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(verify_tls13_signature, message, leaf, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

type VerifySignature = fn(
    &[u8],
    &CertificateDer<'_>,
    &DigitallySignedStruct,
    &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error>;

impl PodCertificates {
    fn verify_signature(
        &self,
        verify: VerifySignature,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.policy {
            PodCertificatePolicy::Any => Ok(HandshakeSignatureValid::assertion()),
            PodCertificatePolicy::Verified { .. } => {
                verify(message, leaf, signature, &self.provider.signature_verification_algorithms)
            }
        }
    }
}
