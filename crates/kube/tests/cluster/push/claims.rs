//! What a pod may claim: itself, and nothing of another pod, service or namespace.

use rouse_core::endpoint::{PodUid, PortName};
use rouse_net::auth::{Claim, ClaimError, PushMode};
use serde_json::{Value, json};

use super::{check, claim, denied, edit, following, granted, ip, is_granted, lookups, other_namespace, pod};
use super::{put_off, service, shop};
use crate::rig::{Rig, annotated, id};
use rouse_testkit::api_server::ApiServer;

#[tokio::test(start_paused = true)]
async fn a_pod_may_claim_what_it_is_and_no_request_is_sent_for_it() {
    let api = shop();
    let rig = following(&api).await;
    let before = api.requests(|_| true).len();
    let grant = granted(&rig, &claim(1)).await;
    assert_eq!((grant.mode, grant.leaving), (None, false));
    assert_eq!(check(&rig, &claim(1)).await, Ok(grant), "a renewal");
    let account = Claim { service_account: Some("default".to_owned()), ..claim(1) };
    granted(&rig, &account).await;
    assert_eq!(api.requests(|_| true).len(), before);
    rig.stop().await;
}

/// A Service `cart`, a Service `till` whose pods have other labels, two pods of `cart`, a pod of `till`, and the same in
/// another namespace.
fn two_tenants() -> ApiServer {
    let api = shop();
    api.put("pods", pod("cart-2", 2));
    api.put("services", service("till"));
    let mut till = pod("till-1", 3);
    till["metadata"]["labels"]["app"] = json!("till");
    api.put("pods", till);
    let mut foreign = service("cart");
    foreign["metadata"]["namespace"] = json!("till");
    api.put("services", foreign);
    let mut neighbour = pod("cart-9", 9);
    neighbour["metadata"]["namespace"] = json!("till");
    api.put("pods", neighbour);
    api
}

