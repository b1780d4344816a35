//! The metrics, with exact values for scripted changes.

use http::Method;
use serde_json::json;

use crate::rig::{Rig, edit, leaving, pod, service, shop, unready};

#[tokio::test(start_paused = true)]
async fn every_metric_has_the_value_that_the_changes_give() {
    let api = shop(&[1, 2, 3]);
    let rig = Rig::with(&api, |settings| settings.options.max_endpoints_per_slice = "2".parse().unwrap());
    rig.settle().await;
    rig.check_metrics(&[
        ("changes{operation=\"create\"}", 2.0),
        ("changes{operation=\"update\"}", 0.0),
        ("changes{operation=\"delete\"}", 0.0),
        ("endpoints_desired", 3.0),
        ("num_endpoint_slices", 2.0),
        ("desired_endpoint_slices", 2.0),
        ("endpoints{ready=\"true\",serving=\"true\",terminating=\"false\"}", 3.0),
        ("endpoints_added_per_sync_sum", 3.0),
        ("endpoints_removed_per_sync_sum", 0.0),
        ("endpointslices_changed_per_sync_sum", 2.0),
        ("syncs{result=\"error\"}", 0.0),
    ]);
    // One is not ready, one leaves, and one more comes into the slice with room.
    api.put("pods", unready(pod("cart", 1), "2025-03-01T00:00:00Z"));
    rig.settle().await;
    api.put("pods", leaving(pod("cart", 2)));
    rig.settle().await;
    api.put("pods", pod("cart", 4));
    rig.settle().await;
    rig.check_metrics(&[
        ("changes{operation=\"create\"}", 2.0),
        ("changes{operation=\"update\"}", 3.0),
        ("endpoints_desired", 4.0),
        ("endpoints{ready=\"true\",serving=\"true\",terminating=\"false\"}", 2.0),
        ("endpoints{ready=\"false\",serving=\"false\",terminating=\"false\"}", 1.0),
        ("endpoints{ready=\"false\",serving=\"true\",terminating=\"true\"}", 1.0),
        ("endpoints_added_per_sync_sum", 4.0),
        ("endpointslices_changed_per_sync_sum", 5.0),
    ]);
    for n in [1, 2, 3] {
        api.delete("pods", "shop", &format!("cart-{n}"));
    }
    rig.settle().await;
    rig.check_metrics(&[
        ("endpoints_desired", 1.0),
        ("num_endpoint_slices", 1.0),
        ("desired_endpoint_slices", 1.0),
        ("endpoints_removed_per_sync_sum", 3.0),
        ("changes{operation=\"delete\"}", 1.0),
    ]);
    assert_eq!(rig.metric("rouse_endpointslice_unsynced_services"), Some(0.0));
    assert_eq!(rig.metric("rouse_endpointslice_oldest_unsynced_seconds"), Some(0.0));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn both_families_of_a_service_count_and_a_service_that_is_gone_does_not() {
    let api = shop(&[1]);
    edit(&api, "services", "cart", |service| service["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]));
    api.put("services", service("till"));
    let rig = Rig::settled(&api).await;
    rig.check_metrics(&[
        ("endpoints_desired", 1.0),
        ("num_endpoint_slices", 3.0),
        ("desired_endpoint_slices", 3.0),
    ]);
    api.delete("services", "shop", "cart");
    rig.settle().await;
    rig.check_metrics(&[
        ("endpoints_desired", 0.0),
        ("num_endpoint_slices", 1.0),
        ("desired_endpoint_slices", 1.0),
        ("changes{operation=\"delete\"}", 2.0),
    ]);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn conditions_that_are_not_written_are_absent() {
    let api = shop(&[1]);
    let rig = Rig::with(&api, |settings| settings.options.terminating_conditions = false);
    rig.settle().await;
    rig.check_metrics(&[("endpoints{ready=\"true\",serving=\"absent\",terminating=\"absent\"}", 1.0)]);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_cannot_be_written_grows_old() {
    let api = shop(&[1]);
    api.refuse(Method::POST, "endpointslices", 403, "no permission", None);
    let rig = Rig::start(&api);
    rig.until("it is a minute old", |rig| {
        rig.metric("rouse_endpointslice_oldest_unsynced_seconds").is_some_and(|age| age > 60.0)
    })
    .await;
    assert_eq!(rig.metric("rouse_endpointslice_unsynced_services"), Some(1.0));
    assert_eq!(rig.metric("rouse_endpointslice_failing_services"), Some(1.0));
    rig.stop().await;
}
