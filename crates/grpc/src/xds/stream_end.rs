//! Why a stream ends: the gRPC status that the client gets, and the label of the metric.

use tonic::{Code, Status};

use super::delta::RequestViolation;

/// Why a stream ends, or is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum StreamEnd {
    /// The client ended it.
    #[error("the client ended the stream")]
    Left,
    #[error("the connection broke")]
    Broken,
    #[error("the server is stopping: connect again")]
    Stopping,
    #[error("{0}")]
    Violation(#[from] RequestViolation),
    #[error("a request cannot be read: {0}")]
    Malformed(String),
    #[error("a request has more than {0} bytes, which is the limit")]
    Oversized(usize),
    #[error("the stream has sent no request in time")]
    NoRequest,
    #[error("the client does not read its responses")]
    Unread,
    #[error("{0} streams are open, which is the limit")]
    TooManyStreams(usize),
    #[error("{0} streams of this client are open, which is the limit for one certificate name or source")]
    TooManyOfClient(usize),
    #[error(
        "this client may not connect: its certificate has the names {found}, and those that may connect are set on the server (SAN, a URI \
         or a DNS name)"
    )]
    Denied { found: String },
}

impl StreamEnd {
    /// The value of the label `reason`.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Broken => "broken",
            Self::Stopping => "stopping",
            Self::Violation(RequestViolation::TooManyNames(_)) => "too_many_names",
            Self::Violation(RequestViolation::NoType | RequestViolation::WrongType { .. }) => "wrong_type",
            Self::Violation(RequestViolation::NotIncremental { .. }) => "not_incremental",
            Self::Malformed(_) => "malformed",
            Self::Oversized(_) => "oversized",
            Self::NoRequest => "no_request",
            Self::Unread => "unread",
            Self::TooManyStreams(_) => "too_many_streams",
            Self::TooManyOfClient(_) => "too_many_streams_of_client",
            Self::Denied { .. } => "denied",
        }
    }

    /// The status of the stream. `None`: OK.
    pub(super) fn status(&self) -> Option<Status> {
        let code = match self {
            Self::Left => return None,
            Self::Broken => Code::Cancelled,
            Self::Stopping => Code::Unavailable,
            Self::Violation(RequestViolation::TooManyNames(_))
            | Self::Oversized(_)
            | Self::Unread
            | Self::TooManyStreams(_)
            | Self::TooManyOfClient(_) => Code::ResourceExhausted,
            Self::Violation(RequestViolation::NotIncremental { .. }) => Code::Unimplemented,
            Self::Violation(_) | Self::Malformed(_) => Code::InvalidArgument,
            Self::NoRequest => Code::DeadlineExceeded,
            Self::Denied { .. } => Code::PermissionDenied,
        };
        Some(Status::new(code, self.to_string()))
    }

    /// Whether an operator should look at it.
    pub(super) fn is_fault(&self) -> bool {
        !matches!(self, Self::Left | Self::Broken | Self::Stopping)
    }
}
