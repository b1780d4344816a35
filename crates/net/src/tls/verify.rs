//! Verifies a pod's certificate against the service's names, although an address is dialled; or skips verification.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, SignatureVerificationAlgorithm, UnixTime};

use super::Caution;
use super::files::staleness;

/// The trusted certificate authorities.
#[derive(Debug)]
pub(super) struct Trusted {
    pub(super) roots: RootCertStore,
    /// The certificates of the configured bundles. A pod may present one of them itself.
    pub(super) pinned: Vec<CertificateDer<'static>>,
}

impl Trusted {
    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), Error> {
        // Many a pod shows a certificate that is its own authority, which as a leaf of a chain would be refused.
        if self.pinned.iter().any(|pinned| pinned == leaf) {
            return match staleness(leaf, now) {
                Some(Caution::Expired) => Err(CertificateError::Expired.into()),
                Some(Caution::NotYetValid) => Err(CertificateError::NotValidYet.into()),
                _ => Ok(()),
            };
        }
        let leaf = ParsedCertificate::try_from(leaf)?;
        verify_server_cert_signed_by_trust_anchor(&leaf, &self.roots, intermediates, now, algorithms)
    }
}

/// Accepts a certificate that leads to one of the roots and is valid for one of the names.
#[derive(Debug)]
pub(super) struct AnyName {
    pub(super) trusted: Trusted,
    /// Besides the name that was sent.
    pub(super) accepted: Vec<ServerName<'static>>,
    pub(super) provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.trusted.verify(leaf, intermediates, now, self.provider.signature_verification_algorithms.all)?;
        let leaf = ParsedCertificate::try_from(leaf)?;
        let sent = verify_server_name(&leaf, server_name);
        // Of all names it is the sent one whose refusal is told: the others only stand in for it.
        if sent.is_ok() || self.accepted.iter().any(|name| verify_server_name(&leaf, name).is_ok()) {
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
        verify_tls12_signature(message, leaf, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts every certificate without parsing it: rustls cannot parse many home-made ones. Signatures are not checked
/// either: a peer that may show any certificate may also sign with any key.
#[derive(Debug)]
pub(super) struct Anything {
    pub(super) provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _leaf: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _leaf: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
