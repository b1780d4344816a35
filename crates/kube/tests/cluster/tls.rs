//! TLS to pods: the annotations of Services, the objects they name, and changes and failures of these objects.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use k8s_openapi::ByteString;
use rouse_kube::objects::service_summary::TlsFacts;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::rig::{ROUTES, Rig, annotated, condition, event_texts, pass, route, service, synced};
use rouse_testkit::api_server::{ApiServer, InjectedFault};

fn secret(name: &str, entries: &[(&str, &str)]) -> Value {
    let encoded = |(key, text): &(&str, &str)| ((*key).to_owned(), json!(ByteString((*text).into())));
    let data: serde_json::Map<String, Value> = entries.iter().map(encoded).collect();
    json!({"metadata": {"name": name, "namespace": "shop"}, "type": "kubernetes.io/tls", "data": data})
}

fn config_map(name: &str, key: &str, text: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"}, "data": {key: text}})
}

/// Service `cart` with all TLS annotations, its objects, and a route.
fn shop() -> ApiServer {
    let api = ApiServer::default();
    let annotations = json!({
        "rouse.dev/upstream-tls": "true", "rouse.dev/upstream-server-name": "Cart.Internal",
        "rouse.dev/upstream-ca": "configmap/roots/bundle", "rouse.dev/upstream-client-cert": "gateway"});
    api.put("services", annotated(service("cart"), annotations));
    api.put("configmaps", config_map("roots", "bundle", "ROOT"));
    api.put(
        "secrets",
        secret("gateway", &[("tls.crt", "CERT"), ("tls.key", "HIDDEN"), ("other", "UNRELATED")]),
    );
    api.put("secrets", secret("unrelated", &[("x", "y")]));
    api.put(ROUTES, route("r", "shop.example.com", "cart"));
    api
}

fn tls(rig: &Rig) -> Arc<TlsFacts> {
    Arc::clone(&rig.plan("shop/r").unwrap().target.as_ref().unwrap().tls)
}

fn fault(rig: &Rig) -> String {
    tls(rig).fault.as_deref().unwrap_or_default().to_owned()
}

fn ca(rig: &Rig) -> String {
    String::from_utf8(tls(rig).ca.as_deref().unwrap_or_default().to_vec()).unwrap()
}

/// Waits until `count` Secrets and `ConfigMap`s are watched.
async fn until_followed(rig: &Rig, count: usize) {
    let what = format!("{count} objects are followed");
    rig.until(&what, |rig| rig.api.watchers("secrets") + rig.api.watchers("configmaps") == count).await;
}

