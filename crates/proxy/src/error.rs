//! The errors that the gateway itself answers: one status, one code and one sentence each.

use std::time::Duration;

use http::StatusCode;

/// Why a request was not answered by a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No route matches.
    #[error("no route matches this host and path")]
    NoRoute,
    /// Too many requests wait already.
    #[error("too many requests are already waiting for this service")]
    QueueFull,
    /// No pod was ready in time.
    #[error("no pod was ready in time{}", because(.reason.as_deref()))]
    ReadinessTimeout {
        /// The reason that the engine gives.
        reason: Option<String>,
    },
    /// Every pod that was tried refused the connection.
    #[error("no pod accepted the connection")]
    ConnectFailed,
    /// The pod ended the connection before it answered.
    #[error("the pod closed the connection before it answered")]
    UpstreamReset,
    /// The pod did not answer in time.
    #[error("the pod did not answer in time")]
    ResponseTimeout,
    /// The whole request took too long.
    #[error("the request exceeded its timeout")]
    RequestTimeout,
    /// The route names a port that the service does not have.
    #[error("the route names a port that the service does not have")]
    BadPort,
    /// The route names a service that does not exist, or is faulty and has no good version.
    #[error(
        "the route has no backend: its service does not exist, or the route is invalid and has no earlier valid version"
    )]
    NoService,
    /// The TLS handshake with the pod failed.
    #[error("the TLS connection to the pod failed: {reason}")]
    TlsFailed {
        /// What is wrong.
        reason: String,
    },
    /// The start failed for a cause that waiting does not repair.
    #[error("the service cannot be started{}", because(.reason.as_deref()))]
    StartFailed {
        /// The reason that the engine gives.
        reason: Option<String>,
    },
    /// The gateway has not read the whole cluster yet.
    #[error("this gateway is starting and does not know its routes yet; try again in a moment")]
    Starting,
    /// The pod answered in another protocol, or not in HTTP at all.
    #[error("the pod did not answer in the expected protocol: {reason}")]
    BadUpstreamProtocol {
        /// What the pod sent instead, and what to change.
        reason: String,
    },
    /// The request is malformed or ambiguous, or longer than is allowed.
    #[error("{reason}")]
    BadRequest {
        /// 400, 414 or 431.
        status: StatusCode,
        /// What is wrong with it.
        reason: String,
    },
    /// No pod takes the request, and passive requests neither wait nor wake a pod.
    #[error("no pod is free, and this request is of a kind that neither waits for a pod nor wakes one")]
    NotWoken,
    /// The gateway is shutting down.
    #[error("this gateway is shutting down")]
    ShuttingDown,
    /// The pod is about to stop, and did not process the request: a sidecar says so to the gateway in front.
    #[error("this pod is about to stop and did not process the request")]
    Draining,
    /// The request has passed through this gateway before.
    #[error("routing loop: the request has passed through this gateway before")]
    Loop,
    /// The client closed its connection. No response is sent.
    #[error("the client closed the connection")]
    ClientGone,
}

fn because(reason: Option<&str>) -> String {
    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
}

/// A gRPC status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum GrpcStatus {
    /// The client cancelled the request.
    Cancelled = 1,
    /// A deadline has passed.
    DeadlineExceeded = 4,
    /// A limit is reached.
    ResourceExhausted = 8,
    /// There is no such route.
    Unimplemented = 12,
    /// The request or the configuration is invalid.
    Internal = 13,
    /// The service is not available; the client may try again.
    Unavailable = 14,
}

/// The header that carries [`Failure::code`].
pub const ERROR_HEADER: &str = "x-rouse-error";

/// The header by which a sidecar says over HTTP/1.1 that it did not process a request, with the value [`REFUSED_DRAINING`]. Over
/// HTTP/2 it resets the stream with `REFUSED_STREAM`. No other hop sees the header: gateways remove it.
pub(crate) const REFUSED_HEADER: &str = "x-rouse-refused";
/// The pod is about to stop.
pub(crate) const REFUSED_DRAINING: &str = "draining";

