//! Headers: what the gateway adds (`X-Forwarded-*`, `Via`), and hop-by-hop headers that it removes.

use rouse_e2e::client::raw::Raw;
use rouse_e2e::client::session::{self, Http};
use rouse_e2e::config::{App, Config};
use rouse_e2e::rouse::Rouse;
use rouse_e2e::target::Target;
use rouse_e2e::{programs, ways};
use serde_json::{Value, json};

/// What the app saw of a request with these header lines.
async fn seen(target: &Target, lines: &str) -> Value {
    let mut client = Raw::connect(target).await;
    client.send(format!("GET /headers HTTP/1.1\r\nHost: {}\r\n{lines}\r\n", target.host)).await;
    let (head, body) = client.response().await;
    assert_eq!(head.status, 200);
    serde_json::from_slice::<Value>(&body).unwrap()["headers"].clone()
}

ways!(what_the_client_says_reaches_the_app, App::http());
async fn what_the_client_says_reaches_the_app(target: Target) {
    let headers = seen(&target, "Accept: a\r\nX-Two: 1\r\nX-Two: 2\r\nCookie: k=v\r\nX-Empty:\r\n").await;
    assert_eq!(headers["host"], json!([target.host]), "the host is kept");
    assert_eq!(headers["accept"], json!(["a"]));
    assert_eq!(headers["x-two"], json!(["1", "2"]));
    assert_eq!(headers["cookie"], json!(["k=v"]));
    assert_eq!(headers["x-empty"], json!([""]));
}

/// A gateway with a warm app.
async fn gateway() -> (Rouse, Target) {
    let rouse = Rouse::start(&programs!(), Config::of(App::http().warm())).await;
    rouse.ready("app").await;
    let target = rouse.target(false);
    (rouse, target)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_app_gets_the_addresses_of_the_client_and_the_proxies() {
    let (rouse, target) = gateway().await;
    let headers = seen(&target, "").await;
    assert_eq!(headers["x-forwarded-for"], json!(["127.0.0.1"]));
    assert_eq!(headers["x-forwarded-host"], json!([target.host]));
    assert_eq!(headers["x-forwarded-proto"], json!(["http"]));
    let via = headers["via"][0].as_str().unwrap();
    assert!(via.starts_with("1.1 rouse-"), "{via}");
    assert_eq!(headers.get("traceparent"), None, "the gateway starts no trace of its own");
    // Loopback is trusted by default: the gateway keeps a front proxy's headers and appends to them.
    let before = "X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Proto: https\r\nVia: 1.0 fred\r\n\
                  Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    let headers = seen(&target, before).await;
    assert_eq!(headers["x-forwarded-for"], json!(["203.0.113.7, 127.0.0.1"]));
    assert_eq!(headers["x-forwarded-proto"], json!(["https"]));
    let via: Vec<&str> = headers["via"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(via.join(", ").starts_with("1.0 fred, 1.1 rouse-"), "{via:?}");
    assert_eq!(headers["traceparent"], json!(["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]));
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_can_set_our_headers() {
    let (rouse, target) = gateway().await;
    let headers = seen(&target, "X-Rouse-Cold-Start: true\r\nx-rouse-anything: 1\r\n").await;
    let ours: Vec<_> =
        headers.as_object().unwrap().keys().filter(|name| name.starts_with("x-rouse-")).collect();
    assert!(ours.is_empty(), "{ours:?}");
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_concerns_one_connection_stays_on_it() {
    let (rouse, target) = gateway().await;
    let lines = "Connection: keep-alive, X-Secret\r\nX-Secret: 1\r\nKeep-Alive: timeout=5\r\n\
                 Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eDp5\r\nTE: gzip\r\n";
    let headers = seen(&target, lines).await;
    for name in ["x-secret", "keep-alive", "proxy-connection", "proxy-authorization", "te"] {
        assert_eq!(headers[name], Value::Null, "{name}");
    }
    // An upgrade to h2c would let later requests bypass the gateway.
    let lines = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n";
    let headers = seen(&target, lines).await;
    for name in ["upgrade", "http2-settings"] {
        assert_eq!(headers[name], Value::Null, "{name}");
    }
    let whole = session::get(&target, "/headers").await;
    assert_eq!(whole.header("x-from-app"), "yes");
    for name in ["x-for-the-neighbour", "keep-alive", "proxy-authenticate"] {
        assert_eq!(whole.header(name), "", "{name} of the response");
    }
    assert!(!whole.header("connection").contains("neighbour"));
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_control_of_what_concerns_one_connection() {
    let pod = rouse_e2e::pod::Pod::start(&programs!(), &App::http()).await;
    let headers = seen(&pod.target, "Connection: X-Secret\r\nX-Secret: 1\r\nTE: gzip\r\n").await;
    assert_eq!((&headers["x-secret"], &headers["te"]), (&json!(["1"]), &json!(["gzip"])));
    let whole = session::get(&pod.target, "/headers").await;
    assert_eq!((whole.header("x-for-the-neighbour"), whole.header("keep-alive")), ("secret", "timeout=77"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_says_whether_it_was_a_cold_start() {
    let rouse = Rouse::start(&programs!(), Config::of(App::http())).await;
    let mut client = Http::one(&rouse.target(true)).await;
    assert_eq!(client.get("/").await.header("x-rouse-cold-start"), "true");
    assert_eq!(client.get("/").await.header("x-rouse-cold-start"), "false");
    assert_eq!(client.get("/status/500").await.header("x-rouse-cold-start"), "false");
    let elsewhere = session::get(&rouse.target(true).with_host("nobody.localhost"), "/").await;
    assert!(!elsewhere.headers.contains_key("x-rouse-cold-start"), "no pod was reached");
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_may_not_say_that_it_was_a_cold_start() {
    let (rouse, target) = gateway().await;
    let whole = session::get(&target, "/claims").await;
    assert_eq!(whole.header("x-rouse-cold-start"), "false");
    rouse.stop().await;
}
