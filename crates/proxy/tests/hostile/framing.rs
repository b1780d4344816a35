//! Request smuggling: requests with ambiguous framing are rejected.

use crate::kit::{Attacker, SMUGGLED, scene_with_honest};
use crate::rig::Options;

/// Requests that must be rejected with an error: nothing of them has been forwarded yet.
const HEADS: [(&str, &str); 33] = [
    (
        "both lengths",
        "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "both, the other way",
        "POST / HTTP/1.1\r\nHost: cart.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    ),
    ("two lengths", "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n"),
    (
        "one length twice",
        "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    ),
    ("a list of lengths", "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 0, 0\r\n\r\n"),
    ("a signed length", "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: +0\r\n\r\n"),
    ("a negative length", "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: -1\r\n\r\n"),
    ("a hexadecimal length", "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 0x0\r\n\r\n"),
    ("no length", "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length:\r\n\r\n"),
    (
        "a length beyond 64 bits",
        "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 18446744073709551616\r\n\r\n",
    ),
    ("xchunked", "POST / HTTP/1.1\r\nHost: cart.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    (
        "gzip and chunked",
        "POST / HTTP/1.1\r\nHost: cart.test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked and identity",
        "POST / HTTP/1.1\r\nHost: cart.test\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked twice",
        "POST / HTTP/1.1\r\nHost: cart.test\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "a vertical tab",
        "POST / HTTP/1.1\r\nHost: cart.test\r\nTransfer-Encoding: \u{b}chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked in HTTP/1.0",
        "POST / HTTP/1.0\r\nHost: cart.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    ("a space before the colon", "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length : 0\r\n\r\n"),
    (
        "a folded header",
        "POST / HTTP/1.1\r\nHost: cart.test\r\nX-A: b\r\n Transfer-Encoding: chunked\r\n\r\n",
    ),
    ("a first header that is folded", "GET / HTTP/1.1\r\n Host: cart.test\r\nHost: cart.test\r\n\r\n"),
    ("a bare LF in the head", "GET / HTTP/1.1\r\nHost: cart.test\nX-A: b\r\n\r\n"),
    ("a head of bare LFs", "GET / HTTP/1.1\nHost: cart.test\n\n"),
    ("a bare CR in a value", "GET / HTTP/1.1\r\nHost: cart.test\r\nX-A: b\rX-B: smuggled\r\n\r\n"),
    ("a NUL in a value", "GET / HTTP/1.1\r\nHost: cart.test\r\nX-A: b\0c\r\n\r\n"),
    ("a NUL in a name", "GET / HTTP/1.1\r\nHost: cart.test\r\nX-\0A: b\r\n\r\n"),
    ("a NUL in the target", "GET /\0 HTTP/1.1\r\nHost: cart.test\r\n\r\n"),
    ("a line without a colon", "GET / HTTP/1.1\r\nHost: cart.test\r\nsmuggled\r\n\r\n"),
    ("no Host", "GET / HTTP/1.1\r\nX-A: b\r\n\r\n"),
    ("two Hosts", "GET / HTTP/1.1\r\nHost: cart.test\r\nHost: other.test\r\n\r\n"),
    ("one Host twice", "GET / HTTP/1.1\r\nHost: cart.test\r\nHost: cart.test\r\n\r\n"),
    ("a Host with a user", "GET / HTTP/1.1\r\nHost: me@cart.test\r\n\r\n"),
    ("another host in the target", "GET http://cart.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n"),
    ("two spaces in the line", "GET /  HTTP/1.1\r\nHost: cart.test\r\n\r\n"),
    ("a version of its own", "GET / HTTP/1.2\r\nHost: cart.test\r\n\r\n"),
];

#[tokio::test]
async fn a_head_that_can_be_read_in_two_ways_is_refused_and_nothing_of_it_reaches_a_pod() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    for (name, head) in HEADS {
        let mut attacker = Attacker::sending(&rig, format!("{head}{SMUGGLED}")).await;
        honest.is_served().await;
        let answer = attacker.rest().await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{name}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{name}: {answer}");
        honest.is_served().await;
    }
    let requests = recording_pod.count(" HTTP/1.1\r\n");
    assert_eq!(requests, recording_pod.count("GET /honest/"), "{:?}", recording_pod.seen());
    recording_pod.is_clean();
    assert_eq!(
        rig.metric(r#"rouse_requests_total{route="none",code="400",protocol="http1"}"#),
        HEADS.len() as u64
    );
}

/// A request after a valid one on the same connection is checked as strictly.
#[tokio::test]
async fn a_bad_head_behind_a_good_request_is_refused_all_the_same() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    for (name, head) in HEADS {
        let requests = format!("GET /first HTTP/1.1\r\nHost: cart.test\r\n\r\n{head}{SMUGGLED}");
        let answer = Attacker::exchange(&rig, requests).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{name}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 200 ").count(), 1, "{name}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 400 ").count(), 1, "{name}: {answer}");
        honest.is_served().await;
    }
    let others = recording_pod.count("GET /honest/") + recording_pod.count("GET /first ");
    assert_eq!(recording_pod.count(" HTTP/1.1\r\n"), others, "{:?}", recording_pod.seen());
    recording_pod.is_clean();
}

#[tokio::test]
async fn a_bad_chunk_cuts_both_sides() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(300));
    let bodies = [
        ("no size", "\r\nhello\r\n0\r\n\r\n"),
        ("a signed size", "+5\r\nhello\r\n0\r\n\r\n"),
        ("a prefixed size", "0x5\r\nhello\r\n0\r\n\r\n"),
        ("a size with an underscore", "0_5\r\nhello\r\n0\r\n\r\n"),
        ("a size beyond 64 bits", "10000000000000005\r\nhello\r\n0\r\n\r\n"),
        ("a space before the size", " 5\r\nhello\r\n0\r\n\r\n"),
        ("a space after the size", "5 \r\nhello\r\n0\r\n\r\n"),
        ("an extension with a bare LF", "5;a\nhello\r\n0\r\n\r\n"),
        ("an extension with a bare CR", "5;a\rb\r\nhello\r\n0\r\n\r\n"),
        ("an extension with a NUL", "5;a\0\r\nhello\r\n0\r\n\r\n"),
        ("an extension without end", long.as_str()),
        ("bare LFs", "5\nhello\n0\n\n"),
        ("a chunk longer than it said", "5\r\nhello!\r\n0\r\n\r\n"),
        ("a chunk that ends with LF", "5\r\nhello\n0\r\n\r\n"),
        ("a length in the trailers", "5\r\nhello\r\n0\r\nContent-Length: 44\r\n\r\n"),
        ("a Host in the trailers", "5\r\nhello\r\n0\r\nHost: other.test\r\n\r\n"),
        ("a folded trailer", "5\r\nhello\r\n0\r\nX-A: b\r\n c\r\n\r\n"),
    ];
    for (name, body) in bodies {
        let head = "POST /chunks HTTP/1.1\r\nHost: cart.test\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut attacker = Attacker::sending(&rig, format!("{head}{body}{SMUGGLED}")).await;
        honest.is_served().await;
        let answer = attacker.rest().await;
        assert!(!answer.contains("HTTP/1.1 200 "), "{name}: {answer}");
        honest.is_served().await;
    }
    assert!(recording_pod.count("POST /chunks ") <= bodies.len(), "none is repeated");
    let ends = recording_pod.count("\r\n0\r\n");
    assert_eq!(ends, 0, "no bad body has an end: {:?}", recording_pod.seen());
    recording_pod.is_clean();
}

