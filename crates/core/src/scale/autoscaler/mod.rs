//! The autoscaler: what it is told, what it remembers, and when it decides. Its rules are in [`rules`].

mod rules;
mod state;

use super::decision::{Decision, ObservedTarget, Owner, ScaleReason};
use super::envoys::EnvoyId;
use super::idle::{Advice, BadState, IdleExplanation, IdleLearner, IdlePolicy, SHORTEST_GAP, STATE_BYTES};
use super::policy::ScalePolicy;
use super::report::{LoadReport, REPORT_PERIOD, Reporter, Reporters, TooManyReporters};
use super::schedule::ScheduledFloor;
use super::window::Window;
use super::{STEP, WAKE_TIMEOUT};
use crate::time::{Moment, WallTime};
use rules::Verdict;
use state::{Initial, Life, Pin, ScaleMode, Step, UpCause};

/// Decides how many pods one service should have.
#[derive(Debug, Clone)]
pub struct Autoscaler {
    policy: ScalePolicy,
    /// When the observation began, for a service that existed before; `None` for a service observed since its creation.
    watching: Option<Moment>,
    /// The latest moment that was passed in; time never goes back.
    now: Moment,
    window: Window,
    reporters: Reporters,
    /// An Envoy whose load is unknown.
    silent_envoy: Option<EnvoyId>,
    /// The last moment with load.
    active: Moment,
    /// There was load: `active` is not just the begin of the observation.
    was_active: bool,
    life: Life,
    mood: ScaleMode,
    pin: Pin,
    initial: Initial,
    step: Option<Step>,
    scheduled: ScheduledFloor,
    /// The memory of the learned idle policy, if the service has one.
    learner: Option<Box<IdleLearner>>,
    /// The pods of the last decision.
    desired: u32,
}

impl Autoscaler {
    /// For a service that existed before: after a restart, or when newly elected.
    pub fn new(policy: ScalePolicy, now: Moment) -> Self {
        let mut scaler = Self {
            watching: Some(now),
            now,
            window: Window::new(policy.stable_window),
            reporters: Reporters::default(),
            silent_envoy: None,
            active: now,
            was_active: false,
            life: Life::ZERO,
            mood: ScaleMode::Calm,
            pin: Pin::Auto,
            initial: Initial::Done,
            step: None,
            scheduled: ScheduledFloor::default(),
            learner: None,
            desired: 0,
            policy,
        };
        scaler.follow_policy();
        scaler
    }

    /// For a service that was just created: it starts with its initial scale, and keeps it until that many pods were ready
    /// once or [`WAKE_TIMEOUT`] has passed. It can be scaled down without observing a stable window first.
    pub fn created(policy: ScalePolicy, now: Moment) -> Self {
        let initial =
            if policy.initial > 0 { Initial::Due { until: now + WAKE_TIMEOUT } } else { Initial::Done };
        Self { initial, watching: None, ..Self::new(policy, now) }
    }

    /// Replaces the policy and keeps the recorded load, and what was learned.
    pub fn set_policy(&mut self, policy: ScalePolicy) {
        if policy.stable_window != self.policy.stable_window {
            self.window = self.window.resized(policy.stable_window);
        }
        self.policy = policy;
        self.follow_policy();
    }

    fn follow_policy(&mut self) {
        self.scheduled.set_schedule(&self.policy.schedule, self.now);
        match (self.policy.idle, &mut self.learner) {
            (IdlePolicy::Fixed, learner) => *learner = None,
            (IdlePolicy::Learned { cold_start_cost }, Some(learner)) => learner.set_cost(cold_start_cost),
            (IdlePolicy::Learned { cold_start_cost }, learner @ None) => {
                *learner = Some(Box::new(IdleLearner::new(cold_start_cost)));
            }
        }
    }

