//! How many requests a pod has in flight, and taking a slot on it without a lock.

use std::num::NonZeroU32;

use crate::sync::atomic::{AtomicU32, Ordering};

/// What one pod carries now, on all its ports.
// Aligned, or the counters of neighbours would share a cache line and every pick would slow every other.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct EndpointLoad {
    in_flight: AtomicU32,
    /// How many of those were held before, and have not been answered yet.
    released: AtomicU32,
}

/// How much one pod may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotLimit {
    /// Anything.
    Unlimited,
    /// At most this many requests at a time.
    InFlight(NonZeroU32),
    /// At most this many requests that came out of a hold, so that a herd does not kill the first pod.
    Released(NonZeroU32),
}

impl EndpointLoad {
    /// Nothing in flight.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many slots are taken.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// How many slots are taken by requests that were held and are not answered yet.
    pub fn released(&self) -> u32 {
        self.released.load(Ordering::Relaxed)
    }

    pub(crate) fn free(&self, capacity: SlotLimit) -> bool {
        match capacity {
            SlotLimit::Unlimited => true,
            SlotLimit::InFlight(limit) => self.in_flight() < limit.get(),
            SlotLimit::Released(herd) => self.released() < herd.get(),
        }
    }

    /// Takes a slot if there is one.
    pub(crate) fn take(&self, capacity: SlotLimit) -> bool {
        let below = |bound: NonZeroU32| move |taken: u32| (taken < bound.get()).then(|| taken + 1);
        match capacity {
            SlotLimit::Unlimited => {
                self.in_flight.fetch_add(1, Ordering::AcqRel);
                true
            }
            SlotLimit::InFlight(limit) => {
                self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, below(limit)).is_ok()
            }
            SlotLimit::Released(herd) => {
                let taken =
                    self.released.fetch_update(Ordering::AcqRel, Ordering::Acquire, below(herd)).is_ok();
                if taken {
                    self.in_flight.fetch_add(1, Ordering::AcqRel);
                }
                taken
            }
        }
    }

    /// Gives back a slot.
    pub(crate) fn give(&self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    /// Gives back a place in the herd.
    pub(crate) fn give_released(&self) {
        self.released.fetch_sub(1, Ordering::AcqRel);
    }
}
