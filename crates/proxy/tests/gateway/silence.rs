//! Idle timeouts: requests and responses that stop in the middle.

use std::time::Duration;

use rouse_proxy::budget::ConnectionLimits;
use rouse_proxy::upstream::Timeouts;
use tokio::time::{Instant, interval};

use crate::rig::{GET, Options, Rig, eventually};
use crate::wire::Wire;

/// Longer than a busy machine takes for a few messages.
const IDLE: Duration = Duration::from_secs(2);

fn impatient() -> Options {
    Options {
        limits: ConnectionLimits { stream_idle: IDLE, ..ConnectionLimits::default() },
        ..Options::default()
    }
}

const CHUNKED_POST: &str = "POST / HTTP/1.1\r\nHost: cart.test\r\nTransfer-Encoding: chunked\r\n\r\n";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A request whose response head the client has received. Returns the client's side and the pod's side.
async fn response_under_way(request: &str) -> (Rig, Wire, Wire) {
    let (rig, pod) = Rig::with_pod(impatient()).await;
    let (mut client, mut wire) = rig.send_to(&pod, request).await;
    wire.write(CHUNKED).await;
    client.head().await;
    (rig, client, wire)
}

/// Sends chunks from one side to the other for `time`. No pause between them is as long as a limit.
async fn send_now_and_then(from: &mut Wire, to: &mut Wire, time: Duration) {
    let mut pace = interval(time / 40);
    let began = Instant::now();
    while began.elapsed() < time {
        pace.tick().await;
        from.write("3\r\none\r\n").await;
        to.until("one").await;
    }
}

#[tokio::test]
async fn a_response_that_has_been_silent_for_too_long_is_cut() {
    let (rig, pod) = Rig::with_pod(impatient()).await;
    let (mut client, mut wire) = rig.send_to(&pod, GET).await;
    wire.write(&format!("{CHUNKED}3\r\none\r\n")).await;
    let answer = client.rest().await;
    assert!(answer.contains("one") && !answer.ends_with("0\r\n\r\n"), "{answer}");
    assert_eq!(wire.rest().await, "", "the pod's connection ends as well");
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
}

#[tokio::test]
async fn a_response_that_moves_now_and_then_takes_as_long_as_it_takes() {
    let (_rig, mut client, mut wire) = response_under_way(GET).await;
    send_now_and_then(&mut wire, &mut client, 2 * IDLE).await;
    wire.write("0\r\n\r\n").await;
    client.until("0\r\n\r\n").await;
}

#[tokio::test]
async fn a_request_that_is_still_sent_keeps_its_response_alive() {
    let (_rig, mut client, mut wire) = response_under_way(CHUNKED_POST).await;
    send_now_and_then(&mut client, &mut wire, 2 * IDLE).await;
    client.write("0\r\n\r\n").await;
    wire.write("3\r\nend\r\n0\r\n\r\n").await;
    client.until("end").await;
}

#[tokio::test]
async fn a_request_that_stops_in_the_middle_is_given_up_on_both_sides() {
    let (rig, pod) = Rig::with_pod(impatient()).await;
    let mut client = rig.send("POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 10\r\n\r\nabc").await;
    let mut wire = pod.accept().await;
    wire.until("abc").await;
    assert_eq!(client.rest().await, "");
    assert_eq!(wire.rest().await, "");
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
}

/// The client sends for most of the limit, and the pod reads a part of it after that: neither times out.
#[tokio::test]
async fn a_pod_has_its_time_from_the_end_of_the_request_on() {
    let limit = Duration::from_secs(5);
    let patient = Timeouts { response_header: Some(limit), ..Options::default().timeouts };
    let brief = ConnectionLimits { stream_idle: limit, ..ConnectionLimits::default() };
    for options in
        [Options { timeouts: patient, ..Options::default() }, Options { limits: brief, ..Options::default() }]
    {
        let (rig, pod) = Rig::with_pod(options).await;
        let (mut client, mut wire) = rig.send_to(&pod, CHUNKED_POST).await;
        let began = Instant::now();
        send_now_and_then(&mut client, &mut wire, limit * 9 / 10).await;
        client.write("0\r\n\r\n").await;
        wire.until("0\r\n\r\n").await;
        tokio::time::sleep_until(began + limit * 12 / 10).await;
        wire.answer("thanks").await;
        client.until("thanks").await;
    }
}
