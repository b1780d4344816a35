//! What `rouse controller --dry-run`, `rouse check` and the admin API show: all targets and routes, as values.

use std::collections::BTreeMap;
use std::sync::Arc;

use rouse_core::endpoint::ServiceId;
use rouse_core::scale::{Autoscaler, IdleExplanation};
use rouse_core::time::Moment;
use serde::Serialize;

use super::AutoscaleController;
use super::state::AutoscaleState;
use super::target::{Management, TargetKey};
use super::target_state::{DecisionStatus, TargetState, is_load_unknown};
use crate::objects::route::RouteSpec;

/// Everything that the autoscaler knows, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScalingView {
    /// Whether this process writes.
    pub leads: bool,
    /// The gateways that serve and the xds replicas, each with whether its load is known.
    pub reporters: BTreeMap<String, bool>,
    /// All workloads that routes lead to.
    pub targets: Vec<TargetView>,
    /// Routes without a workload.
    pub without_target: Vec<UnscaledRoute>,
}

/// A workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TargetView {
    /// Its namespace.
    pub namespace: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its routes, as `Kind/name`, the oldest first.
    pub routes: Vec<String>,
    /// The Services of these routes, whose load is summed.
    pub services: Vec<String>,
    /// Whether Rouse scales it: `managed`, `not_enabled`, `turned_off`, `owned` or `bad_policy`.
    pub state: &'static str,
    /// Why it does not.
    pub because: Option<String>,
    /// By which policy.
    pub policy: Option<String>,
    /// Requested and ready pods, as last seen.
    pub pods: Option<(u32, u32)>,
    /// Why it cannot be seen.
    pub missing: Option<String>,
    /// The last decision.
    pub decision: Option<DecisionView>,
    /// Why the decision is not carried out yet: a code and a sentence.
    pub blocked: Option<(&'static str, String)>,
    /// The number of pods that is, or would be, written.
    pub write: Option<u32>,
}

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DecisionView {
    /// Requested pods at that time.
    pub replicas: u32,
    /// Desired pods.
    pub desired: u32,
    /// The rule that decided.
    pub reason: &'static str,
    /// The same as a sentence.
    pub sentence: String,
}

/// A route without a workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnscaledRoute {
    /// Its namespace.
    pub namespace: String,
    /// Its kind and name.
    pub route: String,
    /// Why it has none.
    pub because: String,
}

/// The state, as values.
pub(super) fn view(state: &AutoscaleState, now: Moment, leads: bool) -> ScalingView {
    let table = state.fleet.loads();
    let reporters = table.listed().map(|reporter| (reporter.to_string(), table.is_fresh(now, reporter)));
    let without = state.workloads.iter().filter_map(|(route, found)| {
        Some(UnscaledRoute {
            namespace: route.namespace.to_string(),
            route: format!("{}/{}", route.kind.name(), route.name),
            because: found.as_ref().err()?.clone(),
        })
    });
    ScalingView {
        leads,
        reporters: reporters.collect(),
        targets: state.targets.iter().map(|(key, target)| target_view(key, target)).collect(),
        without_target: without.collect(),
    }
}

/// The targets that a service leads to.
pub(super) fn explain(
    state: &AutoscaleState,
    service: &ServiceId,
) -> Vec<(TargetView, Option<IdleExplanation>)> {
    let led = state.targets.iter().filter(|(_, target)| target.spec.services.contains(service));
    let explained = led.map(|(key, target)| {
        let idle = state.fleet.scaler(key).and_then(Autoscaler::explain_idle);
        (target_view(key, target), idle)
    });
    explained.collect()
}

fn target_view(key: &TargetKey, target: &TargetState) -> TargetView {
    let spec = &target.spec;
    let route = |route: &Arc<RouteSpec>| format!("{}/{}", route.key.kind.name(), route.key.name);
    let decision = target.decision.as_ref().map(|decision| DecisionView {
        replicas: decision.replicas,
        desired: decision.desired,
        reason: decision.reason.code(),
        sentence: decision.reason.to_string(),
    });
    TargetView {
        namespace: key.namespace.to_string(),
        kind: key.kind.to_string(),
        name: key.name.to_string(),
        routes: spec.routes.iter().map(route).collect(),
        services: spec.services.iter().map(ToString::to_string).collect(),
        state: state_code(&spec.management),
        because: because(&spec.management),
        policy: spec.managed().map(ToString::to_string),
        pods: target.observed.as_ref().map(|seen| (seen.replicas, seen.ready)),
        missing: target.missing.clone(),
        decision,
        blocked: blocked(target),
        write: match target.decision_status {
            DecisionStatus::Write(pods) => Some(pods),
            DecisionStatus::UpToDate | DecisionStatus::LeftToGateways | DecisionStatus::Blocked(_) => None,
        },
    }
}

fn state_code(management: &Management) -> &'static str {
    match management {
        Management::Managed(_) => "managed",
        Management::NotEnabled => "not_enabled",
        Management::TurnedOff(_) => "turned_off",
        Management::OwnedByOther(_) => "owned",
        Management::BadPolicy(_) => "bad_policy",
    }
}

fn because(management: &Management) -> Option<String> {
    match management {
        Management::Managed(_) => None,
        Management::NotEnabled => Some("no route asks for it by rouse.dev/autoscale: \"on\"".to_owned()),
        Management::TurnedOff(by) => Some(format!("rouse.dev/autoscale of route {} turns it off", by.name)),
        Management::OwnedByOther(owner) => Some(format!("{owner} scales it")),
        Management::BadPolicy(why) => Some(why.clone()),
    }
}

/// Why a target keeps its pods although the load would allow, or need, another number.
fn blocked(target: &TargetState) -> Option<(&'static str, String)> {
    if let DecisionStatus::Blocked(block) = &target.decision_status {
        return Some((block.code(), block.to_string()));
    }
    let reason = target.decision.as_ref().map(|decision| &decision.reason)?;
    is_load_unknown(reason).then(|| (reason.code(), reason.to_string()))
}

/// Numbers for metrics.
pub(super) struct Counts {
    pub(super) leads: bool,
    pub(super) targets: Vec<(&'static str, usize)>,
    pub(super) blocked: Vec<(&'static str, usize)>,
    pub(super) reporters: Vec<(&'static str, usize)>,
    pub(super) envoys: Vec<(&'static str, usize)>,
}

impl AutoscaleController {
    pub(super) fn counts(&self) -> Counts {
        let (state, now) = (self.state(), self.now());
        let mut targets: BTreeMap<&'static str, usize> = BTreeMap::new();
        let mut reasons: BTreeMap<&'static str, usize> = BTreeMap::new();
        for target in state.targets.values() {
            *targets.entry(state_code(&target.spec.management)).or_default() += 1;
            if let Some((reason, _)) = blocked(target) {
                *reasons.entry(reason).or_default() += 1;
            }
        }
        let loads = state.fleet.loads();
        let silent = loads.listed().filter(|reporter| !loads.is_fresh(now, reporter)).count();
        let heard = loads.listed().count() - silent;
        let mute = state.fleet.silent_envoys().count;
        Counts {
            leads: self.leadership.may_write(),
            targets: targets.into_iter().collect(),
            blocked: reasons.into_iter().collect(),
            reporters: vec![("heard", heard), ("silent", silent)],
            envoys: vec![("heard", state.envoys.table.len().saturating_sub(mute)), ("silent", mute)],
        }
    }
}
