//! One reconcile pass: decisions → what is written, read or prepared now, and why the others are blocked.

use std::collections::BTreeSet;
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::scale::Autoscaler;
use rouse_core::time::Moment;

use super::state::AutoscaleState;
use super::target::TargetKey;
use super::target_state::{BlockReason, DecisionStatus, JobKind, Observation, ScaleToken, TargetState};
use super::workload_cache::WorkloadCache;
use crate::events::ScaleChange;
use crate::objects::workload::Workload;

/// The most scales that are written at a time.
pub(super) const WRITES: usize = 16;
/// The most scales that are read at a time.
pub(super) const READS: usize = 8;
/// How old the observation of a workload that is not watched may be when it is scaled.
const FRESH: Duration = Duration::from_secs(2);
/// How often a workload that is not watched is read while it has pods.
const READ_AGAIN: Duration = Duration::from_secs(15);
/// The same, at zero: a decision that needs it reads it at once.
const READ_AGAIN_AT_ZERO: Duration = Duration::from_mins(5);
/// The first and the longest pause after a conflict: the watch brings the newer version.
const CONFLICT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// The first and the longest pause after another failure.
const FAILURE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// How long other proxies stay prepared for zero.
const PREPARED: Duration = Duration::from_secs(5);
/// The pause before other proxies are asked again.
const PREPARE_AGAIN: Duration = Duration::from_secs(5);
/// The pause when the budget of starts is used up.
const BUDGET: Duration = Duration::from_secs(1);
/// The pause when too many scales are read.
const READ_LATER: Duration = Duration::from_millis(100);

/// What a pass depends on besides the state.
#[derive(Debug, Clone)]
pub(super) struct ReconcileContext {
    pub(super) now: Moment,
    /// Seconds since the Unix epoch.
    pub(super) unix_now: u64,
    /// Whether this process may write.
    pub(super) leads: bool,
    /// Whether it is known what else scales workloads, or why not.
    pub(super) owners: Result<(), String>,
    /// Whether other proxies must be prepared for zero.
    pub(super) prepares: bool,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Job {
    /// Read the scale of a workload that is not watched.
    Read { key: TargetKey, workload: Workload },
    /// Ask other proxies to send the requests of these services elsewhere.
    Prepare { key: TargetKey, services: BTreeSet<ServiceId> },
    /// Tell them that it was for nothing.
    Cancel { services: BTreeSet<ServiceId> },
    /// Write the scale.
    Write(WriteJob),
}

/// A scale to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WriteJob {
    pub(super) key: TargetKey,
    pub(super) workload: Workload,
    /// The version that it was decided on.
    pub(super) token: ScaleToken,
    pub(super) change: ScaleChange,
}

/// What became of a [`Job`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JobEnd {
    /// The scale was read, or why not.
    Read(TargetKey, Result<Observation, String>),
    /// Whether other proxies are prepared.
    Prepared(TargetKey, bool),
    /// The scale was written, or why not.
    Written(WriteJob, WriteEnd),
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WriteEnd {
    /// It was written; this is the version now.
    Written(String),
    /// The workload had changed.
    Conflict,
    /// This process does not lead any more.
    NotLeader,
    /// It was refused, or the API server could not be reached.
    Failed(String),
}

/// How many jobs of each kind are under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct UnderWay {
    pub(super) writes: usize,
    pub(super) reads: usize,
}

impl AutoscaleState {
    /// Decides about all targets that are due, and says what to do. Returns the decisions that say something new.
    pub(super) fn decide(&mut self, now: Moment) -> Vec<(TargetKey, &'static str)> {
        let mut news = Vec::new();
        for (key, decision) in self.fleet.decide(now) {
            let Some(target) = self.targets.get_mut(&key) else { continue };
            let code = decision.reason.code();
            let floor = self.fleet.scaler(&key).map_or(0, Autoscaler::floor);
            if target.decided(now, decision, floor) {
                news.push((key.clone(), code));
                self.touched.extend(target.spec.routes.iter().map(|route| route.key.clone()));
            }
            self.enqueue(&key);
        }
        news
    }

