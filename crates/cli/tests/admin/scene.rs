//! An admin API with fake apps, and a client for it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use http::{Method, Request};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use prometheus_client::registry::Registry as Metrics;
use rouse_core::endpoint::{PodUid, ServiceId};
use rouse_core::registry::Registry;
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_core::time::Moment;
use rouse_daemon::admin::metrics::{EventMetrics, RegistryCollector};
use rouse_daemon::admin::{AdminState, Apps, DataPlaneView, PodBackend, router};
use rouse_daemon::process::ready::Ready;
use rouse_daemon::up::plan;
use rouse_local::engine::{AppEvent, AppEventKind, AppStatus, LocalPodStatus, PodStage};
use rouse_local::output::AppLog;
use rouse_net::clock::TokioClock;
use rouse_proxy::listen::{Gateway, ProxySettings};
use rouse_proxy::message::Placement;
use rouse_proxy::request::TrustedProxies;
use rouse_testkit::fakes::{Bench, READY, ip, ready_slice, slice};
use rouse_testkit::slot_requests;
use serde_json::Value;

/// Fake apps that only record commands.
#[derive(Debug)]
pub(crate) struct NotedApps {
    apps: Mutex<Vec<AppStatus>>,
    orders: Mutex<Vec<String>>,
    /// The apps after a restart, instead of new pods.
    left: Mutex<Option<Vec<AppStatus>>>,
    log: Mutex<Option<Arc<AppLog>>>,
    registry: Arc<Registry>,
}

impl NotedApps {
    pub(crate) fn set(&self, apps: Vec<AppStatus>) {
        *self.apps.lock().unwrap() = apps;
    }

    pub(crate) fn orders(&self) -> Vec<String> {
        self.orders.lock().unwrap().clone()
    }

    /// The next restart leaves these apps.
    pub(crate) fn leave_after_restart(&self, apps: Vec<AppStatus>) {
        *self.left.lock().unwrap() = Some(apps);
    }

    /// The log of all apps.
    pub(crate) fn keep_log(&self, log: Option<Arc<AppLog>>) {
        *self.log.lock().unwrap() = log;
    }

    fn order(&self, app: &str, order: String) -> bool {
        let known = self.apps().iter().any(|it| it.service.name() == app);
        if known {
            self.orders.lock().unwrap().push(order);
        }
        known
    }
}

impl Apps for NotedApps {
    fn apps(&self) -> Vec<AppStatus> {
        self.apps.lock().unwrap().clone()
    }

    /// Replaces all pods at once, by pods that are ready unless a test says otherwise.
    fn restart(&self, app: &str) -> bool {
        if let Some(left) = self.left.lock().unwrap().take() {
            self.set(left);
            return self.order(app, format!("restart {app}"));
        }
        for app in self.apps.lock().unwrap().iter_mut().filter(|app| !app.pods.is_empty()) {
            let new = 11..11 + u32::try_from(app.pods.len()).unwrap();
            app.pods = new.clone().map(|n| pod_status(n, n)).collect();
            self.registry.service(&app.service).put_slice("new", slice(new.map(|n| (n, READY))));
        }
        self.order(app, format!("restart {app}"))
    }

    fn scale(&self, app: &str, pods: Option<u32>) -> bool {
        self.order(app, format!("scale {app} {pods:?}"))
    }

    fn log(&self, _app: &str) -> Option<Arc<AppLog>> {
        self.log.lock().unwrap().clone()
    }
}

pub(crate) struct Scene {
    pub(crate) bench: Bench,
    pub(crate) apps: Arc<NotedApps>,
    pub(crate) router: Router,
    pub(crate) ready: Arc<Ready>,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) event_metrics: EventMetrics,
}

/// A response.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) kind: String,
    body: Bytes,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }
}

impl Scene {
    pub(crate) fn new() -> Self {
        let bench = Bench::new();
        let mut metrics = Metrics::default();
        let event_metrics = EventMetrics::new(&mut metrics);
        RegistryCollector::register(Arc::clone(&bench.registry), &mut metrics);
        let gateway = Gateway::new(
            ProxySettings {
                id: "test".into(),
                placement: Placement::Gateway,
                trusted: TrustedProxies::private(),
                bounds: rouse_core::hold::HoldLimits::default(),
                clock: TokioClock::new(),
                limits: rouse_proxy::budget::ConnectionLimits::default(),
                cold_start: rouse_proxy::upstream::ColdStartHeaders::default(),
                access: None,
            },
            rouse_proxy::telemetry::metrics::Metrics::new(&mut Metrics::default()),
        );
        let apps = Arc::new(NotedApps {
            apps: Mutex::default(),
            orders: Mutex::default(),
            left: Mutex::default(),
            log: Mutex::new(Some(AppLog::new(1000))),
            registry: Arc::clone(&bench.registry),
        });
        let ready = Arc::<Ready>::default();
        let services = DataPlaneView {
            registry: Arc::clone(&bench.registry),
            gateway: Arc::clone(&gateway),
            clock: Arc::clone(&bench.clock) as _,
            backend: PodBackend::Apps(Arc::clone(&apps) as _),
        };
        let router = router(AdminState { ready: Arc::clone(&ready), metrics }, Some(services));
        Self { bench, apps, router, ready, gateway, event_metrics }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.get_as(path, &[("host", "127.0.0.1:9080")]).await
    }

    pub(crate) async fn get_as(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.ask(request.body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &'static str) -> Answer {
        let request = Request::builder().method(Method::POST).uri(path).header("host", "127.0.0.1:9080");
        self.ask(request.header("content-type", "application/json").body(Body::from(body)).unwrap()).await
    }

    async fn ask(&self, request: Request<Body>) -> Answer {
        let response = TowerToHyperService::new(self.router.clone()).call(request).await.unwrap();
        let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Answer { status, kind: kind.unwrap_or_default(), body }
    }

    /// A service that takes `millis` to start, and one more to answer.
    pub(crate) fn cold_start(&self, name: &str, millis: u64) {
        let (service, port) = self.bench.service(name, ConcurrencyLimits::default());
        let mut request = slot_requests::Request::new(&port, 1).waits();
        self.bench.clock.advance(Duration::from_millis(millis));
        service.put_slice("one", ready_slice(1));
        let mut slot = request.served();
        slot.connected();
        self.bench.clock.advance(Duration::from_millis(1));
        slot.answered();
    }

    /// The engine reports an event.
    pub(crate) fn told(&self, service: &str, what: AppEventKind) {
        let event = AppEvent { service: service.parse().unwrap(), at: Moment::ZERO, what };
        self.event_metrics.event(&event, &self.bench.registry);
    }

    /// The gateway has the routes of this file.
    pub(crate) fn route(&self, name: &str, text: &str) {
        let config = rouse_daemon::rouse_yaml::read(text, name).unwrap();
        self.gateway.set_routes(plan::routes(&config, &self.bench.registry));
    }
}

/// An app at zero.
pub(crate) fn app(service: &str) -> AppStatus {
    AppStatus {
        service: service.parse::<ServiceId>().unwrap(),
        desired: 0,
        reason: "because".into(),
        pinned: None,
        pods: Vec::new(),
        trouble: None,
        rolling: false,
        policy: "min 0, max 10".into(),
        idle: None,
    }
}

/// The process of the testkit's pod number `n`.
pub(crate) fn pod_status(n: u32, pid: u32) -> LocalPodStatus {
    LocalPodStatus {
        name: format!("pod-{n}").into(),
        uid: PodUid::new(&format!("uid-{n}")),
        address: (ip(n), 8080).into(),
        pid,
        phase: PodStage::Starting,
    }
}
