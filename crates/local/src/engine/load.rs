//! Samples the concurrency of an app, and turns the samples into load reports for the autoscaler.

use std::time::Duration;

use rouse_core::scale::{CurrentLoad, LoadReport};
use rouse_core::service::Service;
use rouse_core::time::Moment;

/// Integrates concurrency over time between two reports.
#[derive(Debug)]
pub(super) struct Meter {
    /// The time of the last report, or when sampling last began.
    since: Moment,
    /// The last sample and its time; `None` while no samples are taken.
    last: Option<(Moment, CurrentLoad)>,
    /// Concurrency × seconds since the last report.
    busy: f64,
    /// The request count of the service at the last report.
    asked: u64,
}

impl Meter {
    pub(super) fn new(now: Moment) -> Self {
        Self { since: now, last: None, busy: 0.0, asked: 0 }
    }

    /// Takes a sample. Assumes that the load of the previous sample lasted until now.
    pub(super) fn sample(&mut self, now: Moment, service: &Service) -> CurrentLoad {
        match self.last {
            Some((at, present)) => self.busy += total(present) * now.since(at).as_secs_f64(),
            // There was no load before sampling began. Including that time in the average would hide a burst.
            None => self.since = now,
        }
        let holds = u32::try_from(service.holds()).unwrap_or(u32::MAX);
        let present = CurrentLoad { in_flight: service.in_flight(), holds, ..CurrentLoad::default() };
        self.last = Some((now, present));
        present
    }

    /// The load since the last report.
    pub(super) fn report(&mut self, now: Moment, service: &Service) -> LoadReport {
        let present = self.sample(now, service);
        let span = now.since(self.since);
        let seconds = span.as_secs_f64();
        let busy = std::mem::take(&mut self.busy);
        let concurrency = if seconds > 0.0 { busy / seconds } else { total(present) };
        let asked = service.asked();
        let requests = asked.saturating_sub(std::mem::replace(&mut self.asked, asked));
        self.since = now;
        LoadReport { span, concurrency, requests, present }
    }

    /// Stops sampling until the next sample is taken.
    pub(super) fn rest(&mut self) {
        self.last = None;
        self.busy = 0.0;
    }

    /// When the next sample is due.
    pub(super) fn next_sample(&self, every: Duration) -> Option<Moment> {
        self.last.map(|(at, _)| at + every)
    }

    /// When the next report is due.
    pub(super) fn next_report(&self, every: Duration) -> Option<Moment> {
        self.last.map(|_| self.since + every)
    }
}

#[expect(clippy::cast_precision_loss, reason = "four 32-bit counts: far below where a float loses a request")]
fn total(present: CurrentLoad) -> f64 {
    present.total() as f64
}
