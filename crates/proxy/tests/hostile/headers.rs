//! Forged and oversized headers: `Connection` lists, `Via`, forwarding headers and false lengths.

use rouse_testkit::fakes::READY;

use crate::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, Verdict, block, frame, get};
use crate::kit::{Attacker, scene_with_honest};
use crate::rig::{Options, Rig};

#[tokio::test]
async fn an_untrusted_client_cannot_set_forwarded_or_rouse_headers() {
    let (rig, recording_pod, mut honest) =
        scene_with_honest(Options { edge: true, ..Options::default() }).await;
    let request = "GET /forged HTTP/1.1\r\nHost: cart.test\r\nConnection: close, x-forwarded-for, via, host\r\n\
                   X-Forwarded-For: smuggled\r\nX-FORWARDED-FOR: smuggled\r\nx-forwarded-host: smuggled\r\n\
                   X-Forwarded-Proto: smuggled\r\nX-Forwarded-User: smuggled\r\nForwarded: for=smuggled\r\n\
                   X-Rouse-Cold-Start: smuggled\r\nx-rouse-anything: smuggled\r\n\r\n";
    let answer = Attacker::exchange(&rig, request).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    honest.is_served().await;
    recording_pod.is_clean();
    let seen = recording_pod.seen().concat();
    let forged = seen.split("GET /").find(|request| request.starts_with("forged ")).unwrap();
    for line in [
        "host: cart.test",
        "x-forwarded-for: 127.0.0.1",
        "x-forwarded-host: cart.test",
        "x-forwarded-proto: http",
    ] {
        assert!(forged.contains(&format!("\r\n{line}\r\n")), "{forged}");
    }
    assert!(!forged.contains("x-rouse-"), "{forged}");
}

/// A client that lists headers in `Connection` could list those that frame the request.
#[tokio::test]
async fn the_length_of_a_body_cannot_be_named_away() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    for body in
        ["Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
    {
        let named = "Connection: close, content-length, transfer-encoding, host";
        let request = format!("POST /named HTTP/1.1\r\nHost: cart.test\r\n{named}\r\n{body}");
        let answer = Attacker::exchange(&rig, request).await;
        assert!(answer.ends_with("/named"), "{answer}");
        honest.is_served().await;
    }
    assert_eq!(recording_pod.count("\r\ncontent-length: 5\r\n"), 1, "{:?}", recording_pod.seen());
    assert_eq!(recording_pod.count("\r\ntransfer-encoding: chunked\r\n"), 1, "{:?}", recording_pod.seen());
}

#[tokio::test]
async fn a_request_that_comes_back_to_us_ends_here() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    Rig::slices_of(&rig.add("loop"), &[(3, rig.address, READY)]);
    for request in [
        "GET / HTTP/1.1\r\nHost: loop.test\r\nConnection: close\r\n\r\n",
        // A client cannot have the loop marker removed on the second pass.
        "GET / HTTP/1.1\r\nHost: loop.test\r\nConnection: close, via\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: cart.test\r\nVia: 1.0 a, 1.1 rouse-test\r\nConnection: close, via\r\n\r\n",
    ] {
        let answer = Attacker::exchange(&rig, request).await;
        assert!(answer.starts_with("HTTP/1.1 508 "), "{answer}");
        honest.is_served().await;
    }
    assert_eq!(recording_pod.count(" HTTP/1.1\r\n"), recording_pod.count("GET /honest/"));
}

