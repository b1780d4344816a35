//! Host ownership across edits, faulty versions, restarts and replicas, as recorded in the API server.

use std::time::Duration;

use http::Method;
use rouse_kube::objects::route::RuleSpec;
use rouse_kube::objects::service_summary::PortFault;
use serde_json::{Value, json};

use crate::rig::{HTTP_SCALED_OBJECT, ROUTES, Rig, condition, pass, route, service, synced};
use rouse_testkit::api_server::ApiServer;

/// A route of `namespace` that was created in `year` and names `hosts`.
fn route_of(namespace: &str, name: &str, year: u32, hosts: &[&str]) -> Value {
    let mut object = route(name, "unused.test", "cart");
    object["metadata"]["namespace"] = json!(namespace);
    object["metadata"]["uid"] = json!(format!("{namespace}-{name}-{year}"));
    object["metadata"]["creationTimestamp"] = json!(format!("{year}-01-01T00:00:00Z"));
    object["spec"]["rules"] = json!([{"hosts": hosts}]);
    object
}

/// Changes the spec of a route as its owner does: the status stays.
fn edit(api: &ApiServer, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
    let mut object = api.get(ROUTES, namespace, name).unwrap();
    change(&mut object["spec"]);
    let generation = object["metadata"]["generation"].as_i64().unwrap();
    object["metadata"]["generation"] = json!(generation + 1);
    api.put(ROUTES, object);
}

fn set_hosts(api: &ApiServer, namespace: &str, name: &str, hosts: &[&str]) {
    edit(api, namespace, name, |spec| spec["rules"] = json!([{"hosts": hosts}]));
}

/// The namespace whose route gets the requests of `host`, by the rule of the data plane: the most exact pattern.
fn served_by(rig: &Rig, host: &str) -> Option<String> {
    let plans = rig.cluster.plans().borrow().clone();
    let mut patterns = vec![host.to_owned()];
    patterns.extend(host.match_indices('.').map(|(dot, _)| format!("*{}", &host[dot..])));
    patterns.push("*".to_owned());
    patterns.iter().find_map(|pattern| {
        let has =
            |rules: &[RuleSpec]| rules.iter().any(|rule| rule.hosts.iter().any(|host| **host == **pattern));
        let mut all = plans.iter().filter(|plan| has(&plan.rules));
        all.next().map(|plan| plan.spec.key.namespace.to_string())
    })
}

#[track_caller]
fn assert_served(rig: &Rig, host: &str, namespace: &str) {
    assert_eq!(served_by(rig, host).as_deref(), Some(namespace), "{host}");
}

fn reported(api: &ApiServer, namespace: &str, name: &str, kind: &str) -> Option<String> {
    condition(&api.get(ROUTES, namespace, name)?, kind).map(|(_, _, message)| message)
}

async fn recorded(rig: &Rig, namespace: &str, name: &str, host: &str) {
    let is = |rig: &Rig| {
        reported(&rig.api, namespace, name, "HostsClaimed").is_some_and(|record| record.contains(host))
    };
    rig.until("the claim is recorded", is).await;
}

async fn conflict(rig: &Rig, namespace: &str, name: &str) -> String {
    rig.until("the status shows the conflict", |rig| {
        reported(&rig.api, namespace, name, "HostConflict").is_some()
    })
    .await;
    reported(&rig.api, namespace, name, "HostConflict").unwrap()
}

fn cluster() -> ApiServer {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api
}

/// Namespace `a` has `cart.test`, and namespace `b` has `own.test` by an older object.
fn two_owners() -> ApiServer {
    let api = cluster();
    api.put(ROUTES, route_of("a", "cart", 2024, &["cart.test"]));
    api.put(ROUTES, route_of("b", "old", 2020, &["own.test"]));
    api
}

/// Route `cart` of namespace `a`, which has claimed `host`.
async fn claimed(host: &str) -> (ApiServer, Rig) {
    let api = cluster();
    api.put(ROUTES, route_of("a", "cart", 2024, &[host]));
    let (api, rig) = synced(api).await;
    recorded(&rig, "a", "cart", host).await;
    (api, rig)
}

