//! Push and slices about the same pods: which of them counts, when they disagree or one of them is late.

use http::StatusCode;
use rouse_e2e::client::load::Load;
use rouse_e2e::client::session;
use rouse_e2e::target::Target;
use rouse_e2e::wait::{patiently, within};
use serde_json::json;
use tokio::time::Instant;

use crate::app::App;
use crate::harness::{Case, trial};
use crate::node::Node;
use crate::push::{PushGateway, Registration, lone_pod, slice, without_slices};
use crate::test_namespace::{POD, Pod, SERVICE, SLICE, TestNamespace};

pub(crate) const TRIALS: &[Case] = &[
    trial!(a_pod_serves_before_a_slice_lists_it).alone().on_our_node(),
    trial!(a_pod_that_the_slices_drop_is_gone_whatever_its_lease_says),
    trial!(a_pod_that_stops_renewing_leaves_no_ghost),
    trial!(a_late_ready_slice_does_not_lift_not_ready),
    trial!(a_failed_readiness_gate_wins_over_an_older_push),
    trial!(a_restarted_sidecar_is_heard_also_with_its_clock_set_back),
    trial!(draining_is_final_for_the_run_of_a_sidecar),
    trial!(push_is_switched_under_load_without_a_failed_request).once(),
];

#[expect(clippy::unnecessary_wraps, reason = "to compare with what the gateway knows")]
fn is(state: &str, source: &str) -> Option<(String, String)> {
    Some((state.to_owned(), source.to_owned()))
}

/// An app whose slices the trial writes, one running pod of it, and a gateway.
async fn scene(space: &TestNamespace) -> (App, Pod, PushGateway) {
    let app = without_slices(App::new("shop"));
    space.serve(&app).await;
    let gateway = PushGateway::start(space).await;
    let pod = lone_pod(space, &app, "shop-0").await;
    (app, pod, gateway)
}

fn target(space: &TestNamespace, gateway: &PushGateway) -> Target {
    gateway.gateway.target(&space.host("shop"))
}

async fn a_pod_serves_before_a_slice_lists_it(space: TestNamespace) {
    let app = App::new("shop");
    space.serve(&app).await;
    let gateway = PushGateway::start(&space).await;
    let target = target(&space, &gateway);
    // The controller that writes slices stands still, and with it the one that would create the Deployment's pod.
    let stopped = Node::ours().freeze("kube-controller-manager");
    let pod = lone_pod(&space, &app, "shop-0").await;
    let mut held = session::get_many(&target, "/headers", 1);
    patiently("the request to be held", async || {
        (gateway.gateway.admin.service_named(&format!("{}/shop", space.name())).await.holds == 1)
            .then_some(())
    })
    .await;
    assert_eq!(gateway.endpoints(&space, "shop").await, [], "no source has said anything about the pod");

    let registration = Registration::of(&space, "shop", &pod).await;
    let pushed = Instant::now();
    gateway.tells(&registration, "accepted").await;
    let answer = within("the held request", held.join_next()).await.expect("a request").expect("an answer");
    eprintln!("a held request was answered {:?} after the push was sent", pushed.elapsed());
    assert_eq!(gateway.state(&space, "shop", &pod).await, is("Ready", "push"));
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    assert_eq!(answer.json()["pod"], pod.name);
    let listed = space.slices("shop").await;
    assert!(
        listed.iter().all(|slice| !slice.to_string().contains(&pod.uid)),
        "no slice lists it: {listed:?}"
    );

    drop(stopped);
    patiently("a slice to list the pod", async || {
        space.slices("shop").await.iter().any(|slice| slice.to_string().contains(&pod.uid)).then_some(())
    })
    .await;
    assert_eq!(session::get(&target, "/").await.status, StatusCode::OK);
    gateway.stop().await;
}

