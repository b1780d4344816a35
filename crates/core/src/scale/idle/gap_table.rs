//! The idle gaps of one service that are remembered: a histogram on a logarithmic scale, in which old gaps fade.
//!
//! A gap is the time from the end of the last request to the next request. Each new gap makes the weight of all earlier ones
//! smaller, so the table has about the last fifty gaps, and a changed behaviour replaces an old one.

use std::time::Duration;

use super::start_time::StartTime;

/// How many buckets there are; a gap beyond the last edge is in the last.
pub(super) const BUCKETS: usize = 116;
/// The shortest gap that is remembered. Within a shorter time without load, a service is not idle: load is reported each
/// second.
pub const SHORTEST_GAP: Duration = Duration::from_secs(2);
/// How much of the weight of earlier gaps is left after another one.
const KEPT: f32 = 0.98;
/// A weight that does not matter any more.
const NOTHING: f32 = 0.001;

/// The length of what [`Autoscaler::learned`](crate::scale::Autoscaler::learned) returns.
pub const STATE_BYTES: usize = 64;
const VERSION: u8 = 1;
/// Version, start time, total weight (two bytes), check (two bytes).
const HEADER: usize = 6;
/// Steps of the total weight in bytes.
const TOTAL_STEPS: f32 = 1024.0;
/// The largest step of a weight relative to the largest weight: each step is a factor of √2.
const LARGEST_STEP: u8 = 15;

/// The lower edges of all buckets, in milliseconds; each is a tenth above the one before.
const EDGES: [u64; BUCKETS] = {
    let mut edges = [2000; BUCKETS];
    let mut n = 1;
    while n < BUCKETS {
        edges[n] = edges[n - 1] * 11 / 10;
        n += 1;
    }
    edges
};

/// The lower edge of a bucket. The upper edge is that of the next one, and for the last one a tenth more.
pub(super) fn edge(bucket: usize) -> Duration {
    let last = EDGES[BUCKETS - 1];
    Duration::from_millis(EDGES.get(bucket).copied().unwrap_or(last * 11 / 10))
}

/// The bucket of a gap.
pub(super) fn bucket_of(gap: Duration) -> usize {
    let millis = u64::try_from(gap.as_millis()).unwrap_or(u64::MAX);
    EDGES.partition_point(|edge| *edge <= millis).saturating_sub(1)
}

/// Why a state cannot be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadState {
    /// It has another length.
    #[error("expected {STATE_BYTES} bytes, found {0}")]
    Length(usize),
    /// It was written by another version of Rouse.
    #[error("expected version {VERSION}, found {0}")]
    Version(u8),
    /// The bytes are not those that were written.
    #[error("the bytes are damaged")]
    Damaged,
}

/// The remembered gaps.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GapTable {
    weights: [f32; BUCKETS],
}

impl Default for GapTable {
    fn default() -> Self {
        Self { weights: [0.0; BUCKETS] }
    }
}

impl GapTable {
    /// Remembers a gap.
    pub(super) fn add(&mut self, gap: Duration) {
        for weight in &mut self.weights {
            *weight = if *weight < NOTHING { 0.0 } else { *weight * KEPT };
        }
        self.weights[bucket_of(gap)] += 1.0;
    }

    /// The weight of each bucket: how many gaps it has, old ones counted as less than one.
    pub(super) fn weights(&self) -> &[f32; BUCKETS] {
        &self.weights
    }

    /// The weight of all gaps.
    pub(super) fn total(&self) -> f32 {
        self.weights.iter().sum()
    }

    /// The table and the start time, so that a restart does not forget them. Weights are rounded to a step of √2.
    pub(super) fn to_bytes(&self, start: StartTime) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        let most = self.weights.iter().copied().fold(0.0, f32::max);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to a range that both types hold"
        )]
        for (bucket, weight) in self.weights.iter().enumerate() {
            let below = (most / weight.max(NOTHING / 2.0)).log2() * 2.0;
            let step = (f32::from(LARGEST_STEP) - below).round().clamp(0.0, LARGEST_STEP.into()) as u8;
            let step = if *weight > 0.0 { step } else { 0 };
            bytes[HEADER + bucket / 2] |= step << (4 * (bucket % 2));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to a range that both types hold"
        )]
        let total = (self.total() * TOTAL_STEPS).round().clamp(0.0, u16::MAX.into()) as u16;
        bytes[0] = VERSION;
        bytes[1] = start.to_byte();
        bytes[2..4].copy_from_slice(&total.to_le_bytes());
        let check = check(&bytes);
        bytes[4..6].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads what [`GapTable::to_bytes`] wrote.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<(Self, StartTime), BadState> {
        let bytes: [u8; STATE_BYTES] = bytes.try_into().map_err(|_| BadState::Length(bytes.len()))?;
        if bytes[0] != VERSION {
            return Err(BadState::Version(bytes[0]));
        }
        let [_, start, low, high, ..] = bytes;
        if check(&bytes).to_le_bytes() != bytes[4..6] {
            return Err(BadState::Damaged);
        }
        let mut table = Self::default();
        for (bucket, weight) in table.weights.iter_mut().enumerate() {
            let step = (bytes[HEADER + bucket / 2] >> (4 * (bucket % 2))) & LARGEST_STEP;
            if step > 0 {
                *weight = (-f32::from(LARGEST_STEP - step) / 2.0).exp2();
            }
        }
        let scale = f32::from(u16::from_le_bytes([low, high])) / TOTAL_STEPS / table.total();
        if scale.is_finite() {
            table.weights.iter_mut().for_each(|weight| *weight *= scale);
        }
        Ok((table, StartTime::from_byte(start)))
    }
}

/// A sum over all bytes but its own (FNV-1a, folded): it tells what was written from what was not.
fn check(bytes: &[u8; STATE_BYTES]) -> u16 {
    let own = 4..6;
    let others = bytes.iter().enumerate().filter(|(at, _)| !own.contains(at));
    let hash =
        others.fold(0x811c_9dc5_u32, |hash, (_, byte)| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    let [a, b, c, d] = hash.to_le_bytes();
    u16::from_le_bytes([a ^ c, b ^ d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_is_a_tenth_wide_and_has_the_gaps_between_its_edges() {
        assert_eq!((edge(0), bucket_of(Duration::ZERO)), (SHORTEST_GAP, 0));
        for bucket in 1..BUCKETS {
            let (from, to) = (edge(bucket), edge(bucket + 1));
            let ratio = to.as_secs_f64() / from.as_secs_f64();
            assert!((1.0995..=1.1).contains(&ratio), "{ratio}");
            assert_eq!(bucket_of(from), bucket);
            assert_eq!(bucket_of(from.saturating_sub(Duration::from_nanos(1))), bucket - 1);
        }
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
        assert!(edge(BUCKETS - 1) > Duration::from_hours(24), "{:?}", edge(BUCKETS - 1));
    }

    #[test]
    fn old_gaps_fade() {
        let mut table = GapTable::default();
        (0..1000).for_each(|_| table.add(Duration::from_mins(1)));
        assert!((49.9..50.1).contains(&table.total()), "{}", table.total());
        (0..50).for_each(|_| table.add(Duration::from_mins(30)));
        let (old, new) = (bucket_of(Duration::from_mins(1)), bucket_of(Duration::from_mins(30)));
        assert!(table.weights()[old] < table.weights()[new]);
        (0..1000).for_each(|_| table.add(Duration::from_mins(30)));
        assert!(table.weights()[old] <= 0.0);
    }
}
