//! Metrics in addition to the proxy's: counters of cold starts, wakes and readiness sources, and gauges read at each scrape.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

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
use rouse_kube::client::watch::{WatchReport, WatchState};
use rouse_local::engine::{AppEvent, AppEventKind};
use rouse_net::tls::ServerTls;
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

/// The state of watches, read at each scrape.
type ReadWatches = Box<dyn Fn() -> Vec<WatchReport> + Send + Sync>;

/// Exports the state of the watches of the API server at each scrape.
pub struct WatchCollector(ReadWatches, Arc<dyn Clock>);

impl fmt::Debug for WatchCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchCollector")
    }
}

impl WatchCollector {
    /// Registers the watches that `watches` returns; `clock` is the clock of their times.
    pub fn register(
        watches: impl Fn() -> Vec<WatchReport> + Send + Sync + 'static,
        clock: Arc<dyn Clock>,
        metrics: &mut Metrics,
    ) {
        metrics.register_collector(Box::new(Self(Box::new(watches), clock)));
    }
}

impl Collector for WatchCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (watches, now) = ((self.0)(), self.1.now());
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

/// Exports the end of the validity of each certificate in use at each scrape, so that a renewed one counts at once.
#[derive(Debug)]
pub struct CertificateCollector(Vec<(&'static str, Arc<ServerTls>)>);

impl CertificateCollector {
    /// Registers the certificates of these listeners, each with the value of its label.
    pub fn register(
        listeners: impl IntoIterator<Item = (&'static str, Arc<ServerTls>)>,
        metrics: &mut Metrics,
    ) {
        metrics.register_collector(Box::new(Self(listeners.into_iter().collect())));
    }
}

impl Collector for CertificateCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "End of the validity of a certificate in use, in seconds since 1970";
        let name = "rouse_tls_certificate_expiry_timestamp_seconds";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (listener, tls) in &self.0 {
            let mut files = HashSet::new();
            for certificate in &*tls.served() {
                let expires =
                    certificate.expires.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
                // A series must not appear twice: a file that is named twice is one certificate.
                let Some(expires) = expires.filter(|_| files.insert(&certificate.file)) else { continue };
                let labels = [("listener", *listener), ("file", &*certificate.file)];
                let seconds = i64::try_from(expires.as_secs()).unwrap_or(i64::MAX);
                family.encode_family(&labels)?.encode_gauge(&seconds)?;
            }
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rouse_net::tls::{CertEntry, ServerSettings};
    use rouse_testkit::certificates::{Authority, Leaf};

    use super::*;

    fn entry(leaf: &Leaf, folder: &Path) -> CertEntry {
        CertEntry { identity: leaf.write(folder), names: Vec::new() }
    }

    /// The samples of the metric, without its name.
    fn samples(metrics: &Metrics) -> Vec<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, metrics).unwrap();
        let name = "rouse_tls_certificate_expiry_timestamp_seconds{";
        text.lines().filter_map(|line| line.strip_prefix(name)).map(str::to_owned).collect()
    }

    #[test]
    fn the_expiry_of_each_certificate_is_a_metric_and_a_renewed_one_changes_it() {
        let authority = Authority::new();
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let leaf = |ends| authority.leaf_of(&["a.test"], [2020, ends]);
        let entries = vec![entry(&leaf(2040), one.path()), entry(&leaf(2050), two.path())];
        let doubled = vec![entry(&leaf(2060), two.path()), entry(&leaf(2060), two.path())];
        let https = Arc::new(ServerTls::new(ServerSettings::new(entries)).unwrap().0);
        let registrations = Arc::new(ServerTls::new(ServerSettings::new(doubled)).unwrap().0);
        let mut metrics = Metrics::default();
        let all = [("https", Arc::clone(&https)), ("registrations", registrations)];
        CertificateCollector::register(all, &mut metrics);
        let sample = |listener: &str, folder: &Path, seconds: u64| {
            let file = folder.join("tls.crt");
            format!("listener=\"{listener}\",file=\"{}\"}} {seconds}", file.display())
        };
        // The starts of the years 2040 and 2060. The second pair was written again before it was loaded.
        let (of_2040, of_2060, of_2070) = (2_208_988_800, 2_840_140_800, 3_155_760_000);
        let second = sample("https", two.path(), of_2060);
        let registered = sample("registrations", two.path(), of_2060);
        let first = |seconds| sample("https", one.path(), seconds);
        assert_eq!(samples(&metrics), [first(of_2040), second.clone(), registered.clone()]);

        leaf(2070).write(one.path());
        assert_eq!(samples(&metrics), [first(of_2040), second.clone(), registered.clone()], "not yet in use");
        https.reload().unwrap();
        assert_eq!(samples(&metrics), [first(of_2070), second, registered]);
    }
}
