//! Our own autoscaler, the one that runs in `rouse up` and in the controller, told of its load as they tell it.
//!
//! The gateway reads the meter of the service when load begins, and each second while there is some. The controller asks the
//! autoscaler after each reading, when a pod is ready, and when it is due.

use std::sync::Arc;
use std::time::Duration;

use rouse_core::load_meter::{LoadKey, LoadSample};
use rouse_core::scale::{
    Autoscaler, BadPolicy, IdlePolicy, LoadReport, ObservedTarget, Owner, REPORT_PERIOD, Reporter,
    ScalePolicy, ScaleSettings,
};
use rouse_core::time::Moment;

use super::super::replay::{Event, Look, Scaler};
use super::super::service::{ServiceModel, SimulatedService};

/// The most pods of a service: no trace should need more.
const MOST_PODS: u32 = 1000;

/// The autoscaler of one service, with its gateway.
#[derive(Debug)]
pub(super) struct Rouse {
    scaler: Autoscaler,
    gateway: Reporter,
    /// The last reading of the meter.
    last: LoadSample,
    /// The meter is read each second.
    is_read: bool,
    next_reading: Moment,
}

impl Rouse {
    /// With this `idle-after`.
    pub(super) fn fixed(model: &ServiceModel, idle_after: Duration) -> Result<Self, BadPolicy> {
        Self::new(model, idle_after, IdlePolicy::Fixed)
    }

    /// With an idle policy that learns, and the `idle-after` that belongs to the cost of a cold start.
    pub(super) fn learned(model: &ServiceModel, cold_start_cost: Duration) -> Result<Self, BadPolicy> {
        let idle = IdlePolicy::Learned { cold_start_cost };
        Self::new(model, idle.default_idle_after(), idle)
    }

    fn new(model: &ServiceModel, idle_after: Duration, idle: IdlePolicy) -> Result<Self, BadPolicy> {
        let policy = ScalePolicy::try_from(&ScaleSettings {
            concurrency: Some(model.target.into()),
            max: MOST_PODS,
            idle_after,
            idle,
            ..ScaleSettings::default()
        })?;
        let gateway = Reporter::new("gateway");
        let mut scaler = Autoscaler::created(policy, Moment::ZERO);
        // Cannot fail: one reporter is below the limit.
        scaler.list(Moment::ZERO, [gateway.clone()]).ok();
        let key = LoadKey::Route(Arc::from("simulated"));
        let last =
            LoadSample { key, at: Moment::ZERO, requests: 0, busy: Duration::ZERO, present: 0, held: 0 };
        Ok(Self { scaler, gateway, last, is_read: false, next_reading: Moment::ZERO })
    }

    /// Reads the meter, and tells the autoscaler.
    fn read(&mut self, service: &SimulatedService) {
        let now = service.now();
        let count = |requests: u64| u32::try_from(requests).unwrap_or(u32::MAX);
        let sample = LoadSample {
            key: self.last.key.clone(),
            at: now,
            requests: service.requests(),
            busy: service.busy(),
            present: count(service.present()),
            held: count(service.held()),
        };
        let report = LoadReport::between(&self.last, &sample);
        self.scaler.report(now, &self.gateway, &report).ok();
        self.is_read = sample.present > 0 || sample.requests > self.last.requests;
        self.next_reading = now + REPORT_PERIOD;
        self.last = sample;
    }
}

impl Scaler for Rouse {
    fn look(&mut self, service: &SimulatedService, event: Event) -> Option<Look> {
        let now = service.now();
        if event == Event::Arrival && self.is_read {
            return None;
        }
        // An idle meter has no news, but the gateway's heartbeat says so.
        self.read(service);
        let observed = ObservedTarget {
            replicas: service.pods(),
            ready: service.ready(),
            owner: Owner::Rouse,
            token: (),
        };
        let mut desired = self.scaler.decide(now, observed).desired;
        if desired != service.pods() {
            // The change is seen, and may be followed by another.
            let observed =
                ObservedTarget { replicas: desired, ready: service.ready().min(desired), ..observed };
            desired = self.scaler.decide(now, observed).desired;
        }
        let reading = self.is_read.then_some(self.next_reading);
        let next = self.scaler.next_due_while_reported(now).into_iter().chain(reading).min();
        Some(Look { desired, next })
    }
}
