//! Idle policies that learn: what they do for timers, bursts and changes of behaviour, and what they never do.

use std::iter::repeat_n;
use std::time::Duration;

use rouse_core::random::Random;
use rouse_core::scale::{
    Autoscaler, BadState, IdlePlan, IdlePolicy, ObservedTarget, Owner, SHORTEST_GAP, STATE_BYTES,
    ScalePolicy, ScaleReason, ScaleSettings, Schedule, WarmWindow,
};
use rouse_core::time::{Moment, WallTime};

use crate::driver::{Driver, learned, mins, secs};

/// The share of a plan in which a pod is warm before a request that comes after `gap`.
fn warm_time(plan: IdlePlan, gap: Duration) -> Duration {
    let back = plan.back.map_or(Duration::ZERO, |WarmWindow { from, to }| gap.min(to).saturating_sub(from));
    gap.min(plan.stay) + back
}

#[test]
fn a_timer_meets_a_warm_pod_that_was_started_just_before() {
    for period in [secs(90), mins(5), mins(20), mins(60)] {
        let mut driver = Driver::new(&ScaleSettings { idle_after: secs(20), ..learned(mins(10)) }, secs(4));
        let first = driver.gaps(repeat_n(period, 5));
        assert_eq!(first, [false; 5], "{period:?}: it has to learn first");
        let before = driver.pod_seconds;
        let later = driver.gaps(repeat_n(period, 20));
        assert_eq!(later, [true; 20], "{period:?}: {:?}", driver.scaler.explain_idle().unwrap().plan);
        let each = (driver.pod_seconds - before) / 20;
        assert!(each <= period.as_secs() / 5, "{period:?}: {each} pod-seconds for each call");
    }
}

#[test]
fn a_timer_with_jitter_is_met_as_well() {
    let mut random = Random::new(1);
    let jitter = || secs(90 + random.below(12) as u64);
    let mut driver = Driver::new(&learned(mins(10)), secs(2));
    let gaps: Vec<Duration> = std::iter::repeat_with(jitter).take(80).collect();
    driver.gaps(gaps[..30].iter().copied());
    let (cold, pods) = (driver.cold_starts, driver.pod_seconds);
    driver.gaps(gaps[30..].iter().copied());
    assert!(driver.cold_starts - cold <= 1, "{} cold starts", driver.cold_starts - cold);
    assert!((driver.pod_seconds - pods) / 50 < 40, "{} pod-seconds a call", (driver.pod_seconds - pods) / 50);
}

/// Five calls ten seconds apart, each five minutes.
#[test]
fn a_burst_each_five_minutes_is_kept_warm_in_itself_and_met_at_its_begin() {
    let mut driver = Driver::new(&learned(mins(10)), secs(2));
    let burst = || repeat_n(secs(10), 4).chain([mins(4)]);
    driver.gaps((0..5).flat_map(|_| burst()));
    let plan = driver.scaler.explain_idle().unwrap().plan;
    assert!(plan.stay >= secs(10) && plan.stay <= secs(30), "{plan:?}");
    assert!(plan.back.is_some_and(|back| back.from <= mins(4) && back.to > mins(4)), "{plan:?}");
    let (cold, pods) = (driver.cold_starts, driver.pod_seconds);
    driver.gaps((0..5).flat_map(|_| burst()));
    assert_eq!(driver.cold_starts, cold);
    let each = (driver.pod_seconds - pods) / 5;
    assert!(each < 120, "{each} pod-seconds for each burst of 40 s");
}

#[test]
fn calls_without_a_pattern_get_a_window_by_what_a_cold_start_is_worth() {
    let gaps = |count| {
        let mut random = Random::new(7);
        // Without memory, half an hour on average.
        let share = move || f64::from(u32::try_from(random.below(1 << 20)).unwrap() + 1) / f64::from(1 << 20);
        std::iter::repeat_with(share).map(|share| mins(30).mul_f64(-share.ln())).take(count)
    };
    for (cost, least, most) in [(mins(1), secs(0), mins(2)), (mins(300), mins(60), mins(2000))] {
        let mut driver = Driver::new(&learned(cost), secs(2));
        driver.gaps(gaps(60));
        let report = driver.scaler.explain_idle().unwrap();
        let warm = warm_time(report.plan, mins(24 * 60));
        assert!(warm >= least && warm <= most, "worth {cost:?}: {report:?}");
        assert!(report.cost <= report.fixed_cost, "{report:?}");
    }
}

