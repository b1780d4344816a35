//! The data plane's route table, built from the routes of a cluster.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http::request::Parts;
use rouse_core::endpoint::{PortName, ServiceId};
use rouse_core::host::Host;
use rouse_core::registry::{Registry, RegistrySettings};
use rouse_core::routing_mode::RoutingMode;
use rouse_core::service::ServiceSpec;
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_daemon::gateway::routes::{RouteDefaults, RouteTableBuilder};
use rouse_daemon::gateway::settings as set;
use rouse_daemon::gateway::settings::DIRECT_POD_ROUTING;
use rouse_daemon::gateway::upstream::Upstreams;
use rouse_kube::objects::route::{RouteKind, RouteObject, read};
use rouse_kube::objects::service_summary::{ServiceSummary, TlsFacts};
use rouse_kube::routes::claim_record::ClaimTime;
use rouse_kube::routes::claims::{HostClaims, HostRules};
use rouse_kube::routes::plan::{PlanInputs, RoutePlan, compile};
use rouse_proxy::routing::{Route, RouteTable, Target};
use rouse_proxy::upstream::{Backend, ClusterIp, UpstreamProtocol};
use rouse_testkit::fakes::{CountingEngine, ManualClock};
use serde_json::{Value, json};

use crate::Told;

/// A cluster with one Service, `shop/cart`.
struct Scene {
    service: Value,
    tls: Arc<TlsFacts>,
    builder: RouteTableBuilder,
}

impl PlanInputs for Scene {
    fn service(&self, id: &ServiceId) -> Option<Arc<ServiceSummary>> {
        let facts = || ServiceSummary::new(serde_json::from_value(self.service.clone()).unwrap()).unwrap();
        (id.to_string() == "shop/cart").then(|| Arc::new(facts()))
    }

    fn body(&self, _: &str, _: &str, _: Option<&str>) -> Option<Arc<str>> {
        None
    }

    fn tls(&self, _: &ServiceSummary) -> Arc<TlsFacts> {
        Arc::clone(&self.tls)
    }
}

impl Scene {
    /// A gateway with these settings; its Service has this `appProtocol`.
    fn new(told: &Told, protocol: Option<&str>) -> Self {
        let (settings, _) = told.read().unwrap();
        let clock = Arc::<ManualClock>::default();
        let registry = Registry::new(RegistrySettings::default(), clock, Arc::<CountingEngine>::default());
        let id: ServiceId = "shop/cart".parse().unwrap();
        registry.declare(
            &id,
            &ServiceSpec { ports: vec![PortName::new("web")], concurrency: ConcurrencyLimits::default() },
        );
        let defaults =
            RouteDefaults { timeouts: set::timeouts(&settings), direct: settings.get(&DIRECT_POD_ROUTING) };
        let service = json!({
            "metadata": {"namespace": "shop", "name": "cart"},
            "spec": {
                "clusterIPs": ["10.96.0.9"],
                "ports": [{"name": "web", "port": 80, "appProtocol": protocol}],
            },
        });
        let assigned = &set::assigned_hosts(&settings);
        let builder = RouteTableBuilder::new(registry, defaults, Upstreams::new(&settings), assigned);
        Self { service, tls: Arc::default(), builder }
    }

    fn plan(&self, annotations: &Value, spec: &Value) -> Arc<RoutePlan> {
        let mut whole =
            json!({"target": {"service": "cart", "port": 80}, "rules": [{"hosts": ["shop.test"]}]});
        let parts = spec.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(parts);
        let object = json!({
            "metadata": {"namespace": "shop", "name": "cart", "annotations": annotations},
            "spec": whole,
        });
        let object: RouteObject = serde_json::from_value(object).unwrap();
        let spec = read(RouteKind::InterceptorRoute, &object).unwrap();
        let rules = HostRules::default();
        let owners = HostClaims::default().settle(&[], &rules, ClaimTime(0));
        let plans = compile(&[Arc::new(spec)], &owners, self, |_, _| {});
        Arc::clone(&plans[0])
    }

    /// The table of one route with these annotations and this spec.
    fn table(&mut self, annotations: &Value, spec: &Value) -> RouteTable<Arc<Route>> {
        let plan = self.plan(annotations, spec);
        self.builder.table(&[plan])
    }

    fn route(&mut self, annotations: &Value, spec: &Value) -> Arc<Route> {
        found(&self.table(annotations, spec), "/")
    }

    fn backend(&mut self, annotations: &Value) -> Backend {
        match &self.route(annotations, &json!({})).target {
            Target::Backend(backend) => backend.clone(),
            other => panic!("{other:?}"),
        }
    }
}

fn head(path: &str) -> Parts {
    Request::builder().uri(path).body(()).unwrap().into_parts().0
}

fn found(table: &RouteTable<Arc<Route>>, path: &str) -> Arc<Route> {
    let host = Host::parse(b"shop.test").unwrap();
    Arc::clone(&table.find(Some(&host), &head(path)).unwrap().target)
}

