//! Which workload a route scales, and what several routes to one workload add up to.

use http::Method;
use rouse_testkit::api_server::ApiServer;
use serde_json::{Value, json};

use super::rig::{Scene, scaled_route, shop, shop_with};
use crate::rig::{
    DEPLOYMENTS, HTTP_SCALED_OBJECT, ROUTES, SCALED_OBJECT, annotated, deployment, route, service,
};

/// The targets that are scaled or owned, and the routes without one.
async fn found(objects: &[(&str, Value)]) -> Vec<String> {
    let api = shop(1);
    for name in ["by-keda", "by-annotation", "by-name"] {
        api.put(DEPLOYMENTS, deployment(name, "unrelated", 1));
    }
    for (collection, object) in objects {
        api.put(collection, object.clone());
    }
    let mut scene = Scene::new(api).await;
    scene.seconds(2).await;
    let view = scene.autoscaler().view();
    let targets = view.targets.iter().map(|target| format!("{} {}", target.name, target.state));
    let without = view.without_target.iter().map(|route| format!("{}: {}", route.route, route.because));
    let all = targets.chain(without).collect();
    scene.stop().await;
    all
}

#[tokio::test(start_paused = true)]
async fn the_workload_is_found_as_the_spec_says() {
    let annotated_route =
        scaled_route(&json!({"rouse.dev/scale-target": "apps/v1/Deployment/by-annotation"}));
    let by_keda = json!({"metadata": {"name": "so", "namespace": "shop"},
        "spec": {"scaleTargetRef": {"name": "by-keda"},
                 "triggers": [{"type": "external-push", "metadata": {"interceptorRoute": "r"}}]}});
    let by_name = json!({"metadata": {"name": "old", "namespace": "shop", "annotations": {"rouse.dev/autoscale": "on"}},
        "spec": {"hosts": ["old.example.com"], "scaleTargetRef": {"name": "by-name", "service": "cart", "port": 80}}});
    assert_eq!(found(&[]).await, ["cart managed"]);
    assert_eq!(found(&[(ROUTES, annotated_route.clone())]).await, ["by-annotation managed"]);
    // What names the route owns the workload.
    assert_eq!(found(&[(ROUTES, annotated_route), (SCALED_OBJECT, by_keda)]).await, ["by-keda owned"]);
    assert_eq!(found(&[(HTTP_SCALED_OBJECT, by_name)]).await, ["by-name managed", "cart managed"]);
    let twin = ("apps/statefulsets", deployment("twin", "cart", 1));
    let both = found(&[twin]).await;
    assert!(
        both[0].contains("both Deployment cart and StatefulSet twin have the pods of Service"),
        "{both:?}"
    );
    let relabelled = [("services", service("x")), (DEPLOYMENTS, deployment("cart", "x", 1))];
    let none = found(&relabelled).await;
    assert!(none[0].contains("no Deployment or StatefulSet has the pods of Service shop/cart"), "{none:?}");
    let missing = annotated(route("r", "a.example.com", "gone"), json!({"rouse.dev/autoscale": "on"}));
    let missing = found(&[(ROUTES, missing)]).await;
    assert_eq!(missing, ["InterceptorRoute/r: there is no Service shop/gone"]);
}

