//! How many pods an app has: what its autoscaler is told, what it decides, and when a failing app is given up.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rouse_core::scale::{Decision, LoadReport, ObservedTarget, Owner, ScaleReason};
use rouse_core::start_failure::StartFailureCause;
use rouse_core::time::Moment;

use super::App;
use crate::engine::AppEventKind;
use crate::engine::pod::Pod;

/// After how long a start ahead of a request that was not allowed is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often the wall clock is read for a schedule: it may be set, and it jumps when the machine was suspended.
const CLOCK_CHECK: Duration = Duration::from_mins(1);
/// How many decisions one step makes at most: a decision that changes the number of pods is followed by another.
const DECISIONS: usize = 3;

impl App {
    /// Whether to stop trying until the next request: the app cannot be started, and no request waits for it.
    pub(super) fn is_given_up(&self) -> bool {
        let down = self.restarts.due().is_some() && !self.pods.iter().any(Pod::stays);
        self.is_started_by_requests_alone() && down && self.service.holds() == 0
    }

    /// Whether it cannot be started and only a request may try again. With `min`, a schedule or a pin above 0, it is tried
    /// without one.
    pub(super) fn is_started_by_requests_alone(&self) -> bool {
        let hopeless =
            matches!(self.failure, Some((_, StartFailureCause::CannotRun | StartFailureCause::CrashLooping)));
        let least = self.spec.policy.min().max(self.scaler.scheduled().0);
        hopeless && self.scaler.pinned().unwrap_or(least) == 0
    }

    fn give_up(&mut self, now: Moment) {
        let from = std::mem::replace(&mut self.desired, 0);
        if from == 0 {
            return;
        }
        "it keeps failing, and no request waits; the next request starts it again"
            .clone_into(&mut self.reason);
        self.tell(AppEventKind::Scaled { from, to: 0, reason: self.reason.clone() });
        let reason = self.reason.clone();
        // The autoscaler must see that the app is at zero: otherwise it would not treat the next request as a wake.
        self.report(now, false);
        self.decide(now);
        self.reason = reason;
        self.look = None;
    }

    /// Decides how many pods there should be, and starts and removes some.
    pub(super) fn scale(&mut self, now: Moment) {
        let woken = self.handle.woken.swap(false, Ordering::Acquire);
        if self.removed {
            self.desired = 0;
            "it was removed from the configuration file".clone_into(&mut self.reason);
            self.load.rest();
            return self.reconcile(now);
        }
        if !woken && self.is_given_up() {
            self.give_up(now);
        }
        let due = |moment: Option<Moment>| moment.is_some_and(|moment| moment <= now);
        let report = due(self.load.next_reading()) || due(self.scaler_due());
        if std::mem::take(&mut self.news) || woken || report {
            self.report(now, woken);
            for _ in 0..DECISIONS {
                let changed = self.decide(now);
                // Reconcile between two decisions: "to zero" removes the pods that exist now, even if waiting requests need
                // new ones.
                self.reconcile(now);
                if !changed {
                    break;
                }
            }
        } else {
            // The restart backoff of a pod may be over.
            self.reconcile(now);
        }
        if self.is_idle() {
            self.load.rest();
        }
    }

    /// Sends the load since the last report to the autoscaler.
    fn report(&mut self, now: Moment, woken: bool) {
        let mut report = self.load.report(self.service.meter());
        match (self.desired, woken) {
            (0, true) => {
                self.tell(AppEventKind::Wake);
                // The request behind the wake may not be counted yet, or may be gone. The wake counts in any case.
                report.requests = report.requests.max(1);
            }
            // At zero only a wake counts: wakes have a budget, and a held request may have to wait for it.
            (0, false) => report = LoadReport { span: report.span, ..LoadReport::default() },
            _ => {}
        }
        // Cannot fail: there is one reporter.
        self.scaler.report(now, &self.gateway, &report).ok();
    }

    /// Asks the autoscaler for a decision. Returns whether the desired number of pods changed.
    fn decide(&mut self, now: Moment) -> bool {
        let ready = self.pods.iter().filter(|pod| pod.is_ready()).count();
        let ready = u32::try_from(ready).unwrap_or(u32::MAX);
        // Desired pods, not running ones: a crashed pod is still desired, and the surge pod of a rollout is not.
        let observed = ObservedTarget { replicas: self.desired, ready, owner: Owner::Rouse, token: () };
        self.start_ahead_again = None;
        self.scaler.set_wall_clock(now, (self.engine.settings.wall_clock)().into());
        let decision = self.scaler.decide(now, observed);
        self.reason = decision.reason.to_string();
        let Some(to) = decision.change().filter(|_| self.may_start(now, &decision)) else { return false };
        let from = std::mem::replace(&mut self.desired, to);
        self.tell(AppEventKind::Scaled { from, to, reason: self.reason.clone() });
        true
    }

    /// A start ahead of a request takes from the wake budget, and an app that fails is not started before a request comes. What
    /// is not allowed now is tried again.
    fn may_start(&mut self, now: Moment, decision: &Decision) -> bool {
        let is_ahead = matches!(decision.reason, ScaleReason::Ahead { .. }) && decision.replicas == 0;
        let fails = self.restarts.due().is_some();
        let is_allowed = !is_ahead || (!fails && self.registry.take_wake(&self.spec.service));
        self.start_ahead_again = (!is_allowed).then(|| now + AGAIN);
        is_allowed
    }

    /// Whether there are no pods and no held requests.
    fn is_idle(&self) -> bool {
        self.pods.is_empty() && self.service.holds() == 0
    }

    /// When the autoscaler is asked again, unless the app sleeps.
    pub(super) fn scaler_due(&self) -> Option<Moment> {
        // At zero, only a wake starts a pod, or a schedule, or a policy that learns.
        let sleeps = self.desired == 0 && self.is_idle() && !self.scaler.starts_by_itself();
        self.next_decision.filter(|_| !sleeps)
    }

    /// When a decision may differ although nothing happens.
    pub(super) fn next_decision_after(&self, now: Moment) -> Option<Moment> {
        let clock = (!self.spec.policy.schedule().is_empty()).then(|| now + CLOCK_CHECK);
        let due = self.scaler.next_due_while_reported(now);
        [due, clock, self.start_ahead_again].into_iter().flatten().min()
    }
}
