//! The log file of an app: appends every line that its pods print.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Line;

/// A log file that is opened for appending. It may be truncated while it is open (`logrotate` with `copytruncate`).
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: Arc<File>,
    /// The last write failed.
    failing: AtomicBool,
}

impl LogFile {
    /// `<app>.log` in `folder`; both are created if they are not there.
    pub fn open(folder: &Path, app: &str) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join(format!("{app}.log"));
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        Ok(Self { path, file: Arc::new(file), failing: AtomicBool::new(false) })
    }

    /// Returns when `text` is written. Of several failures in a row, only the first is returned.
    pub(super) async fn append(&self, text: String) -> Result<(), String> {
        let file = Arc::clone(&self.file);
        // One write of whole lines: in append mode, lines of two streams do not mix.
        let write = tokio::task::spawn_blocking(move || (&*file).write_all(text.as_bytes()));
        let written = write.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        let failed = self.failing.swap(written.is_err(), Ordering::Relaxed);
        match written {
            Err(error) if !failed => {
                Err(format!("cannot write to {}: {error}; lines are missing in it", self.path.display()))
            }
            _ => Ok(()),
        }
    }
}

/// The lines in the format of the file and of `rouse logs`.
pub(super) fn text(lines: &[Line]) -> String {
    let mut text = String::new();
    for Line { pod, text: said, .. } in lines {
        // Writing to a String cannot fail.
        writeln!(text, "{pod} | {said}").ok();
    }
    text
}
