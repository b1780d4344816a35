//! Workloads that an HPA or a `ScaledObject` scales are left alone.

use http::Method;
use serde_json::{Value, json};

use super::rig::{HPAS, Scene, hpa, shop};
use crate::rig::SCALED_OBJECT;

fn scaled_object(target: &str) -> Value {
    json!({"metadata": {"name": "so", "namespace": "shop"},
           "spec": {"scaleTargetRef": {"name": target}, "triggers": [{"type": "cron", "metadata": {}}]}})
}

#[tokio::test(start_paused = true)]
async fn an_hpa_that_comes_stops_the_scaling_and_one_that_goes_lets_it_begin_again() {
    let api = shop(2);
    api.put(HPAS, hpa("unrelated", "other"));
    let mut scene = Scene::new(api).await;
    scene.seconds(30).await;
    scene.api.put(HPAS, hpa("cart", "cart"));
    let (status, message) = scene.until_reason("r", "OwnedByHpa").await;
    assert_eq!(status, "False");
    assert_eq!(message, "HorizontalPodAutoscaler cart scales Deployment cart, so Rouse only wakes it");
    scene.seconds(300).await;
    assert_eq!(scene.writes(), []);
    assert_eq!(scene.view("cart").unwrap().state, "owned");
    scene.api.delete(HPAS, "shop", "cart");
    scene.seconds(55).await;
    assert_eq!(scene.writes(), [], "it is seen anew: not before one stable window");
    scene.until_replicas("cart", 0).await;
    scene.until_reason("r", "Scaling").await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_scaled_object_is_named_before_the_hpa_that_keda_makes_for_it() {
    let api = shop(2);
    api.put(SCALED_OBJECT, scaled_object("cart"));
    api.put(HPAS, hpa("keda-hpa-so", "cart"));
    let mut scene = Scene::new(api).await;
    let (_, message) = scene.until_reason("r", "OwnedByScaledObject").await;
    assert!(message.starts_with("ScaledObject so scales Deployment cart"), "{message}");
    scene.api.delete(SCALED_OBJECT, "shop", "so");
    scene.until_reason("r", "OwnedByHpa").await;
    scene.seconds(300).await;
    assert_eq!(scene.writes(), []);
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_keda_everything_is_scaled() {
    let api = shop(2);
    api.set_missing(SCALED_OBJECT, true);
    let mut scene = Scene::new(api).await;
    scene.until_replicas("cart", 0).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn while_owners_cannot_be_listed_nothing_is_scaled_down() {
    for (kind, resource) in [(HPAS, "horizontalpodautoscalers"), (SCALED_OBJECT, "scaledobjects")] {
        let api = shop(2);
        api.refuse(Method::GET, &format!("/{resource}"), 403, "not you", None);
        let mut scene = Scene::new(api).await;
        scene.load("gw-1", "cart", 35, 0);
        scene.until_replicas("cart", 4).await;
        scene.load("gw-1", "cart", 0, 0);
        scene.seconds(300).await;
        assert_eq!(scene.replicas("cart"), 4, "{kind}");
        let (status, message) = scene.until_reason("r", "BlockedByUnknownOwners").await;
        assert_eq!(status, "False");
        assert!(message.contains(&format!("list and watch {resource}")), "{message}");
        assert_eq!(scene.view("cart").unwrap().blocked.unwrap().0, "unknown_owners");
        scene.api.allow_all();
        scene.until_replicas("cart", 0).await;
        scene.stop().await;
    }
}