    /// The jobs that can begin now.
    pub(super) fn jobs(&mut self, context: &ReconcileContext, under_way: UnderWay) -> Vec<Job> {
        while let Some((_, key)) = self.timers.first().filter(|(due, _)| *due <= context.now).cloned() {
            self.timers.pop_first();
            self.enqueue(&key);
        }
        let (mut jobs, mut under_way) = (Vec::new(), under_way);
        // All of these may need a slot for a write; what is left is considered when one is free.
        while under_way.writes < WRITES
            && let Some(key) = self.queue.pop_front()
        {
            let Some(target) = self.targets.get_mut(&key) else { continue };
            target.queued = false;
            let before = target.decision_status.clone();
            let (decision_status, again, job) = self.consider(&key, context, under_way);
            let Some(target) = self.targets.get_mut(&key) else { continue };
            if before != decision_status {
                self.touched.extend(target.spec.routes.iter().map(|route| route.key.clone()));
            }
            target.decision_status = decision_status;
            self.timers.extend(again.map(|again| (again, key.clone())));
            match &job {
                Some(Job::Read { .. }) => {
                    (target.job, under_way.reads) = (Some(JobKind::Read), under_way.reads + 1);
                }
                Some(Job::Prepare { .. }) => target.job = Some(JobKind::Prepare),
                Some(Job::Write(_)) => {
                    (target.job, under_way.writes) = (Some(JobKind::Write), under_way.writes + 1);
                }
                Some(Job::Cancel { .. }) => {
                    target.prepared = None;
                    target.job = target.job.map(|_| JobKind::CancelledPrepare);
                }
                None => {}
            }
            jobs.extend(job);
        }
        jobs
    }

    /// When something is due next.
    pub(super) fn next_due(&self) -> Option<Moment> {
        let timer = self.timers.first().map(|(due, _)| *due);
        [self.fleet.next_due(), timer, self.envoys.next_due()].into_iter().flatten().min()
    }

    /// This process does not lead any more: what it has prepared for zero is taken back.
    pub(super) fn deposed(&mut self) {
        let prepares =
            |target: &TargetState| target.prepared.is_some() || target.job == Some(JobKind::Prepare);
        let keys = self.targets.iter().filter(|(_, target)| prepares(target)).map(|(key, _)| key.clone());
        for key in keys.collect::<Vec<_>>() {
            self.enqueue(&key);
        }
    }

    /// What becomes of the decision about a target now: its status, when to consider the target again, and a job.
    fn consider(
        &mut self,
        key: &TargetKey,
        context: &ReconcileContext,
        under_way: UnderWay,
    ) -> (DecisionStatus, Option<Moment>, Option<Job>) {
        let Some(target) = self.targets.get(key) else { return (DecisionStatus::UpToDate, None, None) };
        if target.job == Some(JobKind::Prepare) && (target.goal() != Ok(Some(0)) || !context.leads) {
            // Load has come back while proxies prepare, or another process leads.
            let services = target.spec.services.clone();
            return (DecisionStatus::UpToDate, None, Some(Job::Cancel { services }));
        }
        if target.job.is_some() || target.spec.managed().is_none() {
            return (target.decision_status.clone(), None, None);
        }
        if needs_read(target, context.now) {
            let (decision_status, workload) = (target.decision_status.clone(), target.spec.workload.clone());
            if under_way.reads >= READS || !self.reads.try_take(context.now) {
                return (decision_status, Some(context.now + READ_LATER), None);
            }
            return (decision_status, None, Some(Job::Read { key: key.clone(), workload }));
        }
        let cancel = |target: &TargetState| {
            let services = target.spec.services.clone();
            target.prepared.map(|_| Job::Cancel { services })
        };
        let goal = match target.goal() {
            Ok(Some(goal)) => goal,
            Ok(None) => return (DecisionStatus::UpToDate, None, cancel(target)),
            Err(decision_status) => return (decision_status, None, cancel(target)),
        };
        if goal > 0 && target.prepared.is_some() {
            return (DecisionStatus::Write(goal), Some(context.now), cancel(target));
        }
        if !context.leads {
            return (DecisionStatus::Write(goal), None, cancel(target));
        }
        if let Some(until) = target.not_before.filter(|until| context.now < *until) {
            return (target.decision_status.clone(), Some(until), None);
        }
        self.check(key, goal, context)
    }

    /// Whether `goal` may be written now.
    fn check(
        &mut self,
        key: &TargetKey,
        goal: u32,
        context: &ReconcileContext,
    ) -> (DecisionStatus, Option<Moment>, Option<Job>) {
        let now = context.now;
        let Some(target) = self.targets.get(key) else { return (DecisionStatus::UpToDate, None, None) };
        let Some(decision) = &target.decision else { return (DecisionStatus::UpToDate, None, None) };
        if goal < decision.replicas
            && let Err(why) = &context.owners
        {
            return (DecisionStatus::Blocked(BlockReason::UnknownOwners(why.clone())), None, None);
        }
        if goal == 0 {
            if let Some(until) = target.spec.cools_down_until().filter(|until| context.unix_now < *until) {
                let again = now + Duration::from_secs(until - context.unix_now);
                return (DecisionStatus::Blocked(BlockReason::NewRoute), Some(again), None);
            }
            let is_prepared = target.prepared.is_some_and(|at| now < at + PREPARED)
                // An xds replica may have joined meanwhile.
                && self.envoys.is_prepared(&target.spec.services);
            if (context.prepares || !self.envoys.parked.is_empty()) && !is_prepared {
                if let Some(after) = target.prepare_after.filter(|after| now < *after) {
                    return (target.decision_status.clone(), Some(after), None);
                }
                let job = Job::Prepare { key: key.clone(), services: target.spec.services.clone() };
                return (target.decision_status.clone(), None, Some(job));
            }
        }
        if decision.replicas == 0 && !self.budget.take(&key.namespace, now) {
            return (DecisionStatus::Blocked(BlockReason::WakeBudget), Some(now + BUDGET), None);
        }
        let job = WriteJob {
            key: key.clone(),
            workload: target.spec.workload.clone(),
            token: decision.token.clone(),
            change: ScaleChange {
                workload: key.to_string(),
                from: decision.replicas,
                to: goal,
                why: decision.reason.to_string(),
            },
        };
        (DecisionStatus::Write(goal), None, Some(Job::Write(job)))
    }

