//! What a policy costs: cold starts, waits, and the time of pods.

use std::ops::AddAssign;

/// Sums over all services. Whole numbers, so that the order of services does not change them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Totals {
    /// How often a request had to wait for a pod. Those that wait for the same pod count once.
    pub(super) cold_starts: u64,
    /// How long requests waited, in sum.
    pub(super) waited_nanos: u128,
    /// The time of all pods, from the decision to start them to the decision to stop them.
    pub(super) pod_nanos: u128,
    /// The part of it in which no request needed the pod.
    pub(super) idle_pod_nanos: u128,
}

impl Totals {
    pub(super) fn waited_seconds(&self) -> f64 {
        seconds(self.waited_nanos)
    }

    pub(super) fn pod_minutes(&self) -> f64 {
        seconds(self.pod_nanos) / 60.0
    }

    pub(super) fn idle_pod_minutes(&self) -> f64 {
        seconds(self.idle_pod_nanos) / 60.0
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.cold_starts += other.cold_starts;
        self.waited_nanos += other.waited_nanos;
        self.pod_nanos += other.pod_nanos;
        self.idle_pod_nanos += other.idle_pod_nanos;
    }
}

/// Seconds, rounded to milliseconds.
fn seconds(nanos: u128) -> f64 {
    let millis = u64::try_from(nanos / 1_000_000).unwrap_or(u64::MAX);
    #[expect(clippy::cast_precision_loss, reason = "exact up to 285,000 years")]
    let seconds = millis as f64 / 1000.0;
    seconds
}
