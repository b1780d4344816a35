//! Sliding load windows of the autoscaler: a ring of one-second buckets that sums the load of all reporters.
//!
//! A window ends at the newest report, not now: the load since then is unknown, not zero. So averages change only when a
//! report arrives. A window covers the started second of the newest report and whole seconds before it: 60 s means "more
//! than 59 s, at most 60 s". With several reporters, those that reported earlier lack up to one report period, so an
//! average may be too low by that share of the window.

use std::time::Duration;

use super::policy::Milli;
use crate::time::Moment;

const SECOND: u64 = 1_000_000_000;

/// The load of one second.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    /// Concurrency × time, in thousandths of a request × nanoseconds.
    busy: u128,
    requests: u128,
}

/// The last `buckets.len()` seconds up to the newest report.
#[derive(Debug, Clone)]
pub(super) struct Window {
    /// Second `n` since the clock's origin is at `n % len`.
    buckets: Vec<Bucket>,
    newest: u64,
    /// The end of the newest report.
    end: Moment,
    busy: Option<Busy>,
}

/// The period with load that the window covers.
#[derive(Debug, Clone, Copy)]
struct Busy {
    /// The start of averages. An average that included the idle time before the first request would hide a burst on a
    /// service at zero.
    start: Moment,
    /// The last second that had load.
    last: u64,
}

/// The second that a report ending at `end` belongs to: a report at 10.0 s belongs to second 9.
fn second_up_to(end: Moment) -> u64 {
    end.as_nanos().saturating_sub(1) / SECOND
}

fn start_of(second: u64) -> Moment {
    Moment::from_secs(second)
}

impl Window {
    pub(super) fn new(length: Duration) -> Self {
        let buckets = usize::try_from(length.as_secs()).unwrap_or(usize::MAX).clamp(1, 3600);
        Self { buckets: vec![Bucket::default(); buckets], newest: 0, end: Moment::ZERO, busy: None }
    }

    /// The same load in a ring of another length.
    pub(super) fn resized(&self, length: Duration) -> Self {
        let mut other = Self::new(length);
        other.newest = self.newest;
        other.end = self.end;
        let known = self.oldest().max(other.oldest());
        for second in known..=self.newest {
            *other.bucket(second) = self.buckets[self.index(second)];
        }
        // The load that the shorter ring dropped is unknown, not zero.
        let since = start_of(known);
        other.busy = self.busy.filter(|busy| busy.last >= known);
        other.busy = other.busy.map(|busy| Busy { start: busy.start.max(since), ..busy });
        other
    }

    /// Spreads a report evenly over the span that ends at `end`. The part that the ring no longer covers is dropped.
    pub(super) fn record(&mut self, end: Moment, span: Duration, concurrency: Milli, requests: u64) {
        let end = end.max(self.end).max(Moment::from_nanos(1));
        self.advance(end);
        if concurrency.get() == 0 && requests == 0 {
            return;
        }
        let start = end - span.max(Duration::from_nanos(1));
        self.extend_busy(start);
        let nanos = |moment: Moment| u128::from(moment.as_nanos().saturating_sub(start.as_nanos()));
        // Cumulative, so that rounding loses no request.
        let so_far = |moment: Moment| u128::from(requests) * nanos(moment) / nanos(end).max(1);
        for second in self.oldest().max(start.as_nanos() / SECOND)..=self.newest {
            let from = start_of(second).max(start);
            let to = start_of(second.saturating_add(1)).min(end);
            let bucket = self.bucket(second);
            let busy = concurrency.get() * (nanos(to) - nanos(from));
            bucket.busy = bucket.busy.saturating_add(busy);
            bucket.requests = bucket.requests.saturating_add(so_far(to) - so_far(from));
        }
    }

    /// The load of the last `length`, which is at most the length of the ring.
    pub(super) fn over(&self, length: Duration) -> WindowLoad {
        let first = self.newest.saturating_sub(length.as_secs().saturating_sub(1)).max(self.oldest());
        let mut load = WindowLoad { busy: 0, requests: 0, nanos: 0 };
        for second in first..=self.newest {
            let bucket = self.buckets[self.index(second)];
            load.busy = load.busy.saturating_add(bucket.busy);
            load.requests = load.requests.saturating_add(bucket.requests);
        }
        let start = self.busy.map_or(start_of(first), |busy| busy.start.max(start_of(first)));
        // At least a second: otherwise one short request in a short span would look like a large load.
        load.nanos = self.end.since(start).as_nanos().max(SECOND.into());
        load
    }

    /// Whether any second that the ring covers had load.
    pub(super) fn has_load(&self) -> bool {
        self.busy.is_some_and(|busy| busy.last >= self.oldest())
    }

    fn extend_busy(&mut self, start: Moment) {
        let start = match self.busy {
            Some(busy) if busy.last >= self.oldest() => busy.start.min(start),
            _ => start,
        };
        self.busy = Some(Busy { start, last: self.newest });
    }

    fn advance(&mut self, end: Moment) {
        let newest = second_up_to(end);
        let stale = newest.saturating_sub(self.newest).min(self.buckets.len() as u64);
        for second in (newest - stale..newest).map(|second| second + 1) {
            *self.bucket(second) = Bucket::default();
        }
        self.newest = newest;
        self.end = end;
    }

    fn oldest(&self) -> u64 {
        self.newest.saturating_sub(self.buckets.len() as u64 - 1)
    }

    fn index(&self, second: u64) -> usize {
        usize::try_from(second % self.buckets.len() as u64).unwrap_or_default()
    }

    fn bucket(&mut self, second: u64) -> &mut Bucket {
        let index = self.index(second);
        &mut self.buckets[index]
    }
}

/// The load of one window.
#[derive(Debug, Clone, Copy)]
pub(super) struct WindowLoad {
    busy: u128,
    requests: u128,
    nanos: u128,
}

impl WindowLoad {
    /// The average concurrency, in pods with `target` requests each.
    pub(super) fn concurrency(self, target: Milli) -> Demand {
        Demand { load: self.busy, per_pod: self.nanos.saturating_mul(target.get()) }
    }

    /// The requests per second.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53 for any window, and only shown")]
    pub(super) fn per_second(self) -> f64 {
        self.requests as f64 * SECOND as f64 / self.nanos.max(1) as f64
    }

    /// The request rate, in pods with `target` requests per second each.
    pub(super) fn rate(self, target: Milli) -> Demand {
        let load = self.requests.saturating_mul(1000).saturating_mul(SECOND.into());
        Demand { load, per_pod: self.nanos.saturating_mul(target.get()) }
    }
}

/// A load in pods, as an exact fraction: rounding errors of a float would sometimes add a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    load: u128,
    per_pod: u128,
}

impl Demand {
    /// `requests` concurrent requests, with `room` for each pod.
    pub(super) fn of(requests: u64, room: Milli) -> Self {
        Self { load: u128::from(requests) * 1000, per_pod: room.get() }
    }

    /// The number of pods, rounded up.
    pub(super) fn pods(self) -> u32 {
        u32::try_from(self.load.div_ceil(self.per_pod.max(1))).unwrap_or(u32::MAX)
    }

    /// Whether the load is at least `percent` of the capacity of `pods`.
    pub(super) fn reaches(self, percent: u32, pods: u32) -> bool {
        let capacity = self.per_pod.saturating_mul(u128::from(percent) * u128::from(pods));
        self.load > 0 && self.load.saturating_mul(100) >= capacity
    }
}
