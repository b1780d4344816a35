//! The admin server of the controller: what it scales and why, and the paths that all commands share.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router, middleware};
use rouse_core::endpoint::ServiceId;
use rouse_kube::autoscale::AutoscaleController;

use crate::admin::{self, AdminState, Refusal, ScalingExplanation};

/// All routes.
pub(super) fn router(state: AdminState, autoscaler: Arc<AutoscaleController>) -> Router {
    Router::new()
        .route("/api/v1/scaling", get(scaling))
        .route("/api/v1/scaling/{namespace}/{name}", get(scaling_of))
        .layer(middleware::from_fn(admin::check_origin))
        .with_state(autoscaler)
        .fallback_service(admin::router(state, None))
}

async fn scaling(State(autoscaler): State<Arc<AutoscaleController>>) -> impl IntoResponse {
    Json(autoscaler.view())
}

/// The workloads that a service leads to. None, if no route uses the service.
async fn scaling_of(
    State(autoscaler): State<Arc<AutoscaleController>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    let service =
        ServiceId::new(&namespace, &name).map_err(|error| Refusal::bad_request(error.to_string()))?;
    let reports: Vec<_> =
        autoscaler.explain(&service).into_iter().map(ScalingExplanation::of_workload).collect();
    Ok(Json(reports).into_response())
}
