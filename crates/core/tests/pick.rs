//! The choice of an endpoint, against a naive model of the rules.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rouse_core::endpoint::{Conditions, Endpoint, PodRef, Source, State};
use rouse_core::endpoint::{EndpointHealth, EndpointId, SlotLimit};
use rouse_core::pick::{PickError, pick};
use rouse_core::snapshot::PortView;
use rouse_core::time::{Clock, Moment};
use rouse_testkit::fakes::{DRAINING, ManualClock, READY, http, pod};

/// The state of an endpoint before the pick.
#[derive(Debug, Clone)]
struct Before {
    state: State,
    in_flight: u32,
    released: u32,
    ejected: bool,
    refused: bool,
}

fn endpoint(state: State, n: u32) -> Arc<Endpoint> {
    let pod: PodRef = pod(n);
    let conditions = match state {
        State::Ready => READY,
        State::Draining => DRAINING,
        State::Starting => Conditions::new(false, false, false),
        State::Gone => Conditions::new(false, false, true),
    };
    let address = format!("10.0.0.{}:80", n % 250).parse().unwrap();
    Arc::new(Endpoint {
        pod: Some(pod),
        addresses: Box::new([address]),
        state,
        source: Source::Slice,
        conditions,
        load: Arc::default(),
        health: Arc::default(),
    })
}

/// Gives the endpoint this load, by picking it alone.
fn burden(endpoint: &Arc<Endpoint>, in_flight: u32, released: u32, clock: &ManualClock) {
    let ready = Endpoint {
        pod: None,
        addresses: endpoint.addresses.clone(),
        state: State::Ready,
        source: Source::Slice,
        conditions: READY,
        load: Arc::clone(&endpoint.load),
        health: Arc::default(),
    };
    let alone = PortView::new(http(), vec![Arc::new(ready)]);
    for _ in 0..released {
        pick(&alone, SlotLimit::Released(NonZeroU32::MAX), &[], 0, clock).unwrap();
    }
    for _ in released..in_flight {
        pick(&alone, SlotLimit::Unlimited, &[], 0, clock).unwrap();
    }
}

/// The naive model: the first tier with an endpoint that has not refused, and in it the endpoints with free slots.
fn allowed(all: &[Before], capacity: SlotLimit) -> Result<Vec<usize>, PickError> {
    let tiers =
        [(State::Ready, false), (State::Draining, false), (State::Ready, true), (State::Draining, true)];
    let room = |one: &Before| match capacity {
        SlotLimit::Unlimited => true,
        SlotLimit::InFlight(limit) => one.in_flight < limit.get(),
        SlotLimit::Released(max_released) => one.released < max_released.get(),
    };
    for (state, ejected) in tiers {
        let askable: Vec<usize> = (0..all.len())
            .filter(|&n| all[n].state == state && all[n].ejected == ejected && !all[n].refused)
            .collect();
        if !askable.is_empty() {
            let free: Vec<usize> = askable.into_iter().filter(|&n| room(&all[n])).collect();
            return if free.is_empty() { Err(PickError::AtLimit) } else { Ok(free) };
        }
    }
    let routable = all.iter().any(|one| one.state >= State::Draining);
    Err(if routable { PickError::AllRefused } else { PickError::NoEndpoint })
}

fn before() -> impl Strategy<Value = Before> {
    let state = prop_oneof![
        4 => Just(State::Ready), 3 => Just(State::Draining), 1 => Just(State::Starting), 1 => Just(State::Gone)
    ];
    (state, 0..5u32, 0..5u32, any::<bool>(), prop::bool::weighted(0.3)).prop_map(
        |(state, in_flight, released, ejected, refused)| Before {
            state,
            in_flight: in_flight.max(released),
            released,
            ejected,
            refused,
        },
    )
}

