//! The metrics of Envoys' load reports. Names and labels are final: dashboards and alerts are built on them.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry as Metrics;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

/// Counts load reports. Clones share the metrics.
#[derive(Debug, Clone)]
pub struct EnvoyLoadMetrics {
    reports: Family<ResultLabel, Counter>,
    unknown: Counter,
    envoys: Family<StateLabel, Gauge>,
}

impl EnvoyLoadMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &mut Metrics) -> Self {
        let (reports, unknown, envoys) = (Family::default(), Counter::default(), Family::default());
        metrics.register(
            "rouse_xds_load_reports",
            "Load reports of Envoys that were accepted, and why their streams were refused or ended",
            reports.clone(),
        );
        metrics.register(
            "rouse_xds_load_unknown_clusters",
            "Entries of load reports that were ignored, since their cluster is of no known service",
            unknown.clone(),
        );
        metrics.register(
            "rouse_xds_load_envoys",
            "Envoys by whether their load is known; one that is gone counts as silent for ten minutes",
            envoys.clone(),
        );
        Self { reports, unknown, envoys }
    }

    pub(super) fn counted(&self, result: &'static str) {
        self.reports.get_or_create(&ResultLabel { result }).inc();
    }

    pub(super) fn unknown(&self, clusters: usize) {
        self.unknown.inc_by(u64::try_from(clusters).unwrap_or(u64::MAX));
    }

    pub(super) fn envoys(&self, reported: usize, silent: usize) {
        for (state, count) in [("reported", reported), ("silent", silent)] {
            self.envoys.get_or_create(&StateLabel { state }).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
