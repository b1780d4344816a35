//! Request and response bodies that the gateway forwards.

use std::time::Duration;

use rouse_proxy::upstream::Timeouts;
use rouse_testkit::fakes::READY;

use crate::rig::{Options, Pod, Rig};
use crate::wire::Wire;

const EXPECTING: &str = "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 3\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n";

/// The client gets a 100, sends its body, and gets the pod's answer to it.
async fn body_is_asked_for_and_answered(mut client: Wire, mut wire: Wire) {
    assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.write("abc").await;
    wire.until("abc").await;
    wire.answer("thanks").await;
    assert!(client.rest().await.ends_with("thanks"));
}

#[tokio::test]
async fn the_body_is_asked_for_only_when_the_pod_asks() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    let client = rig.send_held(EXPECTING).await;
    rig.pods(&[(&pod, READY)]);
    let mut wire = pod.accept().await;
    let head = wire.head().await;
    assert!(head.contains("\r\nexpect: 100-continue\r\n"), "{head}");
    assert!(!client.has_read(), "the client has received nothing so far");
    wire.write("HTTP/1.1 100 Continue\r\n\r\n").await;
    body_is_asked_for_and_answered(client, wire).await;
}

#[tokio::test]
async fn a_pod_that_does_not_want_the_body_never_gets_it_and_neither_do_we() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let (mut client, mut wire) = rig.send_to(&pod, EXPECTING).await;
    wire.write("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n").await;
    let answer = client.rest().await;
    assert!(answer.starts_with("HTTP/1.1 417 "), "{answer}");
    assert_eq!(wire.rest().await, "", "the connection is good for nothing after this");
}

#[tokio::test]
async fn a_pod_that_does_not_know_the_expectation_gets_the_body_all_the_same() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let (client, wire) = rig.send_to(&pod, EXPECTING).await;
    body_is_asked_for_and_answered(client, wire).await;
}

#[tokio::test]
async fn a_response_that_came_before_the_request_was_whole_ends_its_connection() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let mut client = rig.send("POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 6\r\n\r\nabc").await;
    let mut wire = pod.accept().await;
    wire.until("abc").await;
    wire.answer("too much").await;
    client.until("too much").await;
    assert_eq!(wire.rest().await, "");
}

#[tokio::test]
async fn a_response_over_its_deadline_is_cut_and_no_text_is_put_into_it() {
    let timeouts = Timeouts { request: Some(Duration::from_secs(2)), ..Timeouts::default() };
    let (rig, pod) = Rig::with_pod(Options { timeouts, ..Options::default() }).await;
    let serving = async {
        let mut wire = pod.accept_request().await;
        wire.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
        wire.rest().await
    };
    let (answer, _) = tokio::join!(rig.get("/"), serving);
    assert!(answer.ends_with("5\r\nhello\r\n"), "{answer}");
    rig.requests_counted(504, "http1", 1).await;
    assert_eq!(rig.service.in_flight(), 0);
}

#[tokio::test]
async fn a_response_that_a_pod_breaks_off_is_broken_off_for_the_client_too() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let serving = async {
        let mut wire = pod.accept_request().await;
        wire.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello").await;
    };
    let (answer, ()) = tokio::join!(rig.get("/"), serving);
    assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
    rig.requests_counted(502, "http1", 1).await;
}
