//! Drives one autoscaler as a controller does: a report each second, decisions that are carried out, pods that take time to
//! become ready, and requests that take no time once a pod is ready.

use std::time::Duration;

use rouse_core::scale::{
    Autoscaler, CurrentLoad, Decision, IdlePolicy, LoadReport, ObservedTarget, Owner, Reporter, ScalePolicy,
    ScaleReason, ScaleSettings,
};
use rouse_core::time::Moment;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn mins(n: u64) -> Duration {
    Duration::from_mins(n)
}

/// Goes to zero after a minute, until it has learned; a cold start is worth `cost`.
pub(crate) fn learned(cost: Duration) -> ScaleSettings {
    ScaleSettings { idle: IdlePolicy::Learned { cold_start_cost: cost }, ..ScaleSettings::default() }
}

pub(crate) struct Driver {
    pub(crate) scaler: Autoscaler,
    pub(crate) now: Moment,
    pub(crate) replicas: u32,
    pub(crate) reason: ScaleReason,
    start_time: Duration,
    /// When the present pods will be ready.
    ready_at: Option<Moment>,
    gateway: Reporter,
    holds: u32,
    /// Pod-seconds so far.
    pub(crate) pod_seconds: u64,
    pub(crate) cold_starts: u32,
}

impl Driver {
    pub(crate) fn new(settings: &ScaleSettings, start_time: Duration) -> Self {
        let scaler = Autoscaler::created(ScalePolicy::try_from(settings).unwrap(), Moment::ZERO);
        Self::with(scaler, start_time)
    }

    pub(crate) fn with(mut scaler: Autoscaler, start_time: Duration) -> Self {
        let gateway = Reporter::new("gateway");
        scaler.list(Moment::ZERO, [gateway.clone()]).unwrap();
        Self {
            scaler,
            now: Moment::ZERO,
            replicas: 0,
            reason: ScaleReason::AtZero,
            start_time,
            ready_at: None,
            gateway,
            holds: 0,
            pod_seconds: 0,
            cold_starts: 0,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.replicas > 0 && self.ready_at.is_some_and(|ready| ready <= self.now)
    }

    fn decide(&mut self) {
        for _ in 0..2 {
            let ready = if self.is_ready() { self.replicas } else { 0 };
            let observed = ObservedTarget { replicas: self.replicas, ready, owner: Owner::Rouse, token: () };
            let Decision { desired, reason, .. } = self.scaler.decide(self.now, observed);
            if self.replicas == 0 && desired > 0 {
                self.ready_at = Some(self.now + self.start_time);
            }
            self.replicas = desired;
            self.reason = reason;
        }
    }

    fn report(&mut self, requests: u64) {
        let present = CurrentLoad { holds: self.holds, ..CurrentLoad::default() };
        let report = LoadReport { span: SECOND, concurrency: self.holds.into(), requests, present };
        self.scaler.report(self.now, &self.gateway, &report).unwrap();
    }

    /// A second passes.
    pub(crate) fn second(&mut self) {
        self.pod_seconds += u64::from(self.replicas);
        self.now = self.now + SECOND;
        if self.is_ready() && self.holds > 0 {
            // It is served within the second: the report still has its time.
            let report = LoadReport { span: SECOND, concurrency: self.holds.into(), ..LoadReport::default() };
            self.holds = 0;
            self.decide();
            self.scaler.report(self.now, &self.gateway, &report).unwrap();
        } else {
            self.report(0);
        }
        self.decide();
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        for _ in 0..time.as_secs() {
            self.second();
        }
    }

    /// A request comes now. Returns whether a pod was ready. If not, it waits until one is.
    pub(crate) fn request(&mut self) -> bool {
        let warm = self.is_ready();
        if !warm {
            self.cold_starts += 1;
            self.holds = 1;
        }
        self.report(1);
        self.decide();
        while self.holds > 0 {
            self.second();
        }
        warm
    }

    /// A request comes, and does not wait.
    pub(crate) fn impatient_request(&mut self) {
        self.report(1);
        self.decide();
    }

    /// A request after each of these gaps. Returns for each whether it met a ready pod.
    pub(crate) fn gaps(&mut self, gaps: impl IntoIterator<Item = Duration>) -> Vec<bool> {
        let gap = |gap| {
            self.wait(gap);
            self.request()
        };
        gaps.into_iter().map(gap).collect()
    }
}
