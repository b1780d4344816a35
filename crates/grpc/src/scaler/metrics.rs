//! The metrics of the external scaler. Names and labels are final: dashboards and alerts are built on them.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry as Metrics;
use tonic::{Code, Status};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    method: &'static str,
    result: &'static str,
}

/// Counts the calls of KEDA. Clones share the metrics.
#[derive(Debug, Clone)]
pub struct ScalerMetrics {
    calls: Family<CallLabels, Counter>,
    streams: Gauge,
}

/// A stream that is open. Dropping it counts its end.
#[derive(Debug)]
pub(super) struct StreamGuard(Gauge);

impl ScalerMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &mut Metrics) -> Self {
        let (calls, streams) = (Family::default(), Gauge::default());
        metrics.register(
            "rouse_scaler_calls",
            "Calls of KEDA's external scaler interface, by method and result",
            calls.clone(),
        );
        metrics.register(
            "rouse_scaler_streams",
            "Open streams of StreamIsActive and of health checks",
            streams.clone(),
        );
        Self { calls, streams }
    }

    /// Counts a call.
    pub(super) fn count<T>(&self, method: &'static str, result: &Result<T, Status>) {
        let result = match result {
            Ok(_) => "ok",
            Err(status) => match status.code() {
                Code::InvalidArgument => "invalid",
                Code::NotFound => "unknown_route",
                Code::Unavailable => "unavailable",
                Code::ResourceExhausted => "limited",
                _ => "other",
            },
        };
        self.calls.get_or_create(&CallLabels { method, result }).inc();
    }

    /// Counts a stream.
    pub(super) fn stream(&self) -> StreamGuard {
        self.streams.inc();
        StreamGuard(self.streams.clone())
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
