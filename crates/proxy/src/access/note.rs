//! What is kept of a request for the access log, while it is under way.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request, Uri, Version};

use super::{AccessLog, Entry};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What is kept of one request. Only while somebody wants to know: it takes an allocation.
#[derive(Debug)]
pub(crate) struct Note {
    client: SocketAddr,
    method: Method,
    uri: Uri,
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

impl Note {
    pub(crate) fn of<B>(request: &Request<B>, client: SocketAddr) -> Box<Self> {
        let header = |name| request.headers().get(name).cloned();
        let note = Self {
            client,
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            host: header(header::HOST),
            agent: header(header::USER_AGENT),
            referer: header(header::REFERER),
            trace: header(TRACEPARENT),
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

    /// It is sent to `upstream`.
    pub(crate) fn goes_to(&self, upstream: SocketAddr, cold_start: bool) {
        self.upstream.set(Some(upstream));
        self.cold_start.set(cold_start);
    }

    pub(crate) fn failed(&self, code: &'static str) {
        self.error.set(Some(code));
    }

    /// It is over. Answers how many entries were lost.
    pub(crate) fn write(&self, log: &dyn AccessLog, route: &str, status: u16, took: Duration) -> u64 {
        // The absolute form and HTTP/2 name the host in the target.
        let authority = self.uri.authority().map(|authority| authority.as_str().as_bytes());
        log.write(&Entry {
            client: self.client,
            method: self.method.as_str(),
            target: self.uri.path_and_query().map_or("/", |target| target.as_str()),
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

/// The second part of a `traceparent`, if it is one.
fn trace_id(parent: &HeaderValue) -> Option<&str> {
    let id = parent.to_str().ok()?.split('-').nth(1)?;
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}
