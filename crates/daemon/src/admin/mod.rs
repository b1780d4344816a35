//! The admin API: its routes, and the handlers of health, metrics, `/queue`, services, routes, watches and cold starts.

mod app_control;
mod error_response;
mod limiter;
mod logs;
pub mod metrics;
mod origin_check;
pub mod process;
pub mod report;
mod scaling_explanation;
mod server;
mod write_timeout;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

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
use rouse_local::output::AppLog;
use rouse_proxy::listen::Gateway;
use serde_json::json;

use crate::process::ready::Ready;
pub use app_control::MOST_PODS;
pub(crate) use error_response::Refusal;
pub(crate) use limiter::Place;
pub(crate) use origin_check::{check as check_origin, check_hook};
pub use scaling_explanation::{LearnedGap, LearnedIdle, ScalingExplanation};
pub(crate) use server::Peer;
pub use server::serve;

/// What the admin API needs of the engine that runs apps.
pub trait Apps: Send + Sync {
    /// All apps, in the order of the file.
    fn apps(&self) -> Vec<AppStatus>;
    /// Begins to replace all pods of an app. Returns false if there is no such app.
    fn restart(&self, app: &str) -> bool;
    /// Pins an app to `pods` pods; `None` returns it to the autoscaler. Returns false if there is no such app.
    fn scale(&self, app: &str, pods: Option<u32>) -> bool;
    /// The output of an app's pods; `None` if there is no such app.
    fn log(&self, app: &str) -> Option<Arc<AppLog>>;
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

    fn log(&self, app: &str) -> Option<Arc<AppLog>> {
        LocalEngine::log(self, app)
    }
}

/// The state of the endpoints that every role has.
pub struct AdminState {
    /// The flag that `/readyz` reports.
    pub ready: Arc<Ready>,
    /// The metrics at `/metrics`.
    pub metrics: Metrics,
}

impl fmt::Debug for AdminState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminState").field("ready", &self.ready.get()).finish_non_exhaustive()
    }
}

/// The data plane that the admin API shows and controls.
pub struct DataPlaneView {
    /// All services.
    pub registry: Arc<Registry>,
    /// The proxy that serves them.
    pub gateway: Arc<Gateway>,
    /// The clock of all timestamps.
    pub clock: Arc<dyn Clock>,
    /// The backend that runs the pods.
    pub backend: PodBackend,
}

/// The backend that runs the pods of a data plane.
pub enum PodBackend {
    /// The apps of `rouse up`, which run as processes.
    Apps(Arc<dyn Apps>),
    /// A Kubernetes cluster.
    Cluster(Arc<Cluster>),
}

impl fmt::Debug for DataPlaneView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataPlaneView").field("mode", &self.mode()).finish_non_exhaustive()
    }
}

impl fmt::Debug for PodBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PodBackend::Apps(_) => "Apps",
            PodBackend::Cluster(_) => "Cluster",
        })
    }
}

impl DataPlaneView {
    fn mode(&self) -> Mode {
        match self.backend {
            PodBackend::Apps(_) => Mode::Up,
            PodBackend::Cluster(_) => Mode::Gateway,
        }
    }

    /// The apps of `rouse up`; `None` in a cluster.
    fn apps(&self) -> Option<&Arc<dyn Apps>> {
        match &self.backend {
            PodBackend::Apps(apps) => Some(apps),
            PodBackend::Cluster(_) => None,
        }
    }

    fn cluster(&self) -> Option<&Arc<Cluster>> {
        match &self.backend {
            PodBackend::Apps(_) => None,
            PodBackend::Cluster(cluster) => Some(cluster),
        }
    }

    fn app_statuses(&self) -> Vec<AppStatus> {
        self.apps().map(|apps| apps.apps()).unwrap_or_default()
    }
}

/// The command whose admin API it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `rouse gateway`'s.
    Gateway,
    /// `rouse up`'s.
    Up,
}

/// A path, how it is documented, and its handler.
struct Endpoint<S> {
    documented: String,
    path: &'static str,
    answer: MethodRouter<Arc<S>>,
}

