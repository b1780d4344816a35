//! Parses both kinds of route objects: every field, and all faults at once.

use std::sync::Arc;
use std::time::Duration;

use rouse_core::routing_mode::RoutingMode;
use rouse_core::scale::IdlePolicy;
use rouse_kube::objects::route::{
    BodySpec, NoWakeSpec, Probing, RouteKind, RouteObject, RouteSpec, StaticMode, TimeoutSpec, read,
};
use rouse_kube::objects::service_summary::PortRef;
use rouse_kube::objects::workload::Workload;
use serde_json::{Value, json};

fn object(spec: &Value, annotations: &Value) -> RouteObject {
    let json = json!({"metadata": {"name": "r", "namespace": "shop", "creationTimestamp": "1970-01-02T00:00:00Z",
                                   "annotations": annotations}, "spec": spec});
    serde_json::from_value(json).unwrap()
}

fn good(kind: RouteKind, spec: &Value) -> RouteSpec {
    read(kind, &object(spec, &json!({}))).unwrap()
}

fn faults(kind: RouteKind, spec: &Value, annotations: &Value) -> Vec<String> {
    read(kind, &object(spec, annotations)).unwrap_err()
}

#[test]
fn every_field_of_an_interceptor_route_is_read() {
    let spec = good(
        RouteKind::InterceptorRoute,
        &json!({
        "target": {"service": "cart", "portName": "http"},
        "rules": [
            {"hosts": ["Shop.Example.com.", "*.x.org", "*"], "paths": [{"value": "/a"}, {"value": "/"}],
             "headers": [{"name": "X-A", "value": "1"}, {"name": "x-b"}, {"name": "x-c", "value": null}]},
            {}],
        "scalingMetric": {"concurrency": {"targetValue": 7}, "requestRate": {"window": "2m", "granularity": "1s"}},
        "timeouts": {"readiness": "1m30s", "request": "0s", "responseHeader": "500ms"},
        "coldStart": {
            "fallback": {"service": {"name": "spare", "port": 81}},
            "placeholder": {"response": {"body": "wait", "headers": {"Refresh": "5"}}},
            "maxPendingRequests": 9,
            "overflow": {"response": {"statusCode": 429}}},
        "staticRoutes": [
            {"rules": [{"paths": [{"value": "/healthz"}]}], "responseMode": "Always", "response": {"body": "OK"}},
            {"response": {"statusCode": 404, "bodyFromConfigMap": {"name": "pages", "key": "no"}}}],
        "somethingNew": {"of": "the future"}}),
    );
    assert_eq!((spec.key.to_string().as_str(), spec.created), ("shop/r", 86400));
    assert_eq!(spec.target.service.to_string(), "shop/cart");
    assert_eq!(spec.target.port, PortRef::Name("http".into()));
    let rule = &spec.rules[0];
    assert_eq!(
        rule.hosts.iter().map(|host| &**host).collect::<Vec<_>>(),
        ["shop.example.com", "*.x.org", "*"]
    );
    assert_eq!(rule.paths, ["/a", "/"]);
    let headers: Vec<String> = rule.headers.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    assert_eq!(headers, ["x-a=Some(\"1\")", "x-b=None", "x-c=None"]);
    let millis = |millis| Some(Duration::from_millis(millis));
    let timeouts =
        TimeoutSpec { readiness: millis(90_000), request: millis(0), response_header: millis(500) };
    assert_eq!(spec.timeouts, timeouts);
    let cold = &spec.cold_start;
    let fallback = cold.fallback.as_ref().unwrap();
    assert_eq!((fallback.service.to_string().as_str(), &fallback.port), ("shop/spare", &PortRef::Number(81)));
    let placeholder = cold.placeholder.as_ref().unwrap();
    assert_eq!((placeholder.status, &placeholder.body), (503, &BodySpec::Text("wait".into())));
    assert_eq!(
        (placeholder.headers[0].0.as_str(), placeholder.headers[0].1.as_bytes()),
        ("refresh", &b"5"[..])
    );
    assert_eq!((cold.max_pending, cold.overflow.as_ref().unwrap().status), (Some(9), 429));
    let statics: Vec<(StaticMode, u16)> =
        spec.static_routes.iter().map(|one| (one.mode, one.response.status)).collect();
    assert_eq!(statics, [(StaticMode::Always, 200), (StaticMode::WhenUnavailable, 404)]);
    let from_map = BodySpec::ConfigMap { name: "pages".into(), key: Some("no".into()) };
    assert_eq!(spec.static_routes[1].response.body, from_map);
    let rate = spec.scaling.rate.unwrap();
    assert_eq!((spec.scaling.concurrency, rate.target, rate.window.as_secs()), (Some(7), 100, 120));
}

