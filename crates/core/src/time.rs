//! Monotonic time as a value: `Moment`, and the `Clock` trait that callers implement.
//!
//! A [`Moment`] counts nanoseconds from an origin that the caller chooses (the start of the process, the start of a
//! paused test clock), so tests can evaluate every rule at any time without waiting.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time on the caller's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The clock's origin.
    pub const ZERO: Moment = Moment(0);

    /// The moment `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Moment(nanos)
    }

    /// The moment `millis` milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Moment(millis.saturating_mul(1_000_000))
    }

    /// The moment `secs` seconds after the origin.
    pub const fn from_secs(secs: u64) -> Self {
        Moment(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(nanos))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    fn sub(self, duration: Duration) -> Moment {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_sub(nanos))
    }
}

/// The clock that the caller passes in: tokio's in the binary, a manual one in tests.
pub trait Clock: Send + Sync {
    /// The current time. Never goes back.
    fn now(&self) -> Moment;
}
