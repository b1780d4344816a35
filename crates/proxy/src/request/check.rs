//! Checks that every request must pass, on every route: its host, its length, its headers and its TLS session.

use http::header;
use http::{Method, StatusCode, Version};
use rouse_core::host::Host;

use crate::budget::HeadLimits;
use crate::client::ClientConnection;
use crate::error::Failure;
use crate::message::RequestHead;

/// Why a request is rejected on every route.
pub(super) enum Rejection {
    /// CONNECT.
    Method,
    /// The request needs another TLS session than its connection has.
    Misdirected,
    Malformed(Failure),
}

impl Rejection {
    fn malformed(status: StatusCode, reason: &str) -> Self {
        Self::Malformed(Failure::BadRequest { status, reason: reason.into() })
    }
}

/// The host of a request. HTTP/1.0 requests need not have one.
pub(super) fn host(head: &impl RequestHead) -> Result<Option<Host<'_>>, Rejection> {
    if head.method() == Method::CONNECT {
        return Err(Rejection::Method);
    }
    let malformed = |reason: &str| Rejection::malformed(StatusCode::BAD_REQUEST, reason);
    let parse = |text| {
        Host::parse(text).map_err(|error| malformed(&format!("the host of the request is invalid: {error}")))
    };
    let authority = head.authority().map(|authority| parse(authority.as_bytes()));
    let mut hosts = head.header_values(&header::HOST).map(parse);
    match (authority.transpose()?, hosts.next().transpose()?, hosts.next()) {
        (.., Some(_)) => Err(malformed("the request has more than one Host header")),
        (Some(authority), Some(host), None) if authority != host => {
            Err(malformed("the Host header and the authority of the request differ"))
        }
        (None, None, None) if head.version() == Version::HTTP_2 => {
            Err(malformed("the request has neither an authority nor a Host header"))
        }
        (authority, host, None) => Ok(authority.or(host)),
    }
}

/// All other checks. For HTTP/1, the validator has made most of them before.
pub(super) fn check(
    head: &impl RequestHead,
    host: Option<&Host<'_>>,
    limits: &HeadLimits,
    client: &ClientConnection,
) -> Result<(), Rejection> {
    if head.header_values(&header::CONTENT_LENGTH).nth(1).is_some() {
        return Err(Rejection::malformed(
            StatusCode::BAD_REQUEST,
            "the request has more than one Content-Length",
        ));
    }
    if head.header_count() > limits.headers {
        return Err(Rejection::malformed(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "the request has too many headers",
        ));
    }
    if client.tls.as_ref().is_some_and(|tls| !tls.admits(host)) {
        return Err(Rejection::Misdirected);
    }
    Ok(())
}