#[test]
fn a_changed_behaviour_is_learned_within_twenty_gaps() {
    let mut driver = Driver::new(&learned(mins(10)), secs(2));
    driver.gaps(repeat_n(secs(90), 200));
    let met = driver.gaps(repeat_n(mins(7), 20));
    assert!(met[15..].iter().all(|met| *met), "{met:?}");
    let met = driver.gaps(repeat_n(secs(40), 20));
    assert!(met[15..].iter().all(|met| *met), "{met:?}");
}

#[test]
fn a_pod_that_takes_long_to_start_is_started_so_much_earlier() {
    let mut driver = Driver::new(&learned(mins(10)), secs(60));
    driver.gaps(repeat_n(mins(10), 6));
    let window = driver.scaler.explain_idle().unwrap().plan.back.unwrap();
    let began = driver.now;
    driver.wait(secs(30));
    assert_eq!(driver.replicas, 0, "{}", driver.reason);
    while driver.replicas == 0 {
        driver.second();
    }
    assert_eq!(driver.reason, ScaleReason::Ahead { from: window.from, to: window.to });
    driver.wait(secs(60));
    let ready = driver.now.since(began);
    assert!(
        driver.is_ready() && ready <= window.from + secs(2) && ready + secs(2) >= window.from,
        "{ready:?}"
    );
}

#[test]
fn a_pod_that_was_started_for_nothing_goes_at_the_end_of_its_window() {
    let mut driver = Driver::new(&learned(mins(10)), secs(2));
    driver.gaps(repeat_n(mins(10), 10));
    let window = driver.scaler.explain_idle().unwrap().plan.back.unwrap();
    driver.wait(window.to);
    assert_eq!(driver.replicas, 1, "{}", driver.reason);
    driver.wait(secs(1));
    assert_eq!((driver.replicas, &driver.reason), (0, &ScaleReason::AtZero));
    driver.wait(mins(60));
    assert_eq!(driver.replicas, 0, "and nothing is started again");
    assert!(!driver.request());
}

/// A pod takes two minutes, and the client waits for ten seconds.
#[test]
fn a_start_for_which_no_request_waits_any_more_is_finished() {
    let mut driver = Driver::new(&learned(secs(1)), secs(120));
    driver.gaps(repeat_n(mins(60), 10));
    driver.wait(mins(60));
    driver.impatient_request();
    driver.wait(secs(130));
    assert!(driver.is_ready(), "{}", driver.reason);
    assert!(driver.request(), "the second try");
    driver.wait(SHORTEST_GAP);
    assert_eq!((driver.replicas, &driver.reason), (0, &ScaleReason::AtZero), "served: now it may go at once");
}

#[test]
fn at_zero_the_first_gaps_are_as_with_the_fixed_policy() {
    let settings = learned(mins(10));
    let (mut learner, mut fixed) = (
        Driver::new(&settings, secs(2)),
        Driver::new(&ScaleSettings { idle: IdlePolicy::Fixed, ..settings }, secs(2)),
    );
    for gap in [90, 100, 95] {
        assert_eq!(learner.gaps([secs(gap)]), fixed.gaps([secs(gap)]));
        assert_eq!((learner.pod_seconds, &learner.reason), (fixed.pod_seconds, &fixed.reason));
    }
    let report = learner.scaler.explain_idle().unwrap();
    assert!(!report.has_learned() && report.seen < report.needed, "{report:?}");
    assert_eq!(report.plan, IdlePlan { stay: mins(1), back: None });
    assert_eq!(fixed.scaler.explain_idle(), None);
    assert_eq!(fixed.scaler.learned(), None);
}