    /// Wall time is `wall` at `now`. Without this, schedules have no effect. Call it before a decision, as often as the clock
    /// may be set; it costs nothing while the clock runs as before. Returns whether the clock was set, so that the next decision
    /// may differ.
    pub fn set_wall_clock(&mut self, now: Moment, wall: WallTime) -> bool {
        self.now = self.now.max(now);
        self.scheduled.set_clock(&self.policy.schedule, self.now, wall)
    }

    /// Keeps the service at `pods`, regardless of the policy, until [`Autoscaler::unpin`]. 0 scales to zero now; the next
    /// request after that wakes the service and ends the pin.
    pub fn pin(&mut self, pods: u32) {
        self.initial = Initial::Done;
        self.pin = if pods > 0 { Pin::At(pods) } else { Pin::ToZero };
        if let (0, Life::Zero { asked, .. }) = (pods, &mut self.life) {
            *asked = false;
        }
    }

    /// Removes the pin: the autoscaler decides again.
    pub fn unpin(&mut self) {
        self.pin = Pin::Auto;
    }

    /// The pinned number of pods, if there is a pin.
    pub fn pinned(&self) -> Option<u32> {
        match self.pin {
            Pin::Auto => None,
            Pin::At(pods) => Some(pods),
            Pin::ToZero | Pin::Parked => Some(0),
        }
    }

    /// Whether panic mode prevents a scale-down.
    pub fn panics(&self) -> bool {
        matches!(self.mood, ScaleMode::Panic { .. })
    }

    /// The number of pods that the schedule demands now, and when that changes.
    pub fn scheduled(&self) -> (u32, Option<Moment>) {
        (self.scheduled.pods(), self.scheduled.until())
    }

    /// Whether it may start a pod although no request comes: by a schedule, or by a policy that learns.
    pub fn starts_by_itself(&self) -> bool {
        self.learner.is_some() || !self.policy.schedule.is_empty()
    }

    /// What the idle policy has learned, and what it does; `None` for a fixed one.
    pub fn explain_idle(&self) -> Option<IdleExplanation> {
        self.learner.as_ref().map(|learner| learner.report(self.policy.idle_after))
    }

    /// What the idle policy has learned, to be kept over a restart; `None` if that is nothing.
    pub fn learned(&self) -> Option<[u8; STATE_BYTES]> {
        self.learner.as_ref().and_then(|learner| learner.to_bytes())
    }

    /// Takes back what [`Autoscaler::learned`] returned. Has no effect on a fixed idle policy.
    pub fn restore_learned(&mut self, bytes: &[u8]) -> Result<(), BadState> {
        self.learner.as_mut().map_or(Ok(()), |learner| learner.restore(bytes))
    }

    /// Replaces the list of reporters that serve this service and so must report: the gateways in the gateway's own
    /// `EndpointSlice`, and the subscribed Envoys.
    ///
    /// The missing reports of a reporter that is no longer listed do not matter. Its current load is dropped as soon as its
    /// last report is not fresh: it may still end its requests. The load that it reported before stays in the window: its
    /// successor reports only new load.
    pub fn list(
        &mut self,
        now: Moment,
        serving: impl IntoIterator<Item = Reporter>,
    ) -> Result<(), TooManyReporters> {
        self.now = self.now.max(now);
        if self.reporters.list(self.now, serving).total() > 0 {
            self.assume_load(self.now);
        }
        self.reporters.is_full()
    }

    /// Records a report that arrived at `now`, which may be earlier than what was passed in last. The order of reports of
    /// different reporters at one moment does not matter.
    pub fn report(
        &mut self,
        now: Moment,
        from: &Reporter,
        report: &LoadReport,
    ) -> Result<(), TooManyReporters> {
        self.now = self.now.max(now);
        self.window.record(now, report.span, report.concurrency(), report.requests());
        if report.is_active() {
            self.end_gap(now);
            self.active = self.active.max(now);
            self.was_active = true;
            if let Life::Up { ready_since, cause, .. } = &mut self.life {
                // What is not ready yet must not go before it was tried: the request may give up and come again.
                *cause = if ready_since.is_some() { UpCause::Served } else { UpCause::Woken };
            }
        }
        if let (true, Life::Zero { asked, .. }) = (report.asks(), &mut self.life) {
            *asked = true;
        }
        self.reporters.record(now, from, report.present)
    }

