//! What a client hears when its request cannot be answered by a pod: one status, one code, one sentence.

use std::time::Duration;

use http::StatusCode;

/// Why a request was not answered by a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No route matches.
    #[error("no route matches this host and path")]
    NoRoute,
    /// Too many requests wait already.
    #[error("too many requests wait for this service already")]
    QueueFull,
    /// No pod was ready in time.
    #[error("no pod was ready in time{}", because(.reason.as_deref()))]
    ReadinessTimeout {
        /// What the engine says about it.
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
    #[error("the request took longer than it may")]
    RequestTimeout,
    /// The route names a port that the service does not have.
    #[error("the route names a port that the service does not have")]
    BadPort,
    /// The route names a service that does not exist, or is faulty and has no good version.
    #[error(
        "the route leads nowhere: its service does not exist, or the route is faulty and has no good version"
    )]
    NoService,
    /// The pod's certificate or handshake was refused.
    #[error("the TLS connection to the pod failed: {reason}")]
    TlsFailed {
        /// What was wrong, and with what.
        reason: String,
    },
    /// The start failed for a cause that waiting does not mend.
    #[error("the service cannot be started{}", because(.reason.as_deref()))]
    StartFailed {
        /// What the engine says about it.
        reason: Option<String>,
    },
    /// The gateway has not read the whole cluster yet.
    #[error("this gateway is starting and does not know its routes yet; try again in a moment")]
    Starting,
    /// The pod answered in another protocol, or not in HTTP at all.
    #[error("the pod did not answer in the expected protocol: {reason}")]
    BadUpstreamProtocol {
        /// What came instead, and what to change.
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
    /// No pod takes it, and requests like this one neither wait nor wake any.
    #[error("no pod is free, and a request like this one neither waits nor wakes any")]
    NotWoken,
    /// The gateway is leaving.
    #[error("this gateway is shutting down")]
    ShuttingDown,
    /// The request came from ourselves.
    #[error("the request came back to the gateway it went through")]
    Loop,
    /// The client went away; nothing is sent, and it is nobody's fault.
    #[error("the client went away")]
    ClientGone,
}

fn because(reason: Option<&str>) -> String {
    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
}

/// A gRPC status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum GrpcStatus {
    /// The client gave up.
    Cancelled = 1,
    /// Too late.
    DeadlineExceeded = 4,
    /// Too many.
    ResourceExhausted = 8,
    /// No such thing here.
    Unimplemented = 12,
    /// Our own mistake, or the operator's.
    Internal = 13,
    /// Try again.
    Unavailable = 14,
}

/// The header that carries [`Failure::code`].
pub const ERROR_HEADER: &str = "x-rouse-error";

impl Failure {
    /// What `X-Rouse-Error` and the metrics call it.
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
            Failure::Loop => "loop",
            Failure::ClientGone => "client_gone",
        }
    }

    /// The HTTP status. 499 is for the books only: a client that is gone hears nothing.
    pub fn status(&self) -> StatusCode {
        match self {
            Failure::NoRoute => StatusCode::NOT_FOUND,
            Failure::QueueFull
            | Failure::NoService
            | Failure::StartFailed { .. }
            | Failure::Starting
            | Failure::NotWoken
            | Failure::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
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
            | Failure::ShuttingDown => GrpcStatus::Unavailable,
            Failure::Loop | Failure::BadRequest { .. } => GrpcStatus::Internal,
            Failure::ClientGone => GrpcStatus::Cancelled,
        }
    }

    /// When to come again, if coming again soon makes sense.
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