#[tokio::test(start_paused = true)]
async fn a_pod_cannot_claim_another_service_namespace_pod_uid_port_or_ip() {
    let api = two_tenants();
    let rig = following(&api).await;
    granted(&rig, &claim(1)).await;
    granted(&rig, &claim(2)).await;
    let port = |name: &str, number: u16| (PortName::new(name), number);
    let ports = |ports: &[(PortName, u16)]| Claim { ports: ports.iter().cloned().collect(), ..claim(1) };
    let uid = |uid: &str| PodUid::new(uid);
    let lies: Vec<(&str, Claim, &str)> = vec![
        (
            "another service",
            Claim { service: id("till"), ..claim(1) },
            "selector of Service shop/till: app=till",
        ),
        (
            "another namespace",
            Claim { service: other_namespace("cart"), ..claim(1) },
            "not that of a pod cart-1 in namespace till",
        ),
        (
            "a pod of another namespace",
            Claim { uid: uid("cart-9"), pod: "cart-9".into(), ips: vec![ip(9)], ..claim(1) },
            "pod cart-9 in namespace shop",
        ),
        ("another pod's name", Claim { pod: "cart-2".into(), ..claim(1) }, "not that of a pod cart-2"),
        ("another pod's UID", Claim { uid: uid("cart-2"), ..claim(1) }, "not that of a pod cart-1"),
        ("a UID that never was", Claim { uid: uid("cart-0"), ..claim(1) }, "not that of a pod cart-1"),
        (
            "another number of a port",
            ports(&[port("http", 8081), port("admin", 9000)]),
            "\"admin\" 9000, \"http\" 8080",
        ),
        (
            "a port more",
            ports(&[port("http", 8080), port("admin", 9000), port("dns", 53)]),
            "\"admin\" 9000, \"http\" 8080",
        ),
        ("a port less", ports(&[port("http", 8080)]), "\"admin\" 9000, \"http\" 8080"),
        (
            "another name of a port",
            ports(&[port("web", 8080), port("admin", 9000)]),
            "\"admin\" 9000, \"http\" 8080",
        ),
        ("no port", ports(&[]), "\"admin\" 9000, \"http\" 8080"),
        (
            "another pod's address",
            Claim { ips: vec![ip(2)], ..claim(1) },
            "10.0.0.2 is not an address of pod shop/cart-1, which has 10.0.0.1",
        ),
        (
            "its own and another pod's address",
            Claim { ips: vec![ip(1), ip(2)], ..claim(1) },
            "10.0.0.2 is not an address",
        ),
        (
            "another form of its address",
            Claim { ips: vec!["::ffff:10.0.0.1".parse().unwrap()], ..claim(1) },
            "is not an address",
        ),
        (
            "no address",
            Claim { ips: vec![], ..claim(1) },
            "no address is named; pod shop/cart-1 has 10.0.0.1",
        ),
        (
            "another ServiceAccount",
            Claim { service_account: Some("admin".into()), ..claim(1) },
            "has the ServiceAccount \"default\"",
        ),
        (
            "a name with a second selector",
            Claim { pod: "cart-1,spec.nodeName=x".into(), uid: uid("new"), ..claim(1) },
            "not a name",
        ),
    ];
    for (what, lie, says) in lies {
        let text = denied(&rig, &lie).await;
        assert!(text.contains(says), "{what}: {text}");
        assert!(!is_granted(&rig, &lie), "{what}");
    }
    // A false claim ends no true one.
    assert!(is_granted(&rig, &claim(1)) && is_granted(&rig, &claim(2)));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_must_say_which_pods_it_has() {
    let without_selector = |mut service: Value| {
        service["spec"].as_object_mut().unwrap().remove("selector");
        service
    };
    let external = json!({"metadata": {"name": "cart", "namespace": "shop"},
        "spec": {"type": "ExternalName", "externalName": "example.com", "selector": {"app": "cart"}, "ports": [{"name": "http", "port": 80}]}});
    let cases = [
        (without_selector(service("cart")), Some("does not say which pods it has")),
        (
            annotated(without_selector(service("cart")), json!({"rouse.dev/selector": "app"})),
            Some("rouse.dev/selector"),
        ),
        (
            annotated(without_selector(service("cart")), json!({"rouse.dev/selector": "app=till"})),
            Some("app=till"),
        ),
        (
            annotated(without_selector(service("cart")), json!({"rouse.dev/selector": "app=cart,more=x"})),
            None,
        ),
        // The selector of the Service counts if there are both.
        (annotated(service("cart"), json!({"rouse.dev/selector": "app=till"})), None),
        (external, Some("ExternalName")),
    ];
    for (service, refusal) in cases {
        let api = shop();
        api.put("services", service);
        let rig = following(&api).await;
        match refusal {
            None => drop(granted(&rig, &claim(1)).await),
            Some(says) => {
                let text = denied(&rig, &claim(1)).await;
                assert!(text.contains(says), "{text}");
            }
        }
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn named_ports_are_those_of_the_containers_that_run_as_long_as_the_pod() {
    let cases = [
        (
            json!({"containers": [{"ports": [{"name": "web", "containerPort": 8080, "protocol": "UDP"}]}]}),
            false,
        ),
        (json!({"containers": [{"ports": [{"name": "other", "containerPort": 8080}]}]}), false),
        (
            json!({"containers": [{}], "initContainers": [{"ports": [{"name": "web", "containerPort": 8080}]}]}),
            false,
        ),
        (
            json!({"containers": [{}], "initContainers": [{"restartPolicy": "Always", "ports": [{"name": "web", "containerPort": 8080}]}]}),
            true,
        ),
    ];
    for (spec, good) in cases {
        let api = shop();
        edit(&api, "pods", "cart-1", |pod| pod["spec"] = spec.clone());
        let rig = following(&api).await;
        assert_eq!(check(&rig, &claim(1)).await.is_ok(), good, "{spec}");
        // A named port that the pod does not have is no port of it.
        let rest = Claim { ports: [(PortName::new("admin"), 9000)].into(), ..claim(1) };
        assert_eq!(check(&rig, &rest).await.is_ok(), !good, "{spec}");
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_on_the_network_of_its_node_may_register_only_if_the_operator_allows_it() {
    let api = shop();
    edit(&api, "pods", "cart-1", |pod| pod["spec"]["hostNetwork"] = json!(true));
    let rig = following(&api).await;
    assert!(denied(&rig, &claim(1)).await.contains("hostNetwork"));
    rig.stop().await;
    let allowed = Rig::synced_with(&api, |settings| settings.host_network_pushes = true).await;
    allowed.until_watched("pods").await;
    granted(&allowed, &claim(1)).await;
    allowed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_pod_claims_an_address_that_requests_are_never_sent_to() {
    let api = shop();
    let mut local = pod("cart-2", 2);
    local["status"]["podIPs"] = json!([{"ip": "169.254.169.254"}]);
    api.put("pods", local);
    let own = vec!["10.0.0.1:8080".parse().unwrap()];
    let rig = Rig::synced_with(&api, |settings| settings.own_addresses = own).await;
    rig.until_watched("pods").await;
    assert!(denied(&rig, &claim(1)).await.contains("gateway itself"));
    let metadata = Claim { ips: vec!["169.254.169.254".parse().unwrap()], ..claim(2) };
    assert!(denied(&rig, &metadata).await.contains("link-local"));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_an_address_and_a_service_that_is_not_known_are_put_off() {
    let api = shop();
    edit(&api, "pods", "cart-1", |pod| pod["status"]["podIPs"] = json!(null));
    let rig = following(&api).await;
    let Err(ClaimError::TooEarly(text)) = check(&rig, &claim(1)).await else { panic!("it has no address") };
    assert_eq!(text, "pod shop/cart-1 has no address yet; try again");
    let nowhere = Claim { service: id("nothing"), ..claim(1) };
    assert_eq!(put_off(&rig, &nowhere).await, "Service shop/nothing is not known yet; try again");
    edit(&api, "pods", "cart-1", |object| *object = pod("cart-1", 1));
    rig.until("the address is seen", |rig| rig.cluster.pods().has("shop", &PodUid::new("cart-1"), ip(1)))
        .await;
    granted(&rig, &claim(1)).await;
    assert_eq!(lookups(&api), 0);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_owner_of_a_service_decides_about_pushes_and_a_mistake_turns_them_off() {
    let cases = [
        ("on", PushMode::On, true),
        ("observe", PushMode::Observe, false),
        ("off", PushMode::Off, false),
        ("ON", PushMode::Off, false),
    ];
    for (text, mode, applied) in cases {
        let api = shop();
        api.put("services", annotated(service("cart"), json!({"rouse.dev/push": text})));
        let rig = following(&api).await;
        assert_eq!(check(&rig, &claim(1)).await.unwrap().mode, Some(mode), "{text}");
        assert_eq!(is_granted(&rig, &claim(1)), applied, "{text}");
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_annotation_is_in_the_status_of_the_route() {
    let api = shop();
    api.put(
        "services",
        annotated(service("cart"), json!({"rouse.dev/push": "yes", "rouse.dev/selector": "x"})),
    );
    api.put(crate::rig::ROUTES, crate::rig::route("r", "shop.example.com", "cart"));
    let rig = following(&api).await;
    let (_, reason, message) = rig.until_condition("r", "NotHonoured").await;
    assert_eq!(reason, "InvalidAnnotation");
    for part in [
        "rouse.dev/push is \"yes\": expected off, observe or on; pods do not register",
        "rouse.dev/selector is \"x\"",
    ] {
        assert!(message.contains(part), "{message}");
    }
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_of_one_namespace_answers_no_pod_of_another_one() {
    let api = two_tenants();
    let rig = Rig::synced_with(&api, |settings| settings.namespace = Some("shop".to_owned())).await;
    rig.until_watched("pods").await;
    granted(&rig, &claim(1)).await;
    let foreign = Claim { service: other_namespace("cart"), uid: PodUid::new("cart-9"), ..claim(9) };
    assert!(denied(&rig, &foreign).await.contains("only namespace shop"));
    assert_eq!(lookups(&api), 0);
    rig.stop().await;
}
