//! The metrics of the autoscaler. Names and labels are final: dashboards and alerts are built on them.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry as Metrics;

use super::AutoscaleController;
use super::reconcile::WriteEnd;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    direction: &'static str,
    result: &'static str,
}

/// Counts decisions and writes. Clones share the metrics.
#[derive(Debug, Clone, Default)]
pub struct AutoscaleMetrics {
    decisions: Family<ReasonLabel, Counter>,
    writes: Family<WriteLabels, Counter>,
}

impl AutoscaleMetrics {
    /// Registers the counters.
    pub fn new(metrics: &mut Metrics) -> Self {
        let all = Self::default();
        metrics.register(
            "rouse_autoscaler_decisions",
            "Decisions about the number of pods that differ from the one before, by the rule that decided",
            all.decisions.clone(),
        );
        metrics.register(
            "rouse_autoscaler_writes",
            "Attempts to change the number of pods of a workload, by direction and result",
            all.writes.clone(),
        );
        all
    }

    pub(super) fn decided(&self, reason: &'static str) {
        self.decisions.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(super) fn wrote(&self, from: u32, to: u32, end: &WriteEnd) {
        let direction = match (from, to) {
            (0, _) => "from_zero",
            (_, 0) => "to_zero",
            _ if to > from => "up",
            _ => "down",
        };
        let result = match end {
            WriteEnd::Written(_) => "written",
            WriteEnd::Conflict => "conflict",
            WriteEnd::NotLeader => "not_leader",
            WriteEnd::Failed(_) => "failed",
        };
        self.writes.get_or_create(&WriteLabels { direction, result }).inc();
    }
}

/// Exports the state of the autoscaler at each scrape.
#[derive(Debug)]
pub struct AutoscaleCollector(Arc<AutoscaleController>);

impl AutoscaleCollector {
    /// Registers the gauges of `controller`.
    pub fn register(controller: Arc<AutoscaleController>, metrics: &mut Metrics) {
        metrics.register_collector(Box::new(Self(controller)));
    }
}

impl Collector for AutoscaleCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.0.counts();
        let mut gauge = |name: &str, help: &str, label: &str, values: &[(&'static str, usize)]| {
            let mut gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (value, count) in values {
                let count = i64::try_from(*count).unwrap_or(i64::MAX);
                if label.is_empty() {
                    gauge.encode_gauge(&count)?;
                } else {
                    gauge.encode_family(&[(label, *value)])?.encode_gauge(&count)?;
                }
            }
            Ok(())
        };
        let leads = [("", usize::from(counts.leads))];
        gauge("rouse_autoscaler_leader", "1 while this replica leads and writes", "", &leads)?;
        let help = "Workloads that routes lead to, by whether Rouse scales them";
        gauge("rouse_autoscaler_targets", help, "state", &counts.targets)?;
        let help = "Workloads that Rouse scales and that keep their number of pods for now, by the reason";
        gauge("rouse_autoscaler_blocked", help, "reason", &counts.blocked)?;
        let help = "Gateways that serve and xds replicas, by whether their load is known";
        gauge("rouse_autoscaler_reporters", help, "state", &counts.reporters)?;
        let help = "Envoys that send requests past the gateways, by whether their load is known";
        gauge("rouse_autoscaler_envoys", help, "state", &counts.envoys)
    }
}
