//! The load of all services and routes, as all gateways report it: who is listed, who was heard when, and what each said last.
//!
//! A gateway sends the readings of its meters that have changed, and a heartbeat each second that says that all others have
//! not. So an idle service costs nothing, and whether a load is known depends on the gateway, not on the service.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::report::{CurrentLoad, LoadReport, REPORT_PERIOD, REPORT_TTL, Reporter};
use crate::load_meter::{LoadKey, LoadSample};
use crate::time::Moment;

/// The most services and routes of one reporter. More are refused, and it counts as silent, so that nothing is scaled down: one
/// reporter must not use up the memory of the others.
pub const MAX_KEYS: usize = 100_000;

/// The most reporters that are remembered after they are gone.
const MAX_FORGOTTEN: usize = 1024;

/// What one reporter sends: changed readings of its meters. Without any, it is a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadUpdate {
    /// Tells this run of the reporter's process from others: counters begin at zero with each.
    pub boot: u64,
    /// Whether it has the reading of every meter that ever had load. The first of a connection has.
    pub complete: bool,
    /// The readings. Their times are of the reporter's own clock.
    pub samples: Vec<LoadSample>,
}

/// The load of one service or route at one reporter since its last reading.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadChange {
    /// The service or route.
    pub key: LoadKey,
    /// Its load. `present` is that of this reporter.
    pub report: LoadReport,
    /// There were requests before, at an unknown time: the last one may have ended just now.
    pub unknown_past: bool,
}

/// What an update changed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadChanges {
    /// The services and routes whose load is new.
    pub changes: Vec<LoadChange>,
    /// How many readings were refused, since the reporter has too many services and routes.
    pub refused: usize,
}

/// The load of all services and routes.
#[derive(Debug, Clone)]
pub struct LoadTable {
    began: Moment,
    reporters: BTreeMap<Reporter, ReporterLoad>,
    /// The run of each reporter that was forgotten. If it comes back, its counters have a past that was taken already.
    forgotten: BTreeMap<Reporter, u64>,
}

/// What one reporter has said.
#[derive(Debug, Clone, Default)]
struct ReporterLoad {
    /// Serving, as its `EndpointSlice` says. One that is not listed counts while it is fresh: the first request of a new
    /// gateway may arrive before its slice.
    listed: bool,
    heard: Option<Moment>,
    /// Readings were refused: its load is not known until it sends all of it and nothing is refused.
    overflowed: bool,
    boot: u64,
    samples: HashMap<LoadKey, LoadSample>,
}

impl ReporterLoad {
    fn is_fresh(&self, now: Moment) -> bool {
        !self.overflowed && self.heard.is_some_and(|heard| now < heard + REPORT_TTL)
    }

    fn present(&self, key: &LoadKey) -> CurrentLoad {
        self.samples.get(key).map(CurrentLoad::from).unwrap_or_default()
    }
}

impl LoadTable {
    /// A table that knows no reporter.
    pub fn new(began: Moment) -> Self {
        Self { began, reporters: BTreeMap::new(), forgotten: BTreeMap::new() }
    }

    /// Replaces the list of reporters that serve. Returns the services and routes of those that are gone and had load.
    pub fn list(&mut self, now: Moment, serving: impl IntoIterator<Item = Reporter>) -> Vec<LoadKey> {
        for reporter in self.reporters.values_mut() {
            reporter.listed = false;
        }
        for reporter in serving {
            self.reporters.entry(reporter).or_default().listed = true;
        }
        self.forget(|reporter| !reporter.listed && !reporter.is_fresh(now))
    }

