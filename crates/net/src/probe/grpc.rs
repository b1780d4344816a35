//! The gRPC check of a probe: one call of `grpc.health.v1.Health/Check` over cleartext HTTP/2.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::header::{CONTENT_TYPE, HeaderMap, TE, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::grpc_health_proto::{self, ServingStatus};
use super::{MAX_BODY, ProbeFailure, alongside};

/// The HTTP/2 flow-control window.
const WINDOW: u32 = 64 * 1024;

/// The health check request for `service`.
pub(super) fn request(address: SocketAddr, service: &str) -> Result<Request<Full<Bytes>>, ProbeFailure> {
    Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, super::USER_AGENT)
        .body(Full::from(grpc_health_proto::encode(service)))
        .map_err(|error| ProbeFailure::InvalidRequest(error.to_string()))
}

/// Sends the request. Passes if the call succeeds and the status is SERVING.
pub(super) async fn check(stream: TcpStream, request: Request<Full<Bytes>>) -> Result<(), ProbeFailure> {
    let tasks = Arc::new(Mutex::new(JoinSet::new()));
    let (mut sender, connection) = http2::Builder::new(Owned(Arc::downgrade(&tasks)))
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(ProbeFailure::Http)?;
    let round_trip = async {
        let response = sender.send_request(request).await.map_err(ProbeFailure::Http)?;
        judge(response).await
    };
    let verdict = alongside(connection, round_trip).await;
    drop(tasks);
    verdict
}

async fn judge(response: Response<Incoming>) -> Result<(), ProbeFailure> {
    if response.status() != StatusCode::OK {
        return Err(ProbeFailure::Status(response.status()));
    }
    let kind = response.headers().get(CONTENT_TYPE);
    if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return Err(ProbeFailure::NotGrpc("its content-type is not application/grpc"));
    }
    // A call that fails at once has its status in the headers and no trailers.
    let early = status(response.headers())?;
    let body = Limited::new(response.into_body(), MAX_BODY).collect().await.map_err(broken)?;
    let late = body.trailers().map(status).transpose()?.flatten();
    match late.or(early) {
        None => Err(ProbeFailure::NotGrpc("it has no grpc-status")),
        Some(0) => match grpc_health_proto::decode(&body.to_bytes())? {
            ServingStatus::Serving => Ok(()),
            other => Err(ProbeFailure::NotServing(other)),
        },
        Some(code) => Err(ProbeFailure::GrpcStatus(code)),
    }
}

fn status(headers: &HeaderMap) -> Result<Option<u32>, ProbeFailure> {
    let Some(value) = headers.get("grpc-status") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or(ProbeFailure::NotGrpc("its grpc-status is not a number"))
}

fn broken(error: Box<dyn std::error::Error + Send + Sync>) -> ProbeFailure {
    match error.downcast::<hyper::Error>() {
        Ok(error) => ProbeFailure::Http(*error),
        Err(_) => ProbeFailure::NotGrpc("its body is too long for a HealthCheckResponse"),
    }
}

/// Runs hyper's tasks for one call, which owns them, so that none outlives the call. Weak, because the tasks themselves hold
/// a clone of this executor.
#[derive(Clone)]
struct Owned(Weak<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Owned {
    fn execute(&self, task: F) {
        if let Some(tasks) = self.0.upgrade() {
            tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(task);
        }
    }
}
