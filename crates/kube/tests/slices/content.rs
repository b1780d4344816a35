//! What is written into slices, and how little.

use std::time::Duration;

use http::Method;
use rouse_core::slices::{MaxEndpoints, Options};
use serde_json::json;

use crate::rig::{Rig, edit, leaving, node, pass, pod, pod_names, service, shop, unready};
use rouse_testkit::api_server::ApiServer;

const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

#[tokio::test(start_paused = true)]
async fn a_service_without_a_selector_gets_the_slices_of_the_pods_that_its_annotation_names() {
    let api = shop(&[1]);
    api.put("pods", pod("till", 2));
    let rig = Rig::settled(&api).await;
    let [slice] = &rig.slices("cart")[..] else { panic!("one slice") };
    let name = slice["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("cart-"), "{name}");
    assert_eq!(slice["metadata"]["generateName"], "cart-");
    assert_eq!(
        slice["metadata"]["labels"],
        json!({"team": "a", "kubernetes.io/service-name": "cart",
               "endpointslice.kubernetes.io/managed-by": "rouse.dev"})
    );
    assert_eq!(
        slice["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Service", "name": "cart", "uid": "cart-uid",
                "controller": true, "blockOwnerDeletion": true}])
    );
    assert_eq!(slice["metadata"]["annotations"], json!({TRIGGER_TIME: "2025-01-01T00:00:00Z"}));
    assert_eq!(
        (&slice["addressType"], &slice["apiVersion"]),
        (&json!("IPv4"), &json!("discovery.k8s.io/v1"))
    );
    assert_eq!(slice["ports"], json!([{"name": "http", "port": 8080, "protocol": "TCP"}]));
    assert_eq!(
        slice["endpoints"],
        json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": "n1", "zone": "a",
                "targetRef": {"kind": "Pod", "namespace": "shop", "name": "cart-1", "uid": "cart-1-uid"}}])
    );
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_does_not_ask_gets_none() {
    let api = shop(&[]);
    api.delete("services", "shop", "cart");
    let mut selecting = service("selecting");
    selecting["spec"]["selector"] = json!({"app": "selecting"});
    let mut plain = service("plain");
    plain["metadata"]["annotations"] = json!({});
    let mut external = service("external");
    external["spec"]["type"] = json!("ExternalName");
    for service in [selecting, plain, external] {
        api.put("services", service);
    }
    let rig = Rig::settled(&api).await;
    assert!(rig.writes().is_empty(), "{:?}", rig.writes());
    rig.stop().await;
}

type Change = fn(&ApiServer);

