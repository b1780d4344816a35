//! The admin API: what `rouse status` and its kin, probes, Prometheus and KEDA ask, on a port of its own.

mod answer;
mod door;
mod limiter;
mod logs;
pub mod metrics;
pub mod process;
pub mod report;
mod server;
mod steer;
mod write_timeout;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::{DefaultBodyLimit, Query, State};
use axum::handler::Handler;
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router, middleware};
use prometheus_client::registry::Registry as Metrics;
use rouse_core::endpoint::ServiceId;
use rouse_core::registry::Registry;
use rouse_core::service::Service;
use rouse_core::time::Clock;
use rouse_kube::cluster::Cluster;
use rouse_local::engine::{AppStatus, LocalEngine};
use rouse_local::output::Log;
use rouse_proxy::gateway::Gateway;
use serde_json::json;

use answer::Refusal;
pub use server::serve;

/// Where the admin API may listen, in words.
pub(crate) const ADDRESS: &str = "a loopback address or the pod's own, and a port, like 127.0.0.1:9090: the admin API is not for everybody";

/// Whether the admin API may listen there: it has no authentication, so that it does not listen on all addresses.
pub(crate) fn may_listen(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_unspecified()
}

/// What the admin API asks of whoever runs the apps.
pub trait Apps: Send + Sync {
    /// All apps, in the order of the file.
    fn apps(&self) -> Vec<AppStatus>;
    /// Begins to replace all pods of an app. Answers whether there is such an app.
    fn restart(&self, app: &str) -> bool;
    /// Keeps an app at so many pods; `None`: as many as the autoscaler says. Answers whether there is such an app.
    fn scale(&self, app: &str, pods: Option<u32>) -> bool;
    /// What the pods of an app print.
    fn log(&self, app: &str) -> Option<Arc<Log>>;
}

impl Apps for LocalEngine {
    fn apps(&self) -> Vec<AppStatus> {
        LocalEngine::apps(self)
    }

    fn restart(&self, app: &str) -> bool {
        LocalEngine::restart(self, app).is_ok()
    }

    fn scale(&self, app: &str, pods: Option<u32>) -> bool {
        LocalEngine::scale(self, app, pods).is_ok()
    }

    fn log(&self, app: &str) -> Option<Arc<Log>> {
        LocalEngine::log(self, app)
    }
}

/// Nobody here runs apps: a cluster does.
#[derive(Debug)]
pub struct NoApps;

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

    fn log(&self, _app: &str) -> Option<Arc<Log>> {
        None
    }
}

/// Whether `/readyz` says yes: between the moment that everything serves and the first signal to stop.
#[derive(Debug, Default)]
pub struct Ready(AtomicBool);

impl Ready {
    /// From now on it says so.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// What it says.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What the admin API shows and steers.
pub struct Panel {
    /// All services.
    pub registry: Arc<Registry>,
    /// Who runs them.
    pub apps: Arc<dyn Apps>,
    /// The cluster that runs them instead, if it is one.
    pub cluster: Option<Arc<Cluster>>,
    /// Who serves them.
    pub gateway: Arc<Gateway>,
    /// The clock of all timestamps.
    pub clock: Arc<dyn Clock>,
    /// Whether we are ready.
    pub ready: Arc<Ready>,
    /// What Prometheus reads.
    pub metrics: Metrics,
}

impl fmt::Debug for Panel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Panel").field("ready", &self.ready.get()).finish_non_exhaustive()
    }
}

/// Whose admin API it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `rouse gateway`'s.
    Gateway,
    /// `rouse up`'s.
    Up,
}

/// A path, as people are told of it, and who answers there.
struct Place {
    told: String,
    path: &'static str,
    answer: MethodRouter<Arc<Panel>>,
}

fn got<H: Handler<T, Arc<Panel>>, T: 'static>(path: &'static str, handler: H) -> Place {
    Place { told: path.to_owned(), path, answer: get(handler) }
}

fn posted<H: Handler<T, Arc<Panel>>, T: 'static>(path: &'static str, handler: H) -> Place {
    Place { told: format!("POST {path}"), path, answer: post(handler) }
}

/// All there is. Also what a client is told who asks for something else: what it is offered must be there.
fn places(mode: Mode) -> Vec<Place> {
    let mut all = vec![
        got("/livez", || async { "ok\n" }),
        got("/readyz", readyz),
        got("/metrics", openmetrics),
        got("/queue", queue),
        got("/api/v1/services", services),
        got("/api/v1/routes", routes),
        got("/api/v1/cold-starts", cold_starts),
    ];
    match mode {
        Mode::Gateway => all.push(got("/api/v1/watches", watches)),
        Mode::Up => all.extend([
            got("/api/v1/services/{namespace}/{name}/logs", logs::logs),
            posted("/api/v1/services/{namespace}/{name}/restart", steer::restart),
            posted("/api/v1/services/{namespace}/{name}/scale", steer::scale),
        ]),
    }
    all
}

