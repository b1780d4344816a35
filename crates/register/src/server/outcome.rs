//! Outcomes and refusals of registrations, and their HTTP responses.

use std::time::Duration;

use serde::Serialize;

use crate::wire::{BadRegistration, ErrorBody, MAX_BODY, RegistrationAnswer};

/// How a registration ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    Accepted,
    Renewed,
    Stale,
    /// Verified, and ignored: push is only observed.
    Observed,
    /// Verified, and ignored: push is off.
    Off,
    Malformed,
    Unauthenticated,
    Denied,
    TooLarge,
    Limited,
    Unavailable,
}

impl Outcome {
    /// The label in metrics, and the error in the response.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Renewed => "renewed",
            Self::Stale => "stale",
            Self::Observed => "observed",
            Self::Off => "off",
            Self::Malformed => "malformed",
            Self::Unauthenticated => "unauthenticated",
            Self::Denied => "denied",
            Self::TooLarge => "too-large",
            Self::Limited => "limited",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Why a registration was refused. No text contains a credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0}")]
    Malformed(BadRegistration),
    #[error("{0}")]
    Unauthenticated(String),
    #[error("{0}")]
    Denied(String),
    #[error("the body is longer than {MAX_BODY} bytes")]
    TooLarge,
    #[error("too many registrations; try again in {} s", seconds(.0))]
    Limited(Duration),
    /// The cap on unlisted pods of the service.
    #[error("{0}")]
    TooManyPods(String),
    /// The credential cannot be checked now. The client has proved nothing, so it does not get the reason.
    #[error("the credential cannot be checked now; the log of the gateway has the reason")]
    Unchecked(String),
    /// The pod is unknown, and the credential does not prove that it exists.
    #[error("{0}")]
    Unverified(String),
    #[error("{0}")]
    Unavailable(String),
    /// The pod is known, but not all of it yet.
    #[error("{0}")]
    TooEarly(String),
}

/// How long a pod waits when its service has too many unlisted pods: slices list some of them within seconds.
const RETRY_CAP: Duration = Duration::from_secs(5);
/// How long a pod waits when it could not be verified.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(1);

/// Whole seconds, at least one.
fn seconds(wait: &Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

impl Refusal {
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Malformed(_) => Outcome::Malformed,
            Self::Unauthenticated(_) => Outcome::Unauthenticated,
            Self::Denied(_) => Outcome::Denied,
            Self::TooLarge => Outcome::TooLarge,
            Self::Limited(_) | Self::TooManyPods(_) => Outcome::Limited,
            Self::Unchecked(_) | Self::Unverified(_) | Self::Unavailable(_) | Self::TooEarly(_) => {
                Outcome::Unavailable
            }
        }
    }

    /// Whether it counts against its source: an honest pod does not send this, or nothing shows that an honest pod has sent it.
    pub(super) fn is_failure(&self) -> bool {
        match self {
            Self::Malformed(_)
            | Self::Unauthenticated(_)
            | Self::Denied(_)
            | Self::TooLarge
            | Self::Unchecked(_)
            | Self::Unverified(_) => true,
            Self::Limited(_) | Self::TooManyPods(_) | Self::Unavailable(_) | Self::TooEarly(_) => false,
        }
    }

    /// Whether the connection is closed, so that the rate of connections limits repetitions.
    fn closes(&self) -> bool {
        matches!(self, Self::Limited(_) | Self::TooLarge)
    }

    fn status(&self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::Unauthenticated(_) => 401,
            Self::Denied(_) => 403,
            Self::TooLarge => 413,
            Self::Limited(_) | Self::TooManyPods(_) => 429,
            Self::Unchecked(_) | Self::Unverified(_) | Self::Unavailable(_) | Self::TooEarly(_) => 503,
        }
    }

    fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Limited(wait) => Some(seconds(wait)),
            Self::TooManyPods(_) => Some(seconds(&RETRY_CAP)),
            Self::Unchecked(_) | Self::Unverified(_) | Self::Unavailable(_) => {
                Some(seconds(&RETRY_UNAVAILABLE))
            }
            // The pod's own backoff begins at 100 ms. A whole second would delay its first request.
            Self::TooEarly(_) => Some(0),
            Self::Malformed(_) | Self::Unauthenticated(_) | Self::Denied(_) | Self::TooLarge => None,
        }
    }
}

/// The HTTP response to a registration. The body is JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// Whether the connection is closed after it, so that the rate of connections limits repetitions.
    pub close: bool,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    pub(super) fn answer(answer: &RegistrationAnswer) -> Self {
        Self { status: 200, retry_after: None, close: false, body: json(answer) }
    }

    pub(super) fn refusal(refusal: &Refusal) -> Self {
        let body = ErrorBody { error: refusal.outcome().as_str().to_owned(), reason: refusal.to_string() };
        let (status, retry_after) = (refusal.status(), refusal.retry_after());
        Self { status, retry_after, close: refusal.closes(), body: json(&body) }
    }

    /// A response to a request for something else than a registration.
    pub(super) fn other(status: u16, error: &str, reason: &str) -> Self {
        let body = ErrorBody { error: error.to_owned(), reason: reason.to_owned() };
        Self { status, retry_after: None, close: true, body: json(&body) }
    }
}

/// These types have no map with keys that are not text, and nothing else can fail.
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
