//! A service and its ports: refusals, ejections, wakes, cold starts, removal.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rouse_core::cold_start::ColdStartOutcome;
use rouse_core::endpoint::{PortName, Slice, SliceEndpoint, SlicePort, State};
use rouse_core::hold::AcquireError;
use rouse_core::merge::{BootId, Push, PushEvent, PushOrder};
use rouse_core::service::{Port, Service, ServiceSpec, Slot};
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_core::time::{Clock, Moment};
use rouse_testkit::fakes::{Bench, DRAINING, READY, STARTING, http, ip, pod, ready_slice, slice};
use rouse_testkit::slot_requests::{CountingWaker, Request};

fn push(n: u32, sequence: u64, event: PushEvent) -> Push {
    let boot = BootId { started: 1, id: 1 };
    Push {
        pod: pod(n),
        order: PushOrder { boot, sequence },
        ips: vec![ip(n)],
        owns_addresses: true,
        ports: vec![SlicePort { name: http(), number: 8080 }],
        event,
    }
}

/// Service `cart` without pods.
fn cold(concurrency: ConcurrencyLimits) -> (Bench, Arc<Service>, Arc<Port>) {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", concurrency);
    (bench, service, port)
}

/// Service `cart` with this many ready pods.
fn warm(concurrency: ConcurrencyLimits, pods: u32) -> (Bench, Arc<Service>, Arc<Port>) {
    let (bench, service, port) = cold(concurrency);
    service.put_slice("a", ready_slice(pods));
    (bench, service, port)
}

/// Advances time by this many seconds, tick by tick.
fn pass(bench: &Bench, seconds: u32) {
    for _ in 0..seconds {
        bench.clock.advance(Duration::from_secs(1));
        bench.registry.tick();
    }
}

/// A request that was refused by a pod, though not because of the pod, and waits for another.
fn refused(port: &Arc<Port>) -> Request {
    let retry = port.try_acquire(0).unwrap().refused(false);
    Request::again(port, retry).waits()
}

fn uid(slot: &Slot) -> String {
    slot.endpoint().pod.as_ref().unwrap().uid.as_str().to_owned()
}

#[test]
fn requests_that_still_wait_when_the_pod_dies_wake_another() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    let _waiting: Vec<_> = (0..300).map(|n| Request::new(&port, n).waits()).collect();
    assert_eq!(bench.engine.wakes(), 1);
    service.put_slice("a", ready_slice(1));
    service.drop_slice("a");
    assert!(port.holds() > 0);
    pass(&bench, 50);
    assert!(
        bench.engine.wakes() > 1,
        "200 wait, nothing is routable, and no wake is sent: {:?}",
        bench.registry.due()
    );
}

#[test]
fn requests_that_wait_at_a_limit_when_the_pod_dies_wake_another() {
    let (bench, service, port) = warm(ConcurrencyLimits::new(0, 1), 1);
    let _slot = port.try_acquire(0).unwrap();
    let _hold = Request::new(&port, 0).waits();
    service.drop_slice("a");
    pass(&bench, 50);
    assert!(bench.engine.wakes() >= 1);
}

#[test]
fn a_wake_is_repeated_while_requests_wait_for_a_draining_pod() {
    let (bench, service, port) = cold(ConcurrencyLimits::new(0, 1));
    service.put_slice("a", slice([(0, DRAINING)]));
    let _slot = port.try_acquire(0).unwrap();
    let _hold = Request::new(&port, 0).waits();
    service.put_slice("a", slice([(0, DRAINING), (1, STARTING)]));
    let before = bench.engine.wakes();
    pass(&bench, 50);
    assert!(bench.engine.wakes() > before, "holds remain, no ready pod, wake never repeated");
}

#[test]
fn a_leaving_pod_that_still_serves_wakes_ever_more_slowly() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    service.put_slice("a", slice([(0, DRAINING)]));
    for _ in 0..6000 {
        drop(port.try_acquire(0));
        bench.clock.advance(Duration::from_millis(10));
        bench.registry.tick();
    }
    assert!(bench.engine.wakes() <= 15, "{} wakes in a minute", bench.engine.wakes());
}

