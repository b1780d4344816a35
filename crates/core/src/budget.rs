//! Rate limits: the token bucket, the budget of wakes and the budget of retries.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::atomic::{AtomicI64, Ordering};
use crate::time::Moment;

/// A bucket of tokens that fills by itself.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    counted: Moment,
}

impl TokenBucket {
    /// A full bucket: `burst` at once, `per_second` in the long run.
    pub fn new(rate: Rate, now: Moment) -> Self {
        Self::full_of(f64::from(rate.burst), f64::from(rate.per_second), now)
    }

    /// A full bucket: `burst` at once, then one `every` so often.
    pub fn every(every: Duration, burst: u32, now: Moment) -> Self {
        Self::full_of(f64::from(burst), every.as_secs_f64().recip(), now)
    }

    fn full_of(burst: f64, per_second: f64, now: Moment) -> Self {
        Self { per_second, burst, tokens: burst, counted: now }
    }

    /// Whether a token is there now.
    pub fn has(&mut self, now: Moment) -> bool {
        let gained = now.since(self.counted).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + gained).min(self.burst);
        self.counted = self.counted.max(now);
        self.tokens >= 1.0
    }

    /// Takes a token that [`TokenBucket::has`] just found.
    pub fn take(&mut self) {
        self.tokens -= 1.0;
    }

    fn full(&mut self, now: Moment) -> bool {
        self.has(now);
        self.tokens >= self.burst
    }
}

/// How often something may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// In the long run.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

/// How often services may be woken: a scan of all hosts must not start everything, and one namespace's scan
/// must not keep another namespace asleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeRates {
    /// For each namespace.
    pub namespace: Rate,
    /// For all of them together.
    pub total: Rate,
}

impl Default for WakeRates {
    fn default() -> Self {
        Self { namespace: Rate { per_second: 10, burst: 50 }, total: Rate { per_second: 50, burst: 200 } }
    }
}

/// The wakes that may still be sent.
#[derive(Debug)]
pub struct WakeBudget {
    rates: WakeRates,
    total: TokenBucket,
    /// Only namespaces that used some of theirs lately: a full bucket is as good as none.
    namespaces: HashMap<Arc<str>, TokenBucket>,
}

impl WakeBudget {
    /// Namespaces remembered at a time. More than this many active ones share the total budget only.
    const NAMESPACES: usize = 10_000;

    /// A full budget.
    pub fn new(rates: WakeRates, now: Moment) -> Self {
        Self { rates, total: TokenBucket::new(rates.total, now), namespaces: HashMap::new() }
    }

    /// Takes one wake of a service of `namespace` from the budget, if there is one left.
    pub fn take(&mut self, namespace: &str, now: Moment) -> bool {
        if !self.total.has(now) {
            return false;
        }
        if !self.namespaces.contains_key(namespace) {
            if self.namespaces.len() >= Self::NAMESPACES {
                self.namespaces.retain(|_, bucket| !bucket.full(now));
            }
            if self.namespaces.len() < Self::NAMESPACES {
                self.namespaces.insert(namespace.into(), TokenBucket::new(self.rates.namespace, now));
            }
        }
        if let Some(own) = self.namespaces.get_mut(namespace) {
            if !own.has(now) {
                return false;
            }
            own.take();
        }
        self.total.take();
        true
    }
}

/// The retries of one service: at most one for five requests, after a small reserve. Needs no clock and no lock.
#[derive(Debug)]
pub struct RetryBudget {
    /// In fifths of a retry.
    fifths: AtomicI64,
}

impl RetryBudget {
    const COST: i64 = 5;
    /// A service that has hardly been asked may still retry a little.
    const RESERVE: i64 = 10 * Self::COST;
    /// What a quiet time can save up, so that a bad minute after a good day is still a bad minute.
    const MOST: i64 = 100 * Self::COST;

    /// With its reserve.
    pub fn new() -> Self {
        Self { fifths: AtomicI64::new(Self::RESERVE) }
    }

    /// A request came: a fifth of a retry is earned.
    pub fn earn(&self) {
        // Full in steady state, and then nothing is written: the cache line stays shared.
        if self.fifths.load(Ordering::Relaxed) < Self::MOST {
            self.fifths.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes leave for one retry, if it was earned.
    pub fn spend(&self) -> bool {
        let pay = |fifths: i64| (fifths >= Self::COST).then(|| fifths - Self::COST);
        self.fifths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).is_ok()
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_scan_of_one_namespace_leaves_wakes_for_the_others() {
        let mut budget = WakeBudget::new(WakeRates::default(), Moment::ZERO);
        let woken = (0..1000).filter(|_| budget.take("scanned", Moment::ZERO)).count();
        assert_eq!(woken, 50);
        assert!(budget.take("other", Moment::ZERO));
    }

    #[test]
    fn all_namespaces_together_are_bounded_and_refill_by_the_second() {
        let mut budget = WakeBudget::new(WakeRates::default(), Moment::ZERO);
        let mut scan = |now| (0..1000).filter(|n| budget.take(&format!("ns-{n}"), now)).count();
        assert_eq!(scan(Moment::ZERO), 200);
        assert_eq!(scan(Moment::from_secs(1)), 50);
    }

    #[test]
    fn one_retry_is_earned_by_five_requests() {
        let budget = RetryBudget::new();
        let reserve = std::iter::from_fn(|| budget.spend().then_some(())).count();
        assert_eq!(reserve, 10);
        for _ in 0..1000 {
            budget.earn();
        }
        assert_eq!(std::iter::from_fn(|| budget.spend().then_some(())).count(), 100, "savings are bounded");
        let retries = (0..1000)
            .filter(|_| {
                budget.earn();
                budget.spend()
            })
            .count();
        assert_eq!(retries, 200);
    }
}
