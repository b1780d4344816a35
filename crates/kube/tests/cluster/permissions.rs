//! The engine's requests to the API server match the permission table that manifests grant and `rouse check` verifies.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::autoscale::rig::{Controller, OWN, Scene, running, scaled_route};
use crate::gateway_addresses::{Gateways, gateways};
use crate::rig::{
    DEPLOYMENTS, HTTP_SCALED_OBJECT, ROUTES, Rig, SLICES, annotated, deployment, id, pass, route, service,
};
use http::Method;
use rouse_core::endpoint::PodUid;
use rouse_core::engine::Engine as _;
use rouse_kube::client::permissions::{PERMISSIONS, PermissionRole, Scope, URL_PERMISSIONS};
use rouse_net::auth::{Claim, KeySetSource as _, TokenReviewer as _};
use rouse_testkit::api_server::{ApiRequest, ApiServer};
use serde_json::{Value, json};

const STATEFUL_SETS: &str = "apps/statefulsets";

/// Group, resource with its subresource, and verb.
type Right = (String, String, String);

/// A request as an authorizer sees it.
fn right(request: &ApiRequest) -> Right {
    let mut parts = request.path.split('/').skip(1);
    let group = if parts.next() == Some("api") { "" } else { parts.next().unwrap() };
    let mut rest: Vec<&str> = parts.skip(1).collect();
    if rest.first() == Some(&"namespaces") {
        rest.drain(..2);
    }
    let resource = match rest.get(2) {
        Some(sub) => format!("{}/{sub}", rest[0]),
        None => rest[0].to_owned(),
    };
    let verb = match request.method {
        Method::GET if rest.len() > 1 => "get",
        Method::GET if request.query.contains("watch=") => "watch",
        Method::GET => "list",
        Method::PATCH => "patch",
        Method::POST => "create",
        ref other => panic!("not granted: {other} {}", request.path),
    };
    (group.to_owned(), resource, verb.to_owned())
}

/// Objects of every kind: routes of both kinds, one of them faulty; a Deployment and a `StatefulSet` at 0; a Service and a
/// route that name other objects.
fn shop() -> ApiServer {
    let api = ApiServer::default();
    let annotations = json!({"rouse.dev/upstream-tls": "true",
        "rouse.dev/upstream-ca": "configmap/ca", "rouse.dev/upstream-client-cert": "own-certificate"});
    api.put("services", annotated(service("cart"), annotations));
    api.put(DEPLOYMENTS, deployment("cart", "cart", 0));
    let mut to_cart = route("to-cart", "cart.example.com", "cart");
    to_cart["spec"]["coldStart"] =
        json!({"placeholder": {"response": {"bodyFromConfigMap": {"name": "page"}}}});
    api.put(ROUTES, to_cart);
    api.put("services", service("db"));
    api.put(STATEFUL_SETS, deployment("db", "db", 0));
    api.put(ROUTES, route("to-db", "db.example.com", "db"));
    let target = json!({"name": "x", "service": "missing", "port": 80});
    let meta = json!({"name": "old", "namespace": "shop"});
    api.put(
        HTTP_SCALED_OBJECT,
        json!({"metadata": meta, "spec": {"hosts": ["old.example.com"], "scaleTargetRef": target}}),
    );
    api
}

fn replicas(api: &ApiServer, collection: &str, name: &str) -> Option<u64> {
    api.get(collection, "shop", name)?["spec"]["replicas"].as_u64()
}