#[test]
fn a_refused_request_does_not_keep_others_from_a_free_slot() {
    let (_bench, _service, port) = warm(ConcurrencyLimits::new(0, 1), 2);
    let _web_socket = port.try_acquire(0).unwrap();
    // As after REFUSED_STREAM: the pod has a free slot again, but this request does not use it for now.
    let retry = port.try_acquire(1).unwrap().refused(false);
    let _refused = Request::again(&port, retry).waits();
    drop(Request::new(&port, 2).served());
}

#[test]
fn an_ejection_that_ends_serves_waiting_requests() {
    let (bench, _service, port) = warm(ConcurrencyLimits::new(0, 1), 2);
    let _long = port.try_acquire(0).unwrap();
    drop(port.try_acquire(1).unwrap().refused(true));
    let mut hold = Request::new(&port, 2).waits();
    pass(&bench, 100);
    assert!(hold.poll().is_ready(), "the pod has been good again for 100 s");
}

#[test]
fn a_success_that_ends_an_ejection_serves_waiting_requests() {
    let (_bench, service, port) = warm(ConcurrencyLimits::new(0, 2), 1);
    let [mut good, bad] = [0, 1].map(|seed| port.try_acquire(seed).unwrap());
    service.put_slice("a", ready_slice(2));
    let _other_pod = [0, 1].map(|seed| port.try_acquire(seed).unwrap());
    // Now the first pod has a free slot, but is ejected.
    drop(bad.refused(true));
    let mut hold = Request::new(&port, 2).waits();
    good.connected();
    drop(hold.served());
}

#[test]
fn a_request_refused_by_the_only_pod_is_served_when_it_is_good_again() {
    let (bench, _service, port) = warm(ConcurrencyLimits::default(), 1);
    let retry = port.try_acquire(0).unwrap().refused(true);
    let mut hold = Request::again(&port, retry).waits();
    assert_eq!(bench.registry.due(), Some(Moment::from_millis(100)), "when its ejection ends");
    bench.clock.advance(Duration::from_millis(100));
    bench.registry.tick();
    drop(hold.served());
}

#[test]
fn a_refused_request_leaves_the_quick_way_open_for_others() {
    let (_bench, _service, port) = warm(ConcurrencyLimits::default(), 1);
    let _hold = refused(&port);
    let slots: Vec<Slot> = (0..150).map(|seed| port.try_acquire(seed).unwrap()).collect();
    assert_eq!(slots.len(), 150, "more than a herd");
}

#[test]
fn a_closed_port_neither_wakes_nor_starts_a_cold_start() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    bench
        .registry
        .declare(service.id(), &ServiceSpec { ports: vec![PortName::new("grpc")], ..ServiceSpec::default() });
    assert_eq!(Request::new(&port, 0).turned_away(), AcquireError::NoSuchPort);
    let wakes = bench.engine.wakes();
    // An hour later, a real cold start.
    bench.clock.advance(Duration::from_hours(1));
    let grpc = service.port(&PortName::new("grpc")).unwrap();
    let mut hold = Request::new(&grpc, 0).waits();
    bench.clock.advance(Duration::from_secs(1));
    let mut s = slice([(0, READY)]);
    s.ports[0].name = PortName::new("grpc");
    service.put_slice("a", s);
    hold.served().answered();
    let log = bench.registry.cold_starts().newest(None, 10);
    assert_eq!((wakes, log[0].total()), (0, Duration::from_secs(1)));
}

#[test]
fn a_port_that_is_no_more_gives_no_slots_although_its_pods_are_up() {
    let (bench, service, port) = warm(ConcurrencyLimits::default(), 1);
    bench
        .registry
        .declare(service.id(), &ServiceSpec { ports: vec![PortName::new("grpc")], ..ServiceSpec::default() });
    assert!(port.try_acquire(0).is_none());
    assert_eq!(Request::new(&port, 0).turned_away(), AcquireError::NoSuchPort);
}