#[tokio::test(start_paused = true)]
async fn a_service_without_a_selector_finds_its_workload_by_the_annotation() {
    let mut without = service("cart");
    without["spec"]["selector"] = json!({});
    let found_without = found(&[("services", without.clone())]).await;
    assert!(found_without[0].contains("Service shop/cart has no selector"), "{found_without:?}");
    let annotated = annotated(without, json!({"rouse.dev/selector": "app=cart"}));
    assert_eq!(found(&[("services", annotated)]).await, ["cart managed"]);
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_appears_or_is_relabelled_is_found() {
    let mut scene = Scene::new(shop(1)).await;
    scene.api.put(DEPLOYMENTS, deployment("cart", "renamed", 1));
    scene.until_reason("r", "NoScaleTarget").await;
    let mut successor = deployment("other", "cart", 1);
    successor["status"] = json!({"readyReplicas": 1});
    scene.api.put(DEPLOYMENTS, successor);
    scene.load("gw-1", "cart", 25, 0);
    scene.until_replicas("other", 3).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn several_routes_to_one_workload_are_summed_and_the_strictest_settings_count() {
    let api = shop_with(2, &json!({"rouse.dev/max": "9", "rouse.dev/min": "1"}));
    let mut twin = service("twin");
    twin["spec"]["selector"] = json!({"app": "cart"});
    api.put("services", twin);
    let mut other = route("other", "other.example.com", "twin");
    other["spec"]["scalingMetric"] = json!({"concurrency": {"targetValue": 5}});
    api.put(ROUTES, annotated(other, json!({"rouse.dev/max": "6", "rouse.dev/min": "2"})));
    let mut scene = Scene::new(api).await;
    // 10 requests of each service, 5 per pod.
    scene.load("gw-1", "cart", 10, 0);
    scene.load("gw-1", "twin", 10, 0);
    scene.until_replicas("cart", 4).await;
    let view = scene.view("cart").unwrap();
    assert_eq!(view.policy.as_deref(), Some("min 2, max 6, 5 concurrent requests per pod"));
    assert_eq!(view.services, ["shop/cart", "shop/twin"]);
    scene.load("gw-1", "twin", 90, 0);
    scene.until_replicas("cart", 6).await;
    let (status, _) = scene.until_reason("other", "Scaling").await;
    assert_eq!(status, "True", "a route that does not ask for it says so too");
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn settings_that_contradict_each_other_are_told_on_all_routes() {
    let api = shop_with(3, &json!({"rouse.dev/min": "5"}));
    let other = route("other", "other.example.com", "cart");
    api.put(ROUTES, annotated(other, json!({"rouse.dev/max": "2"})));
    let mut scene = Scene::new(api).await;
    for route in ["r", "other"] {
        let (status, message) = scene.until_reason(route, "BadPolicy").await;
        assert_eq!(status, "False");
        assert_eq!(
            message,
            "the settings of the routes other, r: min: 5 is not allowed, expected 0 to max, which is 2"
        );
    }
    scene.seconds(300).await;
    assert_eq!(scene.writes(), []);
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_route_that_says_off_turns_a_shared_workload_off() {
    let api = shop(2);
    let other = route("other", "other.example.com", "cart");
    api.put(ROUTES, annotated(other, json!({"rouse.dev/autoscale": "off"})));
    let mut scene = Scene::new(api).await;
    let (status, message) = scene.until_reason("r", "TurnedOff").await;
    assert_eq!(status, "False");
    assert_eq!(message, "rouse.dev/autoscale of route other turns the scaling of Deployment cart off");
    scene.seconds(300).await;
    assert_eq!((scene.writes(), scene.autoscaled("other")), (vec![], None));
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_good_version_of_a_route_goes_on_scaling() {
    let mut scene = Scene::new(shop(1)).await;
    scene.api.put(ROUTES, scaled_route(&json!({"rouse.dev/max": "many"})));
    scene.load("gw-1", "cart", 25, 0);
    scene.until_replicas("cart", 3).await;
    scene.stop().await;
}

/// Argo's Rollouts, as discovery and the API server have them.
fn rollouts(pods: u32, ready: u32) -> ApiServer {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    let target = "argoproj.io/v1alpha1/Rollout/cart";
    api.put(ROUTES, scaled_route(&json!({"rouse.dev/scale-target": target})));
    let resources = json!({"resources": [{"name": "rollouts", "kind": "Rollout"},
                                         {"name": "rollouts/scale", "kind": "Scale"}]});
    api.object_at("/apis/argoproj.io/v1alpha1", resources);
    api.put("argoproj.io/rollouts", rollout(pods, ready));
    api
}

fn rollout(pods: u32, ready: u32) -> Value {
    json!({"metadata": {"name": "cart", "namespace": "shop"}, "spec": {"replicas": pods},
           "status": {"replicas": pods, "readyReplicas": ready}})
}

#[tokio::test(start_paused = true)]
async fn a_workload_of_any_kind_with_a_scale_is_read_and_written() {
    let mut scene = Scene::new(rollouts(1, 1)).await;
    scene.load("gw-1", "cart", 25, 0);
    let pods = |scene: &Scene| {
        scene.api.get("argoproj.io/rollouts", "shop", "cart").unwrap()["spec"]["replicas"].as_u64().unwrap()
    };
    scene.until("it is scaled", |scene| pods(scene) == 3).await;
    scene.api.put("argoproj.io/rollouts", rollout(3, 3));
    scene.load("gw-1", "cart", 0, 0);
    scene.until("it is at zero", |scene| pods(scene) == 0).await;
    assert_eq!(scene.writes().last(), Some(&("cart".to_owned(), 0)));
    // At zero it is hardly read.
    scene.seconds(10).await;
    let reads = |scene: &Scene| {
        scene
            .api
            .requests(|request| request.method == Method::GET && request.path.ends_with("/cart/scale"))
            .len()
    };
    let before = reads(&scene);
    scene.seconds(3600).await;
    let rest = reads(&scene) - before;
    assert!((10..=15).contains(&rest), "{rest} reads in an hour at zero");
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_kind_that_another_writer_scaled_is_read_before_it_is_written() {
    let mut scene = Scene::new(rollouts(1, 1)).await;
    scene.seconds(5).await;
    scene.api.put("argoproj.io/rollouts", rollout(7, 7));
    scene.load("gw-1", "cart", 25, 0);
    scene.seconds(30).await;
    assert_eq!(scene.writes(), [], "it has enough pods");
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_kind_that_does_not_exist_is_told_and_found_later() {
    let api = rollouts(1, 1);
    api.delete("argoproj.io/rollouts", "shop", "cart");
    let mut scene = Scene::new(api).await;
    let (_, message) = scene.until_reason("r", "NoScaleTarget").await;
    assert!(message.contains("Rollout cart in shop does not exist, or has no scale"), "{message}");
    scene.seconds(600).await;
    let looks = scene.api.requests(|request| request.path.ends_with("/rollouts/cart/scale")).len();
    assert!((10..=20).contains(&looks), "{looks} looks in ten minutes");
    scene.api.put("argoproj.io/rollouts", rollout(1, 1));
    scene.until_reason("r", "Scaling").await;
    scene.stop().await;
}
