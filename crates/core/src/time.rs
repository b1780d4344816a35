//! Time as a value: `Moment` on a monotonic clock, `WallTime` on the calendar, and the `Clock` trait that callers implement.
//!
//! A [`Moment`] counts nanoseconds from an origin that the caller chooses (the start of the process, the start of a
//! paused test clock), so tests can evaluate every rule at any time without waiting.

use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime};

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

/// A point in time on the calendar, in milliseconds. The clock that it is read from may be set, and go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(i64);

impl WallTime {
    /// The time `millis` milliseconds after 1970-01-01 00:00 UTC; before, if negative.
    pub const fn from_unix_millis(millis: i64) -> Self {
        WallTime(millis)
    }

    /// Milliseconds since 1970-01-01 00:00 UTC.
    pub const fn as_unix_millis(self) -> i64 {
        self.0
    }

    /// The time between the two, in either order.
    pub const fn differs(self, other: WallTime) -> Duration {
        Duration::from_millis(self.0.abs_diff(other.0))
    }
}

impl From<SystemTime> for WallTime {
    fn from(time: SystemTime) -> Self {
        let millis = |length: Duration| i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => WallTime(millis(after)),
            Err(before) => WallTime(-millis(before.duration())),
        }
    }
}

impl Add<Duration> for WallTime {
    type Output = WallTime;

    fn add(self, duration: Duration) -> WallTime {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        WallTime(self.0.saturating_add(millis))
    }
}

/// The wall clock, as last read, on the monotonic clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct WallClock(Option<(Moment, WallTime)>);

impl WallClock {
    /// A difference between two readings that is not the usual drift: the clock was set.
    const STEP: Duration = Duration::from_secs(2);

    /// Wall time is `wall` at `now`. Returns whether this is news: the clock was set, or its time was not known.
    pub fn set(&mut self, now: Moment, wall: WallTime) -> bool {
        let is_known = self.at(now).is_some_and(|expected| wall.differs(expected) <= Self::STEP);
        if !is_known {
            self.0 = Some((now, wall));
        }
        !is_known
    }

    /// Wall time at `now`; `None`: it is not known.
    pub fn at(self, now: Moment) -> Option<WallTime> {
        self.0.map(|(at, wall)| wall + now.since(at))
    }

    /// The moment of a wall time that is not before the last reading.
    pub fn moment_of(self, wall: WallTime) -> Option<Moment> {
        self.0.map(|(at, then)| at + wall.differs(then))
    }
}

/// The clock that the caller passes in: tokio's in the binary, a manual one in tests.
pub trait Clock: Send + Sync {
    /// The current time. Never goes back.
    fn now(&self) -> Moment;
}