#[test]
fn a_removed_service_gives_no_more_slots() {
    let (bench, service, port) = warm(ConcurrencyLimits::default(), 1);
    bench.registry.remove(service.id());
    drop(service);
    assert!(port.try_acquire(0).is_none(), "frozen snapshot is served from for ever");
}

#[test]
fn a_subscriber_hears_of_the_removal() {
    let (bench, service, _port) = warm(ConcurrencyLimits::default(), 1);
    let mut s = service.subscribe();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pin!(s.changed()).poll(&mut cx).is_ready());
    bench.registry.remove(service.id());
    drop(service);
    let Poll::Ready(last) = pin!(s.changed()).poll(&mut cx) else {
        panic!("the subscriber must be notified")
    };
    assert!(last.gone && !last.routable());
}

#[test]
fn a_late_writer_of_a_removed_service_does_not_touch_its_successor() {
    let (bench, old, _) = cold(ConcurrencyLimits::default());
    bench.registry.remove(old.id());
    let (new, port) = bench.service("cart", ConcurrencyLimits::default());
    new.push(push(0, 1, PushEvent::Ready)).unwrap();
    assert_eq!(bench.registry.due(), Some(Moment::from_secs(60)));
    old.put_slice("a", ready_slice(1));
    assert_eq!(bench.registry.due(), Some(Moment::from_secs(60)), "the successor's timer is lost");
    bench.clock.advance(Duration::from_secs(61));
    bench.registry.tick();
    assert!(port.try_acquire(0).is_none(), "the lease has lapsed");
}

#[test]
fn a_removed_service_is_never_woken() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    bench.registry.remove(service.id());
    assert_eq!(Request::new(&port, 0).turned_away(), AcquireError::ServiceGone);
    assert_eq!((bench.engine.wakes(), bench.registry.due()), (0, None));
}

#[test]
fn a_shutdown_sends_no_wake() {
    let (bench, _service, port) = cold(ConcurrencyLimits::default());
    bench.registry.shut_down();
    assert!(Request::new(&port, 0).poll().is_ready());
    assert_eq!(bench.engine.wakes(), 0);
}

#[test]
fn an_uncounted_request_is_served_by_a_running_pod_and_is_no_load() {
    let (bench, service, port) = cold(ConcurrencyLimits::new(0, 1));
    assert!(port.try_acquire_uncounted(0).is_none(), "no pod is there");
    for (n, conditions) in [(0, READY), (1, DRAINING)] {
        service.put_slice("a", slice([(n, conditions)]));
        let slot = port.try_acquire_uncounted(0).unwrap();
        assert_eq!((uid(&slot), service.in_flight()), (format!("uid-{n}"), 1));
        assert!(port.try_acquire_uncounted(0).is_none(), "a limit is a limit");
        drop(slot);
        assert_eq!(service.in_flight(), 0);
    }
    assert_eq!((bench.engine.wakes(), service.asked()), (0, 0));
    // The same for one that counts.
    assert!(port.try_acquire(0).is_some());
    assert_eq!((bench.engine.wakes(), service.asked()), (1, 1));
}

#[test]
fn an_uncounted_request_does_not_overtake_waiting_requests() {
    let (_bench, service, port) = cold(ConcurrencyLimits::default());
    let mut waiting: Vec<_> = (0..150).map(|n| Request::new(&port, n).waits()).collect();
    service.put_slice("a", ready_slice(1));
    assert!(port.holds() > 0, "the pod has no limit, but a herd comes in parts");
    assert!(port.try_acquire_uncounted(0).is_none());
    waiting.clear();
    assert!(port.try_acquire_uncounted(0).is_some());
}

#[test]
fn a_refused_uncounted_request_goes_to_another_pod_or_to_none() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    service.put_slice("a", slice([(0, DRAINING), (1, DRAINING)]));
    let first = port.try_acquire_uncounted(0).unwrap();
    let refusing = uid(&first);
    let second = port.retry_uncounted(0, first.refused(true)).unwrap();
    assert_ne!(uid(&second), refusing);
    assert!(port.retry_uncounted(0, second.refused(true)).is_none());
    assert_eq!((bench.engine.wakes(), service.asked(), service.in_flight()), (0, 0, 0));
}

