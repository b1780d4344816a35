//! Services without a selector whose annotation names their pods: served like those with a selector, and no forged slice
//! gains anything by a label.

use std::time::Duration;

use rouse_core::engine::Engine as _;
use serde_json::{Value, json};

use crate::rig::{
    DEPLOYMENTS, ROUTES, Rig, SLICES, annotated, deployment, id, pass, route, service, slice, synced,
};
use rouse_testkit::api_server::ApiServer;

/// Service `cart` without a selector, whose annotation is this.
fn cart_of(annotation: &str) -> Value {
    let mut service = annotated(service("cart"), json!({"rouse.dev/selector": annotation}));
    service["spec"].as_object_mut().unwrap().remove("selector");
    service
}

/// Pod `cart-N` at 10.0.0.N, as [`slice`] names it, with this label `app`.
fn pod(n: u8, app: &str) -> Value {
    json!({"metadata": {"name": format!("cart-{n}"), "namespace": "shop", "uid": format!("cart-{n}"), "labels": {"app": app}},
           "spec": {}, "status": {"podIPs": [{"ip": format!("10.0.0.{n}")}]}})
}

/// A slice with the label of Rouse.
fn ours(name: &str, pods: &[u8]) -> Value {
    let mut slice = slice(name, "cart", pods);
    slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = json!("rouse.dev");
    slice
}

/// Service `cart` of the pods with the label `app=cart`; pods 1 and 2 have it, and pod 3 has `app=bank`.
fn shop() -> ApiServer {
    let api = ApiServer::default();
    api.put("services", cart_of("app=cart"));
    for (n, app) in [(1, "cart"), (2, "cart"), (3, "bank")] {
        api.put("pods", pod(n, app));
    }
    api
}

fn ips(rig: &Rig) -> Vec<String> {
    rig.endpoints("cart").into_iter().map(|(_, address)| address).collect()
}

async fn until_ips(rig: &Rig, what: &str, expected: &[u8]) {
    let expected: Vec<String> = expected.iter().map(|n| format!("10.0.0.{n}:8080")).collect();
    rig.until(what, |rig| ips(rig) == expected).await;
}

#[tokio::test(start_paused = true)]
async fn only_pods_that_the_annotation_selects_get_requests_whatever_a_slice_with_our_label_names() {
    let api = shop();
    api.put(SLICES, ours("cart-a", &[1, 2]));
    let (api, rig) = synced(api).await;
    until_ips(&rig, "its pods are there", &[1, 2]).await;
    rig.until_watched("pods").await;
    let mut forged = ours("forged", &[3, 3, 3]);
    forged["endpoints"][1]["targetRef"]["uid"] = json!("cart-1");
    forged["endpoints"][2].as_object_mut().unwrap().remove("targetRef");
    api.put_alone(SLICES, forged);
    pass(Duration::from_mins(2)).await;
    until_ips(&rig, "nothing was gained", &[1, 2]).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_forged_slice_is_not_reached_through_the_cluster_ip_either() {
    let api = shop();
    api.put(SLICES, ours("cart-a", &[1]));
    let direct = json!({"rouse.dev/direct-pod-routing": "disabled"});
    api.put(ROUTES, annotated(route("r", "shop.example.com", "cart"), direct));
    let (api, rig) = synced(api).await;
    let uses_cluster_ip =
        |rig: &Rig| !rig.plan("shop/r").unwrap().target.clone().unwrap().cluster_ips.is_empty();
    rig.until("the ClusterIP is in use", uses_cluster_ip).await;
    api.put_alone(SLICES, ours("forged", &[3]));
    rig.until("the ClusterIP is not in use", |rig| !uses_cluster_ip(rig)).await;
    until_ips(&rig, "its pod is", &[1]).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_relabelled_leaves_before_its_slice_says_so_and_comes_back_with_its_label() {
    let api = shop();
    api.put(SLICES, ours("cart-a", &[1, 2, 3]));
    let (api, rig) = synced(api).await;
    until_ips(&rig, "its pods are there", &[1, 2]).await;
    rig.until_watched("pods").await;
    pass(Duration::from_secs(40)).await;
    for (n, app, expected) in [(1, "bank", &[2][..]), (3, "cart", &[2, 3]), (1, "cart", &[1, 2, 3])] {
        api.put("pods", pod(n, app));
        pass(Duration::from_millis(50)).await;
        until_ips(&rig, &format!("pod {n} is of {app}"), expected).await;
    }
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_leaves_also_if_all_endpoints_of_its_slice_were_admitted_before() {
    let api = shop();
    api.put(SLICES, ours("cart-a", &[1, 2]));
    let (api, rig) = synced(api).await;
    until_ips(&rig, "its pods are there", &[1, 2]).await;
    rig.until_watched("pods").await;
    pass(Duration::from_secs(40)).await;
    api.put("pods", pod(1, "bank"));
    pass(Duration::from_millis(50)).await;
    assert_eq!(ips(&rig), ["10.0.0.2:8080"], "it does not wait for its slice");
    api.put("pods", pod(1, "cart"));
    until_ips(&rig, "it is back", &[1, 2]).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_annotation_selects_other_pods_of_the_same_slices() {
    let api = shop();
    api.put(SLICES, ours("cart-a", &[1, 2, 3]));
    let (api, rig) = synced(api).await;
    until_ips(&rig, "its pods are there", &[1, 2]).await;
    rig.until_watched("pods").await;
    api.put("services", cart_of("app=bank"));
    until_ips(&rig, "the other pod is there", &[3]).await;
    api.put("services", cart_of("app=cart"));
    until_ips(&rig, "they are back", &[1, 2]).await;
    // Kubernetes' own controller applies a selector, so it is not compared with pods.
    api.put("services", service("cart"));
    until_ips(&rig, "all are there", &[1, 2, 3]).await;
    let mut without = service("cart");
    without["spec"].as_object_mut().unwrap().remove("selector");
    api.put("services", without);
    until_ips(&rig, "none is there", &[]).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_invalid_annotation_costs_no_endpoint() {
    let api = shop();
    api.put(SLICES, ours("cart-a", &[1, 2]));
    let (api, rig) = synced(api).await;
    until_ips(&rig, "its pods are there", &[1, 2]).await;
    api.put("services", cart_of("app in (cart)"));
    pass(Duration::from_mins(1)).await;
    until_ips(&rig, "they stay", &[1, 2]).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_were_relabelled_while_they_were_not_watched_leave_with_the_next_list() {
    let api = shop();
    api.put(SLICES, ours("cart-a", &[1, 2]));
    let (api, rig) = synced(api).await;
    until_ips(&rig, "its pods are there", &[1, 2]).await;
    rig.until_watched("pods").await;
    api.set_silent(true);
    api.put("pods", pod(2, "bank"));
    api.set_silent(false);
    api.expire();
    until_ips(&rig, "it was noticed", &[1]).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_without_a_selector_wakes_the_workload_of_the_pods_that_its_annotation_names() {
    let api = ApiServer::default();
    api.put("services", cart_of("app=cart"));
    api.put(DEPLOYMENTS, deployment("cart", "cart", 0));
    api.put(DEPLOYMENTS, deployment("bank", "bank", 0));
    api.put(ROUTES, route("r", "shop.example.com", "cart"));
    let (api, rig) = synced(api).await;
    rig.cluster.wake(&id("cart"));
    let replicas = |name: &str| api.get(DEPLOYMENTS, "shop", name).unwrap()["spec"]["replicas"].clone();
    rig.until("it is woken", |_| replicas("cart") == 1).await;
    assert_eq!(replicas("bank"), 0);
    rig.stop().await;
}
