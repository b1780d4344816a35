//! Services that come, change hands and go, and slices of other writers.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::rig::{Rig, SLICES, edit, pass, pod, service, shop, slices};
use rouse_testkit::api_server::ApiServer;

/// A slice of Service `cart` that another writer manages.
fn foreign(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "shop",
            "labels": {
                "kubernetes.io/service-name": "cart",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "cart", "uid": "cart-uid"}],
        },
        "addressType": "IPv4", "ports": [], "endpoints": [],
    })
}

/// Removes the annotation of Service `cart`.
fn unannotate(api: &ApiServer) {
    edit(api, "services", "cart", |service| {
        service["metadata"]["annotations"].as_object_mut().unwrap().remove("rouse.dev/selector");
    });
}

#[tokio::test(start_paused = true)]
async fn without_its_annotation_a_service_loses_our_slices() {
    let api = shop(&[1, 2]);
    let rig = Rig::settled(&api).await;
    unannotate(&api);
    rig.until("the slices are gone", |rig| rig.slices("cart").is_empty()).await;
    rig.settle().await;
    let writes = rig.writes().len();
    api.put("pods", pod("cart", 3));
    rig.settle().await;
    assert_eq!(rig.writes().len(), writes, "it asks for nothing any more");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_with_a_selector_loses_our_slices_when_the_controller_of_kubernetes_has_had_time_for_its_own()
 {
    let api = shop(&[1]);
    let rig = Rig::settled(&api).await;
    edit(&api, "services", "cart", |service| service["spec"]["selector"] = json!({"app": "cart"}));
    pass(Duration::from_millis(1900)).await;
    assert_eq!(rig.slices("cart").len(), 1);
    pass(Duration::from_millis(200)).await;
    assert!(rig.slices("cart").is_empty());
    edit(&api, "services", "cart", |service| service["spec"]["selector"] = json!({}));
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs"]).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_slices_of_a_deleted_service_go_also_if_it_was_deleted_while_nothing_ran() {
    let api = shop(&[1]);
    api.put("services", service("till"));
    let rig = Rig::settled(&api).await;
    api.delete("services", "shop", "cart");
    rig.until("they are gone", |rig| rig.slices("cart").is_empty()).await;
    assert_eq!(rig.slices("till").len(), 1);
    rig.stop().await;
    api.delete("services", "shop", "till");
    let rig = Rig::settled(&api).await;
    assert!(api.all(SLICES).is_empty());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_being_deleted_gets_no_new_slice() {
    let api = shop(&[]);
    let mut leaving = service("till");
    leaving["metadata"]["deletionTimestamp"] = json!("2025-03-01T00:00:00Z");
    api.put("services", leaving);
    api.put("pods", pod("till", 1));
    let rig = Rig::settled(&api).await;
    assert!(rig.slices("till").is_empty());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_slices_of_an_earlier_service_of_that_name_are_replaced() {
    let api = shop(&[1]);
    let rig = Rig::settled(&api).await;
    let old = rig.slices("cart")[0]["metadata"]["name"].clone();
    api.delete("services", "shop", "cart");
    edit_uid(&api, "cart-uid-2");
    rig.until("the owner is the new one", |rig| {
        let owners = rig
            .slices("cart")
            .into_iter()
            .map(|slice| slice["metadata"]["ownerReferences"][0]["uid"].clone());
        owners.eq([json!("cart-uid-2")])
    })
    .await;
    assert_ne!(
        rig.slices("cart")[0]["metadata"]["name"],
        old,
        "the garbage collector may still delete the old one"
    );
    assert_eq!(rig.endpoints("cart"), ["cart-1 10.0.0.1:8080 rs"]);
    rig.stop().await;
}

fn edit_uid(api: &ApiServer, uid: &str) {
    let mut reborn = service("cart");
    reborn["metadata"]["uid"] = json!(uid);
    api.put("services", reborn);
}

#[tokio::test(start_paused = true)]
async fn slices_of_other_writers_are_neither_read_nor_touched() {
    let api = shop(&[1]);
    api.put(SLICES, foreign("cart-abc"));
    let mut unlabelled = foreign("cart-def");
    unlabelled["metadata"]["labels"] = json!({"kubernetes.io/service-name": "cart"});
    api.put(SLICES, unlabelled);
    let before: Vec<_> = ["cart-abc", "cart-def"].map(|name| api.get(SLICES, "shop", name)).into();
    let rig = Rig::settled(&api).await;
    for n in 2..5 {
        api.put("pods", pod("cart", n));
    }
    rig.settle().await;
    unannotate(&api);
    rig.settle().await;
    api.delete("services", "shop", "cart");
    rig.settle().await;
    let after: Vec<_> = ["cart-abc", "cart-def"].map(|name| api.get(SLICES, "shop", name)).into();
    assert_eq!(before, after);
    let reads = api.requests(|request| {
        request.method == Method::GET
            && request.path.contains("endpointslices")
            && !request.query.contains("labelSelector=endpointslice.kubernetes.io%2Fmanaged-by%3Drouse.dev")
    });
    assert!(reads.is_empty(), "{reads:?}");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_another_writer_takes_over_is_left_alone_from_then_on() {
    let api = shop(&[1]);
    let rig = Rig::settled(&api).await;
    let name = rig.slices("cart")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    edit(&api, SLICES, &name, |slice| {
        slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = json!("another.example.com");
    });
    let taken = api.get(SLICES, "shop", &name);
    rig.until("there is a new slice", |rig| rig.slices("cart").len() == 1).await;
    rig.settle().await;
    assert_eq!(api.get(SLICES, "shop", &name), taken);
    rig.stop().await;
}

type Change = fn(&mut Value);

#[tokio::test(start_paused = true)]
async fn what_other_clients_change_in_our_slices_is_repaired_after_a_second() {
    let api = shop(&[1, 2]);
    let rig = Rig::settled(&api).await;
    let good = rig.endpoints("cart");
    let changes: [(&str, Change); 3] = [
        ("emptied", |slice| slice["endpoints"] = json!([])),
        ("a forged endpoint", |slice| slice["endpoints"][0]["addresses"][0] = json!("192.0.2.1")),
        ("another service", |slice| {
            slice["metadata"]["labels"]["kubernetes.io/service-name"] = json!("till");
        }),
    ];
    for (what, change) in changes {
        let name = rig.slices("cart")[0]["metadata"]["name"].as_str().unwrap().to_owned();
        edit(&api, SLICES, &name, change);
        assert_ne!(rig.endpoints("cart"), good, "{what}");
        pass(Duration::from_millis(900)).await;
        assert_ne!(rig.endpoints("cart"), good, "{what}: it may change again soon");
        pass(Duration::from_millis(200)).await;
        assert_eq!(rig.endpoints("cart"), good, "{what}");
    }
    rig.settle().await;
    assert!(rig.slices("till").is_empty(), "there is no such Service");
    let name = rig.slices("cart")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    api.delete(SLICES, "shop", &name);
    rig.until_endpoints("cart", &[&good[0], &good[1]]).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_invalid_annotation_is_reported_and_changes_no_slice() {
    let api = shop(&[1]);
    let rig = Rig::settled(&api).await;
    edit(&api, "services", "cart", |service| {
        service["metadata"]["annotations"]["rouse.dev/selector"] = json!("app in (cart)");
    });
    api.put("pods", pod("cart", 2));
    rig.settle().await;
    assert_eq!(rig.endpoints("cart"), ["cart-1 10.0.0.1:8080 rs"]);
    let problems = rig.controller.problems();
    let why = &problems[&"shop/cart".parse().unwrap()].why;
    assert!(
        why.contains("rouse.dev/selector") && why.contains("\"app in (cart)\"") && why.contains("key=value"),
        "{why}"
    );
    rig.check_metrics(&[("syncs{result=\"error\"}", 1.0)]);
    edit(&api, "services", "cart", |service| {
        service["metadata"]["annotations"]["rouse.dev/selector"] = json!("app=cart");
    });
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs", "cart-2 10.0.0.2:8080 rs"]).await;
    rig.settle().await;
    assert!(rig.controller.problems().is_empty());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn only_the_watched_namespace_is_written() {
    let api = shop(&[1]);
    let mut other = service("other");
    other["metadata"]["namespace"] = json!("elsewhere");
    api.put("services", other);
    let rig = Rig::with(&api, |settings| settings.namespace = Some("shop".to_owned()));
    rig.settle().await;
    assert_eq!((rig.slices("cart").len(), slices(&api, "other").len()), (1, 0));
    assert_eq!(
        rig.endpoints("cart"),
        ["cart-1 10.0.0.1:8080 rs"],
        "nodes are seen, although they have no namespace"
    );
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_another_writer_takes_over_just_before_we_delete_it_stays() {
    let api = shop(&[1]);
    let rig = Rig::settled(&api).await;
    let name = rig.slices("cart")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    api.before_next_write("endpointslices/", move |api| {
        edit(api, SLICES, &name, |slice| {
            slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = json!("another");
        });
    });
    unannotate(&api);
    rig.settle().await;
    assert_eq!(api.all(SLICES).len(), 1);
    rig.stop().await;
}