/// An attack with chunk extensions: the gateway does not forward extensions.
#[tokio::test]
async fn chunk_extensions_do_not_reach_the_pod() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    let head =
        "POST /chunks HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let body = "5;a=smuggled\r\nhello\r\n0;smuggled\r\n\r\n";
    let answer = Attacker::exchange(&rig, format!("{head}{body}")).await;
    assert!(answer.ends_with("/chunks"), "{answer}");
    honest.is_served().await;
    assert_eq!(recording_pod.count("5\r\nhello\r\n0\r\n\r\n"), 1, "{:?}", recording_pod.seen());
    recording_pod.is_clean();
}

#[tokio::test]
async fn connect_is_not_for_us_and_nothing_may_follow_it() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    let requests = format!("CONNECT cart.test:80 HTTP/1.1\r\nHost: cart.test:80\r\n\r\n{SMUGGLED}");
    let answer = Attacker::exchange(&rig, requests).await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(!answer.contains("HTTP/1.1 200 "), "{answer}");
    honest.is_served().await;
    assert_eq!(recording_pod.count("CONNECT"), 0);
    recording_pod.is_clean();
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    let begin = "GET /large HTTP/1.1\r\nHost: cart.test\r\n";
    let heads = [
        format!("GET /{} HTTP/1.1\r\nHost: cart.test\r\n\r\n", "a".repeat(17 * 1024)),
        format!("{begin}X-A: {}\r\n\r\n", "b".repeat(70 * 1024)),
        format!("{begin}{}\r\n\r\n", "c".repeat(70 * 1024)),
        format!("{begin}{}\r\n", format!("X-A: {}\r\n", "d".repeat(1024)).repeat(70)),
        format!("{begin}{}\r\n", "X-A: b\r\n".repeat(101)),
        // Without an end.
        format!("GET /{}", "a".repeat(1 << 20)),
        format!("{begin}{}", "X-A: b\r\n".repeat(100_000)),
    ];
    for head in heads {
        // The gateway may not read the rest, and then the response may be lost.
        let answer = Attacker::exchange(&rig, &head).await;
        let shown = head.get(..60);
        let refused = ["HTTP/1.1 400 ", "HTTP/1.1 414 ", "HTTP/1.1 431 "];
        assert!(
            answer.is_empty() || refused.iter().any(|line| answer.starts_with(line)),
            "{shown:?}: {answer}"
        );
        honest.is_served().await;
    }
    assert_eq!(recording_pod.count(" HTTP/1.1\r\n"), recording_pod.count("GET /honest/"));
}
