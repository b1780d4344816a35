//! Pods that answer in another protocol, or not in HTTP.

use http::Response;
use rouse_proxy::upstream::UpstreamProtocol;

use crate::http2_peers::{H2Client, h2c};
use crate::rig::{GET_AND_CLOSE, Options, Rig};

/// What the client gets when the pod answers with `bytes`, and closes.
async fn answered(protocol: UpstreamProtocol, bytes: &[u8]) -> String {
    let (rig, pod) = Rig::with_pod(Options { protocol, ..Options::default() }).await;
    // The HTTP/2 preface also contains an empty line, which ends a head.
    let (mut client, mut wire) = rig.send_to(&pod, GET_AND_CLOSE).await;
    wire.bytes(bytes).await;
    let answer = client.rest().await;
    assert_eq!(rig.service.in_flight(), 0);
    answer
}

#[tokio::test]
async fn a_response_in_another_protocol_is_not_reported_as_a_closed_connection() {
    let settings = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64";
    let goaway = b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01";
    let long = format!("HTTP/1.1 200 OK\r\nX-A: {}\r\n\r\n", "a".repeat(1 << 20));
    for (protocol, bytes, says) in [
        (UpstreamProtocol::Http1, &settings[..], "HTTP/2"),
        (UpstreamProtocol::Http1, &[&settings[..], &goaway[..]].concat(), "kubernetes.io/h2c"),
        (UpstreamProtocol::Http1, b"\x15\x03\x01\0\x02\x02\x46", "TLS"),
        (UpstreamProtocol::Http1, b"SSH-2.0-OpenSSH_9.6\r\n", "not valid HTTP/1.1"),
        (UpstreamProtocol::Http1, b"-ERR unknown command 'GET'\r\n", "not valid HTTP/1.1"),
        (UpstreamProtocol::Http1, b"HTTP/1.1 2x0 OK\r\n\r\n", "not valid HTTP/1.1"),
        (UpstreamProtocol::Http1, long.as_bytes(), "too long"),
        (
            UpstreamProtocol::Http1,
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "ambiguous",
        ),
        (h2c().protocol, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1"),
        (h2c().protocol, b"-ERR unknown command 'PRI'\r\n", "not valid HTTP/2"),
    ] {
        let answer = answered(protocol, bytes).await;
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
        assert!(answer.starts_with("HTTP/1.1 502 "), "{shown:?}: {answer}");
        assert!(answer.contains("\r\nx-rouse-error: bad_upstream_protocol\r\n"), "{shown:?}: {answer}");
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        assert!(body.contains(says), "{shown:?}: {body}");
    }
}

#[tokio::test]
async fn a_pod_that_closes_before_the_end_of_its_head_is_a_reset() {
    for bytes in [&b""[..], b"HTTP/1.1 200 OK\r\nContent-"] {
        let (rig, pod) = Rig::with_pod(Options::default()).await;
        let mut client = rig
            .send("POST / HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\nContent-Length: 1\r\n\r\na")
            .await;
        let mut wire = pod.accept().await;
        wire.until("\r\n\r\na").await;
        wire.bytes(bytes).await;
        drop(wire);
        let answer = client.rest().await;
        assert!(answer.contains("\r\nx-rouse-error: upstream_reset\r\n"), "{answer}");
    }
}

/// Nothing of the response was forwarded yet, so the client can still get an error.
#[tokio::test]
async fn an_error_in_the_first_bytes_of_a_body_is_a_502() {
    for (answer, code) in [
        ("Transfer-Encoding: chunked\r\n\r\nzz\r\n", "bad_upstream_protocol"),
        ("Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", "bad_upstream_protocol"),
        ("Transfer-Encoding: chunked\r\n\r\n\r\n\r\n", "bad_upstream_protocol"),
    ] {
        let got = answered(UpstreamProtocol::Http1, format!("HTTP/1.1 200 OK\r\n{answer}").as_bytes()).await;
        assert!(got.starts_with("HTTP/1.1 502 "), "{answer:?}: {got:?}");
        assert!(got.contains(&format!("\r\nx-rouse-error: {code}\r\n")), "{answer:?}: {got}");
    }
}

/// As over HTTP/1: up to 64 KiB pass, and a longer one is an error of the pod, also on a retry.
#[tokio::test]
async fn the_head_of_an_http_2_answer_is_bounded_as_that_of_an_http_1_answer() {
    let (rig, pod) = Rig::with_pod(h2c()).await;
    let _pod = pod.serve_h2(h2::server::Builder::new(), |request, mut respond| async move {
        let length: usize = request.uri().path().trim_start_matches('/').parse().unwrap();
        let answer = Response::builder().header("x-long", "a".repeat(length)).body(()).unwrap();
        respond.send_response(answer, true).unwrap();
    });
    for length in [10_000, 20_000, 60_000] {
        let answer = rig.get(&format!("/{length}")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{length}: {answer:.200}");
        assert!(answer.len() > length);
    }
    for length in [70_000, 100_000] {
        let answer = rig.get(&format!("/{length}")).await;
        assert!(answer.contains("\r\nx-rouse-error: bad_upstream_protocol\r\n"), "{length}: {answer:.200}");
        assert!(answer.contains("too long"), "{length}: {answer}");
    }
    let retries = rig.metrics_text().lines().filter(|line| line.starts_with("rouse_retries_total{")).count();
    assert_eq!(retries, 0, "{}", rig.metrics_text());
}

/// Two bytes alone do not tell one protocol from another.
#[tokio::test]
async fn an_http2_pod_whose_first_frame_comes_in_pieces_is_recognised() {
    let settings = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64";
    let reset = b"\0\0\x04\x03\0\0\0\0\x03\0\0\0\x02";
    let (rig, pod) = Rig::with_pod(h2c()).await;
    let client = H2Client::new(&rig).await;
    let _first = client.get("http://cart.test/").await;
    let mut wire = pod.accept().await;
    wire.until("SM\r\n\r\n").await;
    wire.bytes(&settings[..2]).await;
    // When this request arrives on the same connection, the gateway has read the earlier bytes.
    let second = client.post("http://cart.test/", "second").await;
    wire.until("second").await;
    wire.bytes(&settings[2..]).await;
    wire.bytes(reset).await;
    let answer = second.head().await;
    assert_eq!(answer.headers().get("x-rouse-error").unwrap(), "upstream_reset");
}
