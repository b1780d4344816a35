//! HTTP/1.1 and 1.0 on the wire: pipelining, keep-alive, framing, HEAD, and bodies that end early.

use http::{Method, Request};
use rouse_e2e::body::{self, Body};
use rouse_e2e::client::curl::curl;
use rouse_e2e::client::raw::Raw;
use rouse_e2e::client::session::Http;
use rouse_e2e::config::App;
use rouse_e2e::pattern;
use rouse_e2e::target::Target;
use rouse_e2e::ways;

ways!(a_connection_is_kept_until_the_client_says_close, App::http());
async fn a_connection_is_kept_until_the_client_says_close(target: Target) {
    let mut client = Raw::connect(&target).await;
    for len in [0, 1, 10_000] {
        client.get(&target, &format!("/bytes/{len}")).await;
        let (head, body) = client.response().await;
        assert_eq!((head.status, &*head.version), (200, "HTTP/1.1"));
        assert_eq!(head.header("content-length"), len.to_string());
        assert_eq!(body, pattern::whole(len));
    }
    client.send(format!("GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", target.host)).await;
    let (head, _) = client.response().await;
    assert_eq!((head.status, head.header("connection")), (200, "close"));
    assert_eq!(client.ended().await, "", "nothing comes after the last response");
}

ways!(a_pods_connection_is_used_again, App::http());
async fn a_pods_connection_is_used_again(target: Target) {
    let mut client = Http::one(&target).await;
    assert_eq!(client.get("/").await.status, 200);
    let before = client.get("/stats").await.json()["connections"].clone();
    for _ in 0..10 {
        assert_eq!(client.get("/").await.status, 200);
    }
    assert_eq!(
        client.get("/stats").await.json()["connections"],
        before,
        "requests in a row need one connection"
    );
}

