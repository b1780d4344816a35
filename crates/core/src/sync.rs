//! Locks, atomics and an atomically swapped `Arc`, replaceable by the types of the model checkers loom and shuttle.
//!
//! A normal build uses the types of `std` and `arc_swap`; `--cfg loom` and `--cfg shuttle` use those of the checker.
//! Neither checker can model `arc_swap`, so a mutex replaces it there.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

use std::ops::Deref;
use std::sync::{Arc, PoisonError};

/// A sequentially consistent fence. Loom needs it explicitly; shuttle models only sequential consistency anyway.
pub(crate) fn fence() {
    #[cfg(not(shuttle))]
    atomic::fence(atomic::Ordering::SeqCst);
}

/// Takes the lock, and ignores poisoning: no state in this crate is half written when a lock holder panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An immutable value that is replaced as a whole. Reading takes no lock.
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
