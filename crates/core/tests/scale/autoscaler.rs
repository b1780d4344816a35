//! The autoscaler: tables of cases, then ten thousand random histories against a naive model that keeps every fact and
//! computes each decision from all of them.

use std::time::Duration;

use proptest::prelude::*;
use rouse_core::scale::{
    Autoscaler, CurrentLoad, Decision, LoadReport, MAX_REPORTERS, ObservedTarget, Owner, REPORT_TTL,
    Reporter, STEP, ScalePolicy, ScaleReason, ScaleSettings, TooManyReporters, WAKE_TIMEOUT,
};
use rouse_core::time::Moment;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn at(n: u64) -> Moment {
    Moment::from_secs(n)
}

pub(crate) fn policy(settings: &ScaleSettings) -> ScalePolicy {
    ScalePolicy::try_from(settings).unwrap()
}

/// A target concurrency of 10 per pod, at most 20 pods.
fn ten() -> ScaleSettings {
    ScaleSettings { concurrency: Some(10.0), max: 20, ..ScaleSettings::default() }
}

fn pods(replicas: u32, ready: u32) -> ObservedTarget {
    ObservedTarget { replicas, ready, owner: Owner::Rouse, token: () }
}

/// A second with constant `concurrency`.
fn busy(concurrency: u32) -> LoadReport {
    let present = CurrentLoad { in_flight: concurrency, ..CurrentLoad::default() };
    LoadReport { span: SECOND, concurrency: concurrency.into(), requests: 0, present }
}

fn quiet() -> LoadReport {
    LoadReport { span: SECOND, ..LoadReport::default() }
}

/// One listed gateway, and pods that follow each decision at once.
struct Bench {
    scaler: Autoscaler,
    now: Moment,
    gateway: Reporter,
    replicas: u32,
}

impl Bench {
    /// A controller that has watched `replicas` ready pods for longer than any window, without load.
    fn old(settings: &ScaleSettings, replicas: u32) -> Self {
        let mut bench = Self::fresh(settings, replicas);
        let (watched, wanted) = (settings.stable_window.as_secs() + 1, replicas);
        for _ in 0..watched {
            drop(bench.second(quiet()));
            bench.replicas = wanted;
        }
        bench
    }

    fn fresh(settings: &ScaleSettings, replicas: u32) -> Self {
        let now = at(1000);
        let gateway = Reporter::new("gateway-1");
        let mut scaler = Autoscaler::new(policy(settings), now);
        scaler.list(now, [gateway.clone()]).unwrap();
        Self { scaler, now, gateway, replicas }
    }

    fn report(&mut self, report: LoadReport) {
        self.scaler.report(self.now, &self.gateway, &report).unwrap();
    }

    fn decide(&mut self) -> Decision {
        let decision = self.scaler.decide(self.now, pods(self.replicas, self.replicas));
        self.replicas = decision.desired;
        decision
    }

    /// One second on: a report, then a decision.
    fn second(&mut self, report: LoadReport) -> Decision {
        self.now = self.now + SECOND;
        self.report(report);
        self.decide()
    }

    fn seconds(&mut self, count: u64, report: LoadReport) -> Decision {
        for _ in 1..count {
            drop(self.second(report));
        }
        self.second(report)
    }
}

#[test]
fn every_bad_setting_is_named_at_once_with_its_value_and_what_is_allowed() {
    let bad = ScaleSettings {
        concurrency: Some(f64::NAN),
        rate: Some(-1.0),
        limit: 0,
        min: 5,
        max: 0,
        initial: 7,
        stable_window: Duration::from_millis(6500),
        panic_window: secs(7),
        panic_threshold: 100,
        max_scale_up_rate: 1.0,
        max_scale_down_rate: f64::INFINITY,
        idle_after: Duration::ZERO,
        ..ScaleSettings::default()
    };
    let error = ScalePolicy::try_from(&bad).unwrap_err();
    let named: Vec<_> = error.0.iter().map(|bad| (bad.field, bad.value.as_str())).collect();
    let expected = [
        ("max", "0"),
        ("min", "5"),
        ("initial", "7"),
        ("panic-threshold", "100"),
        ("idle-after", "0ns"),
        ("stable-window", "6.5s"),
        ("panic-window", "7s"),
        ("concurrency", "NaN"),
        ("rate", "-1"),
        ("max-scale-up-rate", "1"),
        ("max-scale-down-rate", "inf"),
    ];
    assert_eq!(named, expected);
    let text = error.to_string();
    assert!(text.contains("min: 5 is not allowed, expected 0 to max, which is 0; initial: 7"), "{text}");

    let none = ScaleSettings { concurrency: None, ..ScaleSettings::default() };
    assert_eq!(ScalePolicy::try_from(&none).unwrap_err().0[0].field, "target");
    assert!(ScalePolicy::try_from(&ScaleSettings::default()).is_ok());
}

#[test]
fn a_steady_load_gets_the_pods_that_it_takes() {
    let rate = |per_pod| ScaleSettings { concurrency: None, rate: Some(per_pod), ..ten() };
    let both = |per_pod| ScaleSettings { rate: Some(per_pod), ..ten() };
    let limited = ScaleSettings { limit: 5, ..ten() };
    let report = |concurrency, requests| LoadReport { requests, ..busy(concurrency) };
    for (name, settings, report, expected) in [
        ("just one pod's worth", ten(), report(10, 0), 1),
        ("a little more", ten(), report(11, 0), 2),
        ("three pods' worth", ten(), report(30, 0), 3),
        ("more than max", ten(), report(1000, 0), 20),
        ("by rate", rate(50.0), report(1, 120), 3),
        ("by rate, concurrency does not matter", rate(50.0), report(90, 50), 1),
        ("the larger of both: rate", both(10.0), report(11, 55), 6),
        ("the larger of both: concurrency", both(100.0), report(31, 55), 4),
        ("a limit below the target is the target", limited, report(30, 0), 6),
    ] {
        let mut bench = Bench::old(&settings, 1);
        assert_eq!(bench.seconds(70, report).desired, expected, "{name}");
    }
}

