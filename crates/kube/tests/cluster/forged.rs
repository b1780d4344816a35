//! Endpoints that point where their namespace has no business: at other namespaces' pods, at the node, at the gateway.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::{Api, Trap};
use crate::rig::{Rig, SLICES, pass, service, slice};

/// Service `cart`, which asks for endpoints without a pod, and a slice with one pod and one bare endpoint.
fn opted_in() -> Api {
    let api = Api::default();
    let mut opted = service("cart");
    opted["metadata"]["annotations"] = json!({"rouse.dev/manual-endpoints": "allow"});
    api.put("services", opted);
    let mut manual = slice("cart-a", "cart", &[1, 2]);
    manual["endpoints"][1].as_object_mut().unwrap().remove("targetRef");
    api.put(SLICES, manual);
    api
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
    let api = opted_in();
    let rig = Rig::synced(&api).await;
    pass(Duration::from_secs(30)).await;
    assert_eq!(rig.ready("cart"), 1, "the namespace is not listed");
    rig.stop().await;
    for (listed, ready) in [("other", 1), ("shop", 2)] {
        let listed = BTreeSet::from([listed.to_owned()]);
        let rig = Rig::with(&api, |settings| settings.manual_endpoints_of = listed);
        rig.wait_synced().await;
        assert_eq!(rig.ready("cart"), ready);
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_endpoint_is_at_the_gateway_itself_or_at_an_address_of_the_node() {
    let api = Api::default();
    api.put("services", service("cart"));
    let mut manual = slice("cart-a", "cart", &[1, 2, 3, 4, 5, 6]);
    let odd = ["127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "10.0.0.7", "10.0.0.8"];
    for (endpoint, ip) in manual["endpoints"].as_array_mut().unwrap().iter_mut().zip(odd) {
        endpoint.as_object_mut().unwrap().remove("targetRef");
        endpoint["addresses"] = json!([ip]);
    }
    api.put(SLICES, manual);
    let mut six = slice("cart-b", "cart", &[1, 2, 3, 4]);
    six["addressType"] = json!("IPv6");
    for (endpoint, ip) in six["endpoints"].as_array_mut().unwrap().iter_mut().zip([
        "::1",
        "fe80::1",
        "::ffff:127.0.0.1",
        "fd00::1",
    ]) {
        endpoint.as_object_mut().unwrap().remove("targetRef");
        endpoint["addresses"] = json!([ip]);
    }
    api.put(SLICES, six);
    let rig = Rig::with(&api, |settings| {
        settings.manual_endpoints = true;
        settings.own_addresses = vec!["10.0.0.7:8080".parse().unwrap(), "10.0.0.8:9090".parse().unwrap()];
    });
    rig.wait_synced().await;
    let ips: Vec<String> = rig.endpoints("cart").into_iter().map(|(_, address)| address).collect();
    assert_eq!(ips, ["10.0.0.8:8080", "[fd00::1]:8080"], "another port of ours is somebody else's");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_address_another_namespace_got_has_no_endpoint_from_then_on() {
    let nothing = json!({});
    let leaving = json!({"metadata": {"deletionTimestamp": "2024-01-02T00:00:00Z"}});
    // The old pod is gone, or about to go, before the new one gets its address; its slice says nothing yet.
    for gone in [true, false] {
        let api = Api::default();
        api.put("services", service("cart"));
        api.put(SLICES, slice("cart-a", "cart", &[1, 2]));
        let rig = Rig::synced(&api).await;
        assert_eq!(rig.ready("cart"), 2);
        rig.until("pods are watched", |rig| rig.api.watchers("pods") == 1).await;
        if gone {
            api.delete("pods", "shop", "cart-1");
        } else {
            api.put("pods", pod("shop", "cart-1", 1, &leaving));
        }
        pass(Duration::from_millis(50)).await;
        assert_eq!(rig.ready("cart"), 2, "nobody has its address yet");
        api.put("pods", pod("other", "bank", 1, &nothing));
        pass(Duration::from_millis(50)).await;
        let ips: Vec<String> = rig.endpoints("cart").into_iter().map(|(_, address)| address).collect();
        assert_eq!(ips, ["10.0.0.2:8080"], "gone: {gone}");
        pass(Duration::from_mins(1)).await;
        assert_eq!(rig.ready("cart"), 1, "a list of slices does not bring it back");
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_on_the_network_of_their_node_share_its_address() {
    let api = Api::default();
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
    let api = Api::default();
    api.put("services", service("cart"));
    api.put("pods", pod("other", "bank", 9, &json!({})));
    // One endpoint is a pod, one names a pod that does not exist, at the address of another namespace's.
    api.put("pods", pod("shop", "cart-1", 1, &json!({})));
    api.put_alone(SLICES, slice("cart-a", "cart", &[1, 9]));
    let rig = Rig::synced(&api).await;
    let ips = |rig: &Rig| rig.endpoints("cart").into_iter().map(|(_, address)| address).collect::<Vec<_>>();
    rig.until("the pod is believed", |rig| ips(rig) == ["10.0.0.1:8080"]).await;
    rig.until("pods are watched", |rig| rig.api.watchers("pods") == 1).await;
    pass(Duration::from_mins(2)).await;
    // Slices are listed again, and pods are not for now.
    api.trap("/pods", Trap::Hang);
    api.expire();
    rig.until("slices are watched again", |rig| rig.api.watchers(SLICES) == 1).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(rig.api.watchers("pods"), 0);
    assert_eq!(ips(&rig), ["10.0.0.1:8080"]);
    rig.until("pods are watched again", |rig| rig.api.watchers("pods") == 1).await;
    assert_eq!(ips(&rig), ["10.0.0.1:8080"]);
    rig.stop().await;
}
