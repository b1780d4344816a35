//! KEDA's defaults: a trigger that is polled every 30 s, a cooldown of 300 s, and the HPA from one pod upwards.
//!
//! A poll is active if there was a request since the last one: what a trigger on the request rate sees. With the HTTP add-on,
//! the first request wakes the service at once; the way back to zero is the same.

use std::collections::VecDeque;
use std::time::Duration;

use rouse_core::random::Random;
use rouse_core::time::Moment;

use super::super::replay::{Event, Look, Scaler};
use super::super::service::{ServiceModel, SimulatedService};

/// `pollingInterval`.
const POLLING: Duration = Duration::from_secs(30);
/// `cooldownPeriod`.
const COOLDOWN: Duration = Duration::from_mins(5);
/// `--horizontal-pod-autoscaler-sync-period`.
const SYNC: Duration = Duration::from_secs(15);
/// `behavior.scaleDown.stabilizationWindowSeconds`, in syncs.
const STABLE_SYNCS: usize = 300 / 15;

/// KEDA and the HPA of one service.
#[derive(Debug)]
pub(super) struct Keda {
    /// The first request wakes the service.
    pushes: bool,
    target: u64,
    /// Requests at the last poll.
    requests: u64,
    active: Moment,
    next_poll: Moment,
    next_sync: Moment,
    /// What the HPA recommended in its stabilization window.
    recommended: VecDeque<u32>,
    last_sync: (Moment, Duration),
}

impl Keda {
    pub(super) fn new(model: &ServiceModel, pushes: bool, number: usize) -> Self {
        // Where in the interval the polls are.
        let phase = Duration::from_millis(Random::new(number as u64).below(30_000) as u64);
        Self {
            pushes,
            target: model.target.max(1).into(),
            requests: 0,
            active: Moment::ZERO,
            next_poll: Moment::ZERO + phase,
            next_sync: Moment::ZERO + phase,
            recommended: VecDeque::new(),
            last_sync: (Moment::ZERO, Duration::ZERO),
        }
    }

    /// Between 0 and 1.
    fn poll(&mut self, service: &SimulatedService, pods: u32) -> u32 {
        let requests = service.requests();
        if service.present() > 0 || std::mem::replace(&mut self.requests, requests) != requests {
            self.active = service.now();
            return pods.max(1);
        }
        if service.now().since(self.active) > COOLDOWN { 0 } else { pods }
    }

    /// From one pod upwards.
    fn sync(&mut self, service: &SimulatedService, pods: u32) -> u32 {
        let (then, busy) = std::mem::replace(&mut self.last_sync, (service.now(), service.busy()));
        let span = service.now().since(then).as_nanos().max(1);
        let load = service.busy().saturating_sub(busy).as_nanos();
        let capacity = span * u128::from(self.target);
        let wanted = u32::try_from(load.div_ceil(capacity)).unwrap_or(u32::MAX).max(1);
        // Within a tenth of the target, nothing changes.
        let current = capacity * u128::from(pods);
        let wanted = if load * 10 >= current * 9 && load * 10 <= current * 11 { pods } else { wanted };
        if self.recommended.len() >= STABLE_SYNCS {
            self.recommended.pop_front();
        }
        self.recommended.push_back(wanted);
        let stable = self.recommended.iter().copied().max().unwrap_or(wanted);
        // Up by four pods or to the double in each sync, and down to the largest recommendation of the window.
        let most = pods.saturating_mul(2).max(pods.saturating_add(4));
        if wanted > pods { wanted.min(most) } else { stable.min(pods) }
    }
}

impl Scaler for Keda {
    fn look(&mut self, service: &SimulatedService, event: Event) -> Option<Look> {
        let now = service.now();
        let mut pods = service.pods();
        match event {
            Event::Ready => return None,
            Event::Arrival if pods > 0 => return None,
            Event::Arrival if self.pushes => {
                self.active = now;
                pods = 1;
            }
            Event::Arrival | Event::Timer => {}
        }
        // At zero, no request waits for the polls in between.
        let missed = |next: Moment, interval: Duration| {
            let late = now.since(next).as_nanos().div_ceil(interval.as_nanos());
            next + interval * u32::try_from(late).unwrap_or(u32::MAX)
        };
        self.next_poll = missed(self.next_poll, POLLING);
        self.next_sync = missed(self.next_sync, SYNC);
        if now == self.next_poll {
            pods = self.poll(service, pods);
            self.next_poll = now + POLLING;
        }
        if now == self.next_sync {
            if pods > 0 && service.pods() > 0 {
                pods = self.sync(service, pods);
            } else {
                self.recommended.clear();
                self.last_sync = (now, service.busy());
            }
            self.next_sync = now + SYNC;
        }
        let waits = pods > 0 || service.present() > 0;
        Some(Look { desired: pods, next: waits.then(|| self.next_poll.min(self.next_sync)) })
    }
}
