//! The condition `Autoscaled`, Kubernetes Events, and metrics.

use http::Method;
use prometheus_client::encoding::text::encode;
use rouse_kube::autoscale::AutoscaleCollector;
use rouse_testkit::api_server::ApiServer;
use serde_json::{Value, json};

use super::rig::{Scene, running, scaled_route, shop};
use crate::rig::{DEPLOYMENTS, HTTP_SCALED_OBJECT, ROUTES, Rig, condition, service};

fn events(api: &ApiServer) -> Vec<Value> {
    let posted = api.requests(|request| request.method == Method::POST && request.path.ends_with("/events"));
    posted.into_iter().map(|request| request.body).collect()
}

#[tokio::test(start_paused = true)]
async fn the_condition_says_how_many_pods_and_why() {
    let mut scene = Scene::new(shop(1)).await;
    scene.load("gw-1", "cart", 25, 0);
    scene.until_replicas("cart", 3).await;
    scene
        .until("it is said", |scene| {
            scene.autoscaled("r").is_some_and(|(_, _, message)| message.contains("3 pods"))
        })
        .await;
    let (status, reason, message) = scene.autoscaled("r").unwrap();
    assert_eq!((&*status, &*reason), ("True", "Scaling"));
    assert_eq!(
        message,
        "Deployment cart: 3 pods, min 0, max 100, 10 concurrent requests per pod, to zero after 60s without load; \
         the load needs 3 pods"
    );
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn it_stands_beside_the_conditions_of_a_gateway_and_neither_is_overwritten() {
    let api = shop(1);
    let gateway = Rig::synced(&api).await;
    let mut scene = Scene::new(api).await;
    scene.load("gw-1", "cart", 5, 0);
    scene.until_reason("r", "Scaling").await;
    gateway.until_condition("r", "Ready").await;
    for n in 0..20 {
        scene.load("gw-1", "cart", 5 + 10 * (n % 3), 0);
        if n % 4 == 0 {
            let mut object = scene.api.get(ROUTES, "shop", "r").unwrap();
            object["metadata"]["generation"] = json!(n + 2);
            object["spec"]["target"]["port"] = json!(80 + n % 8);
            scene.api.put(ROUTES, object);
        }
        scene.seconds(10).await;
        let kinds = ["Autoscaled", "Ready", "Accepted", "HostsClaimed"];
        assert!(kinds.iter().all(|kind| gateway.condition("r", kind).is_some()), "{n}");
    }
    let rest = scene.api.patches("status").len();
    scene.load("gw-1", "cart", 5, 0);
    scene.seconds(900).await;
    let quiet = scene.api.patches("status").len() - rest;
    assert!(quiet <= 4, "{quiet} writes while nothing changes");
    gateway.stop().await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_condition_is_not_written_often_and_a_restart_writes_nothing_new() {
    let mut scene = Scene::new(shop(1)).await;
    for n in 0..60 {
        scene.load("gw-1", "cart", if n % 2 == 0 { 95 } else { 15 }, 0);
        scene.seconds(10).await;
    }
    let writes = scene.api.patches("status").len();
    assert!((2..=22).contains(&writes), "{writes} writes in ten minutes");
    scene.load("gw-1", "cart", 5, 0);
    scene.until_replicas("cart", 1).await;
    scene.seconds(120).await;
    let before = scene.api.patches("status").len();
    let api = scene.api.clone();
    scene.stop().await;
    let mut scene = Scene::new(api).await;
    scene.load("gw-1", "cart", 5, 0);
    scene.seconds(300).await;
    assert_eq!(scene.api.patches("status").len(), before);
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_route_that_is_not_scaled_any_more_loses_its_condition() {
    let mut scene = Scene::new(shop(1)).await;
    scene.load("gw-1", "cart", 5, 0);
    scene.until_reason("r", "Scaling").await;
    scene.seconds(60).await;
    let mut object = scene.api.get(ROUTES, "shop", "r").unwrap();
    object["metadata"]["annotations"] = json!({});
    scene.api.put(ROUTES, object);
    scene.until("it is gone", |scene| scene.autoscaled("r").is_none()).await;
    scene.stop().await;
}

fn old(annotations: &Value) -> Value {
    json!({"metadata": {"name": "old", "namespace": "shop", "generation": 1, "annotations": annotations},
           "spec": {"hosts": ["old.example.com"], "scaleTargetRef": {"name": "cart", "service": "cart", "port": 80}},
           "status": {"conditions": [{"type": "Ready", "status": "True", "message": "by KEDA"}]}})
}

#[tokio::test(start_paused = true)]
async fn on_an_http_scaled_object_it_has_the_fields_that_each_version_of_keda_requires() {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api.put(DEPLOYMENTS, running("cart", 1));
    api.put(HTTP_SCALED_OBJECT, old(&json!({"rouse.dev/autoscale": "on"})));
    let gateway = Rig::synced(&api).await;
    let mut scene = Scene::new(api).await;
    scene.load("gw-1", "cart", 5, 0);
    let object = |scene: &Scene| scene.api.get(HTTP_SCALED_OBJECT, "shop", "old").unwrap();
    scene.until("it is said", |scene| condition(&object(scene), "Autoscaled").is_some()).await;
    scene.seconds(60).await;
    let conditions = object(&scene)["status"]["conditions"].clone();
    let ours = conditions.as_array().unwrap().iter().find(|one| one["type"] == "Autoscaled").unwrap();
    for field in ["type", "status", "reason", "message", "lastTransitionTime", "timestamp"] {
        assert!(ours[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {ours}");
    }
    assert_eq!(condition(&object(&scene), "Ready").unwrap().2, "by KEDA");
    assert!(condition(&object(&scene), "HostsClaimed").is_some(), "that of the gateway");
    gateway.stop().await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_does_not_allow_the_condition_is_asked_once() {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api.put(DEPLOYMENTS, running("cart", 1));
    api.put(HTTP_SCALED_OBJECT, old(&json!({"rouse.dev/autoscale": "on"})));
    api.refuse(Method::PATCH, "/status", 422, "Unsupported value: \"Autoscaled\"", None);
    let mut scene = Scene::new(api).await;
    scene.load("gw-1", "cart", 5, 0);
    scene.seconds(600).await;
    assert_eq!(scene.api.patches("status").len(), 1);
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn each_change_of_a_workload_is_an_event_on_its_oldest_route() {
    let mut scene = Scene::new(shop(1)).await;
    scene.load("gw-1", "cart", 25, 0);
    scene.until_replicas("cart", 3).await;
    scene.load("gw-1", "cart", 0, 0);
    scene.until_replicas("cart", 0).await;
    scene.seconds(1).await;
    let events = events(&scene.api);
    let first = &events[0];
    assert_eq!((&first["reason"], &first["type"]), (&json!("ScaledUp"), &json!("Normal")));
    assert_eq!(first["message"], "scaled Deployment cart from 1 to 2: the load needs 2 pods");
    assert_eq!(first["reportingComponent"], "rouse.dev/controller");
    assert_eq!(first["involvedObject"]["kind"], "InterceptorRoute");
    assert_eq!(events.last().unwrap()["reason"], "ScaledDown");
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_statuses_nothing_but_scales_is_written() {
    let mut scene = Scene::with(shop(1), |settings| settings.write_status = false).await;
    scene.load("gw-1", "cart", 25, 0);
    scene.until_replicas("cart", 3).await;
    scene.seconds(60).await;
    let others = scene.all_writes().into_iter().filter(|request| !request.path.ends_with("/scale"));
    assert_eq!(others.count(), 0);
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn metrics_count_decisions_writes_and_what_is_blocked() {
    let mut scene = Scene::new(shop(1)).await;
    let autoscaler = scene.autoscaler().clone();
    AutoscaleCollector::register(autoscaler, &mut scene.controllers[0].metrics);
    scene.api.put(ROUTES, scaled_route(&json!({})));
    scene.load("gw-1", "cart", 25, 0);
    scene.until_replicas("cart", 3).await;
    scene.list(&["gw-1", "gw-2"]);
    scene.silence("gw-2", true);
    scene.load("gw-1", "cart", 0, 0);
    scene.seconds(200).await;
    let mut text = String::new();
    encode(&mut text, &scene.controllers[0].metrics).unwrap();
    for line in [
        "rouse_autoscaler_leader 1",
        "rouse_autoscaler_targets{state=\"managed\"} 1",
        "rouse_autoscaler_writes_total{direction=\"up\",result=\"written\"} 2",
        "rouse_autoscaler_blocked{reason=\"reporter_silent\"} 1",
        "rouse_autoscaler_reporters{state=\"heard\"} 1",
        "rouse_autoscaler_reporters{state=\"silent\"} 1",
        "rouse_autoscaler_decisions_total{reason=\"load\"}",
        "rouse_autoscaler_decisions_total{reason=\"reporter_silent\"}",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    scene.stop().await;
}