#[test]
fn what_was_learned_survives_a_restart_and_waits_for_the_first_request() {
    let settings = learned(mins(10));
    let mut driver = Driver::new(&settings, secs(2));
    driver.gaps(repeat_n(mins(5), 10));
    let bytes = driver.scaler.learned().unwrap();
    let known = driver.scaler.explain_idle().unwrap();

    let mut scaler = Autoscaler::new(ScalePolicy::try_from(&settings).unwrap(), Moment::ZERO);
    scaler.restore_learned(&bytes).unwrap();
    let restored = scaler.explain_idle().unwrap();
    assert_eq!((restored.plan, restored.has_learned()), (known.plan, true));
    assert_eq!(scaler.learned().unwrap(), bytes);
    let mut driver = Driver::with(scaler, secs(2));
    driver.wait(mins(10));
    assert_eq!(driver.pod_seconds, 0, "since when it is idle is not known, so nothing is started");
    assert_eq!(driver.gaps([mins(1), mins(5), mins(5)]), [false, true, true]);
}

#[test]
fn garbage_is_no_state_and_changes_nothing() {
    let mut driver = Driver::new(&learned(mins(10)), secs(2));
    driver.gaps(repeat_n(mins(5), 10));
    let (bytes, before) = (driver.scaler.learned().unwrap(), driver.scaler.explain_idle());
    assert_eq!(bytes.len(), STATE_BYTES);
    let refused = |driver: &mut Driver, bytes: &[u8]| driver.scaler.restore_learned(bytes).unwrap_err();
    assert_eq!(refused(&mut driver, &[]), BadState::Length(0));
    assert_eq!(refused(&mut driver, &bytes[1..]), BadState::Length(63));
    assert_eq!(refused(&mut driver, &[bytes.as_slice(), &[0]].concat()), BadState::Length(65));
    let mut newer = bytes;
    newer[0] = 2;
    assert_eq!(refused(&mut driver, &newer), BadState::Version(2));
    for at in 1..STATE_BYTES {
        let mut damaged = bytes;
        damaged[at] ^= 1 << (at % 8);
        assert_eq!(refused(&mut driver, &damaged), BadState::Damaged, "byte {at}");
    }
    assert_eq!(driver.scaler.explain_idle(), before);
    let fixed = ScalePolicy::try_from(&ScaleSettings::default()).unwrap();
    driver.scaler.set_policy(fixed);
    assert_eq!(driver.scaler.restore_learned(&[]), Ok(()), "a fixed policy has no state");
}

#[test]
fn a_new_cost_keeps_what_was_learned() {
    let mut driver = Driver::new(&learned(mins(10)), secs(2));
    driver.gaps(repeat_n(mins(5), 10));
    let before = driver.scaler.explain_idle().unwrap();
    let dear = ScalePolicy::try_from(&learned(mins(200))).unwrap();
    driver.scaler.set_policy(dear);
    let after = driver.scaler.explain_idle().unwrap();
    assert_eq!((after.gaps, after.cold_start_cost), (before.gaps, mins(200)));
    driver.scaler.set_policy(ScalePolicy::try_from(&ScaleSettings::default()).unwrap());
    assert_eq!(driver.scaler.explain_idle(), None);
}

#[test]
fn where_another_owner_scales_or_a_pin_holds_nothing_is_started_ahead() {
    let mut driver = Driver::new(&learned(mins(10)), secs(2));
    driver.gaps(repeat_n(mins(5), 10));
    let window = driver.scaler.explain_idle().unwrap().plan.back.unwrap();
    let now = driver.now + window.from;
    let at_zero = |owner| ObservedTarget { replicas: 0, ready: 0, owner, token: () };
    let mut scaler = driver.scaler.clone();
    assert_eq!(scaler.decide(now, at_zero(Owner::Other)).desired, 0);
    let ahead = scaler.decide(now, at_zero(Owner::Rouse));
    assert_eq!((ahead.desired, ahead.reason), (1, ScaleReason::Ahead { from: window.from, to: window.to }));
    scaler.pin(0);
    assert_eq!(scaler.decide(now, at_zero(Owner::Rouse)).desired, 0);
    assert_eq!(scaler.decide(now, at_zero(Owner::Rouse)).desired, 0);
    scaler.unpin();
    assert_eq!(scaler.decide(now, at_zero(Owner::Rouse)).desired, 1);
}