#[test]
fn a_surge_panics_and_takes_no_pod_away_until_a_stable_window_has_passed() {
    let mut bench = Bench::old(&ten(), 1);
    drop(bench.seconds(60, busy(10)));
    assert!(!bench.scaler.panics());
    // A concurrency of 95 for one second: it hardly changes the stable window, but it fills the panic window.
    let decision = bench.second(busy(95));
    assert_eq!((decision.desired, bench.scaler.panics()), (3, true), "{}", decision.reason);
    let decision = bench.seconds(5, busy(95));
    assert_eq!(decision.desired, 10, "{}", decision.reason);

    // There was no surge since the first of these six seconds: more pods were ready.
    for second in 1..55 {
        assert_eq!(bench.second(busy(1)).desired, 10, "{second}");
    }
    assert!(bench.scaler.panics());
    let steps: Vec<u32> = (0..6).map(|_| bench.second(busy(1)).desired).collect();
    assert_eq!(steps, [5, 2, 2, 1, 1, 1], "halved at most once in a step of two seconds");
    assert!(!bench.scaler.panics());
}

#[test]
fn a_burst_on_a_sleeping_service_is_not_averaged_with_its_sleep() {
    let mut bench = Bench::old(&ten(), 0);
    let hold = |holds| CurrentLoad { holds, ..CurrentLoad::default() };
    bench.report(LoadReport { span: secs(0), concurrency: 0.0, requests: 1, present: hold(1) });
    let decision = bench.decide();
    assert_eq!((decision.desired, decision.reason), (1, ScaleReason::Wake));
    let report = LoadReport { span: SECOND, concurrency: 95.0, requests: 94, present: hold(95) };
    assert_eq!(bench.second(report).desired, 10);
}

#[test]
fn held_requests_count_on_a_rate_target_too() {
    let settings = ScaleSettings { concurrency: None, rate: Some(1000.0), limit: 5, ..ten() };
    let mut bench = Bench::old(&settings, 0);
    let present = CurrentLoad { holds: 31, ..CurrentLoad::default() };
    let decision = bench.second(LoadReport { span: SECOND, concurrency: 31.0, requests: 31, present });
    assert_eq!(decision.desired, 7);
}

#[test]
fn an_average_that_is_no_number_is_replaced_by_what_is_present() {
    for (concurrency, expected) in [(f64::NAN, 4), (f64::INFINITY, 4), (-3.0, 1), (1e300, 20)] {
        let mut bench = Bench::old(&ten(), 1);
        let decision = bench.seconds(60, LoadReport { concurrency, ..busy(40) });
        assert_eq!(decision.desired, expected, "{concurrency}: {}", decision.reason);
    }
}

#[test]
fn what_is_in_flight_keeps_its_pods_but_asks_for_none() {
    let spike = LoadReport { concurrency: 0.1, ..busy(75) };
    let mut bench = Bench::old(&ten(), 10);
    let decision = bench.second(spike);
    assert_eq!((decision.desired, decision.reason), (8, ScaleReason::InFlight { present: 75 }));
    let mut bench = Bench::old(&ten(), 3);
    assert_eq!(bench.second(spike).desired, 3);
}

#[test]
fn each_kind_of_presence_keeps_a_service_from_zero() {
    for present in [
        CurrentLoad { in_flight: 1, ..CurrentLoad::default() },
        CurrentLoad { holds: 1, ..CurrentLoad::default() },
        CurrentLoad { streams: 1, ..CurrentLoad::default() },
        CurrentLoad { upgraded: 1, ..CurrentLoad::default() },
    ] {
        let mut bench = Bench::old(&ten(), 1);
        let decision = bench.seconds(120, LoadReport { present, ..quiet() });
        assert_eq!(decision.desired, 1, "{present:?}");
        assert_eq!(bench.seconds(59, quiet()).desired, 1, "{present:?}");
        assert_eq!(bench.second(quiet()).desired, 0, "{present:?}");
    }
}

#[test]
fn the_initial_scale_lasts_until_so_many_were_ready_once_or_ten_minutes() {
    let settings = ScaleSettings { initial: 4, ..ten() };
    let gateway = Reporter::new("g");
    let run = |ready: u32| {
        let mut scaler = Autoscaler::created(policy(&settings), at(0));
        scaler.list(at(0), [gateway.clone()]).unwrap();
        let first = scaler.decide(at(0), pods(0, 0));
        assert_eq!((first.desired, first.reason), (4, ScaleReason::Initial));
        let (mut replicas, mut zero_at) = (4, None);
        for second in 1..900 {
            scaler.report(at(second), &gateway, &quiet()).unwrap();
            replicas = scaler.decide(at(second), pods(replicas, ready.min(replicas))).desired;
            if replicas == 0 && zero_at.is_none() {
                zero_at = Some(second);
            }
        }
        zero_at
    };
    assert_eq!(run(4), Some(61), "ready at 1 s, then idle");
    assert_eq!(run(3), Some(600), "never all ready");
    assert_eq!(run(0), Some(601), "the wake seen at 1 s never became ready");
    let mut resumed = Autoscaler::new(policy(&settings), at(0));
    assert_eq!(resumed.decide(at(0), pods(0, 0)).desired, 0);
}

#[test]
fn after_a_wake_a_service_stays_until_it_was_ready_for_idle_after_or_ten_minutes() {
    let settings = ScaleSettings { idle_after: secs(10), ..ten() };
    for (ready_at, zero_at) in [(0, 69), (30, 69), (100, 110), (595, 600), (9999, 600)] {
        let mut bench = Bench::old(&settings, 0);
        let wake = LoadReport { requests: 1, ..quiet() };
        assert_eq!(bench.second(wake).desired, 1);
        let woken = bench.now;
        for second in 0..=zero_at {
            bench.now = woken + secs(second);
            // The request gives up waiting after a minute.
            let holds = u32::from(second < 60);
            bench.report(LoadReport { present: CurrentLoad { holds, ..CurrentLoad::default() }, ..quiet() });
            let ready = u32::from(second >= ready_at);
            let decision = bench.scaler.decide(bench.now, pods(1, ready));
            let expected = u32::from(second < zero_at);
            assert_eq!(decision.desired, expected, "ready at {ready_at}, {second} s: {}", decision.reason);
        }
    }
}

#[test]
fn a_pin_is_an_order_and_zero_lasts_until_the_next_request() {
    let mut bench = Bench::fresh(&ScaleSettings { min: 2, ..ten() }, 5);
    bench.scaler.pin(30);
    assert_eq!(bench.second(busy(1)).desired, 30, "the pin overrides max, min and a young controller");
    bench.scaler.pin(0);
    assert_eq!(bench.second(busy(10)).desired, 0, "to zero now");
    let drained = LoadReport { present: CurrentLoad { streams: 3, ..CurrentLoad::default() }, ..quiet() };
    let decision = bench.seconds(30, drained);
    assert_eq!((decision.desired, bench.scaler.pinned()), (0, Some(0)), "what still drains wakes nothing");
    assert_eq!(bench.second(LoadReport { requests: 1, ..quiet() }).desired, 2, "the next request does");
    assert_eq!(bench.second(quiet()).desired, 2);
    assert_eq!(bench.scaler.pinned(), None);
    bench.scaler.pin(3);
    bench.scaler.unpin();
    assert_eq!((bench.second(quiet()).desired, bench.scaler.pinned()), (2, None));
}

