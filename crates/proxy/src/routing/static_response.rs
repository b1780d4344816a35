//! A static response: status, headers and body that a route defines and the gateway itself sends.

use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderName, HeaderValue};

use crate::message::is_hop_by_hop;

/// A response that is ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticResponse {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
}

impl StaticResponse {
    /// Adds a `Content-Type` where `headers` have none: web servers do, and users write pages without it. Leaves out
    /// headers that concern one connection only, and the length, which the gateway computes.
    pub fn new(
        status: StatusCode,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
        body: Bytes,
    ) -> Self {
        let mut headers: Vec<_> = headers.into_iter().collect();
        let connection: Vec<HeaderValue> = headers
            .iter()
            .filter(|(name, _)| name == header::CONNECTION)
            .map(|(_, value)| value.clone())
            .collect();
        headers.retain(|(name, _)| {
            let is_framing = [header::CONTENT_LENGTH, header::TRAILER].contains(name);
            !is_framing && !is_hop_by_hop(name) && !connection.iter().any(|list| names(list, name))
        });
        // Neither status has a body.
        let none = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let body = if none { Bytes::new() } else { body };
        if !body.is_empty() && !headers.iter().any(|(name, _)| name == header::CONTENT_TYPE) {
            let page = body.trim_ascii_start().starts_with(b"<");
            let kind = if page { "text/html; charset=utf-8" } else { "text/plain; charset=utf-8" };
            headers.push((header::CONTENT_TYPE, HeaderValue::from_static(kind)));
        }
        Self { status, headers, body }
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The headers, but for the length.
    pub fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }
}

/// Whether the comma-separated list in `value` has `name` in it.
fn names(value: &HeaderValue, name: &HeaderName) -> bool {
    value.to_str().unwrap_or_default().split(',').any(|item| item.trim().eq_ignore_ascii_case(name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content_type(headers: &[(HeaderName, HeaderValue)], body: &'static str) -> Option<String> {
        let response = StaticResponse::new(StatusCode::OK, headers.iter().cloned(), body.into());
        let found = response.headers.iter().find(|(name, _)| name == header::CONTENT_TYPE);
        found.map(|(_, value)| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_body_gets_a_content_type_unless_the_headers_have_one() {
        assert_eq!(content_type(&[], "\n<html>").as_deref(), Some("text/html; charset=utf-8"));
        assert_eq!(content_type(&[], "wait").as_deref(), Some("text/plain; charset=utf-8"));
        assert_eq!(content_type(&[], ""), None);
        let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        assert_eq!(content_type(&json, "<").as_deref(), Some("application/json"));
    }

    #[test]
    fn headers_of_one_connection_and_the_length_are_left_out() {
        let headers = [
            ("connection", "x-hop, close"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("content-length", "7"),
            ("trailer", "x"),
            ("x-kept", "1"),
        ];
        let headers =
            headers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let response = StaticResponse::new(StatusCode::OK, headers, Bytes::new());
        let left: Vec<&str> = response.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(left, ["x-kept"]);
    }
}
