//! The load of one pod: counters of requests in flight and of released requests, and the lock-free way to take a slot.

use std::num::NonZeroU32;

use crate::sync::atomic::{AtomicU32, Ordering};

/// The requests of one pod, on all its ports.
// Aligned to a cache line: pods whose counters share one would slow down each other's picks.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct EndpointLoad {
    in_flight: AtomicU32,
    /// How many of those were held before and have no response yet.
    released: AtomicU32,
}

/// The limit that applies when a slot is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotLimit {
    /// No limit.
    Unlimited,
    /// At most this many requests in flight.
    InFlight(NonZeroU32),
    /// At most this many requests that were held before and have no response yet, so that the first pod after a cold start
    /// does not get all held requests at once.
    Released(NonZeroU32),
}

impl EndpointLoad {
    /// No requests in flight.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many slots are in use.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// How many slots are in use by requests that were held before and have no response yet.
    pub fn released(&self) -> u32 {
        self.released.load(Ordering::Relaxed)
    }

    pub(crate) fn free(&self, capacity: SlotLimit) -> bool {
        match capacity {
            SlotLimit::Unlimited => true,
            SlotLimit::InFlight(limit) => self.in_flight() < limit.get(),
            SlotLimit::Released(max_released) => self.released() < max_released.get(),
        }
    }

    /// Takes a slot. Returns false if the limit is reached.
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
            SlotLimit::Released(max_released) => {
                let taken = self
                    .released
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, below(max_released))
                    .is_ok();
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

    /// A released request has its response, or is over: it no longer counts as released.
    pub(crate) fn give_released(&self) {
        self.released.fetch_sub(1, Ordering::AcqRel);
    }
}