#[test]
fn where_another_owner_scales_only_a_wake_is_ours() {
    let mut bench = Bench::old(&ScaleSettings { min: 2, ..ten() }, 0);
    let decide = |bench: &mut Bench, replicas| {
        let observed = ObservedTarget { replicas, ready: replicas, owner: Owner::Other, token: "version 7" };
        let decision = bench.scaler.decide(bench.now, observed);
        assert_eq!(decision.token, "version 7");
        (decision.change(), decision.reason)
    };
    assert_eq!(decide(&mut bench, 0), (None, ScaleReason::OwnedElsewhere));
    bench.report(LoadReport { requests: 1, ..quiet() });
    assert_eq!(decide(&mut bench, 0), (Some(2), ScaleReason::Wake));
    bench.report(busy(500));
    assert_eq!(decide(&mut bench, 1), (None, ScaleReason::OwnedElsewhere));
    bench.scaler.pin(9);
    assert_eq!(decide(&mut bench, 1), (None, ScaleReason::OwnedElsewhere));
}

#[test]
fn a_gateway_that_leaves_takes_what_it_had_but_not_what_it_saw() {
    let mut bench = Bench::old(&ten(), 5);
    let other = Reporter::new("gateway-2");
    bench.scaler.list(bench.now, [bench.gateway.clone(), other.clone()]).unwrap();
    for _ in 0..60 {
        bench.now = bench.now + SECOND;
        bench.report(quiet());
        bench.scaler.report(bench.now, &other, &busy(50)).unwrap();
        assert_eq!(bench.decide().desired, 5);
    }
    bench.scaler.list(bench.now, [bench.gateway.clone()]).unwrap();
    assert_eq!(
        bench.decide().desired,
        5,
        "the load may continue at another gateway; the window still has it"
    );
    assert_eq!(bench.seconds(59, quiet()).desired, 1, "and forgets it");
    assert_eq!(bench.second(quiet()).desired, 0, "idle since it left, and its streams hold nothing up");
}

#[test]
fn a_gateway_that_is_not_listed_any_more_keeps_its_requests_while_it_reports() {
    let mut bench = Bench::old(&ScaleSettings { max_scale_down_rate: 1_000_000.0, ..ten() }, 5);
    let other = Reporter::new("gateway-2");
    bench.scaler.list(bench.now, [bench.gateway.clone(), other.clone()]).unwrap();
    bench.scaler.report(bench.now, &other, &LoadReport { concurrency: 0.0, ..busy(50) }).unwrap();
    bench.scaler.list(bench.now, [bench.gateway.clone()]).unwrap();
    bench.report(quiet());
    assert_eq!(bench.decide().desired, 5, "its requests are in flight");
    bench.now = bench.now + REPORT_TTL;
    bench.report(quiet());
    assert_eq!(bench.decide().desired, 1, "it is gone");
}

#[test]
fn while_no_reporter_or_too_many_are_listed_nothing_is_scaled_down() {
    let mut bench = Bench::old(&ten(), 5);
    bench.scaler.list(bench.now, []).unwrap();
    let decision = bench.decide();
    assert_eq!((decision.change(), decision.reason), (None, ScaleReason::NoReporters));

    let too_many = || (0..=MAX_REPORTERS).map(|n| Reporter::new(&format!("gateway-{n}")));
    assert_eq!(bench.scaler.list(bench.now, too_many()), Err(TooManyReporters));
    for reporter in too_many() {
        let kept = bench.scaler.report(bench.now, &reporter, &quiet());
        assert_eq!(kept.is_err(), reporter == Reporter::new(&format!("gateway-{MAX_REPORTERS}")));
    }
    let decision = bench.decide();
    assert_eq!((decision.change(), decision.reason), (None, ScaleReason::TooManyReporters));
    assert_eq!(bench.scaler.list(bench.now, too_many().skip(1)), Ok(()));
    bench.scaler.report(bench.now, &too_many().next_back().unwrap(), &quiet()).unwrap();
    assert!(bench.decide().change().is_some());
}

#[test]
fn nothing_goes_to_zero_on_reports_that_are_older_than_the_idle_time() {
    let (near, far) = (Reporter::new("near"), Reporter::new("far"));
    let mut bench = Bench::old(&ScaleSettings { idle_after: secs(2), ..ten() }, 1);
    bench.scaler.list(bench.now, [near.clone(), far.clone()]).unwrap();
    let report = |bench: &mut Bench, from: &Reporter, report: &LoadReport| {
        bench.scaler.report(bench.now, from, report).unwrap();
    };
    report(&mut bench, &far, &LoadReport { requests: 1, ..quiet() });
    report(&mut bench, &near, &quiet());
    // The connection of one gateway is cut: it is not silent yet, and its clients go on.
    for _ in 0..2 {
        bench.now = bench.now + secs(1);
        report(&mut bench, &near, &quiet());
        assert_eq!(bench.decide().change(), None);
    }
    assert_eq!(bench.scaler.next_due_while_reported(bench.now), Some(bench.now + secs(1)));
    bench.now = bench.now + secs(1);
    report(&mut bench, &near, &quiet());
    assert_eq!(bench.decide().reason, ScaleReason::ReporterStale { reporter: far.clone() });
    report(&mut bench, &far, &quiet());
    let decision = bench.decide();
    assert_eq!((decision.desired, decision.reason), (0, ScaleReason::Idle { after: secs(2) }));
}

#[test]
fn a_crowd_of_unlisted_reporters_is_bounded_and_its_requests_still_count() {
    let mut bench = Bench::old(&ten(), 0);
    for n in 0..MAX_REPORTERS - 1 {
        bench.scaler.report(bench.now, &Reporter::new(&format!("{n}")), &quiet()).unwrap();
    }
    let late = Reporter::new("late");
    let wake = LoadReport { requests: 1, ..quiet() };
    assert_eq!(bench.scaler.report(bench.now, &late, &wake), Err(TooManyReporters));
    assert_eq!(bench.decide().desired, 1);
    bench.now = bench.now + REPORT_TTL;
    assert_eq!(bench.scaler.report(bench.now, &late, &wake), Ok(()), "the others went stale");
}