impl Failure {
    /// The code in `X-Rouse-Error` and in metrics.
    pub const fn code(&self) -> &'static str {
        match self {
            Failure::NoRoute => "no_route",
            Failure::QueueFull => "queue_full",
            Failure::ReadinessTimeout { .. } => "readiness_timeout",
            Failure::ConnectFailed => "connect_failed",
            Failure::UpstreamReset => "upstream_reset",
            Failure::ResponseTimeout => "response_timeout",
            Failure::RequestTimeout => "request_timeout",
            Failure::BadPort => "bad_port",
            Failure::NoService => "no_service",
            Failure::TlsFailed { .. } => "tls_failed",
            Failure::StartFailed { .. } => "start_failed",
            Failure::Starting => "starting",
            Failure::BadUpstreamProtocol { .. } => "bad_upstream_protocol",
            Failure::BadRequest { .. } => "bad_request",
            Failure::NotWoken => "not_woken",
            Failure::ShuttingDown => "shutting_down",
            Failure::Draining => "draining",
            Failure::Loop => "loop",
            Failure::ClientGone => "client_gone",
        }
    }

    /// The HTTP status. 499 is only recorded: a client that is gone gets no response.
    pub fn status(&self) -> StatusCode {
        match self {
            Failure::NoRoute => StatusCode::NOT_FOUND,
            Failure::QueueFull
            | Failure::NoService
            | Failure::StartFailed { .. }
            | Failure::Starting
            | Failure::NotWoken
            | Failure::ShuttingDown
            | Failure::Draining => StatusCode::SERVICE_UNAVAILABLE,
            Failure::ReadinessTimeout { .. } | Failure::ResponseTimeout | Failure::RequestTimeout => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Failure::ConnectFailed
            | Failure::UpstreamReset
            | Failure::BadPort
            | Failure::TlsFailed { .. }
            | Failure::BadUpstreamProtocol { .. } => StatusCode::BAD_GATEWAY,
            Failure::BadRequest { status, .. } => *status,
            Failure::Loop => StatusCode::LOOP_DETECTED,
            Failure::ClientGone => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        }
    }

    /// The gRPC status.
    pub const fn grpc(&self) -> GrpcStatus {
        match self {
            Failure::NoRoute => GrpcStatus::Unimplemented,
            Failure::QueueFull => GrpcStatus::ResourceExhausted,
            Failure::ReadinessTimeout { .. } | Failure::ResponseTimeout | Failure::RequestTimeout => {
                GrpcStatus::DeadlineExceeded
            }
            Failure::ConnectFailed
            | Failure::UpstreamReset
            | Failure::BadPort
            | Failure::NoService
            | Failure::TlsFailed { .. }
            | Failure::StartFailed { .. }
            | Failure::Starting
            | Failure::BadUpstreamProtocol { .. }
            | Failure::NotWoken
            | Failure::ShuttingDown
            | Failure::Draining => GrpcStatus::Unavailable,
            Failure::Loop | Failure::BadRequest { .. } => GrpcStatus::Internal,
            Failure::ClientGone => GrpcStatus::Cancelled,
        }
    }

    /// When the client may try again, if that makes sense soon.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Failure::QueueFull | Failure::Starting | Failure::ShuttingDown => Some(Duration::from_secs(1)),
            Failure::StartFailed { .. } => Some(Duration::from_secs(10)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_the_status_the_code_and_the_grpc_status_of_the_table() {
        let reason = Some("quota exceeded".to_owned());
        let table = [
            (Failure::NoRoute, 404, "no_route", 12),
            (Failure::QueueFull, 503, "queue_full", 8),
            (Failure::ReadinessTimeout { reason: None }, 504, "readiness_timeout", 4),
            (Failure::ConnectFailed, 502, "connect_failed", 14),
            (Failure::UpstreamReset, 502, "upstream_reset", 14),
            (Failure::ResponseTimeout, 504, "response_timeout", 4),
            (Failure::RequestTimeout, 504, "request_timeout", 4),
            (Failure::BadPort, 502, "bad_port", 14),
            (Failure::NoService, 503, "no_service", 14),
            (Failure::TlsFailed { reason: "expired".into() }, 502, "tls_failed", 14),
            (Failure::StartFailed { reason: None }, 503, "start_failed", 14),
            (Failure::Starting, 503, "starting", 14),
            (Failure::BadUpstreamProtocol { reason: "not HTTP".into() }, 502, "bad_upstream_protocol", 14),
            (
                Failure::BadRequest { status: StatusCode::URI_TOO_LONG, reason: "too long".into() },
                414,
                "bad_request",
                13,
            ),
            (Failure::NotWoken, 503, "not_woken", 14),
            (Failure::ShuttingDown, 503, "shutting_down", 14),
            (Failure::Draining, 503, "draining", 14),
            (Failure::Loop, 508, "loop", 13),
            (Failure::ClientGone, 499, "client_gone", 1),
        ];
        for (failure, status, code, grpc) in table {
            assert_eq!(
                (failure.status().as_u16(), failure.code(), failure.grpc() as u8),
                (status, code, grpc)
            );
            let retry = matches!(
                failure,
                Failure::QueueFull | Failure::StartFailed { .. } | Failure::Starting | Failure::ShuttingDown
            );
            assert_eq!(failure.retry_after().is_some(), retry, "{failure:?}");
        }
        let told = Failure::ReadinessTimeout { reason }.to_string();
        assert_eq!(told, "no pod was ready in time: quota exceeded");
    }
}