async fn a_pod_that_the_slices_drop_is_gone_whatever_its_lease_says(space: TestNamespace) {
    let (_, pod, gateway) = scene(&space).await;
    let mut registration = Registration::of(&space, "shop", &pod).await;
    gateway.tells(&registration, "accepted").await;
    space.apply(slice("shop", &[(&pod, true)])).await;
    gateway.until(&space, "shop", &pod, Some("Ready")).await;
    // Without this, the gateway may not have seen the slice yet, and no slice has ever listed the pod.
    patiently("the slice to count", async || {
        (gateway.state(&space, "shop", &pod).await == is("Ready", "slice")).then_some(())
    })
    .await;
    gateway.tells(&registration, "renewed").await;

    space.delete(SLICE, "shop").await;
    gateway.until(&space, "shop", &pod, None).await;
    gateway.tells(registration.next("ready"), "stale").await;
    assert_eq!(gateway.endpoints(&space, "shop").await, [], "its sidecar cannot bring it back");
    gateway.stop().await;
}

async fn a_pod_that_stops_renewing_leaves_no_ghost(space: TestNamespace) {
    let (_, pod, gateway) = scene(&space).await;
    gateway.tells(&Registration::of(&space, "shop", &pod).await, "accepted").await;
    assert_eq!(session::get(&target(&space, &gateway), "/").await.status, StatusCode::OK);
    // The lease is a minute. No other event happens meanwhile.
    gateway.until(&space, "shop", &pod, None).await;
    assert_eq!(gateway.endpoints(&space, "shop").await, []);
    gateway.stop().await;
}

async fn a_late_ready_slice_does_not_lift_not_ready(space: TestNamespace) {
    let (app, pod, gateway) = scene(&space).await;
    let second = lone_pod(&space, &app, "shop-1").await;
    space.apply(slice("shop", &[(&pod, true)])).await;
    gateway.until(&space, "shop", &pod, Some("Ready")).await;
    let mut registration = Registration::of(&space, "shop", &pod).await;
    gateway.tells(registration.next("not-ready"), "accepted").await;
    let now = gateway.state(&space, "shop", &pod).await.expect("an endpoint");
    assert_ne!(now.0, "Ready");

    // A slice that was written from older knowledge. The second pod shows that the gateway has seen it.
    space.apply(slice("shop", &[(&pod, true), (&second, true)])).await;
    gateway.until(&space, "shop", &second, Some("Ready")).await;
    assert_eq!(gateway.state(&space, "shop", &pod).await, Some(now));
    let answer = session::get(&target(&space, &gateway), "/headers").await;
    assert_eq!(answer.json()["pod"], second.name);

    gateway.tells(registration.next("ready"), "accepted").await;
    gateway.until(&space, "shop", &pod, Some("Ready")).await;
    gateway.stop().await;
}

/// Sets the readiness gate of a pod.
async fn set_gate(space: &TestNamespace, pod: &str, status: &str) {
    let condition = json!({ "type": "rouse.dev/gate", "status": status });
    space.patch_status(POD, pod, json!({ "status": { "conditions": [condition] } })).await;
}

async fn a_failed_readiness_gate_wins_over_an_older_push(space: TestNamespace) {
    let gate = json!({ "readinessGates": [{ "conditionType": "rouse.dev/gate" }] });
    let gate = json!({ "spec": { "template": { "spec": gate } } });
    let app = App::new("shop").deployment_with(gate);
    space.serve(&app).await;
    let gateway = PushGateway::start(&space).await;
    let pod = lone_pod(&space, &app, "shop-0").await;
    let registration = Registration::of(&space, "shop", &pod).await;
    gateway.tells(&registration, "accepted").await;
    gateway.until(&space, "shop", &pod, Some("Ready")).await;

    set_gate(&space, "shop-0", "True").await;
    space.ready_pods("shop", 1).await;
    patiently("the slice to count", async || {
        (gateway.state(&space, "shop", &pod).await == is("Ready", "slice")).then_some(())
    })
    .await;
    set_gate(&space, "shop-0", "False").await;
    patiently("the pod to be not ready", async || {
        (gateway.state(&space, "shop", &pod).await?.0 != "Ready").then_some(())
    })
    .await;
    gateway.tells(&registration, "renewed").await;
    assert_ne!(
        gateway.state(&space, "shop", &pod).await.expect("an endpoint").0,
        "Ready",
        "a renewal says nothing new"
    );
    gateway.stop().await;
}

