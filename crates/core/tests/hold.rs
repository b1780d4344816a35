//! Holds against a naive model of the wait queue: which request gets a slot, in which order, and that no slot leaks.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use proptest::prelude::*;
use rouse_core::cold_start::ColdStartOutcome;
use rouse_core::endpoint::EndpointLoad;
use rouse_core::endpoint::{Endpoint, PortName, State};
use rouse_core::hold::{AcquireError, HoldLimit, HoldLimits};
use rouse_core::registry::RegistrySettings;
use rouse_core::service::{Port, Service, ServiceSpec, Slot, SlotRequest};
use rouse_core::snapshot::{ConcurrencyLimits, PortView};
use rouse_core::start_failure::{StartFailure, StartFailureCause};
use rouse_core::time::{Clock, Moment};
use rouse_testkit::fakes::{Bench, DRAINING, READY, STARTING, http, ready_slice, slice};
use rouse_testkit::slot_requests::{Request, line, wake_count};

#[derive(Debug, Clone)]
enum Op {
    Arrive(u64),
    /// A waiting request leaves.
    Leave(usize),
    /// A request with a slot is done.
    Finish(usize),
    /// A request with a slot gets its first byte.
    Answer(usize),
    /// A request with a slot is refused, and tries again.
    Refuse(usize, bool),
    Publish([u8; 3]),
    Limit(u32),
    /// Time passes.
    Tick(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => any::<u64>().prop_map(Op::Arrive),
        2 => any::<usize>().prop_map(Op::Leave),
        5 => any::<usize>().prop_map(Op::Finish),
        1 => any::<usize>().prop_map(Op::Answer),
        2 => any::<(usize, bool)>().prop_map(|(which, eject)| Op::Refuse(which, eject)),
        3 => any::<[u8; 3]>().prop_map(Op::Publish),
        1 => (0..4u32).prop_map(Op::Limit),
        1 => (0..400u64).prop_map(Op::Tick),
    ]
}

/// A request in the wait queue.
struct Waiting {
    number: usize,
    request: Request,
    /// It was refused before: others may overtake it during its backoff.
    refused: bool,
}

/// A slot in use.
struct InUse {
    number: usize,
    slot: Slot,
    /// It counts towards its pod's herd limit.
    max_released: bool,
}

/// The naive model: the wait queue as a queue, the slots in use as a list.
struct World {
    bench: Bench,
    service: Arc<Service>,
    port: Arc<Port>,
    limit: u32,
    arrived: usize,
    last_served: usize,
    waiting: VecDeque<Waiting>,
    in_use: Vec<InUse>,
    loads: Vec<Arc<EndpointLoad>>,
}

const BOUND: usize = 8;
const MIN_RELEASED: u32 = 2;

fn concurrency(limit: u32) -> ConcurrencyLimits {
    ConcurrencyLimits { max_released: MIN_RELEASED.try_into().unwrap(), ..ConcurrencyLimits::new(0, limit) }
}

impl World {
    fn new() -> Self {
        let holds = HoldLimits { per_service: BOUND, total: 4 * BOUND, ..HoldLimits::default() };
        let bench = Bench::with(RegistrySettings { holds, ..RegistrySettings::default() });
        let (service, port) = bench.service("cart", concurrency(0));
        Self {
            bench,
            service,
            port,
            limit: 0,
            arrived: 0,
            last_served: 0,
            waiting: VecDeque::new(),
            in_use: Vec::new(),
            loads: Vec::new(),
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Arrive(seed) => {
                self.arrived += 1;
                let ask = SlotRequest { seed, buffered: 10, ..SlotRequest::default() };
                self.ask(self.arrived, ask, false);
            }
            Op::Leave(which) if !self.waiting.is_empty() => {
                self.waiting.remove(which % self.waiting.len());
            }
            Op::Finish(which) if !self.in_use.is_empty() => {
                drop(self.in_use.swap_remove(which % self.in_use.len()));
            }
            Op::Answer(which) if !self.in_use.is_empty() => {
                let which = which % self.in_use.len();
                self.in_use[which].slot.answered();
                self.in_use[which].max_released = false;
            }
            Op::Refuse(which, eject) if !self.in_use.is_empty() => {
                let InUse { number, slot, .. } = self.in_use.swap_remove(which % self.in_use.len());
                let retry = Some(slot.refused(eject));
                self.answer_the_bells();
                self.ask(number, SlotRequest { retry, buffered: 10, ..SlotRequest::default() }, true);
            }
            Op::Leave(_) | Op::Finish(_) | Op::Answer(_) | Op::Refuse(..) => {}
            Op::Publish(pods) => {
                let conditions = |byte: u8| [READY, READY, DRAINING, STARTING][usize::from(byte % 4)];
                let pods = (0..).zip(pods).filter(|(_, byte)| byte % 5 != 4);
                self.service.put_slice("a", slice(pods.map(|(n, byte)| (n, conditions(byte)))));
            }
            Op::Limit(limit) => {
                self.limit = limit;
                let spec = ServiceSpec { ports: vec![http()], concurrency: concurrency(limit) };
                self.bench.registry.declare(self.service.id(), &spec);
            }
            Op::Tick(millis) => self.pass(Duration::from_millis(millis)),
        }
        self.answer_the_bells();
        self.check();
    }

