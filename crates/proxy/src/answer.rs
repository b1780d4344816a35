//! Our own answers: an HTTP error with one sentence, or a gRPC status.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode, Version};

use crate::body::AnswerBody;
use crate::error::{ERROR_HEADER, Failure};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const ERROR: HeaderName = HeaderName::from_static(ERROR_HEADER);

/// Whether the sender of `headers` expects a gRPC status.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let prefix = b"application/grpc";
    let content_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    // `application/grpc-web` is spoken by browsers, who understand HTTP.
    content_type.is_some_and(|text| {
        text.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
            && matches!(text.get(prefix.len()), None | Some(b'+' | b';' | b' '))
    })
}

/// What the client hears of `failure`.
pub(crate) fn to(failure: &Failure, grpc: bool) -> Response<AnswerBody> {
    let text = failure.to_string();
    let mut response = if grpc { grpc_status(failure, &text) } else { sentence(failure, &text) };
    let headers = response.headers_mut();
    headers.insert(ERROR, HeaderValue::from_static(failure.code()));
    if let Some(after) = failure.retry_after() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs()));
    }
    response
}

/// A method that is none of ours to forward.
pub(crate) fn not_allowed() -> Response<AnswerBody> {
    let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "CONNECT is not supported here");
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
    response
}

/// A request that needs another handshake than its connection has had.
pub(crate) fn misdirected() -> Response<AnswerBody> {
    plain(StatusCode::MISDIRECTED_REQUEST, "this host needs a TLS connection of its own")
}

fn sentence(failure: &Failure, text: &str) -> Response<AnswerBody> {
    plain(failure.status(), text)
}

fn plain(status: StatusCode, text: &str) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Ours(Some(Bytes::from(format!("{text}\n")))));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Headers alone: what gRPC calls "trailers-only".
fn grpc_status(failure: &Failure, text: &str) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Ours(None));
    *response.version_mut() = Version::HTTP_2;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from(failure.grpc() as u16));
    if let Ok(message) = HeaderValue::from_str(&percent_encoded(text)) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response
}

/// As `grpc-message` wants it: printable ASCII but the percent sign stays.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte == b'%' || !(b' '..0x7f).contains(&byte) {
            // Writing to a String cannot fail.
            write!(encoded, "%{byte:02X}").ok();
        } else {
            encoded.push(char::from(byte));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_told_by_its_content_type() {
        for (content_type, grpc) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/GRPC; charset=x", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            assert_eq!(is_grpc(&headers), grpc, "{content_type}");
        }
    }

    #[test]
    fn a_grpc_message_is_percent_encoded() {
        assert_eq!(percent_encoded("100 % größer\n"), "100 %25 gr%C3%B6%C3%9Fer%0A");
    }

    #[test]
    fn a_grpc_client_hears_a_status_and_no_text() {
        let response = to(&Failure::ShuttingDown, true);
        assert_eq!(response.status(), 200);
        let header = |name: &str| response.headers().get(name).unwrap().to_str().unwrap();
        assert_eq!((header("grpc-status"), header("x-rouse-error")), ("14", "shutting_down"));
        assert_eq!(header("retry-after"), "1");
    }
}
