//! The metrics of reports at a reporter. Names and labels are final: dashboards and alerts are built on them.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry as Metrics;

use super::connection::ConnectionEnd;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Counts what a client does. Clones share the metrics.
#[derive(Debug, Clone)]
pub struct ReportClientMetrics {
    connected: Gauge,
    meters: Gauge,
    ends: Family<ReasonLabel, Counter>,
}

impl ReportClientMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &mut Metrics) -> Self {
        let (connected, meters, ends) = (Gauge::default(), Gauge::default(), Family::default());
        metrics.register(
            "rouse_load_report_controllers",
            "Controllers that get the load of this process",
            connected.clone(),
        );
        metrics.register(
            "rouse_load_report_meters",
            "Services and routes that have had load, and are reported",
            meters.clone(),
        );
        metrics.register(
            "rouse_load_report_stream_ends",
            "Why streams to controllers ended, or could not begin",
            ends.clone(),
        );
        Self { connected, meters, ends }
    }

    pub(super) fn connected(&self, controllers: usize) {
        self.connected.set(i64::try_from(controllers).unwrap_or(i64::MAX));
    }

    pub(super) fn meters(&self, known: usize) {
        self.meters.set(i64::try_from(known).unwrap_or(i64::MAX));
    }

    pub(super) fn ended(&self, end: &ConnectionEnd) {
        self.ends.get_or_create(&ReasonLabel { reason: end.reason() }).inc();
    }
}