#[test]
fn a_changed_policy_keeps_what_is_known() {
    let mut bench = Bench::old(&ten(), 4);
    drop(bench.seconds(60, busy(40)));
    for (window, panic_window) in [(120, 6), (30, 6), (6, 2), (60, 6)] {
        let settings =
            ScaleSettings { stable_window: secs(window), panic_window: secs(panic_window), ..ten() };
        bench.scaler.set_policy(policy(&settings));
        assert_eq!(bench.second(busy(40)).desired, 4, "{window} s");
    }
    bench.scaler.set_policy(policy(&ScaleSettings { max: 3, ..ten() }));
    let decision = bench.second(busy(40));
    assert_eq!((decision.desired, decision.reason), (3, ScaleReason::Max), "max is above what is in flight");
}

#[test]
fn reasons_are_sentences() {
    let silent = ScaleReason::ReporterStale { reporter: Reporter::new("gateway-2") };
    for (reason, sentence) in [
        (ScaleReason::Load { pods: 1 }, "the load needs one pod"),
        (ScaleReason::Idle { after: MINUTE }, "no request, hold, stream or upgraded connection for 60s"),
        (silent, "not scaled down while gateway-2 serves but sends no load reports"),
        (
            ScaleReason::WarmingUp { window: MINUTE },
            "not scaled down until its load has been observed for 60s",
        ),
    ] {
        assert_eq!(reason.to_string(), sentence);
    }
}

/// Anything that a driver may tell an autoscaler.
#[derive(Debug, Clone)]
pub(crate) enum Fact {
    Report(usize, LoadReport),
    List(Vec<usize>),
    Decide(Sight),
    Pin(u32),
    Unpin,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Sight {
    pub(crate) replicas: u32,
    pub(crate) ready: u32,
    pub(crate) owner: Owner,
}

/// The naive model: it keeps every fact and derives everything else.
pub(crate) struct Model {
    settings: ScaleSettings,
    born: Moment,
    created: bool,
    pub(crate) facts: Vec<(Moment, Fact)>,
}

/// A number of thousandths, written differently.
fn thousandths(value: f64) -> u128 {
    format!("{value:.3}").replace('.', "").parse().unwrap()
}

fn is_active(report: &LoadReport) -> bool {
    report.concurrency > 0.0 || report.requests > 0 || report.present.total() > 0
}

impl Model {
    fn room(&self) -> u128 {
        let limit = if self.settings.limit == 0 { f64::INFINITY } else { self.settings.limit.into() };
        match self.settings.concurrency {
            Some(target) => thousandths(target.min(limit)),
            None if self.settings.limit > 0 => thousandths(limit),
            None => 100_000,
        }
    }

    /// The facts before and with number `n`.
    fn until(&self, n: usize) -> &[(Moment, Fact)] {
        &self.facts[..=n]
    }

    fn sights(&self, n: usize) -> Vec<(usize, Moment, Sight)> {
        let facts = self.until(n).iter().enumerate();
        let sight = |(i, (at, fact)): (usize, &(Moment, Fact))| match fact {
            Fact::Decide(sight) => Some((i, *at, *sight)),
            _ => None,
        };
        facts.filter_map(sight).collect()
    }

    fn is_listed(&self, n: usize, who: usize) -> bool {
        let lists = self.until(n).iter().rev();
        let newest =
            lists.filter_map(|(_, fact)| if let Fact::List(names) = fact { Some(names) } else { None });
        newest.take(1).any(|names| names.contains(&who))
    }

    /// The last report of `who` that is still valid just after fact `n`.
    fn last_report(&self, n: usize, who: usize) -> Option<(Moment, CurrentLoad)> {
        let facts = self.until(n);
        let i = facts.iter().rposition(|(_, fact)| matches!(fact, Fact::Report(from, _) if *from == who))?;
        let (heard, Fact::Report(_, report)) = &facts[i] else { unreachable!() };
        let is_stale = |at: Moment| at >= *heard + REPORT_TTL;
        let mut is_listed = self.is_listed(i, who);
        for (at, fact) in &facts[i..] {
            if let Fact::List(names) = fact {
                let is_forgotten = |is_listed: bool| !is_listed && is_stale(*at);
                let was_listed = std::mem::replace(&mut is_listed, names.contains(&who));
                if is_forgotten(was_listed) || is_forgotten(is_listed) {
                    return None;
                }
            }
        }
        (is_listed || !is_stale(facts[n].0)).then_some((*heard, report.present))
    }

    fn present(&self, n: usize) -> Vec<CurrentLoad> {
        (0..NAMES).filter_map(|who| self.last_report(n, who)).map(|(_, present)| present).collect()
    }

    fn total(&self, n: usize) -> u64 {
        self.present(n).into_iter().map(CurrentLoad::total).sum()
    }

    fn holds(&self, n: usize) -> u128 {
        self.present(n).into_iter().map(|present| u128::from(present.holds)).sum()
    }

    fn last_activity(&self, n: usize) -> Moment {
        let mut last = self.born;
        for (i, (at, fact)) in self.until(n).iter().enumerate() {
            let active = match fact {
                Fact::Report(_, report) => is_active(report),
                // What a reporter had in flight when it became silent goes on until it is forgotten.
                Fact::List(names) => (0..NAMES).any(|who| {
                    let forgotten = i > 0 && !names.contains(&who) && self.is_listed(i - 1, who);
                    let before = if forgotten { self.last_report(i - 1, who) } else { None };
                    before.is_some_and(|(heard, load)| *at >= heard + REPORT_TTL && load.total() > 0)
                }),
                _ => false,
            };
            if active {
                last = last.max(*at);
            }
        }
        last
    }

    fn is_idle(&self, n: usize) -> bool {
        self.total(n) == 0 && self.facts[n].0 >= self.last_activity(n) + self.settings.idle_after
    }

    /// Whether the reports show that it is idle: there may have been requests since the last one.
    fn is_known_to_be_idle(&self, n: usize) -> bool {
        let oldest = (0..NAMES)
            .filter(|who| self.is_listed(n, *who))
            .map(|who| {
                self.last_report(n, who).map(|(at, _)| at).filter(|at| self.facts[n].0 < *at + REPORT_TTL)
            })
            .min();
        // Without a listed reporter, or if one is silent, it is not scaled down in any case.
        let known = oldest.flatten().unwrap_or(self.facts[n].0);
        self.is_idle(n) && known >= self.last_activity(n) + self.settings.idle_after
    }

