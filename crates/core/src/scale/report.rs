//! Load reports: which reporters the autoscaler knows, what they report, and what a missing report means.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::policy::Milli;
use crate::time::Moment;

/// Reporters that are kept apart per service. The load of one beyond it counts, but what it has present does
/// not; while more than that are listed, nothing is scaled down.
pub const MAX_REPORTERS: usize = 1024;
/// A report is news for this long: three report periods of one second.
pub const REPORT_TTL: Duration = Duration::from_secs(3);
/// More than any reporter can have served in one window.
const MOST_REQUESTS: u64 = 1_000_000_000;

/// One that reports load: a gateway (by pod UID) or an Envoy (by node id).
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

/// What one reporter saw of one service since its last report. Pushed when something comes after nothing, and
/// every second otherwise.
///
/// From the network: any value is accepted, none is believed without bounds. A report that is delivered twice
/// counts twice, for one window.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LoadReport {
    /// How long ago the last report was.
    pub span: Duration,
    /// Average concurrency over the span, weighted by time, with everything in [`CurrentLoad`]. Capped at a
    /// million; in place of NaN or infinity stands what is present.
    pub concurrency: f64,
    /// Requests that began in the span, however short.
    pub requests: u64,
    /// What is there now.
    pub present: CurrentLoad,
}

impl LoadReport {
    pub(super) fn concurrency(&self) -> Milli {
        Milli::new(self.concurrency).unwrap_or_else(|| Milli::whole(self.present.total()))
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.min(MOST_REQUESTS)
    }

    /// Whether anything at all happened, or still does.
    pub(super) fn is_active(&self) -> bool {
        self.concurrency().get() > 0 || self.requests > 0 || self.present.total() > 0
    }

    /// Whether a request needs the service. Requests that a leaving pod finishes do not count.
    pub(super) fn asks(&self) -> bool {
        self.requests > 0 || self.present.holds > 0
    }
}

/// What is there at one moment. Each request is counted in one field only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CurrentLoad {
    /// Requests that a pod works on.
    pub in_flight: u32,
    /// Requests that wait for a pod.
    pub holds: u32,
    /// Open streams.
    pub streams: u32,
    /// Upgraded connections.
    pub upgraded: u32,
}

impl CurrentLoad {
    /// All of them.
    pub fn total(self) -> u64 {
        [self.in_flight, self.holds, self.streams, self.upgraded].map(u64::from).iter().sum()
    }

    fn plus(self, other: Self) -> Self {
        Self {
            in_flight: self.in_flight.saturating_add(other.in_flight),
            holds: self.holds.saturating_add(other.holds),
            streams: self.streams.saturating_add(other.streams),
            upgraded: self.upgraded.saturating_add(other.upgraded),
        }
    }
}

/// There are more reporters than [`MAX_REPORTERS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_REPORTERS} reporters: load counts, but what the rest have in flight is not known")]
pub struct TooManyReporters;

/// Why we cannot know that there is no load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UnknownLoad {
    NoReporters,
    TooMany,
    Silent(Reporter),
}

#[derive(Debug, Clone, Copy)]
struct ReporterState {
    /// Listed as serving. One that is not listed counts while its news is fresh: a new gateway's first
    /// request may come before its `EndpointSlice` does.
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

/// All reporters that are listed, or that reported lately.
#[derive(Debug, Clone, Default)]
pub(super) struct Reporters {
    voices: BTreeMap<Reporter, ReporterState>,
    too_many: bool,
}

impl Reporters {
    pub(super) fn hear(
        &mut self,
        now: Moment,
        from: &Reporter,
        present: CurrentLoad,
    ) -> Result<(), TooManyReporters> {
        let last = Some((now, present));
        if let Some(voice) = self.voices.get_mut(from) {
            voice.last = last;
            return Ok(());
        }
        if self.voices.len() >= MAX_REPORTERS {
            self.forget_stale(now);
        }
        if self.voices.len() >= MAX_REPORTERS {
            return Err(TooManyReporters);
        }
        self.voices.insert(from.clone(), ReporterState { listed: false, last });
        Ok(())
    }

    /// Replaces the list. Returns the load of the reporters that are no longer on it.
    pub(super) fn list(&mut self, now: Moment, serving: impl IntoIterator<Item = Reporter>) -> CurrentLoad {
        self.forget_stale(now);
        let mut before = std::mem::take(&mut self.voices);
        self.too_many = false;
        for reporter in serving {
            if self.voices.contains_key(&reporter) {
                continue;
            }
            if self.voices.len() >= MAX_REPORTERS {
                self.too_many = true;
                break;
            }
            let last = before.remove(&reporter).and_then(|voice| voice.last);
            self.voices.insert(reporter, ReporterState { listed: true, last });
        }
        before.into_values().map(ReporterState::present).fold(CurrentLoad::default(), CurrentLoad::plus)
    }

    pub(super) fn forget_stale(&mut self, now: Moment) {
        self.voices.retain(|_, voice| voice.listed || voice.is_fresh(now));
    }

    pub(super) fn present(&self) -> CurrentLoad {
        self.voices.values().copied().map(ReporterState::present).fold(CurrentLoad::default(), CurrentLoad::plus)
    }

    pub(super) fn is_full(&self) -> Result<(), TooManyReporters> {
        if self.too_many { Err(TooManyReporters) } else { Ok(()) }
    }

    pub(super) fn blindness(&self, now: Moment) -> Option<UnknownLoad> {
        if self.too_many {
            return Some(UnknownLoad::TooMany);
        }
        let mut listed = self.voices.iter().filter(|(_, voice)| voice.listed).peekable();
        if listed.peek().is_none() {
            return Some(UnknownLoad::NoReporters);
        }
        let silent = listed.find(|(_, voice)| !voice.is_fresh(now));
        silent.map(|(reporter, _)| UnknownLoad::Silent(reporter.clone()))
    }

    /// When the news of each grows old.
    pub(super) fn expiries(&self) -> impl Iterator<Item = Moment> {
        self.voices.values().filter_map(|voice| voice.last).map(|(at, _)| at + REPORT_TTL)
    }
}
