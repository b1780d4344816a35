//! Floods of connections: too many, and too slow.

use std::time::Duration;

use rouse_proxy::budget::ConnectionLimits;

use crate::kit::{Attacker, Honest, open, scene, scene_with_honest, trickle_until_cut};
use crate::rig::{Options, eventually};

const MOST: usize = 50;

fn limits(limits: ConnectionLimits) -> Options {
    Options { limits, ..Options::default() }
}

/// A limit of `MOST` connections.
fn most_connections() -> Options {
    limits(ConnectionLimits { connections: MOST, ..ConnectionLimits::default() })
}

#[tokio::test]
async fn connections_are_limited_and_active_ones_are_kept() {
    let (rig, recording_pod, mut honest) = scene_with_honest(most_connections()).await;
    let mut attackers = Vec::new();
    for round in 0..100 {
        for _ in 0..5 {
            attackers.push(Attacker::new(&rig).await);
        }
        honest.is_served().await;
        if round % 10 == 9 {
            eventually("the connections keep to their limit", || open(&attackers) <= MOST).await;
        }
    }
    let answer = rig.get("/newcomer").await;
    assert!(answer.ends_with("/newcomer"), "{answer}");
    honest.is_served().await;
    assert_eq!(recording_pod.count("GET /newcomer "), 1);
}

#[tokio::test]
async fn connections_that_have_had_requests_count_towards_the_limit() {
    let (rig, _recording_pod, mut honest) = scene_with_honest(most_connections()).await;
    let mut attackers = Vec::new();
    for _ in 0..40 {
        for _ in 0..5 {
            attackers.push(Attacker::sending(&rig, "GET /once HTTP/1.1\r\nHost: cart.test\r\n\r\n").await);
        }
        honest.is_served().await;
    }
    eventually("the connections keep to their limit", || open(&attackers) <= MOST).await;
    assert!(rig.get("/newcomer").await.ends_with("/newcomer"));
}

#[tokio::test]
async fn a_head_that_trickles_is_cut_off() {
    let short = ConnectionLimits { head: Duration::from_secs(1), ..ConnectionLimits::default() };
    let (rig, recording_pod) = scene(limits(short)).await;
    let honest = Honest::new(&rig).await.throughout();
    let mut slow = Vec::new();
    for number in 0..20 {
        let mut attacker = Attacker::new(&rig).await;
        if number % 2 == 1 {
            // The second head of a connection must be as quick as the first.
            attacker.send("GET /once HTTP/1.1\r\nHost: cart.test\r\n\r\n").await;
        }
        attacker.send("GET /slow HTTP/1.1\r\nHost: cart.test\r\nX-A: ").await;
        slow.push(attacker);
    }
    trickle_until_cut(&mut slow).await;
    honest.was_served().await;
    assert_eq!(recording_pod.count("/slow"), 0);
}

#[tokio::test]
async fn idle_streams_are_cut_after_any_beginning() {
    let short = ConnectionLimits {
        idle: Duration::from_secs(2),
        head: Duration::from_secs(1),
        ..ConnectionLimits::default()
    };
    let (rig, _recording_pod) = scene(limits(short)).await;
    let honest = Honest::new(&rig).await.throughout();
    for begin in ["", "P", "PRI * HT", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "G", "\r\n"] {
        Attacker::exchange(&rig, begin).await;
    }
    honest.was_served().await;
}