#[tokio::test(start_paused = true)]
async fn an_edit_of_an_older_object_takes_no_host_away() {
    let (api, rig) = synced(two_owners()).await;
    recorded(&rig, "a", "cart", "cart.test").await;
    recorded(&rig, "b", "old", "own.test").await;
    set_hosts(&api, "b", "old", &["own.test", "cart.test"]);
    assert_eq!(conflict(&rig, "b", "old").await, "cart.test is claimed earlier by namespace a");
    assert_served(&rig, "cart.test", "a");
    assert_served(&rig, "own.test", "b");
    rig.stop().await;
    // After a restart, and in another replica, the recorded claim counts.
    let again = Rig::synced(&api).await;
    pass(Duration::from_mins(2)).await;
    assert_served(&again, "cart.test", "a");
    // The claim ends when no route of that namespace names the host any more.
    set_hosts(&api, "a", "cart", &["other.test"]);
    again.until("the host is free", |rig| served_by(rig, "cart.test").as_deref() == Some("b")).await;
    recorded(&again, "b", "old", "cart.test").await;
    set_hosts(&api, "a", "cart", &["cart.test", "other.test"]);
    conflict(&again, "a", "cart").await;
    assert_served(&again, "cart.test", "b");
    again.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_faulty_version_keeps_its_hosts_also_after_a_restart() {
    let (api, rig) = claimed("cart.x.test").await;
    edit(&api, "a", "cart", |spec| spec["timeouts"] = json!({"request": "soon"}));
    api.put(ROUTES, route_of("b", "wide", 2020, &["*.x.test"]));
    conflict(&rig, "b", "wide").await;
    // The last good version serves.
    assert_served(&rig, "cart.x.test", "a");
    rig.stop().await;
    let again = Rig::synced(&api).await;
    pass(Duration::from_mins(2)).await;
    assert_served(&again, "cart.x.test", "a");
    let plan = again.plan("a/cart").expect("it answers 503");
    assert!(matches!(plan.target, Err(PortFault::Faulty(_))), "{:?}", plan.target);
    assert!(reported(&api, "a", "cart", "HostsClaimed").unwrap().contains("cart.x.test"));
    again.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_replicas_agree_on_a_host_that_both_gave_away_at_the_same_moment() {
    let api = cluster();
    let (one, other) = (Rig::synced(&api).await, Rig::synced(&api).await);
    api.put(ROUTES, route_of("b", "r", 2024, &["cart.test"]));
    api.put(ROUTES, route_of("a", "r", 2024, &["*.test"]));
    one.until("one status shows it", |rig| {
        ["a", "b"].iter().any(|it| reported(&rig.api, it, "r", "HostConflict").is_some())
    })
    .await;
    pass(Duration::from_mins(2)).await;
    let owner = served_by(&one, "cart.test");
    assert!(owner.is_some());
    assert_eq!(served_by(&other, "cart.test"), owner);
    let writes = api.patches("status").len();
    assert!(writes <= 8, "{writes} writes");
    one.stop().await;
    other.stop().await;
    let again = Rig::synced(&api).await;
    assert_eq!(served_by(&again, "cart.test"), owner);
    again.stop().await;
}

#[tokio::test(start_paused = true)]
async fn hosts_stay_where_they_are_while_no_status_can_be_written() {
    let api = two_owners();
    api.refuse(Method::PATCH, "/status", 403, "not you", None);
    let rig = Rig::synced(&api).await;
    set_hosts(&api, "b", "old", &["own.test", "cart.test"]);
    pass(Duration::from_mins(2)).await;
    assert_served(&rig, "cart.test", "a");
    assert_served(&rig, "own.test", "b");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_record_that_another_writer_removed_is_written_again_after_a_while() {
    let (api, rig) = claimed("cart.test").await;
    let before = reported(&api, "a", "cart", "HostsClaimed");
    let mut object = api.get(ROUTES, "a", "cart").unwrap();
    object["status"] = json!({"conditions": []});
    api.put(ROUTES, object);
    pass(Duration::from_mins(2)).await;
    assert_eq!(reported(&api, "a", "cart", "HostsClaimed"), before, "with the time of the first claim");
    let writes = api.patches("status").len();
    assert!(writes <= 3, "{writes} writes");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_http_scaled_object_carries_its_claims_too() {
    let api = cluster();
    let scaled = json!({"metadata": {"name": "old", "namespace": "shop", "creationTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {"hosts": ["cart.test"],
                 "scaleTargetRef": {"name": "cart", "kind": "Deployment", "apiVersion": "apps/v1",
                                    "service": "cart", "port": 80}}});
    api.put(HTTP_SCALED_OBJECT, scaled);
    let rig = Rig::synced(&api).await;
    let record =
        |rig: &Rig| condition(&rig.api.get(HTTP_SCALED_OBJECT, "shop", "old").unwrap(), "HostsClaimed");
    rig.until("the claim is recorded", |rig| record(rig).is_some()).await;
    rig.stop().await;
    api.put(ROUTES, route_of("b", "older", 2020, &["*.test"]));
    let again = Rig::synced(&api).await;
    conflict(&again, "b", "older").await;
    assert_served(&again, "cart.test", "shop");
    again.stop().await;
}

/// The rules of a plan, each as its hosts, paths and headers.
fn rules(rig: &Rig, name: &str) -> Vec<(String, String, usize)> {
    let plan = rig.plan(name).unwrap();
    let rule = |rule: &RuleSpec| (rule.hosts.join(" "), rule.paths.join(" "), rule.headers.len());
    plan.rules.iter().map(rule).collect()
}

#[tokio::test(start_paused = true)]
async fn a_faulty_route_takes_no_request_from_a_good_one_and_answers_what_no_other_route_takes() {
    let cases = [
        // Valid rules keep their requests.
        (json!({"paths": [{"value": "/a"}]}), vec![("/a", 0)]),
        (json!({"paths": [{"value": "/a"}], "headers": [{"name": "x-a"}]}), vec![("/a", 1)]),
        // Of invalid rules, only the hosts are known.
        (json!({"paths": [{"value": "a"}]}), vec![("", 0)]),
        (json!({"paths": "/a"}), vec![("", 0)]),
        (json!({"paths": [{"value": "/a"}], "headers": [{"name": "x a"}]}), vec![("", 0)]),
        (json!({"paths": [{"value": "/a"}], "headers": [{"name": "x-a"}, {"value": "1"}]}), vec![("", 0)]),
        (json!({"paths": [{"value": "a"}], "headers": [{"name": "x-a"}]}), vec![("", 0)]),
        (json!({"paths": [{"value": "/a"}, {"value": "b"}]}), vec![("/a", 0), ("", 0)]),
    ];
    for (rule, expected) in cases {
        let api = cluster();
        let mut faulty = route_of("a", "faulty", 2020, &["cart.test"]);
        faulty["spec"]["timeouts"] = json!({"request": "soon"});
        for (part, value) in rule.as_object().unwrap() {
            faulty["spec"]["rules"][0][part] = value.clone();
        }
        api.put(ROUTES, faulty);
        api.put(ROUTES, route_of("a", "good", 2024, &["cart.test"]));
        let rig = Rig::synced(&api).await;
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(path, headers)| ("cart.test".to_owned(), path.to_owned(), headers))
            .collect();
        assert_eq!(rules(&rig, "a/faulty"), expected, "{rule}");
        let (faulty, good) = (rig.plan("a/faulty").unwrap(), rig.plan("a/good").unwrap());
        assert!(matches!(faulty.target, Err(PortFault::Faulty(_))), "{:?}", faulty.target);
        assert!(faulty.spec.created > good.spec.created, "of equal rules the good one is found first");
        recorded(&rig, "a", "faulty", "cart.test").await;
        rig.stop().await;
    }
}
