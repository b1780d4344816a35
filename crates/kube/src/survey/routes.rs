//! The routes of a cluster, and what is the matter with them: by their own words, and by each other's.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use serde_json::Value;

use super::{Asker, Unseen};
use crate::api::Kind;
use crate::objects::Service;
use crate::route::book::Book;
use crate::route::claims::{Claimant, HostRules, Ledger};
use crate::route::hosts::{ANY, overlap};
use crate::route::record::Claimed;
use crate::route::spec::{RouteKey, RouteKind, RouteObject, RouteSpec};
use crate::service::{Holder, ServiceFacts, Wanted};

/// The routes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RoutesSeen {
    /// How many there are.
    pub count: usize,
    /// Those that something is the matter with, by name.
    pub troubled: Vec<Troubled>,
    /// Hosts that several claim, by name.
    pub contested: Vec<Contested>,
    /// The objects that routes and their Services name.
    pub named: Vec<Named>,
}

/// An object that a route or its Service names, in its own namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named {
    /// `configmaps` or `secrets`.
    pub resource: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A route that something is the matter with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Troubled {
    /// Which.
    pub route: RouteKey,
    /// What, in words.
    pub words: String,
}

/// A host that several claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contested {
    /// The host, with a path if only that is contested.
    pub host: String,
    /// Who has it.
    pub owner: RouteKey,
    /// Who does not.
    pub others: Vec<RouteKey>,
}

/// Looks at all routes in `namespace`, or everywhere.
pub(super) async fn look(asker: &Asker<'_>, namespace: Option<&str>) -> Result<RoutesSeen, Unseen> {
    let mut book = Book::default();
    let kinds =
        [(RouteKind::InterceptorRoute, Kind::ROUTE), (RouteKind::HttpScaledObject, Kind::SCALED_HTTP)];
    for (route, kind) in kinds {
        let objects: Vec<RouteObject> = asker.list(kind.path(namespace), None).await?;
        book.replace(route, &objects);
    }
    let mut seen = judge(&book);
    let services = book.services();
    if !services.is_empty() {
        // Whoever may not see Services is not told what these name; what they may do themselves is another question.
        let all: Vec<Service> = asker.list(Kind::SERVICE.path(namespace), None).await.unwrap_or_default();
        let facts = all.into_iter().filter_map(|service| ServiceFacts::new(service).ok());
        for service in facts.filter(|service| services.contains(&service.id)) {
            seen.named.extend(service.tls.wanted().map(named));
        }
    }
    seen.named.sort();
    seen.named.dedup();
    Ok(seen)
}

fn named(wanted: &Wanted) -> Named {
    let resource = match wanted.kind {
        Holder::ConfigMap => Kind::CONFIG_MAP.plural,
        Holder::Secret => Kind::SECRET.plural,
    };
    Named { resource, namespace: wanted.namespace.to_string(), name: wanted.name.to_string() }
}

fn judge(book: &Book) -> RoutesSeen {
    let mut troubled = Vec::new();
    for (key, entry) in book.entries() {
        let mut words = entry.faults.clone();
        for said in entry.conditions.iter().filter_map(|condition| trouble(key.kind, condition)) {
            // `Ready` says again what the others say.
            if !words.iter().any(|known| said.contains(&**known) || known.contains(&*said)) {
                words.push(said);
            }
        }
        if !words.is_empty() {
            troubled.push(Troubled { route: key.clone(), words: words.join("; ") });
        }
    }
    let body = |(namespace, name): &(Arc<str>, Arc<str>)| Named {
        resource: Kind::CONFIG_MAP.plural,
        namespace: namespace.to_string(),
        name: name.to_string(),
    };
    RoutesSeen {
        count: book.entries().count(),
        troubled,
        contested: lost(book).into_iter().chain(same_ways(&book.good())).collect(),
        named: book.config_maps().iter().map(body).collect(),
    }
}

/// What a status condition says is wrong.
fn trouble(route: RouteKind, condition: &Value) -> Option<String> {
    let text = |field: &str| condition.get(field).and_then(Value::as_str).unwrap_or_default();
    let (kind, message) = (text("type"), text("message"));
    let wrong = match (kind, text("status")) {
        // Where `Ready` is somebody else's, the gateway's own is called `RouseReady`.
        ("Ready" | "RouseReady" | "Accepted", "False") => true,
        // Of these, only one type says what the gateway has to say, and begins so.
        ("Ready" | "RouseReady", "True") if route == RouteKind::HttpScaledObject => {
            message.strip_prefix("Rouse: ").is_some_and(|said| said != "serving")
        }
        // What is the matter with a route is a condition with itself as its reason.
        (kind, "True") => !kind.is_empty() && kind == text("reason"),
        _ => false,
    };
    let message = message.strip_prefix("Rouse: ").unwrap_or(message);
    wrong.then(|| if message.is_empty() { kind.to_owned() } else { message.to_owned() })
}

/// What two routes must have in common for one of them to get nothing.
type Way<'a> = (&'a str, &'a str, &'a str, &'a [(HeaderName, Option<HeaderValue>)]);

/// Hosts that routes claim and do not get, by the claims that are recorded.
fn lost(book: &Book) -> Vec<Contested> {
    // What the gateway's own settings say about hosts is not known here.
    let rules = HostRules::default();
    let mut claimants = book.claimants();
    let owners = Ledger::default().settle(&claimants, &rules, Claimed(i64::MAX));
    claimants.sort_by_key(|route| (route.created, route.key));
    let mut all: BTreeMap<&str, Contested> = BTreeMap::new();
    for route in &claimants {
        for host in route.hosts {
            let Some(owner) = owners.keeps_out(&route.key.namespace, host) else { continue };
            let has = |other: &&Claimant<'_>| {
                other.key.namespace == *owner && other.hosts.iter().any(|theirs| overlap(theirs, host))
            };
            let Some(owner) = claimants.iter().find(has) else { continue };
            let fresh = || Contested { host: host.to_string(), owner: owner.key.clone(), others: Vec::new() };
            all.entry(host).or_insert_with(fresh).others.push(route.key.clone());
        }
    }
    all.into_values().collect()
}

/// The same way in, by several routes of one namespace: the oldest has it.
fn same_ways(routes: &[Arc<RouteSpec>]) -> Vec<Contested> {
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
        (!others.is_empty()).then(|| Contested {
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

    fn seen(kind: RouteKind, objects: &[RouteObject]) -> RoutesSeen {
        let mut book = Book::default();
        book.replace(kind, objects);
        judge(&book)
    }

    fn troubles(seen: &RoutesSeen) -> Vec<(String, &str)> {
        seen.troubled.iter().map(|troubled| (troubled.route.to_string(), &*troubled.words)).collect()
    }

    fn told(seen: &RoutesSeen) -> Vec<(String, String, String)> {
        let others = |contested: &Contested| {
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
            {"type": "Accepted", "status": "True", "reason": "Valid", "message": "every field is understood"},
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
    fn a_route_that_nobody_can_read_is_told_without_any_status() {
        let route = object("shop", "odd", 2024, &json!({"rules": 7}), &Value::Null);
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
        assert_eq!(told(&seen), [("a.example.com".to_owned(), "shop/a".to_owned(), "late/b".to_owned())]);
    }

    #[test]
    fn the_same_way_in_twice_in_one_namespace_is_told_and_a_different_one_is_not() {
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
            told(&seen),
            [("a.example.com/api".to_owned(), "shop/one".to_owned(), "shop/two".to_owned())]
        );
    }
}
