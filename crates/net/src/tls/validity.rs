//! When a certificate is valid. webpki checks dates and does not show them, so they are read from its errors.

use std::time::{Duration, SystemTime};

use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage};

use super::{CertificateWarningKind, provider};

/// Whether the leaf has expired or is not valid yet.
pub(super) fn staleness(leaf: &CertificateDer<'_>, now: UnixTime) -> Option<CertificateWarningKind> {
    match fault(leaf, now)? {
        Error::CertExpired { .. } => Some(CertificateWarningKind::Expired),
        Error::CertNotValidYet { .. } => Some(CertificateWarningKind::NotYetValid),
        _ => None,
    }
}

/// The end of the leaf's validity; `None` if it cannot be parsed.
pub(super) fn expiry(leaf: &CertificateDer<'_>) -> Option<SystemTime> {
    // At the end of time every certificate has expired, and the error says when.
    match fault(leaf, UnixTime::since_unix_epoch(Duration::MAX))? {
        Error::CertExpired { not_after, .. } => {
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(not_after.as_secs()))
        }
        _ => None,
    }
}

/// The first fault of a leaf. The verification has no trust anchors, so it fails in any case, but dates are checked first.
fn fault(leaf: &CertificateDer<'_>, now: UnixTime) -> Option<Error> {
    let leaf = EndEntityCert::try_from(leaf).ok()?;
    let algorithms = provider().signature_verification_algorithms.all;
    leaf.verify_for_usage(algorithms, &[], &[], now, KeyUsage::server_auth(), None, None).err()
}
