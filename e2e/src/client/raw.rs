//! A raw HTTP/1.1 client: it sends exactly the bytes of the test, and parses responses strictly.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::target::Target;
use crate::wait::within;

/// How long `silent` waits for bytes. A value that is too short can only miss a fault, never report a false one.
const SILENCE: Duration = Duration::from_millis(100);
const READ: usize = 256 * 1024;

/// A connection.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
    buffer: BytesMut,
}

/// The head of a response.
#[derive(Debug, Clone)]
pub struct Head {
    /// `HTTP/1.1`, say.
    pub version: String,
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
}

impl Head {
    /// A header as text, `""` if it is not there.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Whether the body comes in chunks.
    pub fn chunked(&self) -> bool {
        self.header("transfer-encoding").eq_ignore_ascii_case("chunked")
    }
}

impl Raw {
    /// Connects.
    pub async fn connect(target: &Target) -> Self {
        Self::over(within("connect", TcpStream::connect(target.address)).await.unwrap_or_else(|error| {
            panic!("cannot connect to {}: {error}", target.address);
        }))
    }

    /// Over an existing connection.
    pub fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap_or_else(|error| panic!("{error}"));
        Self { stream, buffer: BytesMut::new() }
    }

    /// Resets the connection: the client is gone, unlike after a half-close.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Writes.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let written = within("write", self.stream.write_all(bytes.as_ref())).await;
        written.unwrap_or_else(|error| panic!("cannot write: {error}"));
    }

    /// Writes what the socket accepts now. Returns the number of bytes.
    pub async fn try_send(&mut self, bytes: &[u8]) -> usize {
        match tokio::time::timeout(SILENCE, self.stream.write(bytes)).await {
            Ok(count) => count.unwrap_or_else(|error| panic!("cannot write: {error}")),
            Err(_) => 0,
        }
    }

    /// Closes the sending side.
    pub async fn finish(&mut self) {
        self.stream.shutdown().await.unwrap_or_else(|error| panic!("cannot shut down: {error}"));
    }

    /// A GET of `path` on a connection that is kept.
    pub async fn get(&mut self, target: &Target, path: &str) {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", target.host)).await;
    }

    async fn more(&mut self) -> bool {
        self.buffer.reserve(READ);
        match within("read", self.stream.read_buf(&mut self.buffer)).await {
            Ok(count) => count > 0,
            // A reset counts as an end of the connection.
            Err(_) => false,
        }
    }

    async fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.buffer.split_to(end);
                self.buffer.advance(2);
                return String::from_utf8_lossy(&line).into_owned();
            }
            let before = String::from_utf8_lossy(&self.buffer).into_owned();
            assert!(self.more().await, "the connection ended in the middle of a line: {before:?}");
        }
    }

    async fn fields(&mut self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        loop {
            let line = self.line().await;
            if line.is_empty() {
                return headers;
            }
            let (name, value) =
                line.split_once(':').unwrap_or_else(|| panic!("a header without a colon: {line:?}"));
            let name = HeaderName::try_from(name).unwrap_or_else(|_| panic!("not a name: {line:?}"));
            let value =
                HeaderValue::try_from(value.trim()).unwrap_or_else(|_| panic!("not a value: {line:?}"));
            headers.append(name, value);
        }
    }

    /// The next head, also that of an interim response.
    pub async fn head(&mut self) -> Head {
        let line = self.line().await;
        let mut words = line.split(' ');
        let version = words.next().unwrap_or_default().to_owned();
        assert!(version.starts_with("HTTP/1."), "not a status line: {line:?}");
        let status = words.next().and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not a status line: {line:?}"));
        Head { version, status, headers: self.fields().await }
    }

    /// Exactly `len` bytes.
    pub async fn exactly(&mut self, len: usize) -> Bytes {
        while self.buffer.len() < len {
            let have = self.buffer.len();
            assert!(self.more().await, "the connection ended after {have} bytes of {len}");
        }
        self.buffer.split_to(len).freeze()
    }

    /// The next bytes that arrive; `None` at the end.
    pub async fn some(&mut self) -> Option<Bytes> {
        if self.buffer.is_empty() && !self.more().await {
            return None;
        }
        Some(self.buffer.split().freeze())
    }

    /// The next chunk of a chunked body; `None` after the last. Then come the [`Self::trailers`].
    pub async fn chunk(&mut self) -> Option<Bytes> {
        let line = self.line().await;
        let size = usize::from_str_radix(line.split(';').next().unwrap_or_default(), 16);
        let size = size.unwrap_or_else(|_| panic!("not the size of a chunk: {line:?}"));
        if size == 0 {
            return None;
        }
        let chunk = self.exactly(size).await;
        assert_eq!(self.exactly(2).await, "\r\n", "a chunk ends with CRLF");
        Some(chunk)
    }

    /// The trailers, after the last chunk.
    pub async fn trailers(&mut self) -> HeaderMap {
        self.fields().await
    }

    /// The whole body, framed as `head` announces: chunked, by length, or until the connection ends.
    pub async fn body(&mut self, head: &Head) -> Bytes {
        if head.chunked() {
            let mut body = BytesMut::new();
            while let Some(chunk) = self.chunk().await {
                body.extend_from_slice(&chunk);
            }
            self.trailers().await;
            return body.freeze();
        }
        if let Ok(len) = head.header("content-length").parse() {
            return self.exactly(len).await;
        }
        while self.more().await {}
        self.buffer.split().freeze()
    }

    /// A head and its body.
    pub async fn response(&mut self) -> (Head, Bytes) {
        let head = self.head().await;
        let body = self.body(&head).await;
        (head, body)
    }

    /// A head and its body, which is JSON.
    pub async fn json(&mut self) -> (Head, serde_json::Value) {
        let (head, body) = self.response().await;
        let json = serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error} in {body:?}"));
        (head, json)
    }

    /// Waits for the end of the connection. Returns the bytes before it.
    pub async fn ended(&mut self) -> Bytes {
        while self.more().await {}
        self.buffer.split().freeze()
    }

    /// Whether no byte arrives for 100 ms.
    pub async fn silent(&mut self) -> bool {
        self.buffer.is_empty()
            && tokio::time::timeout(SILENCE, self.stream.read_buf(&mut self.buffer)).await.is_err()
    }
}
