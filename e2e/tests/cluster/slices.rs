//! The controller of `EndpointSlice`s on a real API server: the feature gate, Services that come and go, a restored etcd; and a
//! gateway and kube-proxy that serve what it writes.

use rouse_core::slices::Options;
use rouse_e2e::client::session;
use rouse_e2e::wait::patiently;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::app::App;
use crate::cluster;
use crate::harness::{Case, trial};
use crate::own_cluster;
use crate::slice_controller::{Controller, conditions, our_slices, until_conditions};
use crate::test_namespace::{POD, SERVICE, SLICE, TestNamespace};

pub(crate) const TRIALS: &[Case] = &[
    trial!(a_service_without_a_selector_is_woken_and_served_like_any_other),
    trial!(a_slice_that_only_has_our_label_gains_nothing),
    trial!(terminating_conditions_off_and_on_as_stored_objects_show_them).on_its_own_cluster(),
    trial!(the_slices_of_services_that_go_or_ask_no_more_go_and_those_of_others_stay).on_its_own_cluster(),
    trial!(after_an_api_server_outage_and_a_restored_etcd_the_slices_are_right_again).on_its_own_cluster(),
];

/// The node of pods that no kubelet runs. It exists only as an object.
const NODE: &str = "made-up";
/// A pod that is ready, one that is not, and one that is being deleted while it still serves.
const READY: [Option<bool>; 3] = [Some(true), Some(true), Some(false)];
const STARTING: [Option<bool>; 3] = [Some(false), Some(false), Some(false)];
const LEAVING: [Option<bool>; 3] = [Some(false), Some(true), Some(true)];
/// The same as written without terminating conditions.
const BARE_READY: [Option<bool>; 3] = [Some(true), None, None];
const BARE_STARTING: [Option<bool>; 3] = [Some(false), None, None];

/// A Service without a selector whose annotation names the pods with this label `app`.
fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "annotations": { "rouse.dev/selector": format!("app={name}") } },
        "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    })
}

/// The same for a Service with a selector.
fn without_selector(mut service: Value) -> Value {
    let selector = service["spec"].as_object_mut().unwrap().remove("selector").expect("a selector");
    let pairs = selector.as_object().unwrap().iter();
    let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap())).collect();
    service["metadata"]["annotations"]["rouse.dev/selector"] = json!(pairs.join(","));
    service
}

