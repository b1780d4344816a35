//! Properties of idle policies and schedules, over random histories.

use std::time::Duration;

use proptest::prelude::*;
use rouse_core::scale::{
    Autoscaler, IdleExplanation, IdlePlan, IdlePolicy, LoadReport, ObservedTarget, Owner, STATE_BYTES,
    ScaleSettings, Schedule, WarmWindow,
};
use rouse_core::time::{Moment, WallTime};

use crate::autoscaler::{Fact, at, is_the_same_until_due, moves, policy, promises, run_with, settings, tell};
use crate::driver::{Driver, learned, mins, secs};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// From a second to two days, on a logarithmic scale, some of them alike.
fn gap() -> impl Strategy<Value = Duration> {
    prop_oneof![
        2 => (0.0..12.0_f64).prop_map(|log| Duration::from_secs_f64(log.exp())),
        1 => Just(secs(90)),
        1 => Just(mins(5)),
        1 => (280..320_u64).prop_map(secs),
    ]
}

fn cost() -> impl Strategy<Value = Duration> {
    (0.0..10.0_f64).prop_map(|log| Duration::from_secs_f64(log.exp()))
}

/// An autoscaler that has learned these gaps, and knows since when it is idle, if it is: now.
fn taught(settings: &ScaleSettings, gaps: &[Duration]) -> (Autoscaler, Moment) {
    let mut scaler = Autoscaler::created(policy(settings), at(0));
    tell(&mut scaler, at(0), &Fact::List(vec![0]));
    let mut now = at(0);
    let request = LoadReport { requests: 1, ..LoadReport::default() };
    tell(&mut scaler, now, &Fact::Report(0, request));
    for gap in gaps {
        now = now + *gap;
        tell(&mut scaler, now, &Fact::Report(0, request));
    }
    (scaler, now)
}

/// The lower edges of the buckets, and the upper edge of the last.
fn edges() -> Vec<f64> {
    let edges = std::iter::successors(Some(2000_u64), |edge| Some(edge * 11 / 10));
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let seconds = edges.map(|millis| millis as f64 / 1000.0);
    seconds.take(117).collect()
}

/// The average cost of a plan, gap by gap, in seconds: of the remembered gaps, and of one more of any bucket.
fn naive_cost(report: &IdleExplanation, plan: IdlePlan) -> f64 {
    let edges = edges();
    let weight = |bucket: usize| {
        let known = report.gaps.iter().find(|(from, ..)| (from.as_secs_f64() - edges[bucket]).abs() < 1e-6);
        known.map_or(0.0, |(_, _, weight)| f64::from(*weight)) + 1.0 / 116.0
    };
    let start = report.start_time.as_secs_f64();
    let (mut all, mut cost) = (0.0, 0.0);
    for bucket in 0..116 {
        // Gaps that are spread evenly over the bucket.
        const PARTS: u32 = 8;
        for part in 0..PARTS {
            let share = (f64::from(part) + 0.5) / f64::from(PARTS);
            let gap = edges[bucket] + share * (edges[bucket + 1] - edges[bucket]);
            let stay = plan.stay.as_secs_f64();
            let mut own = gap.min(stay);
            let mut met = gap < stay;
            if let Some(WarmWindow { from, to }) = plan.back {
                let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
                if gap > from {
                    own += gap.min(to) - from + start;
                    met |= gap < to;
                }
            }
            own += if met { 0.0 } else { report.cold_start_cost.as_secs_f64() };
            all += weight(bucket) / f64::from(PARTS);
            cost += own * weight(bucket) / f64::from(PARTS);
        }
    }
    cost / all
}

