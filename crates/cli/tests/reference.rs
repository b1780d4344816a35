//! The reference pages of `docs/` name every metric, error code, admin path and field of the access log, and no others.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::fs;
use std::iter::successors;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use http::{Method, Request, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use prometheus_client::registry::Registry as Metrics;
use rouse_config::document::from_node;
use rouse_config::document::yaml::Reader;
use rouse_core::hold::HoldLimits;
use rouse_core::start_failure::StartFailureCause;
use rouse_daemon::admin::metrics::{CertificateCollector, EventMetrics, RegistryCollector, WatchCollector};
use rouse_daemon::admin::process::ProcessCollector;
use rouse_daemon::admin::{AdminState, Apps, DataPlaneView, Mode, PodBackend, paths, router};
use rouse_daemon::process::ready::Ready;
use rouse_kube::client::connect::{Client, connect};
use rouse_kube::cluster::{Cluster, ClusterSettings};
use rouse_kube::slices::{SliceController, SliceSettings};
use rouse_local::engine::AppStatus;
use rouse_local::output::AppLog;
use rouse_net::clock::TokioClock;
use rouse_proxy::budget::ConnectionLimits;
use rouse_proxy::error::Failure;
use rouse_proxy::listen::{Gateway, ProxySettings};
use rouse_proxy::message::Placement;
use rouse_proxy::request::TrustedProxies;
use rouse_proxy::telemetry::access_log::{AccessLogEntry, Format};
use rouse_proxy::upstream::ColdStartHeaders;
use rouse_testkit::fakes::Bench;
use serde_json::Value;

/// A page of `docs/`.
fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of all tables under a heading of a page, without the header rows.
fn rows(name: &str, heading: &str) -> Vec<Vec<String>> {
    let page = page(name);
    let lines = page.lines().skip_while(|line| *line != heading);
    let level = heading.split(' ').next().unwrap();
    let ends = |line: &str| line.starts_with('#') && line.split(' ').next().unwrap().len() <= level.len();
    let section: Vec<&str> = lines.skip(1).take_while(|line| !ends(line)).collect();
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim_start_matches("| ").trim_end_matches('|').trim_end();
        inner.split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    let found: Vec<_> =
        section.iter().filter(|line| line.starts_with("| `")).map(|line| cells(line)).collect();
    assert!(!found.is_empty(), "there is no table under {heading:?}");
    found
}

/// What the first cells of these rows name.
fn names(rows: &[Vec<String>]) -> BTreeSet<String> {
    let all: Vec<String> = rows.iter().map(|row| row[0].trim_matches('`').to_owned()).collect();
    let once: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(once.len(), all.len(), "one is named twice: {all:?}");
    once
}

/// A client of an API server that is never contacted.
async fn client() -> Client {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    let text = "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n\
                contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n";
    fs::write(&path, text).unwrap();
    connect(Some(&path), None).await.unwrap()
}

/// A cluster that is never contacted.
async fn cluster() -> Arc<Cluster> {
    Cluster::new(
        client().await,
        ClusterSettings::new(Arc::new(TokioClock::new()), || SystemTime::UNIX_EPOCH, 1),
    )
}

/// Everything that a gateway with KEDA's names counts.
async fn metrics() -> Metrics {
    let mut all = Metrics::default();
    rouse_proxy::telemetry::metrics::Metrics::new_with_keda(&mut all);
    EventMetrics::new(&mut all);
    rouse_register::server::RegistrationMetrics::new(&mut all);
    RegistryCollector::register(Arc::clone(&Bench::new().registry), &mut all);
    ProcessCollector::register(&mut all);
    CertificateCollector::register([], &mut all);
    let cluster = cluster().await;
    cluster.register_metrics(&mut all);
    let watched = Arc::clone(&cluster);
    WatchCollector::register(move || watched.watches(), Arc::new(TokioClock::new()), &mut all);
    all
}

/// The names of all registered metrics. The text output omits metrics without samples, so they are read from the registry's
/// debug output; metrics that are computed at the scrape are only in the text.
fn registered(metrics: &Metrics) -> BTreeSet<String> {
    let shown = format!("{metrics:?}");
    let mut prefix = String::new();
    let mut all = BTreeSet::new();
    for part in shown.split("Registry { prefix: ").skip(1) {
        if let Some(rest) = part.strip_prefix("Some(Prefix(\"") {
            prefix = format!("{}_", rest.split('"').next().unwrap());
        } else {
            prefix.clear();
        }
        let described = part.split("Descriptor { name: \"").skip(1);
        all.extend(described.map(|rest| format!("{prefix}{}", rest.split('"').next().unwrap())));
    }
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, metrics).unwrap();
    let typed = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    all.extend(typed.map(|rest| rest.split(' ').next().unwrap().to_owned()));
    all
}

