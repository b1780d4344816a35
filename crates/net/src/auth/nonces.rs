//! Remembers the nonces of signed requests, so that a recorded request is not accepted twice.

use std::collections::{BTreeMap, HashSet};

/// A number that a signer uses once.
pub(super) type Nonce = [u8; 16];

/// The nonces of one key, by the timestamp of their requests.
#[derive(Debug, Default)]
pub(super) struct Nonces {
    by_second: BTreeMap<u64, HashSet<Nonce>>,
    count: usize,
    /// The latest second whose nonces were forgotten. Requests of that time are refused even if the clock goes back.
    forgotten: Option<u64>,
}

/// Why a request is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NonceError {
    /// It was accepted before, or that cannot be told any more.
    Replayed,
    /// The limit is reached. None is forgotten early: that would allow replays.
    Full,
}

impl Nonces {
    /// Forgets the nonces of timestamps before `oldest`, which are refused by their age.
    pub(super) fn forget_before(&mut self, oldest: u64) {
        while let Some(entry) = self.by_second.first_entry().filter(|entry| *entry.key() < oldest) {
            let (second, nonces) = entry.remove_entry();
            self.count -= nonces.len();
            self.forgotten = self.forgotten.max(Some(second));
        }
    }

    /// Remembers a nonce, unless it is known or there are `limit` already.
    pub(super) fn remember(&mut self, timestamp: u64, nonce: Nonce, limit: usize) -> Result<(), NonceError> {
        if self.forgotten.is_some_and(|second| timestamp <= second)
            || self.by_second.get(&timestamp).is_some_and(|nonces| nonces.contains(&nonce))
        {
            return Err(NonceError::Replayed);
        }
        if self.count >= limit {
            return Err(NonceError::Full);
        }
        self.by_second.entry(timestamp).or_default().insert(nonce);
        self.count += 1;
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_memory_refuses_new_nonces_until_old_ones_are_forgotten() {
        let mut nonces = Nonces::default();
        assert_eq!(nonces.remember(10, [1; 16], 2), Ok(()));
        assert_eq!(nonces.remember(11, [2; 16], 2), Ok(()));
        assert_eq!(nonces.remember(12, [3; 16], 2), Err(NonceError::Full));
        assert_eq!(nonces.remember(10, [1; 16], 2), Err(NonceError::Replayed), "none was forgotten");
        nonces.forget_before(11);
        assert_eq!(nonces.remember(12, [3; 16], 2), Ok(()));
        assert_eq!(nonces.remember(12, [4; 16], 2), Err(NonceError::Full));
    }

    #[test]
    fn a_clock_that_goes_back_does_not_allow_a_replay() {
        let mut nonces = Nonces::default();
        nonces.remember(100, [1; 16], 20).unwrap();
        nonces.forget_before(200);
        nonces.forget_before(70);
        assert_eq!(nonces.remember(100, [1; 16], 20), Err(NonceError::Replayed));
        assert_eq!(nonces.remember(101, [1; 16], 20), Ok(()));
    }

    proptest! {
        #[test]
        fn no_request_is_accepted_twice_whatever_the_clock_does(
            steps in prop::collection::vec((0_u64..12, 0_u64..12, 0_u8..4), 1..200)
        ) {
            let (mut nonces, mut accepted) = (Nonces::default(), HashSet::new());
            for (oldest, timestamp, nonce) in steps {
                nonces.forget_before(oldest);
                if nonces.remember(timestamp, [nonce; 16], 20).is_ok() {
                    prop_assert!(accepted.insert((timestamp, nonce)));
                }
                prop_assert_eq!(nonces.count, nonces.by_second.values().map(HashSet::len).sum::<usize>());
                prop_assert!(nonces.count <= 20);
            }
        }
    }
}
