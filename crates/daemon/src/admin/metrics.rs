//! Metrics in addition to the proxy's: counters of cold starts, wakes and readiness sources, and gauges read at each scrape.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as Metrics;
use rouse_core::cold_start::ColdStart;
use rouse_core::endpoint::{ServiceId, Source, State};
use rouse_core::registry::Registry;
use rouse_core::snapshot::PortView;
use rouse_core::time::Clock;
use rouse_kube::client::watch::WatchState;
use rouse_kube::cluster::Cluster;
use rouse_local::engine::{AppEvent, AppEventKind};
use rouse_proxy::telemetry::metrics::{OwnedFamily, register, seconds};

type Labels<const N: usize> = [(&'static str, String); N];

/// The phase label of the whole cold start: quantiles of the phases do not add up to it.
const WHOLE: &str = "total";

/// Counters of cold starts, readiness sources and wakes.
#[derive(Debug, Clone)]
pub struct EventMetrics {
    cold_starts: OwnedFamily<Labels<3>, Histogram>,
    sources: Family<Labels<1>, Counter>,
    wakes: Family<Labels<1>, Counter>,
}

impl EventMetrics {
    /// Registers the counters in `metrics`.
    pub fn new(metrics: &mut Metrics) -> Self {
        let event_metrics = Self {
            cold_starts: OwnedFamily::register(
                metrics,
                "rouse_cold_start_seconds",
                "Duration of each phase of a cold start, and of the whole, by outcome",
                seconds,
            ),
            sources: register(
                metrics,
                "rouse_endpoint_source_first",
                "Pods that became ready, by the source that reported it first",
            ),
            wakes: register(metrics, "rouse_wakes", "Wakes of services, by result"),
        };
        for source in [Source::Slice, Source::Push, Source::Probe] {
            // Create each series at zero: the first count of a series that appears later has no rate.
            event_metrics.sources.get_or_create(&[("source", source.to_string())]).inc_by(0);
        }
        for result in ["sent", "failed"] {
            event_metrics.wakes.get_or_create(&[("result", result.to_owned())]).inc_by(0);
        }
        event_metrics
    }

    /// Records the phases of a cold start.
    pub fn cold_start(&self, cold: &ColdStart) {
        let service = cold.service.to_string();
        let phases = cold.phases().map(|(phase, took)| (phase.as_str(), took));
        for (phase, took) in phases.chain([(WHOLE, cold.total())]) {
            let outcome = cold.outcome.as_str().to_owned();
            let labels = [("service", service.clone()), ("phase", phase.to_owned()), ("outcome", outcome)];
            self.cold_starts.series(&service, &labels).observe(took.as_secs_f64());
        }
    }

    /// Counts an event of the local engine.
    pub fn event(&self, event: &AppEvent, registry: &Registry) {
        match &event.what {
            AppEventKind::Wake => self.woke("sent"),
            AppEventKind::Failed { .. } => self.woke("failed"),
            AppEventKind::Ready { pod, .. } => {
                if let Some(source) = source(registry, &event.service, pod) {
                    self.ready_by(source);
                }
            }
            AppEventKind::Removed => self.forget(&event.service),
            _ => {}
        }
    }

    /// Counts a wake that was sent, or failed.
    pub fn wake(&self, sent: bool) {
        self.woke(if sent { "sent" } else { "failed" });
    }

    /// Counts a pod that `source` reported ready first.
    pub fn ready_by(&self, source: Source) {
        self.sources.get_or_create(&[("source", source.to_string())]).inc();
    }

    fn woke(&self, result: &str) {
        self.wakes.get_or_create(&[("result", result.to_owned())]).inc();
    }

    /// Drops the series of a removed service: files change often, and the series would pile up.
    fn forget(&self, service: &ServiceId) {
        let gone = service.to_string();
        self.cold_starts.keep(|name| name != gone);
    }

    /// Drops the series of all services that are not in `services`.
    pub fn keep(&self, services: &HashSet<String>) {
        self.cold_starts.keep(|name| services.contains(name));
    }
}

/// The source that reported a pod ready.
fn source(registry: &Registry, service: &ServiceId, pod: &str) -> Option<Source> {
    let service = registry.get(service)?;
    let snapshot = Arc::clone(&service.snapshot());
    let named = |name: &str| name.rsplit('/').next() == Some(pod);
    let mut endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
    let found = endpoints.find(|one| one.pod.as_ref().is_some_and(|one| named(&one.name)))?;
    Some(found.source)
}

/// Exports the state of the cluster's watches at each scrape.
pub struct WatchCollector(Arc<Cluster>, Arc<dyn Clock>);

impl fmt::Debug for WatchCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchCollector")
    }
}

impl WatchCollector {
    /// Registers all watches of `cluster`; `clock` is the clock of their times.
    pub fn register(cluster: Arc<Cluster>, clock: Arc<dyn Clock>, metrics: &mut Metrics) {
        metrics.register_collector(Box::new(Self(cluster, clock)));
    }
}

impl Collector for WatchCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (watches, now) = (self.0.watches(), self.1.now());
        let help = "How long the watch of the API server has been broken; 0 while it works";
        let name = "rouse_watch_broken_seconds";
        let mut broken = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for watch in &watches {
            let since = match &watch.state {
                WatchState::Broken { since, .. } => now.since(*since).as_secs_f64(),
                _ => 0.0,
            };
            broken.encode_family(&[("kind", watch.kind)])?.encode_gauge(&since)?;
        }
        let help = "How many times all objects of the kind were listed";
        let mut lists = encoder.encode_descriptor("rouse_watch_lists", help, None, MetricType::Counter)?;
        for watch in &watches {
            let labels = [("kind", watch.kind)];
            let mut family = lists.encode_family(&labels)?;
            family.encode_counter::<[(&str, &str); 0], _, u64>(&watch.lists, None)?;
        }
        Ok(())
    }
}

/// Exports the held requests and the endpoints of each service at each scrape.
pub struct RegistryCollector(Arc<Registry>);

impl RegistryCollector {
    /// Registers all services of `registry`.
    pub fn register(registry: Arc<Registry>, metrics: &mut Metrics) {
        metrics.register_collector(Box::new(Self(registry)));
    }
}

impl fmt::Debug for RegistryCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Present")
    }
}

impl Collector for RegistryCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut services = self.0.services();
        services.sort_by(|one, other| one.id().cmp(other.id()));
        let help = "Requests that wait for a pod";
        let mut holds = encoder.encode_descriptor("rouse_holds", help, None, MetricType::Gauge)?;
        for service in &services {
            let count = i64::try_from(service.holds()).unwrap_or(i64::MAX);
            holds.encode_family(&[("service", service.id().to_string())])?.encode_gauge(&count)?;
        }
        let help = "Endpoints of a service, by state";
        let mut endpoints = encoder.encode_descriptor("rouse_endpoints", help, None, MetricType::Gauge)?;
        for service in &services {
            let snapshot = Arc::clone(&service.snapshot());
            for state in State::ALL {
                let all = snapshot.ports.iter().flat_map(PortView::endpoints);
                let count = all.filter(|endpoint| endpoint.state == state).count();
                let labels = [("service", service.id().to_string()), ("state", state.to_string())];
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                endpoints.encode_family(&labels)?.encode_gauge(&count)?;
            }
        }
        Ok(())
    }
}
