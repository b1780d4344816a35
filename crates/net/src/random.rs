//! A random seed and random secrets from the operating system.

use std::hash::{BuildHasher as _, RandomState};

/// A random number from the operating system, to seed [`rouse_core::random::Random`] with.
pub fn system_seed() -> u64 {
    // The standard library seeds the hash keys of `RandomState` from the operating system.
    RandomState::new().hash_one(())
}

/// Why there is no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operating system gives no random numbers")]
pub struct NoRandomness;

/// A secret that cannot be guessed.
pub fn secret() -> Result<[u8; 32], NoRandomness> {
    let mut secret = [0; 32];
    aws_lc_rs::rand::fill(&mut secret).map_err(|_| NoRandomness)?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rouse_core::random::Random;

    use super::*;

    const WORKERS: u64 = 8;
    const NUMBERS: usize = 20_000;

    /// The numbers of eight workers, each drawn on a thread of its own.
    fn numbers(generator: fn(u64) -> Random) -> Vec<Vec<u64>> {
        let start = |number| {
            let draw = move || {
                let mut random = generator(number);
                (0..NUMBERS).map(|_| random.next_u64()).collect()
            };
            std::thread::spawn(draw)
        };
        let threads: Vec<_> = (0..WORKERS).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    /// How many of the numbers occur more than once, over all workers.
    fn repeated(all: &[Vec<u64>]) -> usize {
        let distinct: HashSet<&u64> = all.iter().flatten().collect();
        all.iter().flatten().count() - distinct.len()
    }

    /// In how many percent of picks between two pods two workers agree, with a lag of up to 16 numbers: the maximum of all
    /// pairs.
    fn agreement(all: &[Vec<u64>]) -> usize {
        let share = |one: &[u64], other: &[u64]| {
            let agree = one.iter().zip(other).filter(|(one, other)| **one >> 63 == **other >> 63).count();
            agree * 100 / one.len()
        };
        let pairs = all
            .iter()
            .enumerate()
            .flat_map(|(place, one)| all.iter().skip(place + 1).map(move |it| (one, it)));
        let shifted = pairs.flat_map(|(one, other)| (0..16).map(move |lag| share(&one[lag..], other)));
        shifted.max().unwrap()
    }

    #[test]
    fn no_worker_repeats_the_numbers_of_another_nor_picks_as_it_does() {
        let all = numbers(|_| Random::new(system_seed()));
        assert_eq!(repeated(&all), 0);
        assert!(agreement(&all) < 55, "{}", agreement(&all));
        // The test must detect seeds that are spaced by the generator's own step.
        let spaced =
            numbers(|number| Random::new(7_u64.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))));
        assert!(repeated(&spaced) > 0 && agreement(&spaced) > 98);
    }
}
