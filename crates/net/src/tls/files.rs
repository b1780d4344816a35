//! Loads certificates, keys and root certificates from PEM files.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use webpki::EndEntityCert;

use super::provider;
use super::validity::staleness;

/// The location of PEM data.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Pem {
    /// A file, which is read again when it changes.
    File(PathBuf),
    /// The data itself, for example from a Secret.
    Bytes(Arc<[u8]>),
}

impl Pem {
    fn read(&self) -> Result<Vec<u8>, LoadError> {
        match self {
            Self::File(path) => fs::read(path).map_err(|error| self.fails(LoadProblem::Unreadable(error))),
            Self::Bytes(bytes) => Ok(bytes.to_vec()),
        }
    }

    fn fails(&self, reason: LoadProblem) -> LoadError {
        LoadError { file: self.to_string(), reason }
    }

    pub(super) fn warns(&self, what: CertificateWarningKind) -> Warning {
        Warning { file: self.to_string(), what }
    }

    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Bytes(_) => None,
        }
    }
}

/// Never prints the data: it may be a private key.
impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Bytes(bytes) => write!(f, "{} bytes of PEM", bytes.len()),
        }
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pem({self})")
    }
}

/// A certificate chain, leaf first, and the private key of the leaf (PKCS#8, PKCS#1 or SEC1).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The chain.
    pub chain: Pem,
    /// The key.
    pub key: Pem,
}

/// Why TLS cannot be set up. The cause is a local file or setting, never a peer.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct LoadError {
    /// The path of the file, or a description of the data.
    pub file: String,
    /// What is wrong.
    pub reason: LoadProblem,
}

/// What is wrong with a file, or with the settings.
#[derive(Debug, thiserror::Error)]
pub enum LoadProblem {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The file is not valid PEM.
    #[error("is not valid PEM: {0}")]
    BadPem(pem::Error),
    /// The file has no certificate.
    #[error("contains no certificate")]
    NoCertificate,
    /// The file has no private key that can be used without a password.
    #[error("contains no unencrypted private key")]
    NoKey,
    /// The certificate cannot be used.
    #[error("the certificate cannot be used: {0}")]
    BadCertificate(rustls::Error),
    /// The key cannot be used.
    #[error("the key cannot be used: {0}")]
    BadKey(rustls::Error),
    /// The key belongs to another certificate.
    #[error("the key does not match the certificate in {0}")]
    KeyMismatch(String),
    /// None of its certificates can be used as a root.
    #[error("contains no certificate that can be used as a root")]
    NoRoots,
    /// The settings have no certificate.
    #[error("no certificate is configured")]
    Empty,
    /// rustls rejects the settings.
    #[error("cannot be set up: {0}")]
    Setup(rustls::Error),
}

/// A certificate that is used, but has a problem that an operator should check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The path of the file, or a description of the data.
    pub file: String,
    /// The problem.
    pub what: CertificateWarningKind,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.what)
    }
}

/// The problem of a [`Warning`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateWarningKind {
    /// Clients will refuse it.
    #[error("the certificate has expired")]
    Expired,
    /// Clients will refuse it.
    #[error("the certificate is not valid yet")]
    NotYetValid,
    /// The certificate is not the default and has no host, so it is never used.
    #[error("the certificate has no host name and is not the first (the default), so it is never used")]
    NeverChosen,
    /// Some certificates of a bundle are ignored.
    #[error("{0} certificates cannot be used as roots and are ignored")]
    IgnoredRoots(usize),
}

pub(super) fn certificates(from: &Pem) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let text = from.read()?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| from.fails(LoadProblem::BadPem(error)))?;
    if chain.is_empty() { Err(from.fails(LoadProblem::NoCertificate)) } else { Ok(chain) }
}

/// Reads a certificate and its key, and checks that they belong together.
pub(super) fn identity(of: &Identity, warnings: &mut Vec<Warning>) -> Result<CertifiedKey, LoadError> {
    let chain = certificates(&of.chain)?;
    let key = PrivateKeyDer::from_pem_slice(&of.key.read()?).map_err(|error| match error {
        pem::Error::NoItemsFound => of.key.fails(LoadProblem::NoKey),
        error => of.key.fails(LoadProblem::BadPem(error)),
    })?;
    let key = provider().key_provider.load_private_key(key);
    let key = key.map_err(|error| of.key.fails(LoadProblem::BadKey(error)))?;
    warnings.extend(
        chain.first().and_then(|leaf| staleness(leaf, UnixTime::now())).map(|what| of.chain.warns(what)),
    );
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(of.key.fails(LoadProblem::KeyMismatch(of.chain.to_string())))
        }
        Err(error) => Err(of.chain.fails(LoadProblem::BadCertificate(error))),
    }
}

/// The DNS names in a certificate.
pub(super) fn names(certified: &CertifiedKey) -> Vec<super::SniPattern> {
    let leaf = certified.cert.first().and_then(|leaf| EndEntityCert::try_from(leaf).ok());
    leaf.iter().flat_map(|leaf| leaf.valid_dns_names()).filter_map(|name| name.parse().ok()).collect()
}

/// Adds the bundle's certificates to `store`, and returns them. Ignores those that cannot be parsed, which old bundles have.
pub(super) fn add_roots(
    store: &mut RootCertStore,
    bundle: &Pem,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let roots = certificates(bundle)?;
    let (added, ignored) = store.add_parsable_certificates(roots.iter().cloned());
    if added == 0 {
        return Err(bundle.fails(LoadProblem::NoRoots));
    }
    if ignored > 0 {
        warnings.push(bundle.warns(CertificateWarningKind::IgnoredRoots(ignored)));
    }
    Ok(roots)
}