    /// (Busy thousandths × nanoseconds, requests, nanoseconds) of the last `length` before the last report.
    fn load(&self, n: usize, length: Duration) -> (u128, u128, u128) {
        const NANOS: u128 = 1_000_000_000;
        let reports: Vec<(u128, &LoadReport)> = self
            .until(n)
            .iter()
            .filter_map(|(at, fact)| match fact {
                Fact::Report(_, report) => Some((u128::from(at.as_nanos()), report)),
                _ => None,
            })
            .collect();
        let Some((end, _)) = reports.last() else { return (0, 0, NANOS) };
        let window_start =
            |end: u128, length: Duration| (end.div_ceil(NANOS) * NANOS).saturating_sub(length.as_nanos());
        let (mut since, mut last_load) = (u128::MAX, None);
        let from = window_start(*end, length);
        let (mut busy, mut requests) = (0, 0);
        for (at, report) in &reports {
            if report.concurrency == 0.0 && report.requests == 0 {
                continue;
            }
            let start = at - report.span.as_nanos().clamp(1, *at);
            if last_load.is_none_or(|last| last <= window_start(*at, self.settings.stable_window)) {
                since = start;
            }
            since = since.min(start);
            last_load = Some(*at);
            if *at > from {
                busy += thousandths(report.concurrency) * (at - start.max(from));
                let all = u128::from(report.requests);
                requests += all - all * (start.max(from) - start) / (at - start);
            }
        }
        let since = if last_load.is_some() { since.max(from) } else { from };
        (busy, requests, (end - since.min(*end)).max(NANOS))
    }

    /// Demand of a window as fractions of pods.
    fn demands(&self, n: usize, length: Duration) -> Vec<(u128, u128)> {
        let (busy, requests, nanos) = self.load(n, length);
        let mut demands = Vec::new();
        match self.settings.concurrency {
            Some(_) => demands.push((busy, nanos * self.room())),
            None => demands.push((self.holds(n) * 1000, self.room())),
        }
        if let Some(rate) = self.settings.rate {
            demands.push((requests * 1_000_000_000_000, nanos * thousandths(rate)));
        }
        demands
    }

    fn panics(&self, n: usize) -> bool {
        let surge = |i: usize, sight: Sight| {
            let capacity = u128::from(sight.ready.max(1)) * u128::from(self.settings.panic_threshold);
            let demands = self.demands(i, self.settings.panic_window);
            demands.into_iter().any(|(load, pod)| load > 0 && load * 100 >= pod * capacity)
        };
        let sights = self.sights(n);
        for (i, at, sight) in sights.into_iter().rev() {
            if self.is_idle(i) || self.facts[n].0 >= at + self.settings.stable_window && i != n {
                return false;
            }
            if surge(i, sight) {
                return true;
            }
        }
        false
    }

    fn pods_for_load(&self, n: usize) -> u32 {
        let mut demands = self.demands(n, self.settings.stable_window);
        if self.panics(n) {
            demands.extend(self.demands(n, self.settings.panic_window));
        }
        demands.into_iter().map(|(load, pod)| u32::try_from(load.div_ceil(pod)).unwrap()).max().unwrap()
    }

    fn wants_wake(&self, n: usize) -> bool {
        let sights = self.sights(n);
        let fell = sights.windows(2).rev().find(|pair| pair[0].2.replicas > 0 && pair[1].2.replicas == 0);
        let fell = fell.map_or(0, |pair| pair[1].0);
        let pinned = self.until(n).iter().rposition(|(_, fact)| matches!(fact, Fact::Pin(0))).unwrap_or(0);
        let asked = self.facts[fell.max(pinned)..=n].iter().any(|(_, fact)| match fact {
            Fact::Report(_, report) => report.requests > 0 || report.present.holds > 0,
            _ => false,
        });
        self.holds(n) > 0 || asked && !self.is_idle(n)
    }

    /// The pin that holds at fact `n`.
    pub(crate) fn pin(&self, n: usize) -> Option<u32> {
        let is_pin = |(_, fact): &(Moment, Fact)| matches!(fact, Fact::Pin(_) | Fact::Unpin);
        let i = self.until(n).iter().rposition(is_pin)?;
        let Fact::Pin(pods) = self.facts[i].1 else { return None };
        let mut after = self.sights(n).into_iter().filter(|sight| sight.0 > i).map(|sight| sight.2.replicas);
        let woken = after.any(|replicas| replicas == 0) && after.any(|replicas| replicas > 0);
        (pods > 0 || !woken).then_some(pods)
    }

    fn initial(&self, n: usize) -> u32 {
        let pinned = self.until(n).iter().any(|(_, fact)| matches!(fact, Fact::Pin(_)));
        let reached = self
            .sights(n)
            .into_iter()
            .any(|(_, at, sight)| sight.ready >= self.settings.initial || at >= self.born + WAKE_TIMEOUT);
        if self.created && !pinned && !reached { self.settings.initial } else { 0 }
    }

    fn is_rested(&self, n: usize) -> bool {
        let now = self.facts[n].0;
        let sights = self.sights(n);
        let run = |alive: fn(&Sight) -> bool| {
            sights.iter().rev().take_while(|(_, _, sight)| alive(sight)).last().map(|(_, at, _)| *at)
        };
        let woken = run(|sight| sight.replicas > 0);
        let ready = run(|sight| sight.replicas > 0 && sight.ready > 0);
        woken.is_some_and(|woken| now >= woken + WAKE_TIMEOUT)
            || ready.is_some_and(|ready| now >= ready + self.settings.idle_after)
    }

    /// (Ready at the start of the step, most pods in it).
    fn step(&self, n: usize) -> (u32, u32) {
        let sights = self.sights(n);
        let mut first = 0;
        for (i, (_, at, _)) in sights.iter().enumerate() {
            if *at >= sights[first].1 + STEP {
                first = i;
            }
        }
        let most = sights[first..].iter().map(|(_, _, sight)| sight.ready.max(sight.replicas)).max();
        (sights[first].2.ready, most.unwrap())
    }

    fn may_scale_down(&self, n: usize) -> bool {
        let now = self.facts[n].0;
        let listed: Vec<usize> = (0..NAMES).filter(|who| self.is_listed(n, *who)).collect();
        let fresh = |who: &usize| self.last_report(n, *who).is_some_and(|(at, _)| now < at + REPORT_TTL);
        let grown = self.created || now >= self.born + self.settings.stable_window;
        grown && !listed.is_empty() && listed.iter().all(fresh)
    }