    /// A job has ended.
    pub(super) fn ended(&mut self, now: Moment, end: &JobEnd) {
        let (JobEnd::Read(key, _) | JobEnd::Prepared(key, _) | JobEnd::Written(WriteJob { key, .. }, _)) =
            end;
        let Some(target) = self.targets.get_mut(key) else { return };
        let was_cancelled = target.job.take() == Some(JobKind::CancelledPrepare);
        let again = match end {
            JobEnd::Read(_, seen) => self.read_ended(now, key, seen.clone()),
            JobEnd::Prepared(..) if was_cancelled => None,
            JobEnd::Prepared(_, true) => {
                target.prepared = Some(now);
                // The decision may be another one by now.
                if let Some(observed) = &target.observed {
                    self.fleet.observe(now, key, observed.target());
                }
                None
            }
            JobEnd::Prepared(_, false) => {
                target.decision_status = DecisionStatus::Blocked(BlockReason::NotPrepared);
                target.prepare_after = Some(now + PREPARE_AGAIN);
                target.prepare_after
            }
            JobEnd::Written(job, end) => self.write_ended(now, job, end),
        };
        self.timers.extend(again.map(|again| (again, key.clone())));
        self.enqueue(key);
    }

    fn read_ended(
        &mut self,
        now: Moment,
        key: &TargetKey,
        seen: Result<Observation, String>,
    ) -> Option<Moment> {
        let at_zero = seen.as_ref().is_ok_and(|seen| seen.replicas == 0);
        let failed = seen.is_err();
        self.observe(now, key, seen);
        let target = self.targets.get_mut(key)?;
        if failed {
            return Some(target.back_off(now, FAILURE.0, FAILURE.1));
        }
        (target.failures, target.not_before) = (0, None);
        Some(now + if at_zero { READ_AGAIN_AT_ZERO } else { READ_AGAIN })
    }

    fn write_ended(&mut self, now: Moment, job: &WriteJob, end: &WriteEnd) -> Option<Moment> {
        let target = self.targets.get_mut(&job.key)?;
        match end {
            WriteEnd::Written(version) => {
                (target.failures, target.not_before, target.prepared) = (0, None, None);
                let ready = target.observed.as_ref().map_or(0, |seen| seen.ready);
                let seen =
                    Observation { replicas: job.change.to, ready, version: version.as_str().into(), at: now };
                if job.change.to == 0 {
                    // xds replicas end it when the pods are gone.
                    let services = target.spec.services.clone();
                    drop(self.end_requests(&services));
                }
                self.observe(now, &job.key, Ok(seen));
                None
            }
            WriteEnd::Conflict => {
                // Until the newer version is seen, every attempt would conflict again.
                target.conflicted = true;
                Some(target.back_off(now, CONFLICT.0, CONFLICT.1))
            }
            WriteEnd::NotLeader => None,
            WriteEnd::Failed(why) => {
                target.decision_status = DecisionStatus::Blocked(BlockReason::Failed(why.clone()));
                self.touched.extend(target.spec.routes.iter().map(|route| route.key.clone()));
                Some(target.back_off(now, FAILURE.0, FAILURE.1))
            }
        }
    }
}

/// Whether a workload that is not watched must be read before anything is done about it.
fn needs_read(target: &TargetState, now: Moment) -> bool {
    if WorkloadCache::watches(&target.spec.workload) || target.not_before.is_some_and(|until| now < until) {
        return false;
    }
    let Some(seen) = &target.observed else { return true };
    let age = match target.goal() {
        Ok(None) if seen.replicas > 0 => READ_AGAIN,
        Ok(None) => READ_AGAIN_AT_ZERO,
        _ => FRESH,
    };
    now >= seen.at + age
}
