//! Builds the response to a client: a pod's, a static one, or an error as an HTTP status with one sentence or a gRPC status.

use std::fmt::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};

use crate::budget::Charged;
use crate::error::{ERROR_HEADER, Failure, REFUSED_DRAINING, REFUSED_HEADER};
use crate::request::{Answer, AnswerContent};
use crate::routing::StaticResponse;
use crate::telemetry::RequestRecord;
use crate::upstream::{BodyError, ResponseBody};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const ERROR: HeaderName = HeaderName::from_static(ERROR_HEADER);

/// The body of a response to a client.
#[derive(Debug)]
pub(super) enum AnswerBody {
    /// A text of the gateway's own.
    Ours(Option<Bytes>),
    /// A pod's response.
    Pod(ResponseBody),
}

impl Body for AnswerBody {
    type Data = Charged;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Charged>, BodyError>>> {
        match self.get_mut() {
            AnswerBody::Ours(text) => {
                Poll::Ready(text.take().map(|text| Ok(Frame::data(Charged::free(text)))))
            }
            AnswerBody::Pod(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Ours(text) => text.is_none(),
            AnswerBody::Pod(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Ours(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            AnswerBody::Pod(body) => body.size_hint(),
        }
    }
}

/// The response that carries `answer`. `bodiless`: the client wants no body, over a protocol where hyper would send one.
pub(super) fn response(answer: Answer, bodiless: bool) -> Response<AnswerBody> {
    let Answer { content, close, mut record } = answer;
    let mut response = match content {
        AnswerContent::Pod(response) => {
            let (head, body) = response.begin(record.into_response());
            Response::from_parts(head, body.map_or(AnswerBody::Ours(None), AnswerBody::Pod))
        }
        content => {
            let (code, mut response) = own(&content, &record);
            let length = response.body().size_hint().exact().unwrap_or(0);
            if bodiless && length > 0 {
                *response.body_mut() = AnswerBody::Ours(None);
                response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
            }
            record.answered(code, length);
            response
        }
    };
    if close && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The gateway's own response, and the status that is recorded for it.
fn own(content: &AnswerContent, record: &RequestRecord) -> (u16, Response<AnswerBody>) {
    match content {
        AnswerContent::Failure { failure, grpc } => {
            record.failed(failure);
            (failure.status().as_u16(), failed(failure, *grpc))
        }
        AnswerContent::Static(response) => (response.status().as_u16(), from_static(response)),
        AnswerContent::Misdirected => (421, misdirected()),
        // A pod's response is not the gateway's own.
        AnswerContent::MethodNotAllowed | AnswerContent::Pod(_) => (405, not_allowed()),
    }
}

fn from_static(page: &StaticResponse) -> Response<AnswerBody> {
    let body = Some(page.body()).filter(|body| !body.is_empty()).cloned();
    let mut response = Response::new(AnswerBody::Ours(body));
    *response.status_mut() = page.status();
    for (name, value) in page.headers() {
        response.headers_mut().insert(name, value.clone());
    }
    response
}

/// The response that reports `failure`.
fn failed(failure: &Failure, grpc: bool) -> Response<AnswerBody> {
    let text = failure.to_string();
    let mut response = if grpc { grpc_status(failure, &text) } else { plain(failure.status(), &text) };
    let headers = response.headers_mut();
    headers.insert(ERROR, HeaderValue::from_static(failure.code()));
    if *failure == Failure::Draining {
        headers.insert(REFUSED_HEADER, HeaderValue::from_static(REFUSED_DRAINING));
    }
    if let Some(after) = failure.retry_after() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs()));
    }
    response
}

/// The response to CONNECT.
fn not_allowed() -> Response<AnswerBody> {
    let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "CONNECT is not supported here");
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
    response
}

/// The response to a request that needs another TLS session than its connection has.
fn misdirected() -> Response<AnswerBody> {
    plain(
        StatusCode::MISDIRECTED_REQUEST,
        "this host needs a TLS connection of its own: connect again with its server name",
    )
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

/// Percent-encoded for `grpc-message`: printable ASCII except for the percent sign stays.
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
    fn a_grpc_message_is_percent_encoded() {
        assert_eq!(percent_encoded("100 % größer\n"), "100 %25 gr%C3%B6%C3%9Fer%0A");
    }

    #[test]
    fn a_grpc_client_gets_a_grpc_status_and_no_body() {
        let response = failed(&Failure::ShuttingDown, true);
        assert_eq!(response.status(), 200);
        let header = |name: &str| response.headers().get(name).unwrap().to_str().unwrap();
        assert_eq!((header("grpc-status"), header("x-rouse-error")), ("14", "shutting_down"));
        assert_eq!(header("retry-after"), "1");
    }
}
