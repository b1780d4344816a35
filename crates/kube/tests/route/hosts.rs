//! Host ownership among routes without recorded claims, against a naive model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use rouse_core::endpoint::ServiceId;
use rouse_kube::objects::route::{
    BodySpec, ColdStartSpec, NoWakeSpec, ResponseSpec, RouteKey, RouteKind, RouteSpec, RuleSpec, ScalingSpec,
    StaticMode, StaticSpec, TargetSpec, TimeoutSpec,
};
use rouse_kube::objects::service_summary::{PortRef, ServiceSummary, TlsFacts};
use rouse_kube::routes::claim_record::{ClaimRecord, ClaimTime};
use rouse_kube::routes::claims::{Claimant, HostClaims, HostOverlap, HostRules};
use rouse_kube::routes::hosts::{self, ANY, AssignedHosts};
use rouse_kube::routes::plan::{Findings, PlanInputs, RoutePlan};

const HOSTS: [&str; 6] =
    ["a.example.com", "b.example.com", "*.example.com", ANY, "*.a.example.com", "deep.a.example.com"];

struct Nothing;

impl PlanInputs for Nothing {
    fn service(&self, _: &ServiceId) -> Option<Arc<ServiceSummary>> {
        None
    }

    fn body(&self, _: &str, _: &str, _: Option<&str>) -> Option<Arc<str>> {
        None
    }

    fn tls(&self, _: &ServiceSummary) -> Arc<TlsFacts> {
        Arc::default()
    }
}

/// A rule of some of the hosts; no hosts is any host.
fn rule(hosts: &[usize]) -> RuleSpec {
    RuleSpec { hosts: hosts.iter().map(|host| HOSTS[*host].into()).collect(), ..RuleSpec::default() }
}

fn route(
    namespace: u8,
    name: u8,
    created: u64,
    rules: &[Vec<usize>],
    stat: Option<&Vec<usize>>,
) -> Arc<RouteSpec> {
    let namespace = format!("ns{namespace}");
    let response = ResponseSpec { status: 200, headers: Vec::new(), body: BodySpec::Text("x".into()) };
    let stat = stat.map(|hosts| StaticSpec { rules: vec![rule(hosts)], response, mode: StaticMode::Always });
    Arc::new(RouteSpec {
        key: RouteKey {
            namespace: namespace.as_str().into(),
            name: format!("r{name}").into(),
            kind: RouteKind::InterceptorRoute,
        },
        created,
        rules: rules.iter().map(|hosts| rule(hosts)).collect(),
        target: TargetSpec { service: ServiceId::new(&namespace, "s").unwrap(), port: PortRef::Number(80) },
        timeouts: TimeoutSpec::default(),
        cold_start: ColdStartSpec::default(),
        static_routes: stat.into_iter().collect(),
        scaling: ScalingSpec::default(),
        direct: None,
        probing: None,
        verify_upstream: true,
        no_wake: NoWakeSpec::default(),
    })
}

/// All hosts that a route names, including "any host"; part of the naive model.
fn named(route: &RouteSpec) -> Vec<String> {
    let mut all = Vec::new();
    if route.rules.is_empty() {
        all.push(ANY.to_owned());
    }
    for rule in &route.rules {
        if rule.hosts.is_empty() {
            all.push(ANY.to_owned());
        }
        all.extend(rule.hosts.iter().map(ToString::to_string));
    }
    for rule in route.static_routes.iter().flat_map(|one| &one.rules) {
        all.extend(rule.hosts.iter().map(ToString::to_string));
    }
    all
}

/// The plans of routes without recorded claims.
fn compile(
    routes: &[Arc<RouteSpec>],
    rules: &HostRules,
    found: impl FnMut(&RouteKey, Findings),
) -> Vec<Arc<RoutePlan>> {
    let nothing = ClaimRecord::default();
    let claimed: Vec<BTreeSet<Arc<str>>> = routes.iter().map(|route| hosts::named(route)).collect();
    let claimants = routes.iter().zip(&claimed).map(|(route, hosts)| Claimant {
        key: &route.key,
        uid: "",
        created: route.created,
        hosts,
        record: &nothing,
    });
    let claimants: Vec<Claimant<'_>> = claimants.collect();
    let owners = HostClaims::default().settle(&claimants, rules, ClaimTime(0));
    rouse_kube::routes::plan::compile(routes, &owners, &Nothing, found)
}

fn overlap(one: &str, other: &str) -> bool {
    let hosts = ["a.example.com", "b.example.com", "c.example.com", "deep.a.example.com", "x.a.example.com"];
    crate::overlap(&hosts, one, other)
}

