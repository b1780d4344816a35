//! What a service does while it is idle: the plan that costs least on average, by the gaps of the past.
//!
//! The cost of a gap is the time of an idle pod, and the cost of a cold start if the request that ends the gap meets none. The
//! next gap is expected to be like one of those in the table, or, with the weight of one gap, of any length: equally likely on
//! every scale. Without the latter, few gaps would be trusted too much.

use std::time::Duration;

use super::gap_table::{BUCKETS, GapTable, edge};

/// The weight of the gap of any length.
const UNKNOWN_GAPS: f64 = 1.0;
/// The fewest gaps for which a pod is started ahead of a request, by weight: two, one of them not quite new.
const FEWEST_HITS: f64 = 1.5;
/// The shortest time away. Stopping and starting a pod for less saves nothing.
const SHORTEST_AWAY: Duration = Duration::from_secs(10);

/// When a service has pods while it is idle. Times count from the begin of the gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdlePlan {
    /// It stays warm at first, this long. [`SHORTEST_GAP`](super::SHORTEST_GAP): it goes to zero at once.
    pub stay: Duration,
    /// Then it is away until it comes back for this window, if there is one.
    pub back: Option<WarmWindow>,
}

/// A time during a gap in which a pod is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmWindow {
    /// The pod is ready from then on.
    pub from: Duration,
    /// It goes if there was no request until then.
    pub to: Duration,
}

impl IdlePlan {
    /// Warm for `after`, and then away.
    pub(super) fn fixed(after: Duration) -> Self {
        Self { stay: after, back: None }
    }
}

/// The costs of idle plans, by the gaps in a table.
pub(super) struct CostModel {
    /// What a cold start costs, in seconds of an idle pod.
    cold_start: f64,
    /// How long a pod takes to start, in seconds.
    start: f64,
    /// The probability that a gap is at least as long as the lower edge of a bucket.
    longer: [f64; BUCKETS + 1],
    /// The average time of a pod that is warm from the begin of the gap to the lower edge of a bucket, in seconds.
    warm: [f64; BUCKETS + 1],
    weights: [f64; BUCKETS],
}

impl CostModel {
    pub(super) fn new(table: &GapTable, cold_start: Duration, start: Duration) -> Self {
        let weights = table.weights().map(f64::from);
        #[expect(clippy::cast_precision_loss, reason = "a small constant")]
        let unknown = UNKNOWN_GAPS / BUCKETS as f64;
        let total = f64::from(table.total()) + UNKNOWN_GAPS;
        let mut longer = [0.0; BUCKETS + 1];
        for bucket in (0..BUCKETS).rev() {
            longer[bucket] = longer[bucket + 1] + (weights[bucket] + unknown) / total;
        }
        let mut warm = [0.0; BUCKETS + 1];
        // No gap ends before the first edge.
        warm[0] = edge(0).as_secs_f64();
        for bucket in 0..BUCKETS {
            let width = edge(bucket + 1).saturating_sub(edge(bucket)).as_secs_f64();
            // Gaps that end within the bucket do so at half of it, on average.
            warm[bucket + 1] = warm[bucket] + width * f64::midpoint(longer[bucket], longer[bucket + 1]);
        }
        let (cold_start, start) = (cold_start.as_secs_f64(), start.as_secs_f64());
        Self { cold_start, start, longer, warm, weights }
    }

    /// The plan that costs least.
    pub(super) fn cheapest(&self) -> IdlePlan {
        let windows = self.windows();
        let away = self.start.max(SHORTEST_AWAY.as_secs_f64()) + self.start;
        let mut best = (f64::NEG_INFINITY, IdlePlan::fixed(edge(0)));
        // The first window that may follow a stay.
        let mut next = 0;
        for stay in 0..BUCKETS {
            while next < BUCKETS && edge(next).as_secs_f64() < edge(stay).as_secs_f64() + away {
                next += 1;
            }
            let stays = self.gain(0, stay);
            for (gain, back) in [(stays, None), (stays + windows[next].0, windows[next].1)] {
                if gain > best.0 {
                    best = (gain, IdlePlan { stay: edge(stay), back });
                }
            }
        }
        best.1
    }

    /// For each bucket, the window that gains most of those that begin there or later.
    fn windows(&self) -> [(f64, Option<WarmWindow>); BUCKETS + 1] {
        let mut best = [(0.0, None); BUCKETS + 1];
        for first in (0..BUCKETS).rev() {
            best[first] = best[first + 1];
            // Where no gap has ended, no window begins or ends.
            if self.weights[first] <= 0.0 {
                continue;
            }
            let mut hits = 0.0;
            for last in (first..BUCKETS).filter(|bucket| self.weights[*bucket] > 0.0) {
                hits += self.weights[last];
                let gain = self.gain(first, last + 1) - self.start * self.longer[first];
                if hits >= FEWEST_HITS && gain > best[first].0 {
                    best[first] = (gain, Some(WarmWindow { from: edge(first), to: edge(last + 1) }));
                }
            }
        }
        best
    }

    /// What it saves to be warm from the lower edge of one bucket to that of another.
    fn gain(&self, from: usize, to: usize) -> f64 {
        self.cold_start * (self.longer[from] - self.longer[to]) - (self.warm[to] - self.warm[from])
    }

    /// The average cost of a gap, in time of an idle pod.
    pub(super) fn cost(&self, plan: IdlePlan) -> Duration {
        let (mut idle, mut met) = (self.warm_until(plan.stay), 1.0 - self.longer_than(plan.stay));
        if let Some(WarmWindow { from, to }) = plan.back {
            idle += self.warm_until(to) - self.warm_until(from) + self.start * self.longer_than(from);
            met += self.longer_than(from) - self.longer_than(to);
        }
        let cost = idle + self.cold_start * (1.0 - met).max(0.0);
        Duration::try_from_secs_f64(cost).unwrap_or_default()
    }

    fn longer_than(&self, time: Duration) -> f64 {
        between(&self.longer, 1.0, time)
    }

    fn warm_until(&self, time: Duration) -> f64 {
        between(&self.warm, 0.0, time)
    }
}

/// The value of a function at `time` that is known at the edges, and `begin` at zero.
fn between(at_edges: &[f64; BUCKETS + 1], begin: f64, time: Duration) -> f64 {
    let after = (0..=BUCKETS).find(|bucket| edge(*bucket) >= time).unwrap_or(BUCKETS);
    let (from, before) = match after {
        0 => (Duration::ZERO, begin),
        _ => (edge(after - 1), at_edges[after - 1]),
    };
    let into = time.min(edge(after)).saturating_sub(from).as_secs_f64();
    before + into / edge(after).saturating_sub(from).as_secs_f64() * (at_edges[after] - before)
}
