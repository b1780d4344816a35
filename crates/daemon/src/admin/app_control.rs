//! The admin API handlers that restart an app of `rouse up`, pin its number of pods, or explain it.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use rouse_core::endpoint::ServiceId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error_response::Refusal;
use super::{Apps, DataPlaneView, ScalingExplanation};

/// The largest number of pods that an app can be pinned to.
pub const MOST_PODS: u32 = 1000;

/// The namespace and name of a service, from the path of the request.
pub(super) type Named = Path<(String, String)>;

pub(super) async fn restart(
    State(services): State<Arc<DataPlaneView>>,
    Path((namespace, name)): Named,
) -> Result<impl IntoResponse, Refusal> {
    let (service, apps) = app(&services, &namespace, &name)?;
    if !apps.restart(&name) {
        return Err(unknown(&services, &namespace, &name));
    }
    Ok((StatusCode::ACCEPTED, Json(json!({"service": service.to_string()}))))
}

/// The body of a scale request: `{"pods": 3}` pins an app, `{"pods": null}` returns it to the autoscaler. A missing key is an
/// error: it would unpin by accident.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    pods: Value,
}

pub(super) async fn scale(
    State(services): State<Arc<DataPlaneView>>,
    Path((namespace, name)): Named,
    body: Result<Json<Wanted>, JsonRejection>,
) -> Result<impl IntoResponse, Refusal> {
    let (service, apps) = app(&services, &namespace, &name)?;
    let allowed =
        || Refusal::bad_request(format!("expected {{\"pods\": a number from 0 to {MOST_PODS}, or null}}"));
    let Json(wanted) = body.map_err(|rejection| {
        Refusal::bad_request(format!("{}: send {{\"pods\": 3}}", rejection.body_text()))
    })?;
    let pods = match &wanted.pods {
        Value::Null => None,
        Value::Number(number) => {
            let pods = number.as_u64().and_then(|pods| u32::try_from(pods).ok());
            Some(pods.filter(|pods| *pods <= MOST_PODS).ok_or_else(allowed)?)
        }
        _ => return Err(allowed()),
    };
    if !apps.scale(&name, pods) {
        return Err(unknown(&services, &namespace, &name));
    }
    Ok(Json(json!({"service": service.to_string(), "pinned": pods})))
}

/// How an app is scaled: a list of one, as the controller answers.
pub(super) async fn scaling(
    State(services): State<Arc<DataPlaneView>>,
    Path((namespace, name)): Named,
) -> Result<impl IntoResponse, Refusal> {
    let (service, _) = app(&services, &namespace, &name)?;
    let status = services.app_statuses().into_iter().filter(|app| app.service == service);
    Ok(Json(status.map(ScalingExplanation::of_app).collect::<Vec<_>>()))
}

/// The app that a path names, and the engine that runs it.
pub(super) fn app<'s>(
    services: &'s DataPlaneView,
    namespace: &str,
    name: &str,
) -> Result<(ServiceId, &'s Arc<dyn Apps>), Refusal> {
    let here = |service: &ServiceId| service.namespace() == namespace && service.name() == name;
    let found = services.apps().and_then(|apps| {
        let service = apps.apps().into_iter().map(|app| app.service).find(here)?;
        Some((service, apps))
    });
    found.ok_or_else(|| unknown(services, namespace, name))
}

/// The error for an unknown app; it lists the apps that exist.
pub(super) fn unknown(services: &DataPlaneView, namespace: &str, name: &str) -> Refusal {
    let known: Vec<String> = services.app_statuses().iter().map(|app| app.service.to_string()).collect();
    Refusal::not_found(format!(
        "there is no service {namespace}/{name}; the services are: {}",
        known.join(", ")
    ))
}
