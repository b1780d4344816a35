//! Tracks which state each gateway has acknowledged, and when its next request is due. Time and random numbers are passed in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use rouse_core::merge::PushOrder;
use rouse_core::random::between;
use rouse_core::time::Moment;
use rouse_net::peers::{Backoff, CircuitBreaker, Content};

use super::Delivery;

/// Bounds of the lease that an answer may say: an error of a gateway must not cause a storm, or end renewals.
const LEASES: [Duration; 2] = [Duration::from_secs(3), Duration::from_hours(1)];
/// The backoff before a gateway that closed its connection is asked again: it may have restarted and lost its state.
const RECONNECTS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// This many answers in a row that call the newest state stale are failures: two sidecars may claim to be the same pod.
const STALE_LIMIT: u32 = 3;
const STALE_PAUSE: Duration = Duration::from_secs(1);

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The gateway knows it, for `lease`.
    Acknowledged {
        lease: Duration,
        /// It went over a connection that was there before.
        reused: bool,
    },
    /// The gateway knows something newer, and the state has taken an order after that.
    Superseded,
    /// It is unknown whether the gateway knows it.
    Failed { retry_after: Option<Duration> },
}

/// What all gateways have acknowledged, and what is sent to them next.
#[derive(Debug, Default)]
pub(super) struct GatewayTracker {
    gateways: BTreeMap<SocketAddr, TrackedGateway>,
    attempts: u64,
}

/// One request. `number` distinguishes attempts: the result of an attempt is ignored if its gateway was removed and added again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) gateway: SocketAddr,
    pub(super) order: PushOrder,
    number: u64,
}

#[derive(Debug)]
struct TrackedGateway {
    breaker: CircuitBreaker,
    /// The number of the request under way.
    in_flight: Option<u64>,
    /// What was sent last.
    sent: Option<PushOrder>,
    acknowledged: Option<Acknowledged>,
    /// The last state that could not be sent.
    failed: Option<PushOrder>,
    /// Its connection was closed, and no request has succeeded since then.
    lost: bool,
    reconnect_backoff: Backoff,
    /// Answers in a row that called the state stale.
    stale: u32,
}

#[derive(Debug, Clone, Copy)]
struct Acknowledged {
    order: PushOrder,
    renew_at: Moment,
}

impl TrackedGateway {
    fn new() -> Self {
        Self {
            breaker: CircuitBreaker::new(),
            in_flight: None,
            sent: None,
            acknowledged: None,
            failed: None,
            lost: false,
            reconnect_backoff: RECONNECTS,
            stale: 0,
        }
    }

    fn knows(&self, order: PushOrder) -> bool {
        self.acknowledged.is_some_and(|acknowledged| acknowledged.order == order)
    }

    fn due(&self, order: PushOrder) -> Option<Moment> {
        if self.in_flight.is_some() {
            return None;
        }
        let content = if self.sent == Some(order) { Content::Repeated } else { Content::New };
        let passes_at = self.breaker.passes_at(content)?;
        let renewal = self.acknowledged.filter(|acknowledged| acknowledged.order == order);
        Some(renewal.map_or(passes_at, |acknowledged| acknowledged.renew_at.max(passes_at)))
    }
}

impl GatewayTracker {
    /// The gateways are exactly these.
    pub(super) fn set_members(&mut self, members: &BTreeSet<SocketAddr>) {
        self.gateways.retain(|gateway, _| members.contains(gateway));
        for member in members {
            self.gateways.entry(*member).or_insert_with(TrackedGateway::new);
        }
    }

    /// DNS or another gateway lists these again: they may have restarted, so their failures no longer count.
    pub(super) fn reset_breakers(&mut self, gateways: &[SocketAddr]) {
        for gateway in gateways {
            if let Some(gateway) = self.gateways.get_mut(gateway) {
                gateway.breaker.reset();
            }
        }
    }

    /// Starts all requests that are due.
    pub(super) fn start(&mut self, order: PushOrder, now: Moment) -> Vec<Attempt> {
        let mut started = Vec::new();
        for (address, gateway) in &mut self.gateways {
            if gateway.due(order).is_some_and(|due| due <= now) {
                self.attempts += 1;
                gateway.in_flight = Some(self.attempts);
                gateway.sent = Some(order);
                gateway.breaker.on_request();
                started.push(Attempt { gateway: *address, order, number: self.attempts });
            }
        }
        started
    }

    /// When the next request is due.
    pub(super) fn next_due(&self, order: PushOrder) -> Option<Moment> {
        self.gateways.values().filter_map(|gateway| gateway.due(order)).min()
    }

