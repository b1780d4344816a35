//! Detects when files change, so that certificates and keys are reloaded in place.

use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// How often files are checked. Kubernetes replaces the files of a Secret without a notification.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The metadata that changes with the file. Symbolic links are followed: a Secret mount replaces a link.
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

/// The state of the files at the last load, and the last error.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    stamps: Vec<(PathBuf, Option<Stamp>)>,
    complaint: Option<String>,
}

impl Seen {
    /// Loads the files, and remembers their state.
    pub(crate) fn load<T, E: fmt::Display>(
        &mut self,
        files: Vec<PathBuf>,
        load: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        // Stamp before reading: a change during the load then counts as a change at the next look.
        self.stamps = stamps(files);
        let loaded = load();
        self.complaint = loaded.as_ref().err().map(ToString::to_string);
        loaded
    }

    /// Loads if a file has changed or the last load failed (a lack of file descriptors or memory does not change the file).
    /// Returns a repeated error only once.
    pub(crate) fn look<T, E: fmt::Display>(
        &mut self,
        files: Vec<PathBuf>,
        load: impl FnOnce() -> Result<T, E>,
    ) -> Option<Result<T, E>> {
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

/// Runs `look`, which reads files, every two seconds on a blocking thread, and passes the result to `tell`, until cancelled.
pub(crate) async fn watch<T: Send + 'static>(
    cancel: CancellationToken,
    look: impl Fn() -> T + Clone + Send + 'static,
    mut tell: impl FnMut(T),
) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while cancel.run_until_cancelled(ticks.tick()).await.is_some() {
        // An error means that `look` panicked. The next one may work.
        if let Ok(seen) = tokio::task::spawn_blocking(look.clone()).await {
            tell(seen);
        }
    }
}
