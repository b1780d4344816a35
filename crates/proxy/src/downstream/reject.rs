//! Requests that the connection itself rejects: heads that the HTTP/1 validator refused, and HTTP/2 heads that are too long.

use http::{Method, Request, Version};

use super::http1_validator::Violation;
use crate::budget::HeadLimits;
use crate::error::Failure;

/// Why a request is rejected. `refused`: why the validator refused the last head of the connection.
pub(super) fn rejected<B>(
    request: &Request<B>,
    refused: Option<Violation>,
    limits: &HeadLimits,
) -> Option<Failure> {
    let violation = refused.filter(|_| stands_for_refused(request)).or_else(|| too_long(request, limits))?;
    Some(Failure::BadRequest { status: violation.status(), reason: violation.to_string() })
}

/// Whether the request stands for a head that the validator refused: see `http1_validator::REFUSED`.
fn stands_for_refused<B>(request: &Request<B>) -> bool {
    request.uri().path() == "*"
        && request.version() == Version::HTTP_11
        && request.method() != Method::OPTIONS
}

/// Whether an HTTP/2 request would be too long over HTTP/1. For HTTP/1 the validator has measured the head as it came: its
/// request line may be longer by now.
fn too_long<B>(request: &Request<B>, limits: &HeadLimits) -> Option<Violation> {
    if request.version() != Version::HTTP_2 {
        return None;
    }
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let line = request.method().as_str().len() + target + "  HTTP/1.1".len();
    let lines =
        request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    if line > limits.line {
        Some(Violation::LineTooLong)
    } else if line + lines.sum::<usize>() > limits.head {
        Some(Violation::HeadTooLong)
    } else {
        None
    }
}
