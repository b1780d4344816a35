//! Reads a `http.keda.sh/v1alpha1` `HTTPScaledObject` into a `RouteSpec`.

use std::time::Duration;

use super::shared_fields::{created, header_matches, host, path, salvaged, scaling_metric, target};
use super::{ColdStartSpec, NoWakeSpec, RouteKey, RouteKind, RouteSpec, RuleSpec, ScalingSpec, TimeoutSpec};
use crate::objects::Meta;
use crate::objects::route::field::Field;
use crate::objects::workload::Workload;

/// KEDA's defaults.
const SCALEDOWN: Duration = Duration::from_mins(5);
const PENDING: u32 = 100;

pub(super) fn read(meta: &Meta, spec: &Field<'_>) -> Option<RouteSpec> {
    let reference = spec.get("scaleTargetRef");
    let reference = if reference.is_set() {
        reference.object()
    } else {
        reference.missing("an object with name, service and port")
    };
    let led = reference.as_ref().and_then(|at| target(at, "service", meta.namespace()));
    let workload = reference.as_ref().and_then(workload);
    let rule = rule(spec);
    let timeouts = spec.get("timeouts");
    let mut timeouts = TimeoutSpec {
        readiness: timeouts.get("conditionWait").duration().or_else(|| timeouts.get("readiness").duration()),
        request: timeouts.get("request").duration(),
        response_header: timeouts.get("responseHeader").duration(),
    };
    let failover = spec.get("coldStartTimeoutFailoverRef").object();
    let fallback = failover.as_ref().and_then(|at| target(at, "service", meta.namespace()));
    if let Some(seconds) = failover.and_then(|at| at.get("timeoutSeconds").number(1, u32::MAX)) {
        timeouts.readiness = Some(Duration::from_secs(seconds.into()));
    }
    let (concurrency, rate) = scaling_metric(&spec.get("scalingMetric"));
    let pending = spec.get("targetPendingRequests").number(1, u32::MAX);
    let replicas = spec.get("replicas");
    let seconds = |name: &str| {
        let seconds = spec.get(name).number(0, u32::MAX);
        seconds.map(|seconds| Duration::from_secs(seconds.into()))
    };
    let scaling = ScalingSpec {
        target: workload,
        min: replicas.get("min").number(0, u32::MAX).unwrap_or(0),
        max: replicas.get("max").number(1, u32::MAX),
        idle_after: Some(seconds("scaledownPeriod").unwrap_or(SCALEDOWN)),
        initial_cooldown: seconds("initialCooldownPeriod"),
        concurrency: concurrency.or(pending).or(rate.is_none().then_some(PENDING)),
        rate,
        ..ScalingSpec::default()
    };
    Some(RouteSpec {
        key: RouteKey::new(RouteKind::HttpScaledObject, meta),
        created: created(meta),
        rules: vec![rule],
        target: led?,
        timeouts,
        cold_start: ColdStartSpec { fallback, ..ColdStartSpec::default() },
        static_routes: Vec::new(),
        scaling,
        direct: None,
        probing: None,
        verify_upstream: true,
        no_wake: NoWakeSpec::default(),
    })
}

/// The readable part of the rule of an invalid object.
pub(super) fn salvage(spec: &Field<'_>) -> Vec<RuleSpec> {
    salvaged(spec, "pathPrefixes", rule)
}

fn rule(spec: &Field<'_>) -> RuleSpec {
    RuleSpec {
        hosts: spec.get("hosts").list().iter().filter_map(host).collect(),
        paths: spec.get("pathPrefixes").list().iter().filter_map(path).collect(),
        headers: header_matches(&spec.get("headers")),
    }
}

/// The workload that is named, if one is.
fn workload(at: &Field<'_>) -> Option<Workload> {
    let name = at.get("name").word("a workload's name")?;
    let version = at.get("apiVersion").word("an API version like apps/v1").unwrap_or("apps/v1");
    let kind = at.get("kind").word("a kind like Deployment").unwrap_or("Deployment");
    let workload = Workload::new(version, kind, name);
    if workload.is_none() {
        at.fault(format_args!(
            "names {version} {kind} {name:?}: expected a workload like apps/v1 Deployment cart"
        ));
    }
    workload
}