    fn pass(&mut self, time: Duration) {
        self.bench.clock.advance(time);
        self.bench.registry.tick();
    }

    fn ask(&mut self, number: usize, ask: SlotRequest, refused: bool) {
        let full = self.waiting.len() >= BOUND;
        let mut request = Request::asking(&self.port, ask);
        match request.poll() {
            Poll::Pending => {
                assert!(!full, "more wait than may");
                let behind = self.waiting.iter().position(|other| other.number > number);
                self.waiting
                    .insert(behind.unwrap_or(self.waiting.len()), Waiting { number, request, refused });
            }
            Poll::Ready(Ok(slot)) => {
                let overtaken = !refused && self.waiting.iter().any(|other| !other.refused);
                assert!(!overtaken, "a new request overtook waiting ones");
                // A request that went through the wait queue, if only for a moment, counts among the herd.
                let max_released = self.limit == 0 && slot.endpoint().load.released() > self.herd_on(&slot);
                self.serve(number, slot, max_released, refused);
            }
            Poll::Ready(Err(error)) => {
                assert_eq!((error, full), (AcquireError::QueueFull(HoldLimit::Service), true));
            }
        }
    }

    /// Every request that was woken gets its slot, in the order of arrival.
    fn answer_the_bells(&mut self) {
        let mut still = VecDeque::new();
        for mut waiting in std::mem::take(&mut self.waiting) {
            if waiting.request.waker.wake_count() == 0 {
                still.push_back(waiting);
                continue;
            }
            assert_eq!(waiting.request.waker.wake_count(), 1, "called twice");
            let slot = waiting.request.served();
            self.serve(waiting.number, slot, self.limit == 0, waiting.refused);
        }
        self.waiting = still;
    }

    fn serve(&mut self, number: usize, slot: Slot, max_released: bool, refused: bool) {
        if !refused {
            assert!(number > self.last_served, "{number} was served after {}", self.last_served);
            self.last_served = number;
        }
        let load = &slot.endpoint().load;
        assert!(self.limit == 0 || load.in_flight() <= self.limit, "over the limit");
        let snapshot = self.service.snapshot();
        let mut endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
        let better =
            endpoints.any(|one| one.state == State::Ready && !one.health.ejected(&*self.bench.clock));
        assert!(refused || !better || slot.endpoint().state == State::Ready, "new work for a leaving pod");
        self.loads.push(Arc::clone(load));
        self.in_use.push(InUse { number, slot, max_released });
    }

    fn herd_on(&self, slot: &Slot) -> u32 {
        let same =
            |one: &&InUse| one.max_released && Arc::ptr_eq(&one.slot.endpoint().load, &slot.endpoint().load);
        u32::try_from(self.in_use.iter().filter(same).count()).unwrap()
    }

    fn check(&self) {
        for one in &self.in_use {
            let load = &one.slot.endpoint().load;
            let count = |held: &dyn Fn(&InUse) -> bool| {
                let same = |other: &&InUse| Arc::ptr_eq(&other.slot.endpoint().load, load) && held(other);
                self.in_use.iter().filter(same).count()
            };
            assert_eq!(load.in_flight() as usize, count(&|_| true), "in flight");
            assert_eq!(load.released() as usize, count(&|other| other.max_released), "the herd");
        }
        assert_eq!(self.port.holds(), self.waiting.len());
        assert_eq!(self.bench.registry.holds(), self.waiting.len());
        assert_eq!(self.bench.registry.held_bytes(), 10 * self.waiting.len());
        if self.waiting.iter().any(|waiting| !waiting.refused) {
            self.check_that_nothing_is_free();
        }
    }