#[test]
fn an_announcement_wakes_once_and_counts_although_no_request_waits() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    for _ in 0..100 {
        port.announce();
    }
    assert_eq!((bench.engine.wakes(), service.asked(), service.holds()), (1, 100, 0));
    service.put_slice("a", ready_slice(1));
    port.announce();
    assert_eq!((bench.engine.wakes(), service.asked()), (1, 101), "a pod is there");
    service.put_slice("a", slice([(0, DRAINING)]));
    pass(&bench, 60);
    port.announce();
    assert_eq!(bench.engine.wakes(), 2, "it is leaving");
}

#[test]
fn an_announcement_sends_no_wake_for_a_closed_service() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    bench.registry.remove(service.id());
    port.announce();
    let (other, port) = bench.service("till", ConcurrencyLimits::default());
    bench
        .registry
        .declare(other.id(), &ServiceSpec { ports: vec![PortName::new("grpc")], ..ServiceSpec::default() });
    port.announce();
    let (_last, port) = bench.service("last", ConcurrencyLimits::default());
    bench.registry.shut_down();
    port.announce();
    assert_eq!((bench.engine.wakes(), bench.registry.due()), (0, None));
}

#[test]
fn a_cold_start_that_no_request_took_is_not_the_next_ones() {
    let (bench, service, port) = cold(ConcurrencyLimits::new(0, 1));
    let cold = Request::new(&port, 0).waits();
    // The slot is granted to the cold request, which leaves before it polls again.
    service.put_slice("a", ready_slice(1));
    let mut at_limit = Request::new(&port, 1).waits();
    drop(cold);
    drop(at_limit.served());
    service.drop_slice("a");
    bench.clock.advance(Duration::from_hours(1));
    let mut next = Request::new(&port, 2).waits();
    bench.clock.advance(Duration::from_secs(1));
    service.put_slice("a", slice([(1, READY)]));
    next.served().answered();
    assert_eq!(bench.registry.cold_starts().newest(None, 1)[0].total(), Duration::from_secs(1));
}

#[test]
fn a_pod_that_was_already_starting_is_seen_at_once() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    service.put_slice("a", slice([(0, STARTING)]));
    let mut hold = Request::new(&port, 0).waits();
    bench.clock.advance(Duration::from_secs(1));
    service.put_slice("a", ready_slice(1));
    hold.served().answered();
    let log = bench.registry.cold_starts().newest(None, 1);
    let phases: Vec<_> = log[0].phases().map(|(p, t)| (p.as_str(), t.as_millis())).collect();
    assert_eq!(phases, [("wake", 0), ("seen", 0), ("ready", 1000), ("first_byte", 0)]);
}

#[test]
fn the_anatomy_names_the_pod_that_answered() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    let mut hold = Request::new(&port, 0).waits();
    service.put_slice("a", ready_slice(1));
    let retry = hold.served().refused(true);
    service.put_slice("a", ready_slice(2));
    let mut slot = Request::again(&port, retry).served();
    assert_eq!(uid(&slot), "uid-1");
    slot.answered();
    assert_eq!(bench.registry.cold_starts().newest(None, 1)[0].pod.as_deref(), Some("shop/pod-1"));
}

#[test]
fn a_cold_start_whose_pod_came_is_not_abandoned() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    let hold = Request::new(&port, 0).waits();
    service.put_slice("a", ready_slice(1));
    drop(hold);
    assert_eq!(bench.registry.cold_starts().newest(None, 1)[0].outcome, ColdStartOutcome::Unanswered);
}

#[test]
fn a_cold_start_that_a_removal_ends_is_written_down() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    let mut hold = Request::new(&port, 0).waits();
    bench.registry.remove(service.id());
    drop(service);
    assert!(hold.poll().is_ready());
    drop(hold);
    assert_eq!(bench.registry.cold_starts().newest(None, 1).len(), 1);
}

