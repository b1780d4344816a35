//! Headers and trailers that the gateway forwards, changes or removes.

use http::Request;

use crate::http2_peers::H2Client;
use crate::rig::{Options, Rig};

#[tokio::test]
async fn a_connection_header_cannot_name_the_host_away_nor_our_own_mark() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let _client = rig.send("GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: host, via\r\n\r\n").await;
    let head = pod.accept().await.head().await;
    assert!(head.contains("\r\nhost: cart.test\r\n"), "{head}");
    assert!(head.contains("\r\nvia: 1.1 rouse-test\r\n"), "{head}");
}

/// RFC 9113, 8.2.3.
#[tokio::test]
async fn the_crumbs_of_a_cookie_are_one_header_for_an_http1_pod() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let client = H2Client::new(&rig).await;
    let request = Request::get("http://cart.test/").header("cookie", "a=1").header("cookie", "b=2");
    let _asking = client.send(request, true).await;
    let head = pod.accept().await.head().await;
    assert!(head.contains("\r\ncookie: a=1; b=2\r\n"), "{head}");
    assert_eq!(head.matches("\r\ncookie:").count(), 1, "{head}");
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let mut client = rig
        .send("POST / HTTP/1.1\r\nHost: cart.test\r\nTE: trailers\r\nConnection: TE, close\r\nTrailer: X-Sum\r\n")
        .await;
    client.write("Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 7\r\n\r\n").await;
    let mut wire = pod.accept().await;
    let head = wire.head().await;
    assert!(head.contains("\r\ntrailer: X-Sum\r\n"), "{head}");
    let body = wire.until("x-sum: 7\r\n\r\n").await;
    assert!(body.starts_with("3\r\nabc\r\n0\r\n"), "{body}");
    wire.write("HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    wire.write("3\r\nabc\r\n0\r\nX-Sum: 8\r\n\r\n").await;
    let answer = client.rest().await;
    assert!(answer.ends_with("3\r\nabc\r\n0\r\nx-sum: 8\r\n\r\n"), "{answer}");
}

/// The gateway does not begin traces: a header with the flag "not sampled" would switch an app's own tracing off.
#[tokio::test]
async fn no_trace_is_begun_and_a_clients_own_passes_byte_for_byte() {
    let rows = [
        "",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate: a=1,b=2\r\n",
        "traceparent: 00-0AF7651916CD43DD8448EB211C80319C-00\r\n",
        "traceparent: anything at all\r\ntraceparent: and again\r\n",
        "tracestate:\r\n",
    ];
    for sent in rows {
        let (rig, pod) = Rig::with_pod(Options::default()).await;
        let _client = rig.send(&format!("GET / HTTP/1.1\r\nHost: cart.test\r\n{sent}\r\n")).await;
        let head = pod.accept().await.head().await;
        let lines = head.split_inclusive("\r\n").filter(|line| line.starts_with("trace"));
        let came: String = lines.map(|line| line.replace(": \r\n", ":\r\n")).collect();
        assert_eq!(came, sent);
    }
}
