//! Headers, trailers and hosts that must not pass the gateway.

use crate::frames::{Verdict, block, get};
use crate::http2_peers::{answer, h2c};
use crate::kit::{Attacker, Honest, scene, scene_with_honest};
use crate::rig::{Options, Rig, eventually};

#[tokio::test]
async fn nothing_follows_an_upgrade_that_we_refused() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    for (head, status) in [("Host: nowhere.test", "404"), ("Host: cart.test\r\nVia: 1.1 rouse-test", "508")] {
        let requests = format!(
            "GET / HTTP/1.1\r\n{head}\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n\
             POST /smuggled HTTP/1.1\r\nHost: cart.test\r\nHost: x\r\nContent-Length: 5\r\n\
             Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n"
        );
        let answer = Attacker::exchange(&rig, requests).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        honest.is_served().await;
    }
    recording_pod.is_clean();
}

#[tokio::test]
async fn http2_without_an_authority_has_one_host_or_is_refused() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    let head = block(&[
        (":method", b"GET"),
        (":scheme", b"http"),
        (":path", b"/x"),
        ("host", b"cart.test"),
        ("host", b"smuggled"),
    ]);
    let verdict = Attacker::verdict_on(&rig, &head).await;
    honest.is_served().await;
    recording_pod.is_clean();
    assert!(verdict != Verdict::Served);
}

#[tokio::test]
async fn http2_says_its_length_once_or_is_refused() {
    let (rig, recording_pod) = scene(Options::default()).await;
    let head = get("/x", &[("content-length", b"0"), ("content-length", b"0")]);
    let verdict = Attacker::verdict_on(&rig, &head).await;
    assert!(recording_pod.count("content-length") < 2, "{verdict:?} {:?}", recording_pod.seen());
}

#[tokio::test]
async fn forwarded_headers_are_removed_from_trailers() {
    let (rig, recording_pod) = scene(Options { edge: true, ..Options::default() }).await;
    let request = "POST /t HTTP/1.1\r\nHost: cart.test\r\nConnection: close, te\r\nTE: trailers\r\n\
                   Trailer: X-Forwarded-For, X-Rouse-A\r\nTransfer-Encoding: chunked\r\n\r\n\
                   0\r\nX-Forwarded-For: smuggled\r\nX-Rouse-A: smuggled\r\n\r\n";
    let _attacker = Attacker::sending(&rig, request).await;
    // The recording pod does not parse trailers.
    eventually("it came", || recording_pod.count("\r\n0\r\n") > 0).await;
    let mut honest = Honest::new(&rig).await;
    honest.is_served().await;
    recording_pod.is_clean();
}

/// Those that the HTTP/2 library accepts as an authority reach the gateway and get 400. The library resets the others.
#[tokio::test]
async fn an_http2_request_names_one_host_with_a_numeric_port_or_is_refused() {
    let (rig, recording_pod) = scene(Options::default()).await;
    let usual: [(&str, &[u8]); 3] = [(":method", b"GET"), (":scheme", b"http"), (":path", b"/x")];
    let mut refused = 0;
    for (authority, host, verdict) in [
        (None, Some("cart.test"), Verdict::Served),
        (None, Some("CART.test.:80"), Verdict::Served),
        (Some("cart.test"), Some("Cart.Test"), Verdict::Served),
        (None, Some("cart.test:@secret.test"), Verdict::Refused),
        (None, Some("cart.test:80, secret.test"), Verdict::Refused),
        (None, Some("cart.test:80/a b?c#d"), Verdict::Refused),
        (None, Some("cart.test:80x"), Verdict::Refused),
        (None, Some("cart.test:"), Verdict::Refused),
        (None, None, Verdict::Refused),
        (Some("cart.test:80x"), None, Verdict::Refused),
        (Some("cart.test:99999"), None, Verdict::Refused),
        (Some("cart.test:"), None, Verdict::Refused),
        (Some("cart.test:@secret.test"), None, Verdict::Refused),
        (Some("cart.test:80, secret.test"), None, Verdict::Reset),
        (Some("cart.test/a"), None, Verdict::Reset),
        (Some("cart.test"), Some("secret.test"), Verdict::Refused),
    ] {
        let authority = authority.map(|text| (":authority", text.as_bytes()));
        let host = host.map(|text| ("host", text.as_bytes()));
        let lines: Vec<_> = usual.into_iter().chain(authority).chain(host).collect();
        assert_eq!(Attacker::verdict_on(&rig, &block(&lines)).await, verdict, "{authority:?} {host:?}");
        refused += u64::from(verdict == Verdict::Refused);
    }
    assert_eq!(recording_pod.count("GET /x "), 3, "{:?}", recording_pod.seen());
    let bad_requests = r#"rouse_requests_total{route="none",code="400",protocol="http2"}"#;
    eventually("all are answered with 400", || rig.metric(bad_requests) == refused).await;
}