#[test]
fn every_field_of_an_http_scaled_object_is_read() {
    let spec = good(
        RouteKind::HttpScaledObject,
        &json!({
        "hosts": ["old.example.com"], "pathPrefixes": ["/a"], "headers": [{"name": "x-a", "value": "1"}],
        "replicas": {"min": 1, "max": 4}, "scaledownPeriod": 30, "initialCooldownPeriod": 10,
        "timeouts": {"conditionWait": "20s", "responseHeader": "1s"},
        "scaleTargetRef": {"name": "cart", "kind": "StatefulSet", "apiVersion": "apps/v1", "service": "cart", "port": 80},
        "coldStartTimeoutFailoverRef": {"service": "spare", "portName": "http", "timeoutSeconds": 5},
        "targetPendingRequests": 50}),
    );
    assert_eq!(
        (spec.rules.len(), &*spec.rules[0].hosts[0], spec.rules[0].paths[0].as_str()),
        (1, "old.example.com", "/a")
    );
    assert_eq!(spec.target.port, PortRef::Number(80));
    let scaling = &spec.scaling;
    assert_eq!(scaling.target, Workload::parse("apps/v1/StatefulSet/cart"));
    assert_eq!((scaling.min, scaling.max, scaling.concurrency), (1, Some(4), Some(50)));
    assert_eq!(scaling.idle_after, Some(Duration::from_secs(30)));
    assert_eq!(scaling.initial_cooldown, Some(Duration::from_secs(10)));
    assert_eq!(spec.cold_start.fallback.unwrap().service.to_string(), "shop/spare");
    assert_eq!(spec.timeouts.readiness, Some(Duration::from_secs(5)), "the failover's own timeout counts");
    let least = json!({"scaleTargetRef": {"service": "cart", "port": 80}});
    let least = good(RouteKind::HttpScaledObject, &least);
    assert_eq!((least.scaling.target, least.scaling.concurrency), (None, Some(100)));
    assert_eq!(least.scaling.idle_after, Some(Duration::from_mins(5)), "KEDA's default");
}

#[test]
fn annotations_say_what_the_object_has_no_field_for() {
    let target = json!({"target": {"service": "cart", "port": 80}});
    let annotations = json!({
        "rouse.dev/min": "2", "rouse.dev/max": "9", "rouse.dev/idle-after": "90s", "rouse.dev/concurrency-limit": "4",
        "rouse.dev/direct-pod-routing": "cold-start-only", "rouse.dev/scale-target": "apps/v1/Deployment/x", "rouse.dev/probe": "no-tcp"});
    let spec = read(RouteKind::InterceptorRoute, &object(&target, &annotations)).unwrap();
    assert_eq!((spec.scaling.min, spec.scaling.max, spec.scaling.concurrency_limit), (2, Some(9), Some(4)));
    assert_eq!(spec.scaling.idle_after, Some(Duration::from_secs(90)));
    assert_eq!(spec.scaling.target, Workload::parse("apps/v1/Deployment/x"));
    assert_eq!((spec.direct, spec.probing), (Some(RoutingMode::ColdStartOnly), Some(Probing::NoTcp)));
    let bad = json!({"rouse.dev/min": "many", "rouse.dev/max": "0", "rouse.dev/idle-after": "soon",
                     "rouse.dev/concurrency-limit": "-1", "rouse.dev/direct-pod-routing": "yes",
                     "rouse.dev/scale-target": "../secrets", "rouse.dev/probe": "sometimes"});
    let all = faults(RouteKind::InterceptorRoute, &target, &bad);
    assert_eq!(all.len(), 7, "{all:#?}");
    let invalid = all.iter().find(|fault| fault.contains("direct-pod-routing")).unwrap();
    assert_eq!(
        invalid,
        "annotation rouse.dev/direct-pod-routing is \"yes\": expected disabled, cold-start-only or always"
    );
    let upside_down = json!({"rouse.dev/min": "5", "rouse.dev/max": "4"});
    assert_eq!(
        faults(RouteKind::InterceptorRoute, &target, &upside_down),
        ["min (5) is greater than max (4)"]
    );
}

