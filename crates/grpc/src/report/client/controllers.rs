//! Tracks the connections to controllers: which exist, and when the next attempt is due. Time and random numbers are passed in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use rouse_core::time::Moment;
use rouse_net::peers::{CircuitBreaker, Content};

/// A stream that has lasted this long after its welcome has proven that the controller works: the next attempt after its end
/// comes soon. Otherwise a controller that ends each stream at once would get the complete state ten times per second.
const PROVEN_AFTER: Duration = Duration::from_secs(10);

/// All known controllers.
#[derive(Debug, Default)]
pub(super) struct Controllers {
    by_address: BTreeMap<SocketAddr, Controller>,
}

#[derive(Debug)]
struct Controller {
    breaker: CircuitBreaker,
    link: Link,
    /// DNS names it. One that it does not name any more keeps its connection, and gets no new one.
    named: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Down,
    Connecting,
    Welcomed(Moment),
}

impl Controllers {
    /// DNS names exactly these. `new` are those that it did not name before: they may have restarted, so their failures do not
    /// count any more.
    pub(super) fn name(&mut self, all: &BTreeSet<SocketAddr>, new: &[SocketAddr]) {
        for address in all {
            let down = || Controller { breaker: CircuitBreaker::new(), link: Link::Down, named: true };
            self.by_address.entry(*address).or_insert_with(down);
        }
        for (address, controller) in &mut self.by_address {
            controller.named = all.contains(address);
            if new.contains(address) {
                controller.breaker.reset();
            }
        }
        self.by_address.retain(|_, controller| controller.named || controller.link != Link::Down);
    }

    /// Starts the attempts that are due.
    pub(super) fn start(&mut self, now: Moment) -> Vec<SocketAddr> {
        let mut started = Vec::new();
        for (address, controller) in &mut self.by_address {
            if controller.due().is_some_and(|due| due <= now) {
                controller.breaker.on_request();
                controller.link = Link::Connecting;
                started.push(*address);
            }
        }
        started
    }

    /// When the next attempt is due.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.by_address.values().filter_map(Controller::due).min()
    }

    /// A controller has accepted the stream. Returns whether attempts had failed before; `None`: the connection has ended in the
    /// meantime. To believe the welcome then would mean that there is never another attempt.
    pub(super) fn welcomed(&mut self, address: SocketAddr, now: Moment) -> Option<bool> {
        let controller = self.by_address.get_mut(&address).filter(|it| it.link == Link::Connecting)?;
        controller.link = Link::Welcomed(now);
        Some(controller.breaker.is_failing())
    }

    /// A connection ended, and whether that was its own fault. Returns the pause until the next attempt; `None`: there is none.
    pub(super) fn ended(
        &mut self,
        address: SocketAddr,
        failed: bool,
        now: Moment,
        random: u64,
    ) -> Option<Duration> {
        let controller = self.by_address.get_mut(&address)?;
        let proven = matches!(controller.link, Link::Welcomed(at) if now.since(at) >= PROVEN_AFTER);
        controller.link = Link::Down;
        if proven || !failed {
            controller.breaker.succeeded();
        }
        if failed {
            controller.breaker.failed(now, None, random);
        }
        let pause = controller.due().map(|due| due.since(now));
        self.by_address.retain(|_, controller| controller.named || controller.link != Link::Down);
        pause
    }

    /// Whether a controller is not connected, or none is known.
    pub(super) fn needs_fast_lookup(&self) -> bool {
        let connected = |controller: &Controller| matches!(controller.link, Link::Welcomed(_));
        self.by_address.is_empty() || !self.by_address.values().all(connected)
    }

    /// How many have accepted the stream.
    pub(super) fn connected(&self) -> usize {
        self.by_address.values().filter(|controller| matches!(controller.link, Link::Welcomed(_))).count()
    }
}

