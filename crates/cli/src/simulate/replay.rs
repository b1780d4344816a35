//! Replays the calls of one service against one scaler, from event to event.

use std::time::Duration;

use rouse_core::time::Moment;

use super::call_trace::Calls;
use super::service::{ServiceModel, SimulatedService};
use super::totals::Totals;

/// What a scaler may notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// Requests have arrived.
    Arrival,
    /// A pod is ready.
    Ready,
    /// The time has come that the scaler asked for.
    Timer,
}

/// The decision of a scaler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// How many pods there should be.
    pub(super) desired: u32,
    /// When it looks again if nothing happens before.
    pub(super) next: Option<Moment>,
}

/// A scaler of one service.
pub(super) trait Scaler {
    /// Looks at the service. `None`: it does not notice the event, and changes nothing.
    fn look(&mut self, service: &SimulatedService, event: Event) -> Option<Look>;
}

/// One replay: the service, its scaler, and when the scaler looks next.
struct Replay<'a> {
    service: SimulatedService,
    scaler: &'a mut dyn Scaler,
    timer: Option<Moment>,
}

/// What the calls cost before and after `split`.
pub(super) fn replay(
    calls: &Calls,
    (split, end): (Duration, Duration),
    model: ServiceModel,
    scaler: &mut dyn Scaler,
) -> [Totals; 2] {
    let mut replay = Replay { service: SimulatedService::new(model), scaler, timer: None };
    let mut arrivals = calls.arrivals().peekable();
    [split, end].map(|boundary| {
        let boundary = Moment::ZERO + boundary;
        loop {
            let arrival = arrivals.peek().copied();
            let times = [arrival.map(|arrival| arrival.at), replay.timer, replay.service.next_ready()];
            let Some(next) = times.into_iter().flatten().min().filter(|next| *next < boundary) else { break };
            replay.pass(next);
            if let Some(arrival) = arrival.filter(|arrival| arrival.at == next) {
                arrivals.next();
                replay.service.arrive(arrival.calls);
                replay.look(Event::Arrival);
            }
            if replay.timer.is_some_and(|timer| timer <= next) {
                replay.timer = None;
                replay.look(Event::Timer);
            }
        }
        replay.pass(boundary);
        replay.service.settle()
    })
}

impl Replay<'_> {
    fn pass(&mut self, to: Moment) {
        let ready = self.service.ready();
        self.service.advance(to);
        if self.service.ready() > ready {
            self.look(Event::Ready);
        }
    }

    fn look(&mut self, event: Event) {
        if let Some(Look { desired, next }) = self.scaler.look(&self.service, event) {
            self.service.scale(desired);
            self.timer = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rouse_core::time::Moment;

    use super::super::policies::Policy;
    use super::*;

    /// When each call comes, in milliseconds: some close together, some far apart.
    fn calls() -> impl Strategy<Value = Vec<u64>> {
        let gap = prop_oneof![1 => 1..3_000_u64, 2 => 3_000..400_000_u64];
        proptest::collection::vec(gap, 1..40).prop_map(|gaps| {
            let mut at = 0;
            let after = gaps.into_iter().map(|gap| {
                at += gap;
                at
            });
            after.collect()
        })
    }

    /// Cold starts, milliseconds waited and milliseconds without a request, if a pod goes this long after the last request.
    fn naive(calls: &[u64], window: u64, start: u64, request: u64) -> (u64, u64, u64) {
        let (mut cold, mut waited, mut idle) = (0, 0, 0);
        let (mut ready, mut ends): (u64, Option<u64>) = (0, None);
        for at in calls {
            if ends.is_none_or(|ends| *at > ends + window) {
                cold += 1;
                idle += ends.map_or(0, |_| window);
                ready = at + start;
            } else if let Some(ends) = ends {
                idle += at.saturating_sub(ends);
            }
            waited += ready.saturating_sub(*at);
            ends = Some(ends.unwrap_or(0).max(ready.max(*at) + request));
        }
        (cold, waited, idle + window)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, max_global_rejects: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_fixed_window_costs_what_a_naive_model_says(
            calls in calls(), window in 20..300_u64, start in 0..10_u64, request in 1..5_000_u64,
        ) {
            let model = ServiceModel {
                start_time: Duration::from_secs(start),
                request_time: Duration::from_millis(request),
                target: 100,
            };
            let (window, start) = (window * 1000, start * 1000);
            // Load is read each second, so its end is noticed up to a second late: such a call may be cold or warm. The
            // call before may have waited for a start.
            let is_close = |pair: &[u64]| {
                let gap = (pair[1] - pair[0]).saturating_sub(request);
                (window - 1_000..=window + start + 2_000).contains(&gap)
            };
            prop_assume!(!calls.windows(2).any(is_close));
            let (cold, waited, idle) = naive(&calls, window, start, request);
            let end = Duration::from_millis(calls.last().unwrap() + window + start + request + 10_000);
            let moments = Calls::At(calls.iter().map(|at| Moment::from_millis(*at)).collect());
            let mut scaler = Policy::Fixed(Duration::from_millis(window)).scaler(&model, 0).unwrap();
            let [before, totals] = replay(&moments, (Duration::ZERO, end), model, &mut *scaler);
            prop_assert_eq!(before, Totals::default());
            prop_assert_eq!(totals.cold_starts, cold);
            prop_assert_eq!(totals.waited_nanos, u128::from(waited) * 1_000_000);
            let late = u128::from(cold) * 1_100_000_000;
            let idle = u128::from(idle) * 1_000_000;
            prop_assert!((idle..=idle + late).contains(&totals.idle_pod_nanos), "{} {idle}", totals.idle_pod_nanos);
        }

        /// Wherever the replay is split, the two parts are the whole.
        #[test]
        fn a_split_changes_nothing(calls in calls(), split in 0..2_000_u64, policy in 0..5_usize) {
            let policies = [
                Policy::Fixed(Duration::from_mins(1)),
                Policy::Learned(Duration::from_mins(5)),
                Policy::Keda,
                Policy::KedaHttp,
                Policy::Knative,
            ];
            let model = ServiceModel {
                start_time: Duration::from_secs(4),
                request_time: Duration::from_millis(1_500),
                target: 2,
            };
            let moments = Calls::At(calls.iter().map(|at| Moment::from_millis(*at)).collect());
            let end = Duration::from_hours(5);
            let cost = |split| {
                let mut scaler = policies[policy].scaler(&model, 3).unwrap();
                let [mut one, other] = replay(&moments, (split, end), model, &mut *scaler);
                one += other;
                one
            };
            prop_assert_eq!(cost(Duration::from_secs(split)), cost(Duration::ZERO));
        }
    }
}
