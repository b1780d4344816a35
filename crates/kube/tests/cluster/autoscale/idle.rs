//! Schedules, idle policies that learn, and what of them survives a restart.

use std::time::Duration;

use http::Method;
use rouse_core::scale::IdlePlan;
use rouse_testkit::api_server::{ApiRequest, ApiServer};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::rig::{Controller, OWN, Scene, scaled_route, shop_with};
use crate::rig::{DEPLOYMENTS, ROUTES, annotated, route, service};

const CONFIG_MAPS: &str = "configmaps";

fn learned() -> ApiServer {
    shop_with(0, &json!({"rouse.dev/idle": "learned", "rouse.dev/idle-after": "1m"}))
}

/// The objects of learned state, by name.
fn objects(api: &ApiServer) -> Vec<Value> {
    (0..16).filter_map(|n| api.get(CONFIG_MAPS, OWN, &format!("rouse-scaling-state-{n}"))).collect()
}

/// The only entry of all objects: its key and what it has.
fn entry(api: &ApiServer) -> Option<(String, String)> {
    let data = objects(api).into_iter().filter_map(|object| object.get("binaryData").cloned());
    let entries = data.flat_map(|data| data.as_object().unwrap().clone());
    let mut entries: Vec<(String, Value)> = entries.collect();
    assert!(entries.len() <= 1, "{entries:?}");
    entries.pop().map(|(key, value)| (key, value.as_str().unwrap().to_owned()))
}

fn state_writes(api: &ApiServer) -> Vec<ApiRequest> {
    api.requests(|request| request.path.contains("/configmaps") && request.method != Method::GET)
}

/// A caller that comes every ten minutes, for this many times. A gateway wakes the service if it is at zero. Returns how many of
/// the callers met a pod.
async fn callers(scene: &mut Scene, count: usize) -> usize {
    let mut met = 0;
    for _ in 0..count {
        scene.seconds(595).await;
        if scene.replicas("cart") > 0 {
            met += 1;
        } else {
            scene.api.put(DEPLOYMENTS, super::rig::running("cart", 1));
        }
        scene.load("gw-1", "cart", 1, 0);
        scene.seconds(5).await;
        scene.load("gw-1", "cart", 0, 0);
    }
    met
}

fn gaps(scene: &Scene) -> f32 {
    let explained = scene.autoscaler().explain(&crate::rig::id("cart"));
    explained[0].1.as_ref().unwrap().seen
}

