//! Forged endpoints: slices that point at pods of other namespaces, at the node, or at the gateway are refused.

use std::collections::BTreeSet;
use std::time::Duration;

use rouse_kube::cluster::ClusterEvent;
use serde_json::{Value, json};

use crate::rig::{ROUTES, Rig, SLICES, annotated, cart, pass, route, service, slice, synced};
use rouse_testkit::api_server::{ApiServer, InjectedFault};

/// Service `cart`, which asks for endpoints without a pod, and a slice with one pod and one bare endpoint.
fn opted_in() -> ApiServer {
    let api = ApiServer::default();
    api.put("services", annotated(service("cart"), json!({"rouse.dev/manual-endpoints": "allow"})));
    let mut manual = slice("cart-a", "cart", &[1, 2]);
    manual["endpoints"][1].as_object_mut().unwrap().remove("targetRef");
    api.put(SLICES, manual);
    api
}

/// The addresses of the endpoints of `cart`.
fn ips(rig: &Rig) -> Vec<String> {
    rig.endpoints("cart").into_iter().map(|(_, address)| address).collect()
}

/// A pod of any namespace at 10.0.0.n.
fn pod(namespace: &str, name: &str, n: u8, changes: &Value) -> Value {
    let mut pod = json!({"metadata": {"name": name, "namespace": namespace, "uid": name, "creationTimestamp": "2024-01-01T00:00:00Z"},
                         "spec": {}, "status": {"podIPs": [{"ip": format!("10.0.0.{n}")}]}});
    for (part, members) in changes.as_object().unwrap() {
        pod[part].as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    }
    pod
}

