//! The shared keys that a gateway accepts: loads them from a folder, reloads them when they change, and refuses replays.
//!
//! The folder is usually a mounted Kubernetes Secret. Each key is two entries:
//!
//! - `ID`: the secret. The bytes of the file are used as they are, without a newline at the end; at least 32 bytes.
//! - `ID.namespaces`: the namespaces whose pods may use it, separated by spaces, commas or newlines; `*` for all. A key
//!   without this entry is an error.
//!
//! ```text
//! kubectl create secret generic rouse-keys \
//!   --from-literal=2026-01="$(openssl rand -base64 32)" --from-literal=2026-01.namespaces="shop, payments"
//! ```
//!
//! To rotate, add a second key, change the pods to it, and remove the first. A pod that signs with a folder ([`SharedKey::read`])
//! changes to it by itself. Names that begin with a dot are ignored (kubelet makes such links), also an `ID.namespaces` without
//! its key. If the folder has an error, the old keys stay in use.
//!
//! Nonces are remembered per process. A request that one gateway accepted can be replayed to another, and to the same one
//! after a restart, for 30 seconds. That changes nothing: registrations have sequence numbers, and the sender must have the
//! address of the pod.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use super::hmac::{BadSharedKey, HmacCredential, SharedKey, SignedRequest};
use super::nonces::{NonceError, Nonces};
use super::{AuthError, KeyScope, Sender, unix_seconds};
use crate::file_watch::{self, Seen};

/// The accepted difference between the clocks of sender and gateway, in seconds.
const WINDOW: u64 = 30;
/// The nonces of one key that are remembered. A nonce lives for up to 60 seconds (the sender's clock may be 30 s ahead), so this
/// is enough for about 8,700 requests per second.
const MOST_NONCES: usize = 1 << 19;
const MOST_KEYS: usize = 256;
const MOST_BYTES: u64 = 4096;
const SCOPE_SUFFIX: &str = ".namespaces";

/// The keys that a gateway accepts.
#[derive(Debug)]
pub struct SharedKeys {
    accepted: ArcSwap<HashMap<Box<str>, Accepted>>,
    /// `None`: the keys never change.
    folder: Option<PathBuf>,
    /// The lock also serializes reloads.
    reloads: Mutex<Reloads>,
    time_of_day: fn() -> SystemTime,
    nonces_per_key: usize,
}

#[derive(Debug)]
struct Accepted {
    key: SharedKey,
    nonces: Arc<Mutex<Nonces>>,
}

#[derive(Debug, Default)]
struct Reloads {
    seen: Seen,
    /// Also of keys that were removed, for as long as their requests could be replayed: a key may come back.
    nonces: HashMap<Box<str>, Arc<Mutex<Nonces>>>,
}

/// Why keys cannot be loaded. Contains no secret.
#[derive(Debug, thiserror::Error)]
pub enum SharedKeysError {
    /// A file or the folder cannot be read.
    #[error("{}: cannot be read: {error}", path.display())]
    Unreadable {
        /// The file or the folder.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A file is too large for a key.
    #[error("{}: has more than {MOST_BYTES} bytes, which is no key", .0.display())]
    TooLarge(PathBuf),
    /// A key cannot be used.
    #[error("{}: {problem}", path.display())]
    BadKey {
        /// Its file.
        path: PathBuf,
        /// Why not.
        problem: BadSharedKey,
    },
    /// The namespaces of a key are missing or not valid.
    #[error("{}: must list the namespaces of the key, separated by commas, or * for all", .0.display())]
    BadScope(PathBuf),
    /// The folder has too many keys.
    #[error("{}: has more than {MOST_KEYS} keys", .0.display())]
    TooMany(PathBuf),
    /// There is no key.
    #[error("{}: has no key; add a file with a secret of at least 32 bytes", .0.display())]
    Empty(PathBuf),
}

impl SharedKey {
    /// The key that a pod signs with: that in the file `path`, or the last one by name if `path` is a folder. The name of its file
    /// is its id.
    pub fn read(path: &Path) -> Result<Self, SharedKeysError> {
        let file = if path.is_dir() {
            let ids = key_ids(path)?;
            path.join(ids.into_iter().max().ok_or_else(|| SharedKeysError::Empty(path.to_owned()))?)
        } else {
            path.to_owned()
        };
        let id = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let key = Self::new(&id, secret_of(&read_file(&file)?), KeyScope::All);
        key.map_err(|problem| SharedKeysError::BadKey { path: file, problem })
    }
}

impl SharedKeys {
    /// The keys of a folder.
    pub fn load(folder: &Path, time_of_day: fn() -> SystemTime) -> Result<Self, SharedKeysError> {
        let keys = Self { folder: Some(folder.to_owned()), ..Self::fixed(Vec::new(), time_of_day) };
        if keys.reload()? == 0 {
            return Err(SharedKeysError::Empty(folder.to_owned()));
        }
        Ok(keys)
    }

