//! The probe schedule: the pause between two probes of a pod, short at first and then growing with time.
//!
//! Pure functions: elapsed time and random numbers are passed in.

use std::time::Duration;

use rouse_core::random::between;

/// How often a pod is probed. The first probe is sent at once; the schedule gives the pause after each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeSchedule {
    /// The shortest pause in the eager phase.
    least: Duration,
    /// The longest pause in the eager phase.
    most: Duration,
    /// After the eager phase, a pause is the time since then divided by this (plus `most`), so a pod is found late by at most
    /// that share of its start time. Doubling the pause instead would find a pod that takes 700 ms up to half a second late.
    share: u32,
}

impl ProbeSchedule {
    /// The length of the eager phase.
    pub const EAGER: Duration = Duration::from_millis(200);

    /// The longest pause while a pod is not ready.
    pub const SLOWEST: Duration = Duration::from_secs(1);

    /// On this machine, where a refused probe costs microseconds: every 2 to 5 ms.
    pub const fn local() -> Self {
        Self { least: Duration::from_millis(2), most: Duration::from_millis(5), share: 50 }
    }

    /// Over a cluster's network: every 10 to 25 ms.
    pub const fn cluster() -> Self {
        Self { least: Duration::from_millis(10), most: Duration::from_millis(25), share: 10 }
    }

    /// The pause after a probe of a pod that has been probed for `elapsed`. `random` is a fresh random number.
    pub fn next(&self, elapsed: Duration, random: u64) -> Duration {
        match elapsed.checked_sub(Self::EAGER) {
            None => between(self.least, self.most, random),
            Some(late) => jittered((self.most + late / self.share).min(Self::SLOWEST), random),
        }
    }

    /// The pause after a probe of a promoted pod, with the probe interval `every`.
    pub fn steady(every: Duration, random: u64) -> Duration {
        jittered(every, random)
    }
}

/// `pause` minus up to a quarter, so that pods that started together are not probed in step for ever.
fn jittered(pause: Duration, random: u64) -> Duration {
    between(pause * 3 / 4, pause, random)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_pauses_are_those_of_the_table() {
        // elapsed, then the shortest and the longest pause, in ms: local, cluster.
        let table = [
            (0, (2, 5), (10, 25)),
            (199, (2, 5), (10, 25)),
            (1_200, (19, 25), (93, 125)),
            (5_200, (79, 105), (393, 525)),
            (60_000, (750, 1_000), (750, 1_000)),
        ];
        let near = |is: Duration, should: u64| is.abs_diff(ms(should)) < ms(1);
        for (elapsed, local, cluster) in table {
            for (schedule, (least, most)) in
                [(ProbeSchedule::local(), local), (ProbeSchedule::cluster(), cluster)]
            {
                let (low, high) = (schedule.next(ms(elapsed), 0), schedule.next(ms(elapsed), u64::MAX));
                assert!(
                    near(low, least) && near(high, most),
                    "{schedule:?} at {elapsed} ms: {low:?} to {high:?}"
                );
            }
        }
    }

    fn schedules() -> impl Strategy<Value = ProbeSchedule> {
        prop_oneof![Just(ProbeSchedule::local()), Just(ProbeSchedule::cluster())]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn no_pause_leaves_its_bounds(schedule in schedules(), elapsed in any::<u64>(), random in any::<u64>()) {
            let elapsed = Duration::from_nanos(elapsed);
            let pause = schedule.next(elapsed, random);
            prop_assert!(pause >= schedule.least && pause <= ProbeSchedule::SLOWEST);
            prop_assert!(elapsed >= ProbeSchedule::EAGER || pause <= schedule.most);
            prop_assert!((ms(750)..=ms(1000)).contains(&ProbeSchedule::steady(ms(1000), random)));
        }

        #[test]
        fn a_pod_is_found_at_most_its_share_and_one_eager_pause_late(
            schedule in schedules(), start in 0u64..20_000_000_000, random in any::<u64>(),
        ) {
            let start = Duration::from_nanos(start);
            let (mut at, mut probes) = (Duration::ZERO, 1u32);
            while at < start {
                at += schedule.next(at, random.rotate_left(probes).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                probes += 1;
            }
            let late = at.abs_diff(start);
            prop_assert!(late <= (schedule.most + start / schedule.share).min(ProbeSchedule::SLOWEST), "{late:?} late");
            prop_assert!(probes <= 500, "{probes} probes within {at:?}");
        }
    }
}
