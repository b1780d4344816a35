//! Gateways that fail: nothing waits for them, and what they get later is the newest state (paused time).

use std::time::Duration;

use rouse_core::endpoint::State;
use rouse_core::merge::PushEvent;
use rouse_core::time::{Clock as _, Moment};
use rouse_net::auth::PushMode;

use crate::harness::{Link, Network, Sidecar, pass, seconds};

#[tokio::test(start_paused = true)]
async fn a_report_takes_no_time_when_every_gateway_is_down_and_dns_too() {
    let network = Network::of(&[1, 2, 3]);
    network.link(1, Link::Down);
    network.link(2, Link::BlackHole);
    network.stop(3);
    for dns in [true, false] {
        if !dns {
            network.break_dns();
        }
        let start = network.clock.now();
        let sidecar = Sidecar::start(&network);
        sidecar.reporter.report(PushEvent::Ready);
        assert_eq!(network.clock.now(), start, "the start of the app goes on at once");
        pass(seconds(100)).await;
        sidecar.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_newest_state_is_what_arrives_and_not_a_queue_of_old_ones() {
    for link in [Link::Down, Link::BlackHole] {
        let network = Network::of(&[1]);
        network.link(1, link);
        let sidecar = Sidecar::start(&network);
        for event in [PushEvent::Ready, PushEvent::NotReady, PushEvent::Ready, PushEvent::Draining] {
            sidecar.reporter.report(event);
            pass(seconds(5)).await;
        }
        sidecar.reporter.report(PushEvent::Ready);
        network.link(1, Link::Up);
        network.all_know_nothing_but_draining().await;
        assert_eq!(network.gateway(1).sequences(), [4], "one request, with the sequence of its report");
        assert_eq!(network.gateway(1).requests.lock().unwrap()[0].event, "draining");
    }
}

impl Network {
    /// A pod that was never ready gets no requests when it drains: the gateway only remembers it.
    async fn all_know_nothing_but_draining(&self) {
        self.until("it arrives", || self.gateway(1).attempts("accepted") == 1).await;
        assert_eq!(self.gateway(1).state(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn retries_back_off_with_jitter_from_100_ms_to_a_minute() {
    let mut all_gaps = Vec::new();
    for _ in 0..3 {
        let network = Network::of(&[1]);
        network.link(1, Link::Down);
        let sidecar = Sidecar::start(&network);
        sidecar.reporter.report(PushEvent::Ready);
        pass(seconds(1200)).await;
        let dials = network.dials_to(1);
        let gaps: Vec<Duration> = dials.windows(2).map(|pair| pair[1].since(pair[0])).collect();
        assert!(gaps.len() > 25, "{gaps:?}");
        let mut longest = Duration::from_millis(100);
        for gap in &gaps {
            // Timers have a resolution of a millisecond.
            assert!(
                *gap >= longest / 2 && *gap <= longest + Duration::from_millis(2),
                "{gap:?} of {longest:?}"
            );
            longest = (longest * 2).min(seconds(60));
        }
        assert!(gaps.iter().all(|gap| *gap <= seconds(60) + Duration::from_millis(2)));
        all_gaps.push(gaps);
    }
    assert!(all_gaps[0] != all_gaps[1] && all_gaps[1] != all_gaps[2], "pods do not retry together");
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_ends_after_two_seconds() {
    let network = Network::of(&[1]);
    network.link(1, Link::BlackHole);
    let sidecar = Sidecar::start(&network);
    sidecar.reporter.report(PushEvent::Ready);
    pass(seconds(10)).await;
    let dials = network.dials_to(1);
    let gap = dials[1].since(dials[0]);
    assert!(gap >= seconds(2) && gap <= Duration::from_millis(2105), "{gap:?}");
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_honoured_also_for_news() {
    for status in [429, 503] {
        let network = Network::of(&[1]);
        network.link(1, Link::Answers(status, Some("7"), "later".into()));
        let sidecar = Sidecar::start(&network);
        sidecar.reporter.report(PushEvent::NotReady);
        network.until("it is refused", || network.gateway(1).sequences() == [1]).await;
        network.link(1, Link::Up);
        let refused = network.clock.now();
        sidecar.report(PushEvent::Ready).await;
        let waited = network.clock.now().since(refused);
        assert!(waited >= seconds(7) && waited < seconds(8), "{waited:?}");
        assert_eq!(network.gateway(1).sequences(), [1, 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_refusal_the_state_is_sent_again_until_it_is_acknowledged() {
    for status in [400, 401, 403, 413, 500, 502] {
        let network = Network::of(&[1]);
        network.link(1, Link::Answers(status, None, "no".into()));
        let sidecar = Sidecar::start(&network);
        sidecar.reporter.report(PushEvent::Ready);
        network.until("it tries again", || network.gateway(1).sequences() == [1, 1, 1]).await;
        network.link(1, Link::Up);
        network.all_know(State::Ready).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_answer_counts_as_a_failure() {
    let network = Network::of(&[1]);
    network.link(1, Link::Answers(200, None, "not what a gateway says".into()));
    let sidecar = Sidecar::start(&network);
    sidecar.reporter.report(PushEvent::Ready);
    network.until("it tries again", || network.gateway(1).sequences() == [1, 1]).await;
    network.link(1, Link::Up);
    network.all_know(State::Ready).await;
}

#[tokio::test(start_paused = true)]
async fn each_gateway_has_a_circuit_of_its_own_which_one_probe_closes() {
    let network = Network::of(&[1, 2]);
    let sidecar = Sidecar::start(&network);
    sidecar.report(PushEvent::Ready).await;
    network.link(2, Link::Down);
    // Five failures open the circuit of one gateway. Each event still reaches the other at once.
    let mut events = [PushEvent::NotReady, PushEvent::Ready].into_iter().cycle();
    let mut report = async || {
        let before = network.clock.now();
        sidecar.report(events.next().unwrap()).await;
        network.clock.now().since(before)
    };
    network.drop_connections(2);
    pass(seconds(600)).await;
    let dials = network.dials_to(2).len();
    for _ in 0..100 {
        assert!(report().await < Duration::from_millis(100));
    }
    assert_eq!(network.dials_to(2).len(), dials, "nothing passes an open circuit");
    assert_eq!(network.gateway(1).sequences().last(), Some(&101));
    network.link(2, Link::Up);
    let healed = network.clock.now();
    network.until("the probe succeeds", || network.gateway(2).sequences().last() == Some(&101)).await;
    assert!(network.clock.now().since(healed) <= seconds(60));
    let probes: Vec<Moment> = network.dials_to(2).split_off(dials);
    assert_eq!(probes.len(), 1);
    report().await;
    assert_eq!(network.gateway(2).sequences().last(), Some(&102), "the circuit is closed");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_events_use_one_connection_per_gateway() {
    let network = Network::of(&[1, 2]);
    let sidecar = Sidecar::start(&network);
    for round in 0..1000 {
        let event = if round % 2 == 0 { PushEvent::Ready } else { PushEvent::NotReady };
        // Some come faster than they can be sent.
        sidecar.reporter.report(event);
        if round % 3 == 0 {
            sidecar.delivered().await;
        }
    }
    network.all_know(State::Starting).await;
    assert_eq!((network.dials_to(1).len(), network.dials_to(2).len()), (1, 1));
    assert_eq!(network.gateway(1).sequences().last(), Some(&1000));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_turned_on_later_gets_the_state_with_a_renewal() {
    let network = Network::new(None);
    let gateway = network.start(1, PushMode::On);
    network.name(&[1]);
    let sidecar = Sidecar::start(&network);
    sidecar.report(PushEvent::Ready).await;
    gateway
        .registry
        .get(&"shop/cart".parse().unwrap())
        .unwrap()
        .withdraw_push(&rouse_core::endpoint::PodUid::new("uid-1"));
    assert_eq!(gateway.state(), None);
    network.within(seconds(21), "the renewal brings it back", || gateway.state() == Some(State::Ready)).await;
}