/// The HTTP/2 library resets the stream of such a request before the gateway sees it; over HTTP/1 these characters are
/// forwarded percent-encoded.
#[tokio::test]
async fn characters_that_are_not_allowed_in_an_http2_path_reset_its_stream() {
    let (rig, recording_pod) = scene(Options::default()).await;
    for (path, verdict) in [
        ("/plain", Verdict::Served),
        ("/{a}|^[]\\\"", Verdict::Served),
        ("/<b", Verdict::Reset),
        ("/b>", Verdict::Reset),
        ("/`b`", Verdict::Reset),
        ("/?q=<b", Verdict::Reset),
        ("/?q=b>", Verdict::Reset),
        ("/?q=`b`", Verdict::Served),
        ("/?q=\"b\"", Verdict::Reset),
        ("/a b", Verdict::Reset),
        ("b", Verdict::Reset),
    ] {
        assert_eq!(Attacker::verdict_on(&rig, &get(path, &[])).await, verdict, "{path}");
    }
    assert_eq!(recording_pod.count("GET "), 3, "{:?}", recording_pod.seen());
}

#[tokio::test]
async fn hop_by_hop_names_in_trailers_do_not_pass() {
    const REQUEST: &str = "POST /t HTTP/1.1\r\nHost: cart.test\r\nTrailer: Connection, Upgrade, Keep-Alive, TE, \
         Proxy-Connection, Transfer-Encoding, X-Sum\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n\
         2\r\nhi\r\n0\r\nConnection: close\r\nUpgrade: x\r\nKeep-Alive: 5\r\nTE: gzip\r\nProxy-Connection: close\r\n\
         X-Sum: 7\r\n\r\n";
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let (mut client, mut wire) = rig.send_to(&pod, REQUEST).await;
    assert_eq!(wire.until("\r\n\r\n").await, "2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n");
    // The other direction.
    wire.write(
        "HTTP/1.1 200 OK\r\nTrailer: Connection, Keep-Alive, X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
         2\r\nho\r\n0\r\nConnection: close\r\nKeep-Alive: 5\r\nX-Sum: 8\r\n\r\n",
    )
    .await;
    client.head().await;
    assert_eq!(client.until("\r\n\r\n").await, "2\r\nho\r\n0\r\nx-sum: 8\r\n\r\n");

    let (rig, pod) = Rig::with_pod(h2c()).await;
    let mut client = rig.send(REQUEST).await;
    let _serving = pod.serve_h2(h2::server::Builder::new(), |request, mut respond| async move {
        let mut body = request.into_body();
        while let Some(data) = body.data().await {
            data.unwrap();
        }
        let trailers = body.trailers().await.unwrap().unwrap();
        assert_eq!(trailers.len(), 1, "{trailers:?}");
        answer(&mut respond, "got them");
    });
    assert!(client.head().await.starts_with("HTTP/1.1 200 "));
}
