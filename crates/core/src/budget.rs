//! Rate limits: the token bucket, the limit on wakes, and the retry budget (one retry per five requests).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::atomic::{AtomicI64, Ordering};
use crate::time::Moment;

/// A token bucket that refills with time.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    counted: Moment,
}

impl TokenBucket {
    /// A full bucket of `rate.burst` tokens, refilled at `rate.per_second`.
    pub fn new(rate: Rate, now: Moment) -> Self {
        Self::full_of(f64::from(rate.burst), f64::from(rate.per_second), now)
    }

    /// A full bucket of `burst` tokens, refilled by one token per `every`.
    pub fn every(every: Duration, burst: u32, now: Moment) -> Self {
        Self::full_of(f64::from(burst), every.as_secs_f64().recip(), now)
    }

    fn full_of(burst: f64, per_second: f64, now: Moment) -> Self {
        Self { per_second, burst, tokens: burst, counted: now }
    }

    /// Refills the bucket up to `now`. Returns whether it holds a token.
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

    /// Gives back a token that was taken.
    pub fn give_back(&mut self) {
        self.tokens = (self.tokens + 1.0).min(self.burst);
    }

    /// Takes a token, if there is one.
    pub fn try_take(&mut self, now: Moment) -> bool {
        let has = self.has(now);
        if has {
            self.take();
        }
        has
    }

    /// Whether it is full at `now`: a full bucket equals a new one.
    pub fn full(&mut self, now: Moment) -> bool {
        self.has(now);
        self.tokens >= self.burst
    }
}

/// A rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The sustained rate.
    pub per_second: u32,
    /// How many may happen at once.
    pub burst: u32,
}

/// The rate limits on wakes: a scan of all hosts must not start every service, and a scan of one namespace must not keep
/// the services of another at zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeRates {
    /// For each namespace.
    pub namespace: Rate,
    /// For all namespaces together.
    pub total: Rate,
}

impl Default for WakeRates {
    fn default() -> Self {
        Self { namespace: Rate { per_second: 10, burst: 50 }, total: Rate { per_second: 50, burst: 200 } }
    }
}

/// The rate limiter of wakes: one token bucket per namespace, and one for all namespaces.
#[derive(Debug)]
pub struct WakeBudget {
    rates: WakeRates,
    total: TokenBucket,
    /// The bucket of each namespace that has asked for a wake. Full buckets are dropped when there are `NAMESPACES` of them:
    /// a full bucket equals a new one.
    namespaces: HashMap<Arc<str>, TokenBucket>,
}

impl WakeBudget {
    /// How many buckets are kept. A namespace beyond them is limited by the total budget only.
    const NAMESPACES: usize = 10_000;

    /// A full budget.
    pub fn new(rates: WakeRates, now: Moment) -> Self {
        Self { rates, total: TokenBucket::new(rates.total, now), namespaces: HashMap::new() }
    }

    /// Takes one wake for a service of `namespace` from the budget. Returns false if the budget is used up.
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

/// The retry budget of one service: one retry per five requests, after a small reserve. Needs no clock and no lock.
#[derive(Debug)]
pub struct RetryBudget {
    /// The balance, in fifths of a retry.
    fifths: AtomicI64,
}

impl RetryBudget {
    const COST: i64 = 5;
    /// The initial balance, so that a service with few requests can retry too.
    const RESERVE: i64 = 10 * Self::COST;
    /// The largest balance. Without it, a day without failures would save up enough retries to overload a failing service.
    const MOST: i64 = 100 * Self::COST;

    /// A budget with the initial reserve.
    pub fn new() -> Self {
        Self { fifths: AtomicI64::new(Self::RESERVE) }
    }

    /// Counts a request, which earns a fifth of a retry.
    pub fn earn(&self) {
        // In steady state the budget is full and nothing is written, so the cache line stays shared between threads.
        if self.fifths.load(Ordering::Relaxed) < Self::MOST {
            self.fifths.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes one retry from the budget. Returns false if the budget is used up.
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
