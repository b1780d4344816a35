//! An LRU cache of TLS client configurations by settings, with reload when their files change.
//!
//! A new configuration per connection would parse the roots each time and never resume a session.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::{ClientSettings, ClientTls, LoadError, Warning};
use crate::file_watch;

/// Client configurations by settings. At the limit, the least recently used one is dropped; callers that still hold it can
/// use it, but its files are no longer watched.
#[derive(Debug)]
pub struct ClientConfigs {
    most: NonZeroUsize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    by_settings: HashMap<Arc<ClientSettings>, Entry>,
    /// Counts lookups.
    asked: u64,
}

#[derive(Debug)]
struct Entry {
    tls: Arc<ClientTls>,
    /// The count at its last lookup.
    asked: u64,
}

impl ClientConfigs {
    /// Keeps at most `most` configurations.
    pub fn new(most: NonZeroUsize) -> Self {
        Self { most, known: Mutex::default() }
    }

    /// The configuration for `settings`. Creating it reads files: a few milliseconds for the system's roots. `warn` is called
    /// with the warnings about them.
    pub fn get(
        &self,
        settings: &ClientSettings,
        warn: impl FnMut(Warning),
    ) -> Result<Arc<ClientTls>, LoadError> {
        if let Some(tls) = self.known().find(settings) {
            return Ok(tls);
        }
        // Load without the lock: a slow disk must not block other services.
        let (tls, warnings) = ClientTls::new(settings.clone())?;
        warnings.into_iter().for_each(warn);
        Ok(self.known().keep(settings, tls, self.most))
    }

    /// How many configurations are kept.
    pub fn len(&self) -> usize {
        self.known().by_settings.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reloads each configuration whose files change, and calls `tell` with the result, until cancelled.
    pub async fn watch(
        self: Arc<Self>,
        cancel: CancellationToken,
        mut tell: impl FnMut(Result<Vec<Warning>, LoadError>),
    ) {
        file_watch::watch(cancel, move || self.look(), |news| news.into_iter().for_each(&mut tell)).await;
    }

    fn look(&self) -> Vec<Result<Vec<Warning>, LoadError>> {
        let all: Vec<_> = self.known().by_settings.values().map(|entry| Arc::clone(&entry.tls)).collect();
        all.iter().filter_map(|tls| tls.look()).collect()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn find(&mut self, settings: &ClientSettings) -> Option<Arc<ClientTls>> {
        self.asked += 1;
        let entry = self.by_settings.get_mut(settings)?;
        entry.asked = self.asked;
        Some(Arc::clone(&entry.tls))
    }

    /// Stores a configuration. If another caller has stored an equal one meanwhile, that one is used, so that all share its
    /// sessions.
    fn keep(&mut self, settings: &ClientSettings, tls: ClientTls, most: NonZeroUsize) -> Arc<ClientTls> {
        if let Some(tls) = self.find(settings) {
            return tls;
        }
        if self.by_settings.len() >= most.get() {
            let oldest = self.by_settings.iter().min_by_key(|(_, entry)| entry.asked);
            if let Some(oldest) = oldest.map(|(settings, _)| Arc::clone(settings)) {
                self.by_settings.remove(&*oldest);
            }
        }
        let tls = Arc::new(tls);
        let entry = Entry { tls: Arc::clone(&tls), asked: self.asked };
        self.by_settings.insert(Arc::new(settings.clone()), entry);
        tls
    }
}