    fn desired(&self) -> u32 {
        let n = self.facts.len() - 1;
        let Fact::Decide(Sight { replicas, owner, .. }) = self.facts[n].1 else { unreachable!() };
        let (min, max) = (self.settings.min, self.settings.max);
        let wake = self.wants_wake(n);
        match (owner, self.pin(n)) {
            (Owner::Other, _) if replicas == 0 && wake => return min.max(1),
            (Owner::Other, _) => return replicas,
            (_, Some(0)) if !(replicas == 0 && wake) => return 0,
            (_, Some(pods)) if pods > 0 => return pods,
            _ => {}
        }
        let (ready, most) = self.step(n);
        let up = (u128::from(ready.max(1)) * thousandths(self.settings.max_scale_up_rate)).div_ceil(1000);
        let up = u32::try_from(up).unwrap().max(replicas);
        let down = u128::from(most) * 1000 / thousandths(self.settings.max_scale_down_rate);
        let down = u32::try_from(down).unwrap().min(replicas);
        let initial = self.initial(n);
        if replicas == 0 {
            let woken = if wake { self.pods_for_load(n).max(min).max(1).min(up) } else { 0 };
            return woken.max(initial).max(min).min(max);
        }
        let idle = min == 0 && initial == 0 && self.is_known_to_be_idle(n) && self.is_rested(n);
        let wanted = if idle {
            0
        } else {
            let kept = if self.panics(n) { replicas } else { 0 };
            self.pods_for_load(n).max(kept).max(1).max(initial).min(up).max(down).max(min).min(max)
        };
        if wanted >= replicas {
            return wanted;
        }
        if !self.may_scale_down(n) {
            return replicas;
        }
        let needed = (u128::from(self.total(n)) * 1000).div_ceil(self.room());
        wanted.max(u32::try_from(needed).unwrap_or(u32::MAX).min(replicas).min(max))
    }
}

const NAMES: usize = 3;

pub(crate) fn name(who: usize) -> Reporter {
    Reporter::new(&format!("reporter-{who}"))
}

/// No decision on the same pods differs before the next due moment.
pub(crate) fn is_the_same_until_due(
    model: &Model,
    scaler: &Autoscaler,
    decision: &Decision,
    share: f64,
) -> Result<(), TestCaseError> {
    let (now, fact) = model.facts.last().unwrap();
    let due = scaler.next_due(*now).unwrap_or(*now + Duration::from_hours(1));
    prop_assert!(due > *now);
    let last = due.since(*now).saturating_sub(Duration::from_nanos(1));
    for later in [last.mul_f64(share), last] {
        let same = tell(&mut scaler.clone(), *now + later, fact);
        prop_assert_eq!(same.as_ref(), Some(decision), "after {:?} of {:?}", later, last);
    }
    Ok(())
}

pub(crate) fn tell(scaler: &mut Autoscaler, now: Moment, fact: &Fact) -> Option<Decision> {
    match fact {
        Fact::Report(who, report) => scaler.report(now, &name(*who), report).unwrap(),
        Fact::List(names) => scaler.list(now, names.iter().map(|who| name(*who))).unwrap(),
        Fact::Pin(pods) => scaler.pin(*pods),
        Fact::Unpin => scaler.unpin(),
        Fact::Decide(Sight { replicas, ready, owner }) => {
            let observed = ObservedTarget { replicas: *replicas, ready: *ready, owner: *owner, token: () };
            return Some(scaler.decide(now, observed));
        }
    }
    None
}

pub(crate) fn settings() -> impl Strategy<Value = ScaleSettings> {
    let target = prop_oneof![Just(0.5), Just(1.0), Just(2.5), Just(10.0)];
    let targets = (proptest::option::of(target.clone()), proptest::option::of(target), 0..5_u32);
    let sizes = (0..3_u32, 1..30_u32, 0..4_u32);
    let windows = (6..20_u64, 2..6_u64, 110..400_u32);
    let rates =
        (prop_oneof![Just(1.5), Just(3.0), Just(1000.0)], prop_oneof![Just(1.1), Just(2.0), Just(9.0)]);
    let idle = prop_oneof![Just(500), Just(3000), Just(10_000), Just(60_000)];
    (targets, sizes, windows, rates, idle).prop_map(|(targets, sizes, windows, rates, idle)| ScaleSettings {
        concurrency: if targets.1.is_none() { targets.0.or(Some(2.0)) } else { targets.0 },
        rate: targets.1,
        limit: targets.2,
        min: sizes.0.min(sizes.1),
        max: sizes.1,
        initial: sizes.2.min(sizes.1),
        stable_window: secs(windows.0),
        panic_window: secs(windows.1),
        panic_threshold: windows.2,
        max_scale_up_rate: rates.0,
        max_scale_down_rate: rates.1,
        idle_after: Duration::from_millis(idle),
        ..ScaleSettings::default()
    })
}

fn present() -> impl Strategy<Value = CurrentLoad> {
    let few = || prop_oneof![4 => Just(0), 1 => 0..40_u32];
    (few(), few(), few(), few()).prop_map(|(in_flight, holds, streams, upgraded)| CurrentLoad {
        in_flight,
        holds,
        streams,
        upgraded,
    })
}

fn report() -> impl Strategy<Value = LoadReport> {
    let span = prop_oneof![4 => Just(1000), 1 => Just(0), 3 => 1..1500_u64, 1 => 1500..100_000_u64];
    let concurrency =
        prop_oneof![2 => Just(0.0), 2 => (0..400_u32).prop_map(|eighths| f64::from(eighths) / 8.0)];
    let requests = prop_oneof![2 => Just(0), 1 => 0..100_u64];
    let loaded =
        (span, concurrency, requests, present()).prop_map(|(span, concurrency, requests, present)| {
            LoadReport { span: Duration::from_millis(span), concurrency, requests, present }
        });
    prop_oneof![2 => Just(quiet()), 3 => loaded]
}

/// A fact, where `replicas` of a sight may be left to follow the last decision.
#[derive(Debug, Clone)]
pub(crate) enum Move {
    Tell(Fact),
    Follow {
        missing: u32,
    },
    /// All listed reporters report no load for this many seconds; then follow.
    Quiet(u64),
}

pub(crate) fn moves() -> impl Strategy<Value = Vec<(Duration, Move)>> {
    let pause = prop_oneof![
        3 => Just(0), 3 => 1..1000_u64, 4 => Just(1000), 2 => 1000..4000_u64, 1 => 4000..70_000_u64,
        1 => Just(600_000),
    ];
    let owner = prop_oneof![9 => Just(Owner::Rouse), 1 => Just(Owner::Other)];
    let sight = (0..25_u32, 0..25_u32, owner)
        .prop_map(|(replicas, ready, owner)| Move::Tell(Fact::Decide(Sight { replicas, ready, owner })));
    let list = proptest::collection::vec(0..NAMES, 0..=NAMES).prop_map(|names| Move::Tell(Fact::List(names)));
    let one = prop_oneof![
        8 => (0..NAMES, report()).prop_map(|(who, report)| Move::Tell(Fact::Report(who, report))),
        2 => list,
        3 => sight,
        8 => prop_oneof![3 => Just(0), 1 => 0..4_u32].prop_map(|missing| Move::Follow { missing }),
        3 => (1..25_u64).prop_map(Move::Quiet),
        1 => prop_oneof![
            prop_oneof![Just(0), 0..6_u32].prop_map(|pods| Move::Tell(Fact::Pin(pods))),
            Just(Move::Tell(Fact::Unpin))
        ],
    ];
    proptest::collection::vec((pause.prop_map(Duration::from_millis), one), 1..25)
}

/// Runs a history, and shows `look` each decision with all facts up to it.
fn run(
    settings: &ScaleSettings,
    created: bool,
    moves: Vec<(Duration, Move)>,
    look: impl FnMut(&Model, &Autoscaler, &Decision) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let new = if created { Autoscaler::created } else { Autoscaler::new };
    run_with(new(policy(settings), at(90)), settings, created, moves, look)
}

/// The same with an autoscaler that knows more than its policy. It was made at 90 s.
pub(crate) fn run_with(
    mut scaler: Autoscaler,
    settings: &ScaleSettings,
    created: bool,
    moves: Vec<(Duration, Move)>,
    mut look: impl FnMut(&Model, &Autoscaler, &Decision) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let born = at(90);
    let mut model = Model { settings: settings.clone(), born, created, facts: Vec::new() };
    let (mut now, mut replicas, mut listed) = (born, 0, vec![0]);
    let follow = |replicas: u32, missing: u32| {
        Fact::Decide(Sight { replicas, ready: replicas.saturating_sub(missing), owner: Owner::Rouse })
    };
    let mut facts = vec![(born, Fact::List(listed.clone()))];
    for (pause, one) in moves {
        now = now + pause;
        match one {
            Move::Tell(fact) => facts.push((now, fact)),
            Move::Follow { missing } => facts.push((now, follow(replicas, missing))),
            Move::Quiet(seconds) => {
                for _ in 0..seconds {
                    now = now + SECOND;
                    facts.extend(listed.iter().map(|who| (now, Fact::Report(*who, quiet()))));
                }
                facts.push((now, follow(replicas, 0)));
            }
        }
        for (now, fact) in facts.drain(..) {
            if let Fact::List(names) = &fact {
                listed.clone_from(names);
            }
            model.facts.push((now, fact.clone()));
            if let Some(decision) = tell(&mut scaler, now, &fact) {
                replicas = decision.desired;
                look(&model, &scaler, &decision)?;
            }
        }
    }
    Ok(())
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() }
}

