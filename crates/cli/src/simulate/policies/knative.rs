//! Knative's KPA with its defaults: concurrency averaged over 60 s and, in panic, over 6 s; a decision every 2 s.
//!
//! Each pod should have 70 % of 100 requests. When the stable window has no request, the service goes to zero as soon as the
//! activator has been in the path for the grace period; with few pods it always is (target burst capacity of 211).

use std::time::Duration;

use rouse_core::time::Moment;

use super::super::replay::{Event, Look, Scaler};
use super::super::service::SimulatedService;

/// `stable-window`, in seconds.
const STABLE: u64 = SECONDS as u64;
const SECONDS: usize = 60;
/// `panic-window-percentage` of it.
const PANIC: u64 = 6;
/// `tick-interval`, in seconds.
const TICK: u64 = 2;
/// `container-concurrency-target-default`, in thousandths, and 70 % of it (`container-concurrency-target-percentage`).
const CAPACITY: u128 = 100_000;
const TARGET: u128 = 70_000;
/// `panic-threshold-percentage`.
const THRESHOLD: u128 = 200;
/// `target-burst-capacity`, in thousandths.
const BURST: u128 = 211_000;
/// `max-scale-up-rate` and `max-scale-down-rate`.
const UP: u32 = 1000;
const DOWN: u32 = 2;
/// `scale-to-zero-grace-period`.
const GRACE: Duration = Duration::from_secs(30);

/// The KPA of one service.
#[derive(Debug)]
pub(super) struct Knative {
    /// Average concurrency of each second, in thousandths of a request, at its number modulo the length.
    seconds: [u128; SECONDS],
    stable_sum: u128,
    /// The second that is measured next.
    next: u64,
    /// The first second with a request since the service is measured.
    first: u64,
    /// The last second with a request.
    last: u64,
    busy: Duration,
    /// When panic began, and its largest number of pods.
    panic: Option<(u64, u32)>,
    /// When the activator was last not in the path.
    direct: Option<Moment>,
}

impl Knative {
    pub(super) fn new() -> Self {
        Self {
            seconds: [0; SECONDS],
            stable_sum: 0,
            next: 0,
            first: 0,
            last: 0,
            busy: Duration::ZERO,
            panic: None,
            direct: None,
        }
    }

    /// Takes the average of the second that ends now.
    fn measure(&mut self, service: &SimulatedService) {
        let busy = service.busy();
        // Nanoseconds of requests in a second of nanoseconds, in thousandths.
        let load = busy.saturating_sub(std::mem::replace(&mut self.busy, busy)).as_nanos() / 1_000_000;
        let place = usize::try_from(self.next % STABLE).unwrap_or_default();
        let before = std::mem::replace(&mut self.seconds[place], load);
        self.stable_sum = self.stable_sum - before + load;
        if load > 0 || service.present() > 0 {
            self.last = self.next;
        }
        self.next += 1;
    }

    /// The sum of the last `length` seconds, and how many of them there are since the first request.
    fn window(&self, length: u64) -> (u128, u64) {
        let known = (self.next - self.first).clamp(1, length);
        if length == STABLE {
            return (self.stable_sum, known);
        }
        let recent = (self.next.saturating_sub(length)..self.next).map(|second| second % STABLE);
        let sum = recent.filter_map(|place| self.seconds.get(usize::try_from(place).ok()?)).sum();
        (sum, known)
    }

    fn decide(&mut self, service: &SimulatedService) -> u32 {
        let ready = service.ready().max(1);
        let pods = |(sum, known): (u128, u64)| {
            u32::try_from(sum.div_ceil(TARGET * u128::from(known))).unwrap_or(u32::MAX)
        };
        let (stable, panic) = (pods(self.window(STABLE)), pods(self.window(PANIC)));
        let (most, least) = (ready.saturating_mul(UP), service.ready() / DOWN);
        let [stable, panic] = [stable, panic].map(|wanted| wanted.max(least).min(most));
        if u128::from(panic) * 100 >= THRESHOLD * u128::from(ready) {
            let most = self.panic.map_or(0, |(_, most)| most);
            self.panic = Some((self.next, most));
        } else if self.panic.is_some_and(|(since, _)| self.next >= since + STABLE) {
            self.panic = None;
        }
        if let Some((_, most)) = &mut self.panic {
            *most = panic.max(*most).max(service.pods());
            return *most;
        }
        if self.stable_sum == 0 && self.next > self.last + STABLE {
            let proxied = self.direct.is_none_or(|direct| service.now() >= direct + GRACE);
            return u32::from(!proxied);
        }
        stable.max(1)
    }
}

impl Scaler for Knative {
    fn look(&mut self, service: &SimulatedService, event: Event) -> Option<Look> {
        let now = service.now();
        let second = now.as_nanos() / 1_000_000_000;
        if event == Event::Ready || (event == Event::Arrival && service.pods() > 0) {
            return None;
        }
        if event == Event::Arrival {
            // Woken by the activator. What was before is no part of an average.
            *self = Self { next: second, first: second, last: second, busy: self.busy, ..Self::new() };
            return Some(Look { desired: 1, next: Some(Moment::from_secs(second + 1)) });
        }
        self.measure(service);
        let mut desired = service.pods();
        if self.next.is_multiple_of(TICK) {
            desired = self.decide(service);
        }
        let (load, known) = self.window(PANIC);
        let capacity = CAPACITY * u128::from(service.ready());
        if capacity >= BURST + load / u128::from(known) {
            self.direct = Some(now);
        }
        let next = (desired > 0 || service.present() > 0).then(|| Moment::from_secs(second + 1));
        Some(Look { desired, next })
    }
}