    /// An Envoy may send requests past the gateways and does not report them, so nothing is scaled down; `None`: there is none.
    pub fn set_silent_envoy(&mut self, envoy: Option<EnvoyId>) {
        self.silent_envoy = envoy;
    }

    /// There may have been load until `now`: the service counts as idle from then on, but nothing is woken.
    pub fn assume_load(&mut self, now: Moment) {
        self.active = self.active.max(now);
    }

    /// There is load: a gap has ended, if there was one.
    fn end_gap(&mut self, now: Moment) {
        let gap = now.since(self.active);
        if let Some(learner) = &mut self.learner
            && gap >= SHORTEST_GAP
            && self.reporters.present().total() == 0
        {
            learner.gap_ended(self.was_active.then_some(gap));
        }
    }

    /// Decides the number of pods, given the target as observed at `now`.
    pub fn decide<T>(&mut self, now: Moment, observed: ObservedTarget<T>) -> Decision<T> {
        let ObservedTarget { replicas, ready, owner, token } = observed;
        self.now = self.now.max(now);
        self.reporters.forget_stale(self.now);
        self.scheduled.advance(&self.policy.schedule, self.now);
        self.see(replicas, ready);
        self.plan_gap();
        let verdict = match (owner, self.pin) {
            (Owner::Other, _) if replicas == 0 && self.wants_wake() => {
                Verdict::new(self.awake(), ScaleReason::Wake)
            }
            (Owner::Other, _) => Verdict::new(replicas, ScaleReason::OwnedElsewhere),
            (Owner::Rouse, Pin::At(pods)) => Verdict::new(pods, ScaleReason::Pinned { pods }),
            (Owner::Rouse, Pin::ToZero) => Verdict::new(0, ScaleReason::Pinned { pods: 0 }),
            (Owner::Rouse, Pin::Parked) if !self.wants_wake() => {
                Verdict::new(0, ScaleReason::Pinned { pods: 0 })
            }
            (Owner::Rouse, _) if replicas == 0 => self.at_zero(),
            (Owner::Rouse, _) => self.running(replicas),
        };
        if let Life::Zero { ahead, .. } = &mut self.life {
            *ahead = matches!(verdict.reason, ScaleReason::Ahead { .. });
        }
        self.desired = verdict.pods;
        Decision { replicas, desired: verdict.pods, reason: verdict.reason, token }
    }

    /// The next moment after `now` at which a decision on the same pods, without a new report or list, may differ from the
    /// decision at `now`. No decision before it differs.
    pub fn next_due(&self, now: Moment) -> Option<Moment> {
        let expiries = self.reporters.expiries().filter(|due| *due > now);
        self.due_by_time(now).into_iter().chain(expiries).min()
    }

    /// The same for a driver that knows that all reporters report, and passes on what they say when it decides. The end of the
    /// freshness of a report does not count, and the average of the load falls while nothing is reported.
    pub fn next_due_while_reported(&self, now: Moment) -> Option<Moment> {
        // One pod is needed until the service is idle, at any average. In panic mode, a falling average ends the surge.
        let falls = (self.desired > 1 || self.panics()) && self.window.has_load();
        // Idle as far as the time is concerned, and the next reports will show whether it is.
        let waits =
            self.without_load(self.now).0.is_some() && self.without_load(self.known_until()).0.is_none();
        self.due_by_time(now).into_iter().chain((falls || waits).then(|| now + REPORT_PERIOD)).min()
    }