    /// These keys, which never change.
    pub fn fixed(keys: Vec<SharedKey>, time_of_day: fn() -> SystemTime) -> Self {
        let all = Self {
            accepted: ArcSwap::default(),
            folder: None,
            reloads: Mutex::default(),
            time_of_day,
            nonces_per_key: MOST_NONCES,
        };
        all.accept(keys, &mut all.reloads().nonces);
        all
    }

    /// Remembers at most `limit` nonces per key. When they are used up, requests are answered with
    /// [`AuthError::Unavailable`].
    #[must_use]
    pub fn with_nonces_per_key(mut self, limit: usize) -> Self {
        self.nonces_per_key = limit;
        self
    }

    /// Reads the folder again, and returns the number of keys. On an error, the old keys stay in use.
    pub fn reload(&self) -> Result<usize, SharedKeysError> {
        let Reloads { seen, nonces } = &mut *self.reloads();
        seen.load(self.files(), || self.swap(nonces))
    }

    /// Reloads whenever a file changes, and calls `tell` with the result, until cancelled.
    pub async fn watch(
        self: Arc<Self>,
        cancel: CancellationToken,
        mut tell: impl FnMut(Result<usize, SharedKeysError>),
    ) {
        file_watch::watch(cancel, move || self.look(), |news| news.map_or((), &mut tell)).await;
    }

    fn look(&self) -> Option<Result<usize, SharedKeysError>> {
        let Reloads { seen, nonces } = &mut *self.reloads();
        seen.look(self.files(), || self.swap(nonces))
    }

    fn reloads(&self) -> std::sync::MutexGuard<'_, Reloads> {
        self.reloads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is watched. The folder itself also changes when a file appears or disappears.
    fn files(&self) -> Vec<PathBuf> {
        let Some(folder) = &self.folder else { return Vec::new() };
        let mut files = names(folder).unwrap_or_default();
        files.sort();
        files.into_iter().map(|name| folder.join(name)).chain([folder.clone()]).collect()
    }

    fn swap(&self, nonces: &mut HashMap<Box<str>, Arc<Mutex<Nonces>>>) -> Result<usize, SharedKeysError> {
        if let Some(folder) = &self.folder {
            self.accept(read(folder)?, nonces);
        }
        Ok(self.accepted.load().len())
    }

    fn accept(&self, keys: Vec<SharedKey>, nonces: &mut HashMap<Box<str>, Arc<Mutex<Nonces>>>) {
        let oldest = unix_seconds((self.time_of_day)()).saturating_sub(WINDOW);
        nonces.retain(|_, of_key| {
            let mut of_key = lock(of_key);
            of_key.forget_before(oldest);
            !of_key.is_empty()
        });
        // An empty memory that is still in use must stay the same one: a request may be about to write into it.
        for (id, accepted) in &**self.accepted.load() {
            nonces.entry(id.clone()).or_insert_with(|| Arc::clone(&accepted.nonces));
        }
        let with_nonces = |key: SharedKey| {
            let of_key = Arc::clone(nonces.entry(key.id().into()).or_default());
            (key.id().into(), Accepted { key, nonces: of_key })
        };
        self.accepted.store(Arc::new(keys.into_iter().map(with_nonces).collect()));
    }

