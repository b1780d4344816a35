//! Registrations of pods that exist as objects only, on a control plane of their own: an API server that is away, and an
//! address that a new pod gets while the old one still exists.

use http::StatusCode;
use rouse_e2e::client::session;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::app::App;
use crate::harness::{Case, trial};
use crate::identity;
use crate::own_cluster::{self, HostPod};
use crate::push::{PushGateway, Registration};
use crate::test_namespace::{POD, Pod, TestNamespace};

pub(crate) const TRIALS: &[Case] = &[
    trial!(without_the_api_server_an_unknown_pod_or_token_is_503_and_known_pods_go_on).on_its_own_cluster(),
    trial!(an_address_belongs_to_the_newest_pod_that_has_it).on_its_own_cluster(),
];

/// A Pod object of `shop` with the address of a process of this machine. No node runs it, so no slice lists it.
async fn pod_object(space: &TestNamespace, name: &str, process: &HostPod) -> Pod {
    let ip = process.process.target.address.ip();
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": "shop" } },
        "spec": { "containers": [{ "name": "app", "image": "localhost/none:1" }] },
    });
    space.apply(pod).await;
    let status = json!({ "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] });
    space.patch_status(POD, name, json!({ "status": status })).await;
    space.addressed_pod(name).await
}

/// Waits until pods that are created from now on are newer than `pod`: the API server's times are whole seconds.
async fn next_second(space: &TestNamespace, pod: &str) {
    let created = async |name: &str| {
        let object = space.get(POD, name).await.expect("it was created");
        object["metadata"]["creationTimestamp"].as_str().expect("every object has one").to_owned()
    };
    let before = created(pod).await;
    rouse_e2e::wait::patiently("the next second", async || {
        let clock = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": "clock" },
            "spec": { "containers": [{ "name": "app", "image": "localhost/none:1" }] },
        });
        space.apply(clock).await;
        let now = created("clock").await;
        space.delete_now(POD, "clock").await;
        (now > before).then_some(())
    })
    .await;
}

/// An app whose Service leads to the port of a process.
fn app(process: &HostPod) -> App {
    let port = process.process.target.address.port();
    App::new("shop").service_ports(&[json!({ "name": "http", "port": 80, "targetPort": port })])
}

async fn registration(space: &TestNamespace, pod: &Pod, process: &HostPod) -> Registration {
    let mut registration = Registration::of(space, "shop", pod).await;
    registration.body["ports"] = json!({ "http": process.process.target.address.port() });
    registration
}

/// Asserts that a registration cannot be checked now, and that nothing changes.
async fn is_unavailable(gateway: &PushGateway, space: &TestNamespace, registration: &Registration) {
    let before = gateway.endpoints(space, "shop").await;
    let answer = gateway.send(registration).await;
    let said = answer.json();
    assert_eq!((answer.status.as_u16(), &said["error"]), (503, &json!("unavailable")), "{said}");
    assert_ne!(answer.header("retry-after"), "", "{said}");
    assert_eq!(gateway.endpoints(space, "shop").await, before, "nothing changes");
}

async fn without_the_api_server_an_unknown_pod_or_token_is_503_and_known_pods_go_on(space: TestNamespace) {
    let process = HostPod::start("shop-0").await;
    let other = HostPod::start("shop-1").await;
    space.serve(&app(&process)).await;
    let launch = space.launch().await;
    identity::may_review_tokens(&space).await;
    let jwks = PushGateway::launch(&space, launch.clone()).await;
    let reviews = PushGateway::launch(&space, launch.flag("--register-token-check", "tokenreview")).await;
    let known = pod_object(&space, "shop-0", &process).await;
    let mut of_known = registration(&space, &known, &process).await;
    for gateway in [&jwks, &reviews] {
        gateway.accepts(&of_known).await;
        gateway.until(&space, "shop", &known, Some("Ready")).await;
    }
    // A pod that both gateways know, with a token that neither has seen; and one that is gone.
    let gone = pod_object(&space, "shop-1", &other).await;
    let of_gone = registration(&space, &gone, &process).await;
    space.delete_now(POD, "shop-1").await;
    let of_known_again = registration(&space, &known, &process).await;

    own_cluster::node(&space).end("kube-apiserver", Signal::KILL).await;
    is_unavailable(&jwks, &space, &of_gone).await;
    is_unavailable(&reviews, &space, &of_gone).await;
    is_unavailable(&reviews, &space, &of_known_again).await;
    // What was verified before goes on: the keys, the pod and the reviewed token are known.
    jwks.tells(of_known.next("not-ready"), "accepted").await;
    assert_ne!(jwks.state(&space, "shop", &known).await.expect("an endpoint").0, "Ready");
    jwks.tells(of_known.next("ready"), "accepted").await;
    let target = jwks.gateway.target(&space.host("shop"));
    assert_eq!(session::get(&target, "/").await.status, StatusCode::OK);
    let labels: [(&str, &str); 2] = [("event_type", "ready"), ("result", "unavailable")];
    assert_eq!(jwks.attempts(&labels).await, 1);
    assert_eq!(reviews.attempts(&[("result", "unavailable")]).await, 2);

    own_cluster::api_server_returns(&space).await;
    rouse_e2e::wait::patiently("the token to be reviewed", async || {
        (reviews.send(&of_known_again).await.status == 200).then_some(())
    })
    .await;
    for gateway in [jwks, reviews] {
        gateway.stop().await;
    }
}

async fn an_address_belongs_to_the_newest_pod_that_has_it(space: TestNamespace) {
    let process = HostPod::start("shop-0").await;
    space.serve(&app(&process)).await;
    let gateway = PushGateway::start(&space).await;
    let old = pod_object(&space, "shop-0", &process).await;
    let mut of_old = registration(&space, &old, &process).await;
    gateway.accepts(&of_old).await;
    gateway.until(&space, "shop", &old, Some("Ready")).await;

    next_second(&space, "shop-0").await;
    // Its object is still there when another pod has its address.
    let new = pod_object(&space, "shop-1", &process).await;
    let of_new = registration(&space, &new, &process).await;
    gateway.accepts(&of_new).await;
    let uids = async || -> Vec<String> {
        gateway.endpoints(&space, "shop").await.into_iter().map(|endpoint| endpoint.uid).collect()
    };
    assert_eq!(uids().await, [new.uid.as_str()]);
    let answer = gateway.send(of_old.next("draining")).await;
    let said: Value = answer.json();
    assert_eq!(answer.status, 403, "{said}");
    assert!(said["reason"].as_str().unwrap().contains("another pod has it now"), "{said}");
    assert_eq!(uids().await, [new.uid.as_str()]);

    space.delete_now(POD, "shop-0").await;
    gateway.accepts(&of_new).await;
    assert_eq!(gateway.state(&space, "shop", &new).await.expect("an endpoint").0, "Ready");
    let target = gateway.gateway.target(&space.host("shop"));
    assert_eq!(session::get(&target, "/").await.status, StatusCode::OK);
    gateway.stop().await;
}
