//! The routes of a cluster, and their problems: invalid fields, conditions, and hosts that several routes claim.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use serde_json::Value;

use super::{SurveyClient, SurveyError};
use crate::client::ObjectKind;
use crate::objects::Service;
use crate::objects::route::{ConditionFormat, RouteKey, RouteKind, RouteObject, RouteSpec};
use crate::objects::service_summary::{DataKind, DataRef, ServiceSummary};
use crate::routes::claim_record::ClaimTime;
use crate::routes::claims::{Claimant, HostClaims, HostRules};
use crate::routes::hosts::{ANY, overlap};
use crate::routes::store::{RouteStore, StoredRoute};
use crate::routes::{AUTOSCALED, ONLY_WAKES};

/// The routes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RouteSurvey {
    /// How many there are.
    pub count: usize,
    /// The problems of routes, by name.
    pub problems: Vec<RouteProblem>,
    /// Hosts that several routes claim, by name.
    pub contested: Vec<ContestedHost>,
    /// The objects that routes and their Services name.
    pub named: Vec<NamedObject>,
    /// The routes that ask for scaling, or about which the controller says something, by name.
    pub scaling: Vec<RouteScaling>,
}

/// What a route and the controller say about its scaling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteScaling {
    /// The route.
    pub route: RouteKey,
    /// Whether its workload is scaled.
    pub status: ScalingStatus,
}

/// Whether the workload of a route is scaled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScalingStatus {
    /// It is.
    Scaled,
    /// An HPA or a `ScaledObject` scales it.
    Owned,
    /// It is not, for this reason.
    NotScaled(String),
    /// The route asks for it, and the controller has not said anything.
    Unknown,
}

/// An object that a route or its Service names, in its own namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedObject {
    /// `configmaps` or `secrets`.
    pub resource: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A problem of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteProblem {
    /// The route.
    pub route: RouteKey,
    /// What is wrong with it.
    pub words: String,
}

/// A host that several routes claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContestedHost {
    /// The host, with a path if only that is contested.
    pub host: String,
    /// The route that has it.
    pub owner: RouteKey,
    /// The routes that do not get it.
    pub others: Vec<RouteKey>,
}

/// Inspects all routes in `namespace`, or in the whole cluster.
pub(super) async fn look(
    client: &SurveyClient<'_>,
    namespace: Option<&str>,
) -> Result<RouteSurvey, SurveyError> {
    let mut store = RouteStore::default();
    for (kind, object_kind) in RouteKind::WATCHED {
        let objects: Vec<RouteObject> = client.list(object_kind.path(namespace), None).await?;
        store.replace(kind, &objects);
    }
    let mut seen = problems_of(&store);
    let services = store.services();
    if !services.is_empty() {
        // Without the permission to list Services, the objects that they name are left out.
        let all: Vec<Service> =
            client.list(ObjectKind::SERVICE.path(namespace), None).await.unwrap_or_default();
        let facts = all.into_iter().filter_map(|service| ServiceSummary::new(service).ok());
        for service in facts.filter(|service| services.contains(&service.id)) {
            seen.named.extend(service.tls.wanted().map(named));
        }
    }
    seen.named.sort();
    seen.named.dedup();
    Ok(seen)
}

fn named(wanted: &DataRef) -> NamedObject {
    let resource = match wanted.kind {
        DataKind::ConfigMap => ObjectKind::CONFIG_MAP.plural,
        DataKind::Secret => ObjectKind::SECRET.plural,
    };
    NamedObject { resource, namespace: wanted.namespace.to_string(), name: wanted.name.to_string() }
}

fn problems_of(store: &RouteStore) -> RouteSurvey {
    let mut problems = Vec::new();
    for (key, entry) in store.entries() {
        let mut words = entry.faults.clone();
        for said in entry.conditions.iter().filter_map(|condition| trouble(key.kind, condition)) {
            // `Ready` repeats the message of another condition.
            if !words.iter().any(|known| said.contains(&**known) || known.contains(&*said)) {
                words.push(said);
            }
        }
        if !words.is_empty() {
            problems.push(RouteProblem { route: key.clone(), words: words.join("; ") });
        }
    }
    let scaling = |(key, entry): (&RouteKey, &StoredRoute)| {
        let asked = entry.good.as_ref().is_some_and(|route| route.scaling.autoscale == Some(true));
        let status = entry.conditions.iter().find_map(scaling_status);
        let status = status.or_else(|| asked.then_some(ScalingStatus::Unknown))?;
        Some(RouteScaling { route: key.clone(), status })
    };
    let body = |(namespace, name): &(Arc<str>, Arc<str>)| NamedObject {
        resource: ObjectKind::CONFIG_MAP.plural,
        namespace: namespace.to_string(),
        name: name.to_string(),
    };
    RouteSurvey {
        count: store.entries().count(),
        problems,
        contested: lost(store).into_iter().chain(same_ways(&store.good())).collect(),
        named: store.config_maps().iter().map(body).collect(),
        scaling: store.entries().filter_map(scaling).collect(),
    }
}

