//! Passive outlier detection: ejects an endpoint that refuses connections or leaves requests unanswered.
//!
//! Modelled on Envoy's outlier detection. A connect failure ejects at once but briefly, since nothing was sent and another
//! endpoint can take the request. An unanswered request may itself be the cause, so only several in a row eject the
//! endpoint, and then for longer.

use std::time::Duration;

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::time::{Clock, Moment};

/// How long the first connect failure ejects an endpoint; each further failure in a row doubles it.
const REFUSED: Duration = Duration::from_millis(100);
/// The longest ejection for connect failures.
const REFUSED_MAX: Duration = Duration::from_secs(10);
/// How many unanswered requests in a row eject an endpoint.
pub const UNANSWERED: u32 = 5;
/// How long the first ejection for unanswered requests lasts; each further one in a row adds as much.
const OUT: Duration = Duration::from_secs(10);
/// The longest ejection for unanswered requests.
const OUT_MAX: Duration = Duration::from_mins(5);

/// How long `in_a_row` connect failures eject an endpoint; `None` if there were none.
pub fn after_refusals(in_a_row: u32) -> Option<Duration> {
    let doublings = in_a_row.checked_sub(1)?.min(16);
    Some(REFUSED.saturating_mul(1 << doublings).min(REFUSED_MAX))
}

/// How long `in_a_row` unanswered requests eject an endpoint; `None`: not at all. `out` of the `all` endpoints that take new
/// requests are ejected already. At most half of them may be: otherwise a fault that affects all endpoints would send all
/// requests to the last one.
pub fn after_unanswered(in_a_row: u32, out: usize, all: usize) -> Option<Duration> {
    let times = in_a_row.checked_sub(UNANSWERED - 1).filter(|times| *times > 0)?;
    (out < all / 2).then(|| OUT.saturating_mul(times).min(OUT_MAX))
}

/// The outlier detection state of one endpoint.
#[derive(Debug, Default)]
pub struct EndpointHealth {
    refusals: Streak,
    /// The time of the first refusal in a row, in nanoseconds; 0 while there is none.
    refusing_since: AtomicU64,
    unanswered: Streak,
}

/// Failures in a row, and the ejection that follows from them.
#[derive(Debug, Default)]
struct Streak {
    failures: AtomicU32,
    /// The end of the ejection, in nanoseconds; 0 if there was none, so that a pick need not read the clock.
    until: AtomicU64,
}

impl Streak {
    fn until(&self) -> Option<Moment> {
        match self.until.load(Ordering::Relaxed) {
            0 => None,
            until => Some(Moment::from_nanos(until)),
        }
    }

    /// Counts a failure. `ejection` maps the number of failures in a row to the length of the ejection. Returns the end of the
    /// ejection, if there is one.
    fn fail(&self, now: Moment, ejection: impl FnOnce(u32) -> Option<Duration>) -> Option<Moment> {
        if let Some(until) = self.until().filter(|until| now < *until) {
            // Requests that fail at the same time count as one failure.
            return Some(until);
        }
        let before = self.failures.load(Ordering::Relaxed);
        let failures = before.saturating_add(1);
        let Some(ejection) = ejection(failures) else {
            // From `UNANSWERED` on, only failures that eject are counted: the others must not make a later ejection longer.
            self.failures.store(failures.min(UNANSWERED - 1).max(before), Ordering::Relaxed);
            return None;
        };
        let until = now + ejection;
        self.failures.store(failures, Ordering::Relaxed);
        // Never 0, which means "not ejected".
        self.until.store(until.as_nanos().max(1), Ordering::Relaxed);
        Some(until)
    }

    /// Ends the streak after a success. Returns whether there was a failure before it.
    fn end(&self) -> bool {
        // Read before writing: the cache line of a healthy endpoint stays shared between threads.
        let failed = self.failures.load(Ordering::Relaxed) != 0;
        if failed {
            self.failures.store(0, Ordering::Relaxed);
            self.until.store(0, Ordering::Relaxed);
        }
        failed
    }
}

impl EndpointHealth {
    /// A healthy endpoint.
    pub fn new() -> Self {
        Self::default()
    }

    /// A connection was refused: ejects the endpoint, longer each time. Returns the end of the ejection.
    pub fn refused(&self, now: Moment) -> Moment {
        if self.refusals.failures.load(Ordering::Relaxed) == 0 {
            self.refusing_since.store(now.as_nanos().max(1), Ordering::Relaxed);
        }
        self.refusals.fail(now, after_refusals).unwrap_or(now)
    }

    /// A connection is established. Returns whether one had been refused before.
    pub fn connected(&self) -> bool {
        let refused = self.refusals.end();
        if refused {
            self.refusing_since.store(0, Ordering::Relaxed);
        }
        refused
    }

    /// Since when the endpoint has refused every connection.
    pub fn refusing_since(&self) -> Option<Moment> {
        match self.refusing_since.load(Ordering::Relaxed) {
            0 => None,
            since => Some(Moment::from_nanos(since)),
        }
    }

    /// A request was sent and not answered; `out` of `all` endpoints are ejected already. Returns whether that ejects this
    /// endpoint now. Must not be called concurrently.
    pub fn unanswered(&self, now: Moment, out: usize, all: usize) -> bool {
        let was_out = self.unanswered.until().is_some_and(|until| now < until);
        !was_out && self.unanswered.fail(now, |in_a_row| after_unanswered(in_a_row, out, all)).is_some()
    }

    /// A response began, with any status. Returns whether a request had been unanswered before.
    pub fn answered(&self) -> bool {
        self.unanswered.end()
    }

    /// The end of the current ejection, or of the last one.
    pub fn ejected_until(&self) -> Option<Moment> {
        self.refusals.until().max(self.unanswered.until())
    }

    /// Whether the endpoint is ejected now. Reads the clock only if there was an ejection.
    pub fn ejected(&self, clock: &dyn Clock) -> bool {
        self.ejected_until().is_some_and(|until| clock.now() < until)
    }
}
