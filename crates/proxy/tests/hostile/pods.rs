//! Pods that send malformed or malicious responses.

use crate::kit::{Attacker, hostile_pod_scene};
use crate::rig::{GET, Options};

#[tokio::test]
async fn a_response_that_can_be_read_in_two_ways_is_not_passed_on() {
    let (rig, pod, _recording_pod, mut honest) = hostile_pod_scene(Options::default()).await;
    let long = format!("X-A: {}", "a".repeat(1 << 20));
    for head in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Content-Length: 4\r\nContent-Length: 4",
        "Content-Length: 4\r\nContent-Length: 5",
        "Content-Length: 4, 4",
        "Content-Length: +4",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: gzip, chunked",
        "Content-Length : 4",
        "X-A: b\r\n c: d\r\nContent-Length: 4",
        "X-A: b\0c\r\nContent-Length: 4",
        &long,
    ] {
        let mut client = rig.send(GET).await;
        let mut wire = Attacker::as_pod(&pod).await;
        wire.send(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\nevil")).await;
        let answer = client.head().await;
        let shown = head.get(..head.len().min(60));
        assert!(answer.starts_with("HTTP/1.1 502 "), "{shown:?}: {answer}");
        assert!(answer.contains("\r\nx-rouse-error: bad_upstream_protocol\r\n"), "{shown:?}: {answer}");
        assert_eq!(wire.rest().await, "", "nothing more is sent to it");
        honest.is_served().await;
    }
}

#[tokio::test]
async fn an_unrequested_response_reaches_no_client() {
    let evil = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    for first in [
        // Two responses; stray bytes; longer than announced; bodies where none is allowed.
        format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none{evil}"),
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n{evil}"),
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none\r\n".to_owned(),
        format!("HTTP/1.1 204 No Content\r\n\r\n{evil}"),
        format!("HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n{evil}"),
        format!("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n{evil}"),
    ] {
        let (rig, pod, _recording_pod, mut honest) = hostile_pod_scene(Options::default()).await;
        let mut client = rig.send(GET).await;
        let mut wire = Attacker::as_pod(&pod).await;
        wire.send(&first).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 2") || head.starts_with("HTTP/1.1 304 "), "{head}");
        honest.is_served().await;
        assert_eq!(wire.rest().await, "", "nothing more is sent to it");
        client.write(GET).await;
        let _other = pod.answer("two").await;
        let answer = client.until("two").await;
        assert!(!answer.contains("evil"), "{first}: {answer}");
        honest.is_served().await;
    }
}

#[tokio::test]
async fn an_unrequested_switch_of_protocols_is_a_failure() {
    let (rig, pod, _recording_pod, mut honest) = hostile_pod_scene(Options::default()).await;
    let mut client = rig.send(GET).await;
    let mut wire = Attacker::as_pod(&pod).await;
    wire.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nevil")
        .await;
    let answer = client.head().await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    wire.rest().await;
    honest.is_served().await;
}

/// A response that arrives early may belong to a request body that is still being sent.
#[tokio::test]
async fn an_early_answer_ends_its_connection() {
    let (rig, pod, _recording_pod, mut honest) = hostile_pod_scene(Options::default()).await;
    let mut client = rig.send("POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 50\r\n\r\nbegin").await;
    let mut wire = pod.accept().await;
    wire.until("begin").await;
    wire.answer("early").await;
    client.until("early").await;
    honest.is_served().await;
    client.bytes(b"GET /smuggled HTTP/1.1\r\nHost: cart.test\r\n\r\n.").await;
    let rest = wire.rest().await;
    assert!(!rest.contains("smuggled"), "{rest}");
    rig.connect().await.get_from(&pod, "two").await;
}

#[tokio::test]
async fn a_bad_chunk_of_a_pod_is_not_passed_on_and_the_answer_has_no_end() {
    let (rig, pod, _recording_pod, mut honest) = hostile_pod_scene(Options::default()).await;
    for bad in ["xyz\r\nevil\r\n0\r\n\r\n", "4\r\nevilevil\r\n0\r\n\r\n", "fffffffffffffffff\r\nevil"] {
        let mut client = Attacker::sending(&rig, GET).await;
        let mut wire = Attacker::as_pod(&pod).await;
        wire.send(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n{bad}")).await;
        let answer = client.rest().await;
        assert!(!answer.contains("0\r\n\r\n"), "{bad}: {answer}");
        wire.rest().await;
        honest.is_served().await;
    }
}
