//! The credential of a request: reads the token or the key, and signs the body.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use http::HeaderValue;
use rouse_net::auth::{SharedKey, SharedKeysError};
use rouse_net::random::secret;

use super::PushCredential;
use crate::wire::PATH;

/// A token of Kubernetes has about one kilobyte.
const MOST_BYTES: u64 = 16 * 1024;

/// Why there is no credential. Contains no secret.
#[derive(Debug, thiserror::Error)]
pub(super) enum CredentialError {
    #[error("the token file {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("the token file {} has no token", .0.display())]
    NoToken(PathBuf),
    #[error("cannot sign: {0}")]
    NoRandomness(#[from] rouse_net::random::NoRandomness),
    #[error("the shared key {0}")]
    Key(#[from] SharedKeysError),
    #[error("internal error: the task that reads the credential's file has stopped")]
    Ended,
}

impl PushCredential {
    /// The `Authorization` header of a request with this body. Each request needs a new one.
    pub(super) async fn authorization(
        &self,
        body: &[u8],
        time_of_day: fn() -> SystemTime,
    ) -> Result<Option<HeaderValue>, CredentialError> {
        let mut value = match self {
            Self::Certificate => return Ok(None),
            Self::SharedKey(key) => signature(key, body, time_of_day)?,
            // Read for each request: keys are rotated.
            Self::KeyFile(path) => {
                let key = read(path, |path| Ok(SharedKey::read(path)?)).await?;
                signature(&key, body, time_of_day)?
            }
            // Read for each request: kubelet replaces the file before the token expires.
            Self::Token(path) => read(path, bearer).await?,
        };
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// What it is called in errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Token(_) => "token",
            Self::SharedKey(_) | Self::KeyFile(_) => "shared key",
            Self::Certificate => "client certificate",
        }
    }
}

/// Reads a file on a blocking thread.
async fn read<T: Send + 'static>(
    path: &Path,
    read: impl FnOnce(&Path) -> Result<T, CredentialError> + Send + 'static,
) -> Result<T, CredentialError> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || read(&path)).await.map_err(|_| CredentialError::Ended)?
}

fn signature(
    key: &SharedKey,
    body: &[u8],
    time_of_day: fn() -> SystemTime,
) -> Result<HeaderValue, CredentialError> {
    let mut nonce = [0; 16];
    nonce.copy_from_slice(&secret()?[..16]);
    let seconds = time_of_day().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let text = key.sign("POST", PATH, body, seconds, nonce);
    // It has only hexadecimal digits and the characters of a key id.
    HeaderValue::try_from(text).map_err(|_| CredentialError::Ended)
}

fn bearer(path: &Path) -> Result<HeaderValue, CredentialError> {
    let unreadable = |error| CredentialError::Unreadable { path: path.to_owned(), error };
    let mut token = Vec::new();
    File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut token)).map_err(unreadable)?;
    let text = str::from_utf8(&token).unwrap_or_default().trim();
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    let value = plain.then(|| HeaderValue::try_from(format!("Bearer {text}")).ok()).flatten();
    value.ok_or_else(|| CredentialError::NoToken(path.to_owned()))
}
