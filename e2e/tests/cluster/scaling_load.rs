//! Scaling by load: from zero, up, down and to zero, and never against a request.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::StatusCode;
use rouse_e2e::client::load::Load;
use rouse_e2e::client::{session, websocket};
use rouse_e2e::target::Target;
use rouse_e2e::wait::{patiently, within};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use crate::app::App;
use crate::harness::{Case, trial};
use crate::scaling::{Scaling, route, seconds};
use crate::test_namespace::{POD, TestNamespace};

pub(crate) const TRIALS: &[Case] = &[
    trial!(load_scales_an_app_up_and_its_end_scales_it_to_zero),
    trial!(concurrent_requests_scale_an_app_up_and_their_end_scales_it_down),
    trial!(an_open_request_or_websocket_keeps_its_pod),
    trial!(a_slow_start_is_not_scaled_away),
    trial!(only_the_workloads_that_are_rouses_to_scale_are_scaled),
];

/// Timeouts of requests that take as long as the trial wants.
fn long() -> Value {
    json!({ "responseHeader": "5m", "request": "5m" })
}

async fn load_scales_an_app_up_and_its_end_scales_it_to_zero(space: TestNamespace) {
    let scaling = Scaling::start(&space).await;
    space.run(&App::new("shop")).await;
    space.apply(route(&space, "shop").object()).await;
    let gateway = scaling.gateway("gateway-0").await;
    let target = gateway.target(&space.host("shop"));
    // 0 to 1: the gateway's own.
    assert_eq!(session::get(&target, "/headers").await.status, StatusCode::OK);
    assert_eq!(space.replicas("shop").await, 1);
    // 1 to N, and not above the maximum.
    let load = Load::on(&target, 30);
    scaling.replicas("shop", 4).await;
    load.stop().await.assert_perfect();
    scaling.replicas("shop", 0).await;
    space.no_pods("shop").await;
    scaling.reason("shop", "at_zero").await;
    // And again.
    assert_eq!(session::get(&target, "/headers").await.header("x-rouse-cold-start"), "true");
    gateway.stop().await;
    scaling.stop().await;
}

async fn concurrent_requests_scale_an_app_up_and_their_end_scales_it_down(space: TestNamespace) {
    let scaling = Scaling::start(&space).await;
    space.run(&App::new("shop")).await;
    // Two requests for each pod, averaged over the default window of a minute.
    let spec = json!({ "scalingMetric": { "concurrency": { "targetValue": 2 } }, "timeouts": long() });
    let route = space.route("shop").spec(&spec).annotate("idle-after", "2s").annotate("autoscale", "on");
    space.apply(route.object()).await;
    let gateway = scaling.gateway("gateway-0").await;
    let target = gateway.target(&space.host("shop"));
    // It takes longer than the others. Kubernetes chooses the pods that go: not the one that has it.
    let (mut last, _) = websocket::connect(&target, "/ws").await;
    let [pod] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
    let cost =
        json!({ "metadata": { "annotations": { "controller.kubernetes.io/pod-deletion-cost": "1000" } } });
    space.patch(POD, &pod.name, cost).await;
    // Two and a half pods.
    let more = session::get_many(&target, "/wait", 4);
    scaling.replicas("shop", 3).await;
    drop(more);
    // What is in flight keeps a pod, and no more.
    scaling.replicas("shop", 1).await;
    last.close(None).await.expect("an open WebSocket");
    scaling.replicas("shop", 0).await;
    gateway.stop().await;
    scaling.stop().await;
}

