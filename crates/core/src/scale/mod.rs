//! The autoscaler of one service: load reports → desired pods. `rouse up` uses it; on Kubernetes, Rouse only wakes from zero.
//!
//! There is one [`Autoscaler`] per service. Its driver passes in the list of reporters ([`Autoscaler::list`]), their reports
//! ([`Autoscaler::report`]) and the observed pods ([`Autoscaler::decide`]). It does not assume that a decision is carried
//! out: a wake has happened when pods are observed. The driver calls `decide` after each report, after each change of the
//! pods, and at [`Autoscaler::next_due`].
//!
//! The rules; later ones win:
//! 1. The number of pods is the average load over the stable window divided by the target, rounded up; in panic mode, the
//!    larger of that and the same for the panic window. A surge (the load of the panic window reaches the panic threshold,
//!    by default 200 % of the ready pods' capacity) starts panic mode. A stable window without a surge, or idleness, ends it.
//! 2. The rates apply per step of [`STEP`], however many decisions it has. A step scales up to at most the ready pods at its
//!    start (at least one) × the up rate, and down to at least the most pods seen in it ÷ the down rate, rounded down.
//! 3. Panic mode removes no pod.
//! 4. At least one pod (or `min`), at most `max`. To zero only after `idle-after` without load, and then at once.
//! 5. Pods are removed only when all load is known: at least one reporter is listed, every listed reporter has a fresh
//!    report, and a service that existed before the autoscaler has been observed for a stable window. This applies to `max`
//!    too.
//! 6. Requests in flight keep the pods that they need at the target (else the limit, else 100 each), up to `max`. They add no
//!    pods: single samples would make the number of pods flap.
//! 7. A pin overrides all of the above.
//!
//! At zero only a wake counts: a hold, or a request since zero was observed, starts one pod (or `min`), or as many as the
//! load needs if that is more. After a wake, the service does not go back to zero before it was ready for
//! `idle-after` without a break, or [`WAKE_TIMEOUT`] passed since the wake.

mod decision;
mod policy;
mod report;
mod window;

use std::time::Duration;

pub use decision::{Decision, ObservedTarget, Owner, ScaleReason};
pub use policy::{BadPolicy, BadSetting, ScalePolicy, ScaleSettings};
pub use report::{CurrentLoad, LoadReport, MAX_REPORTERS, REPORT_TTL, Reporter, TooManyReporters};

use crate::time::Moment;
use report::{Reporters, UnknownLoad};
use window::{Demand, Window};

/// The length of a step, over which the rates apply (as in Knative).
pub const STEP: Duration = Duration::from_secs(2);
/// How long a woken service may take to become ready before it can be scaled to zero again.
pub const WAKE_TIMEOUT: Duration = Duration::from_mins(10);

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
    /// The last moment with load.
    active: Moment,
    life: Life,
    mood: ScaleMode,
    pin: Pin,
    initial: Initial,
    step: Option<Step>,
}

/// Whether there are pods, as observed.
#[derive(Debug, Clone, Copy)]
enum Life {
    Zero {
        /// A request has arrived since the service is at zero. A flag, not a time: a request at the very moment of a decision
        /// must count.
        asked: bool,
    },
    Up {
        woken: Moment,
        ready_since: Option<Moment>,
    },
}

#[derive(Debug, Clone, Copy)]
enum ScaleMode {
    Calm,
    Panic { last_surge: Moment },
}

#[derive(Debug, Clone, Copy)]
enum Pin {
    Auto,
    At(u32),
    /// Pinned at 0, but pods are still observed.
    ToZero,
    /// Pinned at 0, and at zero. The next request ends the pin.
    Parked,
}

#[derive(Debug, Clone, Copy)]
enum Initial {
    Due { until: Moment },
    Done,
}

/// One step: the pods that the rates are relative to.
#[derive(Debug, Clone, Copy)]
struct Step {
    since: Moment,
    /// Ready pods at the start.
    ready: u32,
    /// The most pods, requested or ready, that were observed in this step.
    most: u32,
    /// `ready` and `most` of a step that would start now.
    next: (u32, u32),
}

/// A number of pods and the rule that decided it.
struct Verdict {
    pods: u32,
    reason: ScaleReason,
}

impl Verdict {
    fn new(pods: u32, reason: ScaleReason) -> Self {
        Self { pods, reason }
    }

    fn at_least(self, pods: u32, reason: ScaleReason) -> Self {
        if self.pods < pods { Self { pods, reason } } else { self }
    }

    fn at_most(self, pods: u32, reason: ScaleReason) -> Self {
        if self.pods > pods { Self { pods, reason } } else { self }
    }
}

impl Autoscaler {
    /// For a service that existed before: after a restart, or when newly elected.
    pub fn new(policy: ScalePolicy, now: Moment) -> Self {
        Self {
            watching: Some(now),
            now,
            window: Window::new(policy.stable_window),
            reporters: Reporters::default(),
            active: now,
            life: Life::Zero { asked: false },
            mood: ScaleMode::Calm,
            pin: Pin::Auto,
            initial: Initial::Done,
            step: None,
            policy,
        }
    }

