//! A byte pattern that depends on the offset: lost, doubled and swapped bytes show without a copy of the body.

use std::sync::LazyLock;

use bytes::Bytes;

/// A prime, so that no block of a usual size looks like its neighbour.
const PERIOD: usize = 65_521;
const CHUNK: usize = 64 * 1024;

static TABLE: LazyLock<Bytes> = LazyLock::new(|| {
    let mut word: u32 = 0x9e37_79b9;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        word.to_le_bytes()[0]
    };
    let period: Vec<u8> = (0..PERIOD).map(|_| next()).collect();
    period.iter().chain(&period).chain(&period[..CHUNK - PERIOD]).copied().collect()
});

/// Up to `most` bytes of the pattern from `offset`: at least one, without a copy.
pub fn at(offset: u64, most: u64) -> Bytes {
    let start = start(offset);
    let len = usize::try_from(most).unwrap_or(CHUNK).min(CHUNK);
    TABLE.slice(start..start + len)
}

/// The first `len` bytes.
pub fn whole(len: usize) -> Bytes {
    (0..len).map(|at| TABLE[at % PERIOD]).collect()
}

fn start(offset: u64) -> usize {
    usize::try_from(offset % PERIOD as u64).unwrap_or_default()
}

/// Compares received bytes with the pattern.
#[derive(Debug, Default, Clone, Copy)]
pub struct Checker {
    /// How many bytes were received.
    pub count: u64,
    differs: bool,
}

impl Checker {
    /// The next bytes.
    pub fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let expected = at(self.count, bytes.len() as u64);
            let (now, later) = bytes.split_at(expected.len());
            self.differs |= now != expected;
            self.count += now.len() as u64;
            bytes = later;
        }
    }

    /// Whether all received bytes match the pattern.
    pub fn intact(&self) -> bool {
        !self.differs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swapped_block_is_seen() {
        let all = whole(3 * CHUNK);
        let mut right = Checker::default();
        right.take(&all);
        assert!(right.intact());
        assert_eq!(right.count, 3 * CHUNK as u64);
        let mut wrong = Checker::default();
        wrong.take(&all[CHUNK..2 * CHUNK]);
        assert!(!wrong.intact());
    }
}