#[tokio::test(start_paused = true)]
async fn a_schedule_starts_pods_when_it_begins_and_lets_them_go_when_it_ends() {
    // It is 00:00 UTC, which is 01:00 in Berlin, on a Thursday.
    let schedule = "Thu 01:30-02:00 Europe/Berlin = 2; Fri 00:00-24:00 Europe/Berlin = 9";
    let mut scene = Scene::new(shop_with(1, &json!({"rouse.dev/schedule": schedule}))).await;
    scene.until_replicas("cart", 0).await;
    scene.seconds(29 * 60 - 90).await;
    assert_eq!(scene.replicas("cart"), 0);
    let before = Instant::now();
    scene.until_replicas("cart", 2).await;
    assert!(before.elapsed() <= Duration::from_secs(155), "{:?}", before.elapsed());
    scene.load("gw-1", "cart", 45, 0);
    scene.until_replicas("cart", 5).await;
    scene.load("gw-1", "cart", 0, 0);
    scene.until_replicas("cart", 2).await;
    scene.seconds(20 * 60).await;
    assert_eq!(scene.replicas("cart"), 2, "a floor, not a target");
    let (status, message) = scene.until_reason("r", "Scaling").await;
    assert!(status == "True" && message.contains("this is what the schedule says"), "{message}");
    scene.until_replicas("cart", 0).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn of_several_schedules_to_one_workload_the_largest_floor_counts() {
    let api = shop_with(0, &json!({"rouse.dev/schedule": "daily 00:01-00:20 UTC = 2"}));
    let other = route("other", "other.example.com", "cart");
    api.put(ROUTES, annotated(other, json!({"rouse.dev/schedule": "daily 00:10-00:30 UTC = 3"})));
    let mut scene = Scene::new(api).await;
    for (minute, expected) in [(5, 2), (15, 3), (25, 3), (40, 0)] {
        let due = Duration::from_mins(minute);
        let passed = super::rig::time_of_day().duration_since(super::rig::begin()).unwrap();
        scene.pass(due.saturating_sub(passed)).await;
        assert_eq!(scene.replicas("cart"), expected, "at 00:{minute}");
    }
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_schedule_at_zero_keeps_to_the_budget_of_starts() {
    let api = shop_with(0, &json!({}));
    for n in 0..80 {
        let name = format!("s{n}");
        api.put("services", service(&name));
        api.put(DEPLOYMENTS, super::rig::running(&name, 0));
        let route = route(&name, &format!("{name}.example.com"), &name);
        let annotations =
            json!({"rouse.dev/autoscale": "on", "rouse.dev/schedule": "daily 00:02-00:30 UTC = 1"});
        api.put(ROUTES, annotated(route, annotations));
    }
    let mut scene = Scene::new(api).await;
    scene.until("it begins", |scene| !scene.writes().is_empty()).await;
    scene.seconds(1).await;
    let first = scene.writes().len();
    assert!((50..=70).contains(&first), "{first} of 80 at once");
    scene.until("all are up", |scene| scene.writes().len() == 80).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_wrong_schedule_keeps_the_last_good_one() {
    let mut scene =
        Scene::new(shop_with(0, &json!({"rouse.dev/schedule": "daily 00:05-00:30 UTC = 2"}))).await;
    scene.seconds(60).await;
    scene.api.put(ROUTES, scaled_route(&json!({"rouse.dev/schedule": "whenever"})));
    scene.until_replicas("cart", 2).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn after_the_learning_phase_a_caller_meets_a_pod_that_was_started_ahead() {
    let mut scene = Scene::new(learned()).await;
    assert!(callers(&mut scene, 6).await <= 1, "at zero after idle-after");
    let before = scene.writes().len();
    assert_eq!(callers(&mut scene, 4).await, 4);
    let writes: Vec<u64> = scene.writes().split_off(before).into_iter().map(|(_, pods)| pods).collect();
    assert!(writes.chunks(2).all(|pair| pair.is_sorted() || pair.is_sorted_by(|a, b| a > b)), "{writes:?}");
    assert!(writes.iter().filter(|pods| **pods == 1).count() >= 3, "away in between: {writes:?}");
    let explained = scene.autoscaler().explain(&crate::rig::id("cart"));
    let report = explained[0].1.as_ref().unwrap();
    assert!(report.has_learned() && report.cost < report.fixed_cost, "{report:?}");
    assert!(matches!(report.plan, IdlePlan { back: Some(_), .. }), "{report:?}");
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_learned_is_kept_in_a_config_map_written_at_most_every_five_minutes() {
    let mut scene = Scene::new(learned()).await;
    callers(&mut scene, 2).await;
    let (key, first) = entry(&scene.api).unwrap();
    assert_eq!(key, "shop_apps_Deployment_cart");
    // Many gaps of a few seconds: each changes what is learned.
    let (before, began) = (state_writes(&scene.api).len(), Instant::now());
    for _ in 0..200 {
        scene.load("gw-1", "cart", 1, 0);
        scene.seconds(4).await;
        scene.load("gw-1", "cart", 0, 0);
        scene.seconds(6).await;
    }
    assert_eq!(began.elapsed(), Duration::from_secs(2000));
    let writes = state_writes(&scene.api).split_off(before);
    assert!((5..=7).contains(&writes.len()), "{} writes in {:?}", writes.len(), began.elapsed());
    assert!(
        writes
            .iter()
            .all(|write| write.method == Method::PATCH
                && write.body["metadata"]["resourceVersion"].is_string())
    );
    assert_ne!(entry(&scene.api).unwrap().1, first);
    let size = entry(&scene.api).unwrap().1.len();
    assert!(size <= 88, "64 bytes in base64, not {size}");
    scene.stop().await;
}

/// Replaces the controller of a scene that has seen callers. Returns the scene, and how many gaps the last one had seen.
async fn replaced(mut scene: Scene, end: impl AsyncFnOnce(Controller)) -> (Scene, f32) {
    let seen = gaps(&scene);
    end(scene.controllers.remove(0)).await;
    scene.controllers.push(Controller::start(&scene.api, "two", |_| {}));
    scene.until("it leads", |scene| scene.autoscaler().view().leads).await;
    scene.seconds(1).await;
    (scene, seen)
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_is_killed_loses_nothing_that_was_written() {
    let mut scene = Scene::new(learned()).await;
    callers(&mut scene, 8).await;
    scene.seconds(330).await;
    let (mut scene, seen) = replaced(scene, Controller::kill).await;
    assert!((gaps(&scene) - seen).abs() < 0.1, "{} instead of {seen}", gaps(&scene));
    // The first gap has no known begin; from then on, it is as before.
    scene.until_replicas("cart", 0).await;
    assert!(callers(&mut scene, 4).await >= 3);
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_stops_writes_what_it_learned_since_the_last_time() {
    let mut scene = Scene::new(learned()).await;
    callers(&mut scene, 8).await;
    let (scene, seen) = replaced(scene, Controller::stop).await;
    assert!((gaps(&scene) - seen).abs() < 0.1, "{} instead of {seen}", gaps(&scene));
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_successor_that_has_heard_the_reports_needs_no_config_map() {
    let api = learned();
    api.refuse(Method::GET, "/configmaps", 403, "not you", None);
    let mut scene = Scene::new(api).await;
    scene.controllers.push(Controller::start(&scene.api, "two", |_| {}));
    callers(&mut scene, 8).await;
    let seen = gaps(&scene);
    let first = scene.controllers.remove(0);
    first.stop().await;
    scene.until("it leads", |scene| scene.autoscaler().view().leads).await;
    // It is decided about anew.
    scene.seconds(1).await;
    assert!((gaps(&scene) - seen).abs() < 0.1, "{} instead of {seen}", gaps(&scene));
    assert!(state_writes(&scene.api).is_empty(), "what is not read is not overwritten");
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn config_maps_that_are_missing_damaged_or_edited_mean_the_fixed_window() {
    let api = learned();
    for n in 0..16 {
        let data = json!({"shop_apps_Deployment_cart": "AAAA", "other": 7, "more": "!"});
        let meta = json!({"name": format!("rouse-scaling-state-{n}"), "namespace": OWN});
        api.put(CONFIG_MAPS, json!({"metadata": meta, "binaryData": data}));
    }
    let mut scene = Scene::new(api).await;
    assert!(gaps(&scene) < 0.1);
    assert!(callers(&mut scene, 3).await <= 1);
    assert!(scene.writes().contains(&("cart".to_owned(), 0)), "after idle-after");
    // What is damaged is replaced as soon as something is learned.
    scene.until("it is written", |scene| !state_writes(&scene.api).is_empty()).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_entry_goes_with_its_target_and_another_writer_is_not_overwritten() {
    let mut scene = Scene::new(learned()).await;
    callers(&mut scene, 2).await;
    let mut object = objects(&scene.api).remove(0);
    // Another writer adds an entry that no target of ours has: it goes at the next write, which is based on it.
    object["binaryData"]["gone"] = json!("AAAA");
    scene.api.put(CONFIG_MAPS, object);
    callers(&mut scene, 2).await;
    assert_eq!(entry(&scene.api).unwrap().0, "shop_apps_Deployment_cart");
    scene.api.delete(ROUTES, "shop", "r");
    scene.seconds(310).await;
    assert_eq!(entry(&scene.api), None);
    scene.stop().await;
}
