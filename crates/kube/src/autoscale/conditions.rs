//! What the condition `Autoscaled` of a route says.

use std::time::Duration;

use rouse_core::scale::{Decision, ScaleReason};
use rouse_core::time::Moment;

use super::state::AutoscaleState;
use super::target::{AutoscaleDefault, Management, OwnerKind};
use super::target_state::{BlockReason, DecisionStatus, ScaleToken, TargetState, is_load_unknown};
use crate::objects::route::{RouteKey, RouteSpec};
use crate::routes::status::{Condition, cut};
use crate::routes::{AUTOSCALED, ONLY_WAKES};

/// A gateway that is silent for a moment is not worth a condition.
const PATIENCE: Duration = Duration::from_secs(15);

/// What a route's condition is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DesiredCondition {
    /// It is not known yet: what it says stays.
    Unchanged,
    /// The same, and it is known soon without anything new.
    Recheck,
    /// There is none: nothing concerns the route.
    Absent,
    /// This.
    Condition(Condition),
}

/// The condition of a route.
pub(super) fn said(state: &AutoscaleState, key: &RouteKey, now: Moment) -> DesiredCondition {
    let Some(route) = state.store.get(key).and_then(|entry| entry.good.as_ref()) else {
        return DesiredCondition::Absent;
    };
    match state.workloads.get(key) {
        None => DesiredCondition::Unchanged,
        Some(Err(why)) if is_enabled(route, state.default) => no("NoScaleTarget", why.clone()),
        Some(Err(_)) => DesiredCondition::Absent,
        Some(Ok(target)) => match state.targets.get(target) {
            None => DesiredCondition::Unchanged,
            Some(target) => of_target(target, route, now),
        },
    }
}

/// Whether a route without a workload would be scaled.
fn is_enabled(route: &RouteSpec, default: AutoscaleDefault) -> bool {
    route.scaling.autoscale.unwrap_or(default == AutoscaleDefault::On)
}

fn of_target(target: &TargetState, route: &RouteSpec, now: Moment) -> DesiredCondition {
    let workload = &target.spec.workload;
    match &target.spec.management {
        Management::TurnedOff(by) if route.scaling.autoscale == Some(true) => {
            let words =
                format!("rouse.dev/autoscale of route {} turns the scaling of {workload} off", by.name);
            no("TurnedOff", words)
        }
        Management::NotEnabled | Management::TurnedOff(_) => DesiredCondition::Absent,
        Management::OwnedByOther(owner) => {
            let kind = match owner.kind {
                OwnerKind::Hpa => "OwnedByHpa",
                OwnerKind::ScaledObject => "OwnedByScaledObject",
            };
            no(kind, format!("{owner} scales {workload}, {ONLY_WAKES}"))
        }
        Management::BadPolicy(why) => no("BadPolicy", why.clone()),
        Management::Managed(policy) => {
            if let Some(why) = &target.missing {
                return no("NoScaleTarget", why.clone());
            }
            match &target.decision {
                None => DesiredCondition::Unchanged,
                Some(decision) => managed(target, decision, &policy.to_string(), now),
            }
        }
    }
}

fn managed(
    target: &TargetState,
    decision: &Decision<ScaleToken>,
    policy: &str,
    now: Moment,
) -> DesiredCondition {
    let workload = &target.spec.workload;
    if let DecisionStatus::Blocked(block) = &target.decision_status {
        let kind = match block {
            BlockReason::UnknownOwners(_) => Some("BlockedByUnknownOwners"),
            BlockReason::Failed(_) => Some("BlockedByApiServer"),
            // These pass by themselves, soon.
            BlockReason::NewRoute | BlockReason::NotPrepared | BlockReason::WakeBudget => None,
        };
        return kind.map_or(DesiredCondition::Unchanged, |kind| no(kind, format!("{workload}: {block}")));
    }
    let kind = match &decision.reason {
        // Passes after a window, and happens to all routes whenever another replica leads.
        ScaleReason::WarmingUp { .. } => return DesiredCondition::Unchanged,
        reason
            if is_load_unknown(reason)
                && target.load_unknown_since.is_none_or(|since| now < since + PATIENCE) =>
        {
            return DesiredCondition::Recheck;
        }
        ScaleReason::ReporterStale { .. } => Some("BlockedBySilentGateway"),
        ScaleReason::EnvoySilent { .. } => Some("BlockedBySilentEnvoy"),
        ScaleReason::NoReporters => Some("BlockedWithoutGateways"),
        ScaleReason::TooManyReporters => Some("BlockedByTooManyGateways"),
        _ => None,
    };
    let words = format!("{workload}: {}, {policy}; {}", pods(decision.desired), decision.reason);
    match kind {
        Some(kind) => no(kind, words),
        None => DesiredCondition::Condition(Condition {
            kind: AUTOSCALED,
            holds: true,
            reason: "Scaling",
            message: cut(words),
        }),
    }
}

fn pods(count: u32) -> String {
    if count == 1 { "1 pod".to_owned() } else { format!("{count} pods") }
}

fn no(reason: &'static str, message: String) -> DesiredCondition {
    DesiredCondition::Condition(Condition { kind: AUTOSCALED, holds: false, reason, message: cut(message) })
}