ways!(http_1_0_gets_an_answer_it_understands, App::http());
async fn http_1_0_gets_an_answer_it_understands(target: Target) {
    for path in ["/bytes/1000", "/chunked/10/100"] {
        let mut client = Raw::connect(&target).await;
        client.send(format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", target.host)).await;
        let head = client.head().await;
        assert_eq!(head.status, 200);
        assert!(!head.headers.contains_key("transfer-encoding"), "{path}: a chunked response to HTTP/1.0");
        assert_eq!(client.ended().await, pattern::whole(1000), "{path}");
    }
}

ways!(pipelined_requests_are_answered_in_order, App::http());
async fn pipelined_requests_are_answered_in_order(target: Target) {
    let mut client = Raw::connect(&target).await;
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", target.host);
    let post = format!("POST /sink HTTP/1.1\r\nHost: {}\r\nContent-Length: 3\r\n\r\n", target.host);
    let mut all = request("/slow/50").into_bytes();
    all.extend_from_slice(request("/order").as_bytes());
    all.extend_from_slice(post.as_bytes());
    all.extend_from_slice(&pattern::whole(3));
    all.extend_from_slice(request("/order").as_bytes());
    client.send(all).await;
    assert_eq!(client.response().await.1, "slow\n");
    assert_eq!(client.response().await.1, "1\n");
    let sunk: serde_json::Value = serde_json::from_slice(&client.response().await.1).unwrap();
    assert_eq!((&sunk["count"], &sunk["intact"]), (&3.into(), &true.into()));
    assert_eq!(client.response().await.1, "2\n");
}

ways!(chunks_pass_both_ways, App::http());
async fn chunks_pass_both_ways(target: Target) {
    let mut client = Raw::connect(&target).await;
    let head = format!("POST /echo HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n", target.host);
    client.send(head + "5\r\nhello\r\n1;colour=red\r\n \r\n5\r\nworld\r\n0\r\n\r\n").await;
    let head = client.head().await;
    assert!(head.chunked(), "{head:?}");
    assert_eq!(client.body(&head).await, "hello world");
    // The connection is still in sync.
    client.get(&target, "/bytes/3").await;
    assert_eq!(client.response().await.1, pattern::whole(3));
}

ways!(a_half_written_request_is_waited_for, App::http());
async fn a_half_written_request_is_waited_for(target: Target) {
    let mut client = Raw::connect(&target).await;
    let head = format!("POST /sink HTTP/1.1\r\nHost: {}\r\nContent-Length: 10\r\n\r\n", target.host);
    let (first, second) = head.split_at(head.len() / 2);
    client.send(first).await;
    assert!(client.silent().await);
    client.send(second).await;
    client.send(&pattern::whole(10)[..4]).await;
    assert!(client.silent().await, "no answer before the body");
    client.send(&pattern::whole(10)[4..]).await;
    let (head, sunk) = client.json().await;
    assert_eq!((head.status, &sunk["count"], &sunk["intact"]), (200, &10.into(), &true.into()));
}

ways!(head_says_the_length_and_sends_nothing, App::http());
async fn head_says_the_length_and_sends_nothing(target: Target) {
    let mut client = Raw::connect(&target).await;
    client.send(format!("HEAD /bytes/1234 HTTP/1.1\r\nHost: {}\r\n\r\n", target.host)).await;
    let head = client.head().await;
    assert_eq!((head.status, head.header("content-length")), (200, "1234"));
    client.send(format!("HEAD /chunked/3/10 HTTP/1.1\r\nHost: {}\r\n\r\n", target.host)).await;
    assert_eq!(client.head().await.status, 200);
    // A body of the previous response would be read here.
    client.get(&target, "/bytes/3").await;
    assert_eq!(client.response().await.1, pattern::whole(3));
}

ways!(what_has_no_body_gets_none, App::http());
async fn what_has_no_body_gets_none(target: Target) {
    let mut client = Raw::connect(&target).await;
    for code in [204, 304] {
        client.get(&target, &format!("/status/{code}")).await;
        let head = client.head().await;
        assert_eq!((head.status, head.header("x-from-app")), (code, "yes"));
        assert!(!head.chunked(), "{head:?}");
    }
    client.get(&target, "/bytes/3").await;
    assert_eq!(client.response().await.1, pattern::whole(3));
}

ways!(every_status_and_method_passes, App::http());
async fn every_status_and_method_passes(target: Target) {
    let mut client = Http::one(&target).await;
    for code in [200, 201, 301, 400, 404, 418, 429, 500, 502, 503, 504, 599] {
        let whole = client.get(&format!("/status/{code}")).await;
        assert_eq!((whole.status.as_u16(), whole.header("x-from-app")), (code, "yes"));
        assert_eq!(whole.header("x-rouse-error"), "", "the gateway does not mark an app's error as its own");
    }
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request: Request<Body> =
            client.request(method.clone(), "/headers?a=b%20c").body(body::empty()).unwrap();
        let seen = client.whole(request).await.json();
        assert_eq!((&seen["method"], &seen["uri"]), (&method.as_str().into(), &"/headers?a=b%20c".into()));
    }
}

ways!(a_cut_response_is_cut_for_the_client_too, App::http());
async fn a_cut_response_is_cut_for_the_client_too(target: Target) {
    let mut client = Raw::connect(&target).await;
    client.get(&target, "/cut/1000").await;
    let head = client.head().await;
    assert_eq!((head.status, head.header("content-length")), (200, "1000"));
    let came = client.ended().await;
    assert!(came.len() <= 500, "{} bytes of 500", came.len());
    assert_eq!(came, pattern::whole(came.len()), "the gateway adds no text to the pod's body");
}

ways!(curl_is_content, App::http());
async fn curl_is_content(target: Target) {
    let sunk = curl(&target, "/sink", &["--data-binary", "hello", "--http1.1"]).await;
    assert!(sunk.contains("\"count\":5"), "{sunk}");
    let printed = curl(&target, "/bytes/5", &["--head"]).await.to_lowercase();
    assert!(printed.contains("content-length: 5"), "{printed}");
    let echoed = curl(&target, "/echo", &["--http2-prior-knowledge", "--data-binary", "over two"]).await;
    assert_eq!(echoed, "over two");
}
