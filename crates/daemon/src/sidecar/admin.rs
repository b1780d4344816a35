//! The admin server of the sidecar: health and drain hooks for the kubelet, and the paths that all commands share.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::lifecycle::Drain;
use super::settings::{DRAIN_SECRET_HEADER, DrainSecret};
use crate::admin::{self, AdminState, Peer, Place, Refusal};
use crate::process::ready::Ready;

/// What the hooks need.
#[derive(Debug)]
pub(super) struct Hooks {
    pub(super) drain: Arc<Drain>,
    pub(super) ready: Arc<Ready>,
    pub(super) secret: Option<DrainSecret>,
}

/// All routes.
pub(super) fn router(state: AdminState, hooks: Hooks) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/drain", get(drain).post(drain))
        .route("/wait-for-drain", get(drain).post(drain))
        .layer(middleware::from_fn(admin::check_hook))
        .with_state(Arc::new(hooks))
        .fallback_service(admin::router(state, None))
}

/// Readiness, as the kubelet asks for it.
async fn healthz(State(hooks): State<Arc<Hooks>>) -> Response {
    if hooks.drain.has_begun() {
        Refusal::unavailable("the pod is draining").into_response()
    } else if hooks.ready.get() {
        "ok\n".into_response()
    } else {
        Refusal::unavailable("the app is not ready").into_response()
    }
}

/// Begins the drain, and answers when it is over. As a preStop hook it keeps its container running until then.
async fn drain(
    State(hooks): State<Arc<Hooks>>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(place): Extension<Arc<Place>>,
    headers: HeaderMap,
) -> Response {
    let mut given = headers.get_all(DRAIN_SECRET_HEADER).iter();
    let secret = given.next().filter(|_| given.next().is_none());
    // With a secret, loopback needs it too: an app that fetches URLs for its clients could be sent here.
    let (may_drain, who) = match &hooks.secret {
        Some(known) => (
            secret.is_some_and(|given| known.is(given.as_bytes())),
            "only a request with the secret of --drain-secret in X-Rouse-Drain-Secret may start a drain",
        ),
        None => (
            peer.ip().to_canonical().is_loopback(),
            "only a process of this pod may start a drain, unless --drain-secret is set",
        ),
    };
    if !may_drain {
        return Refusal::forbidden(who).into_response();
    }
    // Otherwise connections from elsewhere could end the hook, and the container would stop before the pod has drained.
    let _kept = place.keep();
    hooks.drain.begin();
    hooks.drain.done().await;
    "drained\n".into_response()
}
