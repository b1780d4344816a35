//! Who keeps a place when there are more than places.

use rouse_proxy::gateway::Limits;

use crate::kit::{Attacker, Honest, scene};
use crate::rig::{Options, eventually};

/// Three hundred come, each with these first bytes, and fifty have a place.
async fn crowd_of(begin: &[u8]) {
    let limits = Limits { connections: 50, ..Limits::default() };
    let (rig, _witness) = scene(Options { limits, ..Options::default() }).await;
    let mut honest = Honest::new(&rig).await;
    let mut attackers = Vec::new();
    for _ in 0..60 {
        for _ in 0..5 {
            let mut attacker = Attacker::new(&rig).await;
            attacker.send(begin).await;
            attackers.push(attacker);
        }
        honest.is_served().await;
    }
    eventually("they make room", || attackers.iter().filter(|attacker| attacker.is_open()).count() <= 52)
        .await;
}

#[tokio::test]
async fn half_a_head_does_not_keep_a_seat_beyond_the_limit() {
    crowd_of(b"GET / HTTP/1.1\r\nHost: ").await;
}

#[tokio::test]
async fn an_http2_client_that_does_not_answer_does_not_keep_a_seat_beyond_the_limit() {
    crowd_of(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
}

#[tokio::test]
async fn silent_newcomers_do_not_take_the_seat_of_one_who_has_asked() {
    let limits = Limits { connections: 50, ..Limits::default() };
    let (rig, _witness) = scene(Options { limits, ..Options::default() }).await;
    let mut honest = Honest::new(&rig).await;
    let mut attackers = Vec::new();
    for _ in 0..200 {
        attackers.push(Attacker::new(&rig).await);
    }
    eventually("they have made room", || {
        attackers.iter().filter(|attacker| attacker.is_open()).count() <= 50
    })
    .await;
    honest.is_served().await;
}
