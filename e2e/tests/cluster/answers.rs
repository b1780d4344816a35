//! Responses without the app's pods: static responses, placeholders, overflow, and fallback to another Service.

use std::net::SocketAddr;

use http::StatusCode;
use rouse_e2e::client::session::{self, FullResponse};
use rouse_e2e::gateway::Gateway;
use rouse_e2e::target::Target;
use rouse_e2e::wait::patiently;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::app::App;
use crate::harness::{Case, trial};
use crate::identity;
use crate::test_namespace::{POD, TestNamespace};

pub(crate) const TRIALS: &[Case] = &[
    trial!(static_answers_come_always_or_while_nobody_is_there_and_wake_nobody),
    trial!(a_placeholder_is_answered_at_once_and_wakes_the_app),
    trial!(more_than_may_wait_are_turned_away_with_the_routes_own_answer),
    trial!(a_fallback_takes_what_nobody_was_ready_for_in_time),
];

/// An app whose pods run but become ready only after [`let_in`].
fn shy() -> App {
    App::new("shop").env("READY", "0")
}

/// Waits for the one pod of `shop` to run, and makes it ready.
async fn let_in(space: &TestNamespace) -> String {
    let running = |pod: &Value| pod["status"]["phase"] == "Running" && pod["status"]["podIP"].is_string();
    let (name, ip) = patiently("a pod that runs", async || {
        let pods = space.list(POD, "app=shop").await;
        let pod = pods.iter().find(|pod| running(pod))?;
        Some((pod["metadata"]["name"].as_str()?.to_owned(), pod["status"]["podIP"].as_str()?.parse().ok()?))
    })
    .await;
    let pod = Target::plain(SocketAddr::new(ip, 8080));
    patiently("the pod to listen", async || tokio::net::TcpStream::connect(pod.address).await.ok().map(drop))
        .await;
    assert_eq!(session::get(&pod, "/ready/yes").await.status, StatusCode::OK);
    name
}

async fn wakes(gateway: &Gateway) -> u64 {
    gateway.admin.metrics().await.count("rouse_wakes_total", &[])
}

fn said(answer: &FullResponse) -> (u16, String) {
    (answer.status.as_u16(), answer.text())
}

async fn static_answers_come_always_or_while_nobody_is_there_and_wake_nobody(space: TestNamespace) {
    space.run(&App::new("shop")).await;
    let route = space.route("shop").spec(&json!({ "staticRoutes": [
        {
            "rules": [{ "paths": [{ "value": "/robots.txt" }] }],
            "response": { "statusCode": 200, "body": "nothing for you", "headers": { "X-Static": "1" } },
            "responseMode": "Always",
        },
        {
            "rules": [{ "paths": [{ "value": "/headers" }] }],
            "response": { "statusCode": 418, "body": "<p>asleep</p>" },
        },
    ] }));
    space.apply(route.object()).await;
    let gateway = space.gateway().await;
    let target = gateway.target(&space.host("shop"));
    let robots = session::get(&target, "/robots.txt").await;
    assert_eq!((said(&robots), robots.header("x-static")), ((200, "nothing for you".to_owned()), "1"));
    let asleep = session::get(&target, "/headers").await;
    assert_eq!(said(&asleep), (418, "<p>asleep</p>".to_owned()));
    assert_eq!(asleep.header("content-type"), "text/html; charset=utf-8");
    let elsewhere = session::get(&gateway.target(&space.host("other")), "/robots.txt").await;
    assert_eq!(
        elsewhere.header("x-rouse-error"),
        "no_route",
        "the static response is only for the route's own hosts"
    );
    assert_eq!((wakes(&gateway).await, space.replicas("shop").await), (0, 0));

    space.scale("shop", 1).await;
    let [pod] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
    patiently("the pod to answer", async || {
        let answer = session::get(&target, "/headers").await;
        (answer.status == StatusCode::OK).then(|| assert_eq!(answer.json()["pod"], pod.name))
    })
    .await;
    let robots = session::get(&target, "/robots.txt").await;
    assert_eq!(
        said(&robots),
        (200, "nothing for you".to_owned()),
        "`always` also applies while a pod is ready"
    );
    assert_eq!((wakes(&gateway).await, space.replicas("shop").await), (0, 1), "the gateway woke no app");
    gateway.stop().await;
}

