//! The error table: for each row that can occur on one machine, the response to an HTTP client and to a gRPC client, and
//! the metrics.

#![expect(clippy::unwrap_used, reason = "tests, also where a check is a function of its own")]

use std::path::PathBuf;

use http::Method;
use rouse_e2e::body;
use rouse_e2e::client::grpc::{Grpc, Reply};
use rouse_e2e::client::raw::Raw;
use rouse_e2e::client::session::{self, FullResponse, Http};
use rouse_e2e::config::{App, Config};
use rouse_e2e::programs;
use rouse_e2e::rouse::Rouse;
use rouse_e2e::target::Target;
use rouse_e2e::wait::eventually;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::task::JoinSet;

/// A row of the table.
#[derive(Debug, Clone, Copy)]
struct Row {
    status: u16,
    code: &'static str,
    grpc: u32,
    retry_after: bool,
}

const fn row(status: u16, code: &'static str, grpc: u32) -> Row {
    Row { status, code, grpc, retry_after: false }
}

const NO_ROUTE: Row = row(404, "no_route", 12);
const QUEUE_FULL: Row = Row { retry_after: true, ..row(503, "queue_full", 8) };
const READINESS_TIMEOUT: Row = row(504, "readiness_timeout", 4);
const CONNECT_FAILED: Row = row(502, "connect_failed", 14);
const UPSTREAM_RESET: Row = row(502, "upstream_reset", 14);
const RESPONSE_TIMEOUT: Row = row(504, "response_timeout", 4);
const REQUEST_TIMEOUT: Row = row(504, "request_timeout", 4);
const BAD_REQUEST: Row = row(400, "bad_request", 13);
const LOOP: Row = row(508, "loop", 13);
const SHUTTING_DOWN: Row = Row { retry_after: true, ..row(503, "shutting_down", 14) };

impl Row {
    fn heard(&self, whole: &FullResponse) {
        let retry_after = whole.headers.contains_key("retry-after");
        assert_eq!(
            (whole.status.as_u16(), whole.header("x-rouse-error"), retry_after),
            (self.status, self.code, self.retry_after),
            "{whole:?}"
        );
        assert!(whole.header("content-type").starts_with("text/plain"), "{whole:?}");
        assert!((1..4096).contains(&whole.body.len()), "a short text: {whole:?}");
        assert!(
            !whole.headers.contains_key("x-rouse-cold-start"),
            "only a pod's response has this header: {whole:?}"
        );
    }

    async fn heard_by_grpc(&self, mut reply: Reply) {
        assert_eq!(reply.status, 200);
        assert_eq!(reply.headers["content-type"], "application/grpc");
        assert_eq!(reply.headers["grpc-status"], self.grpc.to_string(), "the status is in the headers");
        assert_eq!(reply.headers["x-rouse-error"], self.code);
        assert!(reply.rest().await.is_empty());
        assert!(!reply.outcome().await.1.is_empty(), "a message for people");
    }

    /// Waits until the metrics count `more` requests of this row's status than `before`.
    async fn booked(&self, rouse: &Rouse, before: f64, more: f64) {
        eventually(&format!("{more} more requests of {} than {before}", self.status), async || {
            let now = rouse.admin.requests(&self.status.to_string()).await;
            ((now - before - more).abs() < f64::EPSILON).then_some(())
        })
        .await;
    }

    /// GET over HTTP/1.1 and HTTP/2, and a gRPC call: all three get this row, and the metrics count three requests.
    async fn check(&self, rouse: &Rouse, target: &Target, path: &str) {
        let before = rouse.admin.requests(&self.status.to_string()).await;
        // Concurrently: a pod may fail only for a short time.
        tokio::join!(
            async { self.heard(&session::get(target, path).await) },
            async { self.heard(&Http::two(target).await.get(path).await) },
            async { self.heard_by_grpc(Grpc::connect(target).await.unary(path, b"").await).await },
        );
        self.booked(rouse, before, 3.0).await;
    }
}

async fn start(app: App) -> (Rouse, Target) {
    start_with(Config::of(app)).await
}

async fn start_with(config: Config) -> (Rouse, Target) {
    let rouse = Rouse::start(&programs!(), config).await;
    let target = rouse.target(true);
    (rouse, target)
}

/// An app that listens only after [`Gated::open`].
struct Gated {
    app: App,
    gate: PathBuf,
    _dir: TempDir,
}

impl Gated {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let gate = dir.path().join("open");
        Self { app: App::http().env("START_GATE", gate.display()), gate, _dir: dir }
    }

    fn open(&self) {
        std::fs::write(&self.gate, "").unwrap();
    }
}