#[test]
fn annotations_say_when_and_how_a_route_is_idle() {
    let target = json!({"target": {"service": "cart", "port": 80}});
    let read = |annotations: Value| read(RouteKind::InterceptorRoute, &object(&target, &annotations));
    let text = "Mon-Fri 08:00-18:00 Europe/Berlin = 2; Sat 10:00-12:00 UTC = 1";
    let spec = read(
        json!({"rouse.dev/schedule": text, "rouse.dev/idle": "learned", "rouse.dev/cold-start-cost": "90s"}),
    );
    let scaling = spec.unwrap().scaling;
    assert_eq!(scaling.schedule, text.parse().unwrap());
    assert_eq!(scaling.idle, Some(IdlePolicy::Learned { cold_start_cost: Duration::from_secs(90) }));
    let by_default = read(json!({"rouse.dev/idle": "learned"})).unwrap().scaling.idle;
    assert_eq!(by_default, Some(IdlePolicy::Learned { cold_start_cost: Duration::from_mins(10) }));
    assert_eq!(read(json!({"rouse.dev/idle": "fixed"})).unwrap().scaling.idle, Some(IdlePolicy::Fixed));
    let nothing = read(json!({})).unwrap().scaling;
    assert_eq!((nothing.idle, nothing.schedule.is_empty()), (None, true));
}

#[test]
fn a_wrong_schedule_or_idle_policy_says_what_is_allowed() {
    let target = json!({"target": {"service": "cart", "port": 80}});
    let long = format!("Mon {} = 2", "x".repeat(100_000));
    for (annotations, expected) in [
        (
            json!({"rouse.dev/idle": "sometimes"}),
            "annotation rouse.dev/idle is \"sometimes\": expected fixed or learned",
        ),
        (
            json!({"rouse.dev/idle": "maybe", "rouse.dev/cold-start-cost": "5m"}),
            "annotation rouse.dev/idle is \"maybe\": expected fixed or learned",
        ),
        (
            json!({"rouse.dev/idle": "learned", "rouse.dev/cold-start-cost": "500ms"}),
            "annotation rouse.dev/cold-start-cost is \"500ms\": expected a duration like 90s or 10m, from 1s to 720h",
        ),
        (
            json!({"rouse.dev/cold-start-cost": "5m"}),
            "annotation rouse.dev/cold-start-cost has a meaning only with rouse.dev/idle: learned",
        ),
        (
            json!({"rouse.dev/idle": "fixed", "rouse.dev/cold-start-cost": "5m"}),
            "annotation rouse.dev/cold-start-cost has a meaning only with rouse.dev/idle: learned",
        ),
        (
            json!({"rouse.dev/schedule": "Mon-Fri 8-18 UTC = 2"}),
            "annotation rouse.dev/schedule: schedule part \"Mon-Fri 8-18 UTC = 2\": \"8-18\" is not a time span: expected HH:MM-HH:MM",
        ),
        (
            json!({"rouse.dev/schedule": "daily 08:00-18:00 UTC = 5", "rouse.dev/max": "4"}),
            "annotation rouse.dev/schedule asks for 5 pods, more than max (4)",
        ),
        (json!({"rouse.dev/schedule": long}), "annotation rouse.dev/schedule: schedule part \"Mon xxxx"),
    ] {
        let all = faults(RouteKind::InterceptorRoute, &target, &annotations);
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(all[0].starts_with(expected) && all[0].len() < 700, "{}", all[0]);
    }
}