/// Follows `api` until the engine has sent every kind of request.
async fn do_everything(api: &ApiServer, namespace: Option<&str>) {
    let rig = Rig::synced_with(api, |settings| settings.namespace = namespace.map(str::to_owned)).await;
    for (service, collection) in [("cart", DEPLOYMENTS), ("db", STATEFUL_SETS)] {
        rig.cluster.wake(&id(service));
        rig.until("it is woken", |rig| replicas(&rig.api, collection, service) == Some(1)).await;
        let looks = |rig: &Rig| {
            let plain = format!("/namespaces/shop/{}/{service}", collection.trim_start_matches("apps/"));
            rig.api.requests(|request| request.path.ends_with(&plain)).len()
        };
        rig.cluster.wake(&id(service));
        rig.until("it is looked at, since it has no pods", |rig| looks(rig) > 0).await;
    }
    let reported = |rig: &Rig, collection: &str, name: &str| {
        let object = rig.api.get(collection, "shop", name).unwrap();
        object.pointer("/status/conditions").and_then(Value::as_array).is_some_and(|all| !all.is_empty())
    };
    rig.until("statuses are written", |rig| {
        reported(rig, ROUTES, "to-cart") && reported(rig, HTTP_SCALED_OBJECT, "old")
    })
    .await;
    rig.until("events are written", |rig| {
        !rig.api
            .requests(|request| request.method == Method::POST && request.path.ends_with("/events"))
            .is_empty()
    })
    .await;
    for collection in ["pods", "secrets", "configmaps"] {
        rig.until("it is followed", |rig| rig.api.watchers(collection) > 0).await;
    }
    rig.stop().await;
}

/// Sends the requests that pods cause which register themselves: a look-up of a pod, a review of a token, the keys and the name
/// of the issuer.
async fn let_pods_register(api: &ApiServer) {
    let rig = Rig::synced(api).await;
    let uid = PodUid::new("unknown");
    let (pod, service_account) = ("cart-1".to_owned(), None);
    let claim = Claim { service: id("cart"), pod, uid, ips: Vec::new(), ports: [].into(), service_account };
    assert!(rig.cluster.push_ownership().check(&claim).await.is_err(), "there is no such pod");
    assert!(rig.cluster.token_reviews().review("x", "rouse-register").await.is_err());
    let keys = rig.cluster.issuer_keys();
    assert!(keys.fetch().await.is_err() && keys.issuer().await.is_err(), "the server has none");
    rig.stop().await;
}

/// Whether a request is for an object, not for another path of the API server.
fn is_of_object(request: &ApiRequest) -> bool {
    request.path.starts_with("/api/") || request.path.starts_with("/apis/")
}

fn assert_did_all_and_nothing_else(api: &ApiServer, role: PermissionRole) {
    let did: BTreeSet<Right> = api.requests(is_of_object).iter().map(right).collect();
    let granted = role.permissions().iter().flat_map(|permission| {
        let right =
            |verb: &&str| (permission.group.to_owned(), permission.resource.to_owned(), (*verb).to_owned());
        permission.verbs.iter().map(right)
    });
    let granted: BTreeSet<Right> = granted.collect();
    let missing: Vec<&Right> = did.difference(&granted).collect();
    let unused: Vec<&Right> = granted.difference(&did).collect();
    assert!(missing.is_empty() && unused.is_empty(), "not in the table: {missing:?}; never done: {unused:?}");
}

#[tokio::test(start_paused = true)]
async fn the_engine_does_all_that_is_in_the_table_and_nothing_else() {
    let api = shop();
    do_everything(&api, None).await;
    let_pods_register(&api).await;
    assert_did_all_and_nothing_else(&api, PermissionRole::Gateway);
    let urls: BTreeSet<String> =
        api.requests(|request| !is_of_object(request)).into_iter().map(|request| request.path).collect();
    let listed: BTreeSet<String> =
        URL_PERMISSIONS.iter().map(|permission| permission.url.to_owned()).collect();
    assert_eq!(urls, listed);
}

