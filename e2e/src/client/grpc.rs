//! A gRPC client without generated code: messages are raw bytes, framed over HTTP/2, and the status is in the trailers.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::Error;
use crate::body::{self, Feed};
use crate::client::session::Http;
use crate::target::Target;
use crate::wait::within;

const PREFIX: usize = 5;

/// A message as it goes over the wire, uncompressed.
pub fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(PREFIX + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or_else(|_| panic!("too long for a message")));
    frame.put_slice(message);
    frame.freeze()
}

/// The messages of a body, however they were cut into frames.
#[derive(Debug)]
pub struct Messages {
    incoming: Incoming,
    buffer: BytesMut,
    trailers: HeaderMap,
}

impl Messages {
    /// The messages of this body.
    pub fn new(incoming: Incoming) -> Self {
        Self { incoming, buffer: BytesMut::new(), trailers: HeaderMap::new() }
    }

    /// The next one; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some(message) = self.buffered() {
                return Ok(Some(message));
            }
            match self.incoming.frame().await {
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err("the stream ended in the middle of a message".into()),
                Some(frame) => match frame?.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(frame) => self.trailers.extend(frame.into_trailers().unwrap_or_default()),
                },
            }
        }
    }

    fn buffered(&mut self) -> Option<Bytes> {
        let length: [u8; 4] = self.buffer.get(1..PREFIX)?.try_into().ok()?;
        let end = PREFIX + usize::try_from(u32::from_be_bytes(length)).ok()?;
        if self.buffer.len() < end {
            return None;
        }
        let mut frame = self.buffer.split_to(end);
        frame.advance(PREFIX);
        Some(frame.freeze())
    }
}

/// A connection.
#[derive(Debug)]
pub struct Grpc(Http);

/// The response of a call.
#[derive(Debug)]
pub struct Reply {
    /// The HTTP status, which gRPC expects to be 200 also for failed calls.
    pub status: StatusCode,
    /// The headers. They include the gRPC status if the call failed at once.
    pub headers: HeaderMap,
    messages: Messages,
}

impl Grpc {
    /// Connects.
    pub async fn connect(target: &Target) -> Self {
        Self(Http::two(target).await)
    }

    /// Begins a call. Returns the feed of its messages, and the response.
    pub async fn call(&mut self, path: &str) -> (Feed, Reply) {
        let (feed, body) = body::channel();
        (feed, self.reply(path, body).await)
    }

    /// A call of one message.
    pub async fn unary(&mut self, path: &str, message: &[u8]) -> Reply {
        self.reply(path, body::full(framed(message))).await
    }

    async fn reply(&mut self, path: &str, body: body::Body) -> Reply {
        let request = self
            .0
            .request(Method::POST, path)
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .body(body);
        let request = request.unwrap_or_else(|error| panic!("{path}: {error}"));
        let (head, incoming) = self.0.send(request).await.into_parts();
        Reply { status: head.status, headers: head.headers, messages: Messages::new(incoming) }
    }
}

impl Reply {
    /// The next message.
    pub async fn try_next(&mut self) -> Result<Option<Bytes>, Error> {
        within("a message", self.messages.next()).await
    }

    /// The next message.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.try_next().await.unwrap_or_else(|error| panic!("the call was cut: {error:?}"))
    }

    /// All messages that are still to come.
    pub async fn rest(&mut self) -> Vec<Bytes> {
        let mut messages = Vec::new();
        while let Some(message) = self.next().await {
            messages.push(message);
        }
        messages
    }

    /// The gRPC status and message, after the messages: from the trailers, or from the headers if there are no trailers.
    pub async fn outcome(&mut self) -> (Option<u32>, String) {
        self.rest().await;
        let fields =
            if self.headers.contains_key("grpc-status") { &self.headers } else { &self.messages.trailers };
        let text = |name| fields.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        (text("grpc-status").parse().ok(), text("grpc-message").to_owned())
    }

    /// The trailers; call [`Self::rest`] before.
    pub fn trailers(&self) -> &HeaderMap {
        &self.messages.trailers
    }
}