/// The names in a handshake with `upstream`: the SNI, and the accepted names.
fn names(upstream: &UpstreamProtocol) -> (String, Vec<String>) {
    let UpstreamProtocol::Tls(tls) = upstream else { panic!("{upstream:?}") };
    let settings = tls.settings();
    let accepted = settings.accepted.iter().map(|name| name.to_str().into_owned()).collect();
    (settings.server_name.to_str().into_owned(), accepted)
}

#[test]
fn what_a_route_says_of_time_counts_before_the_gateway_and_zero_means_no_limit() {
    let told = Told::default()
        .flag("--readiness-timeout", "20s")
        .flag("--request-timeout", "1m")
        .flag("--response-header-timeout", "2m");
    let mut scene = Scene::new(&told, None);
    let none = scene.route(&json!({}), &json!({})).timeouts;
    let some = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!((none.readiness, none.request, none.response_header), (some(20), some(60), some(120)));
    let own = json!({"timeouts": {"readiness": "3s", "request": "0s", "responseHeader": "5s"}});
    let own = scene.route(&json!({}), &own).timeouts;
    assert_eq!((own.readiness, own.request, own.response_header), (some(3), None, some(5)));
}

#[test]
fn a_host_that_is_assigned_does_not_lead_to_somebody_elses_wider_pattern() {
    let mut scene = Scene::new(&Told::default().flag("--assigned-hosts", "web.test=web"), None);
    for _ in 0..2 {
        let table = scene.table(&json!({}), &json!({"rules": [{"hosts": ["*.test"]}]}));
        let host = |name: &'static str| Host::parse(name.as_bytes()).unwrap();
        let found = |name| table.find(Some(&host(name)), &head("/")).is_some();
        assert!(!found("web.test"), "web has no route for it, and no other namespace may have it");
        assert!(found("shop.test"));
    }
}

#[test]
fn a_route_with_a_fallback_does_not_wait_for_ever() {
    let mut scene = Scene::new(&Told::default(), None);
    let fallback = json!({"coldStart": {"fallback": {"service": {"name": "cart", "port": 80}}}});
    let route = scene.route(&json!({}), &fallback);
    assert_eq!(route.timeouts.readiness, Some(Duration::from_secs(30)));
    assert!(matches!(route.no_pod.fallback, Some(Target::Backend(_))));
    assert_eq!(scene.route(&json!({}), &json!({})).timeouts.readiness, None);
}

#[test]
fn a_static_answer_is_found_before_the_route_it_is_an_exception_of() {
    let mut scene = Scene::new(&Told::default(), None);
    let table = scene.table(
        &json!({}),
        &json!({"staticRoutes": [
            {"rules": [{"paths": [{"value": "/robots.txt"}]}], "response": {"statusCode": 204}},
        ]}),
    );
    assert!(found(&table, "/robots.txt").no_pod.fixed.is_some());
    assert!(found(&table, "/").no_pod.fixed.is_none());
    let everywhere =
        json!({"staticRoutes": [{"response": {"statusCode": 204}, "responseMode": "WhenUnavailable"}]});
    let fixed = scene.route(&json!({}), &everywhere);
    assert!(fixed.no_pod.fixed.as_ref().is_some_and(|fixed| fixed.when_unavailable));
}

#[test]
fn a_route_decides_whether_it_goes_straight_to_pods() {
    for (gateway, annotation, expected) in [
        ("always", None, RoutingMode::Always),
        ("disabled", None, RoutingMode::Disabled),
        ("cold-start-only", None, RoutingMode::ColdStartOnly),
        ("always", Some("disabled"), RoutingMode::Disabled),
        ("disabled", Some("cold-start-only"), RoutingMode::ColdStartOnly),
        ("disabled", Some("always"), RoutingMode::Always),
    ] {
        let mut scene = Scene::new(&Told::default().flag("--direct-pod-routing", gateway), None);
        let annotations = annotation.map_or(json!({}), |mode| json!({"rouse.dev/direct-pod-routing": mode}));
        assert_eq!(scene.backend(&annotations).direct, expected, "{gateway}, {annotation:?}");
    }
}

#[test]
fn who_waits_and_what_is_known_of_a_cluster_ip_survive_a_new_table() {
    let mut scene = Scene::new(&Told::default(), None);
    let limited = json!({"coldStart": {"maxPendingRequests": 7}});
    let (one, other) = (scene.route(&json!({}), &limited), scene.route(&json!({}), &limited));
    let pending = |route: &Route| Arc::clone(route.no_pod.pending.as_ref().unwrap());
    assert!(Arc::ptr_eq(&pending(&one), &pending(&other)));
    let more = scene.route(&json!({}), &json!({"coldStart": {"maxPendingRequests": 8}}));
    assert_eq!(pending(&more).most(), 8);
    let ip = |route: &Route| -> Arc<ClusterIp> {
        let Target::Backend(backend) = &route.target else { panic!("{route:?}") };
        Arc::clone(backend.cluster_ip.as_ref().unwrap())
    };
    assert!(Arc::ptr_eq(&ip(&one), &ip(&more)));
    assert_eq!(ip(&one).addresses()[..], ["10.96.0.9:80".parse().unwrap()]);
}

