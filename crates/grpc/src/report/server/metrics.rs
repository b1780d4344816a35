//! The metrics of reports at a controller. Names and labels are final: dashboards and alerts are built on them.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry as Metrics;

use super::stream_end::StreamEnd;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Counts reports. Clones share the metrics.
#[derive(Debug, Clone)]
pub struct ReportMetrics {
    reports: Family<ResultLabel, Counter>,
    entries: Counter,
    reporters: Gauge,
}

impl ReportMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &mut Metrics) -> Self {
        let (reports, entries, reporters) = (Family::default(), Counter::default(), Gauge::default());
        metrics.register(
            "rouse_load_reports",
            "Messages of load reporters that were accepted, and why streams of them were refused or ended",
            reports.clone(),
        );
        metrics.register(
            "rouse_load_report_entries",
            "Readings of services and routes in accepted messages",
            entries.clone(),
        );
        metrics.register(
            "rouse_load_reporters",
            "Gateways and xds replicas that are connected and report load",
            reporters.clone(),
        );
        Self { reports, entries, reporters }
    }

    pub(super) fn accepted(&self, entries: usize) {
        self.reports.get_or_create(&ResultLabel { result: "accepted" }).inc();
        self.entries.inc_by(u64::try_from(entries).unwrap_or(u64::MAX));
    }

    pub(super) fn ended(&self, end: &StreamEnd) {
        self.reports.get_or_create(&ResultLabel { result: end.result() }).inc();
    }

    pub(super) fn reporters(&self, connected: usize) {
        self.reporters.set(i64::try_from(connected).unwrap_or(i64::MAX));
    }
}
