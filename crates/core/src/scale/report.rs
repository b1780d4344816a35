//! Load reports: their contents, the known reporters, and why missing reports prevent a scale-down.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::policy::Milli;
use crate::load_meter::LoadSample;
use crate::time::Moment;

/// The most reporters per service. Beyond that, a reporter's load counts, but its requests in flight do not. While more are
/// listed, nothing is scaled down.
pub const MAX_REPORTERS: usize = 1024;
/// How often load is reported while there is some.
pub const REPORT_PERIOD: Duration = Duration::from_secs(1);
/// How long a report is fresh: three report periods.
pub const REPORT_TTL: Duration = Duration::from_secs(3);
/// Limits the request count of an untrusted report. No reporter serves this many in one window.
const MOST_REQUESTS: u64 = 1_000_000_000;

/// The sender of load reports: a gateway (by pod UID) or an Envoy (by node id).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reporter(Arc<str>);

impl Reporter {
    /// The reporter called `name`.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The load of one service at one reporter since its last report. Sent when load begins after idleness, and every second
/// otherwise.
///
/// Reports come from the network: any value is accepted, and limited. A report that is delivered twice counts twice, for
/// one window.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LoadReport {
    /// The time since the last report.
    pub span: Duration,
    /// Average concurrency over the span, weighted by time, of everything in [`CurrentLoad`]. Limited to a million; NaN and
    /// infinity are replaced by the current load.
    pub concurrency: f64,
    /// Requests that began in the span.
    pub requests: u64,
    /// The current load.
    pub present: CurrentLoad,
}

impl LoadReport {
    /// The load between two readings of one meter.
    ///
    /// If there was no load at the first reading, the load began at most one [`REPORT_PERIOD`] before the second: a meter that
    /// has load is read that often. Spread over the whole time in between, a burst after an hour of silence would vanish.
    pub fn between(before: &LoadSample, after: &LoadSample) -> Self {
        Self::after_silence(before, after, Duration::ZERO)
    }

    /// The same for a reporter that was not heard for `silence`: its load is spread over that time. As that of one period, all
    /// requests of a minute without a connection would be a burst.
    pub fn after_silence(before: &LoadSample, after: &LoadSample, silence: Duration) -> Self {
        let elapsed = after.at.since(before.at);
        let span = if before.present == 0 { elapsed.min(silence.max(REPORT_PERIOD)) } else { elapsed };
        let busy = after.busy.saturating_sub(before.busy).as_secs_f64();
        let present = CurrentLoad::from(after);
        // Not a number if there is no span: the present load stands for the average.
        let concurrency = busy / span.as_secs_f64();
        Self { span, concurrency, requests: after.requests.saturating_sub(before.requests), present }
    }

    pub(super) fn concurrency(&self) -> Milli {
        Milli::new(self.concurrency).unwrap_or_else(|| Milli::whole(self.present.total()))
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.min(MOST_REQUESTS)
    }

    /// Whether the report has any load.
    pub(super) fn is_active(&self) -> bool {
        self.concurrency().get() > 0 || self.requests > 0 || self.present.total() > 0
    }

    /// Whether a request needs a pod. Requests that a leaving pod finishes do not count.
    pub(super) fn asks(&self) -> bool {
        self.requests > 0 || self.present.holds > 0
    }
}

/// The load at one moment. Each request is counted in one field only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CurrentLoad {
    /// Requests that a pod is processing.
    pub in_flight: u32,
    /// Requests that wait for a pod.
    pub holds: u32,
    /// Open streams.
    pub streams: u32,
    /// Upgraded connections.
    pub upgraded: u32,
}

impl From<&LoadSample> for CurrentLoad {
    fn from(sample: &LoadSample) -> Self {
        Self { in_flight: sample.present.saturating_sub(sample.held), holds: sample.held, ..Self::default() }
    }
}

impl CurrentLoad {
    /// The sum of all fields.
    pub fn total(self) -> u64 {
        [self.in_flight, self.holds, self.streams, self.upgraded].map(u64::from).iter().sum()
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            in_flight: self.in_flight.saturating_add(other.in_flight),
            holds: self.holds.saturating_add(other.holds),
            streams: self.streams.saturating_add(other.streams),
            upgraded: self.upgraded.saturating_add(other.upgraded),
        }
    }
}