/// Writes a pod of `app` with its status, as a kubelet does.
async fn pod(space: &TestNamespace, app: &str, n: u8, ready: bool) -> String {
    let name = format!("{app}-{n}");
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": app } },
        "spec": { "nodeName": NODE, "containers": [{ "name": "app", "image": "none:1" }] },
    });
    space.apply(object).await;
    let (ip, ready) = (format!("10.2.0.{n}"), if ready { "True" } else { "False" });
    let conditions =
        json!([{ "type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    let status =
        json!({ "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }], "conditions": conditions });
    space.patch_status(POD, &name, json!({ "status": status })).await;
    name
}

async fn node(space: &TestNamespace) {
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
    cluster::apply(space.client(), None, &node).await;
}

fn gate(on: bool) -> Options {
    Options { terminating_conditions: on, ..Options::default() }
}

async fn terminating_conditions_off_and_on_as_stored_objects_show_them(space: TestNamespace) {
    node(&space).await;
    space.apply(service("shop")).await;
    for n in [1, 2] {
        pod(&space, "shop", n, true).await;
    }
    let controller = Controller::start(&space, None, gate(true)).await;
    until_conditions(&space, "shop", &[("shop-1", READY), ("shop-2", READY)]).await;
    space.delete(POD, "shop-2").await;
    until_conditions(&space, "shop", &[("shop-1", READY), ("shop-2", LEAVING)]).await;
    controller.stop().await;

    // Off: the pod that is being deleted is left out, and the slice that loses it is written without the conditions.
    let controller = Controller::start(&space, None, gate(false)).await;
    until_conditions(&space, "shop", &[("shop-1", BARE_READY)]).await;
    controller.stop().await;

    // On: it is back with the next sync.
    let controller = Controller::start(&space, None, gate(true)).await;
    until_conditions(&space, "shop", &[("shop-1", READY), ("shop-2", LEAVING)]).await;
    space.delete_now(POD, "shop-2").await;
    until_conditions(&space, "shop", &[("shop-1", READY)]).await;
    let before = our_slices(&space, "shop").await;
    controller.stop().await;

    // Off again, without a pod that is being deleted: the conditions stay until the slice is written.
    let controller = Controller::start(&space, None, gate(false)).await;
    space.apply(service("mark")).await;
    patiently("a later Service to have its slice", async || {
        (!our_slices(&space, "mark").await.is_empty()).then_some(())
    })
    .await;
    assert_eq!(our_slices(&space, "shop").await, before);
    pod(&space, "shop", 3, false).await;
    until_conditions(&space, "shop", &[("shop-1", BARE_READY), ("shop-3", BARE_STARTING)]).await;
    controller.stop().await;
}

async fn the_slices_of_services_that_go_or_ask_no_more_go_and_those_of_others_stay(space: TestNamespace) {
    node(&space).await;
    for app in ["deleted", "unannotated", "selecting", "kept"] {
        space.apply(service(app)).await;
        pod(&space, app, 1, true).await;
    }
    let by_hand = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "by-hand", "labels": { "kubernetes.io/service-name": "unannotated" } },
        "endpoints": [{ "addresses": ["192.0.2.1"] }], "ports": [{ "name": "http", "port": 8080 }],
    });
    let by_hand = space.apply(by_hand).await;
    let controller = Controller::start(&space, None, Options::default()).await;
    for app in ["deleted", "unannotated", "selecting", "kept"] {
        until_conditions(&space, app, &[(&format!("{app}-1"), READY)]).await;
    }
    let owner = &our_slices(&space, "kept").await[0]["metadata"]["ownerReferences"][0];
    let kept = space.get(SERVICE, "kept").await.unwrap();
    assert_eq!((&owner["uid"], &owner["controller"]), (&kept["metadata"]["uid"], &json!(true)));

    space.delete(SERVICE, "deleted").await;
    let annotation = json!({ "metadata": { "annotations": { "rouse.dev/selector": null } } });
    space.patch(SERVICE, "unannotated", annotation).await;
    let selector = json!({ "spec": { "selector": { "app": "selecting" } } });
    space.patch(SERVICE, "selecting", selector).await;
    for app in ["deleted", "unannotated", "selecting"] {
        patiently(&format!("our slices of {app} to go"), async || {
            our_slices(&space, app).await.is_empty().then_some(())
        })
        .await;
    }
    let [theirs] = &space.slices("selecting").await[..] else { panic!("Kubernetes' own slice") };
    assert_eq!(theirs["endpoints"][0]["addresses"], json!(["10.2.0.1"]));
    assert_eq!(space.get(SLICE, "by-hand").await, Some(by_hand));
    assert_eq!(conditions(&space, "kept").await.len(), 1);
    controller.stop().await;
}

async fn after_an_api_server_outage_and_a_restored_etcd_the_slices_are_right_again(space: TestNamespace) {
    node(&space).await;
    space.apply(service("shop")).await;
    pod(&space, "shop", 1, true).await;
    let controller = Controller::start(&space, None, Options::default()).await;
    until_conditions(&space, "shop", &[("shop-1", READY)]).await;
    own_cluster::back_up(&space).await;
    for n in [2, 3] {
        pod(&space, "shop", n, true).await;
        patiently("one more endpoint", async || {
            (conditions(&space, "shop").await.len() == usize::from(n)).then_some(())
        })
        .await;
    }

    // The pods and the last two writes of the slice never were.
    for program in ["kube-apiserver", "etcd"] {
        own_cluster::node(&space).end(program, Signal::KILL).await;
    }
    own_cluster::restore(&space);
    own_cluster::start(&space, "etcd").await;
    own_cluster::api_server_returns(&space).await;
    until_conditions(&space, "shop", &[("shop-1", READY)]).await;
    pod(&space, "shop", 4, false).await;
    until_conditions(&space, "shop", &[("shop-1", READY), ("shop-4", STARTING)]).await;
    assert_eq!(our_slices(&space, "shop").await.len(), 1);
    patiently("the controller to be at rest", async || controller.inner.is_settled().then_some(())).await;
    assert!(controller.inner.problems().is_empty(), "{:?}", controller.inner.problems());
    controller.stop().await;
}

async fn a_service_without_a_selector_is_woken_and_served_like_any_other(space: TestNamespace) {
    let app = App::new("shop").env("START_DELAY_MS", 200);
    space.apply(app.deployment()).await;
    space.apply(without_selector(app.service())).await;
    space.apply(space.route("shop").object()).await;
    let controller = Controller::start(&space, Some(space.name()), Options::default()).await;
    let gateway = space.gateway().await;
    let answer = session::get(&gateway.target(&space.host("shop")), "/headers").await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("x-rouse-cold-start")),
        (200, "true"),
        "{}",
        answer.text()
    );
    let [pod] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
    assert_eq!(answer.json()["pod"], pod.name);
    let address = (space.cluster_ip("shop").await, 80);
    patiently("kube-proxy to serve the slices", async || TcpStream::connect(address).await.ok().map(drop))
        .await;

    space.scale("shop", 0).await;
    space.no_pods("shop").await;
    patiently("the endpoint to go", async || conditions(&space, "shop").await.is_empty().then_some(())).await;
    let answer = session::get(&gateway.target(&space.host("shop")), "/headers").await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("x-rouse-cold-start")),
        (200, "true"),
        "{}",
        answer.text()
    );
    gateway.stop().await;
    controller.stop().await;
}

