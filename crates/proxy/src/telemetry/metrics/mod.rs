//! The metrics of the data plane. Names and labels are final: dashboards are built on them.

mod keda;
mod owned_family;

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use rouse_core::endpoint::ServiceId;

use self::keda::Keda;
pub(crate) use self::keda::label as method_label;
pub use self::owned_family::{OwnedFamily, register};

/// The route label of requests that no route matches.
pub(crate) const NO_ROUTE: &str = "none";

/// The protocol of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum RequestProtocol {
    /// HTTP/1.0 and 1.1.
    #[expect(non_camel_case_types, reason = "the name is the label")]
    http1,
    /// HTTP/2.
    #[expect(non_camel_case_types, reason = "the name is the label")]
    http2,
    /// gRPC.
    #[expect(non_camel_case_types, reason = "the name is the label")]
    grpc,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: Arc<str>,
    code: u16,
    protocol: RequestProtocol,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HoldLabels {
    service: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceLabels {
    service: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

/// The name of a route in metrics, with its series: looking them up by name takes three locks, which all threads share, and as
/// many hashes. Clones share the series.
#[derive(Debug, Clone)]
pub struct RouteName(Arc<Named>);

#[derive(Debug)]
struct Named {
    name: Arc<str>,
    in_flight: OnceLock<Gauge>,
    duration: OnceLock<Histogram>,
    /// The counter of responses with status 200, by protocol: almost every response is one.
    ok: [OnceLock<Counter>; 3],
    keda: OnceLock<(keda::RouteLabels, Gauge)>,
}

impl RouteName {
    fn labels(&self) -> RouteLabels {
        RouteLabels { route: Arc::clone(&self.0.name) }
    }
}

impl From<&str> for RouteName {
    fn from(name: &str) -> Self {
        let name = name.into();
        let (in_flight, duration, ok) = (OnceLock::new(), OnceLock::new(), Default::default());
        Self(Arc::new(Named { name, in_flight, duration, ok, keda: OnceLock::new() }))
    }
}

impl Deref for RouteName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0.name
    }
}

/// The metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: OwnedFamily<RequestLabels, Counter>,
    duration: OwnedFamily<RouteLabels, Histogram>,
    in_flight: OwnedFamily<RouteLabels, Gauge>,
    holds: OwnedFamily<HoldLabels, Histogram>,
    retries: Family<ReasonLabels, Counter>,
    ejections: Counter,
    connections_refused: Counter,
    cut: Family<ReasonLabels, Counter>,
    to_draining: OwnedFamily<ServiceLabels, Counter>,
    direct: Family<ResultLabels, Counter>,
    /// Kept beside its family: every request that reaches a pod counts here.
    direct_pod: Counter,
    access_log_dropped: Counter,
    keda: Option<Keda>,
}

/// The buckets of all durations: warm requests, cold starts and waits. Few, since each bucket is a line of text for each series.
const SECONDS: [f64; 10] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

/// A histogram of durations in seconds.
pub fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

impl Metrics {
    /// Registers all metrics in `registry`, under the prefix `rouse`.
    pub fn new(registry: &mut Registry) -> Self {
        let rouse = registry.sub_registry_with_prefix("rouse");
        let direct: Family<ResultLabels, Counter> = register(
            rouse,
            "direct_routing",
            "Requests by destination: a pod, the ClusterIP of the Service, or the ClusterIP because no pod offers the port",
        );
        Self {
            requests: OwnedFamily::register(
                rouse,
                "requests",
                "Requests by route, status code and protocol",
                Counter::default,
            ),
            duration: OwnedFamily::register(
                rouse,
                "request_duration_seconds",
                "From the head of the request to the end of the response",
                seconds,
            ),
            in_flight: OwnedFamily::register(
                rouse,
                "requests_in_flight",
                "Requests under way, held ones included",
                Gauge::default,
            ),
            holds: OwnedFamily::register(
                rouse,
                "hold_duration_seconds",
                "How long requests were held",
                seconds,
            ),
            retries: register(rouse, "retries", "Requests that were sent again"),
            ejections: register(rouse, "ejections", "Endpoints that were ejected for a time"),
            connections_refused: register(
                rouse,
                "connections_refused",
                "Connections that were refused at the limit because no other one could be closed",
            ),
            cut: register(
                rouse,
                "connections_cut",
                "Stalled client connections that were closed to free memory or file descriptors",
            ),
            to_draining: OwnedFamily::register(
                rouse,
                "requests_to_draining",
                "Requests that went to a draining pod because no other pod was ready",
                Counter::default,
            ),
            direct_pod: direct.get_or_create_owned(&ResultLabels { result: "pod" }),
            direct,
            access_log_dropped: register(
                rouse,
                "access_log_dropped",
                "Lines of the access log that were dropped because they could not be written in time",
            ),
            keda: None,
        }
    }

    /// The same, and also the metrics of KEDA's HTTP add-on under their names.
    pub fn new_with_keda(registry: &mut Registry) -> Self {
        let keda = Some(Keda::new(registry));
        Self { keda, ..Self::new(registry) }
    }