async fn a_placeholder_is_answered_at_once_and_wakes_the_app(space: TestNamespace) {
    let page = |text: &str| {
        let (body, other) = (format!("<p>{text}</p>"), "not this one");
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "pages" },
            "data": { "wait.html": body, "other": other },
        })
    };
    space.run(&shy()).await;
    space.apply(page("a moment")).await;
    identity::grant_named(&space, "configmaps", &["pages"]).await;
    let route = space.route("shop").spec(&json!({ "coldStart": { "placeholder": { "response": {
        "statusCode": 202,
        "headers": { "Refresh": "1" },
        "bodyFromConfigMap": { "name": "pages", "key": "wait.html" },
    } } } }));
    space.apply(route.object()).await;
    let gateway = space.gateway().await;
    space.condition("shop", "Ready", "True").await;
    let target = gateway.target(&space.host("shop"));
    assert_eq!(space.replicas("shop").await, 0);
    let first = session::get(&target, "/headers").await;
    assert_eq!(said(&first), (202, "<p>a moment</p>".to_owned()));
    assert_eq!((first.header("refresh"), first.header("x-rouse-cold-start")), ("1", ""));
    patiently("the app to be woken", async || (space.replicas("shop").await == 1).then_some(())).await;

    // The pod is not ready yet, and the page changes meanwhile.
    space.apply(page("another moment")).await;
    patiently("the new page", async || {
        let answer = session::get(&target, "/headers").await;
        assert_eq!(answer.status, StatusCode::ACCEPTED);
        (answer.text() == "<p>another moment</p>").then_some(())
    })
    .await;
    let pod = let_in(&space).await;
    let answer = patiently("the pod to answer", async || {
        let answer = session::get(&target, "/headers").await;
        assert!([200, 202].contains(&answer.status.as_u16()), "{}", answer.text());
        Some(answer).filter(|answer| answer.status == StatusCode::OK)
    })
    .await;
    assert_eq!(answer.json()["pod"], pod);
    gateway.stop().await;
}

async fn more_than_may_wait_are_turned_away_with_the_routes_own_answer(space: TestNamespace) {
    space.run(&shy()).await;
    let overflow =
        json!({ "response": { "statusCode": 429, "body": "full", "headers": { "Retry-After": "7" } } });
    let named =
        space.route("shop").spec(&json!({ "coldStart": { "maxPendingRequests": 1, "overflow": overflow } }));
    space.apply(named.object()).await;
    let plain =
        space.route("plain").service("shop").spec(&json!({ "coldStart": { "maxPendingRequests": 1 } }));
    space.apply(plain.object()).await;
    let gateway = space.gateway().await;
    let service = format!("{}/shop", space.name());
    let targets = [gateway.target(&space.host("shop")), gateway.target(&space.host("plain"))];
    let mut waiting = JoinSet::new();
    for (at, target) in targets.iter().enumerate() {
        let target = target.clone();
        waiting.spawn(async move { session::get(&target, "/").await });
        patiently("one more to wait", async || {
            (gateway.admin.service_named(&service).await.holds > at as u64).then_some(())
        })
        .await;
    }
    for _ in 0..2 {
        let turned_away = session::get(&targets[0], "/").await;
        assert_eq!(said(&turned_away), (429, "full".to_owned()));
        assert_eq!(turned_away.header("retry-after"), "7");
        let turned_away = session::get(&targets[1], "/").await;
        assert_eq!((turned_away.status.as_u16(), turned_away.header("x-rouse-error")), (503, "queue_full"));
        assert!(!turned_away.header("retry-after").is_empty());
    }
    let_in(&space).await;
    while let Some(answer) = waiting.join_next().await {
        let answer = answer.expect("an answer");
        assert_eq!((answer.status, answer.header("x-rouse-cold-start")), (StatusCode::OK, "true"));
    }
    for target in &targets {
        assert_eq!(session::get(target, "/").await.status, StatusCode::OK, "no request is held");
    }
    gateway.stop().await;
}

async fn a_fallback_takes_what_nobody_was_ready_for_in_time(space: TestNamespace) {
    space.run(&shy()).await;
    let ports = [
        json!({ "name": "web", "port": 90, "targetPort": "http" }),
        json!({ "name": "other", "port": 91, "targetPort": 9999 }),
    ];
    space.run(&App::new("spare").replicas(1).service_ports(&ports)).await;
    let route = space.route("shop").spec(&json!({
        "timeouts": { "readiness": "1s" },
        "coldStart": { "fallback": { "service": { "name": "spare", "portName": "web" } } },
    }));
    space.apply(route.object()).await;
    let scaled = space.route("scaled").service("shop").spec(&json!({
        "coldStartTimeoutFailoverRef": { "service": "spare", "port": 90, "timeoutSeconds": 1 },
    }));
    space.apply(scaled.scaled_object()).await;
    let [other] = &space.ready_pods("spare", 1).await[..] else { panic!("one pod") };
    let gateway = space.gateway().await;
    let hosts = [space.host("shop"), space.host("scaled")];
    for host in &hosts {
        let answer = session::get(&gateway.target(host), "/headers").await;
        assert_eq!(answer.status, StatusCode::OK, "{host}: {}", answer.text());
        let seen = answer.json();
        assert_eq!((&seen["pod"], &seen["headers"]["host"]), (&json!(other.name), &json!([host])));
    }
    assert_eq!(space.replicas("shop").await, 1, "the fallback does not prevent the wake");

    let pod = let_in(&space).await;
    space.ready_pods("shop", 1).await;
    for host in &hosts {
        patiently("the app's own pod to answer", async || {
            let answer = session::get(&gateway.target(host), "/headers").await;
            assert_eq!(answer.status, StatusCode::OK, "{host}: {}", answer.text());
            (answer.json()["pod"] == pod).then_some(())
        })
        .await;
    }
    gateway.stop().await;
}
