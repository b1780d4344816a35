//! The admin API in-process, with a real registry and gateway, and fake apps.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is how a test fails")]

mod ask;
mod flood;
mod scene;
mod server;

use rouse_core::snapshot::ConcurrencyLimits;
use rouse_core::start_failure::{StartFailure, StartFailureCause};
use rouse_testkit::fakes::{DRAINING, READY, STARTING, ready_slice, slice};
use rouse_testkit::slot_requests::{Request, line};
use scene::{Scene, app, pod_status};
use serde_json::{Value, json};

#[tokio::test]
async fn readiness_follows_what_it_is_told_and_life_goes_on() {
    let scene = Scene::new();
    for (ready, status) in [(false, 503), (true, 200), (false, 503)] {
        scene.ready.set(ready);
        assert_eq!(scene.get("/readyz").await.status, status);
        assert_eq!(scene.get("/livez").await.status, 200);
    }
}

#[tokio::test]
async fn the_queue_is_what_keda_expects_and_counts_held_requests_as_load() {
    let scene = Scene::new();
    let (service, port) = scene.bench.service("cart", ConcurrencyLimits::new(0, 1));
    scene.bench.service("idle", ConcurrencyLimits::default());
    service.put_slice("one", ready_slice(1));
    let _slot = Request::new(&port, 1).served();
    let _waiting = line(&port, 2);
    let expected = json!({
        "shop/cart": {"Concurrency": 3, "RequestCount": 3},
        "shop/idle": {"Concurrency": 0, "RequestCount": 0},
    });
    assert_eq!(scene.get("/queue").await.json(), expected);
}

#[tokio::test]
async fn a_service_is_zero_waking_serving_or_draining() {
    let scene = Scene::new();
    let (service, port) = scene.bench.service("cart", ConcurrencyLimits::default());
    let state = async || scene.get("/api/v1/services").await.json().pointer("/0/state").cloned().unwrap();
    assert_eq!(state().await, "zero");
    let waiting = line(&port, 1);
    assert_eq!(state().await, "waking", "a request waits");
    drop(waiting);
    for (conditions, expected) in [(STARTING, "waking"), (READY, "serving"), (DRAINING, "draining")] {
        service.put_slice("one", slice([(0, conditions)]));
        assert_eq!(state().await, expected);
    }
    service.put_slice("one", slice([(0, DRAINING), (1, STARTING)]));
    assert_eq!(state().await, "waking");
    service.drop_slice("one");
    scene.apps.set(vec![rouse_local::engine::AppStatus { desired: 1, ..app("shop/cart") }]);
    assert_eq!(state().await, "waking", "a pod is wanted, though none is there yet");
}

#[tokio::test]
async fn services_show_processes_beside_what_routing_knows_of_them() {
    let scene = Scene::new();
    let (service, port) = scene.bench.service("cart", ConcurrencyLimits::default());
    scene.bench.service("other", ConcurrencyLimits::default());
    service.put_slice("one", slice([(0, READY), (1, DRAINING)]));
    let _slot = Request::new(&port, 1).served();
    let pods = vec![pod_status(0, 100), pod_status(7, 107)];
    scene.apps.set(vec![rouse_local::engine::AppStatus {
        pods,
        desired: 2,
        pinned: Some(2),
        trouble: Some("it coughs".into()),
        ..app("shop/cart")
    }]);
    let all = scene.get("/api/v1/services").await.json();
    let names: Vec<&str> = all.as_array().unwrap().iter().map(|it| it["service"].as_str().unwrap()).collect();
    assert_eq!(names, ["shop/cart", "shop/other"], "apps first, in their order");
    let expected = json!({
        "service": "shop/cart", "state": "serving", "holds": 0, "in_flight": 1, "requests": 1, "desired": 2,
        "ready": 1, "pinned": 2, "rolling": false, "reason": "because", "trouble": "it coughs", "stale": false,
        "endpoints": [
            {"pod": "pod-0", "uid": "uid-0", "address": "10.0.0.0:8080", "state": "Ready", "source": "slice",
             "in_flight": 1, "pid": 100},
            {"pod": "pod-7", "uid": "uid-7", "address": "10.0.0.7:8080", "state": "Starting", "source": null,
             "in_flight": 0, "pid": 107},
            {"pod": "pod-1", "uid": "uid-1", "address": "10.0.0.1:8080", "state": "Draining", "source": "slice",
             "in_flight": 0, "pid": null},
        ],
    });
    assert_eq!(all[0], expected);
}