#[test]
fn only_a_route_turns_verification_off_and_only_by_a_plain_word() {
    let target = json!({"target": {"service": "cart", "port": 80}});
    assert!(good(RouteKind::InterceptorRoute, &target).verify_upstream, "on by default");
    for (text, expected) in
        [("true", Some(true)), ("false", Some(false)), ("no", None), ("False", None), ("", None)]
    {
        let annotations = json!({"rouse.dev/upstream-verify": text});
        let spec = read(RouteKind::InterceptorRoute, &object(&target, &annotations));
        assert_eq!(spec.as_ref().ok().map(|spec| spec.verify_upstream), expected, "{text:?}: {spec:?}");
    }
}

#[test]
fn requests_that_do_not_wake_are_lists_with_commas() {
    let target = json!({"scaleTargetRef": {"service": "cart", "port": 80}});
    let kind = RouteKind::HttpScaledObject;
    assert_eq!(good(kind, &target).no_wake, NoWakeSpec::default());
    let annotations = json!({"rouse.dev/no-wake-paths": "/healthz, /robots.txt", "rouse.dev/no-wake-methods": "options,TRACE",
                             "rouse.dev/no-wake-user-agents": "kube-probe,GoogleBot/2.1 (x"});
    let no_wake = read(kind, &object(&target, &annotations)).unwrap().no_wake;
    let words = |words: &[&str]| words.iter().map(|word| Arc::from(*word)).collect::<Vec<Arc<str>>>();
    assert_eq!(no_wake.paths, words(&["/healthz", "/robots.txt"]));
    assert_eq!(no_wake.methods, words(&["OPTIONS", "TRACE"]));
    assert_eq!(no_wake.agents, words(&["kube-probe", "googlebot/2.1 (x"]));
    let many = |one: &str, count| vec![one; count].join(",");
    for (name, text, says) in [
        ("paths", "healthz", "1 to 32 paths that begin with a slash"),
        ("paths", "/a,,/b", "1 to 32 paths"),
        ("paths", "/a?b", "no ? and no #"),
        ("paths", &many("/a", 33), "1 to 32"),
        ("methods", "GET PUT", "1 to 32 methods like OPTIONS, separated by commas"),
        ("methods", "", "1 to 32 methods"),
        ("methods", &many("GET", 33), "1 to 32"),
        ("user-agents", " , ", "1 to 32 parts of user agents"),
        ("user-agents", &many("bot", 33), "1 to 32"),
    ] {
        let key = format!("rouse.dev/no-wake-{name}");
        let all = faults(kind, &target, &json!({&key: text}));
        assert!(all.len() == 1 && all[0].contains(&key) && all[0].contains(says), "{text:?}: {all:?}");
    }
    assert!(read(kind, &object(&target, &json!({"rouse.dev/no-wake-paths": many("/a", 32)}))).is_ok());
    let long = faults(kind, &target, &json!({"rouse.dev/no-wake-paths": "ü".repeat(100_000)}));
    assert!(long[0].len() < 500, "{}", long[0].len());
}

