//! Locks, atomics and the swapped pointer of the core, in a form that loom and shuttle can check.
//!
//! In the product these are std's types and `arc_swap`; under `--cfg loom` and `--cfg shuttle` the model
//! checkers' own. Neither checker can look inside `arc_swap`, so there a mutex stands in for it.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

use std::ops::Deref;
use std::sync::{Arc, PoisonError};

/// A full fence. Loom needs it spelled out to believe in sequential consistency; shuttle knows nothing else.
pub(crate) fn fence() {
    #[cfg(not(shuttle))]
    atomic::fence(atomic::Ordering::SeqCst);
}

/// Takes the lock. A panic of another holder is not passed on: no lock here guards a state that is half
/// written when its holder panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An immutable value that is replaced whole. Reading takes no lock.
#[derive(Debug)]
pub(crate) struct Swap<T>(
    #[cfg(not(any(loom, shuttle)))] arc_swap::ArcSwap<T>,
    #[cfg(any(loom, shuttle))] Mutex<Arc<T>>,
);

#[cfg(not(any(loom, shuttle)))]
impl<T> Swap<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(arc_swap::ArcSwap::from_pointee(value))
    }

    pub(crate) fn load(&self) -> impl Deref<Target = Arc<T>> + use<T> {
        self.0.load()
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        self.0.store(value);
    }
}

#[cfg(any(loom, shuttle))]
impl<T> Swap<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(Arc::new(value)))
    }

    pub(crate) fn load(&self) -> impl Deref<Target = Arc<T>> + use<T> {
        struct Loaded<T>(Arc<T>);
        impl<T> Deref for Loaded<T> {
            type Target = Arc<T>;
            fn deref(&self) -> &Arc<T> {
                &self.0
            }
        }
        Loaded(Arc::clone(&lock(&self.0)))
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        *lock(&self.0) = value;
    }
}
