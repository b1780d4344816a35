//! HTTP/2 floods that are cheap for the sender and expensive for the gateway.

use std::time::Duration;

use tokio::time::timeout;

use crate::frames::{
    CONTINUATION, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, Verdict, block, frame, get,
};
use crate::kit::{Attacker, Honest, scene};
use crate::rig::{Options, eventually};

/// `ENHANCE_YOUR_CALM`.
const CALM: u8 = 11;

#[tokio::test]
async fn streams_that_are_reset_at_once_end_their_connection() {
    let (rig, recording_pod) = scene(Options::default()).await;
    let honest = Honest::new(&rig).await.throughout();
    let mut attacker = Attacker::h2(&rig, &[]).await;
    let head = get("/reset", &[]);
    let mut all = Vec::new();
    for number in 0..10_000 {
        all.extend(frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &head));
        all.extend(frame(RST_STREAM, 0, 2 * number + 1, &8u32.to_be_bytes()));
    }
    attacker.send(&all).await;
    attacker.rest().await;
    honest.was_served().await;
    assert!(recording_pod.count("GET /reset ") < 1000, "{}", recording_pod.count("GET /reset "));
    eventually("nothing is left of them", || rig.service.in_flight() == 0).await;
}

/// Checked by the gateway's GOAWAY: how much an attacker can write depends on kernel buffers.
#[tokio::test]
async fn a_head_without_end_ends_its_connection() {
    let (rig, recording_pod) = scene(Options::default()).await;
    let honest = Honest::new(&rig).await.throughout();
    for part in [vec![], block(&[("x-a", &[b'a'; 1000])])] {
        let mut attacker = Attacker::h2(&rig, &[]).await;
        attacker.send(frame(HEADERS, 0, 1, &get("/endless", &[]))).await;
        attacker.send(frame(CONTINUATION, 0, 1, &part).repeat(20)).await;
        let verdict = attacker.verdict().await;
        // Bytes that the gateway did not read may cause a reset, which loses the GOAWAY.
        assert!(matches!(verdict, Verdict::GoAway(CALM) | Verdict::Ended), "{verdict:?}");
        attacker.rest().await;
    }
    honest.was_served().await;
    assert_eq!(recording_pod.count("/endless"), 0);
}

/// The client does not read the acknowledgements: they must not pile up.
#[tokio::test]
async fn pings_and_settings_without_end_do_not_pile_up() {
    let (rig, _recording_pod) = scene(Options::default()).await;
    let honest = Honest::new(&rig).await.throughout();
    for (kind, payload) in [(PING, &[7; 8][..]), (SETTINGS, &[])] {
        let mut attacker = Attacker::h2(&rig, &[]).await;
        let part = frame(kind, 0, 0, payload).repeat(4000);
        let mut sent = 0;
        // Either the connection is closed, or the gateway stops reading until the acknowledgements are read.
        while sent < 64 << 20
            && let Ok(true) = timeout(Duration::from_millis(300), attacker.send(&part)).await
        {
            sent += part.len();
        }
        assert!(sent < 64 << 20, "kind {kind}: everything was taken");
    }
    honest.was_served().await;
}

#[tokio::test]
async fn unread_streams_do_not_stop_other_streams() {
    let (rig, recording_pod) = scene(Options::default()).await;
    let honest = Honest::new(&rig).await.throughout();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    let mut attacker = Attacker::h2(&rig, &[0, 4, 0, 0, 0, 0]).await;
    let head = get("/unread", &[]);
    for number in 0..400 {
        attacker.send(frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &head)).await;
    }
    eventually("as many as may be are there", || recording_pod.count("GET /unread ") >= 256).await;
    let mut refused = 0;
    while refused < 144 {
        match attacker.verdict().await {
            Verdict::Reset => refused += 1,
            Verdict::Served => {}
            other => assert_eq!(other, Verdict::Reset),
        }
    }
    honest.was_served().await;
    assert_eq!(recording_pod.count("GET /unread "), 256);
    drop(attacker);
    eventually("nothing is left of them", || rig.service.in_flight() == 0).await;
}

/// An HPACK bomb: one large header in the table, and one byte per reference to it.
#[tokio::test]
async fn a_small_block_cannot_become_a_huge_list() {
    let (rig, recording_pod) = scene(Options::default()).await;
    let honest = Honest::new(&rig).await.throughout();
    let mut bomb = get("/bomb", &[]);
    // A literal that is remembered: `x-a` with 3,900 bytes.
    bomb.extend([0x40, 3, b'x', b'-', b'a', 127, 0xbd, 0x1d]);
    bomb.extend([b'a'; 3900]);
    // Entry 62 of the table, again and again: 40 MB.
    bomb.extend([0xbe; 10_000]);
    let verdict = Attacker::verdict_on(&rig, &bomb).await;
    assert!(verdict != Verdict::Served, "{verdict:?}");
    let many = get("/bomb", &vec![("x-a", &b"b"[..]); 2000]);
    let verdict = Attacker::verdict_on(&rig, &many).await;
    assert!(verdict != Verdict::Served, "{verdict:?}");
    honest.was_served().await;
    assert_eq!(recording_pod.count("/bomb"), 0);
}