/// Invariants of every decision.
pub(crate) fn promises(model: &Model, decision: &Decision) -> Result<(), TestCaseError> {
    let n = model.facts.len() - 1;
    let (now, Fact::Decide(sight)) = &model.facts[n] else { unreachable!() };
    let (desired, replicas) = (decision.desired, sight.replicas);
    prop_assert_eq!(decision.change().is_some(), desired != replicas);
    if sight.owner == Owner::Other || model.pin(n).is_some() {
        return Ok(());
    }
    let ScaleSettings { min, max, initial, .. } = model.settings;
    prop_assert!(desired <= max || desired == replicas, "above max");
    prop_assert!(desired >= min || desired >= replicas, "below min");

    let recent = model.sights(n).into_iter().filter(|(_, at, _)| now.since(*at) < STEP);
    let ready = recent.map(|(_, _, sight)| sight.ready).max().unwrap().max(1);
    let most = (f64::from(ready) * model.settings.max_scale_up_rate).ceil();
    let most = most.max(replicas.max(min).max(initial).into());
    prop_assert!(f64::from(desired) <= most, "up too fast");

    if desired >= replicas {
        return Ok(());
    }
    let present = model.total(n);
    prop_assert!(desired > 0 || present == 0, "to zero with {} present", present);
    let needed =
        f64::from(u32::try_from(present * 1000).unwrap()) / f64::from(u32::try_from(model.room()).unwrap());
    prop_assert!(f64::from(desired) >= needed.min(max.into()), "below what is in flight");
    let least = (f64::from(replicas.max(sight.ready)) / model.settings.max_scale_down_rate).floor();
    let slow = f64::from(desired) >= least || desired == max || desired == 0;
    prop_assert!(slow, "down too fast: {} {}", desired, least);
    let grown = model.created || now.since(model.born) >= model.settings.stable_window;
    prop_assert!(grown, "down too young");
    for who in 0..NAMES {
        let heard =
            model.facts.iter().rev().find(|(_, fact)| matches!(fact, Fact::Report(from, _) if *from == who));
        let fresh = heard.is_some_and(|(at, _)| now.since(*at) < REPORT_TTL);
        prop_assert!(fresh || !model.is_listed(n, who), "down while {} is silent", who);
    }
    Ok(())
}