fn capacity() -> impl Strategy<Value = SlotLimit> {
    let some = (1..5u32).prop_map(|n| NonZeroU32::new(n).unwrap());
    prop_oneof![
        Just(SlotLimit::Unlimited),
        some.clone().prop_map(SlotLimit::InFlight),
        some.prop_map(SlotLimit::Released)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn a_pick_is_always_one_that_the_rules_allow(
        all in prop::collection::vec(before(), 0..7),
        capacity in capacity(),
        seed in any::<u64>(),
    ) {
        let clock = ManualClock::default();
        let endpoints: Vec<_> = (0..).zip(&all).map(|(n, one)| endpoint(one.state, n)).collect();
        for (one, endpoint) in all.iter().zip(&endpoints) {
            burden(endpoint, one.in_flight, one.released, &clock);
            if one.ejected {
                endpoint.health.refused(clock.now());
            }
        }
        let refused: Vec<EndpointId> = all.iter().zip(&endpoints)
            .filter(|(one, _)| one.refused).map(|(_, endpoint)| endpoint.id()).collect();
        let view = PortView::new(http(), endpoints.clone());

        let got = pick(&view, capacity, &refused, seed, &clock)
            .map(|chosen| endpoints.iter().position(|one| Arc::ptr_eq(one, chosen)).unwrap());
        match (got, allowed(&all, capacity)) {
            (Ok(chosen), Ok(free)) => {
                prop_assert!(free.contains(&chosen), "{chosen} is not among {free:?}");
                let heaviest = free.iter().filter(|&&n| n != chosen).map(|&n| all[n].in_flight).max();
                prop_assert!(
                    heaviest.is_none_or(|heaviest| all[chosen].in_flight <= heaviest),
                    "the heaviest of all is never the lighter of two"
                );
                prop_assert_eq!(endpoints[chosen].load.in_flight(), all[chosen].in_flight + 1);
            }
            (Err(got), Err(wanted)) => prop_assert_eq!(got, wanted),
            (got, wanted) => prop_assert!(false, "got {got:?}, the rules say {wanted:?}"),
        }
        // No other count changed.
        let sum: u32 = endpoints.iter().map(|one| one.load.in_flight()).sum();
        prop_assert_eq!(sum, all.iter().map(|one| one.in_flight).sum::<u32>() + u32::from(got.is_ok()));
    }

    #[test]
    fn a_limit_is_filled_to_the_brim_and_never_over(
        pods in 1..12u32,
        limit in 1..6u32,
        seed in any::<u64>(),
    ) {
        let clock = ManualClock::default();
        let endpoints: Vec<_> = (0..pods).map(|n| endpoint(State::Ready, n)).collect();
        let view = PortView::new(http(), endpoints.clone());
        let capacity = SlotLimit::InFlight(NonZeroU32::new(limit).unwrap());
        for n in 0..u64::from(pods * limit) {
            prop_assert!(pick(&view, capacity, &[], seed.wrapping_add(n), &clock).is_ok());
        }
        prop_assert_eq!(pick(&view, capacity, &[], seed, &clock).unwrap_err(), PickError::AtLimit);
        prop_assert!(endpoints.iter().all(|one| one.load.in_flight() == limit));
    }

    #[test]
    fn load_is_spread_evenly(pods in 2..40u32, seed in any::<u64>()) {
        let clock = ManualClock::default();
        let endpoints: Vec<_> = (0..pods).map(|n| endpoint(State::Ready, n)).collect();
        let view = PortView::new(http(), endpoints.clone());
        for n in 0..u64::from(pods) * 20 {
            let seed = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            pick(&view, SlotLimit::Unlimited, &[], seed, &clock).unwrap();
        }
        // With two choices, the maximum stays close to the mean of 20; one choice would be off by 15.
        let fullest = endpoints.iter().map(|one| one.load.in_flight()).max().unwrap();
        prop_assert!(fullest <= 26, "{fullest} on one pod where the mean is 20");
    }
}

#[test]
fn an_ejection_ends_by_itself_and_grows_with_each_failure_in_a_row() {
    let clock = ManualClock::default();
    let health = EndpointHealth::new();
    let mut out = Vec::new();
    for _ in 0..9 {
        let until = health.refused(clock.now());
        out.push(until.since(clock.now()).as_millis());
        assert!(health.ejected(&clock));
        assert_eq!(health.refused(clock.now()), until, "requests refused together are one failure");
        clock.advance(until.since(clock.now()));
        assert!(!health.ejected(&clock));
    }
    assert_eq!(out, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    assert!(health.connected() && !health.connected());
    assert_eq!(
        health.refused(clock.now()),
        clock.now() + Duration::from_millis(100),
        "one success forgives all"
    );
}

#[test]
fn a_search_reaches_every_endpoint() {
    let clock = ManualClock::default();
    let endpoints: Vec<_> = (0..8).map(|n| endpoint(State::Ready, n)).collect();
    endpoints[7].health.refused(clock.now());
    let view = PortView::new(http(), endpoints.clone());
    let refused = [endpoints[7].id()];
    for seed in 0..700 {
        pick(&view, SlotLimit::Unlimited, &refused, seed, &clock).unwrap();
    }
    let taken: Vec<u32> = endpoints.iter().map(|one| one.load.in_flight()).collect();
    assert!(taken[..7].iter().all(|&count| (80..=120).contains(&count)), "{taken:?}");
}

#[test]
fn a_warm_pick_reads_no_clock() {
    struct NoClock;
    impl Clock for NoClock {
        fn now(&self) -> Moment {
            panic!("a warm pick must not read the clock");
        }
    }
    let view = PortView::new(http(), (0..10).map(|n| endpoint(State::Ready, n)).collect());
    assert!(pick(&view, SlotLimit::Unlimited, &[], 7, &NoClock).is_ok());
}