/// There are more than [`MAX_REPORTERS`] reporters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "more than {MAX_REPORTERS} load reporters: the load of the others counts, but not their requests in flight"
)]
pub struct TooManyReporters;

/// Why the load may be higher than the reported load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UnknownLoad {
    NoReporters,
    TooMany,
    Silent(Reporter),
}

#[derive(Debug, Clone, Copy)]
struct ReporterState {
    /// Listed as serving. A reporter that is not listed counts while its report is fresh: the first request of a new gateway
    /// may arrive before its `EndpointSlice`.
    listed: bool,
    last: Option<(Moment, CurrentLoad)>,
}

impl ReporterState {
    fn is_fresh(self, now: Moment) -> bool {
        self.last.is_some_and(|(at, _)| now < at + REPORT_TTL)
    }

    fn present(self) -> CurrentLoad {
        self.last.map(|(_, present)| present).unwrap_or_default()
    }
}

/// All reporters that are listed or have a fresh report.
#[derive(Debug, Clone, Default)]
pub(super) struct Reporters {
    reporters: BTreeMap<Reporter, ReporterState>,
    too_many: bool,
}

impl Reporters {
    pub(super) fn record(
        &mut self,
        now: Moment,
        from: &Reporter,
        present: CurrentLoad,
    ) -> Result<(), TooManyReporters> {
        let last = Some((now, present));
        if let Some(reporter) = self.reporters.get_mut(from) {
            reporter.last = last;
            return Ok(());
        }
        if self.reporters.len() >= MAX_REPORTERS {
            self.forget_stale(now);
        }
        if self.reporters.len() >= MAX_REPORTERS {
            return Err(TooManyReporters);
        }
        self.reporters.insert(from.clone(), ReporterState { listed: false, last });
        Ok(())
    }

    /// Replaces the list. One that is no longer listed counts as long as its last report is fresh. Returns what those had that
    /// are forgotten.
    pub(super) fn list(&mut self, now: Moment, serving: impl IntoIterator<Item = Reporter>) -> CurrentLoad {
        self.forget_stale(now);
        let mut before = std::mem::take(&mut self.reporters);
        self.too_many = false;
        for reporter in serving {
            if self.reporters.contains_key(&reporter) {
                continue;
            }
            if self.reporters.len() >= MAX_REPORTERS {
                self.too_many = true;
                break;
            }
            let last = before.remove(&reporter).and_then(|reporter| reporter.last);
            self.reporters.insert(reporter, ReporterState { listed: true, last });
        }
        let mut forgotten = CurrentLoad::default();
        for (name, reporter) in before {
            if reporter.is_fresh(now) && self.reporters.len() < MAX_REPORTERS {
                self.reporters.insert(name, ReporterState { listed: false, ..reporter });
            } else {
                forgotten = forgotten.plus(reporter.present());
            }
        }
        forgotten
    }

    pub(super) fn forget_stale(&mut self, now: Moment) {
        self.reporters.retain(|_, reporter| reporter.listed || reporter.is_fresh(now));
    }

    pub(super) fn present(&self) -> CurrentLoad {
        self.reporters
            .values()
            .copied()
            .map(ReporterState::present)
            .fold(CurrentLoad::default(), CurrentLoad::plus)
    }

    pub(super) fn is_full(&self) -> Result<(), TooManyReporters> {
        if self.too_many { Err(TooManyReporters) } else { Ok(()) }
    }

    pub(super) fn unknown_load(&self, now: Moment) -> Option<UnknownLoad> {
        if self.too_many {
            return Some(UnknownLoad::TooMany);
        }
        let mut listed = self.reporters.iter().filter(|(_, reporter)| reporter.listed).peekable();
        if listed.peek().is_none() {
            return Some(UnknownLoad::NoReporters);
        }
        let silent = listed.find(|(_, reporter)| !reporter.is_fresh(now));
        silent.map(|(reporter, _)| UnknownLoad::Silent(reporter.clone()))
    }

    /// The oldest of the last reports of those that are listed.
    pub(super) fn oldest_report(&self) -> Option<Moment> {
        let listed = self.reporters.values().filter(|reporter| reporter.listed);
        listed.filter_map(|reporter| reporter.last).map(|(at, _)| at).min()
    }

    /// When each report stops being fresh.
    pub(super) fn expiries(&self) -> impl Iterator<Item = Moment> {
        self.reporters.values().filter_map(|reporter| reporter.last).map(|(at, _)| at + REPORT_TTL)
    }
}
