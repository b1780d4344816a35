//! Valid and invalid routes: the CRDs in `deploy/crds` and Rouse itself must agree on them.

use rouse_kube::objects::route::{RouteKind, RouteObject, read};
use serde_json::{Value, json};

use crate::support;

/// A route, and whether it is valid.
pub(crate) struct Case {
    pub(crate) object: Value,
    pub(crate) good: bool,
    /// The field is unknown to the API server; Rouse reads only known fields.
    misspelt: bool,
}

fn object(kind: &str, spec: &Value) -> Value {
    let version = if kind == "InterceptorRoute" { "v1beta1" } else { "v1alpha1" };
    json!({
        "apiVersion": format!("http.keda.sh/{version}"),
        "kind": kind,
        "metadata": {"name": "case", "namespace": "shop"},
        "spec": spec,
    })
}

/// The target that all good ones have, and `more`.
fn route(more: Value) -> Value {
    let mut spec = json!({"target": {"service": "a", "port": 80}});
    merge(&mut spec, more);
    object("InterceptorRoute", &spec)
}

fn scaled(more: Value) -> Value {
    let mut spec = json!({"scaleTargetRef": {"service": "a", "port": 80}});
    merge(&mut spec, more);
    object("HTTPScaledObject", &spec)
}

fn merge(spec: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("{more}") };
    spec.as_object_mut().unwrap().extend(more);
}

fn answer(response: &Value) -> Value {
    route(json!({"coldStart": {"placeholder": {"response": response}}}))
}

fn rule(rule: &Value) -> Value {
    route(json!({"rules": [rule]}))
}

pub(crate) fn cases() -> Vec<Case> {
    let bad = vec![
        object("InterceptorRoute", &json!({})),
        route(json!({"target": {"service": "a", "port": 80, "portName": "http"}})),
        route(json!({"target": {"service": "a"}})),
        route(json!({"target": {"service": "", "port": 80}})),
        route(json!({"target": {"service": "a", "port": 0}})),
        route(json!({"target": {"service": "a", "port": 65536}})),
        route(json!({"target": {"port": 80}})),
        rule(&json!({"hosts": ["http://shop.example.com"]})),
        rule(&json!({"hosts": ["shop.example.com:80"]})),
        rule(&json!({"hosts": ["shop.*"]})),
        rule(&json!({"hosts": [""]})),
        rule(&json!({"paths": [{"value": "cart"}]})),
        rule(&json!({"paths": [{"value": "/cart?x"}]})),
        rule(&json!({"paths": [{}]})),
        rule(&json!({"headers": [{"value": "x"}]})),
        rule(&json!({"headers": [{"name": "a b"}]})),
        answer(&json!({"body": "x".repeat(32_769)})),
        answer(&json!({"body": "x", "bodyFromConfigMap": {"name": "page"}})),
        answer(&json!({"bodyFromConfigMap": {}})),
        answer(&json!({"statusCode": 100})),
        answer(&json!({"statusCode": 600})),
        route(json!({"coldStart": {"placeholder": {}}})),
        route(json!({"coldStart": {"fallback": {"service": {"name": "b"}}}})),
        route(json!({"coldStart": {"fallback": {}}})),
        route(json!({"coldStart": {"maxPendingRequests": -1}})),
        route(json!({"staticRoutes": [{"response": {}, "responseMode": "Never"}]})),
        route(json!({"staticRoutes": [{}]})),
        route(json!({"timeouts": {"request": "soon"}})),
        route(json!({"timeouts": {"readiness": "-1s"}})),
        route(json!({"timeouts": {"responseHeader": "5"}})),
        route(json!({"scalingMetric": {"requestRate": {"granularity": "500ms"}}})),
        route(json!({"scalingMetric": {"concurrency": {"targetValue": 0}}})),
        object("HTTPScaledObject", &json!({})),
        scaled(json!({"scaleTargetRef": {"service": "a", "port": 80, "portName": "http"}})),
        scaled(json!({"replicas": {"min": 3, "max": 2}})),
        scaled(json!({"replicas": {"min": -1}})),
        scaled(json!({"coldStartTimeoutFailoverRef": {"service": "a"}})),
        scaled(json!({"targetPendingRequests": 0})),
        scaled(json!({"timeouts": {"conditionWait": "soon"}})),
        scaled(json!({"scalingMetric": {"requestRate": {"granularity": "1ms"}}})),
    ];
    let misspelt = vec![
        // Without hosts it would match every host.
        rule(&json!({"host": ["shop.example.com"]})),
        route(json!({"rule": [{"hosts": ["shop.example.com"]}]})),
        scaled(json!({"host": "shop.example.com"})),
    ];
    let good = vec![
        route(json!({})),
        route(json!({"target": {"service": "a", "portName": "http"}})),
        rule(&json!({"hosts": ["*", "*.a_b.example.com.", "Shop.example.com", "[::1]"]})),
        rule(&json!({"paths": [{"value": "/"}], "headers": [{"name": "X-Tenant"}]})),
        answer(&json!({"body": "x".repeat(32_768), "statusCode": 200, "headers": {"A": "b"}})),
        answer(&json!({"bodyFromConfigMap": {"name": "page", "key": "html"}})),
        route(json!({"timeouts": {"request": "0", "readiness": "1m30s", "responseHeader": "1.5h"}})),
        route(json!({"scalingMetric": {"concurrency": {}, "requestRate": {}}})),
        // Fields of KEDA that Rouse does not know.
        route(
            json!({"proxyMode": "Endpoint", "scalingMetric": {"other": {"a": 1}}, "coldStart": {"other": [1]}}),
        ),
        scaled(json!({})),
        scaled(json!({"placeholderConfig": {"enabled": true, "content": "x"}, "timeouts": {"other": 1}})),
    ];
    let case = |good, misspelt| move |object| Case { object, good, misspelt };
    let mut all: Vec<Case> = bad.into_iter().map(case(false, false)).collect();
    all.extend(misspelt.into_iter().map(case(false, true)));
    all.extend(good.into_iter().map(case(true, false)));
    all
}

fn faults(object: &Value) -> Vec<String> {
    let kind = match support::text(object, "/kind") {
        "InterceptorRoute" => RouteKind::InterceptorRoute,
        _ => RouteKind::HttpScaledObject,
    };
    let read_object: RouteObject = serde_json::from_value(object.clone()).unwrap();
    read(kind, &read_object).err().unwrap_or_default()
}

/// Asserts that the CRDs and Rouse accept and refuse the same routes, and that both accept the examples.
pub(crate) fn are_judged_alike() {
    for Case { object, good, misspelt } in cases() {
        let faults = faults(&object);
        assert_eq!(faults.is_empty(), good || misspelt, "{faults:?} {}", object.get("spec").unwrap());
    }
    let examples = support::deployed("examples");
    let routes = examples.iter().filter(|it| support::text(it, "/apiVersion").starts_with("http.keda.sh/"));
    let routes: Vec<&Value> = routes.collect();
    assert!(routes.len() > 4, "{}", routes.len());
    for route in routes {
        assert_eq!(faults(route), Vec::<String>::new(), "{}", support::key(route));
    }
}
