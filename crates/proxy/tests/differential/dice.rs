//! Randomness that is passed in: the same seed throws the same numbers for ever.

/// A splitmix generator.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    /// Dice of their own for each part of each case, so that leaving one part out changes no other.
    pub(crate) fn new(seed: u64, part: u64) -> Self {
        let mut dice = Self(seed ^ part.wrapping_mul(0xd134_2543_de82_ef95));
        dice.throw();
        dice
    }

    pub(crate) fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `end`; 0 if there is nothing less.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.throw() % end.max(1) as u64).unwrap()
    }

    pub(crate) fn percent(&mut self, of_hundred: usize) -> bool {
        self.below(100) < of_hundred
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.throw().to_le_bytes()[0]
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}