async fn a_restarted_sidecar_is_heard_also_with_its_clock_set_back(space: TestNamespace) {
    let (_, pod, gateway) = scene(&space).await;
    let mut registration = Registration::of(&space, "shop", &pod).await;
    for event in ["ready", "not-ready"] {
        gateway.tells(registration.next(event), "accepted").await;
    }
    // A restart with a later start time begins to count again.
    registration.body["boot"] = json!("1700000001000-00000000000000bb");
    registration.body["sequence"] = json!(0);
    gateway.tells(registration.next("ready"), "accepted").await;
    assert_eq!(gateway.state(&space, "shop", &pod).await, is("Ready", "push"));
    gateway.tells(registration.next("not-ready"), "accepted").await;
    // With the clock set back, the answer names the newest known run, and one later is newer.
    registration.body["boot"] = json!("1600000000000-00000000000000cc");
    registration.body["sequence"] = json!(0);
    let stale = gateway.tells(registration.next("ready"), "stale").await;
    let known: u64 =
        stale["boot"].as_str().and_then(|boot| boot.split_once('-')?.0.parse().ok()).expect("a boot");
    assert_eq!(known, 1_700_000_001_000);
    registration.body["boot"] = json!(format!("{}-00000000000000cc", known + 1));
    gateway.tells(&registration, "accepted").await;
    assert_eq!(gateway.state(&space, "shop", &pod).await, is("Ready", "push"));
    gateway.stop().await;
}

async fn draining_is_final_for_the_run_of_a_sidecar(space: TestNamespace) {
    let (_, pod, gateway) = scene(&space).await;
    let mut registration = Registration::of(&space, "shop", &pod).await;
    gateway.tells(&registration, "accepted").await;
    gateway.tells(registration.next("draining"), "accepted").await;
    assert_eq!(gateway.state(&space, "shop", &pod).await, is("Draining", "push"));
    gateway.post_next(&mut registration, "ready").await;
    assert_eq!(gateway.state(&space, "shop", &pod).await, is("Draining", "push"));
    registration.body["boot"] = json!("1700000001000-00000000000000bb");
    gateway.tells(registration.next("ready"), "accepted").await;
    assert_eq!(gateway.state(&space, "shop", &pod).await, is("Ready", "push"));
    gateway.stop().await;
}

async fn switch(space: &TestNamespace, mode: &str) {
    space.patch(SERVICE, "shop", json!({ "metadata": { "annotations": { "rouse.dev/push": mode } } })).await;
}

async fn push_is_switched_under_load_without_a_failed_request(space: TestNamespace) {
    space.serve(&App::new("shop").replicas(2).env("LOG_REQUESTS", 0)).await;
    let pods = space.ready_pods("shop", 2).await;
    let [pod, _] = &pods[..] else { panic!("two pods") };
    let gateway = PushGateway::start(&space).await;
    for pod in &pods {
        gateway.until(&space, "shop", pod, Some("Ready")).await;
    }
    let load = Load::on(&target(&space, &gateway), 100);
    load.flows(50).await;
    let mut registration = Registration::of(&space, "shop", pod).await;
    let service = format!("{}/shop", space.name());
    for mode in ["off", "observe", "off"] {
        // On: the push counts. The first round has no annotation, so the gateway's own setting does.
        patiently("the push to count", async || {
            gateway.post_next(&mut registration, "not-ready").await;
            (gateway.state(&space, "shop", pod).await?.0 != "Ready").then_some(())
        })
        .await;
        load.flows(50).await;
        // Otherwise the slice, which says ready all the time.
        switch(&space, mode).await;
        gateway.until(&space, "shop", pod, Some("Ready")).await;
        let result = if mode == "off" { "off" } else { "observed" };
        let labels = [("service", service.as_str()), ("event_type", "not-ready"), ("result", result)];
        let before = gateway.attempts(&labels).await;
        gateway.post_next(&mut registration, "not-ready").await;
        assert_eq!(gateway.attempts(&labels).await, before + 1, "{mode}: it is counted");
        assert_eq!(
            gateway.state(&space, "shop", pod).await,
            is("Ready", "slice"),
            "{mode}: it changes nothing"
        );
        load.flows(50).await;
        switch(&space, "on").await;
    }
    load.stop().await.assert_perfect();
    gateway.stop().await;
}
