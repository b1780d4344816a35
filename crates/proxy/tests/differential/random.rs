//! The random generator of the cases: the same seed always gives the same numbers.

use rouse_core::random::Random;

/// The random generator of one part of a case.
#[derive(Debug, Clone)]
pub(crate) struct CaseRandom(Random);

impl CaseRandom {
    /// A generator for each part of each case, so that leaving one part out changes no other.
    pub(crate) fn new(seed: u64, part: u64) -> Self {
        let mut random = Self(Random::new(seed ^ part.wrapping_mul(0xd134_2543_de82_ef95)));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `end`; 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap()
    }

    pub(crate) fn percent(&mut self, of_hundred: usize) -> bool {
        self.below(100) < of_hundred
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}