#[tokio::test(start_paused = true)]
async fn what_is_granted_by_name_is_asked_for_by_name() {
    let api = shop();
    do_everything(&api, None).await;
    for permission in PERMISSIONS.iter().filter(|permission| permission.scope == Scope::Named) {
        let all = api.requests(|request| right(request).1 == permission.resource);
        assert!(!all.is_empty(), "{permission:?}");
        for request in all {
            assert!(request.path.contains("/namespaces/shop/"), "{request:?}");
            assert!(request.query.contains("fieldSelector=metadata.name%3D"), "{request:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_gateway_of_one_namespace_asks_for_nothing_outside_it() {
    let api = shop();
    do_everything(&api, Some("shop")).await;
    let outside = api.requests(|request| !request.path.contains("/namespaces/shop/"));
    assert!(outside.is_empty(), "{outside:?}");
}

/// A control plane of Envoys that reads `namespace` until it has sent every kind of request, also when it is asked for wakes.
async fn read_everything(namespace: Option<&str>) -> ApiServer {
    let api = shop();
    api.put(SLICES, gateways(&[1]));
    let rig = Rig::synced_with(&api, |settings| {
        settings.namespace = namespace.map(str::to_owned);
        (settings.wakes, settings.routes.write_status) = (false, false);
    })
    .await;
    let found = Gateways::start(&api);
    found.until(&["10.0.0.1:8080"]).await;
    rig.cluster.wake(&id("cart"));
    for collection in ["pods", "secrets", "configmaps"] {
        rig.until("it is followed", |rig| rig.api.watchers(collection) > 0).await;
    }
    pass(Duration::from_mins(10)).await;
    assert_eq!(replicas(&api, DEPLOYMENTS, "cart"), Some(0), "it wakes nothing");
    found.stop().await;
    rig.stop().await;
    api
}

#[tokio::test(start_paused = true)]
async fn the_control_plane_of_envoys_reads_all_that_is_in_its_table_and_nothing_else() {
    let api = read_everything(None).await;
    assert_did_all_and_nothing_else(&api, PermissionRole::Xds);
}

#[tokio::test(start_paused = true)]
async fn a_control_plane_of_one_namespace_reads_nothing_outside_it_but_where_the_gateways_are() {
    let api = read_everything(Some("shop")).await;
    let own = format!("/namespaces/{OWN}/endpointslices");
    let outside =
        api.requests(|request| !request.path.contains("/namespaces/shop/") && !request.path.ends_with(&own));
    assert!(outside.is_empty(), "{outside:?}");
}

/// A controller that watches `namespace` until it has sent every kind of request.
async fn scale_everything(namespace: Option<&str>) -> ApiServer {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api.put(DEPLOYMENTS, running("cart", 1));
    api.put(ROUTES, scaled_route(&json!({"rouse.dev/idle": "learned"})));
    api.put("services", service("db"));
    api.put(STATEFUL_SETS, running("db", 1));
    let target = json!({"name": "db", "kind": "StatefulSet", "service": "db", "port": 80});
    let meta = json!({"name": "old", "namespace": "shop", "annotations": {"rouse.dev/autoscale": "on"}});
    let old = json!({"metadata": meta, "spec": {"hosts": ["old.example.com"], "scaleTargetRef": target}});
    api.put(HTTP_SCALED_OBJECT, old);
    let mut scene = Scene::without_lease(api);
    scene.controllers.push(Controller::start(&scene.api, "one", |settings| {
        settings.namespace = namespace.map(str::to_owned);
    }));
    scene.list(&["gw-1"]);
    for _ in 0..6 {
        scene.load("gw-1", "cart", 25, 0);
        scene.load("gw-1", "db", 250, 0);
        scene.seconds(60).await;
        scene.load("gw-1", "cart", 0, 0);
        scene.load("gw-1", "db", 0, 0);
        scene.seconds(400).await;
        scene.api.put(DEPLOYMENTS, running("cart", 1));
    }
    let api = scene.api.clone();
    scene.stop().await;
    api
}

#[tokio::test(start_paused = true)]
async fn the_controller_does_all_that_is_in_its_table_and_nothing_else() {
    let api = scale_everything(None).await;
    assert_did_all_and_nothing_else(&api, PermissionRole::Controller);
}

#[tokio::test(start_paused = true)]
async fn a_controller_of_one_namespace_asks_for_nothing_outside_it_but_for_what_is_its_own() {
    let api = scale_everything(Some("shop")).await;
    let own = format!("/namespaces/{OWN}/");
    let permissions = PermissionRole::Controller.permissions();
    let is_own = |request: &ApiRequest| {
        let (group, resource, verb) = right(request);
        let mut all = permissions.iter().filter(|permission| permission.scope == Scope::Own);
        all.any(|permission| {
            (permission.group, permission.resource) == (&*group, &*resource)
                && permission.verbs.contains(&&*verb)
        })
    };
    let outside = api.requests(|request| {
        let allowed =
            request.path.contains("/namespaces/shop/") || (request.path.contains(&own) && is_own(request));
        !allowed
    });
    assert!(outside.is_empty(), "{outside:?}");
}