    /// Who signed the request.
    pub(super) fn authenticate(
        &self,
        credential: &HmacCredential<'_>,
        request: SignedRequest<'_>,
    ) -> Result<Sender, AuthError> {
        let refused = |reason: &str| Err(AuthError::Refused(reason.to_owned()));
        let accepted = self.accepted.load();
        let Some(Accepted { key, nonces }) = accepted.get(credential.key_id) else {
            return refused("the request is signed with an unknown key");
        };
        let now = unix_seconds((self.time_of_day)());
        if now.abs_diff(credential.timestamp) > WINDOW {
            return Err(AuthError::Refused(format!(
                "the timestamp of the signature is more than {WINDOW} seconds from the gateway's clock"
            )));
        }
        if !key.verifies(credential, request) {
            return refused("the signature is wrong");
        }
        let remembered = {
            let mut nonces = lock(nonces);
            nonces.forget_before(now.saturating_sub(WINDOW));
            nonces.remember(credential.timestamp, credential.nonce, self.nonces_per_key)
        };
        match remembered {
            Ok(()) => Ok(Sender::KeyHolder { namespaces: key.scope().clone() }),
            Err(NonceError::Replayed) => refused("the signed request was received before"),
            Err(NonceError::Full) => {
                Err(AuthError::Unavailable("too many requests are signed with this key".to_owned()))
            }
        }
    }
}

fn lock(nonces: &Mutex<Nonces>) -> std::sync::MutexGuard<'_, Nonces> {
    nonces.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entries of the folder that do not begin with a dot.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        // A name that is not UTF-8 is no key id, and is refused as such.
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    Ok(names)
}

/// The ids of the keys of a folder.
fn key_ids(folder: &Path) -> Result<Vec<String>, SharedKeysError> {
    let unreadable = |error| SharedKeysError::Unreadable { path: folder.to_owned(), error };
    let mut ids = names(folder).map_err(unreadable)?;
    ids.retain(|name| !name.ends_with(SCOPE_SUFFIX));
    if ids.len() > MOST_KEYS {
        return Err(SharedKeysError::TooMany(folder.to_owned()));
    }
    Ok(ids)
}

fn read(folder: &Path) -> Result<Vec<SharedKey>, SharedKeysError> {
    key_ids(folder)?.iter().map(|id| read_key(folder, id)).collect()
}

fn read_key(folder: &Path, id: &str) -> Result<SharedKey, SharedKeysError> {
    let (path, scope_path) = (folder.join(id), folder.join(format!("{id}{SCOPE_SUFFIX}")));
    let content = read_file(&path)?;
    if !scope_path.exists() {
        return Err(SharedKeysError::BadScope(scope_path));
    }
    let Some(scope) = parse_scope(&read_file(&scope_path)?) else {
        return Err(SharedKeysError::BadScope(scope_path));
    };
    SharedKey::new(id, secret_of(&content), scope)
        .map_err(|problem| SharedKeysError::BadKey { path, problem })
}

/// The secret in the content of a file: without a newline at its end.
fn secret_of(content: &[u8]) -> &[u8] {
    let secret = content.strip_suffix(b"\n").unwrap_or(content);
    secret.strip_suffix(b"\r").unwrap_or(secret)
}

fn read_file(path: &Path) -> Result<Vec<u8>, SharedKeysError> {
    let unreadable = |error| SharedKeysError::Unreadable { path: path.to_owned(), error };
    let mut content = Vec::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(MOST_BYTES + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 > MOST_BYTES {
        return Err(SharedKeysError::TooLarge(path.to_owned()));
    }
    Ok(content)
}

fn parse_scope(text: &[u8]) -> Option<KeyScope> {
    let text = str::from_utf8(text).ok()?;
    let words = text.split(|letter: char| letter == ',' || letter.is_ascii_whitespace());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    match words.as_slice() {
        [] => None,
        ["*"] => Some(KeyScope::All),
        words if words.iter().all(|word| super::is_namespace(word)) => {
            Some(KeyScope::Only(words.iter().map(|&word| word.to_owned()).collect()))
        }
        _ => None,
    }
}