async fn holds(rouse: &Rouse, count: u64) {
    rouse.admin.until("app", &format!("{count} holds"), |service| service.holds == count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_a_route_is_no_route() {
    let (rouse, target) = start(App::http()).await;
    NO_ROUTE.check(&rouse, &target.with_host("nobody.localhost"), "/").await;
    assert_eq!(rouse.admin.service("app").await.state, "zero", "no app was woken");
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_hold_more_than_the_queue_takes_is_refused_and_the_others_are_served() {
    let gated = Gated::new();
    // `--max-holds`: how many requests may wait for one service.
    let (rouse, target) = start_with(Config::of(gated.app.clone()).flag("--max-holds", "2")).await;
    let held = session::get_many(&target, "/", 2);
    holds(&rouse, 2).await;
    QUEUE_FULL.check(&rouse, &target, "/").await;
    assert_eq!(rouse.admin.service("app").await.holds, 2);
    gated.open();
    assert!(held.join_all().await.iter().all(|answer| answer.status == 200));
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_that_never_listens_is_a_readiness_timeout_that_says_why() {
    let (rouse, target) = start(App::http().env("NEVER_LISTEN", 1).timeout("readiness", "1s")).await;
    READINESS_TIMEOUT.check(&rouse, &target, "/").await;
    let text = session::get(&target, "/").await.text();
    assert!(text.contains("I shall never listen"), "the app's last line is missing: {text:?}");
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_stops_listening_is_a_failed_connection() {
    // `CLOSE_AFTER` counts one connection: the probe's.
    let app =
        App::http().warm().env("CLOSE_AFTER", 1).timeout("readiness", "300ms").timeout("connect", "100ms");
    let (rouse, target) = start(app).await;
    let closed = |line: &str| line.contains("listens no more").then_some(());
    rouse.output.find("the app to close its listener", closed).await;
    CONNECT_FAILED.check(&rouse, &target, "/").await;
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_request_and_tls_on_a_plain_port_are_bad_requests() {
    let (rouse, target) = start(App::http()).await;
    let before = rouse.admin.requests("400").await;
    for bad in ["GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02\0\x01\0"] {
        let mut client = Raw::connect(&target).await;
        client.send(bad).await;
        let head = client.head().await;
        assert_eq!(
            (head.status, head.header("x-rouse-error")),
            (BAD_REQUEST.status, BAD_REQUEST.code),
            "{head:?}"
        );
        assert!(head.header("content-type").starts_with("text/plain"), "{head:?}");
    }
    BAD_REQUEST.booked(&rouse, before, 2.0).await;
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_hangs_up_is_an_upstream_reset() {
    for app in [App::http(), App::h2c()] {
        let (rouse, target) = start(app).await;
        assert_eq!(session::get(&target, "/").await.status, 200);
        // POST: a request that may have had an effect is not retried.
        let before = rouse.admin.requests("502").await;
        let requests = target.stat("requests").await;
        UPSTREAM_RESET.heard(&Http::one(&target).await.post("/reset", body::full("x")).await);
        UPSTREAM_RESET.heard(&Http::two(&target).await.post("/reset", body::full("x")).await);
        UPSTREAM_RESET.heard_by_grpc(Grpc::connect(&target).await.unary("/reset", b"").await).await;
        UPSTREAM_RESET.booked(&rouse, before, 3.0).await;
        assert_eq!(target.stat("requests").await - requests, 4, "three requests, and the one for /stats");
        rouse.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_dies_is_an_upstream_reset_and_the_next_request_gets_a_new_one() {
    let (rouse, target) = start(App::http()).await;
    let first = session::get(&target, "/stats").await.json()["pid"].clone();
    UPSTREAM_RESET.heard(&Http::one(&target).await.post("/die", body::full("x")).await);
    let second = session::get(&target, "/stats").await;
    assert_eq!(second.status, 200);
    assert_ne!(second.json()["pid"], first);
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_does_not_answer_is_a_response_timeout() {
    for app in [App::http(), App::h2c()] {
        let (rouse, target) = start(app.timeout("response-header", "1s")).await;
        assert_eq!(
            session::get(&target, "/").await.status,
            200,
            "the response timeout does not include the start"
        );
        RESPONSE_TIMEOUT.check(&rouse, &target, "/hang").await;
        target.until("in_flight", |requests| requests == 1).await;
        rouse.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_takes_too_long_is_a_request_timeout() {
    let (rouse, target) = start(App::http().warm().timeout("request", "2s")).await;
    rouse.ready("app").await;
    REQUEST_TIMEOUT.check(&rouse, &target, "/hang").await;
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_takes_too_long_is_cut_and_no_text_of_ours_is_in_it() {
    let (rouse, target) = start(App::http().warm().timeout("request", "2s")).await;
    rouse.ready("app").await;
    let before = rouse.admin.requests("504").await;
    let mut client = Raw::connect(&target).await;
    client.get(&target, "/sse/9/next").await;
    assert_eq!(client.head().await.status, 200);
    assert_eq!(
        client.ended().await,
        "9\r\ndata: 1\n\n\r\n",
        "the body ends after the first event, without a last chunk"
    );
    let mut client = Http::two(&target).await;
    let request = client.request(Method::GET, "/sse/9/next").body(body::empty()).unwrap();
    let response = client.send(request).await;
    assert_eq!(response.status(), 200);
    assert!(session::whole(response).await.is_err(), "a truncated stream must not look complete");
    target.until("cancelled", |streams| streams == 2).await;
    REQUEST_TIMEOUT.booked(&rouse, before, 2.0).await;
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_comes_back_to_us_is_a_loop() {
    let (rouse, target) = start(App::http()).await;
    // The `Via` that the gateway adds is what it finds on a request that loops back.
    let seen = session::get(&target, "/headers").await.json();
    let via = seen["headers"]["via"][0].as_str().unwrap().to_owned();
    let before = rouse.admin.requests("508").await;
    for mut client in [Http::one(&target).await, Http::two(&target).await] {
        let request = client.request(Method::GET, "/").header("via", format!("1.0 other, {via}"));
        LOOP.heard(&client.whole(request.body(body::empty()).unwrap()).await);
    }
    let mut client = Http::two(&target).await;
    let request = client.request(Method::POST, "/test.Echo/Unary").header("via", via);
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    let reply = client.whole(request.body(body::empty()).unwrap()).await;
    assert_eq!((reply.status.as_u16(), reply.header("grpc-status")), (200, "13"), "{reply:?}");
    assert_eq!(reply.header("x-rouse-error"), "loop", "{reply:?}");
    LOOP.booked(&rouse, before, 3.0).await;
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_still_held_when_the_drain_ends_hears_that_we_leave() {
    let gated = Gated::new();
    let (rouse, target) = start_with(Config::of(gated.app.clone()).flag("--drain-timeout", "1s")).await;
    let held = session::get_many(&target, "/", 3);
    let mut by_grpc = JoinSet::new();
    by_grpc.spawn(async move {
        SHUTTING_DOWN.heard_by_grpc(Grpc::connect(&target).await.unary("/test.Echo/Unary", b"").await).await;
    });
    holds(&rouse, 4).await;
    let children = rouse.children();
    rouse.signal(Signal::TERM);
    held.join_all().await.iter().for_each(|answer| SHUTTING_DOWN.heard(answer));
    by_grpc.join_all().await;
    rouse.stopped(&children).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_held_while_we_drain_is_still_served() {
    let gated = Gated::new();
    let (rouse, target) = start(gated.app.clone()).await;
    let held = session::get_many(&target, "/", 1);
    holds(&rouse, 1).await;
    let children = rouse.children();
    rouse.signal(Signal::TERM);
    eventually("not ready any more", async || (rouse.admin.get("/readyz").await.status == 503).then_some(()))
        .await;
    gated.open();
    assert_eq!(held.join_all().await[0].status, 200);
    rouse.stopped(&children).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_client_that_leaves_gives_up_its_place_and_is_not_counted_as_a_failure() {
    let gated = Gated::new();
    let (rouse, target) = start(gated.app.clone()).await;
    let mut one = Raw::connect(&target).await;
    one.get(&target, "/").await;
    let mut two = JoinSet::new();
    let stream = target.clone();
    two.spawn(async move { Http::two(&stream).await.get("/").await.status });
    holds(&rouse, 2).await;
    one.reset();
    holds(&rouse, 1).await;
    two.shutdown().await;
    holds(&rouse, 0).await;
    counted_as_gone(&rouse, 2.0).await;
    gated.open();
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_before_the_answer_is_not_counted_as_a_failure() {
    for app in [App::http(), App::h2c()] {
        let (rouse, target) = start(app).await;
        assert_eq!(session::get(&target, "/").await.status, 200);
        let mut client = Raw::connect(&target).await;
        client.get(&target, "/hang").await;
        // The request itself, and the one for `/stats`.
        target.until("in_flight", |requests| requests == 2).await;
        client.reset();
        target.until("in_flight", |requests| requests == 1).await;
        counted_as_gone(&rouse, 1.0).await;
        rouse.stop().await;
    }
}

/// The metrics count 499s, and no 5xx.
async fn counted_as_gone(rouse: &Rouse, clients: f64) {
    eventually("499 in the metrics", async || {
        let gone = rouse.admin.requests("499").await;
        ((gone - clients).abs() < f64::EPSILON).then_some(())
    })
    .await;
    for code in ["500", "502", "503", "504"] {
        assert!(rouse.admin.requests(code).await.abs() < f64::EPSILON, "a {code} in the metrics");
    }
}