#[test]
fn an_ejected_ready_pod_is_no_reason_to_wake() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    service.put_slice("a", slice([(0, READY), (1, DRAINING)]));
    drop(port.try_acquire(0).unwrap().refused(true));
    let slot = port.try_acquire(0).unwrap();
    assert_eq!((slot.endpoint().state, bench.engine.wakes()), (State::Draining, 0));
}

#[test]
fn a_wake_beyond_the_budget_is_sent_soon() {
    let bench = Bench::new();
    let ports: Vec<_> =
        (0..51).map(|n| bench.service(&format!("s{n}"), ConcurrencyLimits::default())).collect();
    let _holds: Vec<_> = ports.iter().map(|(_, port)| Request::new(port, 0).waits()).collect();
    let last = ports[50].0.id().clone();
    assert_eq!(bench.engine.wakes_of(&last), 0);
    // The repetitions of the first fifty cost it nothing.
    pass(&bench, 1);
    assert_eq!(bench.engine.wakes_of(&last), 1);
}

#[test]
fn a_limit_holds_for_a_pod_on_all_its_ports_together() {
    let bench = Bench::new();
    let id = "shop/cart".parse().unwrap();
    let grpc = PortName::new("grpc");
    let service = bench.registry.declare(
        &id,
        &ServiceSpec { ports: vec![http(), grpc.clone()], concurrency: ConcurrencyLimits::new(0, 1) },
    );
    service.put_slice(
        "a",
        Slice {
            ports: vec![SlicePort { name: http(), number: 80 }, SlicePort { name: grpc.clone(), number: 81 }],
            endpoints: vec![SliceEndpoint { ip: ip(0), conditions: READY, pod: Some(pod(0)) }],
        },
    );
    let slot = service.port(&http()).unwrap().try_acquire(0).unwrap();
    let mut hold = Request::new(&service.port(&grpc).unwrap(), 0).waits();
    drop(slot);
    drop(hold.served());
}

#[test]
fn a_request_that_all_pods_refused_does_not_hold_up_those_behind_it() {
    let (_bench, _service, port) = warm(ConcurrencyLimits::default(), 1);
    let _refused = refused(&port);
    drop(Request::new(&port, 1).served());
}

#[test]
fn a_refused_request_is_not_sent_to_the_same_pod_again() {
    let (_bench, service, port) = warm(ConcurrencyLimits::default(), 1);
    let mut again = refused(&port);
    service.put_slice("a", ready_slice(2));
    assert_eq!(uid(&again.served()), "uid-1");
}

#[test]
fn a_pod_that_refused_is_passed_over_until_its_ejection_ends_or_it_answers() {
    let (_bench, _service, port) = warm(ConcurrencyLimits::default(), 2);
    // One on each pod, and a third on either: it is refused.
    let [mut one, mut two, third] = [0, 1, 2].map(|seed| port.try_acquire(seed).unwrap());
    let bad = uid(&third);
    drop(third.refused(true));
    let picked = || (0..64).filter(|&seed| uid(&port.try_acquire(seed).unwrap()) == bad).count();
    assert_eq!(picked(), 0, "it refused just now");
    one.connected();
    two.connected();
    assert!(picked() > 0, "it answers again");
}

#[test]
fn a_hold_before_a_leaving_pod_that_is_full_wakes() {
    let (bench, service, port) = cold(ConcurrencyLimits::new(0, 1));
    service.put_slice("a", slice([(0, READY)]));
    let _slot = port.try_acquire(0).unwrap();
    service.put_slice("a", slice([(0, DRAINING)]));
    assert_eq!(bench.engine.wakes(), 0);
    let _hold = Request::new(&port, 0).waits();
    assert_eq!(bench.engine.wakes(), 1);
}