#[tokio::test]
async fn the_page_has_every_metric_and_no_other() {
    let rows = rows("metrics.md", "## All metrics");
    for row in &rows {
        let (name, kind) = (row[0].trim_matches('`'), &row[1]);
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
    }
    let told: BTreeSet<String> =
        names(&rows).iter().map(|name| name.strip_suffix("_total").unwrap_or(name).to_owned()).collect();
    let metrics = metrics().await;
    let there = registered(&metrics);
    for sure in
        ["rouse_requests", "interceptor_request_count", "rouse_wakes", "rouse_holds", "rouse_watch_lists"]
    {
        assert!(there.contains(sure), "{sure} is not found in {metrics:?}");
    }
    assert_eq!(told, there);
}

/// The metrics of the controller of `EndpointSlice`s have the names of Kubernetes' own controller.
#[tokio::test]
async fn the_page_of_endpoint_slices_has_every_metric_of_their_controller_and_no_other() {
    let clock = Arc::new(TokioClock::new());
    let controller = SliceController::new(client().await, SliceSettings::new(clock, 1));
    let mut metrics = Metrics::default();
    controller.register_metrics(&mut metrics);
    let rows = rows("endpointslices.md", "## Metrics");
    assert_eq!(names(&rows), registered(&metrics));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &metrics).unwrap();
    let typed: Vec<(&str, &str)> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    for (name, kind) in &typed {
        let told = rows.iter().find(|row| row[0].trim_matches('`') == *name);
        assert_eq!(told.map(|row| &*row[1]), Some(*kind), "{name}");
    }
    let page = page("endpointslices.md");
    let words = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let known = names(&rows);
    for word in
        words.filter(|word| word.starts_with("rouse_endpointslice_") || word.starts_with("endpoint_slice_"))
    {
        assert!(known.contains(word), "{word} is in the text and not in the table");
    }
}

#[test]
fn the_page_has_every_metric_of_xds_and_no_other() {
    let mut metrics = Metrics::default();
    rouse_grpc::xds::XdsMetrics::new(&mut metrics);
    rouse_grpc::xds::load::EnvoyLoadMetrics::new(&mut metrics);
    let rows = rows("metrics.md", "## Metrics of xDS");
    let told: BTreeSet<String> =
        names(&rows).iter().map(|name| name.strip_suffix("_total").unwrap_or(name).to_owned()).collect();
    assert_eq!(told, registered(&metrics));
    for row in &rows {
        assert_eq!(&*row[1] == "counter", row[0].trim_matches('`').ends_with("_total"), "{row:?}");
    }
}

/// The names in an expression of `PromQL` that look like a metric of Rouse.
fn asked_for(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("rouse_") || word.starts_with("pod_"));
    ours.map(str::to_owned).collect()
}

#[test]
fn every_alert_asks_for_metrics_and_results_of_the_page() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/optional/alerts.yaml");
    let text = fs::read_to_string(path).unwrap();
    let mut reader = Reader::new(&text, 1);
    assert!(reader.next_document().unwrap());
    let rule: Value = from_node(reader.node().unwrap()).unwrap();
    let groups = rule.pointer("/spec/groups").and_then(Value::as_array).unwrap();
    let alerts = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    let expressions: Vec<&str> = alerts.map(|alert| alert["expr"].as_str().unwrap()).collect();
    assert!(expressions.len() >= 3, "{expressions:?}");
    let tables = ["## All metrics", "## Metrics of the autoscaler"];
    let known: BTreeSet<String> = tables.iter().flat_map(|table| names(&rows("metrics.md", table))).collect();
    let metrics = page("metrics.md");
    for expression in expressions {
        let asked = asked_for(expression);
        assert!(!asked.is_empty() && asked.is_subset(&known), "{expression}: {asked:?} is not in {known:?}");
        let values = expression.split('"').skip(1).step_by(2).flat_map(|values| values.split('|'));
        for value in values {
            assert!(metrics.contains(&format!("`{value}`")), "{expression}: {value}");
        }
    }
}

/// The types of the metrics that are shown from the start.
#[tokio::test]
async fn the_page_says_of_what_type_metrics_are() {
    let rows = rows("metrics.md", "## All metrics");
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &metrics().await).unwrap();
    let typed: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert!(typed.len() > 5, "{text}");
    for (name, kind) in typed.iter().map(|line| line.split_once(' ').unwrap()) {
        let told = rows.iter().find(|row| row[0].trim_matches('`').trim_end_matches("_total") == name);
        assert_eq!(told.map(|row| &*row[1]), Some(kind), "{name}");
    }
}

