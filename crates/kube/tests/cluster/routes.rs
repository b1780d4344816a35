//! Routes: from objects to plans, and what is written on the objects.

use std::time::Duration;

use http::Method;
use rouse_kube::service::PortFault;
use serde_json::{Value, json};

use crate::api::Api;
use crate::rig::{DEPLOYMENTS, ROUTES, Rig, SCALED_HTTP, condition, deployment, pass, route, service};

/// Service `cart` with its Deployment and a route.
fn shop() -> Api {
    let api = Api::default();
    api.put("services", service("cart"));
    api.put(DEPLOYMENTS, deployment("cart", "cart", 0));
    api.put(ROUTES, route("r", "shop.example.com", "cart"));
    api
}

#[tokio::test(start_paused = true)]
async fn a_good_route_is_published_and_called_ready_by_one_write() {
    let api = shop();
    let rig = Rig::synced(&api).await;
    let plan = rig.plan("shop/r").unwrap();
    assert_eq!((&*plan.rules[0].hosts[0], plan.target.as_ref().unwrap().number), ("shop.example.com", 80));
    rig.until("it is written", |rig| rig.condition("r", "Ready").is_some()).await;
    assert_eq!(rig.condition("r", "Ready").unwrap().0, "True");
    assert_eq!(rig.condition("r", "Accepted").unwrap().0, "True");
    pass(Duration::from_mins(5)).await;
    let writes = api.patches("status");
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert!(writes[0].query.contains("fieldManager=rouse-gateway") && writes[0].query.contains("force=true"));
    assert_eq!(writes[0].content_type, "application/apply-patch+yaml");
    rig.stop().await;
    // A second gateway, or the same after a restart, has nothing to add.
    let again = Rig::synced(&api).await;
    pass(Duration::from_mins(5)).await;
    assert_eq!(api.patches("status").len(), 1);
    again.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_version_is_called_so_while_the_last_good_one_serves() {
    let api = shop();
    let rig = Rig::synced(&api).await;
    let mut bad = route("r", "shop.example.com", "cart");
    bad["spec"]["target"]["portName"] = json!("http");
    bad["spec"]["timeouts"] = json!({"request": "soon"});
    api.put(ROUTES, bad);
    rig.until("it is told", |rig| {
        rig.condition("r", "Accepted").is_some_and(|(status, ..)| status == "False")
    })
    .await;
    let (_, reason, message) = rig.condition("r", "Accepted").unwrap();
    assert_eq!(reason, "Invalid");
    assert!(
        message.contains("exactly one of port and portName") && message.contains("spec.timeouts.request"),
        "{message}"
    );
    assert!(rig.plan("shop/r").is_some(), "the last good version serves");
    assert_eq!(rig.condition("r", "Ready").unwrap().0, "True");
    // One that was bad from the beginning never serves, and harms nobody.
    api.put(ROUTES, json!({"metadata": {"name": "worse", "namespace": "shop"}, "spec": {"rules": 7}}));
    rig.until("it is told", |rig| rig.condition("worse", "Ready").is_some()).await;
    assert_eq!(rig.condition("worse", "Ready").unwrap().1, "Invalid");
    assert!(rig.plan("shop/worse").is_none() && rig.plan("shop/r").is_some());
    // Made anew under the same name while nobody looked, it has no good version to go back to.
    rig.until("the watch stands", |rig| rig.api.watchers(ROUTES) == 1).await;
    api.set_silent(true);
    api.delete(ROUTES, "shop", "r");
    let mut anew = json!({"metadata": {"name": "r", "namespace": "shop", "uid": "another"}, "spec": {}});
    api.put(ROUTES, anew.take());
    api.set_silent(false);
    api.expire();
    rig.until("nothing serves", |rig| rig.plan("shop/r").is_none()).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_route_follows_its_service() {
    let api = shop();
    api.delete("services", "shop", "cart");
    let rig = Rig::synced(&api).await;
    assert!(matches!(rig.plan("shop/r").unwrap().target, Err(PortFault::NoService(_))));
    rig.until("it is told", |rig| rig.condition("r", "NoService").is_some()).await;
    let mut other = service("cart");
    other["spec"]["ports"] = json!([{"name": "http", "port": 81}]);
    api.put("services", other);
    rig.until("the port is missed", |rig| {
        matches!(rig.plan("shop/r").unwrap().target, Err(PortFault::BadPort { .. }))
    })
    .await;
    rig.until("it is told", |rig| rig.condition("r", "BadPort").is_some()).await;
    assert!(rig.condition("r", "NoService").is_none(), "what is not so any more is taken away");
    api.put("services", service("cart"));
    rig.until("all is well", |rig| rig.condition("r", "Ready").is_some_and(|(status, ..)| status == "True"))
        .await;
    assert!(rig.plan("shop/r").unwrap().target.is_ok() && rig.condition("r", "BadPort").is_none());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_host_belongs_to_the_namespace_that_claimed_it_first() {
    let api = shop();
    let mut late = route("late", "Shop.Example.com", "cart");
    late["metadata"]["namespace"] = json!("thieves");
    late["metadata"]["creationTimestamp"] = json!("2025-01-01T00:00:00Z");
    late["spec"]["rules"] =
        json!([{"hosts": ["Shop.Example.com", "own.example.com"], "paths": [{"value": "/longer/path"}]}]);
    api.put(ROUTES, late);
    let rig = Rig::synced(&api).await;
    let hosts = |rig: &Rig| -> Vec<String> {
        let plan = rig.plan("thieves/late").unwrap();
        plan.rules.iter().flat_map(|rule| rule.hosts.iter().map(ToString::to_string)).collect()
    };
    assert_eq!(hosts(&rig), ["own.example.com"]);
    let told = |rig: &Rig| condition(&rig.api.get(ROUTES, "thieves", "late").unwrap(), "HostConflict");
    rig.until("it is told", |rig| told(rig).is_some()).await;
    assert_eq!(told(&rig).unwrap().2, "shop.example.com is claimed earlier by namespace shop");
    assert!(rig.condition("r", "HostConflict").is_none());
    api.delete(ROUTES, "shop", "r");
    rig.until("the host is free", |rig| hosts(rig).len() == 2).await;
    rig.until("the conflict is over", |rig| told(rig).is_none()).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn bodies_come_from_config_maps_that_routes_name_and_from_no_others() {
    let api = shop();
    let mut with_body = route("r", "shop.example.com", "cart");
    with_body["spec"]["coldStart"] =
        json!({"placeholder": {"response": {"bodyFromConfigMap": {"name": "page", "key": "html"}}}});
    api.put(ROUTES, with_body);
    let map = |name: &str, text: &str| json!({"metadata": {"name": name, "namespace": "shop"}, "data": {"html": text, "other": "x"}});
    api.put("configmaps", map("unrelated", "secret"));
    let rig = Rig::synced(&api).await;
    let body = |rig: &Rig| rig.plan("shop/r").unwrap().placeholder.clone().unwrap().body.to_string();
    rig.until("it is missed", |rig| rig.condition("r", "MissingBody").is_some()).await;
    api.put("configmaps", map("page", "one"));
    rig.until("it is there", |rig| body(rig) == "one").await;
    api.put("configmaps", map("page", "two"));
    rig.until("it has changed", |rig| body(rig) == "two").await;
    rig.until("all is well", |rig| rig.condition("r", "MissingBody").is_none()).await;
    let all = api.asked(|asked| asked.path.contains("configmaps"));
    assert!(all.iter().all(|asked| asked.query.contains("fieldSelector=metadata.name%3Dpage")), "{all:?}");
    api.put(ROUTES, route("r", "shop.example.com", "cart"));
    rig.until("nobody follows it any more", |rig| rig.api.watchers("configmaps") == 0).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_status_that_may_not_be_written_is_tried_again_rarely() {
    let api = shop();
    api.refuse(Method::PATCH, "/status", 403, "not you", None);
    let rig = Rig::synced(&api).await;
    assert!(rig.plan("shop/r").is_some());
    rig.until("it was tried", |rig| !rig.api.patches("status").is_empty()).await;
    pass(Duration::from_mins(5)).await;
    let tries = api.patches("status").len();
    assert!((5..=12).contains(&tries), "{tries} tries in five minutes");
    api.allow_all();
    rig.until("it is written", |rig| rig.condition("r", "Ready").is_some()).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn somebody_who_writes_the_same_condition_is_not_argued_with() {
    let api = shop();
    let rig = Rig::synced(&api).await;
    rig.until("it is written", |rig| rig.condition("r", "Ready").is_some()).await;
    for _ in 0..10 {
        let mut object = api.get(ROUTES, "shop", "r").unwrap();
        object["status"] =
            json!({"conditions": [{"type": "Ready", "status": "False", "reason": "Other", "message": "no"}]});
        api.put(ROUTES, object);
        pass(Duration::from_secs(1)).await;
    }
    assert_eq!(api.patches("status").len(), 1);
    rig.stop().await;
}

fn scaled_http() -> Value {
    json!({"metadata": {"name": "old", "namespace": "shop"},
           "spec": {"hosts": ["old.example.com"], "pathPrefixes": ["/a"], "replicas": {"min": 2, "max": 5},
                    "scaleTargetRef": {"name": "cart", "kind": "Deployment", "apiVersion": "apps/v1",
                                       "service": "cart", "port": 80}}})
}

#[tokio::test(start_paused = true)]
async fn an_http_scaled_object_is_a_route_and_is_written_on_only_when_something_is_wrong() {
    let api = shop();
    let mut object = scaled_http();
    let theirs = json!({"type": "Created", "status": "True", "message": "by KEDA"});
    object["status"] = json!({"conditions": [theirs]});
    api.put(SCALED_HTTP, object.clone());
    let rig = Rig::synced(&api).await;
    assert_eq!(rig.plan("shop/old").unwrap().spec.scaling.min, 2);
    let writes = |rig: &Rig| {
        rig.api.patches("status").iter().filter(|asked| asked.path.contains("httpscaled")).count()
    };
    pass(Duration::from_mins(1)).await;
    assert_eq!(writes(&rig), 0);
    object["spec"]["scaleTargetRef"]["port"] = json!(81);
    api.put(SCALED_HTTP, object);
    rig.until("it is told", |rig| writes(rig) == 1).await;
    let now = api.get(SCALED_HTTP, "shop", "old").unwrap();
    let conditions = now["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions[0], theirs, "what others said stays");
    assert!(
        conditions[1]["message"].as_str().unwrap().starts_with("Rouse: Service shop/cart has no TCP port 81")
    );
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn limits_of_routes_reach_their_service() {
    let api = shop();
    let mut limited = route("s", "s.example.com", "cart");
    limited["metadata"]["annotations"] = json!({"rouse.dev/concurrency-limit": "3"});
    api.put(ROUTES, limited);
    let rig = Rig::synced(&api).await;
    let limit = |rig: &Rig| rig.registry.get(&crate::rig::id("cart")).unwrap().snapshot().spread.limit;
    rig.until("it is there", |rig| limit(rig).is_some_and(|limit| limit.get() == 3)).await;
    api.delete(ROUTES, "shop", "s");
    rig.until("it is gone", |rig| limit(rig).is_none()).await;
    rig.stop().await;
}