#[tokio::test(start_paused = true)]
async fn the_annotation_for_manual_endpoints_counts_only_in_namespaces_that_the_operator_lists() {
    let (api, rig) = synced(opted_in()).await;
    pass(Duration::from_secs(30)).await;
    assert_eq!(rig.ready("cart"), 1, "the namespace is not listed");
    rig.stop().await;
    for (listed, ready) in [("other", 1), ("shop", 2)] {
        let listed = BTreeSet::from([listed.to_owned()]);
        let rig = Rig::synced_with(&api, |settings| settings.manual_endpoints_of = listed).await;
        assert_eq!(rig.ready("cart"), ready);
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_endpoint_is_at_the_gateway_itself_or_at_an_address_of_the_node() {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    let four = ["127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "10.0.0.7", "10.0.0.8"];
    let six = ["::1", "fe80::1", "::ffff:127.0.0.1", "fd00::1"];
    for (name, family, ips) in [("cart-a", "IPv4", &four[..]), ("cart-b", "IPv6", &six)] {
        let mut manual = slice(name, "cart", &[]);
        manual["addressType"] = json!(family);
        manual["endpoints"] =
            ips.iter().map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect();
        api.put(SLICES, manual);
    }
    let rig = Rig::synced_with(&api, |settings| {
        settings.manual_endpoints = true;
        settings.own_addresses = vec!["10.0.0.7:8080".parse().unwrap(), "10.0.0.8:9090".parse().unwrap()];
    })
    .await;
    assert_eq!(
        ips(&rig),
        ["10.0.0.8:8080", "[fd00::1]:8080"],
        "another port at an address of the gateway is not the gateway"
    );
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_address_another_namespace_got_has_no_endpoint_from_then_on() {
    let nothing = json!({});
    let leaving = json!({"metadata": {"deletionTimestamp": "2024-01-02T00:00:00Z"}});
    // The old pod is gone or terminating before the new one gets its address; its slice is not updated yet.
    for gone in [true, false] {
        let (api, rig) = synced(cart(&[1, 2])).await;
        assert_eq!(rig.ready("cart"), 2);
        rig.until_watched("pods").await;
        if gone {
            api.delete("pods", "shop", "cart-1");
        } else {
            api.put("pods", pod("shop", "cart-1", 1, &leaving));
        }
        pass(Duration::from_millis(50)).await;
        assert_eq!(rig.ready("cart"), 2, "no other pod has its address yet");
        api.put("pods", pod("other", "bank", 1, &nothing));
        pass(Duration::from_millis(50)).await;
        assert_eq!(ips(&rig), ["10.0.0.2:8080"], "gone: {gone}");
        pass(Duration::from_mins(1)).await;
        assert_eq!(rig.ready("cart"), 1, "a list of slices does not bring it back");
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_on_the_network_of_their_node_share_its_address() {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    let host = json!({"spec": {"hostNetwork": true}});
    api.put("pods", pod("shop", "cart-1", 1, &host));
    api.put_alone(SLICES, slice("cart-a", "cart", &[1]));
    let rig = Rig::synced(&api).await;
    api.put("pods", pod("other", "agent", 1, &host));
    pass(Duration::from_mins(1)).await;
    assert_eq!(rig.ready("cart"), 1);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_address_of_another_pod_gets_no_request_while_pods_are_listed_again() {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api.put("pods", pod("other", "bank", 9, &json!({})));
    // One endpoint is a pod; the other names a missing pod, at the address of another namespace's pod.
    api.put("pods", pod("shop", "cart-1", 1, &json!({})));
    api.put_alone(SLICES, slice("cart-a", "cart", &[1, 9]));
    let rig = Rig::synced(&api).await;
    rig.until("the pod is believed", |rig| ips(rig) == ["10.0.0.1:8080"]).await;
    rig.until_watched("pods").await;
    pass(Duration::from_mins(2)).await;
    // Slices are listed again, but the list of pods hangs.
    api.trap("/pods", InjectedFault::Hang);
    api.expire();
    rig.until_watched(SLICES).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(rig.api.watchers("pods"), 0);
    assert_eq!(ips(&rig), ["10.0.0.1:8080"]);
    rig.until_watched("pods").await;
    assert_eq!(ips(&rig), ["10.0.0.1:8080"]);
    rig.stop().await;
}

/// Service `cart` with one pod, and a route through its `ClusterIP`.
fn through_cluster_ip(mode: &str) -> ApiServer {
    let api = cart(&[1]);
    let annotations = json!({"rouse.dev/direct-pod-routing": mode});
    api.put(ROUTES, annotated(route("r", "shop.example.com", "cart"), annotations));
    api
}

/// A slice for `cart` with one endpoint at 10.0.0.9, changed by `change`.
fn forged(change: impl FnOnce(&mut Value)) -> Value {
    let mut forged = slice("forged", "cart", &[9]);
    change(&mut forged["endpoints"][0]);
    forged
}

/// The change that forges an endpoint.
type Change = fn(&mut Value);

fn bare(endpoint: &mut Value) {
    endpoint.as_object_mut().unwrap().remove("targetRef");
}

/// Whether requests of route `r` may be sent to the `ClusterIP` of its Service.
fn uses_cluster_ip(rig: &Rig) -> bool {
    !rig.plan("shop/r").unwrap().target.clone().unwrap().cluster_ips.is_empty()
}

/// Advances time. Returns whether the `ClusterIP` was in use all the time.
async fn stays_in_use(rig: &Rig, time: Duration) -> bool {
    let mut always = uses_cluster_ip(rig);
    for _ in 0..time.as_millis() / 5 {
        pass(Duration::from_millis(5)).await;
        always &= uses_cluster_ip(rig);
    }
    always
}

#[tokio::test(start_paused = true)]
async fn the_cluster_ip_is_not_dialled_while_it_leads_to_endpoints_that_are_refused() {
    for mode in ["disabled", "cold-start-only"] {
        let (api, rig) = synced(through_cluster_ip(mode)).await;
        let mut events = rig.cluster.events();
        rig.until("the ClusterIP is in use", uses_cluster_ip).await;
        assert!(rig.condition("r", "NotHonoured").is_none());
        api.put(SLICES, forged(bare));
        pass(Duration::from_millis(50)).await;
        assert!(!uses_cluster_ip(&rig), "{mode}");
        assert_eq!(rig.ready("cart"), 1, "its pod still gets requests");
        let (_, reason, message) = rig.until_condition("r", "NotHonoured").await;
        assert_eq!(reason, "RefusedEndpoints");
        assert!(message.contains("rouse.dev/direct-pod-routing"), "{message}");
        assert!(message.contains("Service shop/cart"), "{message}");
        // A new list of slices changes nothing.
        api.expire();
        pass(Duration::from_mins(1)).await;
        assert!(!uses_cluster_ip(&rig));
        // Kube-proxy takes a while to notice that the slice is gone.
        api.delete(SLICES, "shop", "forged");
        pass(Duration::from_secs(20)).await;
        assert!(!uses_cluster_ip(&rig));
        rig.until("the ClusterIP is in use again", uses_cluster_ip).await;
        rig.until_no_condition("r", "NotHonoured").await;
        let mut warnings = 0;
        while let Ok(event) = events.try_recv() {
            warnings +=
                usize::from(matches!(event, ClusterEvent::LeftOut(words) if words.contains("ClusterIP")));
        }
        assert_eq!(warnings, 1);
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_cluster_ip_stays_in_use_where_manual_endpoints_are_allowed() {
    for everywhere in [true, false] {
        let api = through_cluster_ip("disabled");
        let opted = annotated(service("cart"), json!({"rouse.dev/manual-endpoints": "allow"}));
        api.put("services", if everywhere { service("cart") } else { opted });
        api.put(SLICES, forged(bare));
        let rig = Rig::synced_with(&api, |settings| {
            settings.manual_endpoints = everywhere;
            settings.manual_endpoints_of = BTreeSet::from(["shop".to_owned()]);
        })
        .await;
        assert!(stays_in_use(&rig, Duration::from_secs(30)).await);
        assert_eq!(rig.ready("cart"), 2);
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_kind_of_forged_endpoint_is_reached_through_the_cluster_ip() {
    let anything = |_: &mut Value| {};
    let of_bank = |endpoint: &mut Value| endpoint["targetRef"]["uid"] = json!("bank");
    let named_bank = |endpoint: &mut Value| endpoint["targetRef"]["namespace"] = json!("other");
    let local = |endpoint: &mut Value| endpoint["addresses"] = json!(["169.254.169.254"]);
    let two = |endpoint: &mut Value| {
        endpoint["targetRef"]["uid"] = json!("cart-1");
        endpoint["addresses"] = json!(["10.0.0.1", "10.0.0.9"]);
    };
    let elsewhere = |endpoint: &mut Value| endpoint["targetRef"]["uid"] = json!("cart-1");
    // Each with the address of the pod of another namespace, and the seconds after which it is refused.
    let all: [(&str, Change, u8, u64); 8] = [
        ("without a pod", bare, 8, 0),
        ("with a pod of another namespace", of_bank, 8, 0),
        ("that says so", named_bank, 8, 0),
        ("at the address of another pod", anything, 9, 0),
        ("at an address of the node", local, 8, 0),
        ("with two addresses", two, 8, 0),
        ("with a pod that does not exist", anything, 8, 5),
        ("with its own pod, elsewhere", elsewhere, 8, 5),
    ];
    for (what, change, bank, seconds) in all {
        let api = through_cluster_ip("disabled");
        api.put("pods", pod("other", "bank", bank, &json!({})));
        let rig = Rig::synced(&api).await;
        rig.until("the ClusterIP is in use", uses_cluster_ip).await;
        api.put_alone(SLICES, forged(change));
        pass(Duration::from_secs(seconds) + Duration::from_millis(50)).await;
        assert!(!uses_cluster_ip(&rig), "{what}");
        assert_eq!(rig.ready("cart"), 1, "{what}");
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_the_gateways_own_address_is_not_reached_through_the_cluster_ip() {
    let api = through_cluster_ip("disabled");
    let rig = Rig::synced_with(&api, |settings| {
        settings.own_addresses = vec!["10.0.0.7:8080".parse().unwrap()];
    })
    .await;
    rig.until("the ClusterIP is in use", uses_cluster_ip).await;
    // The pod exists, so only its address speaks against it.
    api.put(SLICES, slice("own", "cart", &[7]));
    rig.until("the ClusterIP is not in use", |rig| !uses_cluster_ip(rig)).await;
    assert_eq!(rig.ready("cart"), 1);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_is_ahead_of_its_pods_does_not_cost_the_cluster_ip() {
    let (api, rig) = synced(through_cluster_ip("disabled")).await;
    rig.until("the ClusterIP is in use", uses_cluster_ip).await;
    for n in 2..20 {
        api.put_alone(SLICES, slice("cart-a", "cart", &(1..=n).collect::<Vec<u8>>()));
        assert!(stays_in_use(&rig, Duration::from_secs(1)).await);
        assert_eq!(rig.ready("cart"), usize::from(n) - 1, "it is not seen yet");
        api.put("pods", pod("shop", &format!("cart-{n}"), n, &json!({})));
        assert!(stays_in_use(&rig, Duration::from_secs(1)).await);
        assert_eq!(rig.ready("cart"), usize::from(n));
    }
    // A pod object is later than the gateway tolerates: the ClusterIP is used again as soon as the pod is seen.
    api.put_alone(SLICES, slice("cart-a", "cart", &(1..=20).collect::<Vec<u8>>()));
    rig.until("it is not believed", |rig| !uses_cluster_ip(rig)).await;
    api.put("pods", pod("shop", "cart-20", 20, &json!({})));
    pass(Duration::from_millis(50)).await;
    assert!(uses_cluster_ip(&rig));
    // An endpoint is removed before its pod was seen: it may have been forged, and may still have connections.
    api.put_alone(SLICES, slice("cart-a", "cart", &[1, 21]));
    assert!(stays_in_use(&rig, Duration::from_secs(1)).await);
    api.put_alone(SLICES, slice("cart-a", "cart", &[1]));
    pass(Duration::from_millis(50)).await;
    assert!(!uses_cluster_ip(&rig));
    pass(Duration::from_secs(31)).await;
    assert!(stays_in_use(&rig, Duration::from_mins(1)).await);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_do_not_exist_are_not_believed_because_they_are_new_each_time() {
    for gaps in [false, true] {
        let (api, rig) = synced(through_cluster_ip("disabled")).await;
        rig.until("the ClusterIP is in use", uses_cluster_ip).await;
        for n in 0..5 {
            api.put_alone(
                SLICES,
                forged(|endpoint| endpoint["targetRef"]["uid"] = json!(format!("new-{n}"))),
            );
            pass(Duration::from_secs(1)).await;
            if gaps {
                api.delete(SLICES, "shop", "forged");
                pass(Duration::from_millis(100)).await;
            }
        }
        api.put_alone(SLICES, forged(|_| {}));
        pass(Duration::from_millis(50)).await;
        assert!(!uses_cluster_ip(&rig), "gaps: {gaps}");
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_fallback_is_not_reached_through_a_cluster_ip_that_leads_to_refused_endpoints() {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api.put("services", service("sorry"));
    let mut forged = slice("forged", "sorry", &[9]);
    bare(&mut forged["endpoints"][0]);
    let mut with_fallback = route("r", "shop.example.com", "cart");
    with_fallback["spec"]["coldStart"] = json!({"fallback": {"service": {"name": "sorry", "port": 80}}});
    api.put(ROUTES, with_fallback);
    let rig = Rig::synced(&api).await;
    let addresses = |rig: &Rig| {
        let plan = rig.plan("shop/r").unwrap();
        plan.fallback.as_ref().unwrap().as_ref().unwrap().cluster_ips.len()
    };
    assert_eq!(addresses(&rig), 1);
    api.put(SLICES, forged);
    pass(Duration::from_millis(50)).await;
    assert_eq!(addresses(&rig), 0);
    assert!(uses_cluster_ip(&rig), "its target is another Service");
    assert!(rig.until_condition("r", "NotHonoured").await.2.contains("Service shop/sorry"));
    rig.stop().await;
}
