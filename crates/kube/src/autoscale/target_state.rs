//! The state of one target: what was observed and decided, and what becomes of the decision.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::scale::{Decision, ObservedTarget, Owner, ScaleReason};
use rouse_core::time::Moment;

use super::target::TargetSpec;

/// The version of a workload that a decision is based on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScaleToken(pub(super) Arc<str>);

/// A workload as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Observation {
    /// Requested pods.
    pub(super) replicas: u32,
    /// Pods that are Ready.
    pub(super) ready: u32,
    pub(super) version: Arc<str>,
    /// When it was seen.
    pub(super) at: Moment,
}

impl Observation {
    pub(super) fn target(&self) -> ObservedTarget<ScaleToken> {
        ObservedTarget {
            replicas: self.replicas,
            ready: self.ready,
            owner: Owner::Rouse,
            token: ScaleToken(Arc::clone(&self.version)),
        }
    }

    /// Whether `other` is an earlier version of the same workload.
    pub(super) fn outdates(&self, other: &str) -> bool {
        let numbers = self.version.parse::<u64>().ok().zip(other.parse::<u64>().ok());
        numbers.is_some_and(|(ours, theirs)| theirs < ours)
    }
}

/// What becomes of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DecisionStatus {
    /// The number of pods stays.
    #[default]
    UpToDate,
    /// It is at zero, and requests need it: a gateway wakes it.
    LeftToGateways,
    /// It is to have this number of pods. Only the leader writes that.
    Write(u32),
    /// It is to have another number of pods, but must keep its own for now.
    Blocked(BlockReason),
}

/// Why a decision is not carried out yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockReason {
    /// It is not known what else scales the workload, so nothing is scaled down. Says why.
    UnknownOwners(String),
    /// A route to it is too new for zero.
    NewRoute,
    /// Other proxies must send their requests elsewhere first.
    NotPrepared,
    /// Too many workloads are started at a time.
    WakeBudget,
    /// The API server refused the last attempt, or could not be reached. Says why.
    Failed(String),
}

impl BlockReason {
    /// The reason in metrics and views.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownOwners(_) => "unknown_owners",
            Self::NewRoute => "new_route",
            Self::NotPrepared => "not_prepared",
            Self::WakeBudget => "wake_budget",
            Self::Failed(_) => "failed",
        }
    }
}

impl fmt::Display for BlockReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOwners(why) => {
                write!(
                    f,
                    "not scaled down, since it is not known whether an HPA or a ScaledObject scales it: {why}"
                )
            }
            Self::NewRoute => {
                f.write_str("not scaled to zero yet: initialCooldownPeriod of a route has not passed")
            }
            Self::NotPrepared => {
                f.write_str("not scaled to zero yet: a proxy still sends requests straight to its pods")
            }
            Self::WakeBudget => f.write_str("not started yet: too many workloads are started at a time"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// What is being done about a target. One thing at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobKind {
    /// Its scale is read.
    Read,
    /// Other proxies are asked to send their requests elsewhere.
    Prepare,
    /// The same, but load has come back: the answer does not count.
    CancelledPrepare,
    /// Its scale is written.
    Write,
}

/// The state of one target.
#[derive(Debug)]
pub(super) struct TargetState {
    pub(super) spec: TargetSpec,
    pub(super) observed: Option<Observation>,
    /// Why it cannot be observed.
    pub(super) missing: Option<String>,
    pub(super) decision: Option<Decision<ScaleToken>>,
    /// The fewest pods at the time of the decision, at any load.
    pub(super) floor: u32,
    pub(super) decision_status: DecisionStatus,
    pub(super) job: Option<JobKind>,
    /// It waits to be considered.
    pub(super) queued: bool,
    /// The last attempts that failed, one after the other.
    pub(super) failures: u32,
    /// Nothing is attempted before.
    pub(super) not_before: Option<Moment>,
    /// The last attempt failed because the workload had changed.
    pub(super) conflicted: bool,
    /// When other proxies were ready for zero.
    pub(super) prepared: Option<Moment>,
    /// They are not asked again before.
    pub(super) prepare_after: Option<Moment>,
    /// Since when it wants fewer pods than it must keep because load is unknown.
    pub(super) load_unknown_since: Option<Moment>,
}

impl TargetState {
    pub(super) fn new(spec: TargetSpec) -> Self {
        Self {
            spec,
            observed: None,
            missing: None,
            decision: None,
            floor: 0,
            decision_status: DecisionStatus::UpToDate,
            job: None,
            queued: false,
            failures: 0,
            not_before: None,
            conflicted: false,
            prepared: None,
            prepare_after: None,
            load_unknown_since: None,
        }
    }

    /// Forgets what was decided: it is not scaled any more, or cannot be seen.
    pub(super) fn forget_decision(&mut self) {
        (self.decision, self.decision_status) = (None, DecisionStatus::UpToDate);
        (self.prepared, self.load_unknown_since) = (None, None);
    }

    /// Forgets what was decided and what failed: it is decided about anew.
    pub(super) fn reset(&mut self) {
        self.forget_decision();
        (self.failures, self.not_before, self.conflicted) = (0, None, false);
        self.prepare_after = None;
    }

    /// Records a decision. Returns whether it differs from the one before in what it says.
    pub(super) fn decided(&mut self, now: Moment, decision: Decision<ScaleToken>, floor: u32) -> bool {
        let says =
            |decision: &Decision<ScaleToken>| (decision.replicas, decision.desired, decision.reason.clone());
        let same = self.decision.as_ref().is_some_and(|before| says(before) == says(&decision));
        self.load_unknown_since =
            is_load_unknown(&decision.reason).then(|| self.load_unknown_since.unwrap_or(now));
        (self.decision, self.floor) = (Some(decision), floor);
        !same
    }

    /// The number of pods to write; `None`: the present one, or the one that a gateway decides.
    pub(super) fn goal(&self) -> Result<Option<u32>, DecisionStatus> {
        let Some(decision) = self.decision.as_ref().filter(|_| self.spec.managed().is_some()) else {
            return Ok(None);
        };
        let Some(pods) = decision.change() else { return Ok(None) };
        match &decision.reason {
            _ if decision.replicas > 0 => Ok(Some(pods)),
            ScaleReason::Ahead { .. } => Ok(Some(pods)),
            // Requests at zero wake their own service, by the budget of the gateways.
            _ if self.floor == 0 => Err(DecisionStatus::LeftToGateways),
            _ => Ok(Some(self.floor)),
        }
    }

    /// An attempt failed: the next one follows after a pause that doubles each time.
    pub(super) fn back_off(&mut self, now: Moment, first: Duration, longest: Duration) -> Moment {
        let pause = first.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures += 1;
        let next = now + pause;
        self.not_before = Some(next);
        next
    }
}

/// Whether pods are kept because load is unknown.
pub(super) fn is_load_unknown(reason: &ScaleReason) -> bool {
    matches!(
        reason,
        ScaleReason::ReporterStale { .. }
            | ScaleReason::EnvoySilent { .. }
            | ScaleReason::NoReporters
            | ScaleReason::TooManyReporters
    )
}