async fn an_open_request_or_websocket_keeps_its_pod(space: TestNamespace) {
    let scaling = Scaling::start(&space).await;
    for app in ["shop", "chat", "idle"] {
        space.run(&App::new(app)).await;
        space.apply(route(&space, app).spec(&json!({ "timeouts": long() })).object()).await;
    }
    let gateway = scaling.gateway("gateway-0").await;
    let target = |app: &str| gateway.target(&space.host(app));
    let mut waiting = session::get_many(&target("shop"), "/wait", 1);
    let (mut chat, _) = websocket::connect(&target("chat"), "/ws").await;
    let [pod] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
    // An app whose request is over goes to zero: so there was time enough for the others.
    assert_eq!(session::get(&target("idle"), "/headers").await.status, StatusCode::OK);
    scaling.replicas("idle", 0).await;
    for app in ["shop", "chat"] {
        assert_eq!(space.replicas(app).await, 1, "{}", scaling.target(app).await);
    }
    // No message was sent until now.
    chat.send(Message::text("hello")).await.expect("an open WebSocket");
    assert_eq!(
        within("the echo", chat.next()).await.expect("a message").expect("a message"),
        Message::text("hello")
    );
    Target::plain((pod.ip, 8080).into()).next().await;
    assert_eq!(waiting.join_next().await.expect("an answer").expect("an answer").status, StatusCode::OK);
    chat.close(None).await.expect("a close");
    scaling.replicas("shop", 0).await;
    scaling.replicas("chat", 0).await;
    gateway.stop().await;
    scaling.stop().await;
}

async fn a_slow_start_is_not_scaled_away(space: TestNamespace) {
    let scaling = Scaling::start(&space).await;
    // Not ready before it is told to be.
    space.run(&App::new("shop").env("READY", 0)).await;
    space.run(&App::new("quick")).await;
    space.apply(route(&space, "shop").readiness_timeout("1s").object()).await;
    space.apply(route(&space, "quick").object()).await;
    let gateway = scaling.gateway("gateway-0").await;
    // The request gives up long before the pod is ready, and no other follows.
    let began = Instant::now();
    let answer = session::get(&gateway.target(&space.host("shop")), "/headers").await;
    assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
    // An app that starts at once goes to zero meanwhile.
    assert_eq!(session::get(&gateway.target(&space.host("quick")), "/headers").await.status, StatusCode::OK);
    scaling.replicas("quick", 0).await;
    let slow = Duration::from_secs(seconds("ROUSE_SLOW_START_SECONDS", 10));
    patiently("a slow start", async || {
        assert_eq!(space.replicas("shop").await, 1, "{}", scaling.target("shop").await);
        (began.elapsed() >= slow).then_some(())
    })
    .await;
    let [pod] = &space.pods("shop").await[..] else { panic!("one pod") };
    assert_eq!(
        session::get(&Target::plain((pod.ip, 8080).into()), "/ready/yes").await.status,
        StatusCode::OK
    );
    scaling.replicas("shop", 0).await;
    gateway.stop().await;
    scaling.stop().await;
}

async fn only_the_workloads_that_are_rouses_to_scale_are_scaled(space: TestNamespace) {
    let scaling = Scaling::start(&space).await;
    for (app, replicas) in [("asks", 2), ("silent", 2), ("hpa", 0)] {
        space.run(&App::new(app).replicas(replicas)).await;
    }
    // The API server accepts 0 here by its feature gate HPAScaleToZero, which is on by default from Kubernetes 1.37.
    space.apply(hpa_from_zero("hpa")).await;
    space.apply(space.route("silent").object()).await;
    for app in ["asks", "hpa"] {
        space.apply(route(&space, app).object()).await;
    }
    let gateway = scaling.gateway("gateway-0").await;
    // Where an HPA may scale to zero, Rouse holds and wakes. The app that asks shows when there was time enough for the others.
    for app in ["hpa", "asks"] {
        assert_eq!(session::get(&gateway.target(&space.host(app)), "/headers").await.status, StatusCode::OK);
    }
    scaling.replicas("asks", 0).await;
    assert_eq!(space.replicas("silent").await, 2);
    assert_eq!(scaling.target("silent").await["state"], "not_enabled");
    assert_eq!(space.replicas("hpa").await, 1);
    assert_eq!(scaling.target("hpa").await["state"], "owned");
    assert_eq!(space.condition("hpa", "Autoscaled", "False").await["reason"], "OwnedByHpa");
    gateway.stop().await;
    scaling.stop().await;
}

/// An HPA that may scale a Deployment to zero. Nothing provides its metric here, so it changes nothing by itself.
fn hpa_from_zero(app: &str) -> Value {
    let metric = json!({
        "type": "External",
        "external": { "metric": { "name": "queue" }, "target": { "type": "Value", "value": "10" } },
    });
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": { "name": app },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": app },
            "minReplicas": 0, "maxReplicas": 5, "metrics": [metric],
        },
    })
}
