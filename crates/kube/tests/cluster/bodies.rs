//! Response bodies from `ConfigMap`s: which are read and when, and how missing ones are reported.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::rig::{ROUTES, Rig, condition, event_texts, observed, pass, route, service, shop, synced};
use rouse_testkit::api_server::{ApiServer, InjectedFault};

/// Route `r` with a placeholder from entry `html` of a `ConfigMap`.
fn from_map(name: &str) -> Value {
    let mut route = route("r", "shop.example.com", "cart");
    route["spec"]["coldStart"] =
        json!({"placeholder": {"response": {"bodyFromConfigMap": {"name": name, "key": "html"}}}});
    route
}

fn map(name: &str, text: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"}, "data": {"html": text}})
}

/// A shop whose route `r` takes its placeholder from `ConfigMap` `page`, which has this text.
fn shop_with_page(text: &str) -> ApiServer {
    let api = shop();
    api.put(ROUTES, from_map("page"));
    api.put("configmaps", map("page", text));
    api
}

fn placeholder(rig: &Rig) -> Option<String> {
    Some(rig.plan("shop/r").unwrap().placeholder.as_ref()?.body.to_string())
}

/// Waits until the placeholder of route `r` is this text.
async fn until_placeholder(rig: &Rig, text: &str) {
    rig.until("the placeholder is read", |rig| placeholder(rig).as_deref() == Some(text)).await;
}

/// The message of a condition `MissingBody`, empty without one.
fn missing(api: &ApiServer, namespace: &str, route: &str) -> String {
    let reported = condition(&api.get(ROUTES, namespace, route).unwrap(), "MissingBody");
    reported.map(|reported| reported.2).unwrap_or_default()
}

/// Whether no gateway ever reported a missing body.
fn never_missed(api: &ApiServer) -> bool {
    api.patches("status").iter().all(|request| !request.body.to_string().contains("MissingBody"))
}

