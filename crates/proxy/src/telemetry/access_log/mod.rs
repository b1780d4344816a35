//! The access log: one entry for each request when it has ended.

mod format;
mod pending_entry;
mod writer;

use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use http::Version;

pub use self::format::{Format, UnknownFormat};
pub(crate) use self::pending_entry::PendingEntry;
pub use self::writer::{TimeOfDay, Writer};

/// One request. Text from the client is not escaped: the writer of the log escapes it.
#[derive(Debug, Clone, Copy)]
pub struct AccessLogEntry<'a> {
    /// The address of the client connection.
    pub client: SocketAddr,
    /// Its method.
    pub method: &'a str,
    /// Its path, with its query.
    pub target: &'a str,
    /// The version of HTTP.
    pub version: Version,
    /// The host of the request.
    pub host: &'a [u8],
    /// The status, as the metrics count it: 499 if the client left before the end, and for gRPC the HTTP status of the failure.
    pub status: u16,
    /// How many bytes of bodies were sent to the client.
    pub sent: u64,
    /// From its head to the end of the response.
    pub took: Duration,
    /// Its `User-Agent`; empty without one.
    pub agent: &'a [u8],
    /// Its `Referer`; empty without one.
    pub referer: &'a [u8],
    /// The name of the route; `none` without one.
    pub route: &'a str,
    /// The pod or the `ClusterIP` that it was sent to last.
    pub upstream: Option<SocketAddr>,
    /// Whether it waited for a pod to start, and was sent there.
    pub cold_start: bool,
    /// The error code, as in `X-Rouse-Error`.
    pub error: Option<&'a str>,
    /// The trace id of the client's `traceparent`.
    pub trace: Option<&'a str>,
}

/// Writes entries. It must never make a request wait.
pub trait AccessLog: Debug + Send + Sync {
    /// Writes `entry`. Returns how many entries were lost since the last call, including this one.
    fn write(&self, entry: &AccessLogEntry<'_>) -> u64;

    /// No entries follow: writes out what is queued, within a time limit.
    fn close(&self) {}
}