    /// Asserts that no endpoint of the best tier (ejected ones last) has a free slot.
    fn check_that_nothing_is_free(&self) {
        let snapshot = self.service.snapshot();
        let Some(view) = snapshot.port(&http()) else { return };
        let rank = |one: &Endpoint| (!one.health.ejected(&*self.bench.clock), one.state);
        let routable = || view.endpoints().iter().filter(|one| one.state >= State::Draining);
        let best = routable().map(|one| rank(one)).max();
        for endpoint in routable().filter(|one| Some(rank(one)) == best) {
            let load = &endpoint.load;
            let full = if self.limit == 0 {
                load.released() >= MIN_RELEASED
            } else {
                load.in_flight() >= self.limit
            };
            assert!(full, "a request waits beside a free slot");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn the_line_is_fair_bounded_busy_and_leaves_nothing_behind(
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
        }
        // Longer than any backoff and any ejection: no request may wait while a slot is free.
        world.pass(Duration::from_secs(30));
        world.answer_the_bells();
        if !world.waiting.is_empty() {
            world.check_that_nothing_is_free();
        }
        let World { bench, waiting, in_use, loads, .. } = world;
        drop(waiting);
        drop(in_use);
        prop_assert!(loads.iter().all(|load| load.in_flight() == 0 && load.released() == 0));
        prop_assert_eq!((bench.registry.holds(), bench.registry.held_bytes()), (0, 0));
    }
}

#[test]
fn a_change_of_one_service_wakes_no_other_services_holds() {
    let bench = Bench::new();
    let (_, cart) = bench.service("cart", ConcurrencyLimits::default());
    let (other, other_port) = bench.service("other", ConcurrencyLimits::default());
    let waiting = line(&cart, 100);
    let theirs = line(&other_port, 100);
    other.put_slice("a", ready_slice(1));
    assert_eq!((wake_count(&waiting), wake_count(&theirs)), (0, 100));
}

#[test]
fn a_change_that_brings_no_capacity_wakes_no_request() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    let waiting = line(&port, 10);
    service.put_slice("a", slice([(0, STARTING), (1, STARTING)]));
    service.set_stale(true);
    assert_eq!(wake_count(&waiting), 0);
}

#[test]
fn k_slots_given_back_wake_k_holds() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::new(0, 10));
    service.put_slice("a", ready_slice(1));
    let mut slots: Vec<Slot> = (0..10).map(|seed| port.try_acquire(seed).unwrap()).collect();
    let waiting = line(&port, 50);
    for k in 1..=10 {
        drop(slots.pop());
        assert_eq!(wake_count(&waiting), k);
    }
}

#[test]
fn capacity_for_k_releases_k_spread_over_the_new_pods() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::new(0, 3));
    let mut waiting = line(&port, 100);
    service.put_slice("a", ready_slice(4));
    assert_eq!(wake_count(&waiting), 12);
    let (served, rest) = waiting.split_at_mut(12);
    let slots: Vec<Slot> = served.iter_mut().map(Request::served).collect();
    assert!(slots.iter().all(|slot| slot.cold_start() && slot.endpoint().load.in_flight() == 3));
    assert!(rest.iter_mut().all(|request| request.poll().is_pending()));
}

#[test]
fn a_herd_comes_a_hundred_at_a_time_and_the_answered_make_room() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    let mut waiting = line(&port, 300);
    service.put_slice("a", ready_slice(1));
    assert_eq!(wake_count(&waiting), 100);
    let mut first = waiting[0].served();
    first.answered();
    first.answered();
    assert_eq!(
        wake_count(&waiting),
        101,
        "an upgraded connection keeps its slot, but not its place in the herd"
    );
    drop(first);
    assert_eq!(wake_count(&waiting), 101);
}

#[test]
fn only_a_wait_for_the_first_pod_is_a_cold_start() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::new(0, 1));
    service.put_slice("a", ready_slice(1));
    let slot = port.try_acquire(0).unwrap();
    let mut waiting = line(&port, 1);
    bench.clock.advance(Duration::from_secs(2));
    drop(slot);
    let slot = waiting[0].served();
    assert_eq!((slot.cold_start(), slot.waited()), (false, Duration::from_secs(2)));
}

