//! Connections to pods: which of them are reused, and how long idle ones are kept.

use std::time::Duration;

use rouse_proxy::budget::ConnectionLimits;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::rig::{GET, Options, Rig, eventually};
use crate::wire::Wire;

/// Asserts that the connection ends at once, not after the idle timeout of three seconds.
async fn ends_at_once(mut wire: Wire, case: &str) {
    let ended = timeout(Duration::from_secs(2), wire.rest()).await;
    assert_eq!(ended.as_deref(), Ok(""), "{case}");
}

#[tokio::test]
async fn stray_bytes_after_a_response_end_its_connection() {
    let stray = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    for apart in [false, true] {
        let (rig, pod) = Rig::with_pod(Options::default()).await;
        let (mut client, mut wire) = rig.send_to(&pod, GET).await;
        if apart {
            wire.answer("one").await;
            client.until("one").await;
            wire.write(stray).await;
        } else {
            wire.write(&format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none{stray}")).await;
            client.until("one").await;
        }
        ends_at_once(wire, &format!("apart: {apart}")).await;
        client.write(GET).await;
        let _other = pod.answer("two").await;
        let answer = client.until("two").await;
        assert!(!answer.contains("evil"), "{answer}");
    }
}

#[tokio::test]
async fn responses_without_a_body_leave_their_connection_usable() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let mut client = rig.connect().await;
    let mut wire = client.get_from(&pod, "hello").await;
    for (method, head) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: x\r\n\r\n"),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ] {
        eventually("the slot of the one before is free", || rig.service.in_flight() == 0).await;
        client.write(&format!("{method} / HTTP/1.1\r\nHost: cart.test\r\n\r\n")).await;
        wire.head().await;
        wire.write(head).await;
        let answer = client.head().await;
        assert_eq!(answer.lines().next(), head.lines().next());
    }
    eventually("all slots are free", || rig.service.in_flight() == 0).await;
    assert_eq!(rig.metric(r#"rouse_requests_total{route="cart",code="499",protocol="http1"}"#), 0);
    assert_eq!(rig.metric(r#"rouse_requests_total{route="cart",code="200",protocol="http1"}"#), 4);
}

/// Some servers close idle connections after 5 s, and a request sent at that moment is lost.
#[tokio::test]
async fn idle_connections_are_closed_well_before_servers_close_theirs() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let mut busy = Vec::new();
    for _ in 0..8 {
        busy.push(rig.send_to(&pod, GET).await);
    }
    let mut idle = JoinSet::new();
    // Spread over a second, because the sweep runs once a second.
    let mut phases = interval(Duration::from_millis(125));
    for (mut client, mut wire) in busy {
        phases.tick().await;
        wire.answer("hello").await;
        client.until("hello").await;
        idle.spawn(async move {
            let closed = timeout(Duration::from_millis(4900), wire.rest()).await;
            drop(client);
            closed.is_ok()
        });
    }
    assert_eq!(idle.join_all().await, [true; 8]);
}

/// Some clients send an extra CRLF after a body, and some send bytes after their last request.
#[tokio::test]
async fn an_answer_is_not_lost_when_bytes_follow_its_request() {
    for request in [
        "POST / HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc\r\n",
        "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 3\r\n\r\nabc\r\n",
        "GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\n\r\nGET /2 HTTP/1.1\r\n\r\n",
    ] {
        let (rig, pod) = Rig::with_pod(Options::default()).await;
        let mut client = rig.send(request).await;
        let _wire = pod.answer("hello").await;
        client.until("hello").await;
    }
}

#[tokio::test]
async fn no_more_connections_are_kept_than_there_is_room_for() {
    for limits in [
        ConnectionLimits { kept_per_pod: 0, ..ConnectionLimits::default() },
        ConnectionLimits { kept: 0, ..ConnectionLimits::default() },
    ] {
        let (rig, pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
        let mut client = rig.connect().await;
        for body in ["one", "two"] {
            let wire = client.get_from(&pod, body).await;
            ends_at_once(wire, &format!("{limits:?}")).await;
        }
    }
}