#[tokio::test(start_paused = true)]
async fn each_change_of_a_pod_is_one_write() {
    let api = shop(&[1, 2]);
    let rig = Rig::settled(&api).await;
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs", "cart-2 10.0.0.2:8080 rs"]).await;
    let mut writes = 1;
    assert_eq!(rig.writes().len(), writes);
    let changes: [(&str, Change); 5] = [
        ("cart-1 10.0.0.1:8080 ", |api| api.put("pods", unready(pod("cart", 1), "2025-03-01T00:00:00Z"))),
        ("cart-1 10.0.0.1:8080 rs", |api| api.put("pods", pod("cart", 1))),
        ("cart-1 10.0.0.1:8080 st", |api| api.put("pods", leaving(pod("cart", 1)))),
        ("cart-1 10.0.0.1:8080 t", |api| {
            api.put("pods", leaving(unready(pod("cart", 1), "2025-03-01T00:00:01Z")));
        }),
        ("", |api| api.delete("pods", "shop", "cart-1")),
    ];
    for (expected, change) in changes {
        change(&api);
        let all = [expected, "cart-2 10.0.0.2:8080 rs"];
        rig.until_endpoints("cart", if expected.is_empty() { &all[1..] } else { &all }).await;
        rig.settle().await;
        writes += 1;
        assert_eq!(rig.writes().len(), writes, "{expected}");
    }
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_concern_an_endpoint_is_not_written() {
    let api = shop(&[1]);
    let rig = Rig::settled(&api).await;
    edit(&api, "pods", "cart-1", |pod| pod["metadata"]["labels"]["note"] = json!("x"));
    edit(&api, "pods", "cart-1", |pod| pod["status"]["message"] = json!("x"));
    edit(&api, "services", "cart", |service| service["metadata"]["annotations"]["note"] = json!("x"));
    api.put("pods", pod("till", 9));
    let mut beat = node("n1", "a");
    beat["metadata"]["annotations"] = json!({"beat": "1"});
    api.put("nodes", beat);
    rig.settle().await;
    assert_eq!(rig.writes().len(), 1);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_enters_and_leaves_with_its_labels_and_with_the_annotation() {
    let api = shop(&[1]);
    api.put("pods", pod("till", 2));
    let rig = Rig::settled(&api).await;
    edit(&api, "pods", "till-2", |pod| pod["metadata"]["labels"]["app"] = json!("cart"));
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs", "till-2 10.0.0.2:8080 rs"]).await;
    edit(&api, "pods", "cart-1", |pod| pod["metadata"]["labels"]["app"] = json!("other"));
    rig.until_endpoints("cart", &["till-2 10.0.0.2:8080 rs"]).await;
    edit(&api, "services", "cart", |service| {
        service["metadata"]["annotations"]["rouse.dev/selector"] = json!("app=other");
    });
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs"]).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_ended_leaves_without_a_change_of_its_readiness() {
    let api = shop(&[1, 2]);
    api.put("pods", unready(pod("cart", 2), "2025-03-01T00:00:00Z"));
    let rig = Rig::settled(&api).await;
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs", "cart-2 10.0.0.2:8080 "]).await;
    edit(&api, "pods", "cart-2", |pod| pod["status"]["phase"] = json!("Failed"));
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs"]).await;
    edit(&api, "pods", "cart-1", |pod| pod["status"]["phase"] = json!("Succeeded"));
    rig.until_endpoints("cart", &[]).await;
    assert_eq!(rig.slices("cart").len(), 1, "a placeholder");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_node_is_missing_waits_for_it_and_the_others_do_not() {
    let api = shop(&[1]);
    let mut lost = pod("cart", 2);
    lost["spec"]["nodeName"] = json!("n2");
    api.put("pods", lost);
    let rig = Rig::start(&api);
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs"]).await;
    rig.until("it is reported", |rig| !rig.controller.problems().is_empty()).await;
    let (_, problem) = rig.controller.problems().pop_first().unwrap();
    assert_eq!(problem.why, r#"node "n2" of pod "cart-2" is not known"#);
    pass(Duration::from_mins(5)).await;
    assert_eq!(rig.writes().len(), 1, "a retry that changes nothing writes nothing");
    api.put("nodes", node("n2", "b"));
    pass(Duration::from_millis(50)).await;
    assert_eq!(rig.endpoints("cart"), ["cart-1 10.0.0.1:8080 rs", "cart-2 10.0.0.2:8080 rs"], "at once");
    rig.settle().await;
    assert!(rig.controller.problems().is_empty());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_zone_of_a_node_is_followed_and_its_deletion_changes_nothing() {
    let api = shop(&[1]);
    let rig = Rig::settled(&api).await;
    api.put("nodes", node("n1", "b"));
    rig.until("the zone is written", |rig| rig.slices("cart")[0]["endpoints"][0]["zone"] == "b").await;
    api.delete("nodes", "", "n1");
    rig.settle().await;
    assert_eq!(rig.endpoints("cart"), ["cart-1 10.0.0.1:8080 rs"]);
    assert_eq!(rig.writes().len(), 2);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn each_family_of_a_service_has_its_slice() {
    let api = shop(&[]);
    edit(&api, "services", "cart", |service| service["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]));
    let mut both = pod("cart", 1);
    both["status"]["podIPs"] = json!([{"ip": "10.0.0.1"}, {"ip": "FD00::1"}]);
    api.put("pods", both);
    let rig = Rig::settled(&api).await;
    assert_eq!(rig.endpoints("cart"), ["cart-1 10.0.0.1:8080 rs", "cart-1 fd00::1:8080 rs"]);
    edit(&api, "services", "cart", |service| service["spec"]["ipFamilies"] = json!(["IPv6"]));
    rig.until_endpoints("cart", &["cart-1 fd00::1:8080 rs"]).await;
    assert_eq!(rig.slices("cart").len(), 1);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_other_clients_write_into_the_metadata_of_a_slice_stays() {
    let api = shop(&[1]);
    let rig = Rig::settled(&api).await;
    let name = rig.slices("cart")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    edit(&api, crate::rig::SLICES, &name, |slice| {
        slice["metadata"]["annotations"]["note"] = json!("kept");
        slice["metadata"]["finalizers"] = json!(["example.com/x"]);
        slice["metadata"]["labels"]["drifted"] = json!("x");
    });
    rig.until("the labels are repaired", |rig| {
        rig.slices("cart")[0]["metadata"]["labels"].get("drifted").is_none()
    })
    .await;
    let slice = &rig.slices("cart")[0]["metadata"];
    assert_eq!(
        (&slice["annotations"]["note"], &slice["finalizers"][0]),
        (&json!("kept"), &json!("example.com/x"))
    );
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_slice_has_the_time_of_the_change_that_it_was_last_written_for() {
    let api = shop(&[1, 2]);
    let rig = Rig::settled(&api).await;
    let time = |rig: &Rig| rig.slices("cart")[0]["metadata"]["annotations"].get(TRIGGER_TIME).cloned();
    assert_eq!(time(&rig), Some(json!("2025-01-01T00:00:00Z")), "that of the new Service");
    api.put("pods", unready(pod("cart", 2), "2025-03-01T00:00:02Z"));
    rig.settle().await;
    assert_eq!(time(&rig), Some(json!("2025-03-01T00:00:02Z")));
    api.delete("pods", "shop", "cart-2");
    rig.settle().await;
    assert_eq!(time(&rig), None, "no pod has become ready or not ready");
    rig.stop().await;
    // Two changes in one sync: the earlier one counts.
    let rig = Rig::with(&api, |settings| settings.batch_window = Duration::from_millis(500));
    rig.settle().await;
    assert_eq!(time(&rig), None, "a restart writes nothing");
    for (n, at) in [(1, "2025-03-01T00:00:07Z"), (3, "2025-03-01T00:00:05Z")] {
        api.put("pods", unready(pod("cart", n), at));
    }
    rig.settle().await;
    assert_eq!(time(&rig), Some(json!("2025-03-01T00:00:05Z")));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn changes_within_the_batching_window_are_one_write() {
    let api = shop(&[]);
    let rig = Rig::with(&api, |settings| settings.batch_window = Duration::from_secs(2));
    rig.settle().await;
    assert_eq!(rig.writes().len(), 1, "the placeholder");
    for n in 1..=20 {
        api.put("pods", pod("cart", n));
        pass(Duration::from_millis(90)).await;
    }
    assert_eq!(rig.writes().len(), 1, "the window is open");
    rig.settle().await;
    assert_eq!((rig.writes().len(), rig.endpoints("cart").len()), (2, 20));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn terminating_conditions_can_be_turned_off_and_on_again() {
    let options = |on| Options { terminating_conditions: on, ..Options::default() };
    let conditions = |rig: &Rig| {
        let slices = rig.slices("cart");
        let mut all: Vec<_> =
            slices[0]["endpoints"].as_array().unwrap().iter().map(|one| one["conditions"].clone()).collect();
        all.sort_by_key(ToString::to_string);
        all
    };
    let whole = json!({"ready": true, "serving": true, "terminating": false});
    let gone = json!({"ready": false, "serving": true, "terminating": true});
    let bare = json!({"ready": true});

    let api = shop(&[1, 2]);
    let rig = Rig::with(&api, |settings| settings.options = options(true));
    rig.settle().await;
    api.put("pods", leaving(pod("cart", 2)));
    rig.settle().await;
    assert_eq!(conditions(&rig), [gone.clone(), whole.clone()]);
    rig.stop().await;

    let rig = Rig::with(&api, |settings| settings.options = options(false));
    rig.settle().await;
    assert_eq!(conditions(&rig), std::slice::from_ref(&bare), "the pod that is being deleted is left out");
    let writes = rig.writes().len();
    api.put("pods", pod("cart", 3));
    rig.settle().await;
    assert_eq!(conditions(&rig), [bare.clone(), bare.clone()]);
    assert_eq!(rig.writes().len(), writes + 1);
    rig.stop().await;

    let rig = Rig::with(&api, |settings| settings.options = options(true));
    rig.settle().await;
    assert_eq!(conditions(&rig), [gone, whole.clone(), whole]);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn slices_that_were_written_with_the_conditions_keep_them_until_their_next_write() {
    let api = shop(&[1, 2]);
    let rig = Rig::settled(&api).await;
    rig.stop().await;
    let rig = Rig::with(&api, |settings| settings.options.terminating_conditions = false);
    rig.settle().await;
    let conditions = || rig.slices("cart")[0]["endpoints"][0]["conditions"].clone();
    assert_eq!(conditions(), json!({"ready": true, "serving": true, "terminating": false}));
    api.put("pods", unready(pod("cart", 2), "2025-03-01T00:00:00Z"));
    rig.settle().await;
    assert_eq!(conditions(), json!({"ready": true}), "the whole slice was written");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn five_thousand_pods_of_a_service_fill_their_slices_and_a_change_is_one_write() {
    let api = shop(&[]);
    for n in 1..=5000 {
        api.put("pods", pod("cart", n));
    }
    let rig = Rig::settled(&api).await;
    assert_eq!(pod_names(&rig.slices("cart")).len(), 5000);
    let created = rig.writes();
    assert_eq!((created.len(), rig.slices("cart").len()), (50, 50));
    assert!(created.iter().all(|write| write.method == Method::POST));
    api.put("pods", unready(pod("cart", 2500), "2025-03-01T00:00:00Z"));
    rig.settle().await;
    api.delete("pods", "shop", "cart-17");
    rig.settle().await;
    assert_eq!(rig.writes().len(), 52);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_size_of_slices_is_a_setting() {
    let api = shop(&[1, 2, 3, 4, 5]);
    let rig = Rig::with(&api, |settings| {
        settings.options.max_endpoints_per_slice = MaxEndpoints::new(2).unwrap();
    });
    rig.settle().await;
    let mut sizes: Vec<usize> =
        rig.slices("cart").iter().map(|slice| slice["endpoints"].as_array().unwrap().len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 2, 2]);
    rig.stop().await;
}