#[test]
fn the_first_hold_wakes_once_and_the_wake_is_repeated_only_while_requests_wait() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    let waiting = line(&port, 1000);
    assert_eq!(bench.engine.wakes(), 1);
    for wakes in [2, 3] {
        let due = bench.registry.due().unwrap();
        bench.clock.advance(due.since(bench.clock.now()));
        bench.registry.tick();
        assert_eq!(bench.engine.wakes(), wakes);
    }
    drop(waiting);
    bench.clock.advance(Duration::from_mins(1));
    bench.registry.tick();
    assert_eq!((bench.engine.wakes(), bench.registry.due()), (3, None));
    service.put_slice("a", ready_slice(1));
    assert!(port.try_acquire(0).is_some());
    assert_eq!(bench.engine.wakes(), 3);
}

#[test]
fn a_service_with_only_leaving_pods_serves_and_wakes() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    service.put_slice("a", slice([(0, DRAINING)]));
    let slots: Vec<_> = (0..10).map(|seed| port.try_acquire(seed).unwrap()).collect();
    assert!(slots.iter().all(|slot| !slot.cold_start()));
    assert_eq!(bench.engine.wakes(), 1);
}

#[test]
fn a_full_line_is_said_to_be_full_and_the_wake_is_still_sent() {
    let check = |holds: HoldLimits, bound: HoldLimit, fits: usize| {
        let bench = Bench::with(RegistrySettings { holds, ..RegistrySettings::default() });
        let ports: Vec<_> =
            (0..4).map(|n| bench.service(&format!("s{n}"), ConcurrencyLimits::default()).1).collect();
        let mut lines: Vec<Request> = Vec::new();
        let mut refused = None;
        for n in 0..=fits {
            let mut request =
                Request::asking(&ports[n % 4], SlotRequest { buffered: 10, ..SlotRequest::default() });
            match request.poll() {
                Poll::Pending => lines.push(request),
                Poll::Ready(result) => refused = Some((n, result.unwrap_err())),
            }
        }
        assert_eq!(refused, Some((fits, AcquireError::QueueFull(bound))));
        assert_eq!(bench.engine.wakes(), 4.min(fits + 1));
    };
    let plenty = HoldLimits::default();
    check(HoldLimits { per_service: 2, ..plenty }, HoldLimit::Service, 8);
    check(HoldLimits { total: 8, ..plenty }, HoldLimit::Service, 8);
    check(HoldLimits { bytes: 25, ..plenty }, HoldLimit::Bytes, 2);
    check(HoldLimits { per_service: 0, ..plenty }, HoldLimit::Service, 0);
}

#[test]
fn no_service_takes_more_than_a_quarter_of_all_holds() {
    let holds = HoldLimits { per_service: 1000, total: 40, ..HoldLimits::default() };
    let bench = Bench::with(RegistrySettings { holds, ..RegistrySettings::default() });
    let (_, port) = bench.service("cart", ConcurrencyLimits::default());
    let _waiting = line(&port, 10);
    let error = Request::new(&port, 0).turned_away();
    assert_eq!(error, AcquireError::QueueFull(HoldLimit::Service));
}

#[test]
fn no_hold_may_last_longer_than_the_longest() {
    let bounds = HoldLimits::default();
    let (now, minute) = (Moment::from_secs(10), Duration::from_mins(1));
    assert_eq!(bounds.deadline(now, Some(now + minute)), now + minute);
    assert_eq!(bounds.deadline(now, Some(now + 10 * minute)), now + 5 * minute);
    assert_eq!(bounds.deadline(now, None), now + 5 * minute);
}

#[test]
fn a_refused_request_is_tried_elsewhere_and_keeps_its_place() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::new(0, 1));
    let mut waiting = line(&port, 3);
    service.put_slice("a", ready_slice(1));
    let slot = waiting[0].served();
    let retry = slot.refused(true);
    assert_eq!((retry.refusals(), wake_count(&waiting)), (1, 2), "the slot went on to the second in line");
    // Its only endpoint has refused it: it waits again, before the third.
    let mut again = Request::again(&port, retry).waits();
    service.put_slice("a", ready_slice(2));
    let slot = again.served();
    assert_eq!(slot.endpoint().pod.as_ref().unwrap().uid.as_str(), "uid-1");
    assert!(slot.cold_start(), "it is still the request that waited for the first pod");
    assert_eq!(wake_count(&waiting), 2);
}