impl Controller {
    fn due(&self) -> Option<Moment> {
        if self.link != Link::Down || !self.named {
            return None;
        }
        self.breaker.passes_at(Content::Repeated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller(n: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, n], 9444))
    }

    fn named(all: &[u8]) -> Controllers {
        let mut controllers = Controllers::default();
        name(&mut controllers, all, &[]);
        controllers
    }

    fn name(controllers: &mut Controllers, all: &[u8], new: &[u8]) {
        let new: Vec<SocketAddr> = new.iter().copied().map(controller).collect();
        controllers.name(&all.iter().copied().map(controller).collect(), &new);
    }

    #[test]
    fn every_controller_gets_one_connection_at_once() {
        let mut controllers = named(&[1, 2, 3]);
        assert_eq!(controllers.start(Moment::ZERO), [1, 2, 3].map(controller));
        assert_eq!(controllers.start(Moment::from_secs(60)), []);
        assert_eq!(controllers.next_due(), None);
        assert!(controllers.needs_fast_lookup());
        for n in [1, 2, 3] {
            assert_eq!(controllers.welcomed(controller(n), Moment::ZERO), Some(false));
        }
        assert!(!controllers.needs_fast_lookup() && controllers.connected() == 3);
    }

    #[test]
    fn a_controller_that_ends_each_stream_is_asked_less_and_less_often_and_one_that_worked_soon() {
        let mut controllers = named(&[1]);
        let (mut now, mut pauses) = (Moment::ZERO, Vec::new());
        for _ in 0..8 {
            assert_eq!(controllers.start(now).len(), 1);
            controllers.welcomed(controller(1), now);
            let pause = controllers.ended(controller(1), true, now, u64::MAX).unwrap();
            pauses.push(pause.as_millis());
            now = controllers.next_due().unwrap();
        }
        assert_eq!(pauses, [99, 199, 399, 799, 1599, 3199, 6399, 12799]);
        controllers.start(now);
        assert_eq!(controllers.welcomed(controller(1), now), Some(true), "it failed before");
        let later = now + PROVEN_AFTER;
        let pause = controllers.ended(controller(1), true, later, u64::MAX).unwrap();
        assert_eq!(pause.as_millis(), 99);
    }

    #[test]
    fn a_welcome_that_comes_after_the_end_of_its_connection_does_not_count() {
        let mut controllers = named(&[1]);
        controllers.start(Moment::ZERO);
        controllers.ended(controller(1), true, Moment::ZERO, 0);
        assert_eq!(controllers.welcomed(controller(1), Moment::ZERO), None);
        let due = controllers.next_due().unwrap();
        assert_eq!((controllers.connected(), controllers.start(due).len()), (0, 1));
    }

    #[test]
    fn a_new_token_needs_no_pause() {
        let mut controllers = named(&[1]);
        controllers.start(Moment::ZERO);
        controllers.welcomed(controller(1), Moment::ZERO);
        let pause = controllers.ended(controller(1), false, Moment::from_secs(1), 0);
        assert_eq!(pause, Some(Duration::ZERO));
    }

    #[test]
    fn a_controller_that_dns_does_not_name_any_more_keeps_its_connection_and_gets_no_other() {
        let mut controllers = named(&[1, 2]);
        controllers.start(Moment::ZERO);
        controllers.welcomed(controller(1), Moment::ZERO);
        controllers.welcomed(controller(2), Moment::ZERO);
        name(&mut controllers, &[2], &[]);
        assert_eq!(controllers.connected(), 2);
        assert_eq!(controllers.ended(controller(1), true, Moment::from_secs(60), 0), None);
        assert_eq!((controllers.connected(), controllers.start(Moment::from_secs(600)).len()), (1, 0));
    }

    #[test]
    fn a_controller_that_dns_names_again_is_tried_at_once() {
        let mut controllers = named(&[1]);
        let mut now = Moment::ZERO;
        for _ in 0..9 {
            controllers.start(now);
            controllers.ended(controller(1), true, now, u64::MAX);
            now = controllers.next_due().unwrap();
        }
        name(&mut controllers, &[1], &[1]);
        assert_eq!(controllers.next_due(), Some(Moment::ZERO));
    }
}
