//! Pods that the watch has not seen yet: one look-up for all claims, and what the watch says later counts.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use rouse_core::endpoint::PodUid;
use rouse_net::auth::Claim;
use rouse_testkit::api_server::{ApiServer, InjectedFault};
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    check, claim, denied, edit, following, granted, is_granted, lookups, other_namespace, pod, put_off,
    register, service, shop,
};
use crate::rig::{Rig, pass};

/// A gateway whose watches stay silent, and `cart-2`, which it has not seen.
async fn unseen() -> (ApiServer, Rig) {
    let api = shop();
    let rig = following(&api).await;
    api.set_silent(true);
    api.put("pods", pod("cart-2", 2));
    (api, rig)
}

/// Lets the watches receive what they have missed.
fn catch_up(api: &ApiServer) {
    api.set_silent(false);
    api.cut();
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_the_watch_has_not_seen_is_looked_up_once_for_all_its_claims() {
    let (api, rig) = unseen().await;
    let ownership = rig.cluster.push_ownership();
    let mut claims = JoinSet::new();
    for _ in 0..200 {
        let ownership = Arc::clone(&ownership);
        claims.spawn(async move { ownership.check(&claim(2)).await });
    }
    while let Some(granted) = claims.join_next().await {
        granted.unwrap().unwrap();
    }
    assert_eq!(lookups(&api), 1);
    granted(&rig, &claim(2)).await;
    assert_eq!(lookups(&api), 1, "a renewal");
    denied(&rig, &Claim { ips: claim(1).ips, ..claim(2) }).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_sender_has_gone_does_not_stop_the_others() {
    let (api, rig) = unseen().await;
    api.trap("metadata.name", InjectedFault::Hang);
    let ownership = rig.cluster.push_ownership();
    let (first, second) = (Arc::clone(&ownership), Arc::clone(&ownership));
    let mut claims = JoinSet::new();
    let first = claims.spawn(async move { first.check(&claim(2)).await });
    pass(Duration::from_millis(10)).await;
    claims.spawn(async move { second.check(&claim(2)).await });
    pass(Duration::from_millis(10)).await;
    first.abort();
    assert!(claims.join_next().await.unwrap().unwrap_err().is_cancelled());
    claims.join_next().await.unwrap().unwrap().unwrap();
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_exist_is_put_off_and_not_looked_up_each_time() {
    let (api, rig) = unseen().await;
    for _ in 0..50 {
        assert_eq!(put_off(&rig, &claim(3)).await, "pod shop/cart-3 is not known yet; try again");
    }
    assert_eq!(lookups(&api), 1);
    // It exists a second later.
    api.put("pods", pod("cart-3", 3));
    pass(Duration::from_secs(1)).await;
    granted(&rig, &claim(3)).await;
    assert_eq!(lookups(&api), 2);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_look_up_finds_is_checked_like_a_pod_of_the_watch() {
    let (api, rig) = unseen().await;
    let other = Claim { uid: PodUid::new("before"), ..claim(2) };
    assert!(denied(&rig, &other).await.contains("not that of a pod cart-2"));
    edit(&api, "pods", "cart-2", |pod| pod["metadata"]["labels"] = json!({}));
    assert!(denied(&rig, &claim(2)).await.contains("labels"));
    edit(&api, "pods", "cart-2", |object| {
        *object = pod("cart-2", 2);
        object["status"] = json!({"phase": "Pending"});
    });
    assert!(put_off(&rig, &claim(2)).await.contains("no address yet"));
    edit(&api, "pods", "cart-2", |pod| pod["status"]["phase"] = json!("Succeeded"));
    assert!(denied(&rig, &claim(2)).await.contains("has ended"));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_pod_with_the_address_of_one_that_the_watch_still_has_is_granted() {
    let (api, rig) = unseen().await;
    register(&rig, &claim(1)).await;
    api.delete("pods", "shop", "cart-1");
    let mut heir = pod("cart-3", 1);
    heir["metadata"]["creationTimestamp"] = json!("2025-01-01T00:00:00Z");
    api.put("pods", heir);
    granted(&rig, &Claim { ips: claim(1).ips, ..claim(3) }).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_watch_has_the_last_word_about_a_pod_that_was_looked_up() {
    // It sees the pod, and then a change of it.
    let (api, rig) = unseen().await;
    register(&rig, &claim(2)).await;
    catch_up(&api);
    rig.until("the pod is seen", |rig| rig.cluster.pods().get(&PodUid::new("cart-2")).is_some()).await;
    assert!(is_granted(&rig, &claim(2)));
    rig.until_watched("pods").await;
    edit(&api, "pods", "cart-2", |pod| pod["metadata"]["labels"] = json!({}));
    rig.until_ready("it is withdrawn", 0).await;
    rig.stop().await;
    // It sees that the pod came and went.
    let (api, rig) = unseen().await;
    register(&rig, &claim(2)).await;
    api.delete("pods", "shop", "cart-2");
    catch_up(&api);
    rig.until_ready("it is withdrawn", 0).await;
    assert!(!is_granted(&rig, &claim(2)));
    rig.stop().await;
    // It lists all pods, and this one is not there.
    let (api, rig) = unseen().await;
    register(&rig, &claim(2)).await;
    api.delete("pods", "shop", "cart-2");
    api.set_silent(false);
    api.expire();
    rig.until_ready("it is withdrawn", 0).await;
    rig.stop().await;
    // Its Service changes before the pod is seen.
    let (api, rig) = unseen().await;
    register(&rig, &claim(2)).await;
    edit(&api, "services", "cart", |service| service["spec"]["selector"] = json!({"app": "other"}));
    api.trap("/pods", InjectedFault::Hang);
    catch_up(&api);
    rig.until_ready("it is withdrawn", 0).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_look_up_that_fails_is_put_off_with_the_reason() {
    let (api, rig) = unseen().await;
    api.refuse(Method::GET, "metadata.name", 403, "not you", None);
    let text = put_off(&rig, &claim(2)).await;
    assert!(text.contains("the permission to list pods is missing: not you"), "{text}");
    api.allow_all();
    pass(Duration::from_secs(1)).await;
    api.trap("metadata.name", InjectedFault::Hang);
    let text = put_off(&rig, &claim(2)).await;
    assert!(text.contains("no answer within 5 s"), "{text}");
    granted(&rig, &claim(2)).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_pods_that_do_not_exist_is_bounded_and_known_pods_do_not_wait_for_it() {
    let (api, rig) = unseen().await;
    for _ in 0..3000 {
        api.trap("metadata.name", InjectedFault::Hang);
    }
    let mut flood = JoinSet::new();
    for n in 0..3000 {
        let ownership = rig.cluster.push_ownership();
        let forged = Claim { pod: format!("fake-{n}"), uid: PodUid::new(&format!("fake-{n}")), ..claim(1) };
        flood.spawn(async move { ownership.check(&forged).await });
    }
    pass(Duration::from_millis(10)).await;
    granted(&rig, &claim(1)).await;
    let mut busy = 0;
    while let Some(answer) = flood.join_next().await {
        busy += usize::from(answer.unwrap().unwrap_err().to_string().contains("too many pods"));
    }
    assert_eq!(busy, 3000 - 128);
    assert!(check(&rig, &claim(1)).await.is_ok());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn invented_pods_of_one_namespace_take_no_look_ups_of_another() {
    let api = shop();
    let mut foreign = service("cart");
    foreign["metadata"]["namespace"] = json!("till");
    api.put("services", foreign);
    let rig = following(&api).await;
    api.set_silent(true);
    let mut neighbour = pod("cart-9", 9);
    neighbour["metadata"]["namespace"] = json!("till");
    api.put("pods", neighbour);
    for _ in 0..2000 {
        api.trap("namespaces/shop/pods", InjectedFault::Hang);
    }
    let mut flood = JoinSet::new();
    for n in 0..2000 {
        let ownership = rig.cluster.push_ownership();
        let forged = Claim { pod: format!("fake-{n}"), uid: PodUid::new(&format!("fake-{n}")), ..claim(1) };
        flood.spawn(async move { ownership.check(&forged).await });
    }
    pass(Duration::from_millis(10)).await;
    let before = tokio::time::Instant::now();
    granted(&rig, &Claim { service: other_namespace("cart"), ..claim(9) }).await;
    assert!(before.elapsed() < Duration::from_secs(1), "it does not wait for the flood");
    assert_eq!(lookups(&api), 1, "those of the flood hang");
    rig.stop().await;
}
