//! The certificate that all proxies show in one measurement: ECDSA over P-256, made for it and gone with it.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};

use crate::Result;

/// Where it is.
#[derive(Debug, Clone)]
pub(crate) struct Certificate {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// Both in one file, as `HAProxy` wants them.
    pub(crate) both: PathBuf,
}

/// Makes one for `host`. It is its own authority.
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
