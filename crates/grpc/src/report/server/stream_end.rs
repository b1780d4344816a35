//! Why a stream of reports ends: the gRPC status that the reporter gets, and the label of the metric.

use rouse_net::auth::AuthError;
use tonic::{Code, Status};

use super::super::stream_protocol::StreamViolation;
use super::super::wire::MAX_MESSAGE;
use super::{FIRST_MESSAGE_TIMEOUT, IDLE_TIMEOUT, STATE_TIMEOUT};

/// Why a stream ends, or is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum StreamEnd {
    /// The reporter ended it.
    #[error("the reporter ended the stream")]
    Left,
    #[error("the connection broke")]
    Broken,
    #[error("the controller is stopping")]
    Stopping,
    #[error("a newer stream of the same pod replaces this one")]
    Replaced,
    #[error("no hello within {} s", FIRST_MESSAGE_TIMEOUT.as_secs())]
    NoHello,
    #[error("no complete state within {} s", STATE_TIMEOUT.as_secs())]
    NoState,
    #[error("no message for {} s: a heartbeat is expected each second", IDLE_TIMEOUT.as_secs())]
    Silent,
    #[error("a message has more than {MAX_MESSAGE} bytes: split it")]
    Oversized,
    #[error("{0}")]
    Violation(#[from] StreamViolation),
    #[error("the reporter does not read what the controller sends")]
    Unread,
    #[error("{0}")]
    Unauthenticated(String),
    #[error("the credential cannot be checked now: {0}")]
    Unchecked(String),
    #[error(
        "pods of the ServiceAccount {account} may not report load; allowed: {allowed}. Set the ServiceAccounts of the gateways on \
         the controller"
    )]
    Denied { account: String, allowed: String },
    #[error("{0} reporters are connected, which is the limit")]
    TooManyReporters(usize),
    #[error("too many streams are being opened")]
    TooManyStreams,
}

impl From<AuthError> for StreamEnd {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Refused(reason) => Self::Unauthenticated(reason),
            AuthError::Unavailable(reason) => Self::Unchecked(reason),
        }
    }
}

impl StreamEnd {
    /// The value of the label `result`.
    pub(super) fn result(&self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Broken => "broken",
            Self::Stopping => "stopping",
            Self::Replaced => "replaced",
            Self::NoHello | Self::NoState => "late",
            Self::Silent => "silent",
            Self::Oversized => "oversized",
            Self::Violation(StreamViolation::Malformed(_)) => "malformed",
            Self::Violation(StreamViolation::OutOfOrder(_)) => "out_of_order",
            Self::Violation(
                StreamViolation::TooManyEntries(_)
                | StreamViolation::TooManyKeys
                | StreamViolation::TooManyEnvoys,
            ) => "too_many_entries",
            Self::Violation(StreamViolation::TooFast) => "too_fast",
            Self::Unread => "unread",
            Self::Unauthenticated(_) => "unauthenticated",
            Self::Unchecked(_) => "unchecked",
            Self::Denied { .. } => "denied",
            Self::TooManyReporters(_) | Self::TooManyStreams => "too_many_reporters",
        }
    }

    /// The status of the stream. `None`: OK.
    pub(super) fn status(&self) -> Option<Status> {
        let code = match self {
            Self::Left => return None,
            Self::Broken => Code::Cancelled,
            Self::Stopping | Self::Unchecked(_) => Code::Unavailable,
            Self::Replaced => Code::Aborted,
            Self::NoHello | Self::NoState | Self::Silent => Code::DeadlineExceeded,
            Self::Violation(StreamViolation::Malformed(_)) => Code::InvalidArgument,
            Self::Violation(StreamViolation::OutOfOrder(_)) => Code::FailedPrecondition,
            Self::Violation(_)
            | Self::Oversized
            | Self::Unread
            | Self::TooManyReporters(_)
            | Self::TooManyStreams => Code::ResourceExhausted,
            Self::Unauthenticated(_) => Code::Unauthenticated,
            Self::Denied { .. } => Code::PermissionDenied,
        };
        Some(Status::new(code, self.to_string()))
    }

    /// Whether an operator should look at it.
    pub(super) fn is_fault(&self) -> bool {
        !matches!(self, Self::Left | Self::Broken | Self::Stopping | Self::Replaced)
    }
}