/// All plans that may be chosen: a stay to an edge, and perhaps a window over buckets with at least 1.5 gaps.
fn candidates(report: &IdleExplanation, picks: &[(f64, f64, f64)]) -> Vec<IdlePlan> {
    let edges = edges();
    let length = |edge: usize| Duration::from_millis(rounded(edges[edge] * 1000.0));
    let pick = |share: f64, count: usize| {
        let count = u32::try_from(count).unwrap();
        usize::try_from(rounded(share * f64::from(count)) % u64::from(count)).unwrap()
    };
    let away = report.start_time.max(secs(10)) + report.start_time;
    let mut plans: Vec<IdlePlan> = (0..116).map(|stay| IdlePlan { stay: length(stay), back: None }).collect();
    for (stay, first, last) in picks {
        let stay = if *stay < 0.3 { length(0) } else { length(pick(*stay, 116)) };
        let first = pick(*first, report.gaps.len());
        let last = first + pick(*last, report.gaps.len() - first);
        let (from, to) = (report.gaps[first].0, report.gaps[last].1);
        let hits: f32 = report.gaps[first..=last].iter().map(|(_, _, weight)| weight).sum();
        if hits >= 1.5 && from >= stay + away {
            plans.push(IdlePlan { stay, back: Some(WarmWindow { from, to }) });
        }
    }
    plans
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
fn rounded(number: f64) -> u64 {
    number.round() as u64
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let part = (0..24_u32, 0..60_u32, 1..1440_u32, 1..4_u32).prop_map(|(hour, minute, length, pods)| {
        let (from, to) = (hour * 60 + minute, (hour * 60 + minute + length) % 1440);
        let time = |minutes: u32| format!("{:02}:{:02}", minutes / 60, minutes % 60);
        format!("daily {}-{} UTC = {pods}", time(from), time(to))
    });
    proptest::collection::vec(part, 1..3).prop_map(|parts| parts.join(";").parse().unwrap())
}

proptest! {
    #![proptest_config(config(10_000))]

    #[test]
    fn a_learned_policy_is_the_fixed_one_until_it_has_seen_enough_gaps(
        settings in settings(), created in any::<bool>(), moves in moves(), cost in cost(),
    ) {
        let learned = ScaleSettings { idle: IdlePolicy::Learned { cold_start_cost: cost.max(secs(1)) }, ..settings.clone() };
        let new = if created { Autoscaler::created } else { Autoscaler::new };
        let mut fixed = new(policy(&settings), at(90));
        let mut fed = 0;
        run_with(new(policy(&learned), at(90)), &settings, created, moves, |model, learner, decision| {
            let mut expected = None;
            for (now, fact) in &model.facts[fed..] {
                expected = tell(&mut fixed, *now, fact);
            }
            fed = model.facts.len();
            if !learner.explain_idle().unwrap().has_learned() {
                prop_assert_eq!(Some(decision), expected.as_ref());
            }
            Ok(())
        })?;
    }

    #[test]
    fn nothing_that_was_learned_breaks_a_promise(
        settings in settings(), moves in moves(), cost in cost(),
        gaps in proptest::collection::vec(gap(), 5..20),
    ) {
        let settings = ScaleSettings { idle: IdlePolicy::Learned { cold_start_cost: cost.max(secs(1)) }, ..settings };
        let (teacher, _) = taught(&settings, &gaps);
        let mut scaler = Autoscaler::created(policy(&settings), at(90));
        scaler.restore_learned(&teacher.learned().unwrap()).unwrap();
        run_with(scaler, &settings, true, moves, |model, _, decision| promises(model, decision))?;
    }

    #[test]
    fn nothing_that_was_learned_or_scheduled_changes_before_it_is_due(
        settings in settings(), moves in moves(), share in 0.0..1.0_f64, schedule in schedule(),
        gaps in proptest::collection::vec(gap(), 5..20), hour in 0..24_i64,
    ) {
        let idle = IdlePolicy::Learned { cold_start_cost: mins(5) };
        let settings = ScaleSettings { idle, schedule, max: settings.max.max(3), ..settings };
        let (teacher, _) = taught(&settings, &gaps);
        let mut scaler = Autoscaler::created(policy(&settings), at(90));
        scaler.restore_learned(&teacher.learned().unwrap()).unwrap();
        scaler.set_wall_clock(at(90), WallTime::from_unix_millis(hour * 3_600_000));
        run_with(scaler, &settings, true, moves, |model, scaler, decision| {
            is_the_same_until_due(model, scaler, decision, share)
        })?;
    }

    #[test]
    fn a_schedule_is_a_floor_whatever_else_happens(
        settings in settings(), moves in moves(), schedule in schedule(), hour in 0..24_i64,
        gaps in proptest::collection::vec(gap(), 5..20),
    ) {
        let idle = IdlePolicy::Learned { cold_start_cost: mins(5) };
        let settings = ScaleSettings { idle, schedule: schedule.clone(), max: settings.max.max(3), ..settings };
        let (teacher, _) = taught(&settings, &gaps);
        let mut scaler = Autoscaler::created(policy(&settings), at(90));
        scaler.restore_learned(&teacher.learned().unwrap()).unwrap();
        let wall = WallTime::from_unix_millis(hour * 3_600_000);
        scaler.set_wall_clock(at(90), wall);
        run_with(scaler, &settings, true, moves, |model, scaler, decision| {
            let n = model.facts.len() - 1;
            let (now, Fact::Decide(sight)) = &model.facts[n] else { unreachable!() };
            let floor = schedule.floor(wall + now.since(at(90)));
            prop_assert_eq!(scaler.scheduled().0, floor.pods);
            if sight.owner == Owner::Rouse && model.pin(n).is_none() {
                prop_assert!(decision.desired >= floor.pods, "{} below {}", decision.desired, floor.pods);
            }
            Ok(())
        })?;
    }

    #[test]
    fn no_clock_that_goes_back_or_jumps_harms_anything(
        gaps in proptest::collection::vec(gap(), 0..10), schedule in schedule(),
        times in proptest::collection::vec((any::<u64>(), any::<i64>(), 0..3_u32, any::<bool>()), 1..20),
    ) {
        let settings = ScaleSettings { schedule: schedule.clone(), ..learned(mins(10)) };
        let (mut scaler, _) = taught(&settings, &gaps);
        let mut latest = Moment::ZERO;
        for (now, wall, replicas, far) in times {
            let (now, wall) = if far { (now, wall) } else { (now % (1 << 50), wall % (1 << 42)) };
            let (now, wall) = (Moment::from_nanos(now), WallTime::from_unix_millis(wall));
            latest = latest.max(now);
            scaler.set_wall_clock(now, wall);
            let report = LoadReport { requests: u64::from(replicas % 2), ..LoadReport::default() };
            tell(&mut scaler, now, &Fact::Report(0, report));
            let observed = ObservedTarget { replicas, ready: replicas, owner: Owner::Rouse, token: () };
            let decision = scaler.decide(now, observed);
            prop_assert!(decision.desired <= 100);
            prop_assert!(decision.desired >= scaler.scheduled().0);
            prop_assert!(scaler.next_due(now).is_none_or(|due| due > now));
            let report = scaler.explain_idle().unwrap();
            prop_assert!(report.seen <= 50.1 && report.cost <= Duration::from_hours(24 * 10));
        }
    }

    #[test]
    fn a_state_is_small_and_comes_back_as_it_was(gaps in proptest::collection::vec(gap(), 0..200), cost in cost()) {
        let settings = learned(cost.max(secs(1)));
        let (scaler, _) = taught(&settings, &gaps);
        let Some(bytes) = scaler.learned() else {
            prop_assert!(scaler.explain_idle().unwrap().gaps.is_empty());
            return Ok(());
        };
        prop_assert_eq!(bytes.len(), 64);
        let mut other = Autoscaler::new(policy(&settings), at(0));
        other.restore_learned(&bytes).unwrap();
        prop_assert_eq!(other.learned().unwrap(), bytes);
        let (before, after) = (scaler.explain_idle().unwrap(), other.explain_idle().unwrap());
        prop_assert!((before.seen - after.seen).abs() <= 0.001 * before.seen.max(1.0));
        prop_assert_eq!(before.has_learned(), after.has_learned());
        for (from, to, weight) in &before.gaps {
            let same = after.gaps.iter().find(|gap| gap.0 == *from && gap.1 == *to).map_or(0.0, |gap| gap.2);
            // A step of √2, and a little more: what is too small to be kept makes the others larger.
            prop_assert!(same <= weight * 1.5 && (same >= weight / 1.5 || *weight < before.seen / 80.0), "{same} {weight}");
        }
    }

    #[test]
    fn any_bytes_are_refused_or_harm_nothing(bytes in proptest::collection::vec(any::<u8>(), STATE_BYTES)) {
        let (mut scaler, now) = taught(&learned(mins(10)), &[mins(5); 6]);
        if scaler.restore_learned(&bytes).is_ok() {
            let report = scaler.explain_idle().unwrap();
            prop_assert!(report.seen.is_finite() && report.plan.stay < Duration::from_hours(100));
        }
        let observed = ObservedTarget { replicas: 1, ready: 1, owner: Owner::Rouse, token: () };
        prop_assert!(scaler.decide(now, observed).desired <= 1);
    }
}

proptest! {
    #![proptest_config(config(3_000))]

    /// The plan against a naive model, which adds up the cost of each gap.
    #[test]
    fn no_other_plan_costs_less(
        gaps in proptest::collection::vec(gap(), 5..60), cost in cost(),
        picks in proptest::collection::vec((0.0..1.0_f64, 0.0..1.0_f64, 0.0..1.0_f64), 60),
    ) {
        let (scaler, _) = taught(&learned(cost.max(secs(1))), &gaps);
        let report = scaler.explain_idle().unwrap();
        prop_assume!(report.has_learned());
        let (own, naive) = (report.cost.as_secs_f64(), naive_cost(&report, report.plan));
        prop_assert!((own - naive).abs() <= 0.01 * naive + 0.1, "{own} {naive} {report:?}");
        for other in candidates(&report, &picks) {
            let cost = naive_cost(&report, other);
            prop_assert!(naive <= cost * 1.01 + 0.1, "{naive} {:?}, {cost} {other:?}", report.plan);
        }
    }

    /// However long it runs, a pod is away whenever the plan says so, and there whenever it is not.
    #[test]
    fn the_pods_follow_the_plan(gap in 30..4000_u64, cost in cost(), start in 1..20_u64, wait in 10..5000_u64) {
        let mut driver = Driver::new(&learned(cost.max(secs(1))), secs(start));
        driver.gaps(vec![secs(gap); 6]);
        let plan = driver.scaler.explain_idle().unwrap().plan;
        let began = driver.now;
        driver.wait(secs(wait.min(gap * 2)));
        let idle = driver.now.since(began);
        let back = plan.back.is_some_and(|back| back.from <= idle && idle + secs(1) < back.to);
        if idle + secs(1) < plan.stay || back {
            prop_assert!(driver.is_ready(), "{idle:?} of {plan:?}: {}", driver.reason);
        }
        let early = |back: WarmWindow| back.from.saturating_sub(secs(start + 2));
        let away = idle > plan.stay.max(secs(4)) && plan.back.is_none_or(|back| idle < early(back) || idle > back.to);
        if away {
            prop_assert_eq!(driver.replicas, 0, "{:?} of {:?}: {}", idle, plan, driver.reason);
        }
    }
}

#[test]
fn a_million_gaps_take_no_more_memory_than_one() {
    let (scaler, _) = taught(&learned(mins(10)), &[mins(1)]);
    let before = allocated(|| drop(scaler.clone()));
    let many: Vec<Duration> = (0..1_000_000_u64).map(|n| secs(2 + n * n % 100_000)).collect();
    let (scaler, _) = taught(&learned(mins(10)), &many);
    assert_eq!(allocated(|| drop(scaler.clone())), before);
    assert_eq!(scaler.learned().unwrap().len(), STATE_BYTES);
}

/// The bytes that a call allocates.
fn allocated(call: impl FnOnce()) -> u64 {
    allocation_counter::measure(call).bytes_total
}
