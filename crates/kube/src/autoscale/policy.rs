//! The settings of all routes to one workload → one scaling policy.
//!
//! Each route is a constraint on the workload: the strictest target counts, the largest `min` and the smallest `max`. Of two
//! times, the one that keeps pods longer counts. The windows of all schedules count, and where they overlap, the largest number
//! of pods. One route that asks for a learned idle policy is enough, unless another asks for a fixed one; of several costs of a
//! cold start, the largest counts.

use std::time::Duration;

use rouse_core::scale::{BadPolicy, IdlePolicy, ScalePolicy, ScaleSettings, Schedule};

use crate::objects::route::ScalingSpec;

/// The target of a route that sets none, as in KEDA HTTP add-on. The same as in [`ScaleSettings::default`].
const DEFAULT_CONCURRENCY: u32 = 100;
/// The longest window of a rate that is kept for each route.
const LONGEST_WINDOW: Duration = Duration::from_hours(1);

/// The policy of the workload that all these routes lead to.
pub(super) fn policy<'a>(
    routes: impl Iterator<Item = &'a ScalingSpec> + Clone,
) -> Result<ScalePolicy, BadPolicy> {
    ScalePolicy::try_from(&settings(routes))
}

fn settings<'a>(routes: impl Iterator<Item = &'a ScalingSpec> + Clone) -> ScaleSettings {
    let defaults = ScaleSettings::default();
    let concurrency = routes.clone().filter_map(|route| route.concurrency).min().map(f64::from);
    let rate = routes.clone().filter_map(|route| route.rate).map(|rate| rate.target).min().map(f64::from);
    let min = routes.clone().map(|route| route.min).max().unwrap_or(defaults.min);
    let limits = routes.clone().filter_map(|route| route.concurrency_limit);
    let idle = idle_policy(routes.clone());
    let idle_after = routes.clone().map(|route| route.idle_after.unwrap_or(idle.default_idle_after()));
    let schedules = routes.clone().map(|route| &route.schedule);
    let schedule = schedules.fold(Schedule::default(), |all, schedule| all.with(schedule));
    let max = routes.clone().filter_map(|route| route.max).min();
    ScaleSettings {
        concurrency: concurrency.or(defaults.concurrency.filter(|_| rate.is_none())),
        rate,
        limit: limits.filter(|limit| *limit > 0).min().unwrap_or(defaults.limit),
        min,
        // Without a `max`, a large `min` or a schedule of many pods is no contradiction.
        max: max.unwrap_or(defaults.max.max(min).max(schedule.most())),
        schedule,
        idle,
        idle_after: idle_after.max().unwrap_or(defaults.idle_after),
        stable_window: routes.map(|route| window(route, &defaults)).max().unwrap_or(defaults.stable_window),
        ..defaults
    }
}

/// The concurrent requests that one pod of a route is for; `None`: it scales on its rate alone.
pub(super) fn concurrency_target(route: &ScalingSpec) -> Option<u32> {
    route.concurrency.or(route.rate.is_none().then_some(DEFAULT_CONCURRENCY))
}

/// The window over which the request rate of a route is measured.
pub(super) fn rate_window(route: &ScalingSpec) -> Duration {
    route.rate.map_or(ScaleSettings::default().stable_window, |rate| rate.window).min(LONGEST_WINDOW)
}

/// Whether the time until zero is learned.
fn idle_policy<'a>(routes: impl Iterator<Item = &'a ScalingSpec>) -> IdlePolicy {
    let mut learned = IdlePolicy::Fixed;
    for said in routes.filter_map(|route| route.idle) {
        learned = match (said, learned) {
            (IdlePolicy::Fixed, _) => return IdlePolicy::Fixed,
            (
                IdlePolicy::Learned { cold_start_cost: one },
                IdlePolicy::Learned { cold_start_cost: other },
            ) => IdlePolicy::Learned { cold_start_cost: one.max(other) },
            (said, IdlePolicy::Fixed) => said,
        };
    }
    learned
}

/// The time over which the load of a route is averaged.
fn window(route: &ScalingSpec, defaults: &ScaleSettings) -> Duration {
    match (route.concurrency, &route.rate) {
        (None, Some(rate)) => rate.window,
        (Some(_), Some(rate)) => rate.window.max(defaults.stable_window),
        (_, None) => defaults.stable_window,
    }
}

#[cfg(test)]
mod tests {
    use rouse_core::time::WallTime;

    use super::*;
    use crate::objects::route::RateSpec;

    fn merged(routes: &[ScalingSpec]) -> ScaleSettings {
        settings(routes.iter())
    }

    fn rate(target: u32, window: u64) -> ScalingSpec {
        let (window, granularity) = (Duration::from_secs(window), Duration::from_secs(1));
        ScalingSpec { rate: Some(RateSpec { target, window, granularity }), ..ScalingSpec::default() }
    }

    #[test]
    fn a_route_without_settings_gets_the_defaults() {
        assert_eq!(merged(&[ScalingSpec::default()]), ScaleSettings::default());
        assert!(policy([ScalingSpec::default()].iter()).is_ok());
    }

