//! The credential of a request: reads the token or the key, and signs the body.

use std::path::Path;
use std::time::SystemTime;

use http::HeaderValue;
use rouse_net::auth::{SharedKey, SharedKeysError, TokenFileError, read_bearer_token};
use rouse_net::random::secret;

use super::PushCredential;
use crate::wire::PATH;

/// Why there is no credential. Contains no secret.
#[derive(Debug, thiserror::Error)]
pub(super) enum CredentialError {
    #[error("{0}")]
    Token(#[from] TokenFileError),
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
            Self::KeyFile(path) => signature(&read_key(path).await?, body, time_of_day)?,
            // Read for each request: kubelet replaces the file before the token expires.
            Self::Token(path) => read_bearer_token(path).await?,
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

/// Reads the key on a blocking thread.
async fn read_key(path: &Path) -> Result<SharedKey, CredentialError> {
    let path = path.to_owned();
    let key = tokio::task::spawn_blocking(move || SharedKey::read(&path)).await;
    Ok(key.map_err(|_| CredentialError::Ended)??)
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