/// 2026-01-05 was a Monday.
fn monday(hour: i64, minute: i64) -> WallTime {
    WallTime::from_unix_millis(1_767_571_200_000 + (hour * 60 + minute) * 60_000)
}

fn scheduled(schedule: &str) -> ScaleSettings {
    ScaleSettings { schedule: schedule.parse::<Schedule>().unwrap(), ..learned(mins(10)) }
}

#[test]
fn a_schedule_starts_and_keeps_pods_and_ends() {
    let mut driver = Driver::new(&scheduled("Mon 08:00-09:00 UTC = 2"), secs(2));
    driver.wait(secs(10));
    assert_eq!(driver.replicas, 0, "wall time is not known");
    assert!(driver.scaler.set_wall_clock(driver.now, monday(7, 59)));
    assert!(!driver.scaler.set_wall_clock(driver.now, monday(7, 59)));
    assert_eq!(driver.scaler.scheduled(), (0, Some(driver.now + mins(1))));
    driver.wait(secs(59));
    assert_eq!(driver.replicas, 0);
    driver.wait(secs(1));
    assert_eq!((driver.replicas, &driver.reason), (2, &ScaleReason::Schedule));
    driver.wait(secs(3599));
    assert_eq!(driver.replicas, 2, "also without load");
    driver.wait(secs(1));
    assert_eq!(driver.replicas, 0, "{}", driver.reason);
}

#[test]
fn a_clock_that_is_set_moves_the_schedule() {
    let mut driver = Driver::new(&scheduled("Mon 08:00-09:00 UTC = 1"), secs(2));
    driver.scaler.set_wall_clock(driver.now, monday(8, 30));
    driver.second();
    assert_eq!(driver.replicas, 1);
    assert!(driver.scaler.set_wall_clock(driver.now, monday(3, 0)), "it goes back");
    driver.wait(secs(1));
    assert_eq!(driver.scaler.scheduled(), (0, Some(driver.now - secs(1) + mins(300))));
    driver.wait(mins(2));
    assert_eq!(driver.replicas, 0, "{}", driver.reason);
    driver.scaler.set_policy(ScalePolicy::try_from(&scheduled("Mon 03:00-04:00 UTC = 3")).unwrap());
    driver.second();
    assert_eq!(driver.replicas, 3, "{}", driver.reason);
}

#[test]
fn a_schedule_above_max_and_a_cost_of_nothing_are_refused() {
    let bad = ScaleSettings { max: 2, ..scheduled("daily 08:00-09:00 UTC = 3") };
    let error = ScalePolicy::try_from(&bad).unwrap_err().to_string();
    assert_eq!(error, "schedule: 3 is not allowed, expected at most max, which is 2");
    for cost in [Duration::ZERO, Duration::from_millis(999), Duration::MAX] {
        let error = ScalePolicy::try_from(&learned(cost)).unwrap_err();
        assert_eq!((error.0[0].field, error.0[0].allowed.as_str()), ("cold-start-cost", "1 s to 30 days"));
    }
}

#[test]
fn the_reasons_of_learned_decisions_are_sentences() {
    let (from, to) = (secs(285), secs(3700));
    for (reason, sentence) in [
        (ScaleReason::Away, "no load, and by the gaps between past requests, none is likely soon"),
        (
            ScaleReason::KeptWarm { until: Duration::from_millis(12_400) },
            "no load, but by past gaps, a request is likely within 12s of the last",
        ),
        (
            ScaleReason::Ahead { from, to },
            "no load, but by past gaps, a request is likely 4m45s to 1h1m after the last",
        ),
        (ScaleReason::Schedule, "the load needs fewer pods, but this is what the schedule says"),
    ] {
        assert_eq!(reason.to_string(), sentence);
    }
}