#[test]
fn a_ready_pod_ends_the_wakes() {
    let (bench, service, port) = cold(ConcurrencyLimits::new(0, 1));
    let _waiting: Vec<_> = (0..3).map(|n| Request::new(&port, n).waits()).collect();
    service.put_slice("a", ready_slice(1));
    assert_eq!(bench.registry.due(), None);
    service.drop_slice("a");
    let _hold = Request::new(&port, 9).waits();
    assert_eq!(bench.engine.wakes(), 2, "a new story");
}

#[test]
fn a_scan_of_all_hosts_wakes_no_more_than_the_budget() {
    let bench = Bench::new();
    let ports: Vec<_> =
        (0..60).map(|n| bench.service(&format!("s{n}"), ConcurrencyLimits::default()).1).collect();
    let _holds: Vec<_> = ports.iter().map(|port| Request::new(port, 0).waits()).collect();
    assert_eq!(bench.engine.wakes(), 50);
}

#[test]
fn a_cold_start_goes_on_while_a_request_still_waits_for_it() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    let first = Request::new(&port, 0).waits();
    let mut second = Request::new(&port, 1).waits();
    drop(first);
    assert!(bench.registry.cold_starts().newest(None, 1).is_empty());
    service.put_slice("a", ready_slice(1));
    second.served().answered();
    assert_eq!(bench.registry.cold_starts().newest(None, 9).len(), 1);
    assert_eq!(bench.registry.cold_starts().newest(None, 1)[0].outcome, ColdStartOutcome::Served);
}

#[test]
fn the_driver_hears_of_something_due_earlier() {
    let (bench, service, _) = cold(ConcurrencyLimits::default());
    let mut drive = Box::pin(bench.registry.drive(|_| pending()));
    let bell = Arc::<CountingWaker>::default();
    let waker = Waker::from(Arc::clone(&bell));
    assert!(drive.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    service.push(push(0, 1, PushEvent::Ready)).unwrap();
    assert_eq!(bell.wake_count(), 1);
}

#[test]
fn a_timer_that_fired_can_be_set_to_the_same_moment_again() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    service.push(push(0, 1, PushEvent::Ready)).unwrap();
    bench.clock.advance(Duration::from_mins(1));
    // The timer is due and only removes itself; the next lease sets a new one.
    bench.registry.tick();
    service.push(push(1, 1, PushEvent::Ready)).unwrap();
    assert_eq!(bench.registry.due(), Some(Moment::from_secs(120)));
    bench.clock.advance(Duration::from_mins(1));
    bench.registry.tick();
    assert!(port.try_acquire(0).is_none());
    assert_eq!(bench.registry.due(), None);
}

#[test]
fn a_removed_service_leaves_no_timer_and_no_address_behind() {
    let (bench, service, _) = cold(ConcurrencyLimits::default());
    service.push(push(0, 1, PushEvent::Ready)).unwrap();
    assert!(bench.registry.due().is_some());
    bench.registry.remove(service.id());
    assert_eq!(bench.registry.due(), None);
}

#[test]
fn a_service_declared_after_the_shutdown_is_closed() {
    let bench = Bench::new();
    bench.registry.shut_down();
    let (_, port) = bench.service("late", ConcurrencyLimits::default());
    assert_eq!(Request::new(&port, 0).turned_away(), AcquireError::ShuttingDown);
}

#[test]
fn requests_earn_retries_and_retries_do_not() {
    let (_bench, service, port) = warm(ConcurrencyLimits::default(), 1);
    while service.may_retry() {}
    for seed in 0..5 {
        drop(Request::new(&port, seed).served());
    }
    assert!(service.may_retry() && !service.may_retry());
    for seed in 0..5 {
        let retry = Request::new(&port, seed).served().refused(false);
        drop(Request::again(&port, retry).waits());
    }
    assert!(service.may_retry() && !service.may_retry(), "five requests, ten tries");
}

