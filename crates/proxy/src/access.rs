//! The access log: what is told of each request once it is over.

mod format;
mod note;
mod writer;

use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use http::Version;

pub use self::format::{Format, UnknownFormat};
pub(crate) use self::note::Note;
pub use self::writer::{TimeOfDay, Writer};

/// What is told of one request. Text that came from the client is as it came: whoever writes it down escapes it.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Whom it came from, by its connection.
    pub client: SocketAddr,
    /// Its method.
    pub method: &'a str,
    /// Its path, with its query.
    pub target: &'a str,
    /// What it was spoken in.
    pub version: Version,
    /// The host that it was for.
    pub host: &'a [u8],
    /// What the client was answered, as the metrics count it: 499 if it left before the end, and for gRPC the HTTP
    /// status of the failure.
    pub status: u16,
    /// How many bytes of bodies were sent to the client.
    pub sent: u64,
    /// From its head to the end of the response.
    pub took: Duration,
    /// Its `User-Agent`; empty without one.
    pub agent: &'a [u8],
    /// Its `Referer`; empty without one.
    pub referer: &'a [u8],
    /// The route that it took; `none` without one.
    pub route: &'a str,
    /// The pod or the `ClusterIP` that it was sent to last.
    pub upstream: Option<SocketAddr>,
    /// It waited for a pod to come up, and was sent there.
    pub cold_start: bool,
    /// The code of what went wrong, as in `X-Rouse-Error`.
    pub error: Option<&'a str>,
    /// The trace that the client's `traceparent` names.
    pub trace: Option<&'a str>,
}

/// Where requests are written down. It must never make a request wait.
pub trait AccessLog: Debug + Send + Sync {
    /// Takes note of `entry`. Answers how many entries were lost since the last call, this one included.
    fn write(&self, entry: &Entry<'_>) -> u64;

    /// Nothing more will come: sees that what was taken note of is out, within reason.
    fn close(&self) {}
}
