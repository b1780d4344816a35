//! Every gateway learns the newest state, also one that joins, leaves or restarts; leases and look-ups (paused time).

use std::collections::BTreeSet;
use std::time::Duration;

use rouse_core::endpoint::State;
use rouse_core::merge::PushEvent;
use rouse_core::random::Random;
use rouse_core::time::Clock as _;
use rouse_net::auth::PushMode;
use rouse_net::tls::Roots;
use rouse_register::client::{Delivery, PushClientSettings};
use rouse_testkit::certificates::Authority;

use crate::credentials::server_tls;
use crate::harness::{Link, Network, Sidecar, default_url, gateway, now, pass, plain, seconds};

/// A network with TLS, and the settings of a client that verifies it.
fn with_tls() -> (std::sync::Arc<Network>, PushClientSettings) {
    let authority = Authority::new();
    let network = Network::new(Some(server_tls(&authority, None)));
    let tls = default_url().tls(Roots::Pem(vec![authority.ca()]), None);
    (network, PushClientSettings { gateways: default_url(), tls, ..plain() })
}

#[tokio::test(start_paused = true)]
async fn three_gateways_learn_of_each_event_within_100_ms() {
    let network = Network::of(&[1, 2, 3]);
    let sidecar = Sidecar::start(&network);
    let events = [
        (PushEvent::Ready, State::Ready),
        (PushEvent::NotReady, State::Starting),
        (PushEvent::Ready, State::Ready),
        (PushEvent::Draining, State::Draining),
    ];
    for (event, state) in events {
        let reported = network.clock.now();
        assert_eq!(sidecar.report(event).await, Delivery { acknowledged: 3, failed: 0 });
        assert!(network.clock.now().since(reported) < Duration::from_millis(100));
        assert!(network.all().iter().all(|gateway| gateway.state() == Some(state)), "{event:?}");
    }
    assert!(network.all().iter().all(|gateway| gateway.sequences() == [1, 2, 3, 4]));
    sidecar.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_partitioned_gateway_converges_after_it_is_healed_and_the_others_are_not_delayed() {
    for partition in [Link::BlackHole, Link::Down] {
        let network = Network::of(&[1, 2, 3]);
        let sidecar = Sidecar::start(&network);
        sidecar.report(PushEvent::Ready).await;
        network.link(2, partition);
        sidecar.reporter.report(PushEvent::NotReady);
        let others = || [1, 3].iter().all(|n| network.gateway(*n).state() == Some(State::Starting));
        network.within(Duration::from_millis(100), "the others know at once", others).await;
        assert_eq!(sidecar.delivered().await, Delivery { acknowledged: 2, failed: 1 });
        pass(seconds(60)).await;
        // The gateway has heard nothing for a minute: the lease of what it knew is over.
        assert_eq!(network.gateway(2).state(), None);
        network.link(2, Link::Up);
        let healed = || network.gateway(2).state() == Some(State::Starting);
        network.within(seconds(62), "it knows after at most one backoff and one timeout", healed).await;
        assert_eq!(sidecar.delivered().await.acknowledged, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_restarts_at_a_new_address_knows_within_two_seconds_of_dns_naming_it() {
    let network = Network::of(&[1, 2]);
    let sidecar = Sidecar::start(&network);
    sidecar.report(PushEvent::Ready).await;
    pass(seconds(30)).await;
    network.stop(2);
    pass(seconds(7)).await;
    let new = network.start(3, PushMode::On);
    assert_eq!(new.state(), None);
    network.name(&[1, 3]);
    network.within(seconds(2), "the new one knows", || new.state() == Some(State::Ready)).await;
    let dials = network.dials_to(2).len();
    pass(seconds(300)).await;
    assert_eq!(network.dials_to(2).len(), dials, "the old address is forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_restarts_at_its_old_address_knows_soon_although_its_lease_was_not_due() {
    let network = Network::of(&[1, 2]);
    let sidecar = Sidecar::start(&network);
    sidecar.report(PushEvent::Ready).await;
    pass(seconds(1)).await;
    let new = network.start(2, PushMode::On);
    network.within(seconds(2), "the new one knows", || new.state() == Some(State::Ready)).await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_dns_drops_and_names_again_is_told_with_the_next_look_up() {
    let network = Network::of(&[1, 2]);
    let sidecar = Sidecar::start(&network);
    sidecar.report(PushEvent::Ready).await;
    network.link(2, Link::Down);
    network.name(&[1]);
    sidecar.reporter.report(PushEvent::NotReady);
    pass(seconds(600)).await;
    network.link(2, Link::Up);
    network.name(&[1, 2]);
    // Nothing fails any more, so the next look-up may take 15 s.
    let knows = || network.gateway(2).state() == Some(State::Starting);
    network.within(seconds(15), "it knows with the next look-up", knows).await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_only_an_answer_names_gets_the_push() {
    let (network, settings) = with_tls();
    let first = network.start(1, PushMode::On);
    network.name(&[1]);
    let sidecar = Sidecar::with(&network, settings, now);
    sidecar.report(PushEvent::Ready).await;
    network.break_dns();
    let second = network.start(2, PushMode::On);
    *network.listed.lock().unwrap() = vec![gateway(1), gateway(2)];
    let answered = first.attempts("renewed");
    network.until("an answer names it", || first.attempts("renewed") > answered).await;
    network.within(seconds(2), "it knows", || second.state() == Some(State::Ready)).await;
}

#[tokio::test(start_paused = true)]
async fn lists_in_answers_are_ignored_without_tls_and_cut_at_64_with_it() {
    let (secure, settings) = with_tls();
    for (network, settings, expected) in [(Network::new(None), plain(), 1), (secure, settings, 64)] {
        network.start(1, PushMode::On);
        network.name(&[1]);
        network.link(1, Link::Lists(200));
        let sidecar = Sidecar::with(&network, settings, now);
        sidecar.report(PushEvent::Ready).await;
        pass(seconds(30)).await;
        let dials = network.dials.lock().unwrap();
        let dialled: BTreeSet<_> = dials.iter().map(|(to, _)| *to).collect();
        assert_eq!(dialled.len(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn gateways_that_come_and_go_under_load_lose_nothing() {
    let network = Network::of(&[1, 2, 3]);
    let sidecar = Sidecar::start(&network);
    let (mut random, mut running, mut next) = (Random::new(7), vec![1, 2, 3], 4);
    for round in 0..200 {
        let event = if round % 2 == 0 { PushEvent::Ready } else { PushEvent::NotReady };
        sidecar.reporter.report(event);
        match random.below(6) {
            0 if next < 250 => {
                network.start(next, PushMode::On);
                running.push(next);
                next += 1;
            }
            1 if running.len() > 1 => network.stop(running.swap_remove(random.below(running.len()))),
            2 => drop(network.start(running[random.below(running.len())], PushMode::On)),
            _ => {}
        }
        // DNS is late by a round, or down.
        match random.below(4) {
            0 => network.break_dns(),
            _ => network.name(&running),
        }
        pass(Duration::from_millis(random.below(3000) as u64)).await;
    }
    network.name(&running);
    let state = State::Starting;
    network.all_know(state).await;
    assert!(network.all().len() > 1);
    sidecar.reporter.report(PushEvent::Draining);
    network.all_know(State::Draining).await;
}

#[tokio::test(start_paused = true)]
async fn in_observe_mode_registrations_are_counted_and_change_nothing() {
    let network = Network::new(None);
    let observing = network.start(1, PushMode::Observe);
    network.name(&[1]);
    let sidecar = Sidecar::start(&network);
    for event in [PushEvent::Ready, PushEvent::NotReady, PushEvent::Draining] {
        sidecar.report(event).await;
    }
    assert_eq!((observing.attempts("observed"), observing.attempts("accepted")), (3, 0));
    assert_eq!(observing.state(), None);
    // A bad credential is refused and counted as in any other mode.
    let other = rouse_net::auth::SharedKey::new("one", &[9; 32], rouse_net::auth::KeyScope::All).unwrap();
    let credential = rouse_register::client::PushCredential::SharedKey(other);
    let stranger = Sidecar::with(&network, PushClientSettings { credential, ..plain() }, now);
    stranger.reporter.report(PushEvent::Ready);
    network.until("it is refused", || observing.attempts("unauthenticated") > 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_at_a_third_and_ends_with_the_sidecar() {
    let network = Network::of(&[1]);
    let sidecar = Sidecar::start(&network);
    sidecar.report(PushEvent::Ready).await;
    let only = network.gateway(1);
    for _ in 0..60 {
        pass(seconds(10)).await;
        assert_eq!(only.state(), Some(State::Ready));
    }
    let renewals = only.attempts("renewed");
    assert!((30..=34).contains(&renewals), "{renewals} renewals in 600 s with a lease of 60 s");
    assert_eq!(network.dials_to(1).len(), 1, "all over one connection");
    sidecar.stop().await;
    pass(seconds(61)).await;
    assert_eq!(only.state(), None, "no ghost stays");
}

#[tokio::test(start_paused = true)]
async fn look_ups_follow_each_other_every_15_seconds_and_every_2_while_a_gateway_fails() {
    let network = Network::of(&[1]);
    let sidecar = Sidecar::start(&network);
    sidecar.report(PushEvent::Ready).await;
    let count = async |time| {
        let before = network.lookups.lock().unwrap().len();
        pass(seconds(time)).await;
        network.lookups.lock().unwrap().len() - before
    };
    let calm = count(300).await;
    assert!((20..=27).contains(&calm), "{calm} in 300 s");
    network.link(1, Link::Down);
    sidecar.reporter.report(PushEvent::NotReady);
    let urgent = count(60).await;
    assert!((29..=41).contains(&urgent), "{urgent} in 60 s");
    network.break_dns();
    let failing = count(60).await;
    assert!((29..=41).contains(&failing), "{failing} in 60 s");
    network.link(1, Link::Up);
    network.all_know(State::Starting).await;
}
