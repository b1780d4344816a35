//! The parts of a request that the access log needs when the request has ended.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use http::header::{self, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery};
use http::{Method, Version};

use super::{AccessLog, AccessLogEntry};
use crate::message::RequestHead;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The parts of one request that the access log needs. Only made if there is an access log: it takes an allocation.
#[derive(Debug)]
pub(crate) struct PendingEntry {
    client: SocketAddr,
    method: Method,
    target: Option<PathAndQuery>,
    authority: Option<Authority>,
    version: Version,
    host: Option<HeaderValue>,
    agent: Option<HeaderValue>,
    referer: Option<HeaderValue>,
    trace: Option<HeaderValue>,
    sent: Cell<u64>,
    upstream: Cell<Option<SocketAddr>>,
    cold_start: Cell<bool>,
    error: Cell<Option<&'static str>>,
}

impl PendingEntry {
    pub(crate) fn new(head: &impl RequestHead, client: SocketAddr) -> Box<Self> {
        let note = Self {
            client,
            method: head.method().clone(),
            target: head.kept_target(),
            authority: head.kept_authority(),
            version: head.version(),
            host: head.kept_header(&header::HOST),
            agent: head.kept_header(&header::USER_AGENT),
            referer: head.kept_header(&header::REFERER),
            trace: head.kept_header(&TRACEPARENT),
            sent: Cell::default(),
            upstream: Cell::default(),
            cold_start: Cell::default(),
            error: Cell::default(),
        };
        Box::new(note)
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.sent.set(self.sent.get().saturating_add(bytes));
    }

    /// The request is sent to `upstream`.
    pub(crate) fn sent_to(&self, upstream: SocketAddr, cold_start: bool) {
        self.upstream.set(Some(upstream));
        self.cold_start.set(cold_start);
    }

    pub(crate) fn failed(&self, code: &'static str) {
        self.error.set(Some(code));
    }

    /// Writes the entry. Returns how many entries were lost.
    pub(crate) fn write(&self, log: &dyn AccessLog, route: &str, status: u16, took: Duration) -> u64 {
        // In the absolute form and in HTTP/2, the target has the host.
        let authority = self.authority.as_ref().map(|authority| authority.as_str().as_bytes());
        log.write(&AccessLogEntry {
            client: self.client,
            method: self.method.as_str(),
            target: self.target.as_ref().map_or("/", |target| target.as_str()),
            version: self.version,
            host: authority.unwrap_or(bytes(self.host.as_ref())),
            status,
            sent: self.sent.get(),
            took,
            agent: bytes(self.agent.as_ref()),
            referer: bytes(self.referer.as_ref()),
            route,
            upstream: self.upstream.get(),
            cold_start: self.cold_start.get(),
            error: self.error.get(),
            trace: self.trace.as_ref().and_then(trace_id),
        })
    }
}

fn bytes(value: Option<&HeaderValue>) -> &[u8] {
    value.map(HeaderValue::as_bytes).unwrap_or_default()
}

/// The trace id in a `traceparent`, if it is valid.
fn trace_id(parent: &HeaderValue) -> Option<&str> {
    let id = parent.to_str().ok()?.split('-').nth(1)?;
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}
