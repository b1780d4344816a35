//! Slow clients, and far more of them than the connection limit.

use std::time::Duration;

use rouse_proxy::budget::ConnectionLimits;
use rouse_proxy::upstream::Timeouts;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::kit::{Attacker, Honest, hostile_pod_scene, limited_in_number_alone, scene, trickle_until_cut};
use crate::rig::{GET, Options, PATIENCE, eventually};
use crate::wire::connect_with_small_buffer;

/// The request timeout, long enough for an honest client on a busy machine.
const LIMIT: Duration = Duration::from_secs(3);

fn limited() -> Options {
    let timeouts = Timeouts { request: Some(LIMIT), ..Timeouts::default() };
    Options { timeouts, ..Options::default() }
}

#[tokio::test]
async fn a_body_that_trickles_is_cut_off_at_the_deadline_and_keeps_no_slot() {
    let (rig, recording_pod) = scene(limited()).await;
    let honest = Honest::new(&rig).await.throughout();
    let mut slow = Vec::new();
    for number in 0..40 {
        let (framing, first) = match number % 2 {
            0 => ("Content-Length: 100000", "a"),
            _ => ("Transfer-Encoding: chunked", "5;a"),
        };
        let begin = format!("POST /slow HTTP/1.1\r\nHost: cart.test\r\n{framing}\r\n\r\n{first}");
        slow.push(Attacker::sending(&rig, begin).await);
    }
    let ticks = trickle_until_cut(&mut slow).await;
    honest.was_served().await;
    assert!(ticks > 5, "they had their time");
    eventually("no slot is kept", || rig.service.in_flight() == 0).await;
    assert!(recording_pod.count("POST /slow ") <= 40, "none is repeated");
    rig.requests_counted(504, "http1", 40).await;
}

/// Clients that read an endless response byte by byte.
#[tokio::test]
async fn a_client_that_reads_slowly_is_cut_off_at_the_deadline_and_keeps_no_slot() {
    let (rig, pod, _recording_pod, honest) = hostile_pod_scene(limited()).await;
    let honest = honest.throughout();
    let mut pouring = JoinSet::new();
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut attacker = Attacker(connect_with_small_buffer(rig.address).await);
        attacker.send(GET).await;
        let mut wire = Attacker(pod.accept_raw().await);
        pouring.spawn(async move {
            wire.head().await;
            wire.0.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n").await.ok();
            while wire.0.write_all(&[b'x'; 16 * 1024]).await.is_ok() {}
        });
        slow.push(attacker);
    }
    let mut reading = JoinSet::new();
    for mut attacker in slow {
        reading.spawn(async move {
            let mut pace = interval(Duration::from_millis(20));
            loop {
                pace.tick().await;
                if attacker.0.read_u8().await.is_err() {
                    return;
                }
            }
        });
    }
    eventually("no slot is kept", || rig.service.in_flight() == 0).await;
    // The pod's side of each has ended, too, while the client may still read buffered data.
    let ended = async { while pouring.join_next().await.is_some() {} };
    timeout(PATIENCE, ended).await.expect("nothing more should be taken from the pod");
    honest.was_served().await;
}

/// Closed connections also free resources on the attacker's side.
#[tokio::test]
async fn ten_thousand_connections_at_a_limit_of_two_thousand_do_not_lock_out_clients() {
    const MOST: usize = 2000;
    let limits = limited_in_number_alone(MOST);
    let (rig, recording_pod) = scene(Options { limits, ..Options::default() }).await;
    let honest = Honest::new(&rig).await.throughout();
    let mut attackers = Vec::new();
    for round in 0..20 {
        for number in 0..500 {
            let begin = ["", "G", "GET / HTTP/1.1\r\nHost: ", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"];
            attackers.push(Attacker::sending(&rig, begin[number % begin.len()]).await);
        }
        eventually("the connections keep to their limit", || {
            attackers.retain(Attacker::is_open);
            attackers.len() < MOST
        })
        .await;
        assert!(round < 5 || attackers.len() > MOST / 2, "the limit is not far below what it says");
    }
    let answer = rig.get("/newcomer").await;
    assert!(answer.ends_with("/newcomer"), "{answer}");
    honest.was_served().await;
    assert_eq!(recording_pod.count("GET /newcomer "), 1);
    assert_eq!(rig.metric("rouse_connections_refused_total"), 0, "there was always an idle connection");
}

#[tokio::test]
async fn a_client_that_stops_in_the_middle_of_a_request_is_closed_in_time() {
    // No other limit closes these connections.
    let limits = ConnectionLimits {
        head: Duration::from_millis(300),
        idle: Duration::from_hours(1),
        ..ConnectionLimits::default()
    };
    let (rig, _recording_pod) = scene(Options { limits, ..Options::default() }).await;
    for begin in
        ["G", "P", "\r", "\r\n", "\r\n\r", "PR", "PRI * HTTP/2.0\r\n\r\nSM", "GET / HTTP/1.1\r\nHost: a"]
    {
        Attacker::exchange(&rig, begin).await;
    }
}

#[tokio::test]
async fn a_body_that_stops_is_closed_in_time_and_keeps_no_slot() {
    let limits = ConnectionLimits { idle: Duration::from_millis(500), ..ConnectionLimits::default() };
    let (rig, _recording_pod) = scene(Options { limits, ..Options::default() }).await;
    for body in [
        "Content-Length: 10\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        "Content-Length: 1\r\n\r\n",
    ] {
        Attacker::exchange(&rig, format!("POST / HTTP/1.1\r\nHost: cart.test\r\n{body}")).await;
        eventually("its slot is free", || rig.service.in_flight() == 0).await;
    }
}