#[test]
fn a_headless_service_has_no_address_of_its_own_and_a_wrong_port_leads_nowhere() {
    let mut scene = Scene::new(&Told::default(), None);
    scene.service["spec"]["clusterIPs"] = json!(["None"]);
    assert!(scene.backend(&json!({})).cluster_ip.is_none());
    let wrong = scene.route(&json!({}), &json!({"target": {"service": "cart", "port": 81}}));
    assert!(matches!(wrong.target, Target::BadPort));
    let missing = scene.route(&json!({}), &json!({"target": {"service": "missing", "port": 80}}));
    assert!(matches!(missing.target, Target::NoService));
}

#[test]
fn pods_are_asked_for_their_services_name_and_may_show_any_form_of_it() {
    let all = ["cart.shop", "cart.shop.svc", "cart.shop.svc.cluster.local"].map(str::to_owned).to_vec();
    let mut scene = Scene::new(&Told::default(), Some("https"));
    assert_eq!(names(&scene.backend(&json!({})).protocol), ("cart.shop.svc".to_owned(), all.clone()));
    let mut keda = Scene::new(&Told::default().variable("KEDA_HTTP_PROXY_PORT", "8080"), Some("https"));
    assert_eq!(names(&keda.backend(&json!({})).protocol), ("cart.shop".to_owned(), all));
    let mut elsewhere = Scene::new(&Told::default().flag("--cluster-domain", "corp.local"), Some("https"));
    assert!(
        names(&elsewhere.backend(&json!({})).protocol).1.contains(&"cart.shop.svc.corp.local".to_owned())
    );
    scene.tls = Arc::new(TlsFacts { server_name: Some("cart.example.com".into()), ..TlsFacts::default() });
    assert_eq!(names(&scene.backend(&json!({})).protocol), ("cart.example.com".to_owned(), Vec::new()));
}

#[test]
fn only_a_route_or_kedas_variable_turns_verification_off() {
    let verified = |backend: &Backend| {
        let UpstreamProtocol::Tls(tls) = &backend.protocol else { panic!("{backend:?}") };
        !tls.is_unverified()
    };
    let mut scene = Scene::new(&Told::default(), Some("https"));
    assert!(verified(&scene.backend(&json!({}))));
    assert!(!verified(&scene.backend(&json!({"rouse.dev/upstream-verify": "false"}))));
    let told = Told::default().variable("KEDA_HTTP_PROXY_TLS_SKIP_VERIFY", "true");
    assert!(!verified(&Scene::new(&told, Some("https")).backend(&json!({}))));
}

#[test]
fn a_service_that_cannot_have_its_tls_gets_no_request_in_the_clear_and_clients_do_not_hear_the_api_server() {
    let mut scene = Scene::new(&Told::default(), Some("https"));
    let fault = "Secret shop/tls cannot be read: secrets is forbidden: User \"rouse\" cannot list";
    scene.tls = Arc::new(TlsFacts { fault: Some(fault.into()), ..TlsFacts::default() });
    let said = |backend: Backend| match backend.protocol {
        UpstreamProtocol::Unusable(reason) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        &*said(scene.backend(&json!({}))),
        "the TLS settings of Service shop/cart cannot be used; see the status of its routes"
    );
    scene.tls = Arc::new(TlsFacts { ca: Some(Arc::from(&b"no PEM"[..])), ..TlsFacts::default() });
    let reason = said(scene.backend(&json!({})));
    assert!(reason.starts_with("TLS to shop/cart cannot be set up"), "{reason}");
}

#[test]
fn whether_tls_is_spoken_is_the_services_word_then_the_gateways() {
    let tls = |on| Arc::new(TlsFacts { on, ..TlsFacts::default() });
    // gateway, appProtocol, annotation → the upstream protocol, and that for a client over TLS
    for (gateway, protocol, on, expected) in [
        ("off", None, None, ("http", None)),
        ("off", Some("kubernetes.io/h2c"), None, ("h2c", None)),
        ("off", Some("https"), None, ("tls", None)),
        ("off", None, Some(true), ("tls", None)),
        ("off", Some("https"), Some(false), ("http", None)),
        ("on", None, None, ("tls", None)),
        ("on", None, Some(false), ("http", None)),
        ("as-received", None, None, ("http", Some("tls"))),
        ("as-received", Some("https"), None, ("tls", None)),
    ] {
        let mut scene = Scene::new(&Told::default().flag("--upstream-tls", gateway), protocol);
        scene.tls = tls(on);
        let word = |upstream: &UpstreamProtocol| match upstream {
            UpstreamProtocol::Http1 => "http",
            UpstreamProtocol::H2c => "h2c",
            UpstreamProtocol::Tls(_) => "tls",
            UpstreamProtocol::Unusable(_) => "unusable",
        };
        let backend = scene.backend(&json!({}));
        let spoken = (word(&backend.protocol), backend.over_tls.as_ref().map(word));
        assert_eq!(spoken, expected, "{gateway} {protocol:?} {on:?}");
    }
}
