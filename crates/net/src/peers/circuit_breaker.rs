//! The circuit breaker of one peer: when a request may be sent to it after failures.

use std::time::Duration;

use rouse_core::time::Moment;

use super::Backoff;

/// The pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// This many failures in a row open the circuit.
const OPENS_AFTER: u32 = 5;

/// Whether requests may pass to one peer. The caller sends one request at a time, calls [`CircuitBreaker::on_request`] before it,
/// and reports how it ended.
///
/// After a failure the same request waits for the backoff, and a new one may pass at once. After five failures in a row the
/// circuit is open: nothing passes until the backoff is over. Then one request passes as a probe (half-open), and decides
/// whether the circuit closes.
#[derive(Debug, Clone)]
pub struct CircuitBreaker {
    backoff: Backoff,
    circuit: Circuit,
}

/// Whether a request says what the last one said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// It says something else.
    New,
    /// It is the same again.
    Repeated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Circuit {
    Closed,
    /// The last request failed, and the circuit is still closed.
    ClosedWithFailures {
        /// When the same may be sent again.
        retry_at: Moment,
        /// The peer's `Retry-After`: no request before then.
        not_before: Moment,
    },
    Open {
        probe_at: Moment,
    },
    /// The probe is under way.
    HalfOpen,
}

impl CircuitBreaker {
    /// A closed circuit.
    pub const fn new() -> Self {
        Self { backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE), circuit: Circuit::Closed }
    }

    /// When the next request may pass; `None` while a probe is under way. New content passes earlier than a repetition.
    pub fn passes_at(&self, content: Content) -> Option<Moment> {
        match self.circuit {
            Circuit::Closed => Some(Moment::ZERO),
            Circuit::ClosedWithFailures { not_before, .. } if content == Content::New => Some(not_before),
            Circuit::ClosedWithFailures { retry_at, .. } => Some(retry_at),
            Circuit::Open { probe_at } => Some(probe_at),
            Circuit::HalfOpen => None,
        }
    }

    /// A request is sent.
    pub fn on_request(&mut self) {
        if matches!(self.circuit, Circuit::Open { .. }) {
            self.circuit = Circuit::HalfOpen;
        }
    }

    /// The request succeeded.
    pub fn succeeded(&mut self) {
        *self = Self::new();
    }

    /// The request failed. `retry_after`: the peer has asked for a pause of at least this; at most a minute counts.
    pub fn failed(&mut self, now: Moment, retry_after: Option<Duration>, random: u64) {
        let asked = retry_after.unwrap_or_default().min(LONGEST_PAUSE);
        let retry_at = now + self.backoff.next_pause(random).max(asked);
        self.circuit = if self.backoff.failures() < OPENS_AFTER {
            Circuit::ClosedWithFailures { retry_at, not_before: now + asked }
        } else {
            Circuit::Open { probe_at: retry_at }
        };
    }

    /// The peer was discovered again: closes the circuit, so that the next request may pass at once.
    pub fn reset(&mut self) {
        if self.circuit != Circuit::HalfOpen {
            *self = Self::new();
        }
    }

    /// Whether the last request failed.
    pub fn is_failing(&self) -> bool {
        self.circuit != Circuit::Closed
    }

    /// Whether nothing passes but probes.
    pub fn is_open(&self) -> bool {
        matches!(self.circuit, Circuit::Open { .. } | Circuit::HalfOpen)
    }
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn failed_times(count: u32, now: Moment) -> CircuitBreaker {
        let mut breaker = CircuitBreaker::new();
        for _ in 0..count {
            breaker.on_request();
            breaker.failed(now, None, u64::MAX);
        }
        breaker
    }

    #[test]
    fn news_passes_a_closed_circuit_at_once_and_a_repeated_request_waits() {
        let now = Moment::from_secs(9);
        let breaker = failed_times(4, now);
        assert!(breaker.is_failing() && !breaker.is_open());
        assert_eq!(breaker.passes_at(Content::New), Some(now));
        assert!(breaker.passes_at(Content::Repeated) > Some(now + Duration::from_millis(700)));
    }

    #[test]
    fn an_open_circuit_passes_one_probe_which_decides() {
        let now = Moment::from_secs(9);
        let mut breaker = failed_times(5, now);
        let probe_at = breaker.passes_at(Content::New).unwrap();
        assert!(
            breaker.is_open() && probe_at > now && breaker.passes_at(Content::Repeated) == Some(probe_at)
        );
        breaker.on_request();
        assert_eq!((breaker.passes_at(Content::New), breaker.passes_at(Content::Repeated)), (None, None));
        breaker.reset();
        assert_eq!(breaker.passes_at(Content::New), None, "the probe is still under way");
        breaker.failed(probe_at, None, u64::MAX);
        assert!(
            breaker.is_open() && breaker.passes_at(Content::New) > Some(probe_at + Duration::from_secs(3))
        );
        breaker.on_request();
        breaker.succeeded();
        assert!(!breaker.is_failing() && breaker.passes_at(Content::Repeated) == Some(Moment::ZERO));
    }

    #[test]
    fn the_pause_that_a_peer_asks_for_also_holds_for_news_and_is_bounded() {
        let (now, mut breaker) = (Moment::from_secs(9), CircuitBreaker::new());
        breaker.failed(now, Some(Duration::from_secs(7)), 0);
        let asked = now + Duration::from_secs(7);
        assert_eq!(
            (breaker.passes_at(Content::New), breaker.passes_at(Content::Repeated)),
            (Some(asked), Some(asked))
        );
        breaker.failed(now, Some(Duration::MAX), 0);
        assert_eq!(breaker.passes_at(Content::New), Some(now + LONGEST_PAUSE));
    }

    proptest! {
        /// The model only counts the failures since the last success.
        #[test]
        fn the_circuit_is_open_after_five_failures_in_a_row(outcomes in prop::collection::vec(any::<bool>(), 0..40)) {
            let (mut breaker, mut in_a_row, mut now) = (CircuitBreaker::new(), 0, Moment::ZERO);
            for success in outcomes {
                now = now.max(breaker.passes_at(Content::Repeated).unwrap());
                breaker.on_request();
                if success {
                    breaker.succeeded();
                    in_a_row = 0;
                } else {
                    breaker.failed(now, None, 7);
                    in_a_row += 1;
                }
                prop_assert_eq!(breaker.is_open(), in_a_row >= 5);
                prop_assert_eq!(breaker.is_failing(), in_a_row > 0);
                let longest = now + LONGEST_PAUSE;
                prop_assert!(breaker.passes_at(Content::Repeated).unwrap() <= longest);
            }
        }
    }
}
