//! What ends a claim: changes of its pod and of its Service. Pushes that are not true any more are withdrawn at once.

use std::time::Duration;

use rouse_core::endpoint::{PodUid, State};
use rouse_core::merge::PushEvent;
use rouse_net::auth::{Claim, PushMode};
use rouse_testkit::api_server::ApiServer;
use serde_json::{Value, json};

use super::{
    check, claim, denied, edit, following, granted, ip, is_granted, lookups, pod, push, put_off, register,
};
use super::{service, shop};
use crate::rig::{SLICES, annotated, pass, slice};

/// Registers `cart-1`, applies a change, and waits until its push is withdrawn. That takes no time: the lease still runs.
async fn ends(what: &str, change: impl FnOnce(&ApiServer)) {
    let api = shop();
    api.put("pods", pod("cart-2", 2));
    let rig = following(&api).await;
    register(&rig, &claim(1)).await;
    let began = tokio::time::Instant::now();
    change(&api);
    rig.until(what, |rig| rig.endpoints("cart").is_empty()).await;
    assert!(!is_granted(&rig, &claim(1)), "{what}");
    assert!(began.elapsed() < Duration::from_secs(1), "{what}: {:?}", began.elapsed());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_push_is_withdrawn_as_soon_as_its_pod_or_service_changes() {
    let of_pod = |change: fn(&mut Value)| move |api: &ApiServer| edit(api, "pods", "cart-1", change);
    let of_service = |change: fn(&mut Value)| move |api: &ApiServer| edit(api, "services", "cart", change);
    ends("a relabelled pod", of_pod(|pod| pod["metadata"]["labels"]["app"] = json!("other"))).await;
    ends("a pod with another address", of_pod(|pod| pod["status"]["podIPs"] = json!([{"ip": "10.0.0.8"}])))
        .await;
    ends("a pod without an address", of_pod(|pod| pod["status"]["podIPs"] = json!([]))).await;
    ends("a pod that has ended", of_pod(|pod| pod["status"]["phase"] = json!("Failed"))).await;
    ends("a pod of the same name", of_pod(|pod| pod["metadata"]["uid"] = json!("reborn"))).await;
    ends("a pod that is gone", |api| api.delete("pods", "shop", "cart-1")).await;
    ends("another pod at its address", |api| {
        let mut newer = pod("till-1", 1);
        newer["metadata"]["creationTimestamp"] = json!("2025-01-01T00:00:00Z");
        newer["metadata"]["labels"] = json!({});
        api.put("pods", newer);
    })
    .await;
    ends(
        "a Service with another selector",
        of_service(|it| it["spec"]["selector"] = json!({"app": "other"})),
    )
    .await;
    ends("a Service with another port", of_service(|it| it["spec"]["ports"][1]["targetPort"] = json!(9001)))
        .await;
    ends("a Service that is gone", |api| api.delete("services", "shop", "cart")).await;
    for mode in ["off", "observe", "nonsense"] {
        ends(mode, |api| api.put("services", annotated(service("cart"), json!({"rouse.dev/push": mode}))))
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn changes_that_were_missed_are_found_in_the_next_list() {
    let changes: [fn(&ApiServer); 4] = [
        |api| api.delete("pods", "shop", "cart-1"),
        |api| edit(api, "pods", "cart-1", |pod| pod["metadata"]["labels"] = json!({})),
        |api| edit(api, "services", "cart", |service| service["spec"]["selector"] = json!({"app": "other"})),
        |api| api.delete("services", "shop", "cart"),
    ];
    for change in changes {
        let api = shop();
        let rig = following(&api).await;
        register(&rig, &claim(1)).await;
        api.set_silent(true);
        change(&api);
        pass(Duration::from_secs(1)).await;
        assert!(is_granted(&rig, &claim(1)), "nothing was seen");
        api.set_silent(false);
        api.expire();
        rig.until("the push is withdrawn", |rig| rig.endpoints("cart").is_empty()).await;
        assert!(!is_granted(&rig, &claim(1)));
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_last_claim_of_a_pod_about_a_service_is_granted() {
    let api = shop();
    edit(&api, "pods", "cart-1", |pod| {
        pod["status"]["podIPs"] = json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.7"}]);
    });
    let rig = following(&api).await;
    let (one, both) = (claim(1), Claim { ips: vec![ip(1), ip(7)], ..claim(1) });
    granted(&rig, &one).await;
    granted(&rig, &both).await;
    assert!(!is_granted(&rig, &one), "a push of it that is applied now must be withdrawn");
    // A change of the pod keeps the push of the last claim.
    push(&rig, &both, PushEvent::Ready, 1);
    edit(&api, "pods", "cart-1", |pod| pod["metadata"]["labels"]["new"] = json!("y"));
    pass(Duration::from_secs(1)).await;
    assert!(is_granted(&rig, &both));
    assert_eq!(rig.ready("cart"), 1);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_other_pods_of_a_service_stay_when_one_leaves() {
    let api = shop();
    api.put("pods", pod("cart-2", 2));
    let rig = following(&api).await;
    register(&rig, &claim(1)).await;
    register(&rig, &claim(2)).await;
    edit(&api, "pods", "cart-1", |pod| pod["metadata"]["labels"] = json!({}));
    rig.until_ready("one leaves", 1).await;
    assert_eq!(rig.endpoints("cart"), [(State::Ready, "10.0.0.2:8080".to_owned())]);
    assert!(is_granted(&rig, &claim(2)));
    assert!(denied(&rig, &claim(1)).await.contains("labels"));
    // What changes nothing about the claim leaves it alone.
    edit(&api, "pods", "cart-2", |pod| pod["metadata"]["labels"]["new"] = json!("y"));
    edit(&api, "services", "cart", |service| service["spec"]["sessionAffinity"] = json!("ClientIP"));
    pass(Duration::from_secs(1)).await;
    assert!(is_granted(&rig, &claim(2)));
    assert_eq!(rig.ready("cart"), 1);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_address_that_a_new_pod_got_belongs_to_the_new_pod_alone() {
    let api = shop();
    let rig = following(&api).await;
    register(&rig, &claim(1)).await;
    // The old pod was not removed from the API server yet.
    let mut reborn = pod("cart-2", 1);
    reborn["metadata"]["creationTimestamp"] = json!("2025-01-01T00:00:00Z");
    api.put("pods", reborn);
    rig.until("the old pod leaves", |rig| !is_granted(rig, &claim(1))).await;
    assert!(denied(&rig, &claim(1)).await.contains("another pod has it now"));
    let new = Claim { ips: vec![ip(1)], ..claim(2) };
    granted(&rig, &new).await;
    // The name and the address of the new pod do not help the old UID.
    let mixed = Claim { uid: PodUid::new("cart-1"), ..new };
    denied(&rig, &mixed).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_annotation_that_is_lifted_lets_pods_register_again() {
    let api = shop();
    let rig = following(&api).await;
    register(&rig, &claim(1)).await;
    api.put("services", annotated(service("cart"), json!({"rouse.dev/push": "off"})));
    rig.until_ready("it is withdrawn", 0).await;
    assert_eq!(check(&rig, &claim(1)).await.unwrap().mode, Some(PushMode::Off));
    api.put("services", service("cart"));
    rig.until("it is granted again", |rig| is_granted(rig, &claim(1))).await;
    assert_eq!(check(&rig, &claim(1)).await.unwrap().mode, None);
    push(&rig, &claim(1), PushEvent::Ready, 2);
    assert_eq!(rig.ready("cart"), 1);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_being_deleted_may_speak_but_its_ready_goes() {
    let api = shop();
    api.put("pods", pod("cart-2", 2));
    let rig = following(&api).await;
    register(&rig, &claim(1)).await;
    register(&rig, &claim(2)).await;
    push(&rig, &claim(2), PushEvent::Draining, 2);
    for name in ["cart-1", "cart-2"] {
        edit(&api, "pods", name, |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    }
    rig.until_ready("no pod is ready", 0).await;
    for n in [1, 2] {
        assert!(granted(&rig, &claim(n)).await.leaving);
    }
    pass(Duration::from_secs(1)).await;
    assert_eq!(rig.endpoints("cart"), [(State::Draining, "10.0.0.2:8080".to_owned())], "draining stays");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_slice_lists_keeps_its_place_when_its_push_is_withdrawn() {
    let api = shop();
    let mut listed = slice("cart-a", "cart", &[1]);
    listed["endpoints"][0]["conditions"]["ready"] = json!(false);
    api.put(SLICES, listed);
    let rig = following(&api).await;
    register(&rig, &claim(1)).await;
    assert_eq!(rig.ready("cart"), 1);
    api.put("services", annotated(service("cart"), json!({"rouse.dev/push": "off"})));
    rig.until_ready("the slice decides", 0).await;
    assert_eq!(rig.endpoints("cart"), [(State::Starting, "10.0.0.1:8080".to_owned())]);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_api_server_known_pods_are_decided_and_nothing_else_changes() {
    let api = shop();
    api.put("pods", pod("cart-2", 2));
    let rig = following(&api).await;
    register(&rig, &claim(1)).await;
    api.set_down(true);
    pass(Duration::from_secs(30)).await;
    granted(&rig, &claim(1)).await;
    granted(&rig, &claim(2)).await;
    assert!(denied(&rig, &Claim { ips: vec![ip(2)], ..claim(1) }).await.contains("not an address"));
    let text = put_off(&rig, &claim(3)).await;
    assert!(
        text.contains("pod shop/cart-3 cannot be looked up now") && text.contains("connection refused"),
        "{text}"
    );
    assert_eq!(rig.ready("cart"), 1, "nothing changes");
    assert!(!is_granted(&rig, &claim(3)));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_not_renewed_is_forgotten_and_a_renewed_one_is_not() {
    let api = shop();
    for n in 2..=4 {
        api.put("pods", pod(&format!("cart-{n}"), n));
    }
    let rig = following(&api).await;
    granted(&rig, &claim(1)).await;
    granted(&rig, &claim(2)).await;
    for _ in 0..8 {
        pass(Duration::from_secs(30)).await;
        granted(&rig, &claim(2)).await;
    }
    granted(&rig, &claim(3)).await;
    assert!(!is_granted(&rig, &claim(1)) && is_granted(&rig, &claim(2)));
    assert_eq!(lookups(&api), 0);
    rig.stop().await;
}