    /// A request ended. `sent_at` is when it started: the lease began after that. Returns whether the gateway failed before
    /// and works again.
    pub(super) fn ended(
        &mut self,
        attempt: Attempt,
        outcome: Outcome,
        sent_at: Moment,
        now: Moment,
        random: u64,
    ) -> bool {
        let Some(gateway) = self.gateways.get_mut(&attempt.gateway) else { return false };
        if gateway.in_flight != Some(attempt.number) {
            return false;
        }
        gateway.in_flight = None;
        let failing = gateway.breaker.is_failing();
        match outcome {
            Outcome::Acknowledged { lease, reused } => {
                gateway.breaker.succeeded();
                (gateway.stale, gateway.failed, gateway.lost) = (0, None, false);
                if reused {
                    gateway.reconnect_backoff.reset();
                }
                let third = lease.clamp(LEASES[0], LEASES[1]) / 3;
                let renew_at = sent_at + between(third * 9 / 10, third, random);
                gateway.acknowledged = Some(Acknowledged { order: attempt.order, renew_at });
                return failing;
            }
            Outcome::Superseded => {
                gateway.acknowledged = None;
                gateway.stale += 1;
                if gateway.stale < STALE_LIMIT {
                    gateway.breaker.succeeded();
                } else {
                    // Back off even though the version is new.
                    gateway.breaker.failed(now, Some(STALE_PAUSE), random);
                    gateway.failed = Some(attempt.order);
                }
            }
            Outcome::Failed { retry_after } => {
                gateway.breaker.failed(now, retry_after, random);
                gateway.failed = Some(attempt.order);
            }
        }
        false
    }

    /// The connection to a gateway was closed while it was idle.
    pub(super) fn connection_closed(&mut self, gateway: SocketAddr, now: Moment, random: u64) {
        if let Some(gateway) = self.gateways.get_mut(&gateway)
            && let Some(acknowledged) = &mut gateway.acknowledged
        {
            gateway.lost = true;
            acknowledged.renew_at =
                acknowledged.renew_at.min(now + gateway.reconnect_backoff.next_pause(random));
        }
    }

    /// The time until the gateway gets the next request.
    pub(super) fn time_until_due(&self, gateway: SocketAddr, order: PushOrder, now: Moment) -> Duration {
        let due = self.gateways.get(&gateway).and_then(|gateway| gateway.due(order));
        due.map_or(Duration::ZERO, |due| due.since(now))
    }

    /// Whether a gateway fails or does not know the newest state, or there is none.
    pub(super) fn needs_fast_lookup(&self, newest: Option<PushOrder>) -> bool {
        let urgent = |gateway: &TrackedGateway| {
            gateway.lost || gateway.breaker.is_failing() || newest.is_some_and(|order| !gateway.knows(order))
        };
        self.gateways.is_empty() || self.gateways.values().any(urgent)
    }

    /// What became of `order`, once a gateway has acknowledged it and each other has acknowledged it or failed.
    pub(super) fn delivery(&self, order: PushOrder) -> Option<Delivery> {
        let mut delivery = Delivery::default();
        for gateway in self.gateways.values() {
            if gateway.knows(order) {
                delivery.acknowledged += 1;
            } else if gateway.failed == Some(order) || gateway.breaker.is_open() {
                delivery.failed += 1;
            } else {
                return None;
            }
        }
        (delivery.acknowledged > 0).then_some(delivery)
    }
}

#[cfg(test)]
mod tests {
    use rouse_core::merge::BootId;

    use super::*;

    const LEASE: Duration = Duration::from_mins(1);
    const ACKNOWLEDGED: Outcome = Outcome::Acknowledged { lease: LEASE, reused: true };
    const FAILED: Outcome = Outcome::Failed { retry_after: None };

