//! The metrics of the xDS server. Names and labels are final: dashboards and alerts are built on them.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry as Metrics;

use super::resource_type::ResourceType;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabel {
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Counts what the server does. Clones share the metrics.
#[derive(Debug, Clone)]
pub struct XdsMetrics {
    streams: Gauge,
    ended: Family<ReasonLabel, Counter>,
    responses: Family<TypeLabel, Counter>,
    resources: Family<TypeLabel, Counter>,
    bytes: Family<TypeLabel, Counter>,
    acks: Family<TypeLabel, Counter>,
    nacks: Family<TypeLabel, Counter>,
    latency: Family<TypeLabel, Histogram>,
    cached: Family<TypeLabel, Gauge>,
}

/// One open stream. Dropping it ends it.
#[derive(Debug)]
pub(super) struct StreamGuard(Gauge);

/// What a response has.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentResponse {
    pub(super) kind: ResourceType,
    /// Additions, changes and removals.
    pub(super) resources: usize,
    pub(super) bytes: usize,
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

impl XdsMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &mut Metrics) -> Self {
        // 0.5 ms to 16 s: Envoy withholds an answer for up to 15 s.
        let latency = || Histogram::new(exponential_buckets(0.0005, 2.0, 16));
        let this = Self {
            streams: Gauge::default(),
            ended: Family::default(),
            responses: Family::default(),
            resources: Family::default(),
            bytes: Family::default(),
            acks: Family::default(),
            nacks: Family::default(),
            latency: Family::new_with_constructor(latency),
            cached: Family::default(),
        };
        metrics.register("rouse_xds_streams", "Open streams of Envoys", this.streams.clone());
        metrics.register(
            "rouse_xds_streams_ended",
            "Why streams of Envoys were refused or ended",
            this.ended.clone(),
        );
        metrics.register("rouse_xds_responses", "Responses sent to Envoys", this.responses.clone());
        metrics.register(
            "rouse_xds_sent_resources",
            "Resources in responses to Envoys, with removals",
            this.resources.clone(),
        );
        metrics.register("rouse_xds_sent_bytes", "Bytes of responses to Envoys", this.bytes.clone());
        metrics.register("rouse_xds_acks", "Responses that Envoys accepted", this.acks.clone());
        metrics.register("rouse_xds_nacks", "Responses that Envoys rejected", this.nacks.clone());
        metrics.register(
            "rouse_xds_ack_seconds",
            "Time from a response to the answer of the Envoy",
            this.latency.clone(),
        );
        metrics.register("rouse_xds_resources", "Resources that Envoys can get", this.cached.clone());
        this
    }

    /// A stream opens.
    pub(super) fn stream(&self) -> StreamGuard {
        self.streams.inc();
        StreamGuard(self.streams.clone())
    }

    /// A stream was refused, or has ended.
    pub(super) fn ended(&self, reason: &'static str) {
        self.ended.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(super) fn sent(&self, response: SentResponse) {
        let label = TypeLabel { r#type: response.kind.as_str() };
        self.responses.get_or_create(&label).inc();
        self.resources.get_or_create(&label).inc_by(count(response.resources));
        self.bytes.get_or_create(&label).inc_by(count(response.bytes));
    }

    /// A client accepts a response, or rejects it.
    pub(super) fn answered(&self, kind: ResourceType, rejected: bool, after: Duration) {
        let label = TypeLabel { r#type: kind.as_str() };
        let counter = if rejected { &self.nacks } else { &self.acks };
        counter.get_or_create(&label).inc();
        self.latency.get_or_create(&label).observe(after.as_secs_f64());
    }

    /// How many resources the cache has.
    pub(super) fn cached(&self, kind: ResourceType, number: usize) {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        self.cached.get_or_create(&TypeLabel { r#type: kind.as_str() }).set(number);
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