    /// A request of `route` is under way. Dropping the guard ends that.
    pub(crate) fn begin(&self, route: &RouteName) -> InFlight {
        let gauge = || self.in_flight.series(route, &route.labels());
        let gauge = route.0.in_flight.get_or_init(gauge).clone();
        // Both series at once: one that is made after the route was removed would come back.
        route.0.duration.get_or_init(|| self.duration.series(route, &route.labels()));
        gauge.inc();
        let keda = self.keda(route).map(|(_, gauge)| gauge.clone());
        if let Some(keda) = &keda {
            keda.inc();
        }
        InFlight(gauge, keda)
    }

    fn keda<'r>(&self, route: &'r RouteName) -> Option<&'r (keda::RouteLabels, Gauge)> {
        let keda = self.keda.as_ref()?;
        Some(route.0.keda.get_or_init(|| {
            let labels = keda::RouteLabels::of(route);
            let gauge = keda.concurrency(route, &labels);
            (labels, gauge)
        }))
    }

    /// A request has ended. `method` is its label.
    pub(crate) fn ended(
        &self,
        route: &RouteName,
        code: u16,
        protocol: RequestProtocol,
        method: &'static str,
        took: Duration,
    ) {
        let Named { name, duration, ok, .. } = &*route.0;
        if let (Some(keda), Some((labels, _))) = (&self.keda, self.keda(route)) {
            keda.ended(route, labels, code, method, took);
        }
        let seconds = || self.duration.series(route, &route.labels());
        duration.get_or_init(seconds).observe(took.as_secs_f64());
        let labels = || RequestLabels { route: Arc::clone(name), code, protocol };
        let requests = || self.requests.series(route, &labels());
        match ok.get(protocol as usize).filter(|_| code == 200) {
            Some(ok) => ok.get_or_init(requests).inc(),
            None => requests().inc(),
        };
    }

    pub(crate) fn held(&self, service: &ServiceId, outcome: &'static str, took: Duration) {
        let labels = HoldLabels { service: service.to_string(), outcome };
        self.holds.series(&labels.service, &labels).observe(took.as_secs_f64());
    }

    pub(crate) fn retried(&self, reason: &'static str) {
        self.retries.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn connection_refused(&self) {
        self.connections_refused.inc();
    }

    /// A client connection was closed because it stalled.
    pub(crate) fn cut(&self, reason: &'static str) {
        self.cut.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn ejected(&self) {
        self.ejections.inc();
    }

    pub(crate) fn sent_to_draining(&self, service: &ServiceId) {
        let labels = ServiceLabels { service: service.to_string() };
        self.to_draining.series(&labels.service, &labels).inc();
    }

    pub(crate) fn sent_to_pod(&self) {
        self.direct_pod.inc();
    }

    /// A request went to the `ClusterIP`.
    pub(crate) fn sent_to_cluster_ip(&self) {
        self.direct.get_or_create(&ResultLabels { result: "cluster_ip" }).inc();
    }

    /// No endpoint offers the port of a request, so it goes to the `ClusterIP`.
    pub(crate) fn lacks_port(&self) {
        self.direct.get_or_create(&ResultLabels { result: "cluster_ip_no_port" }).inc();
    }

    /// Removes the series of all other routes and services: otherwise they would pile up.
    pub(crate) fn keep(&self, routes: &HashSet<&str>, services: &HashSet<String>) {
        let route = |name: &str| name == NO_ROUTE || routes.contains(name);
        self.requests.keep(route);
        self.duration.keep(route);
        self.in_flight.keep(route);
        if let Some(keda) = &self.keda {
            keda.keep(route);
        }
        self.holds.keep(|name| services.contains(name));
        self.to_draining.keep(|name| services.contains(name));
    }

    pub(crate) fn access_log_dropped(&self, lines: u64) {
        if lines > 0 {
            self.access_log_dropped.inc_by(lines);
        }
    }
}

/// One request in the gauge of requests in flight.
#[derive(Debug)]
pub(crate) struct InFlight(Gauge, Option<Gauge>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
        if let Some(keda) = &self.1 {
            keda.dec();
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    fn shown(registry: &Registry, line: &str) -> bool {
        text(registry).lines().any(|shown| shown == line)
    }

    #[test]
    fn routes_of_one_name_share_their_series_and_every_code_has_its_own() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let (one, other) = (RouteName::from("shop"), RouteName::from("shop"));
        let under_way = metrics.begin(&one);
        for (route, code, protocol) in [
            (&one, 200, RequestProtocol::http1),
            (&other, 200, RequestProtocol::http1),
            (&one, 200, RequestProtocol::grpc),
            (&one, 404, RequestProtocol::http1),
        ] {
            metrics.ended(route, code, protocol, "GET", Duration::from_secs(1));
        }
        for line in [
            r#"rouse_requests_total{route="shop",code="200",protocol="http1"} 2"#,
            r#"rouse_requests_total{route="shop",code="200",protocol="grpc"} 1"#,
            r#"rouse_requests_total{route="shop",code="404",protocol="http1"} 1"#,
            r#"rouse_request_duration_seconds_count{route="shop"} 4"#,
            r#"rouse_requests_in_flight{route="shop"} 1"#,
        ] {
            assert!(shown(&registry, line), "{line}");
        }
        drop(under_way);
        assert!(shown(&registry, r#"rouse_requests_in_flight{route="shop"} 0"#));
    }

    #[test]
    fn a_route_that_comes_back_begins_new_series_without_its_old_requests() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let before = RouteName::from("shop");
        let old = metrics.begin(&before);
        metrics.keep(&HashSet::new(), &HashSet::new());
        let _under_way = metrics.begin(&RouteName::from("shop"));
        let one = r#"rouse_requests_in_flight{route="shop"} 1"#;
        assert!(shown(&registry, one), "the old request is not on it");
        drop(old);
        assert!(shown(&registry, one), "nor does its end count");
    }

    #[test]
    fn keda_metrics_exist_beside_ours_and_are_removed_with_their_route() {
        let mut registry = Registry::default();
        let metrics = Metrics::new_with_keda(&mut registry);
        let (cart, none) = (RouteName::from("shop/cart"), RouteName::from(NO_ROUTE));
        let under_way = metrics.begin(&cart);
        for (route, code, method) in [
            (&cart, 200, Method::GET),
            (&cart, 200, Method::GET),
            (&cart, 504, "PURGE".parse().unwrap()),
            (&none, 404, Method::POST),
        ] {
            metrics.ended(
                route,
                code,
                RequestProtocol::http1,
                method_label(&method),
                Duration::from_millis(30),
            );
        }
        let of_cart = [
            r#"interceptor_request_count_total{code="200",method="GET",route_name="cart",route_namespace="shop"} 2"#,
            r#"interceptor_request_count_total{code="504",method="_OTHER",route_name="cart",route_namespace="shop"} 1"#,
            r#"interceptor_request_duration_seconds_count{code="200",method="GET",route_name="cart",route_namespace="shop"} 2"#,
            r#"interceptor_request_duration_seconds_bucket{le="0.05",code="200",method="GET",route_name="cart",route_namespace="shop"} 2"#,
            r#"interceptor_request_concurrency{route_name="cart",route_namespace="shop"} 1"#,
        ];
        for line in of_cart {
            assert!(shown(&registry, line), "{line}");
        }
        let of_none =
            r#"interceptor_request_count_total{code="404",method="POST",route_name="",route_namespace=""} 1"#;
        assert!(shown(&registry, of_none));
        assert!(shown(&registry, r#"rouse_requests_total{route="shop/cart",code="200",protocol="http1"} 2"#));
        drop(under_way);
        assert!(shown(
            &registry,
            r#"interceptor_request_concurrency{route_name="cart",route_namespace="shop"} 0"#
        ));
        metrics.keep(&HashSet::new(), &HashSet::new());
        assert!(shown(&registry, of_none));
        assert!(!text(&registry).contains(r#"route_name="cart""#));
    }

    #[test]
    fn keda_metrics_are_absent_unless_enabled() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let route = RouteName::from("shop/cart");
        let _under_way = metrics.begin(&route);
        metrics.ended(&route, 200, RequestProtocol::http1, "GET", Duration::ZERO);
        assert!(!text(&registry).contains("interceptor"));
    }

    #[test]
    fn routes_and_services_that_come_and_go_leave_nothing_behind() {
        let mut registry = Registry::default();
        let metrics = Metrics::new_with_keda(&mut registry);
        let request = |route: &RouteName, code| {
            metrics.ended(route, code, RequestProtocol::http1, "GET", Duration::ZERO);
        };
        let service = |name: &str| {
            let service: ServiceId = name.parse().unwrap();
            metrics.held(&service, "served", Duration::ZERO);
            metrics.held(&service, "deadline", Duration::ZERO);
            metrics.sent_to_draining(&service);
        };
        let (stays, none) = (RouteName::from("shop/cart"), RouteName::from(NO_ROUTE));
        let _under_way = metrics.begin(&stays);
        request(&stays, 200);
        request(&none, 404);
        service("shop/cart");
        let (routes, services) = (HashSet::from(["shop/cart"]), HashSet::from(["shop/cart".to_owned()]));
        let before = text(&registry);
        let mut late = RouteName::from("preview/late");
        for n in 0..1000 {
            let name = format!("preview/n{n}");
            let route = RouteName::from(&*name);
            let under_way = metrics.begin(&route);
            request(&route, 200);
            request(&route, 503);
            service(&name);
            metrics.keep(&routes, &services);
            // Those that were under way are seen until the next change.
            drop(under_way);
            request(&late, 502);
            service(&late);
            late = route;
        }
        metrics.keep(&routes, &services);
        let [before, after] = [before, text(&registry)].map(|text| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        });
        assert_eq!(after, before);
    }
}