#[tokio::test]
async fn no_header_of_http2_can_break_a_line_of_http1() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    let pseudo = |method: &'static str, path: &'static str, authority: &'static str| {
        [(":method", method), (":scheme", "http"), (":authority", authority), (":path", path)]
            .map(|(name, value)| (name, value.as_bytes()))
    };
    let heads = [
        get("/x", &[("x-a", b"b\r\nx-c: smuggled")]),
        get("/x", &[("x-a", b"b\nx-c: smuggled")]),
        get("/x", &[("x-a", b"b\rsmuggled")]),
        get("/x", &[("x-a", b"b\0smuggled")]),
        get("/x", &[("x-a\r\nx-c", b"smuggled")]),
        get("/x", &[("x-a: smuggled", b"")]),
        get("/x", &[("x a", b"smuggled")]),
        get("/x", &[("X-Smuggled", b"")]),
        get("/x", &[("", b"smuggled")]),
        get("/x", &[(":x", b"smuggled")]),
        get("/x", &[(":path", b"/smuggled")]),
        get("/x", &[("transfer-encoding", b"chunked"), ("x", b"smuggled")]),
        get("/x", &[("connection", b"upgrade"), ("upgrade", b"websocket"), ("x", b"smuggled")]),
        get("/x", &[("te", b"gzip"), ("x", b"smuggled")]),
        get("/x", &[("content-length", b"5"), ("x", b"smuggled")]),
        get("/x", &[("content-length", b"+0"), ("x", b"smuggled")]),
        get("/x", &[("content-length", b"0"), ("content-length", b"44"), ("x", b"smuggled")]),
        block(&pseudo("GET", "/x HTTP/1.1\r\nx: smuggled", "cart.test")),
        block(&pseudo("GET", "/x smuggled", "cart.test")),
        block(&pseudo("GET", "", "cart.test")),
        block(&pseudo("GET /smuggled HTTP/1.1\r\n", "/x", "cart.test")),
        block(&pseudo("GET", "/x", "cart.test\r\nx: smuggled")),
        block(&pseudo("GET", "/smuggled", "me@cart.test")),
        block(&pseudo("CONNECT", "/smuggled", "cart.test")),
        block(&[(":method", b"CONNECT"), (":authority", b"cart.test:80"), ("x", b"smuggled")]),
    ];
    for (number, head) in heads.iter().enumerate() {
        let verdict = Attacker::verdict_on(&rig, head).await;
        assert!(verdict != Verdict::Served, "{number}: {verdict:?} {:?}", String::from_utf8_lossy(head));
        honest.is_served().await;
    }
    recording_pod.is_clean();
    assert_eq!(
        recording_pod.count(" HTTP/1.1\r\n"),
        recording_pod.count("GET /honest/"),
        "{:?}",
        recording_pod.seen()
    );
}

#[tokio::test]
async fn the_host_of_http2_is_its_authority_or_it_is_refused() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    for (hosts, verdict) in [
        (&[("host", &b"smuggled"[..])][..], Verdict::Refused),
        (&[("host", b"cart.test"), ("host", b"smuggled")], Verdict::Refused),
        (&[("host", b"cart.test"), ("host", b"cart.test")], Verdict::Refused),
        (&[("host", b"cart.test")], Verdict::Served),
    ] {
        assert_eq!(Attacker::verdict_on(&rig, &get("/x", hosts)).await, verdict, "{hosts:?}");
    }
    honest.is_served().await;
    recording_pod.is_clean();
}

/// A body that is longer or shorter than its Content-Length.
#[tokio::test]
async fn a_body_of_http2_is_as_long_as_it_said_or_has_no_end() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    for (length, body) in [(&b"4"[..], &b"sizesmuggled"[..]), (b"0", b"smuggled"), (b"40", b"short")] {
        let mut attacker = Attacker::h2(&rig, &[]).await;
        let head = block(&[
            (":method", b"POST"),
            (":scheme", b"http"),
            (":authority", b"cart.test"),
            (":path", b"/sized"),
            ("content-length", length),
        ]);
        attacker.send(frame(HEADERS, END_HEADERS, 1, &head)).await;
        attacker.send(frame(DATA, END_STREAM, 1, body)).await;
        let verdict = attacker.verdict().await;
        assert!(verdict != Verdict::Served || length == b"0", "{verdict:?}");
        honest.is_served().await;
        honest.is_served().await;
    }
    recording_pod.is_clean();
}
