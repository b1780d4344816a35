//! The gateway and the controller deployed in the cluster with the output of `rouse install`, under the restricted pod security standard.

use std::collections::BTreeSet;

use http::StatusCode;
use rouse_e2e::client::load::Load;
use rouse_e2e::client::session;
use rouse_e2e::command::run;
use rouse_e2e::target::Target;
use rouse_e2e::wait::{patiently, within};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::app::{App, merge};
use crate::cluster;
use crate::harness::{Case, trial};
use crate::test_namespace::{DEPLOYMENT, POD, TestNamespace, programs};

pub(crate) const TRIALS: &[Case] =
    &[trial!(what_install_prints_serves_from_zero_and_is_replaced_under_load).once()];

const GATEWAY: &str = "rouse-gateway";
const CONTROLLER: &str = "rouse-controller";
const ITS_PODS: &str = "app.kubernetes.io/component=gateway";
/// Requests a second.
const RATE: u32 = 100;

/// Enforces the restricted pod security standard in the namespace, as `deploy/` does in its own.
async fn restrict(space: &TestNamespace) {
    let label = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": space.name(), "labels": label } });
    cluster::apply(space.client(), None, &namespace).await;
}

/// The app's Deployment, changed to satisfy the restricted standard.
fn restricted(app: &App) -> Value {
    let mut deployment = app.deployment();
    let pod = &mut deployment["spec"]["template"]["spec"];
    let all =
        json!({ "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } });
    pod["securityContext"] = all;
    let own = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    merge(&mut pod["containers"][0], &json!({ "securityContext": own }));
    deployment
}

/// `rouse install | kubectl apply --server-side -f -`, for a gateway and a controller of this namespace alone.
async fn install(space: &TestNamespace) {
    let mut command = Command::new(programs().rouse);
    command.args(["install", "--no-crds", "--no-namespace", "--image", &cluster::gateway_image()]);
    command.args(["--namespace", space.name(), "--watch-namespace", space.name()]);
    command.args(["--generate-keys", "--push", "off"]);
    let printed = run(command).await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    for object in cluster::objects("what install prints", &printed.stdout) {
        cluster::apply(space.client(), Some(space.name()), &object).await;
    }
    settled(space, GATEWAY).await;
    settled(space, CONTROLLER).await;
}

/// Waits until both pods of this Deployment are ready, and no others are there.
async fn settled(space: &TestNamespace, deployment: &str) {
    space
        .until(DEPLOYMENT, deployment, "to have its two pods", |it| {
            let status = &it["status"];
            status["observedGeneration"] == it["metadata"]["generation"]
                && ["replicas", "updatedReplicas", "availableReplicas"].iter().all(|count| status[count] == 2)
        })
        .await;
}

async fn pods(space: &TestNamespace) -> BTreeSet<String> {
    let pods = space.list(POD, ITS_PODS).await;
    pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

async fn what_install_prints_serves_from_zero_and_is_replaced_under_load(space: TestNamespace) {
    restrict(&space).await;
    let app = App::new("shop");
    space.apply(restricted(&app)).await;
    space.apply(app.service()).await;
    space.apply(space.route("shop").object()).await;
    install(&space).await;
    let service = space.cluster_ip(GATEWAY).await;
    let target = Target::plain((service, 80).into()).with_host(&space.host("shop"));

    let cold = session::get(&target, "/headers").await;
    assert_eq!((cold.status, cold.header("x-rouse-cold-start")), (StatusCode::OK, "true"), "{}", cold.text());
    let seen = cold.json();
    let peer = seen["peer"].as_str().expect("a peer");
    let gateways = space.list(POD, ITS_PODS).await;
    let is_peer = |pod: &Value| peer.starts_with(&format!("{}:", pod["status"]["podIP"].as_str().unwrap()));
    assert!(gateways.iter().any(is_peer), "{peer} is one of the gateway's pods");
    let [pod] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
    assert_eq!(seen["local"], format!("{}:8080", pod.ip), "straight to the pod");

    // A Lease that was just created has no holder for as long as one that is not renewed.
    let led = |lease: &Value| {
        lease["spec"]["holderIdentity"].as_str().is_some_and(|who| who.starts_with(CONTROLLER))
    };
    space.until(("coordination.k8s.io/v1", "Lease"), CONTROLLER, "to have a holder", led).await;
    let mut check = Command::new(programs().rouse);
    check.args(["check", "--gateway", space.name(), "--namespace", space.name(), "--kubeconfig"]);
    check.arg(space.kubeconfig());
    let checked = run(check).await;
    assert_eq!(checked.code, Some(0), "{}{}", checked.stdout, checked.stderr);
    for line in [
        "✔ gateways report their load to the controller",
        "✔ a controller leads",
        "✔ the controller has its permissions",
    ] {
        assert!(checked.stdout.contains(line), "{line}: {}", checked.stdout);
    }

    let before = pods(&space).await;
    let load = Load::on(&target, RATE);
    load.flows(50).await;
    let slow = session::get_many(&target, "/slow/10000", 4);
    let straight = Target::plain((pod.ip, 8080).into());
    straight.until("in_flight", |count| count >= 4).await;
    let round = json!({ "metadata": { "annotations": { "round": "2" } } });
    space.patch(DEPLOYMENT, GATEWAY, json!({ "spec": { "template": round } })).await;
    settled(&space, GATEWAY).await;
    for answer in within("ten seconds", slow.join_all()).await {
        assert_eq!(
            (answer.status, &*answer.text()),
            (StatusCode::OK, "slow\n"),
            "a request in flight survives the rollout"
        );
    }
    patiently("the old gateways to be gone", async || pods(&space).await.is_disjoint(&before).then_some(()))
        .await;
    load.flows(50).await;
    load.stop().await.assert_perfect();
}
