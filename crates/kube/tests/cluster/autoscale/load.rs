//! Load, time and gateways → scales that are written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use rouse_core::endpoint::ServiceId;
use rouse_kube::autoscale::ZeroGate;
use rouse_net::auth::BoxFuture;
use rouse_testkit::api_server::{ApiServer, InjectedFault};
use serde_json::json;

use super::rig::{Scene, running, scaled_route, shop, shop_with};
use crate::rig::{DEPLOYMENTS, ROUTES, annotated, route, service};

#[tokio::test(start_paused = true)]
async fn a_workload_follows_its_load_up_and_down_and_to_zero() {
    let mut scene = Scene::new(shop(1)).await;
    scene.load("gw-1", "cart", 25, 0);
    scene.until_replicas("cart", 3).await;
    scene.load("gw-1", "cart", 5, 0);
    scene.until_replicas("cart", 1).await;
    scene.seconds(120).await;
    assert_eq!(scene.replicas("cart"), 1, "requests are in flight");
    scene.load("gw-1", "cart", 0, 0);
    scene.seconds(58).await;
    assert_eq!(scene.replicas("cart"), 1, "for less than idle-after without a request");
    scene.until_replicas("cart", 0).await;
    let numbers: Vec<u64> = scene.writes().into_iter().map(|(_, pods)| pods).collect();
    let most = numbers.iter().position(|pods| *pods == 3).unwrap();
    let (up, down) = numbers.split_at(most);
    assert!(up.is_sorted() && down.is_sorted_by(|a, b| a > b), "up, then down: {numbers:?}");
    assert!(numbers.len() <= 5 && numbers.last() == Some(&0), "{numbers:?}");
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn each_write_is_based_on_the_version_that_it_was_decided_on() {
    let mut scene = Scene::new(shop(1)).await;
    scene.seconds(5).await;
    let version = scene.api.get(DEPLOYMENTS, "shop", "cart").unwrap()["metadata"]["resourceVersion"].clone();
    scene.load("gw-1", "cart", 15, 0);
    scene.until_replicas("cart", 2).await;
    let writes = scene.api.patches("scale");
    assert_eq!(writes[0].body["metadata"]["resourceVersion"], version);
    assert_eq!(writes[0].path, "/apis/apps/v1/namespaces/shop/deployments/cart/scale");
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_write_that_another_one_overtook_is_decided_again() {
    let mut scene = Scene::new(shop(1)).await;
    // Another writer scales it to 7 between the decision and the write.
    scene.api.before_next_write("/scale", |api| api.put(DEPLOYMENTS, running("cart", 7)));
    scene.load("gw-1", "cart", 25, 0);
    scene.until("it was tried", |scene| !scene.api.patches("scale").is_empty()).await;
    assert_eq!(scene.replicas("cart"), 7);
    // Nothing is scaled down before a window has passed; then the load counts again.
    scene.seconds(50).await;
    assert_eq!(scene.replicas("cart"), 7);
    scene.until_replicas("cart", 3).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn requests_at_zero_are_left_to_the_gateways() {
    let mut scene = Scene::new(shop(0)).await;
    scene.load("gw-1", "cart", 50, 50);
    scene.seconds(20).await;
    assert_eq!(scene.writes(), []);
    assert_eq!(scene.view("cart").unwrap().write, None);
    // A gateway wakes it: from there on, the load counts.
    scene.api.put(DEPLOYMENTS, running("cart", 1));
    scene.until_replicas("cart", 5).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_min_is_kept_up_from_zero_and_within_the_budget_of_starts() {
    let api = shop_with(0, &json!({"rouse.dev/min": "2"}));
    for n in 0..70 {
        let name = format!("s{n}");
        api.put("services", service(&name));
        api.put(DEPLOYMENTS, running(&name, 0));
        let route = route(&name, &format!("{name}.example.com"), &name);
        api.put(ROUTES, annotated(route, json!({"rouse.dev/autoscale": "on", "rouse.dev/min": "1"})));
    }
    let mut scene = Scene::new(api).await;
    scene.seconds(1).await;
    let first = scene.writes().len();
    assert!((50..=66).contains(&first), "{first} of 71 at once");
    scene.until("all are up", |scene| scene.writes().len() == 71).await;
    assert_eq!(scene.replicas("cart"), 2);
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_max_is_not_exceeded_and_a_min_is_kept() {
    let mut scene = Scene::new(shop_with(1, &json!({"rouse.dev/min": "1", "rouse.dev/max": "2"}))).await;
    scene.load("gw-1", "cart", 90, 0);
    scene.until_replicas("cart", 2).await;
    scene.seconds(60).await;
    assert_eq!(scene.replicas("cart"), 2);
    scene.load("gw-1", "cart", 0, 0);
    scene.until_replicas("cart", 1).await;
    scene.seconds(600).await;
    assert_eq!(scene.replicas("cart"), 1);
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_shorter_than_any_report_keep_a_service_up() {
    let mut scene = Scene::new(shop(1)).await;
    for _ in 0..20 {
        scene.short_requests("gw-1", "cart", 1);
        scene.seconds(30).await;
    }
    assert_eq!(scene.writes(), []);
    scene.until_replicas("cart", 0).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_rate_is_a_target_too() {
    let api = shop(1);
    let mut route = scaled_route(&json!({}));
    route["spec"]["scalingMetric"] = json!({"requestRate": {"targetValue": 10, "window": "30s"}});
    api.put(ROUTES, route);
    let mut scene = Scene::new(api).await;
    for _ in 0..60 {
        scene.short_requests("gw-1", "cart", 20);
        scene.pass(Duration::from_millis(500)).await;
    }
    assert_eq!(scene.replicas("cart"), 4, "40 requests per second, 10 per pod");
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_loads_of_all_gateways_are_summed() {
    let mut scene = Scene::new(shop(1)).await;
    scene.list(&["gw-1", "gw-2", "gw-3"]);
    for gateway in ["gw-1", "gw-2", "gw-3"] {
        scene.load(gateway, "cart", 9, 0);
    }
    scene.until_replicas("cart", 3).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_serves_but_is_silent_blocks_a_scale_down() {
    let mut scene = Scene::new(shop(1)).await;
    scene.list(&["gw-1", "gw-2"]);
    scene.seconds(30).await;
    scene.silence("gw-2", true);
    scene.seconds(300).await;
    assert_eq!(scene.replicas("cart"), 1);
    let (status, message) = scene.until_reason("r", "BlockedBySilentGateway").await;
    assert_eq!(status, "False");
    assert!(message.contains("not scaled down while gw-2 serves but sends no load reports"), "{message}");
    assert_eq!(scene.view("cart").unwrap().blocked.unwrap().0, "reporter_silent");
    scene.silence("gw-2", false);
    scene.until_replicas("cart", 0).await;
    scene.until_reason("r", "Scaling").await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_has_left_its_slice_is_forgotten() {
    let mut scene = Scene::new(shop(1)).await;
    scene.list(&["gw-1", "gw-2"]);
    scene.load("gw-2", "cart", 5, 0);
    scene.seconds(70).await;
    scene.silence("gw-2", true);
    scene.seconds(200).await;
    assert_eq!(scene.replicas("cart"), 1);
    scene.list(&["gw-1"]);
    scene.until_replicas("cart", 0).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_gateway_nothing_is_scaled_down() {
    let mut scene = Scene::new(shop(1)).await;
    scene.list(&[]);
    scene.seconds(300).await;
    assert_eq!(scene.writes(), []);
    let (_, message) = scene.until_reason("r", "BlockedWithoutGateways").await;
    assert!(message.contains("no gateway that reports load is known"), "{message}");
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_takes_two_minutes_is_not_scaled_away() {
    let api = shop(0);
    let mut scene = Scene::new(api).await;
    scene.seconds(70).await;
    scene.pod_start = Duration::from_mins(2);
    let mut woken = running("cart", 1);
    woken["status"]["readyReplicas"] = json!(0);
    scene.api.put(DEPLOYMENTS, woken);
    // The request gave up before the pod was ready.
    scene.load("gw-1", "cart", 1, 1);
    scene.seconds(20).await;
    scene.load("gw-1", "cart", 0, 0);
    scene.seconds(150).await;
    assert_eq!(scene.replicas("cart"), 1, "ready for less than idle-after");
    scene.until_replicas("cart", 0).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_route_is_not_scaled_to_zero_before_its_initial_cooldown() {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api.put(DEPLOYMENTS, running("cart", 1));
    // It is ten minutes after the creation.
    let object = |cooldown: u32| {
        json!({"metadata": {"name": "old", "namespace": "shop", "creationTimestamp": "2025-12-31T23:50:00Z",
                            "annotations": {"rouse.dev/autoscale": "on"}},
               "spec": {"hosts": ["old.example.com"], "scaledownPeriod": 10, "initialCooldownPeriod": cooldown,
                        "scaleTargetRef": {"name": "cart", "service": "cart", "port": 80}}})
    };
    api.put(crate::rig::HTTP_SCALED_OBJECT, object(1200));
    let mut scene = Scene::new(api).await;
    scene.seconds(590).await;
    assert_eq!(scene.writes(), []);
    assert_eq!(scene.view("cart").unwrap().blocked.unwrap().0, "new_route");
    scene.seconds(15).await;
    assert_eq!(scene.writes(), [("cart".to_owned(), 0)]);
    scene.stop().await;
}

/// A proxy that must be prepared for zero.
#[derive(Default)]
struct Gate {
    ready: AtomicBool,
    asked: AtomicUsize,
    cancelled: AtomicUsize,
    hangs: AtomicBool,
}

impl ZeroGate for Gate {
    fn prepare_zero<'a>(&'a self, service: &'a ServiceId) -> BoxFuture<'a, bool> {
        assert_eq!(service, &crate::rig::id("cart"));
        self.asked.fetch_add(1, Ordering::SeqCst);
        let (ready, hangs) = (self.ready.load(Ordering::SeqCst), self.hangs.load(Ordering::SeqCst));
        Box::pin(async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            ready
        })
    }

    fn cancel_zero(&self, _: &ServiceId) {
        self.cancelled.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_goes_to_zero_before_other_proxies_are_prepared() {
    let gate = Arc::<Gate>::default();
    let mut scene = Scene::with(shop(1), |settings| settings.zero_gate = Some(Arc::clone(&gate) as _)).await;
    scene.until("it was asked", |_| gate.asked.load(Ordering::SeqCst) >= 3).await;
    assert_eq!(scene.writes(), []);
    assert_eq!(scene.view("cart").unwrap().blocked.unwrap().0, "not_prepared");
    gate.hangs.store(true, Ordering::SeqCst);
    gate.ready.store(true, Ordering::SeqCst);
    scene.seconds(60).await;
    assert_eq!(scene.writes(), [], "no answer within the deadline is none");
    gate.hangs.store(false, Ordering::SeqCst);
    scene.until_replicas("cart", 0).await;
    assert_eq!(gate.cancelled.load(Ordering::SeqCst), 0);
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn requests_that_come_while_other_proxies_prepare_keep_the_pods_and_tell_the_proxies() {
    for (requests, pods) in [(1, 1), (25, 3)] {
        let gate = Arc::<Gate>::default();
        let mut scene = Scene::with(shop(1), |settings| {
            settings.zero_gate = Some(Arc::clone(&gate) as _);
            settings.prepare_deadline = Duration::from_secs(2);
        })
        .await;
        gate.ready.store(true, Ordering::SeqCst);
        // The write fails, so that it stays prepared when the requests come.
        scene.api.refuse(Method::PATCH, "/scale", 500, "etcd is slow", Some(1));
        scene.until("it was tried", |scene| !scene.api.patches("scale").is_empty()).await;
        scene.load("gw-1", "cart", requests, 0);
        scene.seconds(60).await;
        assert_eq!((scene.replicas("cart"), gate.cancelled.load(Ordering::SeqCst)), (pods, 1));
        scene.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_scale_that_is_refused_is_tried_again_with_pauses_and_told() {
    let mut scene = Scene::new(shop(1)).await;
    scene.api.refuse(Method::PATCH, "/scale", 403, "cannot patch resource", None);
    scene.load("gw-1", "cart", 25, 0);
    scene.seconds(300).await;
    let tries = scene.api.patches("scale").len();
    assert!((6..=14).contains(&tries), "{tries} tries in five minutes");
    let (status, message) = scene.until_reason("r", "BlockedByApiServer").await;
    assert_eq!(status, "False");
    assert!(message.contains("not allowed to scale Deployment cart in shop"), "{message}");
    scene.api.allow_all();
    scene.until_replicas("cart", 3).await;
    scene.until_reason("r", "Scaling").await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_write_that_hangs_or_panics_does_not_stop_the_others() {
    for fault in [InjectedFault::Hang, InjectedFault::Panic] {
        let api = shop(1);
        api.put("services", service("other"));
        api.put(DEPLOYMENTS, running("other", 1));
        let other = route("other", "other.example.com", "other");
        api.put(ROUTES, annotated(other, json!({"rouse.dev/autoscale": "on"})));
        let mut scene = Scene::new(api).await;
        scene.api.trap("/deployments/cart/scale", fault);
        scene.load("gw-1", "cart", 15, 0);
        scene.load("gw-1", "other", 15, 0);
        scene.until_replicas("other", 2).await;
        scene.until_replicas("cart", 2).await;
        scene.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_is_deleted_and_made_again_is_scaled_again() {
    let mut scene = Scene::new(shop(1)).await;
    scene.api.delete(DEPLOYMENTS, "shop", "cart");
    let (_, message) = scene.until_reason("r", "NoScaleTarget").await;
    assert!(message.contains("no Deployment or StatefulSet has the pods of Service shop/cart"), "{message}");
    scene.load("gw-1", "cart", 25, 0);
    scene.seconds(10).await;
    scene.api.put(DEPLOYMENTS, running("cart", 1));
    scene.until_replicas("cart", 3).await;
    scene.stop().await;
}