/// Replaces the client certificate, and waits until the new one is published.
async fn renew(rig: &Rig) {
    rig.api.put("secrets", secret("gateway", &[("tls.crt", "NEW"), ("tls.key", "NEWER")]));
    rig.until("the new certificate is published", |rig| {
        tls(rig).client.as_ref().is_some_and(|(certificate, _)| **certificate == *b"NEW")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_service_says_how_its_pods_are_spoken_to_and_only_what_it_names_is_read() {
    let (api, rig) = synced(shop()).await;
    let facts = tls(&rig);
    assert_eq!((facts.on, facts.server_name.as_deref()), (Some(true), Some("cart.internal")));
    assert_eq!((facts.fault.as_deref(), facts.ca.as_deref()), (None, Some(&b"ROOT"[..])), "from the start");
    let (certificate, key) = facts.client.clone().unwrap();
    assert_eq!((&*certificate, &*key), (&b"CERT"[..], &b"HIDDEN"[..]));
    let printed = format!("{:?} {:?}", rig.plan("shop/r").unwrap(), rig.cluster);
    assert!(printed.contains("TlsFacts") && !printed.contains("HIDDEN"), "{printed}");
    assert!(!printed.contains("72, 73, 68, 68"), "nor as numbers: {printed}");
    until_followed(&rig, 2).await;
    for request in
        api.requests(|request| request.path.ends_with("secrets") || request.path.ends_with("configmaps"))
    {
        let name = if request.path.ends_with("secrets") { "gateway" } else { "roots" };
        assert!(request.path.contains("/namespaces/shop/"), "{request:?}");
        assert!(request.query.contains(&format!("fieldSelector=metadata.name%3D{name}")), "{request:?}");
    }
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn new_certificates_are_published_and_nothing_else_changes_the_facts() {
    let (api, rig) = synced(shop()).await;
    until_followed(&rig, 2).await;
    let before = tls(&rig);
    // The same content again, a new list, and another port: existing TLS sessions stay.
    api.put("configmaps", config_map("roots", "bundle", "ROOT"));
    api.expire();
    let mut more = api.get("services", "shop", "cart").unwrap();
    more["spec"]["ports"] = json!([{"name": "http", "port": 80}, {"name": "more", "port": 81}]);
    api.put("services", more);
    let mut moved = route("r", "other.example.com", "cart");
    moved["spec"]["target"]["port"] = json!(81);
    api.put(ROUTES, moved);
    rig.until("the route has changed", |rig| {
        rig.plan("shop/r").unwrap().target.as_ref().is_ok_and(|target| target.number == 81)
    })
    .await;
    pass(Duration::from_mins(1)).await;
    assert!(Arc::ptr_eq(&before, &tls(&rig)), "the very same facts");
    renew(&rig).await;
    api.put("configmaps", config_map("roots", "bundle", "OTHER"));
    rig.until("the roots too", |rig| ca(rig) == "OTHER").await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_the_data_plane_cannot_use_is_a_fault_until_it_is_replaced() {
    let api = shop();
    let rig = Rig::with(&api, |settings| {
        settings.routes.check_tls =
            |facts| (facts.ca.as_deref() == Some(b"ROOT")).then(|| "no root".to_owned());
    });
    assert_eq!(rig.until_condition("r", "BadUpstreamTls").await.2, "Service shop/cart: no root");
    assert_eq!(
        (fault(&rig), rig.condition("r", "Ready").unwrap().0),
        ("no root".to_owned(), "False".to_owned())
    );
    let before = tls(&rig);
    pass(Duration::from_mins(2)).await;
    assert!(Arc::ptr_eq(&before, &tls(&rig)), "the very same facts");
    api.put("configmaps", config_map("roots", "bundle", "OTHER"));
    rig.until("it is ready", |rig| rig.condition("r", "Ready").is_some_and(|ready| ready.0 == "True")).await;
    assert_eq!(fault(&rig), "");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_or_odd_is_a_fault_until_it_is_mended() {
    let api = shop();
    api.delete("configmaps", "shop", "roots");
    let rig = Rig::synced(&api).await;
    assert_eq!(fault(&rig), "there is no ConfigMap shop/roots");
    assert_eq!((tls(&rig).on, tls(&rig).ca.clone()), (Some(true), None));
    let reported = rig.until_condition("r", "BadUpstreamTls").await;
    assert_eq!(reported.2, "Service shop/cart: there is no ConfigMap shop/roots");
    assert_eq!(rig.condition("r", "Ready").unwrap().1, "BadUpstreamTls");
    api.put("configmaps", config_map("roots", "ca.crt", "ROOT"));
    rig.until("the entry is missed", |rig| fault(rig) == "ConfigMap shop/roots has no entry \"bundle\"")
        .await;
    let mut binary = config_map("roots", "x", "y");
    binary["binaryData"] = json!({"bundle": ByteString(b"BINARY".to_vec())});
    api.put("configmaps", binary);
    rig.until("all is well", |rig| fault(rig).is_empty() && ca(rig) == "BINARY").await;
    rig.until_no_condition("r", "BadUpstreamTls").await;
    let mut invalid = secret("gateway", &[("tls.crt", "CERT")]);
    invalid["data"]["tls.key"] = json!("HIDDEN?");
    api.put("secrets", invalid);
    rig.until("it is not base64", |rig| fault(rig) == "Secret shop/gateway: entry \"tls.key\" is not base64")
        .await;
    api.delete("secrets", "shop", "gateway");
    rig.until("it is gone", |rig| fault(rig) == "there is no Secret shop/gateway").await;
    assert!(tls(&rig).client.is_none());
    api.put("services", annotated(service("cart"), json!({"rouse.dev/upstream-tls": "yes"})));
    rig.until("the annotation is not valid", |rig| {
        fault(rig) == "annotation rouse.dev/upstream-tls is \"yes\": expected true or false"
    })
    .await;
    assert_eq!(tls(&rig).on, Some(true), "what cannot be read is never in the clear");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_may_not_be_read_is_a_fault_that_says_what_to_grant() {
    let api = shop();
    api.refuse(Method::GET, "/secrets", 403, "secrets is forbidden: User \"rouse\" cannot list", None);
    let rig = Rig::start(&api);
    let mut events = rig.cluster.events();
    rig.wait_synced().await;
    let words = "Secret shop/gateway cannot be read: the permission to list and watch secrets in namespace shop is missing: \
                 secrets is forbidden: User \"rouse\" cannot list";
    assert_eq!(fault(&rig), words);
    rig.until_condition("r", "BadUpstreamTls").await;
    pass(Duration::from_mins(5)).await;
    let tries = api.requests(|request| request.path.ends_with("/secrets")).len();
    assert!((20..=80).contains(&tries), "{tries} tries in five minutes");
    let reported = event_texts(&mut events);
    assert_eq!(
        reported.iter().filter(|reported| reported.contains("Secret shop/gateway")).count(),
        1,
        "once"
    );
    api.allow_all();
    rig.until("all is well", |rig| fault(rig).is_empty() && tls(rig).client.is_some()).await;
    // A value that was read stays while the API server is unreachable.
    rig.until_watched("secrets").await;
    let before = tls(&rig);
    api.set_down(true);
    pass(Duration::from_mins(2)).await;
    assert!(Arc::ptr_eq(&before, &tls(&rig)));
    api.put("configmaps", config_map("roots", "bundle", "LATER"));
    api.set_down(false);
    rig.until("what changed meanwhile is seen", |rig| ca(rig) == "LATER").await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn only_services_that_routes_lead_to_are_read_for_fallbacks_included() {
    let api = shop();
    api.put("services", annotated(service("idle"), json!({"rouse.dev/upstream-ca": "secret/unrelated"})));
    api.put("services", annotated(service("spare"), json!({"rouse.dev/upstream-ca": "secret/spare-ca"})));
    api.put("secrets", secret("spare-ca", &[("ca.crt", "SPARE")]));
    let mut with_fallback = route("r", "shop.example.com", "cart");
    with_fallback["spec"]["coldStart"] = json!({"fallback": {"service": {"name": "spare", "port": 80}}});
    api.put(ROUTES, with_fallback);
    let rig = Rig::synced(&api).await;
    let fallback = rig.plan("shop/r").unwrap().fallback.clone().unwrap().unwrap();
    assert_eq!(fallback.tls.ca.as_deref(), Some(&b"SPARE"[..]));
    let strange = api.requests(|request| request.query.contains("unrelated"));
    assert!(strange.is_empty(), "{strange:?}");
    api.delete("secrets", "shop", "spare-ca");
    rig.until("its fault is the route's", |rig| {
        rig.condition("r", "BadUpstreamTls")
            .is_some_and(|reported| reported.2.contains("shop/spare: there is no"))
    })
    .await;
    api.delete(ROUTES, "shop", "r");
    until_followed(&rig, 0).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_request_is_refused_while_a_service_goes_from_one_bundle_to_another() {
    let (api, rig) = synced(shop()).await;
    let mut plans = rig.cluster.plans();
    for bundle in ["one", "two", "three"] {
        api.put("configmaps", config_map(bundle, "ca.crt", bundle));
        let annotations = json!({"rouse.dev/upstream-tls": "true",
                                 "rouse.dev/upstream-ca": format!("configmap/{bundle}")});
        api.put("services", annotated(service("cart"), annotations));
        // Routes are published for this, whether the bundle was read or not.
        api.put(ROUTES, route("r", &format!("{bundle}.example.com"), "cart"));
        while ca(&rig) != bundle {
            timeout(Duration::from_mins(10), plans.changed()).await.expect("in time").unwrap();
            assert_eq!(fault(&rig), "");
        }
    }
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_of_another_name_or_namespace_is_never_taken_for_ours() {
    let api = shop();
    let mut foreign = annotated(service("cart"), json!({"rouse.dev/upstream-client-cert": "gateway"}));
    foreign["metadata"]["namespace"] = json!("thieves");
    api.put("services", foreign);
    let mut theirs = route("r", "thieves.example.com", "cart");
    theirs["metadata"]["namespace"] = json!("thieves");
    api.put(ROUTES, theirs);
    let rig = Rig::synced(&api).await;
    let facts = rig.plan("thieves/r").unwrap().target.clone().unwrap().tls;
    assert_eq!(facts.fault.as_deref(), Some("there is no Secret thieves/gateway"));
    assert!(facts.client.is_none());
    let reported = |rig: &Rig| condition(&rig.api.get(ROUTES, "thieves", "r").unwrap(), "BadUpstreamTls");
    rig.until("the status shows it", |rig| reported(rig).is_some()).await;
    assert!(fault(&rig).is_empty());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn more_objects_than_are_followed_are_faults_until_there_is_room() {
    let api = ApiServer::default();
    for n in 0..501 {
        let annotations = json!({"rouse.dev/upstream-ca": format!("secret/ca-{n:03}"),
                                 "rouse.dev/upstream-client-cert": format!("client-{n:03}")});
        api.put("services", annotated(service(&format!("s{n:03}")), annotations));
        let name = format!("s{n:03}");
        if n % 2 == 0 {
            let mut pair = route(&format!("r{n:03}"), &format!("h{n}.example.com"), &name);
            if n < 500 {
                let spare = format!("s{:03}", n + 1);
                pair["spec"]["coldStart"] = json!({"fallback": {"service": {"name": spare, "port": 80}}});
            }
            api.put(ROUTES, pair);
        }
    }
    let rig = Rig::synced_with(&api, |settings| settings.routes.write_status = false).await;
    let faults = |rig: &Rig| {
        let plans = Arc::clone(&rig.cluster.plans().borrow());
        let ports = plans.iter().flat_map(|plan| [Some(&plan.target), plan.fallback.as_ref()]).flatten();
        let faults = ports.filter_map(|port| port.as_ref().unwrap().tls.fault.clone());
        faults.filter(|fault| fault.contains("is not read: Services name more than 1000 objects")).count()
    };
    rig.until("two are too many", |rig| faults(rig) == 2).await;
    rig.until("the others are followed", |rig| rig.api.watchers("secrets") == 1000).await;
    api.delete(ROUTES, "shop", "r000");
    rig.until("there is room", |rig| faults(rig) == 0).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_a_secret_that_panics_is_reported_and_started_again() {
    let (api, rig) = synced(shop()).await;
    let mut events = rig.cluster.events();
    rig.until_watched("secrets").await;
    let before = tls(&rig);
    api.trap("/secrets", InjectedFault::Panic);
    api.expire();
    rig.until("it is not followed", |rig| rig.api.watchers("secrets") == 0).await;
    pass(Duration::from_secs(1)).await;
    assert!(Arc::ptr_eq(&before, &tls(&rig)), "what was read stands");
    renew(&rig).await;
    let reported = event_texts(&mut events);
    let words = "the watch of Secret shop/gateway has panicked";
    assert_eq!(reported.iter().filter(|reported| reported.contains(words)).count(), 1, "once");
    rig.stop().await;
}
