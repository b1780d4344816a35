//! Error responses of the admin API: a status code, and the reason as JSON.

use axum::Json;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// An error response of the admin API.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    why: String,
}

impl Refusal {
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }

    pub(crate) fn bad_request(why: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, why)
    }

    pub(crate) fn forbidden(why: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, why)
    }

    pub(super) fn not_found(why: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, why)
    }

    pub(super) fn timeout(why: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, why)
    }

    pub(crate) fn unavailable(why: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, why)
    }

    pub(super) fn internal(why: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, why)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(json!({"error": self.why}))).into_response()
    }
}

/// The response for an unknown path. `offered` lists the paths that exist.
pub(super) fn no_such_path(uri: &Uri, offered: &str) -> Refusal {
    Refusal::not_found(format!("there is no path {}; the paths are {offered}", uri.path()))
}

pub(super) async fn no_such_method(method: Method, uri: Uri) -> Refusal {
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not accept {method}", uri.path()))
}