#[tokio::test(start_paused = true)]
async fn bodies_are_there_from_the_start_and_are_never_called_missing() {
    let (api, rig) = synced(shop_with_page("one")).await;
    assert_eq!(placeholder(&rig).as_deref(), Some("one"));
    rig.until_condition("r", "Ready").await;
    // When a route switches to another body, the last good one stays until the new one was read.
    let mut plans = rig.cluster.plans();
    for (generation, name) in [(2, "second"), (3, "third")] {
        api.put("configmaps", map(name, name));
        let mut object = from_map(name);
        object["metadata"]["generation"] = json!(generation);
        api.put(ROUTES, object);
        while placeholder(&rig).as_deref() != Some(name) {
            assert!(placeholder(&rig).is_some_and(|body| !body.is_empty()));
            timeout(Duration::from_mins(10), plans.changed()).await.expect("in time").unwrap();
        }
        rig.until("it was seen", |rig| observed(&rig.api, "Ready") == Some(generation)).await;
    }
    assert!(never_missed(&api));
    // A body that is really missing is reported.
    let mut object = from_map("nowhere");
    object["metadata"]["generation"] = json!(4);
    api.put(ROUTES, object);
    assert_eq!(rig.until_condition("r", "MissingBody").await.2, "there is no ConfigMap shop/nowhere");
    assert_eq!(placeholder(&rig).as_deref(), Some(""));
    api.put("configmaps", json!({"metadata": {"name": "nowhere", "namespace": "shop"}}));
    let words = "ConfigMap shop/nowhere has no entry \"html\"";
    rig.until("its entry is missed", |rig| missing(&rig.api, "shop", "r") == words).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_config_map_that_may_not_be_read_says_what_to_grant_and_does_not_delay_the_start() {
    let api = shop_with_page("one");
    api.refuse(Method::GET, "/configmaps", 403, "configmaps is forbidden", None);
    let started = Instant::now();
    let rig = Rig::synced(&api).await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let words = "ConfigMap shop/page cannot be read: the permission to list and watch configmaps in namespace shop is \
                 missing: configmaps is forbidden";
    assert_eq!(rig.until_condition("r", "MissingBody").await.2, words);
    api.allow_all();
    until_placeholder(&rig, "one").await;
    rig.until_no_condition("r", "MissingBody").await;
    // A value that was read stays while the API server is unreachable.
    rig.until_watched("configmaps").await;
    api.refuse(Method::GET, "/configmaps", 403, "configmaps is forbidden", None);
    api.expire();
    pass(Duration::from_mins(2)).await;
    assert_eq!(placeholder(&rig).as_deref(), Some("one"));
    assert!(rig.condition("r", "MissingBody").is_none());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_config_map_without_an_answer_does_not_keep_the_gateway_from_serving() {
    let api = shop_with_page("one");
    api.trap("/configmaps", InjectedFault::Hang);
    let started = Instant::now();
    let rig = Rig::synced(&api).await;
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!(placeholder(&rig).as_deref(), Some(""));
    until_placeholder(&rig, "one").await;
    rig.stop().await;
}

/// Route `r<n>` in a namespace, which takes the bodies of `count` responses from `ConfigMap`s `m<n>-<m>`.
fn from_many(namespace: &str, n: usize, count: usize) -> Value {
    let mut many = route(&format!("r{n}"), &format!("h{n}.{namespace}.example.com"), "cart");
    many["metadata"]["namespace"] = json!(namespace);
    let answer = |m: usize| json!({"response": {"bodyFromConfigMap": {"name": format!("m{n}-{m:03}")}}});
    many["spec"]["staticRoutes"] = (0..count).map(answer).collect();
    many
}

#[tokio::test(start_paused = true)]
async fn config_maps_over_the_limit_are_reported_until_there_is_room() {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    for namespace in 0..5 {
        (0..2).for_each(|n| api.put(ROUTES, from_many(&format!("n{namespace}"), n, 100)));
    }
    api.put(ROUTES, from_many("shop", 0, 1));
    let rig = Rig::synced(&api).await;
    let reported = || missing(&api, "shop", "r0");
    let words = "ConfigMap shop/m0-000 is not read: routes name more than 1000 ConfigMaps";
    rig.until("one is too many", |_| reported() == words).await;
    api.delete(ROUTES, "n3", "r1");
    rig.until("there is room", |_| reported() == "there is no ConfigMap shop/m0-000").await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_namespace_cannot_have_all_config_maps_followed() {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    for (n, count) in [(0, 100), (1, 100), (2, 1)] {
        api.put(ROUTES, from_many("shop", n, count));
    }
    api.put(ROUTES, from_many("zoo", 0, 1));
    let rig = Rig::synced(&api).await;
    let reported = |namespace: &str, route: &str| missing(&api, namespace, route);
    let words = "ConfigMap shop/m2-000 is not read: routes of namespace shop name more than 200 ConfigMaps";
    rig.until("one is too many", |_| reported("shop", "r2") == words).await;
    rig.until("others have room", |_| reported("zoo", "r0") == "there is no ConfigMap zoo/m0-000").await;
    api.delete(ROUTES, "shop", "r0");
    rig.until("there is room", |_| reported("shop", "r2") == "there is no ConfigMap shop/m2-000").await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_longer_than_a_body_may_be_is_refused_in_words() {
    let (api, rig) = synced(shop_with_page(&"x".repeat(32_769))).await;
    let words = "ConfigMap shop/page: entry \"html\" has 32769 bytes: expected at most 32768";
    assert_eq!(rig.until_condition("r", "MissingBody").await.2, words);
    assert_eq!(placeholder(&rig).as_deref(), Some(""));
    // Other entries may have any length.
    let longest = "x".repeat(32_768);
    let mut good = map("page", &longest);
    good["data"]["other"] = json!("x".repeat(500_000));
    api.put("configmaps", good);
    until_placeholder(&rig, &longest).await;
    rig.until_no_condition("r", "MissingBody").await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn only_entries_that_routes_name_are_kept_and_others_are_read_when_they_are_named() {
    let api = shop();
    api.put(ROUTES, from_map("page"));
    let entries = |data: &Value| json!({"metadata": {"name": "page", "namespace": "shop"}, "data": data});
    api.put("configmaps", entries(&json!({"html": "one", "body": "two"})));
    let rig = Rig::synced(&api).await;
    let lists = || {
        api.requests(|request| request.path.contains("configmaps") && !request.query.contains("watch=")).len()
    };
    let once = lists();
    // Without a key it is `body`, or the only one.
    let mut unnamed = route("other", "other.example.com", "cart");
    unnamed["spec"]["coldStart"] =
        json!({"placeholder": {"response": {"bodyFromConfigMap": {"name": "page"}}}});
    api.put(ROUTES, unnamed);
    let other = |rig: &Rig| rig.plan("shop/other")?.placeholder.as_ref().map(|plan| plan.body.to_string());
    rig.until("it is read", |rig| other(rig).as_deref() == Some("two")).await;
    assert!(lists() > once, "it was not kept");
    assert_eq!(placeholder(&rig).as_deref(), Some("one"));
    rig.until_watched("configmaps").await;
    api.put("configmaps", entries(&json!({"html": "three"})));
    rig.until("the only one is read", |rig| other(rig).as_deref() == Some("three")).await;
    api.put("configmaps", entries(&json!({"html": "four", "css": ""})));
    let words = "ConfigMap shop/page has no entry \"body\" and not exactly one entry: set key";
    rig.until("the entry is ambiguous", |rig| missing(&rig.api, "shop", "other") == words).await;
    assert_eq!(placeholder(&rig).as_deref(), Some("four"));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_a_config_map_that_panics_is_reported_and_started_again() {
    let (api, rig) = synced(shop_with_page("one")).await;
    let mut events = rig.cluster.events();
    rig.until_watched("configmaps").await;
    api.trap("/configmaps", InjectedFault::Panic);
    api.expire();
    rig.until("it is not followed", |rig| rig.api.watchers("configmaps") == 0).await;
    api.put("configmaps", map("page", "two"));
    until_placeholder(&rig, "two").await;
    let reported = event_texts(&mut events);
    let words = "the watch of ConfigMap shop/page has panicked";
    assert_eq!(reported.iter().filter(|reported| reported.contains(words)).count(), 1, "once");
    assert!(never_missed(&api));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn bodies_come_from_config_maps_that_routes_name_and_from_no_others() {
    let api = shop();
    api.put(ROUTES, from_map("page"));
    let map = |name: &str, text: &str| {
        let mut map = map(name, text);
        map["data"]["other"] = json!("x");
        map
    };
    api.put("configmaps", map("unrelated", "secret"));
    let rig = Rig::synced(&api).await;
    rig.until_condition("r", "MissingBody").await;
    api.put("configmaps", map("page", "one"));
    until_placeholder(&rig, "one").await;
    api.put("configmaps", map("page", "two"));
    until_placeholder(&rig, "two").await;
    rig.until_no_condition("r", "MissingBody").await;
    let all = api.requests(|request| request.path.contains("configmaps"));
    assert!(
        all.iter().all(|request| request.query.contains("fieldSelector=metadata.name%3Dpage")),
        "{all:?}"
    );
    api.put(ROUTES, route("r", "shop.example.com", "cart"));
    rig.until("it is not followed any more", |rig| rig.api.watchers("configmaps") == 0).await;
    rig.stop().await;
}