#[test]
fn a_waiting_request_gets_the_reason_when_its_wait_ends() {
    let check = |end: &dyn Fn(&Bench, &Service), why: AcquireError| {
        let bench = Bench::new();
        let (service, port) = bench.service("cart", ConcurrencyLimits::default());
        let mut waiting = line(&port, 3);
        end(&bench, &service);
        assert_eq!(wake_count(&waiting), 3);
        for request in &mut waiting {
            let error = request.turned_away();
            assert_eq!(error, why);
        }
        let late = Request::new(&port, 0).turned_away();
        assert_eq!(late, why);
        drop(waiting);
        assert_eq!(bench.registry.holds(), 0);
    };
    check(&|bench, _| bench.registry.shut_down(), AcquireError::ShuttingDown);
    check(&|bench, service| bench.registry.remove(service.id()), AcquireError::ServiceGone);
    check(
        &|bench, service| {
            let spec = ServiceSpec { ports: vec![PortName::new("grpc")], ..ServiceSpec::default() };
            bench.registry.declare(service.id(), &spec);
        },
        AcquireError::NoSuchPort,
    );
}

#[test]
fn the_anatomy_of_a_cold_start_is_written_down() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    let step = || bench.clock.advance(Duration::from_millis(10));
    step();
    let mut waiting = line(&port, 2);
    step();
    service.put_slice("a", slice([(0, STARTING)]));
    step();
    service.put_slice("a", ready_slice(1));
    let mut slot = waiting[0].served();
    step();
    slot.connected();
    step();
    slot.answered();
    let log = bench.registry.cold_starts().newest(None, 10);
    assert_eq!(log.len(), 1);
    let phases: Vec<_> = log[0].phases().map(|(phase, took)| (phase.as_str(), took.as_millis())).collect();
    assert_eq!(phases, [("wake", 0), ("seen", 10), ("ready", 10), ("connect", 10), ("first_byte", 10)]);
    assert_eq!((log[0].outcome, log[0].pod.as_deref()), (ColdStartOutcome::Served, Some("shop/pod-0")));
    // The second one waited too, but it is the same cold start.
    let mut slot = waiting[1].served();
    slot.answered();
    assert_eq!(bench.registry.cold_starts().newest(None, 10).len(), 1);
}

#[test]
fn a_cold_start_without_waiting_requests_is_abandoned() {
    let bench = Bench::new();
    let (_, port) = bench.service("cart", ConcurrencyLimits::default());
    drop(line(&port, 2));
    let outcomes: Vec<_> =
        bench.registry.cold_starts().newest(None, 10).iter().map(|cold| cold.outcome).collect();
    assert_eq!(outcomes, [ColdStartOutcome::Abandoned]);
}

#[test]
fn a_wake_that_failed_is_told_until_a_pod_comes() {
    let bench = Bench::new();
    let (service, _) = bench.service("cart", ConcurrencyLimits::default());
    service.wake_failed(StartFailure::new(StartFailureCause::ClusterUnavailable, "no answer"));
    assert_eq!(service.wake_failure().unwrap().detail(), "no answer");
    service.put_slice("a", ready_slice(1));
    assert_eq!(service.wake_failure(), None);
}

#[tokio::test(start_paused = true)]
async fn a_hold_gives_up_exactly_at_its_deadline() {
    let bench = Bench::new();
    let (_, port) = bench.service("cart", ConcurrencyLimits::default());
    let start = tokio::time::Instant::now();
    let deadline = tokio::time::sleep_until(start + Duration::from_millis(1234));
    let error = port.acquire(SlotRequest::default(), deadline).await.unwrap_err();
    assert_eq!((error, start.elapsed()), (AcquireError::Deadline, Duration::from_millis(1234)));
    assert_eq!(bench.registry.holds(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_comes_at_the_deadline_is_taken() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    let deadline = async { service.put_slice("a", ready_slice(1)) };
    assert!(port.acquire(SlotRequest::default(), deadline).await.is_ok());
}
