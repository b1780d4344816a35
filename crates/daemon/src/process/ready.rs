//! The readiness flag that `/readyz` reports.

use std::sync::atomic::{AtomicBool, Ordering};

/// True between the moment that everything serves and the first signal to stop.
#[derive(Debug, Default)]
pub struct Ready(AtomicBool);

impl Ready {
    /// Sets the flag.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// Returns the flag.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