#[test]
fn every_port_is_served_by_a_publication() {
    let bench = Bench::new();
    let grpc = PortName::new("grpc");
    let spec = ServiceSpec { ports: vec![grpc.clone(), http()], ..ServiceSpec::default() };
    let service = bench.registry.declare(&"shop/cart".parse().unwrap(), &spec);
    let mut hold = Request::new(&service.port(&http()).unwrap(), 0).waits();
    service.put_slice("a", ready_slice(1));
    assert_eq!(hold.waker.wake_count(), 1);
    drop(hold.served());
}

#[test]
fn a_request_waited_as_long_as_all_its_tries_together() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    let mut hold = Request::new(&port, 0).waits();
    bench.clock.advance(Duration::from_secs(1));
    service.put_slice("a", ready_slice(1));
    let retry = hold.served().refused(true);
    let mut again = Request::again(&port, retry).waits();
    bench.clock.advance(Duration::from_secs(2));
    service.put_slice("a", ready_slice(2));
    assert_eq!(again.served().waited(), Duration::from_secs(3));
}

#[test]
fn a_pod_that_takes_an_address_over_does_so_in_every_service() {
    let bench = Bench::new();
    let (web, _) = bench.service("web", ConcurrencyLimits::default());
    let (headless, headless_port) = bench.service("headless", ConcurrencyLimits::default());
    for service in [&web, &headless] {
        service.put_slice("a", ready_slice(1));
    }
    bench.clock.advance(Duration::from_secs(1));
    // Another pod, at pod 0's address, of the first service only.
    let newcomer = Push { pod: pod(7), ..push(0, 1, PushEvent::Ready) };
    web.push(newcomer).unwrap();
    assert!(headless_port.try_acquire(0).is_none(), "the old pod is gone there too");
    headless.put_slice("a", ready_slice(1));
    assert!(headless_port.try_acquire(0).is_none(), "and no stale slice brings it back");
}

#[test]
fn a_pod_on_the_network_of_its_node_takes_over_no_address_in_any_service() {
    let bench = Bench::new();
    let (web, web_port) = bench.service("web", ConcurrencyLimits::default());
    let (other, other_port) = bench.service("other", ConcurrencyLimits::default());
    other.put_slice("a", ready_slice(1));
    bench.clock.advance(Duration::from_secs(1));
    // Both pods are at the address of the node, with the same port.
    web.push(Push { pod: pod(7), owns_addresses: false, ..push(0, 1, PushEvent::Ready) }).unwrap();
    assert!(other_port.try_acquire(0).is_some(), "the other pod stays where it is");
    assert!(web_port.try_acquire(0).is_some(), "and the pod itself is an endpoint");
}

#[test]
fn a_draining_pod_takes_over_no_address_in_any_service() {
    let bench = Bench::new();
    let (web, _) = bench.service("web", ConcurrencyLimits::default());
    let (headless, headless_port) = bench.service("headless", ConcurrencyLimits::default());
    headless.put_slice("a", ready_slice(1));
    bench.clock.advance(Duration::from_secs(1));
    web.put_slice("a", slice([(7, DRAINING)]));
    for (sequence, event) in [(1, PushEvent::Ready), (2, PushEvent::Draining)] {
        web.push(Push { pod: pod(7), ..push(0, sequence, event) }).unwrap();
        assert!(headless_port.try_acquire(0).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_by_a_timer_not_by_the_next_event() {
    let (bench, service, port) = cold(ConcurrencyLimits::default());
    service.push(push(0, 1, PushEvent::Ready)).unwrap();
    assert!(port.try_acquire(0).is_some());
    let clock = Arc::clone(&bench.clock);
    let sleep_until = move |due: Moment| {
        let clock = Arc::clone(&clock);
        async move {
            let pause = due.since(clock.now());
            tokio::time::timeout(pause, pending::<()>()).await.unwrap_err();
            clock.advance(pause);
        }
    };
    let mut changes = service.subscribe();
    assert!(changes.changed().await.routable());
    let gone = async { while changes.changed().await.routable() {} };
    tokio::select! {
        () = bench.registry.drive(sleep_until) => unreachable!("it drives for ever"),
        () = gone => {}
    }
    assert_eq!(bench.clock.now(), Moment::from_secs(60));
}