/// Every path of the admin API, with its method if that is not GET.
pub fn paths(mode: Mode) -> Vec<String> {
    places(mode).into_iter().map(|place| place.told).collect()
}

/// The longest body of a request, in bytes: `{"pods": 1000}` is all that is ever sent.
const MOST_BODY: usize = 4096;

/// Everything under the admin address.
pub fn router(panel: Arc<Panel>) -> Router {
    let mode = if panel.cluster.is_some() { Mode::Gateway } else { Mode::Up };
    let offered: Arc<str> = paths(mode).join(", ").into();
    let all = places(mode).into_iter();
    all.fold(Router::new(), |router, place| router.route(place.path, place.answer))
        .fallback(async move |uri: Uri| answer::no_such_path(&uri, &offered))
        .method_not_allowed_fallback(answer::no_such_method)
        // Around everything, also what is not there: a stranger learns nothing.
        .layer(middleware::from_fn(door::check))
        .layer(DefaultBodyLimit::max(MOST_BODY))
        .with_state(panel)
}

async fn readyz(State(panel): State<Arc<Panel>>) -> Response {
    if panel.ready.get() {
        "ok\n".into_response()
    } else {
        Refusal::unavailable("not ready: starting or shutting down").into_response()
    }
}

async fn openmetrics(State(panel): State<Arc<Panel>>) -> Result<Response, Refusal> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &panel.metrics)
        .map_err(|error| Refusal::internal(format!("the metrics cannot be written: {error}")))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}

/// As KEDA HTTP add-on's interceptor answers its scaler.
async fn queue(State(panel): State<Arc<Panel>>) -> impl IntoResponse {
    let count = |service: &Arc<Service>| {
        let under_way = usize::try_from(service.in_flight()).unwrap_or(usize::MAX);
        let concurrency = under_way.saturating_add(service.holds());
        json!({"Concurrency": concurrency, "RequestCount": service.asked()})
    };
    let Some(cluster) = &panel.cluster else {
        let services = panel.registry.services();
        let all = services.iter().map(|service| (service.id().to_string(), count(service)));
        return Json(all.collect::<BTreeMap<_, _>>());
    };
    // There it goes by the names of the routes.
    let plans = Arc::clone(&cluster.plans().borrow());
    let all = plans.iter().filter_map(|plan| {
        let service = panel.registry.get(&plan.spec.target.service)?;
        Some((plan.spec.key.to_string(), count(&service)))
    });
    Json(all.collect())
}

/// How the watches of the cluster are doing.
async fn watches(State(panel): State<Arc<Panel>>) -> impl IntoResponse {
    let now = panel.clock.now();
    let all = panel.cluster.iter().flat_map(|cluster| cluster.watches());
    Json(all.map(|watch| report::Watch::new(watch, now)).collect::<Vec<_>>())
}

async fn services(State(panel): State<Arc<Panel>>) -> impl IntoResponse {
    Json(report::services(&panel.registry, &panel.apps.apps()))
}

async fn routes(State(panel): State<Arc<Panel>>) -> impl IntoResponse {
    Json(report::routes(&panel.gateway.routes()))
}

async fn cold_starts(
    State(panel): State<Arc<Panel>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Refusal> {
    let (service, limit) = cold_starts_asked(&query)?;
    let now = panel.clock.now();
    let newest = panel.registry.cold_starts().newest(service.as_ref(), limit);
    Ok(Json(newest.iter().map(|cold| report::ColdStart::new(cold, now)).collect::<Vec<_>>()))
}

const MOST_COLD_STARTS: usize = 1000;

/// Which cold starts, and how many of them.
fn cold_starts_asked(query: &[(String, String)]) -> Result<(Option<ServiceId>, usize), Refusal> {
    let (mut service, mut limit) = (None, 100);
    for (key, value) in query {
        match (key.as_str(), value.as_str()) {
            ("service", "") => service = None,
            ("service", value) => {
                let id = value.parse().map_err(|error| Refusal::bad_request(format!("service: {error}")))?;
                service = Some(id);
            }
            ("limit", value) => limit = count(value)?,
            (other, _) => {
                let allowed = "allowed are service=NAMESPACE/NAME and limit=COUNT";
                return Err(Refusal::bad_request(format!("{other:?} is not a parameter here: {allowed}")));
            }
        }
    }
    Ok((service, limit))
}

fn count(text: &str) -> Result<usize, Refusal> {
    let count = text.parse().ok().filter(|count| (1..=MOST_COLD_STARTS).contains(count));
    let allowed =
        || format!("limit: {text:?} is not allowed: expected a number from 1 to {MOST_COLD_STARTS}");
    count.ok_or_else(|| Refusal::bad_request(allowed()))
}