    /// Takes what a reporter sent.
    pub fn heard(&mut self, now: Moment, from: &Reporter, update: LoadUpdate) -> LoadChanges {
        let lived = now.since(self.began);
        let returned = self.forgotten.remove(from) == Some(update.boot);
        let reporter = self.reporters.entry(from.clone()).or_default();
        let silence = reporter.heard.replace(now).map(|heard| now.since(heard)).unwrap_or_default();
        let mut all = LoadChanges::default();
        let mut before = std::mem::take(&mut reporter.samples);
        if reporter.boot != update.boot {
            reporter.boot = update.boot;
            end(before.drain(), &mut all.changes);
        }
        if !update.complete {
            std::mem::swap(&mut reporter.samples, &mut before);
        }
        for sample in update.samples {
            let last = before.remove(&sample.key).or_else(|| reporter.samples.remove(&sample.key));
            if reporter.samples.len() >= MAX_KEYS {
                all.refused += 1;
                continue;
            }
            let base = last.unwrap_or_else(|| base(&sample, update.complete, lived, returned));
            let (report, key) = (LoadReport::after_silence(&base, &sample, silence), sample.key.clone());
            let unknown_past = base.present == 0 && base.requests > 0 && base.at == sample.at;
            all.changes.push(LoadChange { key, report, unknown_past });
            reporter.samples.insert(sample.key.clone(), sample);
        }
        // A complete update leaves out what is gone.
        end(before.drain(), &mut all.changes);
        reporter.overflowed = all.refused > 0 || (reporter.overflowed && !update.complete);
        all
    }

    /// The reporters that serve.
    pub fn listed(&self) -> impl Iterator<Item = &Reporter> {
        self.reporters.iter().filter(|(_, reporter)| reporter.listed).map(|(name, _)| name)
    }

    /// The listed reporters whose load is known, and when each was heard last.
    pub fn fresh(&self, now: Moment) -> impl Iterator<Item = (&Reporter, Moment)> {
        let fresh =
            self.reporters.iter().filter(move |(_, reporter)| reporter.listed && reporter.is_fresh(now));
        fresh.filter_map(|(name, reporter)| Some((name, reporter.heard?)))
    }

    /// Whether the load at a reporter is known.
    pub fn is_fresh(&self, now: Moment, from: &Reporter) -> bool {
        self.reporters.get(from).is_some_and(|reporter| reporter.is_fresh(now))
    }

    /// The present load of a service or route, at one reporter.
    pub fn present_at(&self, from: &Reporter, key: &LoadKey) -> CurrentLoad {
        self.reporters.get(from).map(|reporter| reporter.present(key)).unwrap_or_default()
    }

    /// The present load of a service or route, at all reporters.
    pub fn present(&self, key: &LoadKey) -> CurrentLoad {
        let all = self.reporters.values().map(|reporter| reporter.present(key));
        all.fold(CurrentLoad::default(), CurrentLoad::plus)
    }

    /// Forgets reporters. Returns what had load there.
    fn forget(&mut self, is_gone: impl Fn(&ReporterLoad) -> bool) -> Vec<LoadKey> {
        let mut had_load = Vec::new();
        let forgotten = &mut self.forgotten;
        self.reporters.retain(|name, reporter| {
            let gone = is_gone(reporter);
            if gone {
                let samples = reporter.samples.values().filter(|sample| sample.present > 0);
                had_load.extend(samples.map(|sample| sample.key.clone()));
                if forgotten.len() >= MAX_FORGOTTEN {
                    forgotten.pop_first();
                }
                forgotten.insert(name.clone(), reporter.boot);
            }
            !gone
        });
        had_load
    }
}

/// The reading before the first one of a meter.
///
/// Its counters were zero if we would know of anything earlier: the reporter started later than this table, or it has already
/// sent all that ever had load. Otherwise they may be of any time, and only the present load counts. So it is with one that was
/// forgotten and has `returned`: what it had before was taken then.
fn base(first: &LoadSample, complete: bool, lived: Duration, returned: bool) -> LoadSample {
    let none = LoadSample { present: 0, held: 0, ..first.clone() };
    if complete && (returned || first.at.since(Moment::ZERO) >= lived) {
        return none;
    }
    LoadSample { requests: 0, busy: Duration::ZERO, at: first.at - REPORT_PERIOD, ..none }
}

