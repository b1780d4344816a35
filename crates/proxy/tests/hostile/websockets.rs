//! Abuse of upgraded connections.

use std::time::Duration;

use rouse_proxy::upstream::Timeouts;
use tokio::time::timeout;

use crate::kit::{Attacker, Honest, RecordingPod, SMUGGLED, Throughout, hostile_pod_scene, scene};
use crate::rig::{GET, Options, PATIENCE, Pod, Rig, eventually};
use crate::wire::fill;

const ASK: &str = "GET /ws HTTP/1.1\r\nHost: cart.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// A gateway whose pod the test plays, and an honest client of another service.
async fn stage() -> (Rig, Pod, RecordingPod, Throughout) {
    let (rig, pod, recording_pod, honest) = hostile_pod_scene(Options::default()).await;
    (rig, pod, recording_pod, honest.throughout())
}

/// A request for an upgrade that has reached the pod: the client's side and the pod's.
async fn asked(rig: &Rig, pod: &Pod) -> (Attacker, Attacker) {
    let client = Attacker::sending(rig, ASK).await;
    let mut wire = Attacker(pod.accept_raw().await);
    let head = wire.head().await;
    assert!(head.contains("\r\nupgrade: websocket\r\n"), "{head}");
    (client, wire)
}

/// An open tunnel.
async fn tunnel(rig: &Rig, pod: &Pod) -> (Attacker, Attacker) {
    let (mut client, mut wire) = asked(rig, pod).await;
    wire.send(SWITCHED).await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    (client, wire)
}

#[tokio::test]
async fn frames_before_the_answer_wait_on_the_clients_side() {
    let (rig, pod, _recording_pod, honest) = stage().await;
    let (mut attacker, mut wire) = asked(&rig, &pod).await;
    let taken = fill(&mut attacker.0, 64 << 20).await;
    // The kernel buffers some MB per connection.
    assert!(taken < 32 << 20, "{taken} bytes were taken");
    assert!(!wire.has_read(), "the pod has not switched yet");
    // Once it has, nothing of it is lost.
    wire.send(SWITCHED).await;
    assert!(attacker.head().await.starts_with("HTTP/1.1 101 "));
    attacker.shut().await;
    let rest = wire.raw_rest().await;
    assert_eq!(rest.len(), taken);
    assert!(rest.iter().all(|byte| *byte == b'x'));
    drop(wire);
    honest.was_served().await;
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
}

/// Unmasked, with reserved bits, with impossible lengths: the pod gets such frames byte for byte.
#[tokio::test]
async fn frames_are_passed_on_as_they_are() {
    let (rig, pod, _recording_pod, honest) = stage().await;
    let frames: [&[u8]; 6] = [
        b"\x82\x03abc",
        b"\xf2\x83\0\0\0\0abc",
        b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xffabc",
        b"\x89\x7e\xff\xffabc",
        b"\x88\x80\x01\x02\x03\x04\x82\x03abc",
        b"\x03\x00\x00\x00\x00\x00abc",
    ];
    for frame in frames {
        let (mut client, mut wire) = tunnel(&rig, &pod).await;
        client.send(frame).await;
        wire.send(frame).await;
        client.shut().await;
        assert_eq!(wire.raw_rest().await, frame, "to the pod");
        drop(wire);
        assert_eq!(client.raw_rest().await, frame, "to the client");
    }
    honest.was_served().await;
    eventually("no slot is kept", || rig.service.in_flight() == 0).await;
}

