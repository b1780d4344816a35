//! Asserts with a counting allocator that a warm pick allocates nothing.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::future::pending;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use rouse_core::service::SlotRequest;
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_testkit::fakes::{Bench, ready_slice};

#[test]
fn a_warm_slot_is_acquired_and_given_back_without_an_allocation() {
    for (pods, limit) in [(1, 0), (10, 0), (100, 5), (1000, 0)] {
        let bench = Bench::new();
        let (service, port) = bench.service("cart", ConcurrencyLimits::new(0, limit));
        service.put_slice("a", ready_slice(pods));
        // The first load in a thread allocates arc-swap's thread-local data.
        drop(port.try_acquire(0));
        let counted = allocation_counter::measure(|| {
            for seed in 0..100 {
                let mut slot = port.try_acquire(seed).unwrap();
                slot.connected();
                slot.answered();
                drop(slot);
                let mut acquire =
                    pin!(port.acquire(SlotRequest { seed, ..SlotRequest::default() }, pending()));
                let polled = Future::poll(acquire.as_mut(), &mut Context::from_waker(Waker::noop()));
                assert!(matches!(polled, Poll::Ready(Ok(_))));
            }
        });
        assert_eq!(counted.count_total, 0, "{pods} pods, limit {limit}");
    }
}
