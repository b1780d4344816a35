//! The connection limit: which connections stay open when there are more than allowed.

use rouse_proxy::budget::ConnectionLimits;

use crate::kit::{Attacker, open, scene_with_honest};
use crate::rig::{Options, eventually};

fn fifty_connections() -> Options {
    let limits = ConnectionLimits { connections: 50, ..ConnectionLimits::default() };
    Options { limits, ..Options::default() }
}

/// Opens 300 connections, each with these first bytes, at a limit of 50.
async fn many_connections(begin: &[u8]) {
    let (rig, _recording_pod, mut honest) = scene_with_honest(fifty_connections()).await;
    let mut attackers = Vec::new();
    for _ in 0..60 {
        for _ in 0..5 {
            attackers.push(Attacker::sending(&rig, begin).await);
        }
        honest.is_served().await;
    }
    eventually("they make room", || open(&attackers) <= 52).await;
}

#[tokio::test]
async fn a_connection_with_half_a_head_loses_its_place_at_the_limit() {
    many_connections(b"GET / HTTP/1.1\r\nHost: ").await;
}

#[tokio::test]
async fn an_http2_client_that_sends_nothing_loses_its_place_at_the_limit() {
    many_connections(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
}

#[tokio::test]
async fn new_connections_without_a_request_do_not_evict_one_that_has_had_one() {
    let (rig, _recording_pod, mut honest) = scene_with_honest(fifty_connections()).await;
    let mut attackers = Vec::new();
    for _ in 0..200 {
        attackers.push(Attacker::new(&rig).await);
    }
    eventually("they have made room", || open(&attackers) <= 50).await;
    honest.is_served().await;
}
