//! Routes: the plans made from objects, and the status written to the objects.

use std::time::Duration;

use rouse_core::routing_mode::RoutingMode;
use rouse_kube::objects::service_summary::PortFault;
use serde_json::json;

use crate::rig::{ROUTES, Rig, annotated, condition, pass, route, service, shop, synced};

#[tokio::test(start_paused = true)]
async fn a_good_route_is_published_and_called_ready_by_one_write() {
    let (api, rig) = synced(shop()).await;
    let plan = rig.plan("shop/r").unwrap();
    assert_eq!((&*plan.rules[0].hosts[0], plan.target.as_ref().unwrap().number), ("shop.example.com", 80));
    assert_eq!(rig.until_condition("r", "Ready").await.0, "True");
    assert_eq!(rig.condition("r", "Accepted").unwrap().0, "True");
    pass(Duration::from_mins(5)).await;
    let writes = api.patches("status");
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert!(writes[0].query.contains("fieldManager=rouse-gateway"));
    assert_eq!(writes[0].content_type, "application/merge-patch+json");
    rig.stop().await;
    // A second gateway, or the same one after a restart, writes nothing.
    let again = Rig::synced(&api).await;
    pass(Duration::from_mins(5)).await;
    assert_eq!(api.patches("status").len(), 1);
    again.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_version_is_called_so_while_the_last_good_one_serves() {
    let (api, rig) = synced(shop()).await;
    let mut bad = route("r", "shop.example.com", "cart");
    bad["spec"]["target"]["portName"] = json!("http");
    bad["spec"]["timeouts"] = json!({"request": "soon"});
    api.put(ROUTES, bad);
    rig.until("the status shows it", |rig| {
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
    // A route that was invalid from the start never serves, and does not affect others.
    api.put(ROUTES, json!({"metadata": {"name": "worse", "namespace": "shop"}, "spec": {"rules": 7}}));
    assert_eq!(rig.until_condition("worse", "Ready").await.1, "Invalid");
    assert!(rig.plan("shop/worse").is_none() && rig.plan("shop/r").is_some());
    // Created again under the same name while the watch was down, it has no good version to fall back to.
    rig.until_watched(ROUTES).await;
    api.set_silent(true);
    api.delete(ROUTES, "shop", "r");
    let mut anew = json!({"metadata": {"name": "r", "namespace": "shop", "uid": "another"}, "spec": {}});
    api.put(ROUTES, anew.take());
    api.set_silent(false);
    api.expire();
    let faulty = |rig: &Rig| matches!(rig.plan("shop/r").unwrap().target, Err(PortFault::Faulty(_)));
    rig.until("nothing serves", faulty).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_route_follows_its_service() {
    let api = shop();
    api.delete("services", "shop", "cart");
    let rig = Rig::synced(&api).await;
    assert!(matches!(rig.plan("shop/r").unwrap().target, Err(PortFault::NoService(_))));
    rig.until_condition("r", "NoService").await;
    let mut other = service("cart");
    other["spec"]["ports"] = json!([{"name": "http", "port": 81}]);
    api.put("services", other);
    rig.until("the port is missed", |rig| {
        matches!(rig.plan("shop/r").unwrap().target, Err(PortFault::BadPort { .. }))
    })
    .await;
    rig.until_condition("r", "BadPort").await;
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
    let reported = |rig: &Rig| condition(&rig.api.get(ROUTES, "thieves", "late").unwrap(), "HostConflict");
    rig.until("the status shows it", |rig| reported(rig).is_some()).await;
    assert_eq!(reported(&rig).unwrap().2, "shop.example.com is claimed earlier by namespace shop");
    assert!(rig.condition("r", "HostConflict").is_none());
    api.delete(ROUTES, "shop", "r");
    rig.until("the host is free", |rig| hosts(rig).len() == 2).await;
    rig.until("the conflict is over", |rig| reported(rig).is_none()).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_bypassed_gets_what_it_asks_for() {
    let mut invalid = service("cart");
    invalid["spec"]["sessionAffinity"] = json!("ClientIP");
    for (default, own, reported) in [
        (RoutingMode::Always, None, true),
        (RoutingMode::Always, Some("disabled"), false),
        (RoutingMode::Disabled, None, false),
        (RoutingMode::Disabled, Some("always"), true),
    ] {
        let api = shop();
        api.put("services", invalid.clone());
        if let Some(own) = own {
            let annotations = json!({"rouse.dev/direct-pod-routing": own});
            api.put(ROUTES, annotated(route("r", "shop.example.com", "cart"), annotations));
        }
        let rig = Rig::with(&api, |settings| settings.routes.direct = default);
        rig.until_condition("r", "Ready").await;
        assert_eq!(rig.condition("r", "NotHonoured").is_some(), reported, "{default:?} {own:?}");
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn limits_of_routes_reach_their_service() {
    let api = shop();
    let annotations = json!({"rouse.dev/concurrency-limit": "3"});
    api.put(ROUTES, annotated(route("s", "s.example.com", "cart"), annotations));
    let rig = Rig::synced(&api).await;
    let limit = |rig: &Rig| rig.registry.get(&crate::rig::id("cart")).unwrap().snapshot().concurrency.limit;
    rig.until("it is there", |rig| limit(rig).is_some_and(|limit| limit.get() == 3)).await;
    api.delete(ROUTES, "shop", "s");
    rig.until("it is gone", |rig| limit(rig).is_none()).await;
    rig.stop().await;
}
