//! What `rouse controller` and `rouse up` say of the scaling of one service, as JSON: what is scaled, the last decision and what
//! holds it up, and what the idle policy has learned.

use std::time::Duration;

use rouse_core::scale::{IdleExplanation, SHORTEST_GAP};
use rouse_kube::autoscale::TargetView;
use rouse_local::engine::{AppStatus, PodStage};
use serde::{Deserialize, Serialize};

/// The scaling of one workload, or of one app of `rouse up`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScalingExplanation {
    /// A workload: its kind, name and namespace. An app: its name.
    pub workload: String,
    /// The routes that lead to a workload.
    pub routes: Vec<String>,
    /// Whether Rouse scales it: `managed`, or why not.
    pub state: String,
    /// Why Rouse does not scale it.
    pub because: Option<String>,
    /// By which policy Rouse scales it.
    pub policy: Option<String>,
    /// Requested and ready pods, as last seen.
    pub pods: Option<(u32, u32)>,
    /// The number of pods of the last decision, and the rule that decided it, as a sentence.
    pub decision: Option<(u32, String)>,
    /// Why the decision is not carried out yet.
    pub blocked: Option<String>,
    /// What the idle policy has learned, if it learns.
    pub idle: Option<LearnedIdle>,
}

/// What an idle policy has learned. All times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearnedIdle {
    /// Whether it has seen enough gaps. Otherwise it does what the fixed policy does.
    pub has_learned: bool,
    /// How many gaps between requests it remembers; old ones count as less than one.
    pub seen: f32,
    /// How many it needs.
    pub needed: f32,
    /// The gaps that it remembers.
    pub gaps: Vec<LearnedGap>,
    /// How long a pod takes to become ready.
    pub start: f64,
    /// What a cold start is worth, in time of an idle pod.
    pub cold_start_cost: f64,
    /// How long a pod stays after the last request; 0: it goes at once.
    pub stay: f64,
    /// After which time without a request a pod is started ahead, and until when it stays.
    pub back: Option<(f64, f64)>,
    /// What a gap costs on average, in time of an idle pod.
    pub cost: f64,
    /// What it would cost with the fixed policy.
    pub fixed_cost: f64,
}

/// Gaps of similar length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearnedGap {
    /// The shortest, in seconds.
    pub from: f64,
    /// The longest, in seconds.
    pub to: f64,
    /// How many; old ones count as less than one.
    pub count: f32,
}

impl ScalingExplanation {
    /// That of a workload.
    pub(crate) fn of_workload((target, idle): (TargetView, Option<IdleExplanation>)) -> Self {
        let TargetView {
            namespace, kind, name, routes, state, because, policy, pods, decision, blocked, ..
        } = target;
        Self {
            workload: format!("{kind} {name} in {namespace}"),
            routes,
            state: state.to_owned(),
            because: because.or(target.missing),
            policy,
            pods,
            decision: decision.map(|decision| (decision.desired, decision.sentence)),
            blocked: blocked.map(|(_, sentence)| sentence),
            idle: idle.map(LearnedIdle::from),
        }
    }

    /// That of an app of `rouse up`.
    pub(super) fn of_app(app: AppStatus) -> Self {
        let ready = app.pods.iter().filter(|pod| pod.phase == PodStage::Ready).count();
        Self {
            workload: format!("app {}", app.service.name()),
            routes: Vec::new(),
            state: "managed".to_owned(),
            because: None,
            policy: Some(app.policy),
            pods: Some((
                u32::try_from(app.pods.len()).unwrap_or(u32::MAX),
                u32::try_from(ready).unwrap_or(u32::MAX),
            )),
            decision: Some((app.desired, app.reason)),
            blocked: app.trouble,
            idle: app.idle.map(LearnedIdle::from),
        }
    }
}

impl From<IdleExplanation> for LearnedIdle {
    fn from(idle: IdleExplanation) -> Self {
        let seconds = |time: Duration| time.as_secs_f64();
        let stay = Some(idle.plan.stay).filter(|stay| *stay > SHORTEST_GAP).unwrap_or_default();
        Self {
            has_learned: idle.has_learned(),
            seen: idle.seen,
            needed: idle.needed,
            gaps: idle
                .gaps
                .iter()
                .map(|(from, to, count)| LearnedGap { from: seconds(*from), to: seconds(*to), count: *count })
                .collect(),
            start: seconds(idle.start_time),
            cold_start_cost: seconds(idle.cold_start_cost),
            stay: seconds(stay),
            back: idle.plan.back.map(|window| (seconds(window.from), seconds(window.to))),
            cost: seconds(idle.cost),
            fixed_cost: seconds(idle.fixed_cost),
        }
    }
}
