//! Certificates, keys and roots out of PEM files, and the watch over those files.

use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use webpki::{EndEntityCert, KeyUsage};

use super::provider;

/// How often files are looked at. Kubernetes swaps a Secret's files without a notification.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Where PEM text is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Pem {
    /// In a file, which is read again when it changes.
    File(PathBuf),
    /// Here, such as what a Secret held.
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

/// Never what the bytes are: they may be a private key.
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

/// A certificate with its chain, leaf first, and the leaf's private key (PKCS#8, PKCS#1 or SEC1).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The chain.
    pub chain: Pem,
    /// The key.
    pub key: Pem,
}

/// Why TLS cannot be set up: our own files or settings, never a peer.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct LoadError {
    /// The file's path, or what stands for it.
    pub file: String,
    /// What is wrong with it.
    pub reason: LoadProblem,
}

/// What is wrong with a file, or with the settings.
#[derive(Debug, thiserror::Error)]
pub enum LoadProblem {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// It is not PEM.
    #[error("is no good PEM: {0}")]
    BadPem(pem::Error),
    /// It holds no certificate.
    #[error("holds no certificate")]
    NoCertificate,
    /// It holds no private key that can be used without a password.
    #[error("holds no unencrypted private key")]
    NoKey,
    /// The certificate cannot be used.
    #[error("the certificate cannot be used: {0}")]
    BadCertificate(rustls::Error),
    /// The key cannot be used.
    #[error("the key cannot be used: {0}")]
    BadKey(rustls::Error),
    /// The key is of another certificate.
    #[error("the key does not match the certificate in {0}")]
    KeyMismatch(String),
    /// None of its certificates can be trusted as a root.
    #[error("holds no certificate that can serve as a root")]
    NoRoots,
    /// The settings name no certificate at all.
    #[error("no certificate is configured")]
    Empty,
    /// rustls refuses the settings as a whole.
    #[error("cannot be set up: {0}")]
    Setup(rustls::Error),
}

/// A certificate that is served, but has a problem that an operator should look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The file's path, or what stands for it.
    pub file: String,
    /// What about it.
    pub what: CertificateWarningKind,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.what)
    }
}

/// The problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateWarningKind {
    /// Clients will refuse it.
    #[error("the certificate has expired")]
    Expired,
    /// Clients will refuse it.
    #[error("the certificate is not valid yet")]
    NotYetValid,
    /// It is not the default, so no client is ever shown it.
    #[error("the certificate names no host and is not the first: it is never chosen")]
    NeverChosen,
    /// A few certificates of a bundle are skipped.
    #[error("{0} certificates cannot serve as roots and are ignored")]
    IgnoredRoots(usize),
}

fn certificates(from: &Pem) -> Result<Vec<CertificateDer<'static>>, LoadError> {
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

/// Whether the leaf's time is over, or has not come. Being without anchors, the path ends where the dates were right.
pub(super) fn staleness(leaf: &CertificateDer<'_>, now: UnixTime) -> Option<CertificateWarningKind> {
    let leaf = EndEntityCert::try_from(leaf).ok()?;
    let algorithms = provider().signature_verification_algorithms.all;
    let usage = KeyUsage::server_auth();
    match leaf.verify_for_usage(algorithms, &[], &[], now, usage, None, None) {
        Err(webpki::Error::CertExpired { .. }) => Some(CertificateWarningKind::Expired),
        Err(webpki::Error::CertNotValidYet { .. }) => Some(CertificateWarningKind::NotYetValid),
        _ => None,
    }
}

/// The hosts that a certificate names.
pub(super) fn names(certified: &CertifiedKey) -> Vec<super::SniPattern> {
    let leaf = certified.cert.first().and_then(|leaf| EndEntityCert::try_from(leaf).ok());
    leaf.iter().flat_map(|leaf| leaf.valid_dns_names()).filter_map(|name| name.parse().ok()).collect()
}

/// Adds the bundle's certificates to `store`, and returns them. Old bundles hold some that cannot be parsed.
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

/// What tells one state of a file from the next. The path is followed: Secret mounts swap a link.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// What was last seen of the files, and said about them.
#[derive(Debug, Default)]
pub(super) struct Seen {
    stamps: Vec<(PathBuf, Option<Stamp>)>,
    complaint: Option<String>,
}

impl Seen {
    /// Loads, and remembers what the files were like.
    pub(super) fn load<T>(
        &mut self,
        files: Vec<PathBuf>,
        load: impl FnOnce() -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        // Before reading: what changes meanwhile is then seen as a change at the next look.
        self.stamps = stamps(files);
        let loaded = load();
        self.complaint = loaded.as_ref().err().map(ToString::to_string);
        loaded
    }

    /// Loads if a file changed or the last try failed (a want of sockets or memory leaves no trace on the file).
    /// Nothing is said twice.
    pub(super) fn look<T>(
        &mut self,
        files: Vec<PathBuf>,
        load: impl FnOnce() -> Result<T, LoadError>,
    ) -> Option<Result<T, LoadError>> {
        if self.complaint.is_none() && self.stamps == stamps(files.clone()) {
            return None;
        }
        let before = self.complaint.take();
        let loaded = self.load(files, load);
        (loaded.is_ok() || self.complaint != before).then_some(loaded)
    }
}

fn stamps(files: Vec<PathBuf>) -> Vec<(PathBuf, Option<Stamp>)> {
    let stamp = |path: &Path| fs::metadata(path).ok().map(|metadata| Stamp::of(&metadata));
    let stamped = |path: PathBuf| {
        let stamp = stamp(&path);
        (path, stamp)
    };
    files.into_iter().map(stamped).collect()
}

/// Does `look`, which reads files, every two seconds beside the runtime, until cancelled.
pub(super) async fn watch<T: Send + 'static>(
    cancel: CancellationToken,
    look: impl Fn() -> T + Clone + Send + 'static,
    mut tell: impl FnMut(T),
) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while cancel.run_until_cancelled(ticks.tick()).await.is_some() {
        // A look that panicked has nothing to tell; the next one may.
        if let Ok(seen) = tokio::task::spawn_blocking(look.clone()).await {
            tell(seen);
        }
    }
}