/// The namespace that the operator has assigned a host to, by the naive model: from the host itself to the widest pattern.
fn assignee(assigned: &AssignedHosts, host: &str) -> Option<String> {
    let wider = |pattern: &&str| {
        pattern.starts_with("*.")
            && *pattern != host
            && host.trim_start_matches("*.").ends_with(&pattern[1..])
    };
    let mut wider: Vec<&str> = HOSTS.into_iter().filter(|pattern| wider(pattern)).collect();
    wider.sort_by_key(|pattern| std::cmp::Reverse(pattern.len()));
    [host].into_iter().chain(wider).chain([ANY]).find_map(|it| assigned.get(it)).cloned()
}

/// The naive model: the oldest route claims first, and a later one must not overlap.
fn grants(routes: &[Arc<RouteSpec>], rules: &HostRules) -> BTreeSet<(String, String)> {
    let mut sorted: Vec<&Arc<RouteSpec>> = routes.iter().collect();
    sorted.sort_by_key(|route| (route.created, route.key.clone()));
    let mut granted: BTreeSet<(String, String)> = BTreeSet::new();
    for route in sorted {
        let namespace = route.key.namespace.to_string();
        let mut names = named(route);
        names.sort();
        for host in names {
            let fits = match assignee(&rules.assigned, &host) {
                Some(owner) => owner == namespace,
                None => !granted.iter().any(|(other, theirs)| {
                    let wild = |host: &str| host.starts_with("*.");
                    let lets = rules.overlap == HostOverlap::Allow && wild(&host) != wild(theirs);
                    let claimed = assignee(&rules.assigned, theirs).is_none();
                    *other != namespace && claimed && !lets && overlap(&host, theirs)
                }),
            };
            if fits {
                granted.insert((namespace.clone(), host));
            }
        }
    }
    granted
}

fn served(plan: &RoutePlan) -> Vec<String> {
    let statics = plan.statics.iter().flat_map(|one| &one.rules);
    plan.rules.iter().chain(statics).flat_map(|rule| rule.hosts.iter().map(ToString::to_string)).collect()
}

fn some_hosts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..HOSTS.len(), 0..3)
}

#[test]
fn a_static_rule_without_hosts_is_for_the_hosts_of_its_route() {
    let routes = [route(0, 0, 0, &[vec![0], vec![1]], Some(&Vec::new()))];
    let plans = compile(&routes, &HostRules::default(), |_, _| {});
    let hosts: Vec<&str> = plans[0].statics[0].rules[0].hosts.iter().map(|host| &**host).collect();
    assert_eq!(hosts, [HOSTS[0], HOSTS[1]], "and not for the hosts of others");
    // A route that lost its host has no static answers there either.
    let taken = AssignedHosts::from([
        (HOSTS[0].to_owned(), "ns1".to_owned()),
        (HOSTS[1].to_owned(), "ns1".to_owned()),
    ]);
    let taken = HostRules { assigned: taken, ..HostRules::default() };
    let plans = compile(&routes, &taken, |_, _| {});
    assert!(plans[0].statics[0].rules.is_empty() && plans[0].rules.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn every_host_is_served_by_its_owner_alone(
        given in proptest::collection::btree_map(
            (0..3_u8, 0..3_u8),
            (0..3_u64, proptest::collection::vec(some_hosts(), 0..3), proptest::option::of(some_hosts())),
            0..6,
        ),
        assigned in proptest::collection::btree_map(0..HOSTS.len(), 0..3_u8, 0..2),
        allow in any::<bool>(),
    ) {
        let routes: Vec<Arc<RouteSpec>> = given.iter()
            .map(|((namespace, name), (created, rules, stat))| route(*namespace, *name, *created, rules, stat.as_ref()))
            .collect();
        let assigned: AssignedHosts =
            assigned.into_iter().map(|(host, namespace)| (HOSTS[host].to_owned(), format!("ns{namespace}"))).collect();
        let rules = HostRules { assigned, overlap: if allow { HostOverlap::Allow } else { HostOverlap::Deny } };
        let granted = grants(&routes, &rules);
        let mut conflicts: BTreeMap<RouteKey, Vec<String>> = BTreeMap::new();
        let plans = compile(&routes, &rules, |key, findings| {
            conflicts.insert(key.clone(), findings.conflicts.iter().map(|one| one.host.to_string()).collect());
        });
        prop_assert_eq!(plans.len(), routes.len());
        for plan in &plans {
            let (namespace, names) = (plan.spec.key.namespace.to_string(), named(&plan.spec));
            prop_assert!(plan.rules.iter().all(|rule| !rule.hosts.is_empty()), "no rule may become one for any host");
            for host in HOSTS {
                let mine = granted.contains(&(namespace.clone(), host.to_owned()));
                let names_it = names.iter().any(|named| named == host);
                let serves = served(plan).iter().any(|served| served == host);
                prop_assert_eq!(serves, names_it && mine, "{} of {}", host, &plan.spec.key);
                let reported = conflicts[&plan.spec.key].iter().any(|reported| reported == host);
                prop_assert_eq!(reported, names_it && !mine, "{} of {}", host, &plan.spec.key);
            }
        }
    }
}
