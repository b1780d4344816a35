//! Schedules DNS look-ups of the peers.

use std::time::Duration;

use rouse_core::random::between;
use rouse_core::time::Moment;

/// The interval while something is wrong: a peer fails, or does not know the newest state.
const URGENT: Duration = Duration::from_secs(2);
/// The interval otherwise. The DNS of a cluster caches for up to 30 s.
const CALM: Duration = Duration::from_secs(15);

/// The time of the next look-up. Each interval is shortened by up to a quarter at random, so that pods that started together
/// do not ask together.
#[derive(Debug, Clone, Copy, Default)]
pub struct LookupSchedule {
    urgent: Moment,
    calm: Moment,
}

impl LookupSchedule {
    /// When the next look-up is due: at once before the first.
    pub fn due(&self, urgent: bool) -> Moment {
        if urgent { self.urgent } else { self.calm }
    }

    /// A look-up starts.
    pub fn started(&mut self, now: Moment, random: u64) {
        let after = |interval: Duration| now + between(interval * 3 / 4, interval, random);
        *self = Self { urgent: after(URGENT), calm: after(CALM) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_is_due_at_once() {
        let schedule = LookupSchedule::default();
        assert_eq!((schedule.due(false), schedule.due(true)), (Moment::ZERO, Moment::ZERO));
    }

    proptest! {
        #[test]
        fn look_ups_are_two_or_fifteen_seconds_apart_at_most(start in 0..1_000_000_u64, random: u64) {
            let (now, mut schedule) = (Moment::from_millis(start), LookupSchedule::default());
            schedule.started(now, random);
            for (urgent, seconds) in [(true, 2), (false, 15)] {
                let pause = schedule.due(urgent).since(now);
                let interval = Duration::from_secs(seconds);
                prop_assert!(pause <= interval && pause >= interval * 3 / 4, "{:?}", pause);
            }
        }
    }
}