#[tokio::test]
async fn a_wake_that_failed_is_the_trouble_of_a_service() {
    let scene = Scene::new();
    let (service, _) = scene.bench.service("cart", ConcurrencyLimits::default());
    service.wake_failed(StartFailure::new(StartFailureCause::CannotRun, "no such command"));
    assert_eq!(scene.get("/api/v1/services").await.json()[0]["trouble"], "no such command");
}

#[tokio::test]
async fn cold_starts_come_newest_first_with_stamps_in_microseconds() {
    let scene = Scene::new();
    scene.cold_start("cart", 5);
    scene.cold_start("shop", 7);
    let all = scene.get("/api/v1/cold-starts").await.json();
    let of = |all: &Value| -> Vec<String> {
        all.as_array().unwrap().iter().map(|it| it["service"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(of(&all), ["shop/shop", "shop/cart"]);
    let cold = &all[1];
    let held = cold["held_us"].as_u64().unwrap();
    for (key, after) in
        [("wake_sent_us", 0), ("pod_seen_us", 5000), ("pod_ready_us", 5000), ("first_byte_us", 6000)]
    {
        assert_eq!(cold[key], held + after, "{key}");
    }
    assert_eq!(cold["total_us"], 6000);
    assert_eq!(cold["ago_us"], 6000 + 8000);
    assert_eq!(
        (&cold["outcome"], &cold["ready_by"], &cold["pod"]),
        (&json!("served"), &json!("slice"), &json!("pod-0"))
    );
    assert_eq!(cold["phases_us"]["seen"], 5000);
    assert_eq!(of(&scene.get("/api/v1/cold-starts?limit=1").await.json()), ["shop/shop"]);
    assert_eq!(of(&scene.get("/api/v1/cold-starts?service=shop/cart&limit=9").await.json()), ["shop/cart"]);
    assert_eq!(of(&scene.get("/api/v1/cold-starts?service=").await.json()).len(), 2);
}

#[tokio::test]
async fn a_bad_question_is_told_what_is_allowed() {
    let scene = Scene::new();
    let cases = [
        ("/api/v1/cold-starts?limit=0", 400, "1 to 1000"),
        ("/api/v1/cold-starts?limit=1001", 400, "1 to 1000"),
        ("/api/v1/cold-starts?limit=x", 400, "\"x\""),
        ("/api/v1/cold-starts?service=cart", 400, "namespace/name"),
        ("/api/v1/cold-starts?app=cart", 400, "service=NAMESPACE/NAME and limit=COUNT"),
        ("/api/v1/services/shop/cart/logs?follow=maybe", 400, "follow=true or follow=false"),
        ("/api/v1/services/shop/nope/logs", 404, "the services are: shop/cart"),
        ("/api/v1/services/other/cart/logs", 404, "the services are: shop/cart"),
        ("/nope", 404, "/api/v1/services"),
        ("/", 404, "/api/v1/services"),
    ];
    scene.apps.set(vec![app("shop/cart")]);
    for (path, status, word) in cases {
        let answer = scene.get(path).await;
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(answer.status == status && error.contains(word), "{path}: {} {error}", answer.status);
    }
    let answer = scene.post("/api/v1/services", "").await;
    assert_eq!(answer.status, 405);
    assert!(answer.json()["error"].is_string());
}

#[tokio::test]
async fn an_app_is_restarted_and_scaled_when_asked_properly() {
    let scene = Scene::new();
    scene.apps.set(vec![app("shop/cart")]);
    let scale = "/api/v1/services/shop/cart/scale";
    assert_eq!(scene.post("/api/v1/services/shop/cart/restart", "").await.status, 202);
    assert_eq!(scene.post(scale, r#"{"pods":3}"#).await.json(), json!({"service": "shop/cart", "pinned": 3}));
    assert_eq!(scene.post(scale, r#"{"pods":null}"#).await.status, 200);
    let bad = [
        "",
        "{}",
        r#"{"pods":-1}"#,
        r#"{"pods":1001}"#,
        r#"{"pods":"3"}"#,
        r#"{"pods":1.5}"#,
        r#"{"pods":1,"x":2}"#,
    ];
    for body in bad {
        let answer = scene.post(scale, body).await;
        assert!(answer.status == 400 && answer.json()["error"].is_string(), "{body}");
    }
    for path in ["/api/v1/services/shop/nope/restart", "/api/v1/services/other/cart/restart"] {
        assert_eq!(scene.post(path, "").await.status, 404, "{path}");
    }
    assert_eq!(scene.apps.orders(), ["restart cart", "scale cart Some(3)", "scale cart None"]);
}

#[tokio::test]
async fn nobody_is_answered_who_came_by_another_name_or_from_another_site() {
    let scene = Scene::new();
    let paths = ["/livez", "/metrics", "/api/v1/services", "/nope"];
    for path in paths {
        assert_eq!(scene.get_as(path, &[("host", "evil.example")]).await.status, 403, "{path}");
        let origin = [("host", "127.0.0.1:9080"), ("origin", "http://evil.example")];
        assert_eq!(scene.get_as(path, &origin).await.status, 403, "{path}");
        assert_eq!(scene.get_as(path, &[]).await.status, 403, "{path}");
    }
    let own = [("host", "localhost:9080"), ("origin", "http://localhost:9080")];
    assert_eq!(scene.get_as("/livez", &own).await.status, 200);
    let refused = scene.get_as("/livez", &[("host", "evil.example")]).await.json();
    assert!(refused["error"].as_str().unwrap().contains("evil.example"));
}

#[tokio::test]
async fn metrics_are_open_metrics_and_their_labels_go_with_their_service() {
    let scene = Scene::new();
    let (service, port) = scene.bench.service("cart", ConcurrencyLimits::default());
    scene.cold_start("shop", 5);
    for cold in scene.bench.registry.cold_starts().newest(None, 1) {
        scene.event_metrics.cold_start(&cold);
    }
    service.put_slice("one", slice([(1, STARTING)]));
    let _waiting = line(&port, 2);
    scene.told("shop/cart", rouse_local::engine::AppEventKind::Wake);
    scene.told("shop/cart", rouse_local::engine::AppEventKind::Failed { reason: "no".into() });
    service.put_slice("one", ready_slice(2));
    let after = std::time::Duration::ZERO;
    scene.told("shop/cart", rouse_local::engine::AppEventKind::Ready { pod: "pod-1".into(), after });
    let answer = scene.get("/metrics").await;
    assert_eq!(answer.kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let text = answer.text();
    for line in [
        "rouse_holds{service=\"shop/cart\"} 2",
        "rouse_endpoints{service=\"shop/cart\",state=\"Ready\"} 2",
        "rouse_endpoints{service=\"shop/cart\",state=\"Draining\"} 0",
        "rouse_wakes_total{result=\"sent\"} 1",
        "rouse_wakes_total{result=\"failed\"} 1",
        "rouse_endpoint_source_first_total{source=\"slice\"} 1",
        "rouse_endpoint_source_first_total{source=\"probe\"} 0",
        "rouse_cold_start_seconds_count{service=\"shop/shop\",phase=\"seen\",outcome=\"served\"} 1",
        "rouse_cold_start_seconds_count{service=\"shop/shop\",phase=\"total\",outcome=\"served\"} 1",
        "# EOF",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} is missing in:\n{text}");
    }
    scene.told("shop/shop", rouse_local::engine::AppEventKind::Removed);
    assert!(!scene.get("/metrics").await.text().contains("rouse_cold_start_seconds_count"));
}

#[tokio::test]
async fn the_metrics_of_fifteen_apps_with_cold_starts_are_short() {
    let scene = Scene::new();
    for n in 1..=15 {
        scene.cold_start(&format!("app-{n}"), 5);
    }
    for cold in scene.bench.registry.cold_starts().newest(None, 15) {
        scene.event_metrics.cold_start(&cold);
    }
    let text = scene.get("/metrics").await.text();
    let (bytes, lines) = (text.len(), text.lines().count());
    assert!(text.contains("service=\"shop/app-15\",phase=\"total\""), "{text}");
    assert!(bytes < 130_000, "{bytes} bytes in {lines} lines:\n{text}");
}

#[test]
fn the_process_and_the_version_are_among_the_metrics() {
    let mut metrics = prometheus_client::registry::Registry::default();
    rouse_daemon::admin::process::ProcessCollector::register(&mut metrics);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &metrics).unwrap();
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is missing in:\n{text}")).parse().unwrap()
    };
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    let started = value("process_start_time_seconds");
    // The kernel counts in hundredths of a second, and its boot time is in whole seconds.
    assert!(started < now + 2.0 && started > now - 86_400.0, "{started} {now}");
    assert!(value("process_cpu_seconds_total") >= 0.0 && value("process_threads") >= 1.0);
    let (open, most) = (value("process_open_fds"), value("process_max_fds"));
    assert!(open >= 3.0 && open <= most, "{open} {most}");
    assert!(value("process_resident_memory_bytes") > 1_000_000.0);
    let version = env!("CARGO_PKG_VERSION");
    let info = format!("rouse_build_info{{version=\"{version}\",arch=\"{}\"}} 1", std::env::consts::ARCH);
    assert!(text.lines().any(|line| line == info), "{info} is missing in:\n{text}");
}

#[tokio::test]
async fn services_that_come_and_go_leave_the_metrics_as_small_as_they_were() {
    let scene = Scene::new();
    scene.route("rouse.yaml", "apps: {cart: {command: [x]}}");
    let known = scene.gateway.services();
    assert!(known.contains("local/cart"), "{known:?}");
    let before = scene.get("/metrics").await.text();
    for n in 0..1000 {
        let name = format!("preview-{n}");
        scene.cold_start(&name, 5);
        // Also counts the previous cold start once more, although its service was removed.
        for cold in scene.bench.registry.cold_starts().newest(None, 2) {
            scene.event_metrics.cold_start(&cold);
        }
        let id = format!("shop/{name}");
        assert!(scene.get("/metrics").await.text().contains(&id));
        scene.bench.registry.remove(&id.parse().unwrap());
        scene.event_metrics.keep(&known);
    }
    assert_eq!(scene.get("/metrics").await.text(), before);
}

#[tokio::test]
async fn routes_tell_where_they_lead() {
    let scene = Scene::new();
    scene.route("rouse.yaml", "apps: {cart: {command: [x], paths: [/a, /b], protocol: h2c}}");
    let routes = scene.get("/api/v1/routes").await.json();
    let route = &routes[0];
    assert_eq!((&route["route"], &route["service"]), (&json!("cart"), &json!("local/cart")));
    assert_eq!(route["hosts"], json!(["cart.localhost"]));
    assert_eq!(route["paths"], json!(["/a", "/b"]));
    assert_eq!((&route["target"], &route["protocol"]), (&json!("no_service"), &Value::Null));
    assert_eq!(route["timeouts_us"]["connect"], 500_000);
    assert_eq!(route["timeouts_us"]["request"], Value::Null);
}
