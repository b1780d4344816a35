//! HTTP/1.1 trailers of requests and responses.

use http::{HeaderMap, HeaderValue, Method, header};
use rouse_e2e::body;
use rouse_e2e::client::raw::Raw;
use rouse_e2e::client::session::Http;
use rouse_e2e::config::App;
use rouse_e2e::target::Target;
use rouse_e2e::ways;

ways!(a_response_keeps_its_trailers, App::http());
async fn a_response_keeps_its_trailers(target: Target) {
    let mut client = Raw::connect(&target).await;
    client.send(format!("GET /trailers HTTP/1.1\r\nHost: {}\r\nTE: trailers\r\n\r\n", target.host)).await;
    let head = client.head().await;
    assert!(head.chunked(), "{head:?}");
    assert_eq!(head.header("trailer"), "x-checksum, x-colour");
    let mut body = Vec::new();
    while let Some(chunk) = client.chunk().await {
        body.extend_from_slice(&chunk);
    }
    let trailers = client.trailers().await;
    assert_eq!(body, b"before the trailers\n");
    assert_eq!(trailers["x-checksum"], "12345");
    assert_eq!(trailers["x-colour"], "blue");
}

ways!(a_request_keeps_its_trailers, App::http());
async fn a_request_keeps_its_trailers(target: Target) {
    let mut client = Raw::connect(&target).await;
    let head = format!(
        "POST /sink HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n",
        target.host
    );
    client.send(head + "3\r\nabc\r\n0\r\nx-sum: 77\r\n\r\n").await;
    let (head, sunk) = client.json().await;
    assert_eq!((head.status, &sunk["count"], &sunk["trailers"]["x-sum"]), (200, &3.into(), &"77".into()));
}

ways!(trailers_come_back_as_they_went, App::http());
async fn trailers_come_back_as_they_went(target: Target) {
    round_trip(Http::one(&target).await).await;
}

ways!(trailers_of_http_2_pass_a_pod_of_http_1, App::http());
async fn trailers_of_http_2_pass_a_pod_of_http_1(target: Target) {
    round_trip(Http::two(&target).await).await;
}

ways!(trailers_of_http_1_pass_a_pod_of_http_2, App::h2c());
async fn trailers_of_http_1_pass_a_pod_of_http_2(target: Target) {
    round_trip(Http::one(&target).await).await;
}

async fn round_trip(mut client: Http) {
    let (feed, body) = body::channel();
    let request = client
        .request(Method::POST, "/echo")
        .header(header::TE, "trailers")
        .header(header::TRAILER, "x-sum")
        .body(body)
        .unwrap();
    let feeding = async {
        feed.data("abc").await.unwrap();
        feed.trailers(HeaderMap::from_iter([(
            http::HeaderName::from_static("x-sum"),
            HeaderValue::from_static("77"),
        )]))
        .await
        .unwrap();
        drop(feed);
    };
    let (whole, ()) = tokio::join!(client.whole(request), feeding);
    assert_eq!(whole.body, "abc");
    assert_eq!(whole.trailers.get("x-sum").unwrap(), "77");
}
