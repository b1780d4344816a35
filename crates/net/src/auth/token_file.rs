//! Reads the `ServiceAccount` token of this pod from its projected file.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hyper::header::HeaderValue;

/// A token of Kubernetes has about one kilobyte.
const MOST_BYTES: u64 = 16 * 1024;

/// Why there is no token. Contains no part of it.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file cannot be read.
    #[error("the token file {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file has something else, or nothing.
    #[error("the token file {} has no token", .0.display())]
    NoToken(PathBuf),
    /// The runtime is shutting down.
    #[error("internal error: the task that reads the token file has stopped")]
    Ended,
}

/// The `Authorization` header with the token that is in the file now: kubelet replaces it before it expires. Its `Debug` output
/// does not contain the token.
pub async fn read_bearer_token(path: &Path) -> Result<HeaderValue, TokenFileError> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || bearer(&path)).await.map_err(|_| TokenFileError::Ended)?
}

fn bearer(path: &Path) -> Result<HeaderValue, TokenFileError> {
    let unreadable = |error| TokenFileError::Unreadable { path: path.to_owned(), error };
    let mut token = Vec::new();
    File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut token)).map_err(unreadable)?;
    let text = str::from_utf8(&token).unwrap_or_default().trim();
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    let value = plain.then(|| HeaderValue::try_from(format!("Bearer {text}")).ok()).flatten();
    let mut value = value.ok_or_else(|| TokenFileError::NoToken(path.to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_token_of_the_file_is_read_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "one.two.three\n").unwrap();
        let header = read_bearer_token(&path).await.unwrap();
        assert_eq!(header.as_bytes(), b"Bearer one.two.three");
        assert!(!format!("{header:?}").contains("one"), "{header:?}");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(
            read_bearer_token(&path).await.unwrap().as_bytes(),
            b"Bearer four",
            "read again each time"
        );
    }

    #[tokio::test]
    async fn a_file_without_a_token_says_so_and_shows_nothing_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let error = read_bearer_token(&path).await.unwrap_err().to_string();
        assert!(error.contains("token: No such file"), "{error}");
        for content in [&b""[..], b" \n", b"two words", b"\xff\xfe", b"line\nline"] {
            std::fs::write(&path, content).unwrap();
            let error = read_bearer_token(&path).await.unwrap_err().to_string();
            assert!(error.ends_with("token has no token"), "{error}");
        }
    }
}
