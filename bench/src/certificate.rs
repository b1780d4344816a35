//! Creates the certificate that all proxies use in one measurement: self-signed, ECDSA P-256, in the temporary folder.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};

use crate::Result;

/// The files of the certificate.
#[derive(Debug, Clone)]
pub(crate) struct Certificate {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// Both in one file, as `HAProxy` wants them.
    pub(crate) both: PathBuf,
}

/// Makes a self-signed certificate for `host`.
pub(crate) fn make(host: &str, folder: &Path) -> Result<Certificate> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let cert = CertificateParams::new([host.to_owned()])?.self_signed(&key)?;
    let (cert, key) = (cert.pem(), key.serialize_pem());
    let write = |name: &str, text: &str| {
        let file = folder.join(name);
        fs::write(&file, text).map(|()| file)
    };
    Ok(Certificate {
        cert: write("cert.pem", &cert)?,
        key: write("key.pem", &key)?,
        both: write("both.pem", &format!("{cert}{key}"))?,
    })
}
