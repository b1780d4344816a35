//! Draining with responses that the client has not read completely.

use std::time::Duration;

use h2::RecvStream;
use rouse_proxy::budget::ConnectionLimits;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::http2_peers::{self, H2Client};
use crate::rig::{GET, Options, PATIENCE, Rig, eventually};
use crate::wire::{STUCK, Wire, connect_with_small_buffer};

/// Shuts the gateway down as `rouse up` does when no request is in flight.
async fn leave(rig: &mut Rig) {
    rig.workers.drain();
    rig.gateway.under_way().idle().await;
    rig.workers.close();
    rig.workers.ended().await;
}

const LENGTH: usize = 100_000;

/// A response of which an HTTP/2 client has read one window, and the gateway has the rest. The pod has sent everything.
async fn unread_over_http2(rig: &Rig, pod: &crate::rig::Pod) -> (H2Client, RecvStream) {
    let client = H2Client::new(rig).await;
    let response = client.get("http://cart.test/").await;
    let _wire = pod.answer(&"x".repeat(LENGTH)).await;
    let body = response.head().await.into_body();
    eventually("the pod has done its part", || rig.service.in_flight() == 0).await;
    (client, body)
}

#[tokio::test]
async fn an_answer_that_its_http2_client_has_not_read_yet_is_not_cut_by_the_drain() {
    let (mut rig, pod) = Rig::with_pod(Options::default()).await;
    let (_client, body) = unread_over_http2(&rig, &pod).await;
    let mut leaving = Box::pin(leave(&mut rig));
    // Too short can only miss the fault.
    let left = timeout(Duration::from_secs(1), &mut leaving).await.is_ok();
    assert_eq!(http2_peers::read(body).await.len(), LENGTH);
    assert!(left || timeout(PATIENCE, leaving).await.is_ok(), "and then it leaves");
}

/// The same for a connection that makes room for a new one.
#[tokio::test]
async fn an_answer_that_its_http2_client_has_not_read_yet_is_not_cut_by_newcomers() {
    let limits = ConnectionLimits { connections: 4, ..ConnectionLimits::default() };
    let (rig, pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
    let (_client, body) = unread_over_http2(&rig, &pod).await;
    let mut connections = Vec::new();
    for _ in 0..20 {
        let mut newcomer = rig.send("GET / HTTP/1.1\r\nHost: unknown.test\r\n\r\n").await;
        newcomer.head().await;
        connections.push(newcomer);
    }
    assert_eq!(http2_peers::read(body).await.len(), LENGTH);
}

/// A response of `length` of which an HTTP/1 client reads nothing. Also returns whether no request is in flight any more.
async fn unread_over_http1(length: usize) -> (Rig, Wire, JoinSet<()>, bool) {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let mut client = Wire::new(connect_with_small_buffer(rig.address).await);
    client.write(GET).await;
    let mut wire = pod.accept_request().await;
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        wire.answer(&"x".repeat(length)).await;
        wire.next_head().await;
    });
    let over = async {
        while rig.gateway.under_way().count() > 0 {
            sleep_until(Instant::now() + Duration::from_millis(2)).await;
        }
    };
    let over = timeout(2 * STUCK, over).await.is_ok();
    (rig, client, serving, over)
}

#[tokio::test]
async fn an_answer_that_its_http1_client_has_not_read_yet_is_not_cut_by_the_drain() {
    // Finds how much fits into the buffers of the kernel and hyper while the client does not read.
    let (mut fits, mut too_much) = (10_000, 20_000_000);
    while too_much - fits > 16_000 {
        let middle = usize::midpoint(fits, too_much);
        if unread_over_http1(middle).await.3 {
            fits = middle;
        } else {
            too_much = middle;
        }
    }
    let length = fits - 8_000;
    let (mut rig, mut client, _serving, _) = unread_over_http1(length).await;
    let mut leaving = Box::pin(leave(&mut rig));
    // Too short can only miss the fault.
    let left = timeout(Duration::from_secs(1), &mut leaving).await.is_ok();
    client.head().await;
    assert_eq!(client.raw_rest().await.len(), length);
    assert!(left || timeout(PATIENCE, leaving).await.is_ok(), "and then it leaves");
}