fn get_at<S, H, T>(path: &'static str, handler: H) -> Endpoint<S>
where
    S: Send + Sync + 'static,
    H: Handler<T, Arc<S>>,
    T: 'static,
{
    Endpoint { documented: path.to_owned(), path, answer: get(handler) }
}

fn post_at<S, H, T>(path: &'static str, handler: H) -> Endpoint<S>
where
    S: Send + Sync + 'static,
    H: Handler<T, Arc<S>>,
    T: 'static,
{
    Endpoint { documented: format!("POST {path}"), path, answer: post(handler) }
}

/// The endpoints of every admin API.
fn common_endpoints() -> Vec<Endpoint<AdminState>> {
    vec![get_at("/livez", || async { "ok\n" }), get_at("/readyz", readyz), get_at("/metrics", openmetrics)]
}

/// The endpoints of a data plane.
fn service_endpoints(mode: Mode) -> Vec<Endpoint<DataPlaneView>> {
    let mut all = vec![
        get_at("/queue", queue),
        get_at("/api/v1/services", services),
        get_at("/api/v1/routes", routes),
        get_at("/api/v1/cold-starts", cold_starts),
    ];
    match mode {
        Mode::Gateway => all.push(get_at("/api/v1/watches", watches)),
        Mode::Up => all.extend([
            get_at("/api/v1/services/{namespace}/{name}/logs", logs::logs),
            get_at("/api/v1/scaling/{namespace}/{name}", app_control::scaling),
            post_at("/api/v1/services/{namespace}/{name}/restart", app_control::restart),
            post_at("/api/v1/services/{namespace}/{name}/scale", app_control::scale),
        ]),
    }
    all
}

/// Every path of the admin API of a data plane, with its method if that is not GET.
pub fn paths(mode: Mode) -> Vec<String> {
    let common = common_endpoints().into_iter().map(|endpoint| endpoint.documented);
    common.chain(service_endpoints(mode).into_iter().map(|endpoint| endpoint.documented)).collect()
}

/// The largest request body, in bytes; the largest valid body is `{"pods": 1000}`.
const MOST_BODY: usize = 4096;

/// All routes of the admin API; `services` is `None` for a role without a data plane. The response to an unknown path lists the
/// paths that exist.
pub fn router(state: AdminState, services: Option<DataPlaneView>) -> Router {
    let common = common_endpoints();
    let of_services =
        services.as_ref().map(|services| service_endpoints(services.mode())).unwrap_or_default();
    let documented = common.iter().map(|endpoint| endpoint.documented.as_str());
    let documented = documented.chain(of_services.iter().map(|endpoint| endpoint.documented.as_str()));
    let offered: Arc<str> = documented.collect::<Vec<_>>().join(", ").into();
    let mut router = routed(common).with_state(Arc::new(state));
    if let Some(services) = services {
        router = router.merge(routed(of_services).with_state(Arc::new(services)));
    }
    router
        .fallback(async move |uri: Uri| error_response::no_such_path(&uri, &offered))
        .method_not_allowed_fallback(error_response::no_such_method)
        // Also covers unknown paths, so that a web page of another site learns nothing.
        .layer(middleware::from_fn(origin_check::check))
        .layer(DefaultBodyLimit::max(MOST_BODY))
}

fn routed<S: Send + Sync + 'static>(endpoints: Vec<Endpoint<S>>) -> Router<Arc<S>> {
    let add = |router: Router<Arc<S>>, endpoint: Endpoint<S>| router.route(endpoint.path, endpoint.answer);
    endpoints.into_iter().fold(Router::new(), add)
}

async fn readyz(State(admin): State<Arc<AdminState>>) -> Response {
    if admin.ready.get() {
        "ok\n".into_response()
    } else {
        Refusal::unavailable("not ready: starting or shutting down").into_response()
    }
}

async fn openmetrics(State(admin): State<Arc<AdminState>>) -> Result<Response, Refusal> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &admin.metrics)
        .map_err(|error| Refusal::internal(format!("the metrics cannot be written: {error}")))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}

/// The concurrency and request count of each service, in the format that KEDA HTTP add-on's scaler reads from its interceptor.
async fn queue(State(data_plane): State<Arc<DataPlaneView>>) -> impl IntoResponse {
    let count = |service: &Arc<Service>| {
        let under_way = usize::try_from(service.in_flight()).unwrap_or(usize::MAX);
        let concurrency = under_way.saturating_add(service.holds());
        json!({"Concurrency": concurrency, "RequestCount": service.asked()})
    };
    let Some(cluster) = data_plane.cluster() else {
        let services = data_plane.registry.services();
        let all = services.iter().map(|service| (service.id().to_string(), count(service)));
        return Json(all.collect::<BTreeMap<_, _>>());
    };
    // In a cluster, KEDA's scaler looks up the counts by the names of routes.
    let plans = Arc::clone(&cluster.plans().borrow());
    let all = plans.iter().filter_map(|plan| {
        let service = data_plane.registry.get(&plan.spec.target.service)?;
        Some((plan.spec.key.to_string(), count(&service)))
    });
    Json(all.collect())
}

/// The state of the cluster's watches.
async fn watches(State(data_plane): State<Arc<DataPlaneView>>) -> impl IntoResponse {
    let now = data_plane.clock.now();
    let all = data_plane.cluster().into_iter().flat_map(|cluster| cluster.watches());
    Json(all.map(|watch| report::WatchView::new(watch, now)).collect::<Vec<_>>())
}

async fn services(State(data_plane): State<Arc<DataPlaneView>>) -> impl IntoResponse {
    Json(report::services(&data_plane.registry, &data_plane.app_statuses()))
}

async fn routes(State(data_plane): State<Arc<DataPlaneView>>) -> impl IntoResponse {
    Json(report::routes(&data_plane.gateway.routes()))
}

async fn cold_starts(
    State(data_plane): State<Arc<DataPlaneView>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Refusal> {
    let (service, limit) = cold_starts_asked(&query)?;
    let now = data_plane.clock.now();
    let newest = data_plane.registry.cold_starts().newest(service.as_ref(), limit);
    Ok(Json(newest.iter().map(|cold| report::ColdStartView::new(cold, now)).collect::<Vec<_>>()))
}

const MOST_COLD_STARTS: usize = 1000;

/// The service and the limit that the query asks for.
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
