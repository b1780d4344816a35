//! Reads the load meter of an app, and turns the readings into load reports for the autoscaler.

use rouse_core::load_meter::{LoadMeter, LoadSample};
use rouse_core::scale::{LoadReport, REPORT_PERIOD};
use rouse_core::time::Moment;

/// The readings of one meter: one each [`REPORT_PERIOD`], except at rest.
#[derive(Debug)]
pub(super) struct LoadReader {
    last: LoadSample,
    rests: bool,
}

impl LoadReader {
    /// At rest.
    pub(super) fn new(meter: &LoadMeter) -> Self {
        Self { last: meter.sample(), rests: true }
    }

    /// The load since the last reading.
    pub(super) fn report(&mut self, meter: &LoadMeter) -> LoadReport {
        let sample = meter.sample();
        let report = LoadReport::between(&self.last, &sample);
        self.last = sample;
        self.rests = false;
        report
    }

    /// No reading is due until the next report.
    pub(super) fn rest(&mut self) {
        self.rests = true;
    }

    /// When the next reading is due.
    pub(super) fn next_reading(&self) -> Option<Moment> {
        (!self.rests).then(|| self.last.at + REPORT_PERIOD)
    }
}
