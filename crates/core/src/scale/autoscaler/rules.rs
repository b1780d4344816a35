//! The rules of a decision, in the order of the module documentation of `scale`.

use std::time::Duration;

use super::Autoscaler;
use super::state::{Initial, Life, UpCause};
use crate::scale::WAKE_TIMEOUT;
use crate::scale::decision::ScaleReason;
use crate::scale::idle::Advice;
use crate::scale::report::UnknownLoad;
use crate::scale::window::Demand;
use crate::time::Moment;

/// A number of pods and the rule that decided it.
pub(super) struct Verdict {
    pub(super) pods: u32,
    pub(super) reason: ScaleReason,
}

impl Verdict {
    pub(super) fn new(pods: u32, reason: ScaleReason) -> Self {
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
    pub(super) fn at_zero(&self) -> Verdict {
        let verdict = if self.wants_wake() {
            let pods = self.pods_for_load().max(self.awake());
            Verdict::new(pods, ScaleReason::Wake).at_most(self.most_up(0), ScaleReason::UpRate)
        } else if let (true, Advice::Start(window)) = (self.is_without_load(), self.advice(self.now)) {
            Verdict::new(self.awake(), ScaleReason::Ahead { from: window.from, to: window.to })
        } else {
            Verdict::new(0, ScaleReason::AtZero)
        };
        self.within_limits(verdict.at_least(self.initial_pods(), ScaleReason::Initial))
    }

    pub(super) fn running(&self, replicas: u32) -> Verdict {
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
        let (sleeps, one) = self.without_load(self.known_until());
        if let Some(reason) = sleeps {
            return Verdict::new(0, reason);
        }
        let pods = self.pods_for_load();
        let verdict = if self.panics() {
            Verdict::new(pods.max(replicas), ScaleReason::Panic { pods })
        } else {
            Verdict::new(pods, ScaleReason::Load { pods })
        };
        let verdict = verdict
            .at_least(1, one)
            .at_least(self.initial_pods(), ScaleReason::Initial)
            .at_most(self.most_up(replicas), ScaleReason::UpRate)
            .at_least(self.least_down(replicas), ScaleReason::DownRate);
        self.within_limits(verdict)
    }

    /// Until when the load is known: there may have been requests since the last report of a gateway, although it is not silent
    /// yet. If one is silent, another rule keeps the pods.
    pub(super) fn known_until(&self) -> Moment {
        match self.reporters.unknown_load(self.now) {
            Some(_) => self.now,
            None => self.reporters.oldest_report().map_or(self.now, |oldest| oldest.min(self.now)),
        }
    }

    /// Why the service goes to zero, as its load at `known` is, if it does; else why its last pod stays.
    pub(super) fn without_load(&self, known: Moment) -> (Option<ScaleReason>, ScaleReason) {
        let after = self.policy.idle_after;
        let needed = ScaleReason::Load { pods: 1 };
        if self.floor() > 0 || self.initial_pods() > 0 || !self.is_without_load() {
            return (None, needed);
        }
        let advice = self.advice(known);
        let reason = match advice {
            Advice::Fixed if known >= self.active + after => ScaleReason::Idle { after },
            Advice::Away => ScaleReason::Away,
            Advice::Fixed => return (None, needed),
            Advice::Warm { until } => return (None, ScaleReason::KeptWarm { until }),
            Advice::Start(window) => {
                return (None, ScaleReason::Ahead { from: window.from, to: window.to });
            }
        };
        if self.is_rested(advice) { (Some(reason), needed) } else { (None, ScaleReason::JustWoken { after }) }
    }

    fn within_limits(&self, verdict: Verdict) -> Verdict {
        verdict
            .at_least(self.policy.min, ScaleReason::Min)
            .at_least(self.scheduled.pods(), ScaleReason::Schedule)
            .at_most(self.policy.max, ScaleReason::Max)
    }

    /// The fewest pods now, at any load: `min`, or what the schedule says.
    pub fn floor(&self) -> u32 {
        self.policy.min.max(self.scheduled.pods())
    }

    /// The number of pods after a wake.
    pub(super) fn awake(&self) -> u32 {
        self.floor().max(1)
    }

    /// Why the load may be higher than the known load, so that no pod may be removed.
    fn blind(&self) -> Option<ScaleReason> {
        if self.watching.is_some_and(|since| self.now < since + self.policy.stable_window) {
            return Some(ScaleReason::WarmingUp { window: self.policy.stable_window });
        }
        let unknown = self.reporters.unknown_load(self.now).map(|unknown_load| match unknown_load {
            UnknownLoad::NoReporters => ScaleReason::NoReporters,
            UnknownLoad::TooMany => ScaleReason::TooManyReporters,
            UnknownLoad::Silent(reporter) => ScaleReason::ReporterStale { reporter },
        });
        unknown.or_else(|| Some(ScaleReason::EnvoySilent { envoy: self.silent_envoy.clone()? }))
    }

    /// Whether a hold, or a request that arrived at zero within `idle-after`, needs a pod. Requests that a leaving pod still
    /// processes do not count: they need no new pod.
    pub(super) fn wants_wake(&self) -> bool {
        let asked = matches!(self.life, Life::Zero { asked: true, .. });
        self.reporters.present().holds > 0 || (asked && !self.is_idle())
    }

    fn is_without_load(&self) -> bool {
        self.reporters.present().total() == 0
    }

    pub(super) fn is_idle(&self) -> bool {
        self.is_without_load() && self.now >= self.active + self.policy.idle_after
    }

    /// Whether the pods may go as far as the wake is concerned.
    fn is_rested(&self, advice: Advice) -> bool {
        match self.life {
            Life::Zero { .. } => false,
            Life::Up { cause: UpCause::Ahead | UpCause::Served, .. } if advice == Advice::Away => true,
            Life::Up { woken, ready_since, .. } => {
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
    pub(super) fn demands(&self, length: Duration) -> impl Iterator<Item = Demand> + use<> {
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