#[tokio::test]
async fn a_frame_without_end_is_taken_as_fast_as_the_other_side_reads() {
    let (rig, pod, _recording_pod, honest) = stage().await;
    let (mut client, mut wire) = tunnel(&rig, &pod).await;
    for side in [&mut client, &mut wire] {
        side.send(b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff").await;
        let taken = fill(&mut side.0, 64 << 20).await;
        assert!(taken < 32 << 20, "{taken} bytes were taken");
    }
    honest.was_served().await;
    // The pod resets, and the client does not read: the gateway does not wait for it.
    wire.0.set_zero_linger().unwrap();
    drop(wire);
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
}

/// No close frame may be written into the middle of a frame, however long that frame claims to be.
#[tokio::test]
async fn a_close_frame_is_never_written_into_another_frame() {
    for (begin, at_boundary) in [
        (&b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xffabc"[..], false),
        (b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xffabc", false),
        (b"\x82\x7f\0\0\0\0\0\0\0\x04abc", false),
        (b"\x82\x7e\0", false),
        (b"\x82", false),
        (b"\x82\x7f\0\0\0\0\0\0\0\x03abc", true),
        (b"\x88\x00", true),
    ] {
        let (mut rig, pod) = Rig::with_pod(Options::default()).await;
        let (mut client, mut wire) = tunnel(&rig, &pod).await;
        wire.send(begin).await;
        client.exactly(begin.len()).await;
        rig.workers.close();
        let close_frame: &[u8] = if at_boundary { b"\x88\x02\x03\xe9" } else { b"" };
        assert_eq!(client.raw_rest().await, close_frame, "{begin:?}");
        timeout(PATIENCE, rig.workers.ended()).await.unwrap();
    }
}

#[tokio::test]
async fn a_pod_that_switches_and_closes_ends_its_client() {
    let (rig, pod, _recording_pod, honest) = stage().await;
    for last in ["", "\u{81}"] {
        let (mut client, mut wire) = asked(&rig, &pod).await;
        wire.send(format!("{SWITCHED}{last}")).await;
        drop(wire);
        let answer = client.raw_rest().await;
        assert!(answer.starts_with(b"HTTP/1.1 101 "), "{answer:?}");
        assert!(answer.ends_with(format!("\r\n\r\n{last}").as_bytes()), "{answer:?}");
        eventually("its slot is free", || rig.service.in_flight() == 0).await;
    }
    honest.was_served().await;
}

/// The client has closed its sending side; the pod's remaining data gets through, and then the connection ends.
#[tokio::test]
async fn one_open_half_is_enough_until_it_ends_too() {
    let (rig, pod, _recording_pod, honest) = stage().await;
    let (mut client, mut wire) = tunnel(&rig, &pod).await;
    client.shut().await;
    assert_eq!(wire.raw_rest().await, b"", "the pod's connection ends");
    wire.send(b"\x82\x03abc").await;
    assert_eq!(client.exactly(5).await, b"\x82\x03abc");
    assert_eq!(rig.service.in_flight(), 1, "it is still under way");
    drop(wire);
    assert_eq!(client.raw_rest().await, b"");
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
    honest.was_served().await;
}

#[tokio::test]
async fn what_follows_a_close_frame_is_no_request_and_no_answer() {
    let (rig, pod, recording_pod, honest) = stage().await;
    let (mut client, mut wire) = tunnel(&rig, &pod).await;
    let request = SMUGGLED.replace("cart.test", "second.test");
    client.send(b"\x88\x80\x01\x02\x03\x04").await;
    client.send(&request).await;
    // It stays in the tunnel: the pod gets it as tunnel data.
    assert_eq!(wire.exactly(6 + request.len()).await[6..], *request.as_bytes());
    wire.send(b"\x88\x00HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil").await;
    drop(wire);
    let rest = client.raw_rest().await;
    assert_eq!(rest, b"\x88\x00HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
    // Neither connection is used again.
    let mut other = rig.send(GET).await;
    let _fresh = pod.answer("hello").await;
    assert!(other.until("hello").await.starts_with("HTTP/1.1 200 "));
    honest.was_served().await;
    recording_pod.is_clean();
}

/// The guard does not check the end of such a body, so no request may follow it.
#[tokio::test]
async fn nothing_follows_an_upgrade_with_a_body() {
    let (rig, recording_pod) = scene(Options::default()).await;
    let honest = Honest::new(&rig).await.throughout();
    let bodies = [
        "Content-Length: 5\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5;smuggled\nhello\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0\r\nHost: smuggled\r\n\r\n",
    ];
    for body in bodies {
        for method in ["GET", "POST"] {
            let head = format!(
                "{method} /upgrade HTTP/1.1\r\nHost: cart.test\r\nConnection: Upgrade\r\nUpgrade: x\r\n"
            );
            let answer = Attacker::exchange(&rig, format!("{head}{body}{SMUGGLED}")).await;
            assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{body:?}: {answer}");
            assert!(!answer.contains("HTTP/1.1 101 "), "{body:?}: {answer}");
        }
    }
    honest.was_served().await;
    assert!(recording_pod.count(" /upgrade ") <= 2 * bodies.len(), "none is repeated");
    recording_pod.is_clean();
}

/// Without `Connection`, and in HTTP/1.0, the header has no effect: it is not forwarded, and the next bytes are checked.
#[tokio::test]
async fn an_upgrade_that_is_not_asked_for_properly_is_none() {
    let (rig, recording_pod) = scene(Options::default()).await;
    let honest = Honest::new(&rig).await.throughout();
    let bad = "GET /bad HTTP/1.1\r\nHost: cart.test\r\nHost: smuggled\r\n\r\n";
    for head in [
        "GET /plain HTTP/1.1\r\nHost: cart.test\r\nUpgrade: websocket\r\n\r\n",
        "GET /plain HTTP/1.1\r\nHost: cart.test\r\nConnection: keep-alive\r\nUpgrade: websocket\r\n\r\n",
        "GET /plain HTTP/1.1\r\nHost: cart.test\r\nConnection: upgrades\r\nUpgrade: websocket\r\n\r\n",
        "GET /plain HTTP/1.0\r\nHost: cart.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET /plain HTTP/1.0\r\nHost: cart.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET /plain HTTP/1.1\r\nHost: cart.test\r\nConnection: Upgrade\r\n\r\n",
    ] {
        let answer = Attacker::exchange(&rig, format!("{head}{bad}{SMUGGLED}")).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 ") || answer.starts_with("HTTP/1.0 200 "),
            "{head}: {answer}"
        );
        assert!(!answer.contains(" 101 "), "{head}: {answer}");
        assert_eq!(answer.matches("\r\n\r\n/plain").count(), 1, "{head}: {answer}");
    }
    honest.was_served().await;
    assert_eq!(recording_pod.count("GET /plain "), 6);
    assert_eq!(recording_pod.count("upgrade"), 0, "{:?}", recording_pod.seen());
    recording_pod.is_clean();
}

#[tokio::test]
async fn nothing_is_smuggled_in_the_key_of_a_websocket() {
    let (rig, recording_pod) = scene(Options::default()).await;
    let honest = Honest::new(&rig).await.throughout();
    for key in [
        "a\nX-A: smuggled",
        "a\rX-A: smuggled",
        "a\r\n X-A: smuggled",
        "a\0smuggled",
        "a\r\nHost: smuggled",
        "a\r\nContent-Length: 44\r\nTransfer-Encoding: chunked",
        "a\r\nX A: smuggled",
        "a\r\n: smuggled",
    ] {
        let answer = Attacker::exchange(&rig, ASK.replace("dGhlIHNhbXBsZSBub25jZQ==", key)).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{key:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{key:?}: {answer}");
    }
    honest.was_served().await;
    assert_eq!(recording_pod.count("GET /ws "), 0);
    recording_pod.is_clean();
}

#[tokio::test]
async fn a_pod_that_never_switches_meets_the_deadline() {
    let timeouts = Timeouts { request: Some(Duration::from_secs(2)), ..Timeouts::default() };
    let options = Options { timeouts, ..Options::default() };
    let (rig, pod, _recording_pod, honest) = hostile_pod_scene(options).await;
    let honest = honest.throughout();
    let (mut client, mut wire) = asked(&rig, &pod).await;
    let answer = client.rest().await;
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("\r\nx-rouse-error: request_timeout\r\n"), "{answer}");
    assert_eq!(wire.rest().await, "", "the pod's connection ends");
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
    honest.was_served().await;
}
