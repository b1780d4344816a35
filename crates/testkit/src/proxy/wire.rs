//! One side of a connection as raw bytes, and helpers that fill a socket's buffers.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::rig::{GET, PATIENCE, Pod};

/// One side of a connection, as raw bytes.
pub struct Wire {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Wire {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, read: Vec::new() }
    }

    pub async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    pub async fn bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Closes the sending side.
    pub async fn half_close(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    /// Everything up to and including `end`.
    pub async fn until(&mut self, end: &str) -> String {
        loop {
            let at = self.read.windows(end.len()).position(|window| window == end.as_bytes());
            if let Some(at) = at {
                let text: Vec<u8> = self.read.drain(..at + end.len()).collect();
                return String::from_utf8_lossy(&text).into_owned();
            }
            assert!(self.more().await, "ended before {end:?}: {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    /// The head of the next message, unless the connection ends before it.
    pub async fn next_head(&mut self) -> Option<String> {
        loop {
            let at = self.read.windows(4).position(|window| window == b"\r\n\r\n");
            if let Some(at) = at {
                return String::from_utf8(self.read.drain(..at + 4).collect()).ok();
            }
            let mut chunk = [0; 4096];
            let length = self.stream.read(&mut chunk).await.unwrap_or(0);
            if length == 0 {
                return None;
            }
            self.read.extend(&chunk[..length]);
        }
    }

    /// The head of a message.
    pub async fn head(&mut self) -> String {
        self.until("\r\n\r\n").await
    }

    /// Everything up to the end of the connection, however it ends.
    pub async fn rest(&mut self) -> String {
        while self.more().await {}
        String::from_utf8(std::mem::take(&mut self.read)).unwrap()
    }

    /// The same as bytes.
    pub async fn raw_rest(&mut self) -> Vec<u8> {
        while self.more().await {}
        std::mem::take(&mut self.read)
    }

    async fn more(&mut self) -> bool {
        let mut chunk = [0; 4096];
        let read =
            timeout(PATIENCE, self.stream.read(&mut chunk)).await.expect("bytes or the end should arrive");
        let length = read.unwrap_or(0);
        self.read.extend(&chunk[..length]);
        length > 0
    }

    /// Whether any bytes have arrived by now.
    pub fn has_read(&self) -> bool {
        let mut byte = [0];
        !self.read.is_empty() || self.stream.try_read(&mut byte).is_ok()
    }

    /// Sends a GET, which `pod` answers with `body` on a new connection. Returns the pod's side of that connection.
    pub async fn get_from(&mut self, pod: &Pod, body: &str) -> Self {
        self.write(GET).await;
        let wire = pod.answer(body).await;
        self.until(body).await;
        wire
    }

    /// Answers 200 with `body` and `Connection: close`.
    pub async fn answer_last(&mut self, body: &str) {
        let length = body.len();
        self.write(&format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
        .await;
    }

    /// Answers 200 with `body`.
    pub async fn answer(&mut self, body: &str) {
        self.write(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())).await;
    }
}

/// Connects with a small receive buffer, so that the kernel buffers little unread data.
pub async fn connect_with_small_buffer(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(address).await.unwrap()
}

/// Reads the head of a message, and nothing more.
pub async fn take_head(stream: &mut (impl AsyncRead + Unpin)) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = timeout(PATIENCE, stream.read_u8()).await.expect("a head should come");
        head.push(byte.expect("the connection should stand"));
    }
}

/// After this time without progress, a write counts as stuck. A value that is too short can only miss a fault: what a
/// test asserts of a stuck connection also holds for one that makes progress.
pub const STUCK: Duration = Duration::from_millis(150);

/// Writes until the other side takes nothing more, or `most` bytes are written. Returns the number of bytes.
pub async fn fill(stream: &mut (impl AsyncWrite + Unpin), most: usize) -> usize {
    let part = vec![b'x'; 64 * 1024];
    let mut taken = 0;
    while taken < most
        && let Ok(Ok(length)) = timeout(STUCK, stream.write(&part)).await
    {
        taken += length;
    }
    taken
}

/// Writes until the other side ends the connection.
pub async fn pour(stream: &mut (impl AsyncWrite + Unpin)) {
    let part = vec![b'x'; 64 * 1024];
    let pouring = async { while stream.write_all(&part).await.is_ok() {} };
    timeout(PATIENCE, pouring).await.expect("the connection should end");
}