#[test]
fn all_faults_are_reported_at_once_each_with_its_field() {
    let all = faults(
        RouteKind::InterceptorRoute,
        &json!({
            "target": {"service": "", "port": 0, "portName": "x"},
            "rules": [{"hosts": ["a:80", 7], "paths": [{"value": "no-slash"}, {}], "headers": [{"name": "a b"}, {"value": "x"}]}],
            "timeouts": {"readiness": 5, "request": "-1s"},
            "scalingMetric": {"concurrency": {"targetValue": 0}, "requestRate": {"granularity": "100ms"}},
            "coldStart": {"fallback": {}, "placeholder": {}, "maxPendingRequests": -1},
            "staticRoutes": [{"response": {"statusCode": 700, "headers": {"x": "a\nb"}}}, {"responseMode": "Never"},
                             {"response": {"body": "x", "bodyFromConfigMap": {}}},
                             {"response": {"bodyFromConfigMap": {"name": "../secrets/x"}}},
                             {"response": {"body": "x".repeat(32_769)}}],
        }),
        &json!({}),
    );
    for (place, words) in [
        ("spec.target.service ", "expected a Service's name"),
        ("spec.target ", "exactly one of port and portName"),
        ("spec.rules[0].hosts[0] ", "without a port"),
        ("spec.rules[0].hosts[1] ", "is 7: expected a string"),
        ("spec.rules[0].paths[0].value ", "begins with a slash"),
        ("spec.rules[0].paths[1].value ", "is missing"),
        ("spec.rules[0].headers[0].name ", "a header's name"),
        ("spec.rules[0].headers[1].name ", "is missing"),
        ("spec.timeouts.readiness ", "is 5: expected a duration"),
        ("spec.timeouts.request ", "expected a duration"),
        ("spec.scalingMetric.concurrency.targetValue ", "from 1"),
        ("spec.scalingMetric.requestRate.granularity ", "less than 1s"),
        ("spec.coldStart.fallback.service ", "is missing"),
        ("spec.coldStart.placeholder.response ", "is missing"),
        ("spec.coldStart.maxPendingRequests ", "is -1"),
        ("spec.staticRoutes[0].response.statusCode ", "from 100 to 599"),
        ("spec.staticRoutes[0].response.headers ", "without line breaks"),
        ("spec.staticRoutes[1].responseMode ", "expected WhenUnavailable or Always"),
        ("spec.staticRoutes[2].response ", "both body and bodyFromConfigMap"),
        ("spec.staticRoutes[3].response.bodyFromConfigMap.name ", "expected a ConfigMap's name"),
        ("spec.staticRoutes[4].response.body ", "at most 32768"),
    ] {
        let reported = all.iter().any(|fault| fault.starts_with(place) && fault.contains(words));
        assert!(reported, "{place}… {words}: {all:#?}");
    }
    assert_eq!(all.len(), 21, "{all:#?}");
}

#[test]
fn any_object_is_read_or_has_a_fault() {
    for spec in
        [json!(null), json!(7), json!([]), json!({}), json!({"target": []}), json!({"scaleTargetRef": "x"})]
    {
        for kind in [RouteKind::InterceptorRoute, RouteKind::HttpScaledObject] {
            let all = faults(kind, &spec, &json!({}));
            assert!(!all.is_empty(), "{spec}");
        }
    }
}

#[test]
fn a_host_has_one_spelling_which_is_that_of_requests() {
    let hosts =
        |hosts: &[&str]| json!({"target": {"service": "cart", "port": 80}, "rules": [{"hosts": hosts}]});
    let kind = RouteKind::InterceptorRoute;
    for (text, spelling) in [
        ("[fd00::1]", "[fd00::1]"),
        ("[FD00:0::1]", "[fd00::1]"),
        ("[fd00:0:0:0:0:0:0:1]", "[fd00::1]"),
        ("Shop.Test.", "shop.test"),
        ("*.Shop.Test.", "*.shop.test"),
        ("127.0.0.1", "127.0.0.1"),
        ("*", "*"),
    ] {
        assert_eq!(*good(kind, &hosts(&[text])).rules[0].hosts, [Arc::from(spelling)], "{text}");
    }
    for text in ["", ".", "*.", "*.*", "*.[::1]", "[::1].", "[::g]", "[::1]:80", "::1", "a:80", "a..b", "a b"]
    {
        assert_eq!(faults(kind, &hosts(&[text]), &json!({})).len(), 1, "{text:?}");
    }
}
