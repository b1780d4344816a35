//! Clients that close their sending side (half-close), and clients that pipeline requests.

use std::time::Duration;

use rouse_proxy::budget::ConnectionLimits;
use rouse_testkit::fakes::READY;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::rig::{GET, Options, Pod, Rig, eventually};
use crate::wire::Wire;

const POST: &str = "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 3\r\n\r\nabc";

/// The head timeout, in tests that set it.
const HEAD: Duration = Duration::from_millis(100);

/// Sends these requests on a new connection, and closes its sending side.
async fn send_and_half_close(rig: &Rig, requests: &str) -> Wire {
    let mut client = rig.send(requests).await;
    client.half_close().await;
    client
}

/// Waits for the head timeout: until another client with an incomplete head is disconnected.
async fn head_timeout(rig: &Rig) {
    rig.send("GET / HT").await.rest().await;
}

#[tokio::test]
async fn a_client_that_half_closes_after_its_request_gets_its_answer() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    for request in [GET, POST] {
        let mut client = send_and_half_close(&rig, request).await;
        let mut wire = pod.accept_request().await;
        if request == POST {
            wire.until("abc").await;
        }
        wire.write("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n\r\nfirst").await;
        client.until("first").await;
        wire.write("end").await;
        assert_eq!(client.rest().await, "end", "{request}");
    }
    rig.requests_counted(200, "http1", 2).await;
}

#[tokio::test]
async fn a_client_that_half_closes_after_several_requests_gets_all_answers() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let _served = pod.serve();
    let mut client = send_and_half_close(&rig, &GET.repeat(3)).await;
    assert_eq!(client.rest().await.matches("hello").count(), 3);
}

#[tokio::test]
async fn a_held_client_that_half_closes_gets_its_answer_when_a_pod_is_ready() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    for request in [GET, POST] {
        rig.pods(&[]);
        let mut client = send_and_half_close(&rig, request).await;
        rig.pods_once_held(&[(&pod, READY)]).await;
        let mut wire = pod.accept_request().await;
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
        let client = rig.send_held(request).await;
        client.reset();
        eventually("the hold ends", || rig.service.holds() == 0).await;
        rig.pods(&[(&pod, READY)]);
        let (client, _wire) = rig.send_to(&pod, request).await;
        client.reset();
        eventually("its slot is free", || rig.service.in_flight() == 0).await;
    }
    rig.requests_counted(499, "http1", 4).await;
}

/// The gateway cannot know whether a client that has sent its FIN still reads: it gets a limited time.
#[tokio::test]
async fn a_client_that_half_closed_is_taken_for_gone_after_a_while() {
    let limits = ConnectionLimits { half_closed: Duration::from_millis(300), ..ConnectionLimits::default() };
    let rig = Rig::new(Options { limits, ..Options::default() });
    let pod = Pod::new(1).await;
    for request in [GET, POST] {
        rig.pods(&[]);
        let mut client = send_and_half_close(&rig, request).await;
        eventually("it is held", || rig.service.holds() == 1).await;
        assert_eq!(client.rest().await, "");
        eventually("the hold ends", || rig.service.holds() == 0).await;
        rig.pods(&[(&pod, READY)]);
        let mut client = send_and_half_close(&rig, request).await;
        let mut wire = pod.accept_request().await;
        wire.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
        client.until("hello").await;
        assert_eq!(client.rest().await, "\r\n", "a stream without end is cut");
        wire.rest().await;
        eventually("its slot is free", || rig.service.in_flight() == 0).await;
    }
}

/// A client that reads its response is alive, however long the response takes.
#[tokio::test]
async fn a_client_that_half_closed_gets_all_of_an_answer_that_makes_progress() {
    let half_closed = Duration::from_secs(2);
    let limits = ConnectionLimits { half_closed, head: HEAD, ..ConnectionLimits::default() };
    let (rig, pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
    let mut client = send_and_half_close(&rig, GET).await;
    let mut wire = pod.accept_request().await;
    let began = Instant::now();
    wire.write("HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    while began.elapsed() < half_closed * 2 {
        wire.write("5\r\nhello\r\n").await;
        client.until("hello").await;
        head_timeout(&rig).await;
    }
    wire.write("3\r\nend\r\n0\r\n\r\n").await;
    client.until("end\r\n0\r\n\r\n").await;
}

/// Unsent data shows that the client is alive: otherwise the kernel would report an error.
#[tokio::test]
async fn a_client_that_half_closed_and_reads_slowly_gets_all_of_its_answer() {
    let half_closed = Duration::from_millis(500);
    let limits = ConnectionLimits { half_closed, head: HEAD, ..ConnectionLimits::default() };
    let (rig, pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
    let mut client = send_and_half_close(&rig, GET).await;
    let mut wire = Wire::new(pod.accept_request_raw().await);
    wire.write("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 33554432\r\n\r\n").await;
    let mut sending = JoinSet::new();
    sending.spawn(async move { wire.bytes(&vec![b'x'; 32 << 20]).await });
    client.head().await;
    let began = Instant::now();
    while began.elapsed() < half_closed * 3 {
        head_timeout(&rig).await;
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

/// The next head is incomplete only because the gateway does not read it, so the client is not disconnected.
#[tokio::test]
async fn a_client_that_sends_ahead_is_not_cut_while_its_request_is_under_way() {
    let limits = ConnectionLimits { head: HEAD, ..ConnectionLimits::default() };
    let (rig, pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
    let mut client = rig.connect().await;
    let mut wire = client.get_from(&pod, "zero").await;
    client.write(&format!("{GET}GET /2 HTTP/1.1\r\nHost: ca")).await;
    wire.head().await;
    // Another client is disconnected for a head of the same age, so the timeout has passed for the first one, too.
    for _ in 0..5 {
        head_timeout(&rig).await;
    }
    wire.answer("one").await;
    client.until("one").await;
    client.write("rt.test\r\n\r\n").await;
    wire.head().await;
    wire.answer("two").await;
    client.until("two").await;
}
