//! The endpoint merge: property tests against a naive model in small random worlds, and tables for each rule.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic, also in its helpers")]

mod model;
mod observer;
mod rules;
mod world;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use rouse_core::endpoint::EndpointId;
use rouse_core::endpoint::{PodUid, PortName};
use rouse_core::merge::{EndpointMerge, MergePolicy, PushOutcome};
use rouse_core::time::Moment;

use model::Who;
use observer::{Observer, same_owner};
use world::{Fact, LEASE, Past, SMALL, Size, Step, World, endpoints, expire_until, policy, seen, tell, who};

/// Every pod has an address of its own, so its view depends only on facts about it.
const APART: Size = Size { own_addresses: true, ..SMALL };

/// Addresses, regardless of their order.
type Addresses = BTreeSet<SocketAddr>;

/// A policy under which no pod is refused.
fn roomy() -> MergePolicy {
    MergePolicy { lease: LEASE, manual_endpoints: true, max_unlisted: 100 }
}

/// At least ten thousand cases, to find rare interleavings; more with `PROPTEST_CASES`.
fn often() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.max(10_000), failure_persistence: None, ..usual }
}

fn run(policy: MergePolicy, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new(policy);
    for step in steps {
        world.step(step)?;
        world.look()?;
        world.check_timer()?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(often())]

    #[test]
    fn the_ledger_agrees_with_the_model_after_every_step(policy in policy(), steps in SMALL.steps(32)) {
        run(policy, &steps)?;
    }

    #[test]
    fn one_pod_under_every_mix_of_sources_agrees_with_the_model(
        policy in policy(),
        steps in Size { pods: 1, slices: 2, ..SMALL }.steps(32),
    ) {
        run(policy, &steps)?;
    }

    #[test]
    fn two_pods_that_fight_for_addresses_agree_with_the_model(
        policy in policy(),
        steps in Size { pods: 2, slices: 2, ..SMALL }.steps(32),
    ) {
        run(policy, &steps)?;
    }

    #[test]
    fn a_reader_that_looks_only_sometimes_misses_nothing(
        policy in policy(),
        steps in prop::collection::vec((SMALL.step(), prop::bool::weighted(0.3)), 1..=32),
    ) {
        let mut world = World::new(policy);
        for (step, look) in &steps {
            world.step(step)?;
            if *look {
                world.look()?;
            }
        }
        world.look()?;
    }

    #[test]
    fn no_pod_is_seen_without_a_slice_or_a_lease(steps in SMALL.steps(24)) {
        let mut observer = Observer::new(roomy());
        for step in &steps {
            observer.step(step);
            for (_, endpoint) in endpoints(&observer.view) {
                let Some(pod) = &endpoint.pod else { continue };
                let vouched = |(uid, at): &(PodUid, Moment)| *uid == pod.uid && observer.now < *at + LEASE;
                let leased = observer.vouched.iter().any(vouched) && !observer.removed.contains(&pod.uid);
                prop_assert!(leased || observer.past.lists(&pod.uid), "{} is a ghost", pod.uid);
            }
        }
    }

    #[test]
    fn no_change_of_a_slice_is_lost(steps in APART.steps(24)) {
        let mut observer = Observer::new(roomy());
        for step in &steps {
            observer.step(step);
            for (_, slice) in &observer.past.present {
                let ports = slice.ports.iter().flat_map(|port| slice.endpoints.iter().map(move |it| (port, it)));
                for (port, entry) in ports {
                    // For a manual or undisputed endpoint, the best of its entries is its state.
                    let same = |other: &&_| same_owner(entry, other);
                    let entries = observer.past.present.iter().flat_map(|(_, slice)| &slice.endpoints);
                    let best = entries.filter(same).map(|entry| entry.conditions.state()).max();
                    let address = SocketAddr::new(entry.ip, port.number);
                    let mut there = endpoints(&observer.view).filter(|(name, endpoint)| {
                        **name == port.name && endpoint.addresses.contains(&address)
                    });
                    let found = there.next().map(|(_, endpoint)| endpoint);
                    prop_assert!(found.is_some(), "no pod at {} {}", port.name, address);
                    prop_assert_eq!(found.map(|endpoint| &endpoint.pod), Some(&entry.pod));
                    if !entry.pod.as_ref().is_some_and(|pod| observer.disputed.contains(&pod.uid)) {
                        prop_assert_eq!(found.map(|endpoint| endpoint.state), best, "{} {}", port.name, address);
                    }
                    prop_assert!(there.next().is_none(), "two at {} {}", port.name, address);
                }
            }
        }
    }

    #[test]
    fn a_replaced_pod_never_comes_back(steps in SMALL.steps(32)) {
        let mut observer = Observer::new(roomy());
        for step in &steps {
            let told = observer.step(step);
            if let Some((Fact::Push(push), outcome)) = told
                && observer.replaced.contains(&push.pod.uid)
            {
                prop_assert!(matches!(outcome, Some(Ok(PushOutcome::Stale(_)))), "{:?}", outcome);
            }
            for (_, endpoint) in endpoints(&observer.view) {
                let back = endpoint.pod.as_ref().filter(|pod| observer.replaced.contains(&pod.uid));
                prop_assert!(back.is_none(), "{:?} is back", back);
            }
        }
    }

    #[test]
    fn an_endpoint_stays_itself_while_its_addresses_do_and_is_no_other(
        steps in prop::collection::vec((SMALL.step(), any::<bool>()), 1..=32),
    ) {
        let mut ledger = EndpointMerge::new(roomy());
        let (mut past, mut now) = (Past::default(), Moment::from_nanos(100));
        let mut ever: Vec<(Who, EndpointId)> = vec![];
        let mut last: Vec<(PortName, Who, Option<Moment>, Addresses, EndpointId)> = vec![];
        for (step, look) in &steps {
            now = now + step.after;
            expire_until(&mut ledger, now);
            if let Some(fact) = past.resolve(&step.op, now) {
                tell(&mut ledger, fact, now);
            }
            // Looks rarely, so that one pod may replace another between two looks.
            if !look {
                continue;
            }
            let mut present = vec![];
            for (port, endpoint) in endpoints(&ledger.view()) {
                let (who, id) = (who(endpoint), endpoint.id());
                let since = endpoint.pod.as_ref().and_then(|pod| ledger.first_seen(&pod.uid));
                let heir = ever.iter().find(|(other, old)| *other != who && *old == id);
                prop_assert!(heir.is_none(), "{:?} is taken for {:?}", who, heir);
                // The pod was known all the time since the last look, and is in both views.
                let at: Addresses = endpoint.addresses.iter().copied().collect();
                let mut before = last.iter().filter(|(on, it, then, ..)| (on, it, then) == (port, &who, &since));
                let kept = since.is_none() || before.all(|(.., then, old)| (*old == id) == (*then == at));
                prop_assert!(kept, "{:?} at {:?}", who, at);
                ever.push((who.clone(), id.clone()));
                present.push((port.clone(), who, since, at, id));
            }
            last = present;
        }
    }

    #[test]
    fn expiring_at_odd_times_changes_nothing_that_time_would_not(
        policy in policy(),
        steps in prop::collection::vec((SMALL.step(), any::<u32>()), 1..=24),
    ) {
        let (mut plain, mut odd) = (EndpointMerge::new(policy.clone()), EndpointMerge::new(policy));
        let (mut past, mut now) = (Past::default(), Moment::from_nanos(100));
        for (step, nanos) in &steps {
            let to = now + step.after;
            while now < to {
                now = now + Duration::from_nanos(1);
                for (ledger, extra) in [(&mut plain, 0), (&mut odd, *nanos)] {
                    if ledger.next_expiry() == Some(now) || extra >> (now.as_nanos() % 32) & 1 == 1 {
                        ledger.expire(now);
                    }
                }
            }
            let Some(fact) = past.resolve(&step.op, now) else { continue };
            let (expected, _) = tell(&mut plain, fact.clone(), now);
            let (outcome, _) = tell(&mut odd, fact, now);
            prop_assert_eq!(outcome, expected);
            prop_assert_eq!(seen(&odd.view()), seen(&plain.view()));
        }
    }

    #[test]
    fn after_a_long_silence_only_the_slices_count(steps in APART.steps(24), last in APART.relist()) {
        let mut observer = Observer::new(roomy());
        for step in &steps {
            observer.step(step);
        }
        let mut ledger = observer.ledger;
        let mut fresh = EndpointMerge::new(roomy());
        let mut now = observer.now;
        // No facts until even tombstones have expired; then slices, and no facts again.
        for slices in [vec![], last] {
            for ledger in [&mut ledger, &mut fresh] {
                ledger.replace_slices(slices.clone(), now + LEASE);
                ledger.expire(now + LEASE * 2);
            }
            now = now + LEASE * 2;
        }
        prop_assert_eq!(seen(&ledger.view()), seen(&fresh.view()));
    }
}
