//! Compiles valid route objects, Services and `ConfigMap`s into plans for the data plane, and findings for the status.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use rouse_core::endpoint::ServiceId;
use rouse_core::routing_mode::RoutingMode;

use super::claim_record::ClaimRecord;
use super::claims::Owners;
use super::hosts::Conflict;
use crate::objects::route::{
    BodySpec, ResponseSpec, RouteKey, RouteSpec, RuleSpec, StaticMode, StaticSpec, TargetSpec,
};
use crate::objects::service_summary::{PortFault, ResolvedPort, ServiceSummary, TlsFacts};

/// A compiled route, ready for the route table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutePlan {
    /// What its object says: timeouts, limits, mode.
    pub spec: Arc<RouteSpec>,
    /// Its rules, with the hosts that its namespace owns. Each has hosts; `*` is any.
    pub rules: Vec<RuleSpec>,
    /// The port that it leads to, or why there is none.
    pub target: Result<ResolvedPort, PortFault>,
    /// Where its requests go when no pod was ready in time.
    pub fallback: Option<Result<ResolvedPort, PortFault>>,
    /// The response that is sent at once instead of holding the request.
    pub placeholder: Option<ResponsePlan>,
    /// The response to requests beyond the limit of waiting ones.
    pub overflow: Option<ResponsePlan>,
    /// Requests that are answered without a pod. Each rule names at least one host.
    pub statics: Vec<StaticPlan>,
}

/// Requests that are answered without a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticPlan {
    /// The rules that such a request matches.
    pub rules: Vec<RuleSpec>,
    /// The response.
    pub response: ResponsePlan,
    /// Whether it applies always, or only while there is no ready pod.
    pub mode: StaticMode,
}

/// A response that needs no pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponsePlan {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Its body; empty if the `ConfigMap` it should come from is not there or cannot be read.
    pub body: Arc<str>,
}

/// What plans depend on besides routes.
pub trait PlanInputs {
    /// The Service, if there is one.
    fn service(&self, id: &ServiceId) -> Option<Arc<ServiceSummary>>;
    /// The entry of a `ConfigMap`, if there is one.
    fn body(&self, namespace: &str, name: &str, key: Option<&str>) -> Option<Arc<str>>;
    /// The TLS settings of a Service; the same `Arc` as long as they do not change.
    fn tls(&self, service: &ServiceSummary) -> Arc<TlsFacts>;
    /// Whether the Service's `ClusterIP` must not be dialled, since it leads to endpoints that get no traffic from us.
    fn blocks_cluster_ip(&self, _service: &ServiceId) -> bool {
        false
    }
    /// Why there is no such entry; `None`: it was not read yet.
    fn no_body(&self, namespace: &str, name: &str, _key: Option<&str>) -> Option<String> {
        Some(format!("there is no ConfigMap {namespace}/{name}"))
    }
    /// The former plan of the route.
    fn former(&self, _route: &RouteSpec) -> Option<Arc<RoutePlan>> {
        None
    }
    /// Whether requests go to pods or to the Service's address where their route does not say.
    fn direct(&self) -> RoutingMode {
        RoutingMode::Always
    }
}

/// What was found about one route object, for its status.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    /// What is wrong with its newest version.
    pub faults: Vec<String>,
    /// An older version serves, since the newest is bad.
    pub outdated: bool,
    /// Hosts that it claims and does not get.
    pub conflicts: Vec<Conflict>,
    /// Hosts that it claims and gets, each with the time of its claim.
    pub claims: ClaimRecord,
    /// Why its target cannot be used.
    pub target: Option<PortFault>,
    /// Why its fallback cannot be used.
    pub fallback: Option<PortFault>,
    /// Bodies that are missing, and why.
    pub bodies: Vec<String>,
    /// There are bodies that were not read yet. Their responses are what they were before.
    pub unseen: bool,
    /// Why TLS to its Services is not possible as they ask.
    pub tls: BTreeSet<String>,
    /// Settings of its Service that have no effect.
    pub ignored: Vec<&'static str>,
    /// Invalid annotations of its Service that have no effect.
    pub invalid_annotations: Vec<String>,
    /// Its Service allows endpoints without a pod in a namespace that the operator does not list.
    pub unlisted: bool,
    /// Its Services whose `ClusterIP` would be dialled and is not, since it leads to endpoints that are refused.
    pub blocked_cluster_ips: BTreeSet<ServiceId>,
    /// Why its workload was not found.
    pub no_scale_target: Option<String>,
    /// Why its last wake failed.
    pub wake_failure: Option<String>,
    /// Why its last wake failed, if waiting does not help: requests are refused.
    pub start_failure: Option<String>,
    /// Which ready pods refuse connections.
    pub unreachable: Option<String>,
}

