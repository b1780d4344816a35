//! The load meter: what counts, for how long, and which meters the feed lists.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]
#![cfg(not(any(loom, shuttle)))]

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use proptest::prelude::*;
use rouse_core::load_meter::{LoadKey, LoadMeter, LoadSample};
use rouse_core::service::{Port, Service, Slot};
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_testkit::fakes::{Bench, ready_slice};
use rouse_testkit::slot_requests::Request;

const SECOND: Duration = Duration::from_secs(1);

fn cold() -> (Bench, Arc<Service>, Arc<Port>) {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    (bench, service, port)
}

fn warm() -> (Bench, Arc<Service>, Arc<Port>) {
    let (bench, service, port) = cold();
    service.put_slice("a", ready_slice(2));
    (bench, service, port)
}

/// Requests so far, request-milliseconds so far, present and held.
fn reading(meter: &LoadMeter) -> (u64, u128, u32, u32) {
    let LoadSample { requests, busy, present, held, .. } = meter.sample();
    (requests, busy.as_millis(), present, held)
}

fn keys(samples: &[LoadSample]) -> Vec<String> {
    samples.iter().map(|sample| sample.key.to_string()).collect()
}

fn is_edge(bench: &Bench) -> bool {
    let edge = pin!(bench.registry.loads().edge());
    edge.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn a_request_counts_from_its_slot_to_the_end_of_its_slot() {
    let (bench, service, port) = warm();
    let slot = port.try_acquire(0).unwrap();
    assert_eq!(reading(service.meter()), (1, 0, 1, 0));
    bench.clock.advance(SECOND);
    assert_eq!(reading(service.meter()), (1, 1000, 1, 0));
    drop(slot);
    bench.clock.advance(SECOND);
    assert_eq!(reading(service.meter()), (1, 1000, 0, 0));
}

#[test]
fn a_held_request_counts_and_stays_the_same_request_when_it_gets_its_slot() {
    let (bench, service, port) = cold();
    let mut waiting = Request::new(&port, 1).waits();
    bench.clock.advance(SECOND);
    assert_eq!(reading(service.meter()), (1, 1000, 1, 1));
    service.put_slice("a", ready_slice(1));
    let slot = waiting.served();
    assert_eq!(reading(service.meter()), (1, 1000, 1, 0));
    bench.clock.advance(SECOND);
    drop(slot);
    assert_eq!(reading(service.meter()), (1, 2000, 0, 0));
}

#[test]
fn a_request_that_leaves_while_it_is_held_counts_no_more() {
    let (bench, service, port) = cold();
    let waiting = Request::new(&port, 1).waits();
    bench.clock.advance(SECOND);
    drop(waiting);
    bench.clock.advance(SECOND);
    assert_eq!(reading(service.meter()), (1, 1000, 0, 0));
}

#[test]
fn a_request_that_is_tried_again_counts_once() {
    let (bench, service, port) = warm();
    let retry = port.try_acquire(0).unwrap().refused(true);
    bench.clock.advance(SECOND);
    assert_eq!(reading(service.meter()), (1, 1000, 1, 0));
    let slot: Slot = Request::again(&port, retry).served();
    drop(slot);
    assert_eq!(reading(service.meter()), (1, 1000, 0, 0));
}

#[test]
fn a_request_that_must_not_count_does_not_and_an_announced_one_takes_no_time() {
    let (bench, service, port) = warm();
    let slot = port.try_acquire_uncounted(0).unwrap();
    bench.clock.advance(SECOND);
    assert_eq!(reading(service.meter()), (0, 0, 0, 0));
    drop(slot);
    assert!(bench.registry.loads().read().is_empty());
    port.announce();
    bench.clock.advance(SECOND);
    assert_eq!(reading(service.meter()), (1, 0, 0, 0));
    assert_eq!(keys(&bench.registry.loads().read()), ["service shop/cart"]);
}

#[test]
fn the_feed_lists_a_meter_while_it_has_load_and_once_more() {
    let (bench, _, port) = warm();
    let loads = bench.registry.loads();
    assert!(loads.read().is_empty() && !is_edge(&bench));
    let slot = port.try_acquire(0).unwrap();
    assert!(is_edge(&bench) && !is_edge(&bench), "once");
    for _ in 0..3 {
        assert_eq!(keys(&loads.read()), ["service shop/cart"], "the request goes on");
    }
    drop(slot);
    let last = loads.read();
    assert_eq!((last[0].present, last[0].requests), (0, 1), "the last reading shows that it is idle");
    assert!(loads.read().is_empty());
    assert!(!is_edge(&bench));
    drop(port.try_acquire(0).unwrap());
    assert!(is_edge(&bench), "a short request after silence is an edge");
    assert_eq!(loads.read()[0].requests, 2);
}

#[test]
fn a_service_with_few_requests_is_one_edge_and_not_one_for_each() {
    let (bench, _, port) = warm();
    let mut edges = 0;
    for _ in 0..10 {
        drop(port.try_acquire(0).unwrap());
        edges += u32::from(is_edge(&bench));
        bench.clock.advance(SECOND);
        assert_eq!(bench.registry.loads().read().len(), 1);
    }
    assert_eq!(edges, 1);
}

#[test]
fn idle_services_are_not_read() {
    let bench = Bench::new();
    let ports: Vec<_> =
        (0..1000).map(|n| bench.service(&format!("s{n}"), ConcurrencyLimits::default()).1).collect();
    ports[7].announce();
    let loads = bench.registry.loads();
    assert_eq!(loads.read().len(), 1);
    loads.read();
    assert!(loads.read().is_empty());
}

#[test]
fn the_feed_forgets_a_service_that_is_removed() {
    let (bench, service, port) = warm();
    let _slot = port.try_acquire(0).unwrap();
    bench.registry.remove(service.id());
    assert!(bench.registry.loads().read().is_empty());
    port.announce();
    assert!(bench.registry.loads().read().is_empty(), "nor does a late request list it again");
}

#[test]
fn a_route_has_a_meter_of_its_own() {
    let bench = Bench::new();
    let route = bench.registry.route_meter("InterceptorRoute shop/cart".into());
    let request = route.begin();
    bench.clock.advance(SECOND);
    let samples = bench.registry.loads().read();
    assert_eq!(samples[0].key, LoadKey::Route("InterceptorRoute shop/cart".into()));
    assert_eq!((samples[0].busy, samples[0].present), (SECOND, 1));
    drop(request);
    assert_eq!(route.present(), 0);
}

/// What happens to a meter.
#[derive(Debug, Clone)]
enum Step {
    Begin,
    /// The request that began `n`-th of those that are present, modulo their number.
    End(usize),
    Pass(u64),
    Read,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Begin),
        3 => (0_usize..100).prop_map(Step::End),
        // In units of the meter, up to a month.
        3 => prop_oneof![0_u64..100_000, Just(30_000_000_000)].prop_map(Step::Pass),
        2 => Just(Step::Read),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn a_meter_equals_the_sum_of_all_requests(steps in steps()) {
        let bench = Bench::new();
        // Soon the time does not fit into its part of the packed number any more.
        bench.clock.advance(Duration::from_micros(100 * ((1 << 42) - 40_000_000_000)));
        let meter = bench.registry.route_meter("r".into());
        let (mut present, mut requests, mut busy, mut long) = (Vec::new(), 0_u64, 0_u128, 0_u64);
        for step in steps {
            match step {
                Step::Begin => {
                    present.push(meter.begin());
                    requests += 1;
                }
                Step::End(n) if !present.is_empty() => drop(present.swap_remove(n % present.len())),
                Step::End(_) => {}
                Step::Pass(units) => {
                    // A meter can count 2^41 units between two readings.
                    let more = units * present.len() as u64;
                    if long + more > 1 << 41 {
                        meter.sample();
                        long = 0;
                    }
                    long += more;
                    bench.clock.advance(Duration::from_micros(100 * units));
                    busy += u128::from(units) * present.len() as u128;
                }
                Step::Read => {
                    long = 0;
                    let sample = meter.sample();
                    prop_assert_eq!(sample.busy.as_micros(), busy * 100);
                    prop_assert_eq!((sample.requests, sample.present as usize), (requests, present.len()));
                }
            }
        }
        prop_assert_eq!(meter.sample().busy.as_micros(), busy * 100);
    }
}

