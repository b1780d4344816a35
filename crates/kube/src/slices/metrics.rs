//! The metrics of the controller. Those of Kubernetes' own controller have its names, so that its dashboards and alerts work.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry as Metrics;
use rouse_core::endpoint::{Conditions, ServiceId};
use rouse_core::slices::{EndpointSlice, ListedEndpoint, Options, SliceContent, SlicePlan};

/// How a sync ended, as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncResult {
    Success,
    Stale,
    Error,
}

/// A write, as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Create,
    Update,
    Delete,
}

const RESULTS: [&str; 3] = ["success", "stale", "error"];
const OPERATIONS: [&str; 3] = ["create", "update", "delete"];

/// The state of the queue at a scrape.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QueueState {
    pub(super) unsynced: usize,
    pub(super) oldest: Duration,
    pub(super) failing: usize,
}

/// What a plan changes, and what the slices of its service have afterwards.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PlanSummary {
    pub(super) added: usize,
    pub(super) removed: usize,
    /// How many slices are created, updated and deleted.
    pub(super) changed: usize,
    pub(super) totals: ServiceTotals,
}

/// The slices of one service, counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceTotals {
    endpoints: usize,
    slices: usize,
    /// How many slices would do.
    desired: usize,
    conditions: BTreeMap<[Option<bool>; 3], usize>,
}

impl PlanSummary {
    /// Summarizes a plan that was made from the slices `before`.
    pub(super) fn new(plan: &SlicePlan, before: &[Arc<EndpointSlice>], options: &Options) -> Self {
        let written: HashSet<&str> =
            plan.update.iter().chain(&plan.delete).map(|slice| &*slice.name).collect();
        let old = before.iter().filter(|slice| written.contains(&*slice.name));
        let old: HashSet<_> = old.flat_map(|slice| &slice.content.endpoints).map(identity).collect();
        let updated = plan.update.iter().map(|slice| &slice.content);
        let new = updated.chain(&plan.create).flat_map(|content| &content.endpoints);
        let new: HashSet<_> = new.map(identity).collect();
        Self {
            added: new.difference(&old).count(),
            removed: old.difference(&new).count(),
            changed: plan.writes(),
            totals: ServiceTotals::new(plan.contents(), options),
        }
    }
}

/// What tells endpoints apart: the pod and its addresses.
fn identity(endpoint: &ListedEndpoint) -> (Option<(&str, &str)>, &[IpAddr]) {
    (endpoint.target.as_ref().map(|pod| (&*pod.namespace, &*pod.name)), &endpoint.addresses)
}

impl ServiceTotals {
    fn new<'a>(contents: impl Iterator<Item = &'a SliceContent>, options: &Options) -> Self {
        let mut totals = Self::default();
        let mut groups: BTreeMap<_, usize> = BTreeMap::new();
        for content in contents {
            totals.slices += 1;
            totals.endpoints += content.endpoints.len();
            let ports: std::collections::BTreeSet<_> = content.ports.iter().collect();
            *groups.entry((content.family, ports)).or_default() += content.endpoints.len();
            for endpoint in &content.endpoints {
                let Conditions { ready, serving, terminating } = endpoint.conditions;
                *totals.conditions.entry([ready, serving, terminating]).or_default() += 1;
            }
        }
        // A family without endpoints has one slice.
        let most = options.max_endpoints_per_slice.get();
        totals.desired = groups.values().map(|endpoints| endpoints.div_ceil(most).max(1)).sum();
        totals
    }
}

/// The metrics of the controller. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct SliceMetrics {
    added: Histogram,
    removed: Histogram,
    changed: Histogram,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    syncs: [AtomicU64; 3],
    changes: [AtomicU64; 3],
    services: Mutex<HashMap<ServiceId, ServiceTotals>>,
}

