//! `rouse check` of the controller: what it reads of a cluster, and what it says about it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rouse_kube::client::permissions::PermissionRole;
use rouse_testkit::certificates::{Authority, Leaf};

use super::*;

const SERVICE_NAMES: [&str; 2] =
    ["rouse-controller.rouse-system.svc.cluster.local", "rouse-controller.rouse-system.svc"];
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/rouse-system/deployments";
const IN_SYSTEM: &str = "/api/v1/namespaces/rouse-system";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/rouse-system/leases/rouse-controller";

fn secret(leaf: &Leaf) -> Value {
    let data = json!({"tls.crt": STANDARD.encode(&leaf.chain), "tls.key": STANDARD.encode(&leaf.key)});
    json!({"metadata": {"name": "s"}, "type": "kubernetes.io/tls", "data": data})
}

fn lease(holder: &str, renewed: &str) -> Value {
    json!({"metadata": {"name": "rouse-controller", "namespace": "rouse-system"},
           "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}})
}

fn deployment(name: &str, env: &[(&str, &str)], labels: &Value) -> Value {
    let env: Vec<Value> = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let container =
        json!({"name": "c", "env": env, "volumeMounts": [{"name": "r", "mountPath": "/report-certs"}]});
    let volumes = json!([{"name": "r", "secret": {"secretName": "rouse-controller-tls"}}]);
    let pod = json!({"serviceAccountName": name, "volumes": volumes, "containers": [container]});
    json!({"metadata": {"name": name},
           "spec": {"replicas": 2, "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": pod}},
           "status": {"availableReplicas": 2}})
}

fn scaled_route(name: &str, status: &str, message: &str) -> Value {
    let mut route = route("shop", name, &format!("{name}.example.com"));
    route["metadata"]["annotations"] = json!({"rouse.dev/autoscale": "on"});
    if !status.is_empty() {
        let condition = json!({"type": "Autoscaled", "status": status, "reason": "R", "message": message});
        route["status"] = json!({"conditions": [condition]});
    }
    route
}

/// A cluster where a controller scales one route, and lacks nothing.
fn cluster_with_controller(authority: &Authority) -> ApiServer {
    let api = good_cluster();
    let url = "https://rouse-controller.rouse-system.svc.cluster.local:9444";
    let gateway = deployment("rouse-gateway", &[("ROUSE_REPORT_TO", url)], &json!({"app": "gateway"}));
    api.object_at(&format!("{DEPLOYMENTS}/rouse-gateway"), gateway);
    let labels = json!({"app": "controller"});
    let set = [("ROUSE_REPORT_LISTEN", "0.0.0.0:9444"), ("ROUSE_REPORT_TLS_CERT", "/report-certs/tls.crt")];
    api.object_at(&format!("{DEPLOYMENTS}/rouse-controller"), deployment("rouse-controller", &set, &labels));
    let leaf = authority.leaf(&SERVICE_NAMES);
    api.object_at(&format!("{IN_SYSTEM}/secrets/rouse-controller-tls"), secret(&leaf));
    api.object_at(
        &format!("{IN_SYSTEM}/services/rouse-controller"),
        json!({"metadata": {"name": "rouse-controller"},
               "spec": {"clusterIP": "None", "publishNotReadyAddresses": true, "selector": labels,
                        "ports": [{"name": "reports", "port": 9444, "targetPort": "reports"}]}}),
    );
    api.object_at(LEASE, lease("rouse-controller-1_7", "2999-01-01T00:00:00.000000Z"));
    api.list_at(ROUTES, vec![scaled_route("cart", "True", "deployment cart: 2 pods")]);
    api
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_lacks_nothing_passes() {
    let said = check(&cluster_with_controller(&Authority::new()), &[]).await;
    assert_eq!(said.passed(), Vec::<&str>::new(), "{}", said.out);
    for part in [
        "✔ Deployment rouse-controller is available (2 of 2)",
        "✔ gateways report their load to the controller (https://rouse-controller.rouse-system.svc.cluster.local:9444)",
        "✔ Service rouse-controller leads gateways to every controller",
        "✔ the certificate for load reports is valid (Secret rouse-controller-tls)",
        "✔ a controller leads (rouse-controller-1_7)",
        "✔ the controller has its permissions (",
        "✔ the workloads of routes are scaled (1)",
    ] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    let without = check(&good_cluster(), &[]).await;
    let part = "✔ the controller is not installed, and no route asks for scaling";
    assert!(without.out.contains(part), "{}", without.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_permissions_of_the_controllers_own_account_are_asked_for() {
    let api = cluster_with_controller(&Authority::new());
    check(&api, &[]).await.passed();
    let account = "system:serviceaccount:rouse-system:rouse-controller";
    let asked = api.reviews().into_iter().filter(|review| review.user.as_deref() == Some(account));
    let asked: BTreeSet<Vec<String>> = asked
        .map(|review| {
            let text = |field: &str| review.attributes[field].as_str().unwrap_or_default().to_owned();
            ["namespace", "group", "resource", "subresource", "verb"].map(text).to_vec()
        })
        .collect();
    let expected: BTreeSet<Vec<String>> = PermissionRole::Controller
        .permissions()
        .iter()
        .flat_map(|permission| permission.verbs.iter().map(move |verb| (permission, verb)))
        .map(|(permission, verb)| {
            let (resource, sub) = permission.parts();
            let place = if permission.scope == Scope::Own { "rouse-system" } else { "" };
            [place, permission.group, resource, sub.unwrap_or_default(), verb].map(str::to_owned).to_vec()
        })
        .collect();
    assert_eq!(asked, expected);
    api.deny("patch leases");
    let said = check(&api, &[]).await;
    let told = "controller: create, get, list, patch, watch leases.coordination.k8s.io in rouse-system";
    assert_eq!(said.passed(), [told], "{}", said.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stopped_a_wrong_certificate_and_a_route_that_is_not_scaled_are_warnings() {
    let authority = Authority::new();
    let api = cluster_with_controller(&authority);
    let other = authority.leaf(&["rouse-register.rouse-system.svc"]);
    api.object_at(&format!("{IN_SYSTEM}/secrets/rouse-controller-tls"), secret(&other));
    api.object_at(LEASE, lease("rouse-controller-1_7", "2024-01-01T00:00:00.000000Z"));
    let blocked = "deployment cart: gateway a is silent";
    api.list_at(ROUTES, vec![scaled_route("cart", "False", blocked), scaled_route("new", "", "")]);
    let said = check(&api, &[]).await;
    let told = [
        "the certificate for load reports is valid (Secret rouse-controller-tls)",
        "a controller leads",
        "InterceptorRoute shop/cart is scaled",
    ];
    assert_eq!(said.passed(), told, "{}", said.out);
    for part in ["it is not for rouse-controller.rouse-system", "has not renewed the Lease", blocked] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    assert_eq!(said.lines_with('-'), ["InterceptorRoute shop/new is scaled"]);
    api.remove_at(LEASE);
    let said = check(&api, &[]).await;
    assert!(said.out.contains("no controller holds the Lease"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_asks_for_scaling_without_a_controller_is_a_warning() {
    let api = good_cluster();
    api.list_at(ROUTES, vec![scaled_route("cart", "", "")]);
    let said = check(&api, &[]).await;
    assert_eq!(said.passed(), ["a controller scales the routes that ask for it (1)"], "{}", said.out);
}