#[test]
fn requests_that_others_report_count_like_those_that_pass() {
    let (bench, service, port) = warm();
    let meter = service.meter();
    let slot = port.try_acquire(0).unwrap();
    meter.count_reported(10, 0, 4);
    assert_eq!(reading(meter), (11, 0, 5, 0));
    bench.clock.advance(SECOND);
    // 5 requests for a second; then 3 more began, and 1 is left.
    meter.count_reported(3, 4, 1);
    assert_eq!(reading(meter), (14, 5000, 2, 0));
    bench.clock.advance(SECOND);
    drop(slot);
    meter.count_reported(0, 1, 0);
    bench.clock.advance(SECOND);
    assert_eq!(reading(meter), (14, 7000, 0, 0));
}

#[test]
fn reported_requests_list_the_meter_also_if_none_began_since() {
    let (bench, service, _) = warm();
    service.meter().count_reported(0, 0, 2);
    assert!(is_edge(&bench));
    assert_eq!(keys(&bench.registry.loads().read()), ["service shop/cart"]);
    service.meter().count_reported(0, 2, 0);
    bench.registry.loads().read();
    assert_eq!(bench.registry.loads().read(), []);
    service.meter().count_reported(1, 0, 0);
    assert!(is_edge(&bench), "a request that is over counts too");
}

#[test]
fn the_most_requests_that_may_be_reported_are_counted_exactly() {
    let (bench, service, _) = warm();
    let most = 1 << 20;
    service.meter().count_reported(u64::from(most), 0, most);
    bench.clock.advance(SECOND);
    // The reading must come before the sum wraps: each second, as the reporter does.
    assert_eq!(reading(service.meter()), (u64::from(most), u128::from(most) * 1000, most, 0));
    service.meter().count_reported(0, most, most);
    bench.clock.advance(SECOND);
    assert_eq!(reading(service.meter()), (u64::from(most), u128::from(most) * 2000, most, 0));
    service.meter().count_reported(0, most, 0);
    assert_eq!(service.meter().present(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn any_mix_of_reported_and_own_requests_is_the_sum_of_both(
        steps in prop::collection::vec((0..3_u8, 0..50_u64, 0..2000_u32, 0..3000_u64), 0..40)
    ) {
        let (bench, service, port) = warm();
        let (mut slots, mut reported) = (Vec::new(), 0);
        let (mut requests, mut busy) = (0, 0_u128);
        for (kind, began, present, milliseconds) in steps {
            match kind {
                0 => {
                    service.meter().count_reported(began, reported, present);
                    (requests, reported) = (requests + began, present);
                }
                1 => if let Some(slot) = port.try_acquire(0) {
                    slots.push(slot);
                    requests += 1;
                },
                _ => drop(slots.pop()),
            }
            let all = reported + u32::try_from(slots.len()).unwrap();
            prop_assert_eq!(reading(service.meter()), (requests, busy, all, 0));
            bench.clock.advance(Duration::from_millis(milliseconds));
            busy += u128::from(all) * u128::from(milliseconds);
        }
    }
}