    fn gateway(n: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, n], 9443))
    }

    fn order(sequence: u64) -> PushOrder {
        PushOrder { boot: BootId { started: 1, id: 1 }, sequence }
    }

    fn of(gateways: &[u8]) -> GatewayTracker {
        let mut tracker = GatewayTracker::default();
        tracker.set_members(&gateways.iter().map(|n| gateway(*n)).collect());
        tracker
    }

    /// Starts what is due, and ends each request as `outcome` says.
    fn round(
        tracker: &mut GatewayTracker,
        order: PushOrder,
        now: Moment,
        outcome: impl Fn(SocketAddr) -> Outcome,
    ) -> usize {
        let started = tracker.start(order, now);
        for attempt in &started {
            tracker.ended(*attempt, outcome(attempt.gateway), now, now, u64::MAX);
        }
        started.len()
    }

    #[test]
    fn every_gateway_gets_the_newest_state_once_and_then_renewals_at_a_third_of_the_lease() {
        let (mut tracker, now) = (of(&[1, 2, 3]), Moment::from_secs(5));
        assert_eq!(tracker.start(order(1), now).len(), 3);
        assert_eq!(tracker.start(order(2), now).len(), 0, "one request at a time");
        let mut tracker = of(&[1, 2, 3]);
        assert_eq!(round(&mut tracker, order(1), now, |_| ACKNOWLEDGED), 3);
        let renewal = tracker.next_due(order(1)).unwrap().since(now);
        assert!(Duration::from_secs(18) <= renewal && renewal <= Duration::from_secs(20), "{renewal:?}");
        assert_eq!(tracker.next_due(order(2)), Some(Moment::ZERO), "news is sent at once");
    }

    #[test]
    fn a_bad_lease_causes_neither_a_storm_nor_silence() {
        for (lease, bounds) in [(Duration::ZERO, [0, 1]), (Duration::MAX, [1000, 1200])] {
            let mut tracker = of(&[1]);
            round(&mut tracker, order(1), Moment::ZERO, |_| Outcome::Acknowledged { lease, reused: true });
            let due = tracker.next_due(order(1)).unwrap();
            let bounds = bounds.map(Moment::from_secs);
            assert!(due > bounds[0] && due <= bounds[1], "{due:?}");
        }
    }

    #[test]
    fn a_failing_gateway_does_not_delay_the_others() {
        let (mut tracker, now) = (of(&[1, 2]), Moment::from_secs(5));
        let outcome = |to: SocketAddr| if to == gateway(1) { FAILED } else { ACKNOWLEDGED };
        round(&mut tracker, order(1), now, outcome);
        assert_eq!(tracker.delivery(order(1)), Some(Delivery { acknowledged: 1, failed: 1 }));
        assert!(tracker.needs_fast_lookup(Some(order(1))));
        let retry = tracker.next_due(order(1)).unwrap().since(now);
        assert!(retry <= Duration::from_millis(100), "{retry:?}");
        // News goes to both at once: the circuit of the failing one is still closed.
        assert_eq!(round(&mut tracker, order(2), now, outcome), 2);
        for sequence in 3..=5 {
            round(&mut tracker, order(sequence), now, outcome);
        }
        assert_eq!(round(&mut tracker, order(6), now, outcome), 1, "its circuit is open");
        assert_eq!(tracker.delivery(order(6)), Some(Delivery { acknowledged: 1, failed: 1 }));
        // DNS names it again: the circuit closes.
        tracker.reset_breakers(&[gateway(1), gateway(9)]);
        assert_eq!(round(&mut tracker, order(6), now, |_| ACKNOWLEDGED), 1);
        assert_eq!(tracker.delivery(order(6)), Some(Delivery { acknowledged: 2, failed: 0 }));
        assert!(!tracker.needs_fast_lookup(Some(order(6))));
    }

    #[test]
    fn nothing_is_delivered_while_no_gateway_has_acknowledged_it_or_one_was_not_asked() {
        let mut tracker = of(&[]);
        assert!(tracker.needs_fast_lookup(None));
        assert_eq!(tracker.delivery(order(1)), None);
        tracker = of(&[1]);
        assert!(!tracker.needs_fast_lookup(None) && tracker.needs_fast_lookup(Some(order(1))));
        round(&mut tracker, order(1), Moment::ZERO, |_| FAILED);
        assert_eq!(tracker.delivery(order(1)), None);
        tracker = of(&[1]);
        round(&mut tracker, order(1), Moment::ZERO, |_| ACKNOWLEDGED);
        tracker.set_members(&BTreeSet::from([gateway(1), gateway(2)]));
        assert_eq!(tracker.delivery(order(1)), None);
    }

    #[test]
    fn a_stale_state_is_sent_again_at_once_but_not_for_ever() {
        let mut tracker = of(&[1]);
        let requests = |tracker: &mut GatewayTracker| {
            (1..20).map(|n| round(tracker, order(n), Moment::ZERO, |_| Outcome::Superseded)).sum::<usize>()
        };
        assert_eq!(requests(&mut tracker), 3);
        assert!(tracker.next_due(order(20)) > Some(Moment::ZERO));
    }

    #[test]
    fn a_gateway_that_closed_its_connection_is_asked_again_soon_but_not_in_a_loop() {
        let (mut tracker, mut now) = (of(&[1]), Moment::ZERO);
        let fresh = Outcome::Acknowledged { lease: LEASE, reused: false };
        for longest in [1, 2, 4, 8, 16, 20, 20] {
            round(&mut tracker, order(1), now, |_| fresh);
            tracker.connection_closed(gateway(1), now, u64::MAX);
            assert!(tracker.needs_fast_lookup(Some(order(1))));
            let due = tracker.next_due(order(1)).unwrap();
            let pause = due.since(now);
            assert!(pause <= Duration::from_secs(longest) && pause >= Duration::from_secs(longest) * 9 / 10);
            now = due;
        }
        round(&mut tracker, order(1), now, |_| ACKNOWLEDGED);
        tracker.connection_closed(gateway(1), now, u64::MAX);
        assert!(tracker.next_due(order(1)).unwrap().since(now) <= Duration::from_secs(1));
    }

    #[test]
    fn the_end_of_a_request_to_a_gateway_that_went_and_came_back_is_ignored() {
        let mut tracker = of(&[1]);
        let old = tracker.start(order(1), Moment::ZERO)[0];
        tracker.set_members(&BTreeSet::new());
        tracker.set_members(&BTreeSet::from([gateway(1)]));
        let new = tracker.start(order(1), Moment::ZERO)[0];
        tracker.ended(old, ACKNOWLEDGED, Moment::ZERO, Moment::ZERO, 0);
        assert_eq!(tracker.delivery(order(1)), None);
        tracker.ended(new, ACKNOWLEDGED, Moment::ZERO, Moment::ZERO, 0);
        assert!(tracker.delivery(order(1)).is_some());
    }
}
