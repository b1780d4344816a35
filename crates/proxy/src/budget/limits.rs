//! The limits that an operator sets for client connections, requests, pod connections and memory.

use std::time::Duration;

/// The limits of client connections, pod connections and buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Client connections at a time.
    pub connections: usize,
    /// How long a client connection may be without a request.
    pub idle: Duration,
    /// How long a client may take to send the request line and headers of a request.
    pub head: Duration,
    /// How long the parts of a request head may be.
    pub heads: HeadLimits,
    /// Requests at a time on one HTTP/2 connection.
    pub streams: u32,
    /// How long a request or an upgraded connection may be under way without moving a byte.
    pub stream_idle: Duration,
    /// How long a client that has closed its sending side may wait for the first byte of its response, held or not. Most such
    /// clients have left: a FIN looks the same, and only a write shows that nothing reads any more. Without this limit,
    /// clients that gave up during a cold start would keep their holds until the readiness timeout: they would fill the
    /// queue, and then the first pod, ahead of clients that still wait. A limit that counts from the FIN would cut
    /// downloads that make progress.
    pub half_closed: Duration,
    /// Idle connections that are kept to one pod, on each worker.
    pub kept_per_pod: usize,
    /// Idle connections that are kept to all pods together, on all workers.
    pub kept: usize,
    /// Connections to all pods at a time.
    pub pod_connections: usize,
    /// HTTP/1 connections to pods that the requests of one client connection may use at a time.
    pub pod_connections_per_client: usize,
    /// Bytes of bodies in all buffers that their receivers have not taken.
    pub buffers: usize,
    /// The same for one client connection.
    pub buffers_per_connection: usize,
}

impl ConnectionLimits {
    /// The most bytes that are read ahead on an HTTP/1 connection: a head, which grows where its request line is escaped.
    pub(crate) fn read_ahead(&self) -> usize {
        self.heads.head + self.heads.line
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections: 8192,
            idle: Duration::from_secs(75),
            head: Duration::from_secs(10),
            heads: HeadLimits::default(),
            streams: 256,
            stream_idle: Duration::from_hours(1),
            half_closed: Duration::from_secs(30),
            kept_per_pod: 512,
            kept: 8192,
            pod_connections: 8192,
            pod_connections_per_client: 100,
            buffers: 64 << 20,
            buffers_per_connection: 1 << 20,
        }
    }
}

/// How long the parts of a request may be that are not its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes of a request line, without its CRLF.
    pub line: usize,
    /// Bytes of a head, from the request line to the empty line.
    pub head: usize,
    /// Headers of a request, and as many trailers again.
    pub headers: usize,
    /// Bytes of the extensions of one chunk.
    pub extension: usize,
    /// Bytes of all trailers with the empty line after them.
    pub trailers: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { line: 16 * 1024, head: 64 * 1024, headers: 100, extension: 256, trailers: 16 * 1024 }
    }
}
