//! How many pods a service should have: load in, desired replicas out.
//!
//! One [`Autoscaler`] per service, told by its driver which gateways report ([`Autoscaler::list`]), what they report
//! ([`Autoscaler::report`]) and how many pods there are ([`Autoscaler::decide`]). It assumes nothing about
//! its decisions: a wake has happened when pods are observed, not when it was decided. The driver decides
//! after each report, each change of the pods, and at [`Autoscaler::next_due`].
//!
//! The rules, later ones win:
//! 1. The average load over the stable window, divided by the target, rounded up; in panic the panic window's
//!    too. A surge (the panic window's load is 200 % of the ready pods' capacity, or more) starts panic, and
//!    a stable window without one, or idleness, ends it.
//! 2. Rates are per step of [`STEP`], however often a decision is made: in one step at most the ready pods at
//!    its start × the up rate (at least one pod is assumed ready), and at least the most pods seen in it ÷
//!    the down rate, rounded down.
//! 3. Panic takes no pod away.
//! 4. At least one pod (or `min`), at most `max`; to zero only when idle for `idle-after`, and then at once.
//! 5. Pods are taken away only when all load is known: after a whole stable window of watching a
//!    service that was there before, with
//!    every listed reporter fresh and at least one listed. This holds for `max` too.
//! 6. What is in flight keeps the pods that it needs at the target (else the limit, else 100 each), up to
//!    `max`. It does not ask for more: a sample would make the pods flap.
//! 7. A pin is an order: none of the above applies.
//!
//! At zero only a wake counts: a hold, or a request since zero was observed, brings up one pod (or `min`), or
//! what the load takes if that is more. A woken service is not taken back to zero before it was ready for
//! `idle-after` without a break, or [`WAKE_TIMEOUT`] passed since the wake.

mod decision;
mod policy;
mod report;
mod window;

use std::time::Duration;

pub use decision::{Decision, ObservedTarget, Owner, ScaleReason};
pub use policy::{BadPolicy, BadSetting, ScalePolicy, ScaleSettings};
pub use report::{CurrentLoad, REPORT_TTL, LoadReport, MAX_REPORTERS, Reporter, TooManyReporters};

use crate::time::Moment;
use report::{UnknownLoad, Reporters};
use window::{Demand, Window};

/// What a rate is measured over (as in Knative).
pub const STEP: Duration = Duration::from_secs(2);
/// How long a wake may take before we stop waiting for it to become ready.
pub const WAKE_TIMEOUT: Duration = Duration::from_mins(10);

/// Decides how many pods one service should have.
#[derive(Debug, Clone)]
pub struct Autoscaler {
    policy: ScalePolicy,
    /// Since when it watches a service that was there before; `None` if it has seen all of it.
    watching: Option<Moment>,
    /// The latest moment that was passed in; time never goes back.
    now: Moment,
    window: Window,
    reporters: Reporters,
    /// The last moment at which there was anything to do.
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
        /// A request asked for the service since it is at zero. Not a matter of time: the request that comes
        /// at the very moment of a decision must count.
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
    /// Pinned at 0, and pods are still there.
    ToZero,
    /// Pinned at 0 and there; the next request ends it.
    Parked,
}

#[derive(Debug, Clone, Copy)]
enum Initial {
    Due { until: Moment },
    Done,
}

/// What the rates are relative to.
#[derive(Debug, Clone, Copy)]
struct Step {
    since: Moment,
    /// Ready pods at the start.
    ready: u32,
    /// The most pods, asked for or ready, that were seen in this step.
    most: u32,
    /// The last pods seen: what the next step would start from.
    next: (u32, u32),
}

