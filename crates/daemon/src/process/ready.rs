//! Whether `/readyz` says yes.

use std::sync::atomic::{AtomicBool, Ordering};

/// True between the moment that everything serves and the first signal to stop.
#[derive(Debug, Default)]
pub struct Ready(AtomicBool);

impl Ready {
    /// Changes the answer.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// The answer.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
