//! Wakes: the scaled workload, the number of writes, and how failures are reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use http::Method;
use rouse_core::engine::Engine as _;
use rouse_core::hold::AcquireError;
use rouse_core::service::{Port, ServiceSpec, SlotRequest};
use rouse_core::start_failure::StartFailureCause;
use rouse_kube::cluster::ClusterEvent;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::rig::{
    DEPLOYMENTS, HTTP_SCALED_OBJECT, ROUTES, Rig, SCALED_OBJECT, SLICES, annotated, deployment, id, pass,
    route, service, shop, slice, synced,
};
use rouse_testkit::api_server::{ApiServer, InjectedFault};

fn replicas(api: &ApiServer, name: &str) -> u64 {
    api.get(DEPLOYMENTS, "shop", name).unwrap()["spec"]["replicas"].as_u64().unwrap()
}

/// Wakes a service. Returns why that failed, and whether it had failed before.
async fn failure_of(rig: &Rig, name: &str) -> (String, bool) {
    let mut events = rig.cluster.events();
    rig.cluster.wake(&id(name));
    loop {
        let event = timeout(Duration::from_mins(1), events.recv()).await.expect("a failure").unwrap();
        if let ClusterEvent::WakeFailed { service, why, again, .. } = event {
            assert_eq!(service, id(name));
            return (why, again);
        }
    }
}

/// Wakes `cart`. Returns why it failed.
async fn failure(rig: &Rig) -> String {
    let (why, _) = failure_of(rig, "cart").await;
    assert_eq!(rig.registry.get(&id("cart")).unwrap().wake_failure().unwrap().detail(), why);
    why
}

/// Wakes `cart`, and waits until it has `expected` replicas.
async fn wake(rig: &Rig, expected: u64) {
    rig.cluster.wake(&id("cart"));
    rig.until("it is scaled", |rig| replicas(&rig.api, "cart") == expected).await;
}

/// Route `r` with these annotations.
fn annotated_route(annotations: Value) -> Value {
    annotated(route("r", "shop.example.com", "cart"), annotations)
}