fn garbage() -> impl Strategy<Value = (Moment, Fact)> {
    let number = prop_oneof![
        any::<u64>().prop_map(f64::from_bits),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(f64::MAX),
        Just(-1.0),
        Just(f64::MIN_POSITIVE),
        Just(1e9),
    ];
    let count = || prop_oneof![any::<u32>(), Just(u32::MAX), Just(0)];
    let span = prop_oneof![
        any::<u64>().prop_map(Duration::from_nanos),
        Just(Duration::MAX),
        Just(Duration::ZERO),
        Just(SECOND),
    ];
    let requests = prop_oneof![any::<u64>(), Just(u64::MAX)];
    let present = (count(), count(), count(), count()).prop_map(|(in_flight, holds, streams, upgraded)| {
        CurrentLoad { in_flight, holds, streams, upgraded }
    });
    let report = (span, number, requests, present).prop_map(|(span, concurrency, requests, present)| {
        LoadReport { span, concurrency, requests, present }
    });
    let sight = (count(), count())
        .prop_map(|(replicas, ready)| Fact::Decide(Sight { replicas, ready, owner: Owner::Rouse }));
    let fact = prop_oneof![(0..NAMES, report).prop_map(|(who, report)| Fact::Report(who, report)), sight];
    let now = prop_oneof![any::<u64>(), 0..10_000_000_000_u64, u64::MAX - 10..=u64::MAX];
    (now.prop_map(Moment::from_nanos), fact)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_decision_is_the_naive_models(
        settings in settings(), created in any::<bool>(), moves in moves(),
    ) {
        run(&settings, created, moves, |model, scaler, decision| {
            prop_assert_eq!(scaler.panics(), model.panics(model.facts.len() - 1));
            prop_assert_eq!(decision.desired, model.desired(), "{}", decision.reason);
            Ok(())
        })?;
    }

    #[test]
    fn no_decision_breaks_a_promise(settings in settings(), created in any::<bool>(), moves in moves()) {
        run(&settings, created, moves, |model, _, decision| promises(model, decision))?;
    }

    #[test]
    fn nothing_changes_before_it_is_due(
        settings in settings(), created in any::<bool>(), moves in moves(), share in 0.0..1.0_f64,
    ) {
        run(&settings, created, moves, |model, scaler, decision| {
            is_the_same_until_due(model, scaler, decision, share)
        })?;
    }

    #[test]
    fn reports_of_one_moment_commute(
        settings in settings(),
        rounds in proptest::collection::vec((0..9000_u64, [report(), report(), report()], 0..6_usize), 1..12),
    ) {
        const ORDERS: [[usize; NAMES]; 6] =
            [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let mut scalers = [(); 2].map(|()| Autoscaler::new(policy(&settings), at(90)));
        for scaler in &mut scalers {
            tell(scaler, at(90), &Fact::List(vec![0, 1]));
        }
        let (mut now, mut replicas) = (at(90), 0);
        for (pause, reports, order) in rounds {
            now = now + Duration::from_millis(pause);
            for (scaler, order) in scalers.iter_mut().zip([ORDERS[0], ORDERS[order]]) {
                for who in order {
                    tell(scaler, now, &Fact::Report(who, reports[who]));
                }
            }
            let [one, other] = scalers.each_mut().map(|scaler| scaler.decide(now, pods(replicas, replicas)));
            replicas = one.desired;
            prop_assert_eq!(one, other);
        }
    }

    #[test]
    fn a_request_between_two_reports_is_never_missed(
        settings in settings(), asleep in 0..200_000_u64, span in 0..5_000_u64, requests in 1..u64::MAX,
        listed in any::<bool>(),
    ) {
        let settings = ScaleSettings { min: 0, ..settings };
        let mut scaler = Autoscaler::new(policy(&settings), at(0));
        tell(&mut scaler, at(0), &Fact::List(vec![0]));
        let now = Moment::from_millis(asleep);
        prop_assert_eq!(scaler.decide(now, pods(0, 0)).reason, ScaleReason::AtZero);
        let report = LoadReport { span: Duration::from_millis(span), requests, ..LoadReport::default() };
        tell(&mut scaler, now, &Fact::Report(usize::from(!listed), report));
        prop_assert!(scaler.decide(now, pods(0, 0)).desired >= 1);
        // The request left before the pod was ready: the next reports show no load, and the wake continues.
        let last = now + settings.idle_after - Duration::from_nanos(1);
        tell(&mut scaler, last, &Fact::Report(0, quiet()));
        prop_assert!(scaler.decide(last, pods(0, 0)).desired >= 1);
        let forgotten = now + settings.idle_after;
        prop_assert_eq!(scaler.decide(forgotten, pods(0, 0)).desired, 0);
    }

    #[test]
    fn a_service_goes_to_zero_exactly_idle_after_its_last_activity(
        settings in settings(), last in report(), when in 20_000_000_000..300_000_000_000_u64,
        gap in 1..3_000_000_000_u64, replicas in 1..50_u32,
    ) {
        let last = if is_active(&last) { last } else { LoadReport { requests: 1, ..last } };
        let settings = ScaleSettings { min: 0, ..settings };
        let mut scaler = Autoscaler::new(policy(&settings), at(0));
        tell(&mut scaler, at(0), &Fact::List(vec![0, 1]));
        // Ready all along; the first sight is the wake.
        drop(scaler.decide(at(0), pods(replicas, replicas)));
        let now = Moment::from_nanos(when);
        tell(&mut scaler, now, &Fact::Report(0, last));
        let (ended, gap) = (now + SECOND, Duration::from_nanos(gap));
        let busy = last.present.total() > 0;
        if busy {
            // A last request ends within the span of this report.
            tell(&mut scaler, ended, &Fact::Report(0, LoadReport { concurrency: 0.1, ..quiet() }));
        }
        let deadline = if busy { ended } else { now } + settings.idle_after;
        for who in [0, 1] {
            tell(&mut scaler, deadline - gap.min(settings.idle_after), &Fact::Report(who, quiet()));
        }
        let before = scaler.clone().decide(deadline - Duration::from_nanos(1), pods(replicas, replicas));
        prop_assert!(before.desired >= 1, "{}", before.reason);
        for who in [0, 1] {
            // Until both have said so, a request may be on its way to the controller.
            let still = scaler.clone().decide(deadline, pods(replicas, replicas));
            prop_assert!(still.desired >= 1, "{}", still.reason);
            tell(&mut scaler, deadline, &Fact::Report(who, quiet()));
        }
        let then = scaler.decide(deadline, pods(replicas, replicas));
        prop_assert_eq!(then.desired, 0, "{}", then.reason);
    }

    #[test]
    fn garbage_harms_nothing_and_is_forgotten(
        settings in settings(), facts in proptest::collection::vec(garbage(), 0..20),
        calm in 0..u64::MAX / 2, far in any::<bool>(),
    ) {
        let mut scaler = Autoscaler::new(policy(&settings), Moment::ZERO);
        tell(&mut scaler, Moment::ZERO, &Fact::List(vec![0, 1, 2]));
        for (now, fact) in facts {
            // Half of the cases leave time for the sequel, and half go to the end of time.
            let now = if far { now } else { now.min(Moment::from_nanos(calm)) };
            if let Some(decision) = tell(&mut scaler, now, &fact) {
                prop_assert!(decision.desired <= settings.max.max(decision.replicas));
            }
            let _ = scaler.next_due(now);
        }
        let mut now = Moment::from_nanos(calm);
        for _ in 0..if far { 0 } else { settings.stable_window.as_secs() * 2 + 2 } {
            now = now + SECOND;
            for who in 0..NAMES {
                tell(&mut scaler, now, &Fact::Report(who, quiet()));
            }
            drop(scaler.decide(now, pods(1, 1)));
        }
        prop_assert!(far || scaler.decide(now, pods(1, 1)).desired <= settings.min.max(1));
        prop_assert!(far || !scaler.panics());
    }
}