/// The load of these readings has ended: their meters are gone.
fn end(samples: impl Iterator<Item = (LoadKey, LoadSample)>, changes: &mut Vec<LoadChange>) {
    for (key, _) in samples.filter(|(_, sample)| sample.present > 0) {
        changes.push(LoadChange { key, report: LoadReport::default(), unknown_past: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::ServiceId;

    #[test]
    fn a_reporter_of_more_than_is_kept_counts_as_silent_until_it_has_less() {
        let (gateway, at) = (Reporter::new("a"), Moment::from_secs);
        let update = |complete, keys: std::ops::Range<usize>| {
            let sample = |key: usize| LoadSample {
                key: LoadKey::Route(format!("shop/r{key}").into()),
                requests: 1,
                busy: Duration::ZERO,
                present: 0,
                held: 0,
                at: at(1),
            };
            LoadUpdate { boot: 7, complete, samples: keys.map(sample).collect() }
        };
        let mut table = LoadTable::new(at(0));
        table.list(at(0), [gateway.clone()]);
        assert_eq!(table.heard(at(1), &gateway, update(true, 0..MAX_KEYS)).refused, 0);
        assert!(table.is_fresh(at(1), &gateway));
        assert_eq!(table.heard(at(2), &gateway, update(false, MAX_KEYS..MAX_KEYS + 2)).refused, 2);
        assert!(!table.is_fresh(at(2), &gateway));
        // A heartbeat says nothing of what was refused.
        table.heard(at(3), &gateway, update(false, 0..0));
        assert!(!table.is_fresh(at(3), &gateway));
        table.heard(at(4), &gateway, update(true, 0..MAX_KEYS));
        assert!(table.is_fresh(at(4), &gateway));
    }

    #[test]
    fn the_requests_of_a_gateway_that_was_cut_off_are_no_burst() {
        let (gateway, at) = (Reporter::new("a"), Moment::from_secs);
        let sample = |requests, second| LoadSample {
            key: LoadKey::Route("shop/cart".into()),
            requests,
            busy: Duration::from_millis(100 * requests),
            present: 0,
            held: 0,
            at: at(second),
        };
        let update = |complete, samples| LoadUpdate { boot: 7, complete, samples };
        let mut table = LoadTable::new(at(0));
        table.list(at(0), [gateway.clone()]);
        table.heard(at(10), &gateway, update(true, vec![sample(10, 10)]));
        // Heartbeats, then two minutes without a connection.
        table.heard(at(60), &gateway, update(false, vec![]));
        let back = table.heard(at(180), &gateway, update(true, vec![sample(490, 180)]));
        let [change] = &back.changes[..] else { panic!("{back:?}") };
        assert_eq!((change.report.requests, change.report.span), (480, Duration::from_mins(2)));
        assert!((change.report.concurrency - 0.4).abs() < 1e-9, "{change:?}");
    }

    #[test]
    fn a_reporter_that_was_forgotten_and_comes_back_does_not_count_its_past_again() {
        let (gateway, at) = (Reporter::new("a"), Moment::from_secs);
        let key = LoadKey::Service(ServiceId::new("shop", "cart").unwrap());
        let update = |boot, requests, second| {
            let busy = Duration::from_secs(requests);
            let sample = LoadSample { key: key.clone(), requests, busy, present: 1, held: 0, at: at(second) };
            LoadUpdate { boot, complete: true, samples: vec![sample] }
        };
        let requests =
            |changes: &LoadChanges| changes.changes.iter().map(|it| it.report.requests).sum::<u64>();
        let mut table = LoadTable::new(at(0));
        table.list(at(10), [gateway.clone()]);
        // Its process is younger than the table: its first requests count.
        assert_eq!(requests(&table.heard(at(20), &gateway, update(7, 100, 5))), 100);
        // Cut off, and not serving for a while.
        table.list(at(60), []);
        table.list(at(4000), [gateway.clone()]);
        let back = table.heard(at(4001), &gateway, update(7, 180_000, 3986));
        assert_eq!(requests(&back), 0, "an hour of requests is not the load of a second");
        assert!(back.changes.iter().all(|change| change.unknown_past));
        assert_eq!(table.present(&key).total(), 1);
        assert_eq!(requests(&table.heard(at(4002), &gateway, update(7, 180_050, 3987))), 50);
        // A new process in the same pod begins at zero.
        table.list(at(4060), []);
        table.list(at(4070), [gateway.clone()]);
        assert_eq!(requests(&table.heard(at(4071), &gateway, update(8, 30, 2))), 30);
    }
}
