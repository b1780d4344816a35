//! Every connection is a file, and there are only so many.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than these are not planned for, however many the system allows.
const MOST_FILES: u64 = 400_000;

/// The soft limit is often 1024 for the sake of `select`, which nobody uses here.
pub(crate) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // If the system does not want to, fewer connections are better than none.
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok();
    }
}

/// As many connections as there are files for, with some left for those to pods.
pub(crate) fn most_connections() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files.min(MOST_FILES) / 4 * 3).unwrap_or(usize::MAX).max(1)
}