/// What the condition of the controller says.
fn scaling_status(condition: &Value) -> Option<ScalingStatus> {
    let text = |field: &str| condition.get(field).and_then(Value::as_str).unwrap_or_default();
    let message = text("message");
    (text("type") == AUTOSCALED).then(|| match text("status") {
        "True" => ScalingStatus::Scaled,
        // The CRD of HTTPScaledObject drops the reason.
        _ if message.ends_with(ONLY_WAKES) => ScalingStatus::Owned,
        _ => ScalingStatus::NotScaled(message.to_owned()),
    })
}

/// What a status condition says is wrong.
fn trouble(route: RouteKind, condition: &Value) -> Option<String> {
    let text = |field: &str| condition.get(field).and_then(Value::as_str).unwrap_or_default();
    let (kind, message) = (text("type"), text("message"));
    let wrong = match (kind, text("status")) {
        // Where another controller writes `Ready`, that of the gateway is called `RouseReady`.
        ("Ready" | "RouseReady" | "Accepted", "False") => true,
        // On these objects, the gateway's messages begin with its name.
        ("Ready" | "RouseReady", "True") if route.condition_format() == ConditionFormat::OneMessage => {
            message.strip_prefix("Rouse: ").is_some_and(|said| said != "serving")
        }
        // A condition that reports a problem has its type as its reason.
        (kind, "True") => !kind.is_empty() && kind == text("reason"),
        _ => false,
    };
    let message = message.strip_prefix("Rouse: ").unwrap_or(message);
    wrong.then(|| if message.is_empty() { kind.to_owned() } else { message.to_owned() })
}

/// Namespace, host, path and headers. Of two routes that have all of them in common, the newer one gets no requests.
type Way<'a> = (&'a str, &'a str, &'a str, &'a [(HeaderName, Option<HeaderValue>)]);

/// Hosts that routes claim and do not get, by the claims that are recorded.
fn lost(store: &RouteStore) -> Vec<ContestedHost> {
    // The gateway's own settings for hosts are not known here.
    let rules = HostRules::default();
    let mut claimants = store.claimants();
    let owners = HostClaims::default().settle(&claimants, &rules, ClaimTime(i64::MAX));
    claimants.sort_by_key(|route| (route.created, route.key));
    let mut all: BTreeMap<&str, ContestedHost> = BTreeMap::new();
    for route in &claimants {
        for host in route.hosts {
            let Some(owner) = owners.keeps_out(&route.key.namespace, host) else { continue };
            let has = |other: &&Claimant<'_>| {
                other.key.namespace == *owner && other.hosts.iter().any(|theirs| overlap(theirs, host))
            };
            let Some(owner) = claimants.iter().find(has) else { continue };
            let fresh =
                || ContestedHost { host: host.to_string(), owner: owner.key.clone(), others: Vec::new() };
            all.entry(host).or_insert_with(fresh).others.push(route.key.clone());
        }
    }
    all.into_values().collect()
}