/// The failure that follows another: a new variant must be added here, or this does not compile.
fn after(failure: &Failure) -> Option<Failure> {
    Some(match failure {
        Failure::NoRoute => Failure::QueueFull,
        Failure::QueueFull => Failure::ReadinessTimeout { reason: None },
        Failure::ReadinessTimeout { .. } => Failure::ConnectFailed,
        Failure::ConnectFailed => Failure::UpstreamReset,
        Failure::UpstreamReset => Failure::ResponseTimeout,
        Failure::ResponseTimeout => Failure::RequestTimeout,
        Failure::RequestTimeout => Failure::BadPort,
        Failure::BadPort => Failure::NoService,
        Failure::NoService => Failure::TlsFailed { reason: String::new() },
        Failure::TlsFailed { .. } => Failure::StartFailed { reason: None },
        Failure::StartFailed { .. } => Failure::Starting,
        Failure::Starting => Failure::BadUpstreamProtocol { reason: String::new() },
        Failure::BadUpstreamProtocol { .. } => {
            Failure::BadRequest { status: StatusCode::BAD_REQUEST, reason: String::new() }
        }
        Failure::BadRequest { status: StatusCode::BAD_REQUEST, .. } => {
            Failure::BadRequest { status: StatusCode::URI_TOO_LONG, reason: String::new() }
        }
        Failure::BadRequest { status: StatusCode::URI_TOO_LONG, .. } => {
            Failure::BadRequest { status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, reason: String::new() }
        }
        Failure::BadRequest { .. } => Failure::NotWoken,
        Failure::NotWoken => Failure::ShuttingDown,
        Failure::ShuttingDown => Failure::Draining,
        Failure::Draining => Failure::Loop,
        Failure::Loop => Failure::ClientGone,
        Failure::ClientGone => return None,
    })
}

#[test]
fn the_page_has_every_error_with_its_statuses_and_no_other() {
    let told: BTreeSet<Vec<String>> = rows("troubleshooting.md", "## Error codes")
        .into_iter()
        .map(|row| row.into_iter().take(3).collect())
        .collect();
    let all = successors(Some(Failure::NoRoute), after);
    let there = all.map(|failure| {
        vec![
            format!("`{}`", failure.code()),
            failure.status().as_u16().to_string(),
            (failure.grpc() as u8).to_string(),
        ]
    });
    assert_eq!(told, there.collect());
}

/// Each error code has a section with its meaning, what to check, and what to do.
#[test]
fn the_troubleshooting_page_has_a_section_for_every_error_code_and_no_other() {
    let page = page("troubleshooting.md");
    let sections: Vec<(&str, &str)> = page
        .split("\n### `")
        .skip(1)
        .map(|section| section.split("\n## ").next().unwrap().split_once("`\n").unwrap())
        .collect();
    let titles: Vec<&str> = sections.iter().map(|(title, _)| *title).collect();
    let codes: BTreeSet<&str> =
        successors(Some(Failure::NoRoute), after).map(|failure| failure.code()).collect();
    assert_eq!(titles.iter().copied().collect::<BTreeSet<_>>(), codes);
    assert_eq!(titles.len(), codes.len(), "a code has two sections: {titles:?}");
    for (code, text) in sections {
        for part in ["\n**Meaning.** ", "\n**Look at.** ", "\n**Do.** "] {
            assert!(text.contains(part), "the section of {code} has no {part:?}");
        }
    }
}

/// The rows of "Causes of failed starts" are those of [`StartFailureCause`].
#[test]
fn the_troubleshooting_page_has_every_cause_of_a_failed_start_and_no_other() {
    let told = names(&rows("troubleshooting.md", "## Causes of failed starts"));
    assert_eq!(told, StartFailureCause::ALL.iter().map(|cause| cause.code().to_owned()).collect());
}

fn admin(cluster: Option<Arc<Cluster>>) -> Router {
    let bench = Bench::new();
    let settings = ProxySettings {
        id: "test".into(),
        placement: Placement::Gateway,
        trusted: TrustedProxies::private(),
        bounds: HoldLimits::default(),
        clock: TokioClock::new(),
        limits: ConnectionLimits::default(),
        cold_start: ColdStartHeaders::default(),
        access: None,
    };
    let services = DataPlaneView {
        registry: Arc::clone(&bench.registry),
        gateway: Gateway::new(
            settings,
            rouse_proxy::telemetry::metrics::Metrics::new(&mut Metrics::default()),
        ),
        clock: Arc::clone(&bench.clock) as _,
        backend: cluster.map_or_else(|| PodBackend::Apps(Arc::new(NoApps)), PodBackend::Cluster),
    };
    router(AdminState { ready: Arc::<Ready>::default(), metrics: Metrics::default() }, Some(services))
}

