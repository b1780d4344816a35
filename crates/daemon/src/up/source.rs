//! Finds, reads and watches the configuration of `rouse up`: a file, or the built-in demo.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rouse_local::output::LogFile;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::failure::CommandError;
use crate::rouse_yaml::{self, Config, Errors};

/// The file of the built-in demo.
pub const DEMO: &str = include_str!("demo.yaml");

/// The file that is used if none is named.
pub const DEFAULT_FILE: &str = "rouse.yaml";
/// The other accepted name.
const OTHER_FILE: &str = "rouse.yml";
/// How often the file is checked. A change counts when two checks in a row agree on it: editors write in several steps.
const LOOK: Duration = Duration::from_millis(250);

/// Where the configuration comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigSource {
    /// A file.
    File {
        /// The name that the user gave.
        name: String,
        /// Its absolute path.
        path: PathBuf,
        /// What its paths are relative to.
        folder: PathBuf,
    },
    /// The built-in demo.
    Demo,
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {name}: {error}")]
    Unreadable {
        /// The name of the file.
        name: String,
        /// The error of the system.
        error: io::Error,
    },
    /// It has errors.
    #[error(transparent)]
    Wrong(#[from] Errors),
}

impl ConfigSource {
    /// The file that was asked for; without one, `rouse.yaml` or `rouse.yml` if it is here, else the demo.
    pub(crate) fn find(asked: Option<&Path>) -> Result<Self, CommandError> {
        match asked {
            Some(file) => Self::file(file),
            None => Self::find_in(Path::new("")),
        }
    }

    /// The file in `folder`, or the demo.
    pub fn find_in(folder: &Path) -> Result<Self, CommandError> {
        // A broken link counts as a file: it is a mistake, not a reason to run the demo.
        let here = |name: &str| Some(folder.join(name)).filter(|file| file.symlink_metadata().is_ok());
        match (here(DEFAULT_FILE), here(OTHER_FILE)) {
            (Some(_), Some(_)) => Err(CommandError::Input(format!(
                "there is a {DEFAULT_FILE} and a {OTHER_FILE} here: remove one, or name the one to use, as in `rouse up \
                 {DEFAULT_FILE}`"
            ))),
            (Some(file), None) | (None, Some(file)) => Self::file(&file),
            (None, None) => Ok(ConfigSource::Demo),
        }
    }

    /// The file `file`.
    pub fn file(file: &Path) -> Result<Self, CommandError> {
        let what = || format!("cannot find the folder of {}", file.display());
        let path = std::path::absolute(file).map_err(|error| CommandError::Io { what: what(), error })?;
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(ConfigSource::File { name: file.display().to_string(), path, folder })
    }

    /// Reads and checks it.
    pub fn read(&self) -> Result<Config, ReadError> {
        let config = match self {
            ConfigSource::Demo => rouse_yaml::read(DEMO, self.name())?,
            ConfigSource::File { path, name, folder } => {
                let unreadable = |error| ReadError::Unreadable { name: name.clone(), error };
                let text = std::fs::read_to_string(path).map_err(unreadable)?;
                rouse_yaml::read_in(&text, name, folder)?
            }
        };
        Ok(config)
    }

    /// Where the apps' output is written, if the file says so.
    pub fn log_folder(&self, config: &Config) -> Option<PathBuf> {
        let folder = config.logs.folder.as_ref()?;
        Some(match self {
            ConfigSource::File { folder: here, .. } => here.join(folder),
            ConfigSource::Demo => folder.clone(),
        })
    }

    /// Creates the folder for the apps' output, or says why it cannot be used.
    pub(super) fn check_log_folder(&self, config: &Config) -> Result<(), CommandError> {
        let Some(folder) = self.log_folder(config) else { return Ok(()) };
        for app in &config.apps {
            LogFile::open(&folder, app.name.as_str()).map_err(|error| {
                let (name, folder, app) = (self.name(), folder.display(), &app.name);
                CommandError::Input(format!("{name}: logs: cannot write to {folder}/{app}.log: {error}"))
            })?;
        }
        Ok(())
    }

    /// The name for messages.
    pub fn name(&self) -> &str {
        match self {
            ConfigSource::File { name, .. } => name,
            ConfigSource::Demo => "the built-in demo",
        }
    }

    /// Watches the file for changes.
    pub(super) fn watch(&self) -> Changes {
        let path = match self {
            ConfigSource::File { path, .. } => Some(path.clone()),
            ConfigSource::Demo => None,
        };
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let known = path.as_deref().and_then(Stamp::of);
        Changes { path, looks, known, fresh: None }
    }
}

/// The metadata that changes when a file is written or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    size: u64,
    written: (i64, i64),
}

impl Stamp {
    /// Of the file at `path`; `None` while there is none, as between the two steps of a replacement.
    fn of(path: &Path) -> Option<Self> {
        let stamp = |it: Metadata| Self {
            inode: (it.dev(), it.ino()),
            size: it.size(),
            written: (it.mtime(), it.mtime_nsec()),
        };
        path.metadata().ok().map(stamp)
    }
}

/// Detects changes of a file.
#[derive(Debug)]
pub(super) struct Changes {
    path: Option<PathBuf>,
    looks: Interval,
    /// The stamp of the file that was read.
    known: Option<Stamp>,
    /// The stamp of the last check, if it differs from `known`.
    fresh: Option<Stamp>,
}

impl Changes {
    /// Waits for the next change. The demo never changes.
    pub(super) async fn next(&mut self) {
        let Some(path) = self.path.clone() else { return std::future::pending().await };
        loop {
            self.looks.tick().await;
            if self.look(Stamp::of(&path)) {
                return;
            }
        }
    }

    /// Records that the current file is about to be read.
    pub(super) fn seen(&mut self) {
        // Record before the read: a change in between is then read again rather than missed. For the same reason the stamp of
        // the last check counts, not the current one.
        self.known = self.fresh.take().or_else(|| self.path.as_deref().and_then(Stamp::of)).or(self.known);
    }

    /// One check. Returns true if the file has changed and the change has settled.
    fn look(&mut self, stamp: Option<Stamp>) -> bool {
        let Some(stamp) = stamp.filter(|stamp| Some(*stamp) != self.known) else {
            self.fresh = None;
            return false;
        };
        self.fresh.replace(stamp) == Some(stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(size: u64) -> Stamp {
        Stamp { inode: (1, 1), size, written: (0, 0) }
    }

    #[tokio::test]
    async fn a_change_counts_when_two_looks_agree_on_it() {
        let mut changes = ConfigSource::Demo.watch();
        changes.known = Some(stamp(1));
        for (now, changed) in [(1, false), (2, false), (3, false), (3, true)] {
            assert_eq!(changes.look(Some(stamp(now))), changed, "{now}");
        }
        changes.seen();
        for now in [Some(stamp(3)), None, Some(stamp(3)), Some(stamp(4))] {
            assert!(!changes.look(now), "a file that is away for a moment has not changed");
        }
        assert!(changes.look(Some(stamp(4))));
    }

    #[test]
    fn a_file_that_was_replaced_by_one_of_the_same_size_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let (file, other) = (folder.path().join("rouse.yaml"), folder.path().join("new"));
        std::fs::write(&file, "a").unwrap();
        let before = Stamp::of(&file);
        std::fs::write(&other, "b").unwrap();
        std::fs::rename(&other, &file).unwrap();
        assert!(before.is_some() && Stamp::of(&file) != before);
    }
}
