//! Passive ejection, against a naive model of the rule.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rouse_core::endpoint::Endpoint;
use rouse_core::service::Port;
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_core::time::{Clock as _, Moment};
use rouse_testkit::fakes::{Bench, ip, ready_slice};

/// The outcome of one request, or time that passes.
#[derive(Debug, Clone)]
enum Event {
    /// The picked pod answers.
    Answered,
    /// It takes the request and does not answer.
    Unanswered,
    /// It takes no connection.
    Refused,
    Passes(Duration),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => Just(Event::Answered),
        12 => Just(Event::Unanswered),
        2 => Just(Event::Refused),
        2 => (0..20_000u64).prop_map(|millis| Event::Passes(Duration::from_millis(millis))),
    ]
}

/// The naive model of one pod.
#[derive(Debug, Clone, Default)]
struct Pod {
    refusals: u32,
    refused_until: Option<Moment>,
    /// Unanswered requests in a row, without those during an ejection.
    unanswered: u32,
    /// Ejections in a row, without an answer in between.
    ejections: u32,
    out_until: Option<Moment>,
}

impl Pod {
    fn is_out(&self, now: Moment) -> bool {
        [self.refused_until, self.out_until].into_iter().flatten().any(|until| now < until)
    }
}

/// Applies the rule to one more unanswered request.
fn unanswered(pods: &mut [Pod], at: usize, now: Moment) -> bool {
    let out = pods.iter().filter(|pod| pod.is_out(now)).count();
    let may_be_ejected = out < pods.len() / 2;
    let pod = &mut pods[at];
    if pod.out_until.is_some_and(|until| now < until) {
        return false;
    }
    pod.unanswered += 1;
    if pod.unanswered < 5 || !may_be_ejected {
        return false;
    }
    pod.ejections += 1;
    pod.out_until =
        Some(now + Duration::from_secs(10 * u64::from(pod.ejections)).min(Duration::from_mins(5)));
    true
}

fn place(endpoint: &Endpoint, pods: usize) -> usize {
    (0..pods).find(|&n| ip(u32::try_from(n).unwrap()) == endpoint.addresses[0].ip()).unwrap()
}

/// Applies one event to both sides. Returns the picked pod, and whether it is ejected in the model.
fn step(
    bench: &Bench,
    port: &Arc<Port>,
    pods: &mut [Pod],
    event: &Event,
    seed: u64,
) -> Result<(), TestCaseError> {
    if let Event::Passes(time) = event {
        bench.clock.advance(*time);
        bench.registry.tick();
        return Ok(());
    }
    let now = bench.clock.now();
    let slot = port.try_acquire(seed);
    prop_assert!(slot.is_some(), "the choice is never empty");
    let mut slot = slot.unwrap();
    let at = place(slot.endpoint(), pods.len());
    let all_out = pods.iter().all(|pod| pod.is_out(now));
    prop_assert!(all_out || !pods[at].is_out(now), "{at} is out, and others are not: {pods:?}");
    match event {
        Event::Answered => {
            slot.connected();
            slot.answered();
            pods[at] = Pod::default();
        }
        Event::Unanswered => {
            slot.connected();
            (pods[at].refusals, pods[at].refused_until) = (0, None);
            prop_assert_eq!(slot.unanswered(), unanswered(pods, at, now));
        }
        Event::Refused => {
            drop(slot.refused(true));
            let pod = &mut pods[at];
            if pod.refused_until.is_none_or(|until| until <= now) {
                let pause = Duration::from_millis(100 << pod.refusals).min(Duration::from_secs(10));
                pod.refusals = (pod.refusals + 1).min(16);
                pod.refused_until = Some(now + pause);
            }
        }
        Event::Passes(_) => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn who_is_out_is_as_the_rule_says_and_never_more_than_half_for_being_silent(
        count in 1..6u32,
        events in prop::collection::vec((event(), any::<u64>()), 1..120),
    ) {
        let bench = Bench::new();
        let (service, port) = bench.service("cart", ConcurrencyLimits::default());
        service.put_slice("a", ready_slice(count));
        let mut pods = vec![Pod::default(); count as usize];
        for (event, seed) in &events {
            step(&bench, &port, &mut pods, event, *seed)?;
            let now = bench.clock.now();
            for endpoint in service.snapshot().ports[0].endpoints() {
                let at = place(endpoint, pods.len());
                prop_assert_eq!(endpoint.health.ejected(&*bench.clock), pods[at].is_out(now), "{}: {:?}", at, pods);
            }
            let silent = pods.iter().filter(|pod| pod.out_until.is_some_and(|until| now < until)).count();
            prop_assert!(silent <= pods.len() / 2);
        }
    }
}

#[test]
fn a_silent_pod_is_out_for_longer_each_time_and_one_answer_forgives_all() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    service.put_slice("a", ready_slice(2));
    let mut seeds = 0..;
    // A slot on the first pod; picks again until it is that one.
    let mut first = || loop {
        let slot = port.try_acquire(seeds.next().unwrap()).unwrap();
        if slot.endpoint().addresses[0].ip() == ip(0) {
            return slot;
        }
    };
    let mut out = Vec::new();
    for _ in 0..4 {
        assert!((0..4).all(|_| !first().unanswered()) || !out.is_empty());
        let last = if out.is_empty() { first().unanswered() } else { true };
        assert!(last);
        let until = service.snapshot().ports[0].endpoints()[0].health.ejected_until().unwrap();
        out.push(until.since(bench.clock.now()).as_secs());
        bench.clock.advance(until.since(bench.clock.now()));
    }
    assert_eq!(out, [10, 20, 30, 40]);
    first().answered();
    assert!((0..4).all(|_| !first().unanswered()) && first().unanswered(), "it takes five again");
}
