//! Clients that close their sending side, and clients that send ahead.

use std::time::Duration;

use rouse_proxy::budget::ConnectionLimits;
use rouse_testkit::fakes::READY;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::rig::{Options, Pod, Rig, eventually};
use crate::wire::{Wire, take_head};

const GET: &str = "GET / HTTP/1.1\r\nHost: cart.test\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 3\r\n\r\nabc";

#[tokio::test]
async fn a_client_that_half_closes_after_its_request_gets_its_answer() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    for request in [GET, POST] {
        let mut client = rig.connect().await;
        client.write(request).await;
        client.half_close().await;
        let mut wire = pod.accept().await;
        wire.head().await;
        if request == POST {
            wire.until("abc").await;
        }
        wire.write("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n\r\nfirst").await;
        client.until("first").await;
        wire.write("end").await;
        assert_eq!(client.rest().await, "end", "{request}");
    }
    eventually("both are counted", || {
        rig.metric(r#"rouse_requests_total{route="cart",code="200",protocol="http1"}"#) == 2
    })
    .await;
}

#[tokio::test]
async fn a_client_that_half_closes_after_several_requests_gets_all_answers() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let _served = pod.serve();
    let mut client = rig.connect().await;
    client.write(&GET.repeat(3)).await;
    client.half_close().await;
    assert_eq!(client.rest().await.matches("hello").count(), 3);
}

#[tokio::test]
async fn a_held_client_that_half_closes_gets_its_answer_when_a_pod_is_ready() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    for request in [GET, POST] {
        rig.pods(&[]);
        let mut client = rig.connect().await;
        client.write(request).await;
        client.half_close().await;
        eventually("it is held", || rig.service.holds() == 1).await;
        rig.pods(&[(&pod, READY)]);
        let mut wire = pod.accept().await;
        wire.head().await;
        wire.answer_last("worth the wait").await;
        assert!(client.rest().await.ends_with("worth the wait"), "{request}");
    }
}

#[tokio::test]
async fn a_client_that_resets_is_gone_at_once_wherever_its_request_is() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    for request in [GET, POST] {
        rig.pods(&[]);
        let mut client = rig.connect().await;
        client.write(request).await;
        eventually("it is held", || rig.service.holds() == 1).await;
        client.reset();
        eventually("the hold ends", || rig.service.holds() == 0).await;
        rig.pods(&[(&pod, READY)]);
        let mut client = rig.connect().await;
        client.write(request).await;
        let mut wire = pod.accept().await;
        wire.head().await;
        client.reset();
        eventually("its slot is free", || rig.service.in_flight() == 0).await;
    }
    eventually("all are counted", || {
        rig.metric(r#"rouse_requests_total{route="cart",code="499",protocol="http1"}"#) == 4
    })
    .await;
}

/// The gateway cannot know whether a client that has sent its FIN still reads: it gets a limited time.
#[tokio::test]
async fn a_client_that_half_closed_is_taken_for_gone_after_a_while() {
    let limits = ConnectionLimits { half_closed: Duration::from_millis(300), ..ConnectionLimits::default() };
    let rig = Rig::new(Options { limits, ..Options::default() });
    let pod = Pod::new(1).await;
    for request in [GET, POST] {
        rig.pods(&[]);
        let mut client = rig.connect().await;
        client.write(request).await;
        client.half_close().await;
        eventually("it is held", || rig.service.holds() == 1).await;
        assert_eq!(client.rest().await, "");
        eventually("the hold ends", || rig.service.holds() == 0).await;
        rig.pods(&[(&pod, READY)]);
        let mut client = rig.connect().await;
        client.write(request).await;
        client.half_close().await;
        let mut wire = pod.accept().await;
        wire.head().await;
        wire.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
        client.until("hello").await;
        assert_eq!(client.rest().await, "\r\n", "a stream without end is cut");
        wire.rest().await;
        eventually("its slot is free", || rig.service.in_flight() == 0).await;
    }
}

/// A client that takes what is sent to it is there, however long its answer takes.
#[tokio::test]
async fn a_client_that_half_closed_gets_all_of_an_answer_that_makes_progress() {
    let half_closed = Duration::from_secs(2);
    let limits =
        ConnectionLimits { half_closed, head: Duration::from_millis(100), ..ConnectionLimits::default() };
    let (rig, pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
    let mut client = rig.connect().await;
    client.write(GET).await;
    client.half_close().await;
    let mut wire = pod.accept().await;
    wire.head().await;
    let began = Instant::now();
    wire.write("HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    while began.elapsed() < half_closed * 2 {
        wire.write("5\r\nhello\r\n").await;
        client.until("hello").await;
        // Each takes as long as a head may.
        let mut slow = rig.connect().await;
        slow.write("GET / HT").await;
        slow.rest().await;
    }
    wire.write("3\r\nend\r\n0\r\n\r\n").await;
    client.until("end\r\n0\r\n\r\n").await;
}

/// What waits to be sent to it shows that it is there: the kernel would say if it were not.
#[tokio::test]
async fn a_client_that_half_closed_and_reads_slowly_gets_all_of_its_answer() {
    let half_closed = Duration::from_millis(500);
    let limits =
        ConnectionLimits { half_closed, head: Duration::from_millis(100), ..ConnectionLimits::default() };
    let (rig, pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
    let mut client = rig.connect().await;
    client.write(GET).await;
    client.half_close().await;
    let mut stream = pod.accept_raw().await;
    take_head(&mut stream).await;
    let mut wire = Wire::new(stream);
    wire.write("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 33554432\r\n\r\n").await;
    let mut sending = JoinSet::new();
    sending.spawn(async move { wire.bytes(&vec![b'x'; 32 << 20]).await });
    client.head().await;
    let began = Instant::now();
    while began.elapsed() < half_closed * 3 {
        let mut slow = rig.connect().await;
        slow.write("GET / HT").await;
        slow.rest().await;
    }
    assert_eq!(client.raw_rest().await.len(), 32 << 20);
}

#[tokio::test]
async fn a_client_that_closes_an_idle_connection_is_closed_at_once() {
    let limits = ConnectionLimits {
        idle: Duration::from_hours(1),
        half_closed: Duration::from_hours(1),
        ..ConnectionLimits::default()
    };
    let (rig, pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
    let _served = pod.serve();
    for requests in [0, 1, 2] {
        let mut client = rig.connect().await;
        for _ in 0..requests {
            client.write(GET).await;
            client.until("hello").await;
        }
        client.half_close().await;
        assert_eq!(client.rest().await, "");
    }
}

/// The head of the next request is not complete because the gateway does not read it: its client is not to blame.
#[tokio::test]
async fn a_client_that_sends_ahead_is_not_cut_while_its_request_is_under_way() {
    let limits = ConnectionLimits { head: Duration::from_millis(100), ..ConnectionLimits::default() };
    let (rig, pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
    let mut client = rig.connect().await;
    client.write(GET).await;
    let mut wire = pod.accept().await;
    wire.head().await;
    wire.answer("zero").await;
    client.until("zero").await;
    client.write(&format!("{GET}GET /2 HTTP/1.1\r\nHost: ca")).await;
    wire.head().await;
    // Another client is cut for a head of the same age: so the first would have been, too.
    for _ in 0..5 {
        let mut slow = rig.connect().await;
        slow.write("GET / HT").await;
        slow.rest().await;
    }
    wire.answer("one").await;
    client.until("one").await;
    client.write("rt.test\r\n\r\n").await;
    wire.head().await;
    wire.answer("two").await;
    client.until("two").await;
}
