//! The metrics of KEDA's HTTP add-on under their own names, for dashboards that were built on them.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::OwnedFamily;

/// KEDA's own buckets.
const BUCKETS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: u16,
    method: &'static str,
    route_name: Arc<str>,
    route_namespace: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RouteLabels {
    route_name: Arc<str>,
    route_namespace: Arc<str>,
}

impl RouteLabels {
    /// The labels of a route whose name is `namespace/name`. Requests without a route have neither, as with KEDA.
    pub(super) fn of(route: &str) -> Self {
        let (namespace, name) = match route {
            super::NO_ROUTE => ("", ""),
            route => route.split_once('/').unwrap_or(("", route)),
        };
        Self { route_name: name.into(), route_namespace: namespace.into() }
    }
}

/// KEDA's metrics. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Keda {
    requests: OwnedFamily<RequestLabels, Counter>,
    duration: OwnedFamily<RequestLabels, Histogram>,
    concurrency: OwnedFamily<RouteLabels, Gauge>,
}

fn seconds() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Keda {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let interceptor = registry.sub_registry_with_prefix("interceptor");
        Self {
            requests: OwnedFamily::register(
                interceptor,
                "request_count",
                "Total requests processed by the interceptor proxy",
                Counter::default,
            ),
            duration: OwnedFamily::register(
                interceptor,
                "request_duration_seconds",
                "Time from request received to response written",
                seconds,
            ),
            concurrency: OwnedFamily::register(
                interceptor,
                "request_concurrency",
                "Concurrent requests at the interceptor proxy",
                Gauge::default,
            ),
        }
    }

    /// `route` is its name in Rouse's own metrics.
    pub(super) fn concurrency(&self, route: &str, labels: &RouteLabels) -> Gauge {
        self.concurrency.series(route, labels)
    }

    pub(super) fn ended(
        &self,
        route: &str,
        labels: &RouteLabels,
        code: u16,
        method: &'static str,
        took: Duration,
    ) {
        let RouteLabels { route_name, route_namespace } = labels.clone();
        let labels = RequestLabels { code, method, route_name, route_namespace };
        self.requests.series(route, &labels).inc();
        self.duration.series(route, &labels).observe(took.as_secs_f64());
    }

    pub(super) fn keep(&self, known: impl Fn(&str) -> bool) {
        self.requests.keep(&known);
        self.duration.keep(&known);
        self.concurrency.keep(&known);
    }
}

/// The label of all methods that are not in the list.
pub(crate) const OTHER: &str = "_OTHER";

/// The label of a method. Only known methods have one of their own: clients could fill the metrics with others.
pub(crate) fn label(method: &Method) -> &'static str {
    match *method {
        Method::CONNECT => "CONNECT",
        Method::DELETE => "DELETE",
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::TRACE => "TRACE",
        _ => OTHER,
    }
}
