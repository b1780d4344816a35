//! Inspects a certificate that another process uses: its expiry, its names, its key, and whether a bundle trusts it.

use std::time::SystemTime;

use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use webpki::EndEntityCert;

use super::validity::expiry;
use super::verify::Trusted;
use super::{Identity, LoadError, LoadProblem, Pem, files, provider};

/// A certificate chain that is inspected.
#[derive(Debug, Clone)]
pub struct InspectedCertificate {
    pem: Pem,
    leaf: CertificateDer<'static>,
    intermediates: Vec<CertificateDer<'static>>,
}

impl InspectedCertificate {
    /// Reads a chain, leaf first.
    pub fn new(pem: Pem) -> Result<Self, LoadError> {
        let mut chain = files::certificates(&pem)?.into_iter();
        let none = || LoadError { file: pem.to_string(), reason: LoadProblem::NoCertificate };
        let leaf = chain.next().ok_or_else(none)?;
        EndEntityCert::try_from(&leaf).map_err(|error| {
            let error = rustls::Error::General(error.to_string());
            LoadError { file: pem.to_string(), reason: LoadProblem::BadCertificate(error) }
        })?;
        Ok(Self { leaf, intermediates: chain.collect(), pem })
    }

    /// The end of its validity.
    pub fn expires(&self) -> Option<SystemTime> {
        expiry(&self.leaf)
    }

    /// Whether it is valid for this name.
    pub fn is_for(&self, name: &ServerName<'_>) -> bool {
        EndEntityCert::try_from(&self.leaf)
            .is_ok_and(|leaf| leaf.verify_is_valid_for_subject_name(name).is_ok())
    }

    /// Checks that this is its private key.
    pub fn check_key(&self, key: Pem) -> Result<(), LoadError> {
        files::identity(&Identity { chain: self.pem.clone(), key }, &mut Vec::new()).map(drop)
    }

    /// Checks that a client which trusts the certificates of `bundle` accepts it as that of a server. A certificate that has
    /// expired is checked as if it had not: its expiry is a fact of its own.
    pub fn check_trust(&self, bundle: &Pem, now: SystemTime) -> Result<(), LoadError> {
        let mut roots = RootCertStore::empty();
        let pinned = files::add_roots(&mut roots, bundle, &mut Vec::new())?;
        let at = self.expires().map_or(now, |expires| expires.min(now));
        let at = UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        let algorithms = provider().signature_verification_algorithms.all;
        Trusted { roots, pinned }.verify(&self.leaf, &self.intermediates, at, algorithms).map_err(|error| {
            LoadError { file: self.pem.to_string(), reason: LoadProblem::BadCertificate(error) }
        })
    }
}