/// Compiles all routes. `found` gets the findings of each.
pub fn compile(
    routes: &[Arc<RouteSpec>],
    owners: &Owners<'_>,
    inputs: &dyn PlanInputs,
    mut found: impl FnMut(&RouteKey, Findings),
) -> Vec<Arc<RoutePlan>> {
    let mut plans = Vec::with_capacity(routes.len());
    for route in routes {
        let mut findings = Findings::default();
        let plan = one(route, owners, inputs, &mut findings);
        found(&route.key, findings);
        plans.push(Arc::new(plan));
    }
    plans
}

/// Plans for the rules of faulty routes that no good version serves: their requests are refused instead of going to a
/// wider pattern. `found` gets the hosts that each of them does not get.
pub fn refuse(
    unserved: &[Arc<RouteSpec>],
    owners: &Owners<'_>,
    mut found: impl FnMut(&RouteKey, Vec<Conflict>),
) -> Vec<Arc<RoutePlan>> {
    let mut plans = Vec::with_capacity(unserved.len());
    for route in unserved {
        let mut conflicts = Vec::new();
        let allowed = |rule: &RuleSpec| owners.allowed(&route.key.namespace, rule, &mut conflicts);
        let rules: Vec<RuleSpec> = route.rules.iter().filter_map(allowed).collect();
        found(&route.key, conflicts);
        if !rules.is_empty() {
            let target = Err(PortFault::Faulty(route.key.to_string()));
            plans.push(Arc::new(RoutePlan {
                spec: Arc::clone(route),
                rules,
                target,
                fallback: None,
                placeholder: None,
                overflow: None,
                statics: Vec::new(),
            }));
        }
    }
    plans
}

fn one(
    route: &Arc<RouteSpec>,
    owners: &Owners<'_>,
    inputs: &dyn PlanInputs,
    findings: &mut Findings,
) -> RoutePlan {
    let namespace = &*route.key.namespace;
    let any = [RuleSpec::default()];
    let rules = if route.rules.is_empty() { &any[..] } else { &route.rules };
    let mut allowed = |rule: &RuleSpec| owners.allowed(namespace, rule, &mut findings.conflicts);
    let rules: Vec<RuleSpec> = rules.iter().filter_map(&mut allowed).collect();
    // A static rule without hosts is for the hosts of the route: for any host it would answer for other routes.
    let own: BTreeSet<Arc<str>> = rules.iter().flat_map(|rule| rule.hosts.iter().cloned()).collect();
    let own: Vec<Arc<str>> = own.into_iter().collect();
    let mut statics: Vec<(Vec<RuleSpec>, &StaticSpec)> = Vec::new();
    for stat in &route.static_routes {
        let whole = [RuleSpec::default()];
        let given = if stat.rules.is_empty() { &whole[..] } else { &stat.rules };
        let settled = given.iter().filter_map(|rule| {
            let inherits = rule.hosts.is_empty() && !own.is_empty();
            let inherited = || RuleSpec { hosts: own.clone(), ..rule.clone() };
            if rule.hosts.is_empty() { inherits.then(inherited) } else { allowed(rule) }
        });
        statics.push((settled.collect(), stat));
    }
    let mut respond = |response: &ResponseSpec, before: &dyn Fn(&RoutePlan) -> Option<ResponsePlan>| {
        let Some(body) = body(&response.body, namespace, inputs) else {
            findings.unseen = true;
            return before(&*inputs.former(route)?);
        };
        let body = body.unwrap_or_else(|words| {
            findings.bodies.push(words);
            Arc::default()
        });
        Some(ResponsePlan { status: response.status, headers: response.headers.clone(), body })
    };
    let statics = statics.into_iter().filter_map(|(rules, stat)| {
        let same = |former: &&StaticPlan| former.rules == rules;
        let before = |plan: &RoutePlan| Some(plan.statics.iter().find(same)?.response.clone());
        let response = respond(&stat.response, &before)?;
        Some(StaticPlan { rules, response, mode: stat.mode })
    });
    let statics = statics.collect();
    let cold = &route.cold_start;
    let placeholder = cold.placeholder.as_ref();
    let placeholder = placeholder.and_then(|response| respond(response, &|plan| plan.placeholder.clone()));
    let overflow = cold.overflow.as_ref();
    let overflow = overflow.and_then(|response| respond(response, &|plan| plan.overflow.clone()));
    let target = resolve(&route.target, inputs);
    let fallback = cold.fallback.as_ref().map(|target| resolve(target, inputs));
    add_target_findings(route, &target, fallback.as_ref(), inputs, findings);
    RoutePlan { spec: Arc::clone(route), rules, target, fallback, placeholder, overflow, statics }
}