impl Counts {
    fn services(&self) -> MutexGuard<'_, HashMap<ServiceId, ServiceTotals>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SliceMetrics {
    pub(super) fn new() -> Self {
        let endpoints = || Histogram::new(exponential_buckets(2.0, 2.0, 15));
        let slices = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];
        Self {
            added: endpoints(),
            removed: endpoints(),
            changed: Histogram::new(slices),
            counts: Arc::default(),
        }
    }

    /// Registers them; `queue` returns the state of the queue.
    pub(super) fn register(
        &self,
        metrics: &mut Metrics,
        queue: impl Fn() -> QueueState + Send + Sync + 'static,
    ) {
        let own = metrics.sub_registry_with_prefix("endpoint_slice_controller");
        let help = "Endpoints that a sync of a Service added";
        own.register("endpoints_added_per_sync", help, self.added.clone());
        let help = "Endpoints that a sync of a Service removed";
        own.register("endpoints_removed_per_sync", help, self.removed.clone());
        let help = "EndpointSlices that a sync of a Service created, updated or deleted";
        own.register("endpointslices_changed_per_sync", help, self.changed.clone());
        metrics.register_collector(Box::new(CountCollector { counts: Arc::clone(&self.counts), queue }));
    }

    pub(super) fn wrote(&self, operation: Operation) {
        self.counts.changes[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn ended(&self, result: SyncResult) {
        self.counts.syncs[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn planned(&self, service: &ServiceId, summary: PlanSummary) {
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
        let float = |count: usize| count as f64;
        self.added.observe(float(summary.added));
        self.removed.observe(float(summary.removed));
        self.changed.observe(float(summary.changed));
        self.counts.services().insert(service.clone(), summary.totals);
    }

    /// The service has no slices of ours any more.
    pub(super) fn forget(&self, service: &ServiceId) {
        self.counts.services().remove(service);
    }

    /// Another process writes now, and counts.
    pub(super) fn forget_all(&self) {
        self.counts.services().clear();
    }
}

/// Exports the counts at each scrape.
struct CountCollector<Q> {
    counts: Arc<Counts>,
    queue: Q,
}

impl<Q> fmt::Debug for CountCollector<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CountCollector")
    }
}

impl<Q: Fn() -> QueueState + Send + Sync + 'static> Collector for CountCollector<Q> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let labelled = [
            (
                "endpoint_slice_controller_syncs",
                "Syncs of Services, by result",
                "result",
                RESULTS,
                &self.counts.syncs,
            ),
            (
                "endpoint_slice_controller_changes",
                "EndpointSlices that were written, by operation",
                "operation",
                OPERATIONS,
                &self.counts.changes,
            ),
        ];
        for (name, help, label, values, counts) in labelled {
            // A counter would get the suffix `_total`, which these names do not have.
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Unknown)?;
            for (value, count) in values.iter().zip(counts) {
                family.encode_family(&[(label, *value)])?.encode_gauge(&count.load(Ordering::Relaxed))?;
            }
        }
        self.encode_totals(&mut encoder)?;
        let QueueState { unsynced, oldest, failing } = (self.queue)();
        let help = "Services with changes that are not written yet";
        gauge(&mut encoder, "rouse_endpointslice_unsynced_services", help, unsynced)?;
        let help = "Services whose last sync failed";
        gauge(&mut encoder, "rouse_endpointslice_failing_services", help, failing)?;
        let (name, help) = (
            "rouse_endpointslice_oldest_unsynced_seconds",
            "The age of the oldest change that is not written yet",
        );
        encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&oldest.as_secs_f64())
    }
}

impl<Q> CountCollector<Q> {
    fn encode_totals(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let services = self.counts.services();
        let sum = |count: fn(&ServiceTotals) -> usize| services.values().map(count).sum();
        let help = "Endpoints that should be in EndpointSlices";
        gauge(encoder, "endpoint_slice_controller_endpoints_desired", help, sum(|totals| totals.endpoints))?;
        let help = "EndpointSlices";
        gauge(encoder, "endpoint_slice_controller_num_endpoint_slices", help, sum(|totals| totals.slices))?;
        let help = "EndpointSlices that there would be if each were as full as possible";
        gauge(
            encoder,
            "endpoint_slice_controller_desired_endpoint_slices",
            help,
            sum(|totals| totals.desired),
        )?;
        let mut conditions: BTreeMap<[Option<bool>; 3], usize> = BTreeMap::new();
        for (key, count) in services.values().flat_map(|totals| &totals.conditions) {
            *conditions.entry(*key).or_default() += count;
        }
        drop(services);
        let (name, help) = ("endpoint_slice_controller_endpoints", "Endpoints, by their conditions");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for ([ready, serving, terminating], count) in conditions {
            let labels =
                [("ready", text(ready)), ("serving", text(serving)), ("terminating", text(terminating))];
            family.encode_family(&labels)?.encode_gauge(&signed(count))?;
        }
        Ok(())
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, count: usize) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&signed(count))
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A condition as a label.
fn text(condition: Option<bool>) -> &'static str {
    match condition {
        Some(true) => "true",
        Some(false) => "false",
        None => "absent",
    }
}
