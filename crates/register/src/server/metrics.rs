//! The metrics of registrations. Names and labels are final: dashboards and alerts are built on them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as Metrics;
use rouse_core::endpoint::ServiceId;
use rouse_core::merge::PushEvent;

use super::outcome::Outcome;
use super::service_label;
use crate::wire::event_text;

/// The service label of registrations without a verified service, and of those beyond the bound.
pub(super) const OTHER: &str = "_other";
/// The event label of registrations that could not be read.
const UNKNOWN: &str = "unknown";
/// The most services with series of their own.
const SERVICES: usize = 1_000;
/// The buckets of durations, in seconds: cached credentials, new ones, and look-ups at the API server.
const SECONDS: [f64; 8] = [0.000_1, 0.000_5, 0.002, 0.01, 0.05, 0.25, 1.0, 5.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    service: String,
    event_type: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    event_type: &'static str,
    result: &'static str,
}

/// Counts registrations. Clones share the metrics.
#[derive(Debug, Clone)]
pub struct RegistrationMetrics {
    attempts: Family<AttemptLabels, Counter>,
    durations: Family<DurationLabels, Histogram>,
    /// The services that have series of their own.
    services: Arc<Mutex<HashSet<ServiceId>>>,
}

impl RegistrationMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &mut Metrics) -> Self {
        let attempts = Family::default();
        metrics.register(
            "pod_registration_attempts",
            "Registrations of pods, by service, event and result",
            attempts.clone(),
        );
        let durations = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
        metrics.register(
            "pod_registration_duration_seconds",
            "Time to check and apply a registration",
            durations.clone(),
        );
        Self { attempts, durations, services: Arc::default() }
    }

    pub(super) fn count(
        &self,
        service: Option<&ServiceId>,
        event: Option<PushEvent>,
        outcome: Outcome,
        took: Duration,
    ) {
        let (event_type, result) = (event.map_or(UNKNOWN, event_text), outcome.as_str());
        let service = service_label(service.filter(|service| self.has_series(service)));
        self.attempts.get_or_create(&AttemptLabels { service, event_type, result }).inc();
        let labels = DurationLabels { event_type, result };
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Whether the service has series of its own; gives it some while there is room.
    fn has_series(&self, service: &ServiceId) -> bool {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        if services.len() < SERVICES && !services.contains(service) {
            services.insert(service.clone());
        }
        services.contains(service)
    }
}
