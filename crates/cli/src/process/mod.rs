//! What every command needs that runs until a signal: the signals, a screen, files, and the way out.

pub(crate) mod drain;
pub(crate) mod files;
mod memory;
pub mod screen;
pub(crate) mod signals;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::num::NonZeroUsize;

use tokio::runtime::{Builder, Runtime};

/// The control side is small: it decides, the workers work.
const CONTROL_THREADS: usize = 2;

/// The runtime of everything but the data plane.
pub(crate) fn control() -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(CONTROL_THREADS).thread_name("control").enable_all().build()
}

/// As many workers as somebody wants; else one per core.
pub(crate) fn workers(wanted: Option<NonZeroUsize>) -> NonZeroUsize {
    wanted.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
}

/// Nobody else's seed. The standard library asks the system for the keys of its hash maps.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
