//! Sidecars that restart, compete for one pod, or get a forged answer (paused time).

use std::time::{Duration, SystemTime};

use rouse_core::endpoint::State;
use rouse_core::merge::PushEvent;

use crate::harness::{Link, Network, Sidecar, now, pass, plain, seconds};

/// A clock that was set back, still within the window of signatures.
fn set_back() -> SystemTime {
    now() - Duration::from_secs(25)
}

fn later() -> SystemTime {
    now() + Duration::from_secs(5)
}

#[tokio::test(start_paused = true)]
async fn a_restarted_sidecar_is_accepted_within_a_second_whatever_its_clock_says() {
    for clock in [later, now, set_back] {
        let network = Network::of(&[1, 2, 3]);
        let first = Sidecar::start(&network);
        for event in [PushEvent::NotReady, PushEvent::Ready, PushEvent::NotReady] {
            first.report(event).await;
        }
        drop(first);
        let second = Sidecar::with(&network, plain(), clock);
        second.reporter.report(PushEvent::Ready);
        let ready = || network.all().iter().all(|gateway| gateway.state() == Some(State::Ready));
        network.within(seconds(1), "the second is accepted by all", ready).await;
        assert_eq!(second.delivered().await.acknowledged, 3);
        // It stays accepted: renewals and later events too.
        pass(seconds(120)).await;
        assert!(ready());
        second.report(PushEvent::NotReady).await;
        network.all_know(State::Starting).await;
        let stale: u64 = network.all().iter().map(|gateway| gateway.attempts("stale")).sum();
        assert!(stale <= 3, "at most one stale answer of each gateway, but {stale}");
    }
}

#[tokio::test(start_paused = true)]
async fn draining_is_final_for_its_boot_and_not_for_the_next() {
    let network = Network::of(&[1, 2]);
    let first = Sidecar::start(&network);
    first.report(PushEvent::Ready).await;
    first.report(PushEvent::Draining).await;
    first.reporter.report(PushEvent::Ready);
    pass(seconds(90)).await;
    assert!(network.all().iter().all(|gateway| gateway.state() == Some(State::Draining)));
    assert!(network.all().iter().all(|gateway| gateway.sequences().last() == Some(&2)));
    drop(first);
    let second = Sidecar::with(&network, plain(), set_back);
    second.reporter.report(PushEvent::Ready);
    let ready = || network.all().iter().all(|gateway| gateway.state() == Some(State::Ready));
    network.within(seconds(1), "the next boot is accepted", ready).await;
}

#[tokio::test(start_paused = true)]
async fn two_sidecars_that_claim_one_pod_do_not_send_without_end() {
    let network = Network::of(&[1]);
    let (first, second) = (Sidecar::start(&network), Sidecar::with(&network, plain(), set_back));
    first.report(PushEvent::Ready).await;
    second.report(PushEvent::NotReady).await;
    pass(seconds(600)).await;
    let requests = network.gateway(1).sequences().len();
    assert!(requests < 200, "{requests} requests in 600 s");
    drop(first);
    pass(seconds(60)).await;
    assert_eq!(network.gateway(1).state(), Some(State::Starting), "the one that lives is heard");
}

#[tokio::test(start_paused = true)]
async fn a_forged_answer_without_tls_does_not_freeze_the_state_of_the_pod() {
    let day = now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + seconds(86_400);
    let day = u64::try_from(day.as_millis()).unwrap();
    for started in [day, u64::MAX - 1, u64::MAX] {
        let network = Network::of(&[1, 2]);
        network.link(1, Link::Stale(started, u64::MAX));
        let first = Sidecar::start(&network);
        assert_eq!(first.report(PushEvent::Ready).await.failed, 1, "it is not believed");
        pass(seconds(30)).await;
        let boots =
            network.gateway(2).requests.lock().unwrap().iter().map(|it| it.boot.clone()).collect::<Vec<_>>();
        assert!(boots.windows(2).all(|pair| pair[0] == pair[1]), "{boots:?}");
        // The forger has gone, and the sidecar restarts.
        network.link(1, Link::Up);
        drop(first);
        let second = Sidecar::with(&network, plain(), set_back);
        second.reporter.report(PushEvent::NotReady);
        let known = || network.all().iter().all(|gateway| gateway.state() == Some(State::Starting));
        network.within(seconds(1), "the second is accepted by all", known).await;
    }
}
