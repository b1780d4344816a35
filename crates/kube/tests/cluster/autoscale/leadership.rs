//! Only the leader writes, and only what it knows well enough.

use rouse_kube::autoscale::AutoscaleDefault;
use serde_json::json;

use super::rig::{Controller, Scene, running, shop, shop_with};
use crate::rig::{DEPLOYMENTS, HTTP_SCALED_OBJECT, ROUTES, annotated, route, service};

#[tokio::test(start_paused = true)]
async fn of_two_replicas_one_writes_and_the_other_knows_the_load() {
    let mut scene = Scene::new(shop(1)).await;
    scene.controllers.push(Controller::start(&scene.api, "two", |_| {}));
    scene.load("gw-1", "cart", 25, 0);
    scene.until_replicas("cart", 3).await;
    let numbers: Vec<u64> = scene.writes().into_iter().map(|(_, pods)| pods).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "each once: {numbers:?}");
    let follower = &scene.controllers[1].autoscaler;
    let key = rouse_core::load_meter::LoadKey::Service(crate::rig::id("cart"));
    assert_eq!(follower.present(&key).total(), 25);
    assert!(!follower.view().leads);
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_successor_scales_nothing_down_before_one_stable_window() {
    let mut scene = Scene::new(shop(1)).await;
    scene.controllers.push(Controller::start(&scene.api, "two", |_| {}));
    scene.load("gw-1", "cart", 45, 0);
    scene.until_replicas("cart", 5).await;
    scene.load("gw-1", "cart", 15, 0);
    scene.seconds(20).await;
    let first = scene.controllers.remove(0);
    first.stop().await;
    scene.until("the other one leads", |scene| scene.autoscaler().view().leads).await;
    scene.seconds(55).await;
    assert_eq!(scene.replicas("cart"), 5);
    scene.until_replicas("cart", 2).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_successor_scales_up_at_once() {
    let mut scene = Scene::new(shop(1)).await;
    scene.controllers.push(Controller::start(&scene.api, "two", |_| {}));
    scene.load("gw-1", "cart", 15, 0);
    scene.until_replicas("cart", 2).await;
    let first = scene.controllers.remove(0);
    first.kill().await;
    scene.load("gw-1", "cart", 55, 0);
    scene.seconds(20).await;
    scene.until_replicas("cart", 6).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_stopped_past_its_lease_writes_nothing_until_it_is_elected_again() {
    let mut scene = Scene::new(shop(1)).await;
    scene.load("gw-1", "cart", 5, 0);
    scene.seconds(70).await;
    assert_eq!(scene.replicas("cart"), 1);
    // SIGSTOP: no task runs, and the clock goes on. The write is due at the very moment at which it goes on.
    scene.load("gw-1", "cart", 25, 0);
    scene.controllers[0].clock.jump(12);
    let before = scene.api.patches("scale").len();
    assert!(!scene.autoscaler().view().leads);
    scene.until("it is elected again", |scene| scene.autoscaler().view().leads).await;
    assert_eq!(scene.api.patches("scale").len(), before);
    scene.until_replicas("cart", 3).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_changes_nothing() {
    let api = shop(3);
    api.put(ROUTES, route("r", "shop.example.com", "cart"));
    api.put(ROUTES, annotated(route("s", "s.example.com", "cart"), json!({"rouse.dev/idle-after": "1s"})));
    api.put(
        HTTP_SCALED_OBJECT,
        json!({"metadata": {"name": "old", "namespace": "shop"},
        "spec": {"hosts": ["old.example.com"], "replicas": {"min": 5, "max": 9}, "scaledownPeriod": 1,
                 "scaleTargetRef": {"name": "cart", "service": "cart", "port": 80}}}),
    );
    let before = api.get(DEPLOYMENTS, "shop", "cart");
    let mut scene = Scene::new(api).await;
    scene.pod_start = std::time::Duration::from_hours(1000);
    scene.load("gw-1", "cart", 500, 100);
    scene.seconds(120).await;
    scene.load("gw-1", "cart", 0, 0);
    scene.seconds(1200).await;
    let writes = scene.all_writes();
    assert!(writes.is_empty(), "{writes:?}");
    assert_eq!(scene.api.get(DEPLOYMENTS, "shop", "cart"), before);
    let view = scene.view("cart").unwrap();
    assert_eq!((view.state, view.write, view.routes.len()), ("not_enabled", None, 3));
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn by_default_on_scales_deployments_but_a_stateful_set_needs_the_annotation() {
    let api = shop(2);
    api.put(ROUTES, route("r", "shop.example.com", "cart"));
    api.put("services", service("db"));
    api.put(super::rig::STATEFUL_SETS, running("db", 2));
    api.put(ROUTES, route("db", "db.example.com", "db"));
    let mut scene = Scene::with(api, |settings| settings.default = AutoscaleDefault::On).await;
    scene.until_replicas("cart", 0).await;
    scene.seconds(300).await;
    assert_eq!(scene.view("db").unwrap().state, "not_enabled");
    let on = annotated(route("db", "db.example.com", "db"), json!({"rouse.dev/autoscale": "on"}));
    scene.api.put(ROUTES, on);
    let pods = |scene: &Scene| {
        scene.api.get(super::rig::STATEFUL_SETS, "shop", "db").unwrap()["spec"]["replicas"].as_u64()
    };
    scene.until("it is scaled too", |scene| pods(scene) == Some(0)).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_route_can_be_turned_off_and_on_while_it_runs() {
    let mut scene = Scene::new(shop(2)).await;
    let off = annotated(route("r", "shop.example.com", "cart"), json!({"rouse.dev/autoscale": "off"}));
    scene.api.put(ROUTES, off);
    scene.seconds(300).await;
    assert_eq!((scene.writes(), scene.autoscaled("r")), (vec![], None));
    scene.api.put(ROUTES, super::rig::scaled_route(&json!({})));
    scene.until_replicas("cart", 0).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_decides_and_writes_nothing() {
    let api = shop_with(1, &json!({"rouse.dev/min": "2"}));
    let clock = super::rig::JumpClock::new();
    let leadership = rouse_kube::lease::Leadership::never(clock.clone() as _);
    let settings =
        rouse_kube::autoscale::AutoscaleSettings::new(super::rig::OWN, clock, super::rig::time_of_day, 1);
    let metrics = rouse_kube::autoscale::AutoscaleMetrics::default();
    let autoscaler =
        rouse_kube::autoscale::AutoscaleController::new(api.client(), settings, leadership, metrics);
    let cancel = tokio_util::sync::CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(std::sync::Arc::clone(&autoscaler).run(cancel.clone()));
    autoscaler.synced().await;
    crate::rig::pass(std::time::Duration::from_mins(5)).await;
    let view = autoscaler.view().targets.remove(0);
    assert_eq!((view.pods, view.write), (Some((1, 1)), Some(2)));
    let decision = view.decision.unwrap();
    assert_eq!((decision.desired, decision.reason), (2, "min"));
    assert_eq!(view.policy.as_deref(), Some("min 2, max 100, 10 concurrent requests per pod"));
    cancel.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap().unwrap();
    }
    let writes = api.requests(|request| request.method != http::Method::GET);
    assert!(writes.is_empty(), "{writes:?}");
}
