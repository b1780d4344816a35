//! `rouse sidecar` as a process in front of the test app: limits, probes, timeouts, headers and the drain.

use std::net::{Ipv4Addr, SocketAddr};

use rouse_e2e::body;
use rouse_e2e::client::load::Load;
use rouse_e2e::client::raw::Raw;
use rouse_e2e::client::session::{self, Http};
use rouse_e2e::config::{App, Config};
use rouse_e2e::pod::Pod;
use rouse_e2e::programs;
use rouse_e2e::rouse::Rouse;
use rouse_e2e::sidecar::Sidecar;
use rouse_e2e::target::Target;
use rouse_e2e::wait::{eventually, within};
use rustix::process::Signal;

/// How many requests the load tests send; `ROUSE_LOAD_REQUESTS` sets another number.
fn requests() -> u64 {
    std::env::var("ROUSE_LOAD_REQUESTS").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

async fn with_app(app: App, flags: &[(&str, &dyn std::fmt::Display)]) -> (Pod, Sidecar) {
    let pod = Pod::start(&programs!(), &app).await;
    let sidecar = Sidecar::start(&programs!(), pod.target.address, flags).await;
    sidecar.health(200).await;
    (pod, sidecar)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_app_never_has_more_requests_than_its_limit_and_all_are_answered() {
    let (pod, sidecar) = with_app(App::http().env("LIMIT", 3), &[("--concurrency", &3)]).await;
    let answers = session::get_many(&sidecar.target, "/slow/20", 30).join_all().await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    assert_eq!(pod.target.stat("over_limit").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_times_the_limit_wait_and_more_get_503() {
    let (pod, sidecar) = with_app(App::http(), &[("--concurrency", &1)]).await;
    let waiting = session::get_many(&sidecar.target, "/wait", 11);
    eventually("ten requests to wait", async || {
        let holds = sidecar.admin.metrics().await.sum("rouse_holds", &[]);
        (holds >= 10.0).then_some(())
    })
    .await;
    let refused = session::get(&sidecar.target, "/").await;
    assert_eq!((refused.status.as_u16(), refused.header("x-rouse-error")), (503, "queue_full"));
    for _ in 0..11 {
        pod.target.next().await;
    }
    let answers = within("the held requests", waiting.join_all()).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_app_is_found_ready_without_the_kubelet_and_requests_wait_for_it() {
    let gate = tempfile::tempdir().unwrap();
    let file = gate.path().join("open");
    let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let sidecar = Sidecar::start(&programs!(), free, &[("--probe", &"http:/healthz")]).await;
    assert_eq!(sidecar.admin.get("/healthz").await.status, 503);
    let waiting = session::get_many(&sidecar.target, "/", 1);
    let mut app = tokio::process::Command::new(programs!().app);
    let mut app = app.env("HOST", "127.0.0.1").env("PORT", free.port().to_string());
    app = app.env("START_GATE", &file).kill_on_drop(true);
    let _app = app.spawn().unwrap();
    std::fs::write(&file, "").unwrap();
    sidecar.health(200).await;
    assert_eq!(within("the answer", waiting.join_all()).await[0].status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarding_and_trace_headers_stay_as_the_gateway_set_them() {
    let (_pod, sidecar) = with_app(App::http(), &[]).await;
    let sent = [
        ("x-forwarded-for", "203.0.113.7, 10.0.0.9"),
        ("x-forwarded-host", "shop.example.com"),
        ("x-forwarded-proto", "https"),
        ("via", "1.1 rouse-7f"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "vendor=1"),
    ];
    let answer = session::get_with(&sidecar.target, "/headers", &sent).await;
    let text = answer.text().to_lowercase();
    for (name, value) in sent {
        assert_eq!(text.matches(name).count(), 1, "{name} in {text}");
        assert!(text.contains(&value.to_lowercase()), "{name}: {value} in {text}");
    }
    assert!(!text.contains("x-rouse"), "{text}");
    assert_eq!(answer.header("x-rouse-cold-start"), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_response_is_504_and_a_late_end_aborts_the_stream() {
    let flags: [(&str, &dyn std::fmt::Display); 2] =
        [("--response-header-timeout", &"200ms"), ("--request-timeout", &"1s")];
    let (_pod, sidecar) = with_app(App::http(), &flags).await;
    let late = session::get(&sidecar.target, "/hang").await;
    assert_eq!((late.status.as_u16(), late.header("x-rouse-error")), (504, "response_timeout"));
    // An endless stream of events begins, and is cut off without a text of ours.
    let mut client = Raw::connect(&sidecar.target).await;
    client.get(&sidecar.target, "/sse/1000/50").await;
    let head = client.head().await;
    assert_eq!(head.status, 200);
    let rest = String::from_utf8_lossy(&client.ended().await).into_owned();
    assert!(rest.contains("data: 1") && !rest.contains("timeout") && !rest.ends_with("0\r\n\r\n"), "{rest}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_by_signal_answers_what_is_under_way() {
    let (pod, mut sidecar) = with_app(App::http(), &[("--drain-quiet", &"0")]).await;
    let waiting = session::get_many(&sidecar.target, "/wait", 3);
    pod.target.until("in_flight", |requests| requests == 4).await;
    sidecar.signal(Signal::TERM);
    sidecar.health(503).await;
    // It still serves new requests.
    assert_eq!(session::get(&sidecar.target, "/").await.status, 200);
    for _ in 0..3 {
        pod.target.next().await;
    }
    assert!(waiting.join_all().await.iter().all(|answer| answer.status == 200));
    assert_eq!(sidecar.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_hooks_answer_when_the_drain_is_over_and_the_process_ends_by_signal() {
    for hook in ["/drain", "/wait-for-drain"] {
        let (pod, mut sidecar) = with_app(App::http(), &[("--drain-quiet", &"10ms")]).await;
        let waiting = session::get_many(&sidecar.target, "/wait", 1);
        pod.target.until("in_flight", |requests| requests == 2).await;
        let hooked = session::get_many(&Target::plain(sidecar.admin.address()), hook, 1);
        sidecar.health(503).await;
        assert_eq!(waiting.len(), 1, "the drain waits for the request");
        pod.target.next().await;
        assert_eq!(waiting.join_all().await[0].status, 200);
        let drained = within("the hook", hooked.join_all()).await;
        assert_eq!((drained[0].status.as_u16(), &*drained[0].text()), (200, "drained\n"), "{hook}");
        assert_eq!(session::get(&sidecar.target, "/").await.status, 200, "it lives on");
        sidecar.signal(Signal::TERM);
        assert_eq!(sidecar.ended().await, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_connections_to_the_admin_address_do_not_end_a_hook_that_waits() {
    let (pod, sidecar) = with_app(App::http(), &[("--drain-quiet", &"0")]).await;
    let waiting = session::get_many(&sidecar.target, "/wait", 1);
    pod.target.until("in_flight", |requests| requests == 2).await;
    let admin = Target::plain(sidecar.admin.address());
    let hooked = session::get_many(&admin, "/drain", 1);
    sidecar.health(503).await;
    let mut others = Vec::new();
    for _ in 0..100 {
        let mut other = Raw::connect(&admin).await;
        other.get(&admin, "/metrics").await;
        assert_eq!(other.head().await.status, 200);
        others.push(other);
    }
    pod.target.next().await;
    assert_eq!(waiting.join_all().await[0].status, 200);
    let drained = within("the hook", hooked.join_all()).await;
    assert_eq!((drained[0].status.as_u16(), &*drained[0].text()), (200, "drained\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_this_pod_or_the_secret_opens_the_hooks() {
    // The machine's own address stands for that of another pod: its connections do not come from loopback.
    let probe = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let own = probe.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).and_then(|()| probe.local_addr());
    let own =
        own.unwrap_or_else(|error| panic!("this test needs an address that is not loopback: {error}")).ip();
    let secret = "0123456789abcdef";
    let flags: [(&str, &dyn std::fmt::Display); 3] =
        [("--admin", &"0.0.0.0:0"), ("--drain-secret", &secret), ("--drain-quiet", &"0")];
    let (_pod, sidecar) = with_app(App::http(), &flags).await;
    let from_elsewhere = Target::plain(SocketAddr::new(own, sidecar.admin.address().port()));
    for headers in [&[][..], &[("x-rouse-drain-secret", "0123456789abcdeF")], &[("x-rouse-drain-secret", "")]]
    {
        for hook in ["/drain", "/wait-for-drain"] {
            let refused = session::get_with(&from_elsewhere, hook, headers).await;
            assert_eq!(refused.status, 403, "{hook} {headers:?}: {}", refused.text());
        }
    }
    assert_eq!(sidecar.admin.get("/drain").await.status, 403, "loopback needs the secret as well");
    assert_eq!(sidecar.admin.get("/healthz").await.status, 200, "no drain has begun");
    let drained = session::get_with(&from_elsewhere, "/drain", &[("x-rouse-drain-secret", secret)]).await;
    assert_eq!(drained.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_without_a_signal_ends_the_process_when_the_grace_period_is_over() {
    for hook in ["/drain", "/wait-for-drain"] {
        let flags: [(&str, &dyn std::fmt::Display); 2] = [("--grace-period", &"1s"), ("--drain-quiet", &"0")];
        let (_pod, mut sidecar) = with_app(App::http(), &flags).await;
        assert_eq!(sidecar.admin.get(hook).await.status, 200);
        assert_eq!(
            session::get(&sidecar.target, "/").await.status,
            200,
            "{hook}: the pod may still get a signal"
        );
        assert_eq!(sidecar.ended().await, Some(0), "{hook}: the kubelet starts the container again");
        let lines = sidecar.output.lines();
        assert!(lines.iter().any(|line| line.contains("no signal came")), "{lines:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_of_another_site_starts_a_drain_through_a_browser() {
    let (_pod, sidecar) = with_app(App::http(), &[("--drain-quiet", &"0")]).await;
    let admin = Target::plain(sidecar.admin.address());
    for site in ["cross-site", "same-site", "", "None"] {
        for hook in ["/drain", "/wait-for-drain"] {
            let refused = session::get_with(&admin, hook, &[("sec-fetch-site", site)]).await;
            assert_eq!(refused.status, 403, "{hook} {site:?}: {}", refused.text());
        }
    }
    assert_eq!(sidecar.admin.get("/healthz").await.status, 200, "no drain has begun");
    for site in ["none", "same-origin"] {
        assert_eq!(session::get_with(&admin, "/drain", &[("sec-fetch-site", site)]).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn near_the_end_of_the_grace_period_new_requests_are_refused() {
    let flags: [(&str, &dyn std::fmt::Display); 2] = [("--grace-period", &"2s"), ("--drain-quiet", &"30s")];
    let (pod, mut sidecar) = with_app(App::http(), &flags).await;
    // Keeps the drain going until its end.
    let mut stuck = Raw::connect(&sidecar.target).await;
    stuck.get(&sidecar.target, "/hang").await;
    pod.target.until("in_flight", |requests| requests == 2).await;
    sidecar.signal(Signal::TERM);
    let refused = eventually("a refusal", async || {
        let answer = session::try_get(&sidecar.target, "/").await.ok()?;
        (answer.status != 200).then_some(answer)
    })
    .await;
    assert_eq!((refused.status.as_u16(), refused.header("x-rouse-refused")), (503, "draining"));
    assert_eq!(refused.header("connection"), "close");
    assert_eq!(sidecar.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_refused_stream_over_http2_and_over_http1_a_503_before_the_body_is_read() {
    let flags: [(&str, &dyn std::fmt::Display); 2] = [("--grace-period", &"8s"), ("--drain-quiet", &"0")];
    let (pod, mut sidecar) = with_app(App::http(), &flags).await;
    let mut two = Http::two(&sidecar.target).await;
    // By a hook: the process goes on until the very end of the grace period.
    assert_eq!(sidecar.admin.get("/drain").await.status, 200);
    let refused = eventually("a refusal", async || {
        let request = two.request(http::Method::GET, "/").body(body::empty()).unwrap();
        match two.try_send(request).await {
            Ok(response) => {
                assert_eq!(response.status(), 200, "over HTTP/2, no response says that a request is refused");
                session::whole(response).await.unwrap();
                None
            }
            Err(error) => Some(format!("{error:?}")),
        }
    })
    .await;
    assert!(refused.contains("Reset(") && refused.contains("REFUSED_STREAM"), "{refused}");
    let mut one = Raw::connect(&sidecar.target).await;
    one.send(format!("POST / HTTP/1.1\r\nHost: {}\r\nContent-Length: 5\r\n\r\n", sidecar.target.host)).await;
    let head = one.head().await;
    let said = (head.status, head.header("x-rouse-refused"), head.header("connection"));
    assert_eq!(said, (503, "draining", "close"));
    assert_eq!(sidecar.ended().await, Some(0));
    drop(pod);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_with_a_sidecar_is_ready_by_its_own_push() {
    let rouse = Rouse::start(&programs!(), Config::of(App::http().sidecar().warm())).await;
    let service = rouse
        .admin
        .until("app", "a pod that pushed", |service| {
            service
                .endpoints
                .iter()
                .any(|pod| (&*pod.state, pod.source.as_deref()) == ("Ready", Some("push")))
        })
        .await;
    assert_eq!(service.endpoints.len(), 1);
    let metrics = rouse.admin.metrics().await;
    let labels = [("service", "local/app"), ("event_type", "ready"), ("result", "accepted")];
    assert!(metrics.sum("pod_registration_attempts_total", &labels) >= 1.0);
    assert_eq!(session::get(&rouse.target(false), "/").await.status, 200);
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_pods_with_sidecars_under_load_loses_nothing() {
    let rouse = Rouse::start(&programs!(), Config::of(App::http().sidecar().warm())).await;
    rouse.ready("app").await;
    let load = Load::on(&rouse.target(false), 100);
    load.flows(requests() / 3).await;
    let restarted = rouse.ask(&programs!(), &["restart", "app"]).await;
    assert_eq!(restarted.code, Some(0), "{restarted:?}");
    load.flows(requests()).await;
    load.stop().await.assert_perfect();
    rouse.stop().await;
}