async fn a_slice_that_only_has_our_label_gains_nothing(space: TestNamespace) {
    for app in ["shop", "bank"] {
        let app = App::new(app).replicas(1);
        space.apply(app.deployment()).await;
        space.apply(without_selector(app.service())).await;
    }
    space.apply(space.route("shop").object()).await;
    let controller = Controller::start(&space, Some(space.name()), Options::default()).await;
    let [bank] = &space.ready_pods("bank", 1).await[..] else { panic!("one pod") };
    let [shop] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
    // It would delete the forged slice.
    controller.stop().await;
    let gateway = space.gateway().await;
    let id = format!("{}/shop", space.name());
    let pods = async || -> Vec<String> {
        let known = gateway.admin.service_named(&id).await;
        known.endpoints.into_iter().map(|endpoint| endpoint.uid).collect()
    };
    patiently("the gateway to know the pod", async || (pods().await == [shop.uid.clone()]).then_some(()))
        .await;

    let forged = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "forged", "labels": {
            "kubernetes.io/service-name": "shop", "endpointslice.kubernetes.io/managed-by": "rouse.dev",
        } },
        "ports": [{ "name": "http", "port": 8080 }],
        "endpoints": [
            { "addresses": [bank.ip], "conditions": { "ready": true },
              "targetRef": { "kind": "Pod", "namespace": space.name(), "name": bank.name, "uid": bank.uid } },
            { "addresses": [bank.ip], "conditions": { "ready": true },
              "targetRef": { "kind": "Pod", "namespace": space.name(), "name": shop.name, "uid": shop.uid } },
            { "addresses": ["10.99.0.1"], "conditions": { "ready": true } },
        ],
    });
    space.apply(forged).await;
    // An endpoint that is written later is seen: so the forged ones were seen, too.
    space.scale("shop", 2).await;
    let two = patiently("a second pod", async || {
        let pods = space.pods("shop").await;
        (pods.len() == 2).then_some(pods)
    })
    .await;
    let controller = Controller::start(&space, Some(space.name()), Options::default()).await;
    let mut wanted: Vec<String> = two.into_iter().map(|pod| pod.uid).collect();
    wanted.sort();
    patiently("the gateway to know both pods", async || {
        let mut known = pods().await;
        assert!(!known.contains(&bank.uid), "{known:?}");
        known.sort();
        (known == wanted).then_some(())
    })
    .await;
    patiently("the forged slice to go", async || space.get(SLICE, "forged").await.is_none().then_some(()))
        .await;
    for _ in 0..20 {
        let answer = session::get(&gateway.target(&space.host("shop")), "/headers").await;
        assert!(wanted.len() == 2 && answer.json()["pod"] != bank.name.as_str(), "{}", answer.text());
    }
    gateway.stop().await;
    controller.stop().await;
}
