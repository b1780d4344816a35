//! Passive ejection: an endpoint that refuses connections, or does not answer what it is sent, is left alone for a while.
//!
//! The rule is that of Envoy's outlier detection. A connect failure ejects at once and for a short time, since nothing was
//! sent and another endpoint can have the request. A request that was sent and not answered is lost to its client, but may
//! be to blame itself: only several of them in a row eject, then for longer.

use std::time::Duration;

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::time::{Clock, Moment};

/// How long a first connect failure keeps an endpoint out; doubled by each further one.
const REFUSED: Duration = Duration::from_millis(100);
/// The longest that any number of connect failures keeps an endpoint out.
const REFUSED_MAX: Duration = Duration::from_secs(10);
/// So many requests in a row must go unanswered before an endpoint is out for it.
pub const UNANSWERED: u32 = 5;
/// How long it is out then; as long again with each further ejection in a row.
const OUT: Duration = Duration::from_secs(10);
/// The longest that any number of unanswered requests keeps an endpoint out.
const OUT_MAX: Duration = Duration::from_mins(5);

/// How long an endpoint is left alone after so many connect failures in a row.
pub fn after_refusals(in_a_row: u32) -> Option<Duration> {
    let doublings = in_a_row.checked_sub(1)?.min(16);
    Some(REFUSED.saturating_mul(1 << doublings).min(REFUSED_MAX))
}

/// How long an endpoint is left alone after so many unanswered requests in a row; `None`: not at all. `out` of the `all`
/// endpoints that take new requests are ejected already: at most half of them may be, or what all of them suffer from
/// would send all requests to the last one.
pub fn after_unanswered(in_a_row: u32, out: usize, all: usize) -> Option<Duration> {
    let times = in_a_row.checked_sub(UNANSWERED - 1).filter(|times| *times > 0)?;
    (out < all / 2).then(|| OUT.saturating_mul(times).min(OUT_MAX))
}

/// How one endpoint has taken our connections and requests lately.
#[derive(Debug, Default)]
pub struct EndpointHealth {
    refusals: Streak,
    /// When the first of the refusals in a row was; zero while there is none.
    refusing_since: AtomicU64,
    unanswered: Streak,
}

/// Failures in a row, and the ejection that came of them.
#[derive(Debug, Default)]
struct Streak {
    failures: AtomicU32,
    /// Zero while nothing was ejected, so that a pick reads no clock.
    until: AtomicU64,
}

impl Streak {
    fn until(&self) -> Option<Moment> {
        match self.until.load(Ordering::Relaxed) {
            0 => None,
            until => Some(Moment::from_nanos(until)),
        }
    }

    /// One more failure. `ejection` says for how long so many eject. Answers until when, if they do.
    fn fail(&self, now: Moment, ejection: impl FnOnce(u32) -> Option<Duration>) -> Option<Moment> {
        if let Some(until) = self.until().filter(|until| now < *until) {
            // Requests that fail together are one failure, not a hundred.
            return Some(until);
        }
        let before = self.failures.load(Ordering::Relaxed);
        let failures = before.saturating_add(1);
        let Some(ejection) = ejection(failures) else {
            // From the fifth on, each that counts has ejected: others must not make a later ejection longer.
            self.failures.store(failures.min(UNANSWERED - 1).max(before), Ordering::Relaxed);
            return None;
        };
        let until = now + ejection;
        self.failures.store(failures, Ordering::Relaxed);
        // Never 0, which means "not ejected".
        self.until.store(until.as_nanos().max(1), Ordering::Relaxed);
        Some(until)
    }

    /// A success. Answers whether there was a failure before it.
    fn end(&self) -> bool {
        // Read first: a warm endpoint's cache line stays shared.
        let failed = self.failures.load(Ordering::Relaxed) != 0;
        if failed {
            self.failures.store(0, Ordering::Relaxed);
            self.until.store(0, Ordering::Relaxed);
        }
        failed
    }
}

impl EndpointHealth {
    /// Nothing is known against it.
    pub fn new() -> Self {
        Self::default()
    }

    /// A connection was refused: keeps the endpoint out for a while, longer each time. Answers until when.
    pub fn refused(&self, now: Moment) -> Moment {
        if self.refusals.failures.load(Ordering::Relaxed) == 0 {
            self.refusing_since.store(now.as_nanos().max(1), Ordering::Relaxed);
        }
        self.refusals.fail(now, after_refusals).unwrap_or(now)
    }

    /// A connection stands. Answers whether one had been refused before.
    pub fn connected(&self) -> bool {
        let refused = self.refusals.end();
        if refused {
            self.refusing_since.store(0, Ordering::Relaxed);
        }
        refused
    }

    /// Since when it has refused every connection.
    pub fn refusing_since(&self) -> Option<Moment> {
        match self.refusing_since.load(Ordering::Relaxed) {
            0 => None,
            since => Some(Moment::from_nanos(since)),
        }
    }

    /// A request was sent and not answered; `out` of `all` endpoints are ejected already. Answers whether that ejects it
    /// now. One caller at a time.
    pub fn unanswered(&self, now: Moment, out: usize, all: usize) -> bool {
        let was_out = self.unanswered.until().is_some_and(|until| now < until);
        !was_out && self.unanswered.fail(now, |in_a_row| after_unanswered(in_a_row, out, all)).is_some()
    }

    /// A response began, with any status. Returns whether a request had gone unanswered before.
    pub fn answered(&self) -> bool {
        self.unanswered.end()
    }

    /// Until when it is out, or was out last.
    pub fn ejected_until(&self) -> Option<Moment> {
        self.refusals.until().max(self.unanswered.until())
    }

    /// Whether it is out at the time that `clock` tells; the clock is read only if it might be.
    pub fn ejected(&self, clock: &dyn Clock) -> bool {
        self.ejected_until().is_some_and(|until| clock.now() < until)
    }
}