/// An engine without apps.
#[derive(Debug)]
struct NoApps;

impl Apps for NoApps {
    fn apps(&self) -> Vec<AppStatus> {
        Vec::new()
    }

    fn restart(&self, _app: &str) -> bool {
        false
    }

    fn scale(&self, _app: &str, _pods: Option<u32>) -> bool {
        false
    }

    fn log(&self, _app: &str) -> Option<Arc<AppLog>> {
        None
    }
}

/// The response: the status, and the error if there is one.
async fn asked(router: &Router, method: Method, path: &str) -> (u16, String) {
    let request = Request::builder().method(method).uri(path).header("host", "127.0.0.1");
    let request = request.body(Body::empty()).unwrap();
    let response = TowerToHyperService::new(router.clone()).call(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let error = serde_json::from_slice::<Value>(&body)
        .ok()
        .and_then(|it| Some(it.get("error")?.as_str()?.to_owned()));
    (status, error.unwrap_or_default())
}

#[tokio::test]
async fn who_asks_for_what_is_not_there_is_offered_what_is() {
    for (mode, cluster) in [(Mode::Gateway, Some(cluster().await)), (Mode::Up, None)] {
        let admin = admin(cluster);
        let (status, error) = asked(&admin, Method::GET, "/nope").await;
        let (_, offered) = error.split_once("the paths are ").unwrap_or_else(|| panic!("{status}: {error}"));
        let offered: Vec<&str> = offered.split(", ").collect();
        assert_eq!((status, offered.clone()), (404, paths(mode).iter().map(String::as_str).collect()));
        for offer in offered {
            let (method, path) = match offer.strip_prefix("POST ") {
                Some(path) => (Method::POST, path),
                None => (Method::GET, offer),
            };
            let path = path.replace("{namespace}", "shop").replace("{name}", "cart");
            let (status, error) = asked(&admin, method, &path).await;
            assert!(
                status != 405 && !error.contains("there is nothing"),
                "{mode:?} {offer}: {status} {error}"
            );
        }
    }
    let gateway = admin(Some(cluster().await));
    let (status, error) = asked(&gateway, Method::POST, "/api/v1/services/shop/cart/restart").await;
    assert!(
        status == 404 && !error.contains("POST") && error.contains("/api/v1/watches"),
        "{status} {error}"
    );
}

#[test]
fn the_page_has_every_admin_path_of_both_and_no_other() {
    for (mode, column) in [(Mode::Up, 1), (Mode::Gateway, 2)] {
        let rows: Vec<_> =
            rows("admin-api.md", "## Paths").into_iter().filter(|row| row[column] == "yes").collect();
        assert_eq!(names(&rows), paths(mode).into_iter().collect(), "{mode:?}");
    }
}

#[test]
fn the_page_has_every_field_of_the_access_log_and_no_other() {
    let entry = AccessLogEntry {
        client: "192.0.2.7:5555".parse().unwrap(),
        method: "GET",
        target: "/",
        version: Version::HTTP_11,
        host: b"cart.test",
        status: 504,
        sent: 5,
        took: Duration::from_millis(1),
        agent: b"curl/8",
        referer: b"http://x.test/",
        route: "shop/cart",
        upstream: Some("192.0.2.8:80".parse().unwrap()),
        cold_start: true,
        error: Some("response_timeout"),
        trace: Some("0af7651916cd43dd8448eb211c80319c"),
    };
    let line: Value = serde_json::from_str(&Format::Json.line(&entry, SystemTime::UNIX_EPOCH)).unwrap();
    let fields: BTreeSet<String> = line.as_object().unwrap().keys().cloned().collect();
    assert_eq!(names(&rows("logs.md", "## Access log")), fields);
}

/// Every test that the security page names, as a file below the repository and the name of the test.
#[test]
fn every_promise_of_the_security_page_names_tests_that_exist() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = page("security.md");
    let named: Vec<&str> =
        page.split('`').filter(|text| text.contains(".rs") && text.contains('/')).collect();
    assert!(named.len() > 30, "{named:?}");
    for name in named {
        let (file, test) = name.split_once("::").map_or((name, None), |(file, test)| (file, Some(test)));
        let source =
            fs::read_to_string(repository.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        // A function, or a trial with a name in quotes. Without a name: all tests of the file.
        let is_there =
            |test: &str| source.contains(&format!("fn {test}(")) || source.contains(&format!("\"{test}\""));
        assert!(test.is_none_or(is_there), "docs/security.md names {name}, which does not exist");
    }
    let promises = page.lines().filter(|line| line.starts_with("| ") && line.contains(". | "));
    for promise in promises.filter(|line| !line.contains("`crates/")) {
        assert!(promise.contains("`e2e/"), "no test holds {promise}");
    }
}
