//! Whole services under many random thread schedules: publish, notify, subscribe, wait, leave, close.
//!
//! Run by `make shuttle`; in a plain test run this file is empty. The exhaustive models of the parts (slots, wait queues,
//! feeds) are beside the code, and run by `make loom`.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread::{self, JoinHandle};

use rouse_core::hold::AcquireError;
use rouse_core::service::{Port, Service, Slot, SlotRequest};
use rouse_core::shutdown::InFlightCounter;
use rouse_core::snapshot::{ConcurrencyLimits, PortView};
use rouse_testkit::fakes::{Bench, READY, STARTING, ready_slice, slice};

fn check(model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    let again = Arc::clone(&model);
    shuttle::check_random(move || model(), 20_000);
    shuttle::check_pct(move || again(), 20_000, 3);
}

fn warm(limit: u32) -> (Bench, Arc<Service>, Arc<Port>) {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::new(0, limit));
    service.put_slice("a", ready_slice(1));
    (bench, service, port)
}

fn in_flight(service: &Service) -> u32 {
    let snapshot = service.snapshot();
    snapshot.ports.iter().flat_map(PortView::endpoints).map(|one| one.load.in_flight()).sum()
}

fn acquire(port: &Arc<Port>) -> Result<Slot, AcquireError> {
    block_on(port.acquire(SlotRequest::default(), pending()))
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Does something with `shared` on another thread.
fn meanwhile<T: Send + Sync + 'static>(
    shared: &Arc<T>,
    run: impl FnOnce(&Arc<T>) + Send + 'static,
) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || run(&shared))
}

/// Puts a slice with one ready pod on another thread.
fn becomes_ready(service: &Arc<Service>) -> JoinHandle<()> {
    meanwhile(service, |service| service.put_slice("a", ready_slice(1)))
}

/// One slot, and all requests want it.
#[test]
fn a_slot_is_held_by_one_at_a_time_and_no_request_waits_for_ever() {
    check(|| {
        let (bench, service, port) = warm(1);
        let inside = Arc::new(AtomicUsize::new(0));
        let use_slot = |port: &Arc<Port>, inside: &AtomicUsize| {
            let slot = acquire(port).unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::AcqRel), 0, "two hold the only slot");
            inside.fetch_sub(1, Ordering::AcqRel);
            drop(slot);
        };
        let other = meanwhile(&port, {
            let inside = Arc::clone(&inside);
            move |port| use_slot(port, &inside)
        });
        use_slot(&port, &inside);
        other.join().unwrap();
        assert_eq!((in_flight(&service), port.holds(), bench.registry.holds()), (0, 0, 0));
    });
}

/// A slot is given back while one waiting request leaves and another stays.
#[test]
fn a_slot_granted_to_a_request_that_leaves_goes_to_the_next() {
    check(|| {
        let (bench, service, port) = warm(1);
        let slot = port.try_acquire(0).unwrap();
        let leaver = meanwhile(&port, |port| {
            let mut hold = pin!(port.acquire(SlotRequest::default(), pending()));
            // Dropped whether it got a slot or not.
            drop(poll_once(hold.as_mut()));
        });
        let giver = thread::spawn(move || drop(slot));
        drop(acquire(&port).unwrap());
        leaver.join().unwrap();
        giver.join().unwrap();
        assert_eq!((in_flight(&service), port.holds(), bench.registry.holds()), (0, 0, 0));
    });
}

/// The pod becomes ready while a request decides to wait for it.
#[test]
fn a_publication_is_never_missed_by_a_request_that_is_about_to_wait() {
    check(|| {
        let bench = Bench::new();
        let (service, port) = bench.service("cart", ConcurrencyLimits::default());
        let writer = becomes_ready(&service);
        drop(acquire(&port).unwrap());
        writer.join().unwrap();
        assert_eq!((in_flight(&service), port.holds()), (0, 0));
    });
}