    #[test]
    fn of_several_routes_the_strictest_settings_count() {
        let one = ScalingSpec {
            concurrency: Some(50),
            min: 1,
            max: Some(10),
            idle_after: Some(Duration::from_secs(30)),
            concurrency_limit: Some(20),
            ..ScalingSpec::default()
        };
        let other = ScalingSpec { concurrency: Some(10), min: 3, max: Some(5), ..ScalingSpec::default() };
        let third = ScalingSpec { concurrency_limit: Some(0), ..rate(7, 120) };
        let all = merged(&[one, other, third]);
        assert_eq!((all.concurrency, all.rate, all.limit), (Some(10.0), Some(7.0), 20));
        assert_eq!((all.min, all.max), (3, 5));
        assert_eq!((all.idle_after, all.stable_window), (Duration::from_mins(1), Duration::from_mins(2)));
    }

    #[test]
    fn a_rate_alone_has_no_target_of_concurrency_and_its_own_window() {
        let settings = merged(&[rate(5, 30)]);
        assert_eq!((settings.concurrency, settings.rate), (None, Some(5.0)));
        assert_eq!(settings.stable_window, Duration::from_secs(30));
    }

    fn scheduled(text: &str) -> ScalingSpec {
        ScalingSpec { schedule: text.parse().unwrap(), ..ScalingSpec::default() }
    }

    #[test]
    fn the_windows_of_all_schedules_count_and_where_they_overlap_the_largest_number() {
        let (day, noon) = (scheduled("daily 08:00-18:00 UTC = 2"), scheduled("daily 12:00-13:00 UTC = 5"));
        let all = merged(&[day.clone(), ScalingSpec::default(), noon, day]).schedule;
        let floor = |hour: i64| all.floor(WallTime::from_unix_millis(hour * 3_600_000)).pods;
        assert_eq!([7, 8, 11, 12, 13, 18].map(floor), [0, 2, 2, 5, 2, 0]);
        assert_eq!(all.parts(), 2, "the same window twice is one");
    }

    #[test]
    fn a_schedule_of_more_pods_than_max_is_refused_and_without_a_max_it_is_not() {
        let large = scheduled("daily 08:00-18:00 UTC = 150");
        assert_eq!(merged(std::slice::from_ref(&large)).max, 150);
        let small = ScalingSpec { max: Some(3), ..ScalingSpec::default() };
        let error = policy([large, small].iter()).unwrap_err().to_string();
        assert!(error.contains("schedule: 150 is not allowed, expected at most max, which is 3"), "{error}");
    }

    #[test]
    fn routes_together_have_no_more_windows_than_one_schedule_may_have() {
        let many: Vec<ScalingSpec> =
            (0..33).map(|n| scheduled(&format!("daily 08:{n:02}-18:00 UTC = 2"))).collect();
        assert!(policy(many[..32].iter()).is_ok());
        let error = policy(many.iter()).unwrap_err().to_string();
        assert!(error.contains("schedule: a schedule of 33 parts is not allowed"), "{error}");
    }

    #[test]
    fn one_route_is_enough_for_a_learned_policy_unless_another_asks_for_a_fixed_one() {
        let learned = |cost| IdlePolicy::Learned { cold_start_cost: Duration::from_mins(cost) };
        let of = |idle: &[Option<IdlePolicy>]| {
            let route = |idle: &Option<IdlePolicy>| ScalingSpec { idle: *idle, ..ScalingSpec::default() };
            merged(&idle.iter().map(route).collect::<Vec<_>>())
        };
        assert_eq!(of(&[None]).idle, IdlePolicy::Fixed);
        let all = of(&[Some(learned(3)), None, Some(learned(20)), Some(learned(7))]);
        assert_eq!((all.idle, all.idle_after), (learned(20), Duration::from_mins(20)));
        assert_eq!(
            of(&[Some(learned(3)), Some(IdlePolicy::Fixed), Some(learned(7))]).idle,
            IdlePolicy::Fixed
        );
        let mut both = ScalingSpec { idle: Some(learned(3)), ..ScalingSpec::default() };
        both.idle_after = Some(Duration::from_secs(30));
        assert_eq!(merged(&[both]).idle_after, Duration::from_secs(30), "its own until it has learned");
    }

    #[test]
    fn what_contradicts_is_refused_and_a_large_min_without_a_max_is_not() {
        let large = ScalingSpec { min: 200, ..ScalingSpec::default() };
        assert_eq!(merged(std::slice::from_ref(&large)).max, 200);
        let small = ScalingSpec { max: Some(3), ..ScalingSpec::default() };
        let error = policy([large, small].iter()).unwrap_err().to_string();
        assert!(error.contains("min: 200 is not allowed, expected 0 to max, which is 3"), "{error}");
        let error = policy([rate(1, 2)].iter()).unwrap_err().to_string();
        assert!(error.contains("stable-window: 2s is not allowed"), "{error}");
    }
}
