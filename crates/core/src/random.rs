//! A pseudo-random number generator (splitmix64) for load balancing and jitter. Not for secrets.
//!
//! The caller passes in the seed: the core has no source of randomness of its own, so tests are repeatable.

use std::time::Duration;

use crate::sync::atomic::{AtomicU64, Ordering};

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A generator for one owner. Seed each generator from a source of randomness: all seeds are states of one sequence, so
/// a generator seeded with another's seed plus a constant may soon repeat the other's numbers.
#[derive(Debug, Clone, Copy)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The upper half of the product is below the bound, and uniform enough.
        let product = u128::from(self.next_u64()) * bound as u128;
        usize::try_from(product >> 64).unwrap_or(0)
    }
}

/// A generator that threads share. It repeats no number before it has returned all 2^64.
#[derive(Debug)]
pub struct SharedRandom(AtomicU64);

impl SharedRandom {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// The next number.
    pub fn next_u64(&self) -> u64 {
        mix(self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP))
    }

    /// A duration from `shortest` to `longest`.
    pub fn between(&self, shortest: Duration, longest: Duration) -> Duration {
        between(shortest, longest, self.next_u64())
    }
}

/// A duration from `shortest` to `longest`, chosen by the random number `random`.
pub fn between(shortest: Duration, longest: Duration, random: u64) -> Duration {
    let span = longest.saturating_sub(shortest).as_nanos();
    let part = (span * u128::from(random)) >> 64;
    shortest + Duration::from_nanos(u64::try_from(part).unwrap_or(u64::MAX))
}

fn mix(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn both_generators_give_the_same_numbers_for_the_same_seed() {
        let (mut random, shared) = (Random::new(7), SharedRandom::new(7));
        for _ in 0..1000 {
            assert_eq!(random.next_u64(), shared.next_u64());
        }
    }

    #[test]
    fn durations_stay_within_their_bounds() {
        let (shortest, longest) = (Duration::from_secs(1), Duration::from_secs(2));
        let random = SharedRandom::new(7);
        for _ in 0..1000 {
            let pause = random.between(shortest, longest);
            assert!((shortest..=longest).contains(&pause), "{pause:?}");
        }
        assert_eq!(between(shortest, longest, 0), shortest);
        assert_eq!(between(longest, shortest, u64::MAX), longest, "reversed bounds give the first");
    }
}