/// The last of a herd gives its place back while the next one decides to wait for it.
#[test]
fn an_answered_hold_makes_room_for_the_next() {
    check(|| {
        let bench = Bench::new();
        let (service, port) =
            bench.service("cart", ConcurrencyLimits { limit: None, max_released: 1.try_into().unwrap() });
        let writer = becomes_ready(&service);
        let be_served = |port: &Arc<Port>| acquire(port).unwrap().answered();
        let other = meanwhile(&port, be_served);
        be_served(&port);
        other.join().unwrap();
        writer.join().unwrap();
        let snapshot = service.snapshot();
        let load = &snapshot.ports[0].endpoints()[0].load;
        assert_eq!((load.in_flight(), load.released(), port.holds()), (0, 0, 0));
    });
}

/// The queue is closed while a request decides to wait.
#[test]
fn no_request_waits_in_a_closed_queue() {
    check(|| {
        let bench = Bench::new();
        let (_service, port) = bench.service("cart", ConcurrencyLimits::default());
        let closer = meanwhile(&bench.registry, |registry| registry.shut_down());
        assert_eq!(acquire(&port).unwrap_err(), AcquireError::ShuttingDown);
        closer.join().unwrap();
        assert_eq!(bench.registry.holds(), 0);
    });
}

/// Two writers and a reader.
#[test]
fn a_subscriber_sees_the_last_of_concurrent_updates_and_none_is_lost() {
    check(|| {
        let bench = Bench::new();
        let (service, _port) = bench.service("cart", ConcurrencyLimits::default());
        let mut subscription = service.subscribe();
        let writers = [("a", 1), ("b", 2)].map(|(name, pod)| {
            meanwhile(&service, move |service| service.put_slice(name, slice([(pod, READY)])))
        });
        block_on(async {
            loop {
                let snapshot = subscription.changed().await;
                if snapshot.ports.iter().map(|port| port.endpoints().len()).sum::<usize>() == 2 {
                    break;
                }
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}

/// One writer and a reader: with two, the second would hide that the first was missed.
#[test]
fn a_subscriber_sees_the_only_update() {
    check(|| {
        let bench = Bench::new();
        let (service, _port) = bench.service("cart", ConcurrencyLimits::default());
        let mut subscription = service.subscribe();
        let writer = becomes_ready(&service);
        block_on(async { while !subscription.changed().await.routable() {} });
        writer.join().unwrap();
    });
}

/// The only pod dies while a request decides to wait for it.
#[test]
fn a_request_that_waits_for_a_pod_that_dies_sends_a_wake() {
    check(|| {
        let (bench, service, port) = warm(1);
        let slot = port.try_acquire(0).unwrap();
        let writer = meanwhile(&service, |service| service.drop_slice("a"));
        let mut hold = pin!(port.acquire(SlotRequest::default(), pending()));
        assert!(poll_once(hold.as_mut()).is_pending());
        writer.join().unwrap();
        assert_eq!(bench.engine.wakes(), 1);
        drop(slot);
    });
}

/// A slot is given back while its endpoint leaves and another comes.
#[test]
fn a_hold_is_served_by_whichever_capacity_comes() {
    check(|| {
        let (bench, service, port) = warm(1);
        let slot = port.try_acquire(0).unwrap();
        let writer = meanwhile(&service, |service| {
            service.put_slice("a", slice([(0, STARTING), (1, READY)]));
        });
        let giver = thread::spawn(move || drop(slot));
        drop(acquire(&port).unwrap());
        writer.join().unwrap();
        giver.join().unwrap();
        assert_eq!((in_flight(&service), bench.registry.holds()), (0, 0));
    });
}

/// The last work ends while a task decides to wait for that.
#[test]
fn the_end_of_the_last_work_is_never_missed() {
    check(|| {
        let under_way = Arc::new(InFlightCounter::default());
        let works = [under_way.begin(), under_way.begin()].map(|work| thread::spawn(move || drop(work)));
        block_on(under_way.idle());
        works.into_iter().for_each(|work| work.join().unwrap());
    });
}