/// Rules that several routes of one namespace have: the oldest route gets the requests.
fn same_ways(routes: &[Arc<RouteSpec>]) -> Vec<ContestedHost> {
    let mut by_age: Vec<&RouteSpec> = routes.iter().map(|route| &**route).collect();
    by_age.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
    let mut ways: BTreeMap<String, (Way<'_>, Vec<&RouteKey>)> = BTreeMap::new();
    for route in by_age {
        for way in ways_in(route) {
            let claimants = &mut ways.entry(format!("{way:?}")).or_insert((way, Vec::new())).1;
            if !claimants.contains(&&route.key) {
                claimants.push(&route.key);
            }
        }
    }
    let contested = |((_, host, path, _), claimants): (Way<'_>, Vec<&RouteKey>)| {
        let (owner, others) = claimants.split_first()?;
        let others: Vec<RouteKey> = others.iter().map(|key| (*key).clone()).collect();
        (!others.is_empty()).then(|| ContestedHost {
            host: format!("{host}{path}"),
            owner: (*owner).clone(),
            others,
        })
    };
    ways.into_values().filter_map(contested).collect()
}

/// Each host and path of a route with its headers, within its namespace.
fn ways_in(route: &RouteSpec) -> Vec<Way<'_>> {
    let mut ways = Vec::new();
    for rule in &route.rules {
        let hosts: Vec<&str> = rule.hosts.iter().map(|host| &**host).collect();
        let paths: Vec<&str> = rule.paths.iter().map(|path| &**path).collect();
        for host in if hosts.is_empty() { vec![ANY] } else { hosts } {
            for path in if paths.is_empty() { &["/"][..] } else { &paths } {
                ways.push((&*route.key.namespace, host, *path, &*rule.headers));
            }
        }
    }
    ways
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(namespace: &str, name: &str, year: u32, spec: &Value, conditions: &Value) -> RouteObject {
        let created = format!("{year}-01-01T00:00:00Z");
        let meta =
            json!({"name": name, "namespace": namespace, "creationTimestamp": created, "generation": 1});
        let whole = json!({"metadata": meta, "spec": spec, "status": {"conditions": conditions}});
        serde_json::from_value(whole).unwrap()
    }

    fn to(rules: Value) -> Value {
        let mut spec = json!({"target": {"service": "cart", "port": 80}, "scalingMetric": {"concurrency": {"targetValue": 10}}});
        spec["rules"] = rules;
        spec
    }

    fn seen(kind: RouteKind, objects: &[RouteObject]) -> RouteSurvey {
        let mut store = RouteStore::default();
        store.replace(kind, objects);
        problems_of(&store)
    }

    fn troubles(seen: &RouteSurvey) -> Vec<(String, &str)> {
        seen.problems.iter().map(|problems| (problems.route.to_string(), &*problems.words)).collect()
    }

    #[test]
    fn what_the_controller_says_about_routes_is_told_from_routes_that_only_ask() {
        let spec = to(json!([{"hosts": ["a.example.com"]}]));
        let said = |name: &str, asks: bool, status: &str, message: &str| {
            let condition =
                json!({"type": "Autoscaled", "status": status, "reason": "R", "message": message});
            let conditions = if status.is_empty() { json!([]) } else { json!([condition]) };
            let mut route = object("shop", name, 2024, &spec, &conditions);
            if asks {
                let annotations = json!({"rouse.dev/autoscale": "on"});
                route.metadata.annotations = serde_json::from_value(annotations).unwrap();
            }
            route
        };
        let routes = [
            said("asks", true, "", ""),
            said("blocked", true, "False", "deployment x: silent"),
            said("default", false, "True", "deployment x: 2 pods"),
            said("nothing", false, "", ""),
            said("owned", false, "False", "HPA x scales deployment x, so Rouse only wakes it"),
        ];
        let seen = seen(RouteKind::InterceptorRoute, &routes);
        let all: Vec<_> = seen.scaling.into_iter().map(|it| (it.route.name.to_string(), it.status)).collect();
        let expected = [
            ("asks", ScalingStatus::Unknown),
            ("blocked", ScalingStatus::NotScaled("deployment x: silent".to_owned())),
            ("default", ScalingStatus::Scaled),
            ("owned", ScalingStatus::Owned),
        ];
        assert_eq!(all, expected.map(|(name, status)| (name.to_owned(), status)));
        assert_eq!(seen.problems, [], "the section about scaling tells them");
    }

    fn reported(seen: &RouteSurvey) -> Vec<(String, String, String)> {
        let others = |contested: &ContestedHost| {
            contested.others.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        let all = seen.contested.iter();
        all.map(|contested| (contested.host.clone(), contested.owner.to_string(), others(contested)))
            .collect()
    }

    #[test]
    fn what_conditions_say_is_wrong_is_said_once() {
        let spec = to(json!([{"hosts": ["a.example.com"]}]));
        let all = json!([
            {"type": "Ready", "status": "False", "reason": "NoService", "message": "there is no Service shop/cart"},
            {"type": "Accepted", "status": "True", "reason": "Valid", "message": "all fields are valid"},
            {"type": "NoService", "status": "True", "reason": "NoService", "message": "there is no Service shop/cart"},
            {"type": "NoScaleTarget", "status": "True", "reason": "NoScaleTarget", "message": "no workload"},
            {"type": "NotHonoured", "status": "True", "reason": "DirectToPod", "message": "session affinity"},
        ]);
        let good = json!([{"type": "Ready", "status": "True", "reason": "Reconciled", "message": "serving"}]);
        let routes =
            [object("shop", "bad", 2024, &spec, &all), object("shop", "good", 2025, &to(json!([])), &good)];
        let seen = seen(RouteKind::InterceptorRoute, &routes);
        assert_eq!(seen.count, 2);
        assert_eq!(troubles(&seen), [("shop/bad".to_owned(), "there is no Service shop/cart; no workload")]);
    }

    #[test]
    fn a_gateway_that_speaks_beside_kedas_ready_is_heard() {
        let spec = to(json!([{"hosts": ["a.example.com"]}]));
        let all = json!([
            {"type": "Ready", "status": "True", "reason": "Reconciled", "message": "InterceptorRoute reconciled"},
            {"type": "RouseReady", "status": "False", "reason": "Invalid", "message": "no such thing"},
        ]);
        let seen = seen(RouteKind::InterceptorRoute, &[object("shop", "bad", 2024, &spec, &all)]);
        assert_eq!(troubles(&seen), [("shop/bad".to_owned(), "no such thing")]);
    }

    #[test]
    fn an_invalid_route_is_reported_without_a_status() {
        let route = object("shop", "invalid", 2024, &json!({"rules": 7}), &Value::Null);
        let seen = seen(RouteKind::InterceptorRoute, &[route]);
        assert!(troubles(&seen)[0].1.contains("spec.rules"), "{seen:?}");
    }

    #[test]
    fn of_an_httpscaledobject_the_gateways_words_are_read_and_kedas() {
        let spec = json!({"hosts": ["a.example.com"],
            "scaleTargetRef": {"name": "cart", "kind": "Deployment", "apiVersion": "apps/v1", "service": "cart", "port": 80}});
        let cases = [
            (json!([{"type": "Ready", "status": "True", "message": "Rouse: serving"}]), None),
            (
                json!([{"type": "Ready", "status": "True", "message": "Rouse: no workload"}]),
                Some("no workload"),
            ),
            (json!([{"type": "Ready", "status": "False", "message": "by KEDA"}]), Some("by KEDA")),
            (json!([{"type": "Ready", "status": "True", "message": "finished"}]), None),
            (json!([{"type": "Ready", "status": "False"}]), Some("Ready")),
            (json!([{"type": "RouseReady", "status": "True", "message": "Rouse: serving"}]), None),
            (
                json!([{"type": "RouseReady", "status": "True", "message": "Rouse: no workload"}]),
                Some("no workload"),
            ),
            (json!([{"type": "RouseReady", "status": "False", "message": "Rouse: bad"}]), Some("bad")),
        ];
        for (conditions, expected) in cases {
            let route = object("shop", "old", 2024, &spec, &conditions);
            let seen = seen(RouteKind::HttpScaledObject, &[route]);
            assert_eq!(troubles(&seen).first().map(|(_, words)| *words), expected, "{conditions}");
        }
    }

    #[test]
    fn a_host_that_two_namespaces_claim_belongs_to_the_older() {
        let routes = [
            object(
                "late",
                "b",
                2025,
                &to(json!([{"hosts": ["a.example.com", "own.example.com"]}])),
                &json!([]),
            ),
            object("shop", "a", 2024, &to(json!([{"hosts": ["A.example.com"]}])), &json!([])),
            object(
                "shop",
                "c",
                2026,
                &to(json!([{"hosts": ["a.example.com"], "paths": [{"value": "/c"}]}])),
                &json!([]),
            ),
        ];
        let seen = seen(RouteKind::InterceptorRoute, &routes);
        assert_eq!(reported(&seen), [("a.example.com".to_owned(), "shop/a".to_owned(), "late/b".to_owned())]);
    }

    #[test]
    fn the_same_rule_twice_in_one_namespace_is_reported_and_a_different_one_is_not() {
        let way = |paths: Value, headers: Value| {
            to(json!([{"hosts": ["a.example.com"], "paths": paths, "headers": headers}]))
        };
        let api = || json!([{"value": "/api"}]);
        let routes = [
            object("shop", "one", 2024, &way(api(), json!([])), &json!([])),
            object("shop", "two", 2025, &way(api(), json!([])), &json!([])),
            object("shop", "three", 2026, &way(api(), json!([{"name": "x-canary"}])), &json!([])),
            object("shop", "four", 2026, &way(json!([]), json!([])), &json!([])),
        ];
        let seen = seen(RouteKind::InterceptorRoute, &routes);
        assert_eq!(
            reported(&seen),
            [("a.example.com/api".to_owned(), "shop/one".to_owned(), "shop/two".to_owned())]
        );
    }
}