/// A Deployment `cart` whose controller is refused pods by a quota.
fn without_quota(replicas: u32, status: &Value) -> Value {
    let mut blocked = deployment("cart", "cart", replicas);
    blocked["status"] = status.clone();
    blocked["status"]["conditions"] =
        json!([{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]);
    blocked
}

#[tokio::test(start_paused = true)]
async fn a_wake_is_one_write_with_the_version_it_was_decided_on() {
    let (api, rig) = synced(shop()).await;
    let version = api.get(DEPLOYMENTS, "shop", "cart").unwrap()["metadata"]["resourceVersion"].clone();
    for _ in 0..100 {
        rig.cluster.wake(&id("cart"));
    }
    rig.until("it is scaled", |rig| replicas(&rig.api, "cart") == 1).await;
    for _ in 0..100 {
        rig.cluster.wake(&id("cart"));
        pass(Duration::from_millis(100)).await;
    }
    let writes = api.patches("scale");
    assert_eq!(writes.len(), 1);
    assert_eq!(writes[0].body["metadata"]["resourceVersion"], version);
    assert_eq!(writes[0].path, "/apis/apps/v1/namespaces/shop/deployments/cart/scale");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_wake_goes_to_the_least_that_the_route_asks_for() {
    let api = shop();
    api.put(ROUTES, annotated_route(json!({"rouse.dev/min": "3"})));
    let rig = Rig::synced(&api).await;
    wake(&rig, 3).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn several_gateways_make_one_change() {
    let api = shop();
    let (one, other) = (Rig::synced(&api).await, Rig::synced(&api).await);
    let (a, b) = (one.cluster.clone(), other.cluster.clone());
    // Between the read and the patch, another writer scales it to 5.
    api.before_next_write("/scale", |api| {
        let mut scaled = api.get(DEPLOYMENTS, "shop", "cart").unwrap();
        scaled["spec"]["replicas"] = json!(5);
        api.put(DEPLOYMENTS, scaled);
    });
    a.wake(&id("cart"));
    b.wake(&id("cart"));
    one.until("it was tried", |rig| !rig.api.patches("scale").is_empty()).await;
    pass(Duration::from_secs(30)).await;
    assert_eq!(replicas(&api, "cart"), 5, "the second writer leaves it alone");
    let service = one.registry.get(&id("cart")).unwrap();
    assert_eq!(service.wake_failure(), None, "a workload that another writer scaled is awake");
    one.stop().await;
    other.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_in_between_that_leaves_it_at_zero_is_looked_at_again() {
    let (api, rig) = synced(shop()).await;
    api.before_next_write("/scale", |api| {
        let object = api.get(DEPLOYMENTS, "shop", "cart").unwrap();
        api.put(DEPLOYMENTS, object);
    });
    wake(&rig, 1).await;
    assert_eq!(api.patches("scale").len(), 2);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_shown_in_the_status_until_it_is_over() {
    let (api, rig) = synced(shop()).await;
    api.refuse(Method::PATCH, "/scale", 403, "cannot patch resource", None);
    let words = failure(&rig).await;
    assert!(words.contains("not allowed to scale Deployment cart in shop"), "{words}");
    assert!(words.contains("get and patch of deployments/scale"), "{words}");
    rig.until_condition("r", "WakeFailed").await;
    api.allow_all();
    api.refuse(Method::PATCH, "/scale", 403, "exceeded quota: pods", Some(1));
    assert!(failure(&rig).await.starts_with("a quota keeps Deployment cart"));
    api.refuse(Method::PATCH, "/scale", 500, "etcd is slow", Some(1));
    assert!(failure(&rig).await.contains("etcd is slow (500)"));
    api.set_down(true);
    assert!(failure(&rig).await.contains("the API server cannot be reached"));
    api.set_down(false);
    wake(&rig, 1).await;
    rig.until_no_condition("r", "WakeFailed").await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_is_gone_is_looked_for_again() {
    let (api, rig) = synced(shop()).await;
    pass(Duration::from_secs(1)).await;
    api.delete(DEPLOYMENTS, "shop", "cart");
    assert!(failure(&rig).await.contains("Deployment cart in shop does not exist"));
    let words = failure(&rig).await;
    assert!(words.contains("no Deployment or StatefulSet has the pods of Service shop/cart"), "{words}");
    rig.until_condition("r", "NoScaleTarget").await;
    api.put(DEPLOYMENTS, deployment("successor", "cart", 0));
    rig.cluster.wake(&id("cart"));
    rig.until("the successor is found", |rig| replicas(&rig.api, "successor") == 1).await;
    rig.until_no_condition("r", "NoScaleTarget").await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_keeps_pods_from_being_made_is_told() {
    let api = shop();
    api.put(DEPLOYMENTS, without_quota(1, &json!({})));
    let rig = Rig::synced(&api).await;
    assert_eq!(failure(&rig).await, "Deployment cart in shop gets no pods: exceeded quota");
    rig.stop().await;
}

fn scaled_object(annotations: &Value) -> Value {
    json!({"metadata": {"name": "so", "namespace": "shop", "annotations": annotations},
           "spec": {"scaleTargetRef": {"name": "by-keda"},
                    "triggers": [{"type": "cron", "metadata": {}},
                                 {"type": "external-push", "metadata": {"interceptorRoute": "r"}}]}})
}

#[tokio::test(start_paused = true)]
async fn the_workload_is_found_as_the_spec_says() {
    let check = async |objects: &[(&str, Value)], expected: &str| {
        let api = shop();
        for name in ["by-keda", "by-annotation", "by-name"] {
            api.put(DEPLOYMENTS, deployment(name, "unrelated", 0));
        }
        for (collection, object) in objects {
            api.put(collection, object.clone());
        }
        let rig = Rig::synced(&api).await;
        rig.cluster.wake(&id("cart"));
        rig.until(expected, |rig| replicas(&rig.api, expected) > 0).await;
        assert_eq!(api.patches("scale").len(), 1);
        rig.stop().await;
    };
    let annotated = annotated_route(json!({"rouse.dev/scale-target": "apps/v1/Deployment/by-annotation"}));
    check(&[], "cart").await;
    check(&[(ROUTES, annotated.clone())], "by-annotation").await;
    check(&[(ROUTES, annotated), (SCALED_OBJECT, scaled_object(&json!({})))], "by-keda").await;
    let mut old = scaled_http("by-name");
    old["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    check(&[(HTTP_SCALED_OBJECT, old)], "by-name").await;
}

#[tokio::test(start_paused = true)]
async fn without_keda_or_without_a_look_at_it_the_workload_is_found_all_the_same() {
    let api = shop();
    api.set_missing(SCALED_OBJECT, true);
    let rig = Rig::synced(&api).await;
    wake(&rig, 1).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_or_ambiguous_workload_is_not_woken() {
    let api = shop();
    api.put(SCALED_OBJECT, scaled_object(&json!({"autoscaling.keda.sh/paused-replicas": "0"})));
    api.put(DEPLOYMENTS, deployment("by-keda", "unrelated", 0));
    let rig = Rig::synced(&api).await;
    assert_eq!(failure(&rig).await, "ScaledObject so is paused");
    rig.stop().await;
    let api = shop();
    api.put(DEPLOYMENTS, deployment("twin", "cart", 0));
    let rig = Rig::synced(&api).await;
    let words = failure(&rig).await;
    assert!(
        words.contains("both Deployment cart and Deployment twin")
            && words.contains("rouse.dev/scale-target"),
        "{words}"
    );
    assert!(api.patches("scale").is_empty());
    rig.stop().await;
}

/// An `HTTPScaledObject` of Service `cart` that names a Deployment.
fn scaled_http(deployment: &str) -> Value {
    json!({"metadata": {"name": "old", "namespace": "shop"},
           "spec": {"hosts": ["old.example.com"], "scaleTargetRef": {"name": deployment, "service": "cart", "port": 80}}})
}

/// A `ScaledObject` of `target` whose trigger names no route.
fn by_time(target: &Value, annotations: &Value) -> Value {
    json!({"metadata": {"name": "so", "namespace": "shop", "annotations": annotations},
           "spec": {"scaleTargetRef": target, "triggers": [{"type": "cron", "metadata": {}}]}})
}

/// Whether `cart` is woken, or why not, where there is this route and this `ScaledObject`.
async fn wake_beside(collection: &str, route: Value, scaled: Value) -> Option<String> {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api.put(DEPLOYMENTS, deployment("cart", "cart", 0));
    api.put(collection, route);
    api.put(SCALED_OBJECT, scaled);
    let rig = Rig::synced(&api).await;
    let mut events = rig.cluster.events();
    rig.cluster.wake(&id("cart"));
    let outcome = loop {
        match timeout(Duration::from_mins(10), events.recv()).await.expect("an outcome").unwrap() {
            ClusterEvent::WakeFailed { why, .. } => break Some(why),
            ClusterEvent::Woken(..) => break None,
            _ => {}
        }
    };
    assert_eq!(replicas(&api, "cart"), u64::from(outcome.is_none()));
    rig.stop().await;
    outcome
}

#[tokio::test(start_paused = true)]
async fn any_paused_scaled_object_of_a_workload_keeps_it_at_zero() {
    let paused = json!({"autoscaling.keda.sh/paused": "true"});
    let cart = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "cart"});
    let routes = [
        (HTTP_SCALED_OBJECT, scaled_http("cart")),
        (ROUTES, annotated_route(json!({"rouse.dev/scale-target": "apps/v1/Deployment/cart"}))),
        (ROUTES, route("r", "shop.example.com", "cart")),
    ];
    for (collection, route) in routes {
        for target in [&cart, &json!({"name": "cart"})] {
            let outcome = wake_beside(collection, route.clone(), by_time(target, &paused)).await;
            assert_eq!(outcome.as_deref(), Some("ScaledObject so is paused"), "{route}");
        }
        for other in [json!({"name": "other"}), json!({"kind": "StatefulSet", "name": "cart"})] {
            assert_eq!(wake_beside(collection, route.clone(), by_time(&other, &paused)).await, None);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_counts_as_paused_is_what_keda_says() {
    let cases: [(&[(&str, &str)], bool); 13] = [
        (&[("paused", "true")], true),
        (&[("paused", "1")], true),
        (&[("paused", "")], true),
        (&[("paused", "yes")], true),
        (&[("paused", "false")], false),
        (&[("paused", "F")], false),
        (&[("paused-replicas", "0")], true),
        (&[("paused-replicas", "none")], true),
        (&[("paused-replicas", "2")], false),
        (&[("paused-replicas", "2"), ("paused", "true")], false),
        (&[("paused-scale-out", "true")], true),
        (&[("paused-scale-out", "false")], false),
        (&[("paused-scale-in", "true")], false),
    ];
    for (annotations, paused) in cases {
        let one = |(name, text): &(&str, &str)| (format!("autoscaling.keda.sh/{name}"), json!(text));
        let given: serde_json::Map<String, Value> = annotations.iter().map(one).collect();
        let scaled = by_time(&json!({"name": "cart"}), &given.into());
        let outcome = wake_beside(HTTP_SCALED_OBJECT, scaled_http("cart"), scaled).await;
        assert_eq!(outcome.is_some(), paused, "{annotations:?}: {outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_paused_just_now_is_not_woken() {
    let api = shop();
    let target = json!({"name": "cart"});
    api.put(SCALED_OBJECT, by_time(&target, &json!({})));
    let rig = Rig::synced(&api).await;
    pass(Duration::from_secs(1)).await;
    api.put(SCALED_OBJECT, by_time(&target, &json!({"autoscaling.keda.sh/paused-replicas": "0"})));
    assert_eq!(failure(&rig).await, "ScaledObject so is paused");
    assert!(api.patches("scale").is_empty());
    api.put(SCALED_OBJECT, by_time(&target, &json!({})));
    wake(&rig, 1).await;
    rig.stop().await;
    // Where no ScaledObject scales the workload, the wake does not list them again.
    let api = shop();
    api.put(SCALED_OBJECT, by_time(&json!({"name": "other"}), &json!({})));
    let rig = Rig::synced(&api).await;
    pass(Duration::from_secs(1)).await;
    let looks = || api.requests(|request| request.path.ends_with("/scaledobjects")).len();
    let before = looks();
    wake(&rig, 1).await;
    assert_eq!(looks(), before);
    rig.stop().await;
}

/// A shop whose Deployment is paused.
fn paused_shop(replicas: u32) -> ApiServer {
    let api = shop();
    api.put(SCALED_OBJECT, by_time(&json!({"name": "cart"}), &json!({"autoscaling.keda.sh/paused": "true"})));
    api.put(DEPLOYMENTS, deployment("cart", "cart", replicas));
    api
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_no_reason_for_anything_unless_the_workload_sleeps() {
    let (api, rig) = synced(paused_shop(3)).await;
    pass(Duration::from_secs(1)).await;
    let reported = |rig: &Rig, kind: &str| rig.condition("r", kind).is_some();
    rig.cluster.wake(&id("cart"));
    let looked =
        |rig: &Rig| !rig.api.requests(|request| request.path.ends_with("/deployments/cart")).is_empty();
    rig.until("the waker looks why there are no pods", looked).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(rig.registry.get(&id("cart")).unwrap().wake_failure(), None);
    assert!(!reported(&rig, "WakeFailed") && !reported(&rig, "NoScaleTarget"));
    api.put(DEPLOYMENTS, without_quota(3, &json!({})));
    assert_eq!(failure(&rig).await, "Deployment cart in shop gets no pods: exceeded quota");
    api.put(DEPLOYMENTS, deployment("cart", "cart", 0));
    assert_eq!(failure(&rig).await, "ScaledObject so is paused");
    let words = |rig: &Rig| rig.condition("r", "WakeFailed").map(|reported| reported.2).unwrap_or_default();
    rig.until("the status shows it", |rig| words(rig).contains("ScaledObject so is paused")).await;
    assert!(!reported(&rig, "NoScaleTarget"), "it is known well");
    assert!(api.patches("scale").is_empty());
    rig.stop().await;
}

/// Wakes `cart`. Returns why it failed, after the ten seconds of the timeout for the API server.
async fn late_failure(rig: &Rig) -> String {
    let begun = Instant::now();
    let words = failure(rig).await;
    assert!((10..15).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    words
}

#[tokio::test(start_paused = true)]
async fn who_is_held_does_not_wait_long_for_an_answer_of_the_api_server() {
    let (api, rig) = synced(paused_shop(0)).await;
    pass(Duration::from_secs(1)).await;
    api.trap("/scaledobjects", InjectedFault::Hang);
    assert_eq!(late_failure(&rig).await, "ScaledObject so is paused", "what was seen last stands");
    rig.stop().await;
    let api = shop();
    api.delete(DEPLOYMENTS, "shop", "cart");
    let rig = Rig::synced(&api).await;
    pass(Duration::from_secs(1)).await;
    api.trap("/deployments", InjectedFault::Hang);
    let words = late_failure(&rig).await;
    assert!(words.contains("no answer within 10 s"), "{words}");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_does_not_have_routes_compiled_for_the_slices_of_other_services() {
    // Each compilation reads the clock.
    static COMPILED: AtomicUsize = AtomicUsize::new(0);
    let api = shop();
    api.put("services", service("other"));
    let rig = Rig::synced_with(&api, |settings| {
        settings.routes.time_of_day = || {
            COMPILED.fetch_add(1, Ordering::Relaxed);
            SystemTime::UNIX_EPOCH
        };
    })
    .await;
    // Their pods are known before.
    let pods: Vec<u8> = (1..=20).collect();
    api.put(SLICES, slice("other-1", "other", &pods));
    api.refuse(Method::PATCH, "/scale", 403, "cannot patch resource", None);
    failure(&rig).await;
    rig.until_condition("r", "WakeFailed").await;
    pass(Duration::from_secs(1)).await;
    let before = COMPILED.load(Ordering::Relaxed);
    for count in 1..pods.len() {
        api.put_alone(SLICES, slice("other-1", "other", &pods[..count]));
        rig.until("it is seen", |rig| rig.ready("other") == count).await;
        pass(Duration::from_millis(100)).await;
    }
    assert_eq!(COMPILED.load(Ordering::Relaxed), before);
    api.put(SLICES, slice("cart-1", "cart", &[100]));
    rig.until_no_condition("r", "WakeFailed").await;
    assert!(COMPILED.load(Ordering::Relaxed) > before);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_shown_until_there_are_pods_or_another_route() {
    let (api, rig) = synced(shop()).await;
    api.refuse(Method::PATCH, "/scale", 403, "cannot patch resource", None);
    let reported = |rig: &Rig| rig.condition("r", "WakeFailed").is_some();
    failure(&rig).await;
    rig.until("the status shows it", reported).await;
    // Another writer scales it, and no further wake is sent.
    api.put(SLICES, slice("cart-1", "cart", &[1]));
    rig.until("it is over", |rig| !reported(rig)).await;
    api.delete(SLICES, "shop", "cart-1");
    rig.until_ready("it sleeps", 0).await;
    failure(&rig).await;
    rig.until("the status shows it again", reported).await;
    let mut anew = route("r", "shop.example.com", "cart");
    anew["metadata"]["uid"] = json!("another");
    api.delete(ROUTES, "shop", "r");
    api.put(ROUTES, anew);
    rig.until_condition("r", "Ready").await;
    assert!(!reported(&rig), "the new one was never woken");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn events_tell_of_wakes_and_of_few_failures() {
    let api = shop();
    let rig = Rig::synced_with(&api, |settings| settings.routes.identity = "gateway-1".into()).await;
    let events = |reason: &str| {
        let reason = reason.to_owned();
        rig.api.requests(move |request| request.method == Method::POST && request.body["reason"] == *reason)
    };
    rig.cluster.wake(&id("cart"));
    rig.until("the status shows it", |_| !events("Woken").is_empty()).await;
    let event = events("Woken").remove(0);
    assert_eq!(event.path, "/api/v1/namespaces/shop/events");
    let about = &event.body["involvedObject"];
    assert_eq!(
        (&about["kind"], &about["name"], &about["uid"]),
        (&json!("InterceptorRoute"), &json!("r"), &json!("uid-of-shop-r"))
    );
    assert_eq!(
        (&event.body["type"], &event.body["reportingInstance"]),
        (&json!("Normal"), &json!("gateway-1"))
    );
    api.put(DEPLOYMENTS, deployment("cart", "cart", 0));
    api.refuse(Method::PATCH, "/scale", 403, "no", None);
    for _ in 0..20 {
        failure(&rig).await;
    }
    pass(Duration::from_secs(1)).await;
    assert_eq!(events("WakeFailed").len(), 1, "a repeated failure is reported once");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_over_when_a_pod_is_seen_that_a_slice_had_named_before() {
    let (api, rig) = synced(shop()).await;
    api.refuse(Method::PATCH, "/scale", 403, "cannot patch resource", None);
    api.put_alone(SLICES, slice("cart-1", "cart", &[1]));
    pass(Duration::from_secs(1)).await;
    assert_eq!(rig.ready("cart"), 0, "the pod is not known");
    failure(&rig).await;
    rig.until_condition("r", "WakeFailed").await;
    // The gateway sees its own status write, and compiles routes again.
    pass(Duration::from_secs(1)).await;
    let meta = json!({"name": "cart-1", "namespace": "shop", "uid": "cart-1"});
    api.put("pods", json!({"metadata": meta, "spec": {}, "status": {"podIPs": [{"ip": "10.0.0.1"}]}}));
    rig.until_ready("it is believed", 1).await;
    // Before the next list of slices, which would also show it.
    pass(Duration::from_secs(5)).await;
    assert_eq!(rig.condition("r", "WakeFailed"), None);
    rig.stop().await;
}

/// The port of `cart` that the route leads to, declared as a gateway does.
fn port(rig: &Rig) -> Arc<Port> {
    let name = rig.plan("shop/r").unwrap().target.as_ref().unwrap().port.clone();
    let spec = ServiceSpec { ports: vec![name.clone()], ..ServiceSpec::default() };
    rig.registry.declare(&id("cart"), &spec).port(&name).unwrap()
}

/// How a request's wait for `cart` ends within five minutes, and after how long.
async fn hold(rig: &Rig) -> (Option<AcquireError>, Duration) {
    let begun = Instant::now();
    let port = port(rig);
    let deadline = pass(Duration::from_mins(5));
    let drive = async {
        loop {
            pass(Duration::from_millis(10)).await;
            rig.registry.tick();
        }
    };
    let ended = tokio::select! {
        slot = port.acquire(SlotRequest::default(), deadline) => slot,
        () = drive => unreachable!("it goes on for ever"),
    };
    (ended.err(), begun.elapsed())
}

fn cause(error: Option<AcquireError>) -> Option<StartFailureCause> {
    match error? {
        AcquireError::StartFailed(failure) => Some(failure.cause),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_no_workload_fits_ends_the_hold_at_once_and_says_so_on_the_route() {
    let api = shop();
    api.delete(DEPLOYMENTS, "shop", "cart");
    let rig = Rig::synced(&api).await;
    let (ended, after) = hold(&rig).await;
    assert_eq!(cause(ended), Some(StartFailureCause::NoScaleTarget));
    assert!(after < Duration::from_secs(2), "{after:?}");
    rig.until_condition("r", "WakeFailed").await;
    // Once there is a workload, the next request wakes it.
    api.put(DEPLOYMENTS, deployment("cart", "cart", 0));
    pass(Duration::from_secs(1)).await;
    rig.registry.tick();
    port(&rig).announce();
    rig.until("it is scaled", |rig| replicas(&rig.api, "cart") == 1).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_scale_that_is_refused_ends_the_hold_after_five_seconds_and_an_error_of_the_server_does_not() {
    let cases = [
        (403, "cannot patch resource", Some(StartFailureCause::ScaleRefused)),
        (422, "replicas: Invalid value", Some(StartFailureCause::ScaleRefused)),
        (403, "exceeded quota: pods", Some(StartFailureCause::ScaleRefused)),
        (401, "the token has expired", None),
        (500, "etcd is slow", None),
        (429, "too many requests", None),
    ];
    for (code, text, expected) in cases {
        let (api, rig) = synced(shop()).await;
        api.refuse(Method::PATCH, "/scale", code, text, None);
        let (ended, after) = hold(&rig).await;
        assert_eq!(cause(ended), expected, "{code}");
        let range = if expected.is_some() { 5..7 } else { 300..302 };
        assert!(range.contains(&after.as_secs()), "{code}: {after:?}");
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_was_scaled_and_has_no_pods_yet_is_waited_for() {
    let (api, rig) = synced(shop()).await;
    let (ended, after) = hold(&rig).await;
    assert_eq!((ended, after.as_secs()), (Some(AcquireError::Deadline), 300));
    assert_eq!(replicas(&api, "cart"), 1);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_reported_as_new_once_and_the_message_of_the_api_server_is_one_line() {
    let (api, rig) = synced(shop()).await;
    api.refuse(Method::PATCH, "/scale", 422, "no\n2026-01-01 forged line", None);
    let mut events = rig.cluster.events();
    let mut reported = Vec::new();
    for _ in 0..5 {
        assert!(!failure(&rig).await.contains('\n'));
    }
    while let Ok(event) = events.try_recv() {
        if let ClusterEvent::WakeFailed { again, .. } = event {
            reported.push(again);
        }
    }
    assert_eq!(reported, [false, true, true, true, true]);
    let words = |rig: &Rig| rig.condition("r", "WakeFailed").map(|reported| reported.2).unwrap_or_default();
    rig.until("it is on the route", |rig| words(rig).contains("no\\n2026-01-01 forged line")).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn ready_pods_that_refuse_connections_make_the_route_not_ready_until_one_accepts() {
    let api = shop();
    api.put(DEPLOYMENTS, deployment("cart", "cart", 1));
    api.put(SLICES, slice("cart-1", "cart", &[1]));
    let rig = Rig::synced(&api).await;
    rig.until_ready("its pod is ready", 1).await;
    let ready = |rig: &Rig| rig.condition("r", "Ready").map(|reported| (reported.0, reported.1));
    rig.until("the route is well", |rig| ready(rig).is_some_and(|reported| reported.0 == "True")).await;
    let port = port(&rig);
    // A request that every pod refuses, for longer than a pod takes to listen.
    let mut slot = port.try_acquire(0).unwrap();
    let ended = loop {
        let retry = slot.refused(true);
        pass(Duration::from_secs(1)).await;
        rig.registry.tick();
        let ask = SlotRequest { retry: Some(retry), ..SlotRequest::default() };
        match port.acquire(ask, std::future::pending()).now_or_never() {
            Some(Ok(again)) => slot = again,
            Some(Err(error)) => break error,
            None => slot = port.try_acquire(0).unwrap(),
        }
    };
    assert_eq!(ended, AcquireError::Refused);
    rig.until("the route says so", |rig| ready(rig) == Some(("False".into(), "PodsUnreachable".into())))
        .await;
    let (_, _, words) = rig.condition("r", "PodsUnreachable").unwrap();
    assert!(words.contains("every ready pod refuses connections (10.0.0.1:"), "{words}");
    port.try_acquire(0).unwrap().connected();
    rig.until_no_condition("r", "PodsUnreachable").await;
    rig.stop().await;
}

/// A pod with the labels that `cart` selects, which is not scheduled yet.
fn pending_pod(changes: &Value) -> Value {
    let mut pod = json!({"metadata": {"name": "cart-1", "namespace": "shop", "uid": "cart-1", "labels": {"app": "cart"}},
                         "spec": {}, "status": {"phase": "Pending"}});
    pod["metadata"].as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    pod
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_exists_is_progress_although_no_workload_is_found_or_its_controller_complains() {
    let refused = |pods: u32| without_quota(2, &json!({ "replicas": pods }));
    let nothing = json!({});
    let leaving = json!({"deletionTimestamp": "2024-01-02T00:00:00Z"});
    let (elsewhere, unrelated) = (json!({"namespace": "other"}), json!({"labels": {"app": "other"}}));
    let cases = [
        (None, None, Some(StartFailureCause::NoScaleTarget)),
        (None, Some(&nothing), None),
        (None, Some(&leaving), Some(StartFailureCause::NoScaleTarget)),
        (None, Some(&elsewhere), Some(StartFailureCause::NoScaleTarget)),
        (None, Some(&unrelated), Some(StartFailureCause::NoScaleTarget)),
        (Some(refused(0)), None, Some(StartFailureCause::PodsRefused)),
        (Some(refused(0)), Some(&nothing), None),
        (Some(refused(1)), None, None),
    ];
    for (workload, pod, expected) in cases {
        let api = shop();
        api.delete(DEPLOYMENTS, "shop", "cart");
        if let Some(workload) = &workload {
            api.put(DEPLOYMENTS, workload.clone());
        }
        if let Some(changes) = pod {
            api.put("pods", pending_pod(changes));
        }
        let rig = Rig::synced(&api).await;
        let (ended, after) = hold(&rig).await;
        let story = format!("{workload:?}, {pod:?}: {after:?}");
        match expected {
            Some(expected) => assert_eq!(cause(ended), Some(expected), "{story}"),
            None => assert_eq!(ended, Some(AcquireError::Deadline), "{story}"),
        }
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_route_whose_requests_are_refused_because_it_cannot_be_woken_is_not_ready_until_it_has_a_pod() {
    let api = shop();
    api.delete(DEPLOYMENTS, "shop", "cart");
    let rig = Rig::synced(&api).await;
    let ready =
        |rig: &Rig| rig.condition("r", "Ready").map(|reported| (reported.0, reported.1)).unwrap_or_default();
    rig.until("nothing is known yet", |rig| ready(rig).0 == "True").await;
    assert_eq!(cause(hold(&rig).await.0), Some(StartFailureCause::NoScaleTarget));
    rig.until("the route says so", |rig| ready(rig) == ("False".into(), "NoScaleTarget".into())).await;
    api.put(SLICES, slice("cart-1", "cart", &[1]));
    rig.until("the route is well", |rig| ready(rig).0 == "True").await;
    rig.stop().await;
    let (api, rig) = synced(shop()).await;
    api.refuse(Method::PATCH, "/scale", 500, "etcd is slow", None);
    failure(&rig).await;
    rig.until_condition("r", "WakeFailed").await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(ready(&rig).0, "True", "it may pass");
    api.allow_all();
    api.refuse(Method::PATCH, "/scale", 403, "cannot patch resource", None);
    assert_eq!(cause(hold(&rig).await.0), Some(StartFailureCause::ScaleRefused));
    // The next request is refused too.
    failure(&rig).await;
    rig.until("the route says so", |rig| ready(rig) == ("False".into(), "WakeFailed".into())).await;
    api.allow_all();
    rig.cluster.wake(&id("cart"));
    rig.until("the route is well", |rig| ready(rig).0 == "True").await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_failure_of_a_fallback_without_a_route_is_reported_once() {
    let api = shop();
    api.put("services", service("spare"));
    let rig = Rig::synced(&api).await;
    for again in [false, true, true] {
        assert_eq!(failure_of(&rig, "spare").await.1, again);
    }
    rig.stop().await;
}