    /// For a service that was just created: it starts with its initial scale, and keeps it until that many pods were ready
    /// once or [`WAKE_TIMEOUT`] has passed. It can be scaled down without observing a stable window first.
    pub fn created(policy: ScalePolicy, now: Moment) -> Self {
        let initial =
            if policy.initial > 0 { Initial::Due { until: now + WAKE_TIMEOUT } } else { Initial::Done };
        Self { initial, watching: None, ..Self::new(policy, now) }
    }

    /// Replaces the policy and keeps the recorded load.
    pub fn set_policy(&mut self, policy: ScalePolicy) {
        if policy.stable_window != self.policy.stable_window {
            self.window = self.window.resized(policy.stable_window);
        }
        self.policy = policy;
    }

    /// Keeps the service at `pods`, regardless of the policy, until [`Autoscaler::unpin`]. 0 scales to zero now; the next
    /// request after that wakes the service and ends the pin.
    pub fn pin(&mut self, pods: u32) {
        self.initial = Initial::Done;
        self.pin = if pods > 0 { Pin::At(pods) } else { Pin::ToZero };
        if let (0, Life::Zero { asked }) = (pods, &mut self.life) {
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

    /// Replaces the list of reporters that serve this service and so must report: the gateways in the gateway's own
    /// `EndpointSlice`, and the subscribed Envoys.
    ///
    /// The current load of a reporter that is no longer listed is dropped, and its missing reports no longer matter. The load
    /// that it reported before stays in the window: its successor reports only new load.
    pub fn list(
        &mut self,
        now: Moment,
        serving: impl IntoIterator<Item = Reporter>,
    ) -> Result<(), TooManyReporters> {
        self.now = self.now.max(now);
        if self.reporters.list(self.now, serving).total() > 0 {
            // Assume that the load of the removed reporters ends now.
            self.active = self.now;
        }
        self.reporters.is_full()
    }

    /// Records a report that arrived at `now`. The order of reports of different reporters at one moment does not matter.
    pub fn report(
        &mut self,
        now: Moment,
        from: &Reporter,
        report: &LoadReport,
    ) -> Result<(), TooManyReporters> {
        self.now = self.now.max(now);
        self.window.record(self.now, report.span, report.concurrency(), report.requests());
        if report.is_active() {
            self.active = self.now;
        }
        if let (true, Life::Zero { asked }) = (report.asks(), &mut self.life) {
            *asked = true;
        }
        self.reporters.record(self.now, from, report.present)
    }

    /// Decides the number of pods, given the target as observed at `now`.
    pub fn decide<T>(&mut self, now: Moment, observed: ObservedTarget<T>) -> Decision<T> {
        let ObservedTarget { replicas, ready, owner, token } = observed;
        self.now = self.now.max(now);
        self.reporters.forget_stale(self.now);
        self.see(replicas, ready);
        let verdict = match (owner, self.pin) {
            (Owner::Other, _) if replicas == 0 && self.wants_wake() => {
                Verdict::new(self.policy.awake(), ScaleReason::Wake)
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
        Decision { replicas, desired: verdict.pods, reason: verdict.reason, token }
    }

    /// The next moment after `now` at which a decision on the same pods, without a new report or list, may differ from the
    /// decision at `now`. No decision before it differs.
    pub fn next_due(&self, now: Moment) -> Option<Moment> {
        let idle_after = self.policy.idle_after;
        let (woken, rested) = match self.life {
            Life::Zero { .. } => (None, None),
            Life::Up { woken, ready_since } => {
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
        [woken, rested, calm, initial, step, grown, idle]
            .into_iter()
            .flatten()
            .chain(self.reporters.expiries())
            .filter(|due| *due > now)
            .min()
    }

    /// Updates the state from the observed pods.
    fn see(&mut self, replicas: u32, ready: u32) {
        let now = self.now;
        self.life = match self.life {
            Life::Zero { asked } if replicas == 0 => Life::Zero { asked },
            Life::Up { .. } if replicas == 0 => Life::Zero { asked: false },
            Life::Zero { .. } => Life::Up { woken: now, ready_since: (ready > 0).then_some(now) },
            Life::Up { woken, ready_since } => {
                Life::Up { woken, ready_since: (ready > 0).then(|| ready_since.unwrap_or(now)) }
            }
        };
        self.pin = match self.pin {
            Pin::ToZero if replicas == 0 => Pin::Parked,
            Pin::Parked if replicas > 0 => Pin::Auto,
            pin => pin,
        };
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

    fn at_zero(&self) -> Verdict {
        let verdict = if self.wants_wake() {
            let pods = self.pods_for_load().max(self.policy.awake());
            Verdict::new(pods, ScaleReason::Wake).at_most(self.most_up(0), ScaleReason::UpRate)
        } else {
            Verdict::new(0, ScaleReason::AtZero)
        };
        verdict
            .at_least(self.initial_pods(), ScaleReason::Initial)
            .at_least(self.policy.min, ScaleReason::Min)
            .at_most(self.policy.max, ScaleReason::Max)
    }

    fn running(&self, replicas: u32) -> Verdict {
        let wanted = self.wanted(replicas);
        if wanted.pods >= replicas {
            return wanted;
        }
        if let Some(reason) = self.blind() {
            return Verdict::new(replicas, reason);
        }
        let present = self.reporters.present().total();
        let needed = Demand::of(present, self.policy.room).pods().min(replicas).min(self.policy.max);
        wanted.at_least(needed, ScaleReason::InFlight { present })
    }

    /// The number of pods for the known load, before the rules that apply while load is unknown.
    fn wanted(&self, replicas: u32) -> Verdict {
        let after = self.policy.idle_after;
        let may_sleep = self.policy.min == 0 && self.initial_pods() == 0 && self.is_idle();
        if may_sleep && self.is_rested() {
            return Verdict::new(0, ScaleReason::Idle { after });
        }
        let pods = self.pods_for_load();
        let verdict = if self.panics() {
            Verdict::new(pods.max(replicas), ScaleReason::Panic { pods })
        } else {
            Verdict::new(pods, ScaleReason::Load { pods })
        };
        let one = if may_sleep { ScaleReason::JustWoken { after } } else { ScaleReason::Load { pods: 1 } };
        verdict
            .at_least(1, one)
            .at_least(self.initial_pods(), ScaleReason::Initial)
            .at_most(self.most_up(replicas), ScaleReason::UpRate)
            .at_least(self.least_down(replicas), ScaleReason::DownRate)
            .at_least(self.policy.min, ScaleReason::Min)
            .at_most(self.policy.max, ScaleReason::Max)
    }

    /// Why the load may be higher than the known load, so that no pod may be removed.
    fn blind(&self) -> Option<ScaleReason> {
        if self.watching.is_some_and(|since| self.now < since + self.policy.stable_window) {
            return Some(ScaleReason::WarmingUp { window: self.policy.stable_window });
        }
        self.reporters.unknown_load(self.now).map(|unknown_load| match unknown_load {
            UnknownLoad::NoReporters => ScaleReason::NoReporters,
            UnknownLoad::TooMany => ScaleReason::TooManyReporters,
            UnknownLoad::Silent(reporter) => ScaleReason::ReporterStale { reporter },
        })
    }

    /// Whether a hold, or a request that arrived at zero within `idle-after`, needs a pod. Requests that a leaving pod still
    /// processes do not count: they need no new pod.
    fn wants_wake(&self) -> bool {
        let asked = matches!(self.life, Life::Zero { asked: true });
        self.reporters.present().holds > 0 || (asked && !self.is_idle())
    }

    fn is_idle(&self) -> bool {
        self.reporters.present().total() == 0 && self.now >= self.active + self.policy.idle_after
    }

    /// Whether the service was ready long enough since the wake, or the wake timed out.
    fn is_rested(&self) -> bool {
        match self.life {
            Life::Zero { .. } => false,
            Life::Up { woken, ready_since } => {
                ready_since.is_some_and(|since| self.now >= since + self.policy.idle_after)
                    || self.now >= woken + WAKE_TIMEOUT
            }
        }
    }

    fn initial_pods(&self) -> u32 {
        match self.initial {
            Initial::Due { .. } => self.policy.initial,
            Initial::Done => 0,
        }
    }

    /// The most pods that this step allows. Pods that are already requested are not a scale-up.
    fn most_up(&self, replicas: u32) -> u32 {
        let ready = self.step.map_or(1, |step| step.ready.max(1));
        self.policy.max_scale_up_rate.times(ready).max(replicas)
    }

    /// The fewest pods that this step allows. Does not add pods that another client has removed.
    fn least_down(&self, replicas: u32) -> u32 {
        self.policy.max_scale_down_rate.part_of(self.step.map_or(0, |step| step.most)).min(replicas)
    }

    fn pods_for_load(&self) -> u32 {
        let stable = self.demands(self.policy.stable_window);
        let panic = self.panics().then(|| self.demands(self.policy.panic_window));
        stable.chain(panic.into_iter().flatten()).map(Demand::pods).max().unwrap_or(0)
    }

    /// The demand over the last `length`, by each target.
    fn demands(&self, length: Duration) -> impl Iterator<Item = Demand> + use<> {
        let load = self.window.over(length);
        let concurrency = self.policy.concurrency.map(|target| load.concurrency(target));
        let rate = self.policy.rate.map(|target| load.rate(target));
        // A rate counts a request once, however long it waits, so held requests are added as concurrency.
        let holds = concurrency
            .is_none()
            .then(|| Demand::of(self.reporters.present().holds.into(), self.policy.room));
        [concurrency, rate, holds].into_iter().flatten()
    }
}
