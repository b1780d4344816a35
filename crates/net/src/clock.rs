//! Implements the `Clock` of `core` with tokio's clock, so that it also follows paused time in tests.

use std::time::Duration;

use rouse_core::time::{Clock, Moment};
use tokio::time::{Instant, Sleep};

/// A clock that counts from its creation and stands still while tokio's time is paused.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    origin: Instant,
    /// How many times faster than real time it runs.
    speed: u32,
}

impl TokioClock {
    /// A clock whose origin is now.
    pub fn new() -> Self {
        Self::faster(1)
    }

    /// A clock that runs `speed` times faster than real time, at least once: for tests of what takes hours.
    pub fn faster(speed: u32) -> Self {
        Self { origin: Instant::now(), speed: speed.max(1) }
    }

    /// Sleeps until `moment` of this clock: the timer for `Registry::drive`.
    pub fn sleep_until(&self, moment: Moment) -> Sleep {
        // A clock that runs fast must not be asked a moment too early.
        let after = Duration::from_nanos(moment.as_nanos().div_ceil(self.speed.into()));
        // The addition can overflow on some platforms. `AGE` is as good as never.
        let due = self.origin.checked_add(after).unwrap_or(self.origin + AGE);
        tokio::time::sleep_until(due)
    }
}

/// Longer than any process runs.
const AGE: Duration = Duration::from_hours(30 * 365 * 24);

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        Moment::ZERO + self.origin.elapsed().saturating_mul(self.speed)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::task::Poll;

    use rouse_core::registry::{Registry, RegistrySettings};
    use rouse_testkit::fakes::CountingEngine;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sleep_ends_exactly_at_its_moment() {
        let clock = TokioClock::new();
        assert_eq!(clock.now(), Moment::ZERO);
        clock.sleep_until(Moment::from_millis(1500)).await;
        assert_eq!(clock.now(), Moment::from_millis(1500));
        clock.sleep_until(Moment::from_millis(3)).await;
        assert_eq!(clock.now(), Moment::from_millis(1500), "what is past is not waited for");
    }

    #[tokio::test(start_paused = true)]
    async fn a_faster_clock_sleeps_for_a_shorter_time() {
        let (real, fast) = (TokioClock::new(), TokioClock::faster(60));
        fast.sleep_until(Moment::from_secs(90)).await;
        assert_eq!((fast.now(), real.now()), (Moment::from_secs(90), Moment::from_millis(1500)));
        fast.sleep_until(Moment::from_nanos(90_000_000_001)).await;
        assert!(fast.now() > Moment::from_secs(90));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_time_is_never_reached_and_breaks_nothing() {
        let clock = TokioClock::new();
        let mut sleep = std::pin::pin!(clock.sleep_until(Moment::from_nanos(u64::MAX)));
        let ended = poll_fn(|context| Poll::Ready(sleep.as_mut().poll(context).is_ready())).await;
        assert!(!ended);
    }

    #[tokio::test(start_paused = true)]
    async fn a_registry_driven_by_it_repeats_wakes_in_time() {
        let (clock, engine) = (TokioClock::new(), Arc::<CountingEngine>::default());
        let registry = Registry::new(RegistrySettings::default(), Arc::new(clock), Arc::clone(&engine) as _);
        let bench = rouse_testkit::fakes::Bench { registry, clock: Arc::default(), engine };
        let (_service, port) = bench.service("cart", rouse_core::snapshot::ConcurrencyLimits::default());
        let ask = rouse_core::service::SlotRequest::default();
        tokio::select! {
            () = bench.registry.drive(|moment| clock.sleep_until(moment)) => {}
            _ = port.acquire(ask, std::future::pending()) => {}
            () = clock.sleep_until(Moment::from_secs(60)) => {}
        }
        assert!(bench.engine.wakes() > 1, "only the driven timer repeats a wake");
        assert_eq!(clock.now(), Moment::from_secs(60));
    }
}
