//! What a head or a trailer must not get past us.

use crate::frames::{END_HEADERS, END_STREAM, HEADERS, Verdict, block, frame, get};
use crate::kit::{Attacker, Honest, scene};
use crate::rig::{Options, eventually};

#[tokio::test]
async fn nothing_follows_an_upgrade_that_we_refused() {
    let (rig, witness) = scene(Options::default()).await;
    let mut honest = Honest::new(&rig).await;
    for (head, status) in [("Host: nowhere.test", "404"), ("Host: cart.test\r\nVia: 1.1 rouse-test", "508")] {
        let mut attacker = Attacker::new(&rig).await;
        attacker.send(format!("GET / HTTP/1.1\r\n{head}\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nPOST /smuggled HTTP/1.1\r\nHost: cart.test\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n")).await;
        let answer = attacker.rest().await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        honest.is_served().await;
    }
    witness.is_clean();
}

#[tokio::test]
async fn http2_without_an_authority_has_one_host_or_is_refused() {
    let (rig, witness) = scene(Options::default()).await;
    let mut honest = Honest::new(&rig).await;
    let mut attacker = Attacker::h2(&rig, &[]).await;
    let head = block(&[
        (":method", b"GET"),
        (":scheme", b"http"),
        (":path", b"/x"),
        ("host", b"cart.test"),
        ("host", b"smuggled"),
    ]);
    attacker.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &head)).await;
    let verdict = attacker.verdict().await;
    honest.is_served().await;
    witness.is_clean();
    assert!(verdict != Verdict::Served);
}

#[tokio::test]
async fn http2_says_its_length_once_or_is_refused() {
    let (rig, witness) = scene(Options::default()).await;
    let mut attacker = Attacker::h2(&rig, &[]).await;
    attacker
        .send(frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            1,
            &get("/x", &[("content-length", b"0"), ("content-length", b"0")]),
        ))
        .await;
    let verdict = attacker.verdict().await;
    assert!(witness.count("content-length") < 2, "{verdict:?} {:?}", witness.seen());
}

#[tokio::test]
async fn a_trailer_does_not_say_who_asked() {
    let (rig, witness) = scene(Options { edge: true, ..Options::default() }).await;
    let mut attacker = Attacker::new(&rig).await;
    attacker.send("POST /t HTTP/1.1\r\nHost: cart.test\r\nConnection: close, te\r\nTE: trailers\r\nTrailer: X-Forwarded-For, X-Rouse-A\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Forwarded-For: smuggled\r\nX-Rouse-A: smuggled\r\n\r\n").await;
    // The witness does not know trailers.
    eventually("it came", || witness.count("\r\n0\r\n") > 0).await;
    let mut honest = Honest::new(&rig).await;
    honest.is_served().await;
    witness.is_clean();
}