/// A number of pods and the rule that set it.
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
    /// For a service that was there before: after a restart, or newly elected.
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

    /// For a service that was just created: it starts with its initial scale, and keeps that until so many
    /// pods were ready once, or [`WAKE_TIMEOUT`] passed. Nothing happened before it watched.
    pub fn created(policy: ScalePolicy, now: Moment) -> Self {
        let initial =
            if policy.initial > 0 { Initial::Due { until: now + WAKE_TIMEOUT } } else { Initial::Done };
        Self { initial, watching: None, ..Self::new(policy, now) }
    }

    /// Replaces the policy; what is known of the load stays.
    pub fn set_policy(&mut self, policy: ScalePolicy) {
        if policy.stable_window != self.policy.stable_window {
            self.window = self.window.resized(policy.stable_window);
        }
        self.policy = policy;
    }

    /// Keeps the service at `pods`, regardless of the policy, until [`Autoscaler::unpin`]. 0 means: to zero
    /// now; the next request after that wakes it and ends the pin.
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

    /// Where the service is pinned.
    pub fn pinned(&self) -> Option<u32> {
        match self.pin {
            Pin::Auto => None,
            Pin::At(pods) => Some(pods),
            Pin::ToZero | Pin::Parked => Some(0),
        }
    }

    /// Whether a surge keeps pods from being taken away.
    pub fn panics(&self) -> bool {
        matches!(self.mood, ScaleMode::Panic { .. })
    }

    /// Replaces the list of reporters that serve this service and so must report: the gateways of their own
    /// `EndpointSlice` and the Envoys that are subscribed.
    ///
    /// What an unlisted one has present is forgotten, and its silence means nothing any more. The load that
    /// it reported before stays in the window: it happened, and the reporter that took over reports only from now on.
    pub fn list(
        &mut self,
        now: Moment,
        serving: impl IntoIterator<Item = Reporter>,
    ) -> Result<(), TooManyReporters> {
        self.now = self.now.max(now);
        if self.reporters.list(self.now, serving).total() > 0 {
            // As far as we can know, what it had ended now.
            self.active = self.now;
        }
        self.reporters.is_full()
    }

    /// Takes in a report that arrived at `now`. Reports of one moment from different reporters commute.
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
        self.reporters.hear(self.now, from, report.present)
    }

    /// Decides on what was observed at `now`.
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

    /// The next moment after `now` at which a decision on the same pods, without another report or list, may
    /// differ from one at `now`. None differs before it, to the nanosecond; one at it need not differ either.
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

    /// Brings every state up to what was observed.
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
            ScaleMode::Panic { last_surge } if now >= last_surge + self.policy.stable_window => ScaleMode::Calm,
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

    /// What the load asks for, were it known for sure.
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

    /// Why the load may be higher than what is known, so that pods must not be taken away.
    fn blind(&self) -> Option<ScaleReason> {
        if self.watching.is_some_and(|since| self.now < since + self.policy.stable_window) {
            return Some(ScaleReason::WarmingUp { window: self.policy.stable_window });
        }
        self.reporters.blindness(self.now).map(|blindness| match blindness {
            UnknownLoad::NoReporters => ScaleReason::NoReporters,
            UnknownLoad::TooMany => ScaleReason::TooManyReporters,
            UnknownLoad::Silent(reporter) => ScaleReason::ReporterStale { reporter },
        })
    }

    /// A hold wakes; so does a request that was too short to be seen waiting, until it is forgotten as idle.
    /// What a leaving pod still works on does not count: it asks for no new pod.
    fn wants_wake(&self) -> bool {
        let asked = matches!(self.life, Life::Zero { asked: true });
        self.reporters.present().holds > 0 || (asked && !self.is_idle())
    }

    fn is_idle(&self) -> bool {
        self.reporters.present().total() == 0 && self.now >= self.active + self.policy.idle_after
    }

    /// Whether the service had its time since the wake.
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

    /// The most pods that this step allows. Pods that were already asked for are no scale-up.
    fn most_up(&self, replicas: u32) -> u32 {
        let ready = self.step.map_or(1, |step| step.ready.max(1));
        self.policy.max_scale_up_rate.times(ready).max(replicas)
    }

    /// The fewest pods that this step allows. It does not bring back pods that something else removed.
    fn least_down(&self, replicas: u32) -> u32 {
        self.policy.max_scale_down_rate.part_of(self.step.map_or(0, |step| step.most)).min(replicas)
    }

    fn pods_for_load(&self) -> u32 {
        let stable = self.demands(self.policy.stable_window);
        let panic = self.panics().then(|| self.demands(self.policy.panic_window));
        stable.chain(panic.into_iter().flatten()).map(Demand::pods).max().unwrap_or(0)
    }

    /// The load of the last `length` by each target.
    fn demands(&self, length: Duration) -> impl Iterator<Item = Demand> + use<> {
        let load = self.window.over(length);
        let concurrency = self.policy.concurrency.map(|target| load.concurrency(target));
        let rate = self.policy.rate.map(|target| load.rate(target));
        // A rate counts a request once, however long it waits; held ones are concurrency all the same.
        let holds = concurrency
            .is_none()
            .then(|| Demand::of(self.reporters.present().holds.into(), self.policy.room));
        [concurrency, rate, holds].into_iter().flatten()
    }
}