/// Adds what is wrong with the Services of a route, and which settings of its Service have no effect.
fn add_target_findings(
    route: &RouteSpec,
    target: &Result<ResolvedPort, PortFault>,
    fallback: Option<&Result<ResolvedPort, PortFault>>,
    inputs: &dyn PlanInputs,
    findings: &mut Findings,
) {
    findings.target = target.as_ref().err().cloned();
    findings.fallback = fallback.and_then(|fallback| fallback.as_ref().err().cloned());
    let resolved = [Some(target), fallback].into_iter().flatten().flatten();
    let faulty =
        |port: &ResolvedPort| Some(format!("Service {}: {}", port.service, port.tls.fault.as_ref()?));
    findings.tls = resolved.filter_map(faulty).collect();
    let direct = route.direct.unwrap_or_else(|| inputs.direct());
    let blocks = |port: &ResolvedPort| inputs.blocks_cluster_ip(&port.service);
    let blocked = target.as_ref().ok().filter(|port| direct != RoutingMode::Always && blocks(port));
    // The fallback's address is dialled in any mode while no pod of it is known.
    let more = fallback.and_then(|port| port.as_ref().ok()).filter(|port| blocks(port));
    findings.blocked_cluster_ips = blocked.into_iter().chain(more).map(|port| port.service.clone()).collect();
    let Some(service) = inputs.service(&route.target.service) else { return };
    findings.invalid_annotations.clone_from(&service.invalid);
    // Connections to the ClusterIP honour these settings of the Service.
    if direct != RoutingMode::Disabled || blocked.is_some() {
        findings.ignored.clone_from(&service.ignored);
    }
}

fn resolve(target: &TargetSpec, inputs: &dyn PlanInputs) -> Result<ResolvedPort, PortFault> {
    let service = inputs.service(&target.service);
    let service = service.ok_or_else(|| PortFault::NoService(target.service.clone()))?;
    let mut port = service.resolve(&target.port, inputs.tls(&service))?;
    if inputs.blocks_cluster_ip(&target.service) {
        // Without a ClusterIP, requests go to pods, which are checked one by one.
        port.cluster_ips = Arc::default();
    }
    Ok(port)
}

/// The text of a body, or why there is none; `None` if it was not read yet.
fn body(body: &BodySpec, namespace: &str, inputs: &dyn PlanInputs) -> Option<Result<Arc<str>, String>> {
    match body {
        BodySpec::Text(text) => Some(Ok(Arc::clone(text))),
        BodySpec::ConfigMap { name, key } => match inputs.body(namespace, name, key.as_deref()) {
            Some(text) => Some(Ok(text)),
            None => inputs.no_body(namespace, name, key.as_deref()).map(Err),
        },
    }
}