    fn due_by_time(&self, now: Moment) -> Option<Moment> {
        let idle_after = self.policy.idle_after;
        let (woken, rested) = match self.life {
            Life::Zero { .. } => (None, None),
            Life::Up { woken, ready_since, .. } => {
                (Some(woken + WAKE_TIMEOUT), ready_since.map(|since| since + idle_after))
            }
        };
        let calm = match self.mood {
            ScaleMode::Calm => None,
            ScaleMode::Panic { last_surge } => Some(last_surge + self.policy.stable_window),
        };
        let initial = match self.initial {
            Initial::Due { until } => Some(until),
            Initial::Done => None,
        };
        let step = self.step.filter(|step| step.next != (step.ready, step.most));
        let step = step.map(|step| step.since + STEP);
        let grown = self.watching.map(|since| since + self.policy.stable_window);
        let idle = Some(self.active + idle_after);
        let planned = self.learner.as_ref().map(|_| self.active + SHORTEST_GAP);
        let changes = self.learner.iter().flat_map(|learner| learner.changes());
        [woken, rested, calm, initial, step, grown, idle, planned, self.scheduled.until()]
            .into_iter()
            .flatten()
            .chain(changes)
            .filter(|due| *due > now)
            .min()
    }

    /// Updates the state from the observed pods.
    fn see(&mut self, replicas: u32, ready: u32) {
        self.see_life(replicas, ready);
        self.pin = match self.pin {
            Pin::ToZero if replicas == 0 => Pin::Parked,
            Pin::Parked if replicas > 0 => Pin::Auto,
            pin => pin,
        };
        let now = self.now;
        if let Initial::Due { until } = self.initial
            && (ready >= self.policy.initial || now >= until)
        {
            self.initial = Initial::Done;
        }
        let most = ready.max(replicas);
        let step = match self.step {
            Some(step) if now < step.since + STEP => Step { most: step.most.max(most), ..step },
            _ => Step { since: now, ready, most, next: (ready, most) },
        };
        self.step = Some(Step { next: (ready, most), ..step });
        self.see_surge(ready);
    }

    fn see_life(&mut self, replicas: u32, ready: u32) {
        let now = self.now;
        let is_ready = (ready > 0).then_some(now);
        let next = match self.life {
            Life::Zero { .. } if replicas == 0 => self.life,
            Life::Up { .. } if replicas == 0 => Life::ZERO,
            Life::Zero { asked, ahead } => {
                let cause = if ahead && !asked { UpCause::Ahead } else { UpCause::Woken };
                Life::Up { woken: now, ready_since: is_ready, cause }
            }
            Life::Up { woken, ready_since, cause } => {
                Life::Up { woken, ready_since: is_ready.map(|now| ready_since.unwrap_or(now)), cause }
            }
        };
        // Ready, or given up: the start took at least this long.
        if let Life::Up { woken, ready_since: None, .. } = self.life
            && !matches!(next, Life::Up { ready_since: None, .. })
            && let Some(learner) = &mut self.learner
        {
            learner.started(now.since(woken));
        }
        self.life = next;
    }

    fn see_surge(&mut self, ready: u32) {
        let now = self.now;
        let threshold = self.policy.panic_threshold;
        let mut recent = self.demands(self.policy.panic_window);
        let surge = recent.any(|demand| demand.reaches(threshold, ready.max(1)));
        self.mood = match self.mood {
            _ if self.is_idle() => ScaleMode::Calm,
            _ if surge => ScaleMode::Panic { last_surge: now },
            ScaleMode::Panic { last_surge } if now >= last_surge + self.policy.stable_window => {
                ScaleMode::Calm
            }
            mood => mood,
        };
    }

    /// Makes the plan for a gap as soon as it is one.
    fn plan_gap(&mut self) {
        if let Some(learner) = &mut self.learner
            && self.was_active
            && self.now >= self.active + SHORTEST_GAP
            && self.reporters.present().total() == 0
        {
            learner.plan_gap(self.active);
        }
    }

    /// What the learned idle policy says at `now`, for a service without load.
    fn advice(&self, now: Moment) -> Advice {
        match &self.learner {
            // The begin of the gap is not known, so the plan has no begin either.
            Some(learner) if self.was_active => learner.advice(self.active, now),
            _ => Advice::Fixed,
        }
    }
}
