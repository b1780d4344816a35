//! What a route answers without a pod, and which of its requests are not worth one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};

use crate::body::AnswerBody;
use crate::gateway::Target;
use crate::headers;
use crate::route::PathPrefix;

/// What a route answers without its pods.
#[derive(Debug, Default)]
pub struct Podless {
    /// Instead of anything else.
    pub fixed: Option<Fixed>,
    /// At once, where a request would have to wait for a pod; the pod is woken all the same.
    pub placeholder: Option<Arc<Canned>>,
    /// Where more would wait than may.
    pub overflow: Option<Arc<Canned>>,
    /// Who takes a request that no pod was ready for in time.
    pub fallback: Option<Target>,
    /// How many may wait, of this route alone.
    pub pending: Option<Arc<Pending>>,
    /// Requests that wake nobody and do not count as load.
    pub quiet: Quiet,
}

/// What is answered instead of anything else. It wakes nobody, and does not count as load.
#[derive(Debug)]
pub struct Fixed {
    /// The answer.
    pub answer: Arc<Canned>,
    /// Only while no pod takes requests.
    pub when_unavailable: bool,
}

/// An answer that is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canned {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Canned {
    /// Says what the body is if `headers` do not: web servers do, and users write pages without thinking of it. How
    /// long it is, and what concerns one connection only, is not for `headers` to say.
    pub fn new(status: StatusCode, mut headers: HeaderMap, body: Bytes) -> Self {
        headers::remove_hop_by_hop(&mut headers);
        headers.remove(header::CONTENT_LENGTH);
        headers.remove(header::TRAILER);
        // Neither has a body.
        let none = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let body = if none { Bytes::new() } else { body };
        if !body.is_empty() && !headers.contains_key(header::CONTENT_TYPE) {
            let page = body.trim_ascii_start().starts_with(b"<");
            let kind = if page { "text/html; charset=utf-8" } else { "text/plain; charset=utf-8" };
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        Self { status, headers, body }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn response(&self) -> Response<AnswerBody> {
        let body = (!self.body.is_empty()).then(|| self.body.clone());
        let mut response = Response::new(AnswerBody::Ours(body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response
    }
}

/// How many requests of one route may wait, and how many do.
#[derive(Debug)]
pub struct Pending {
    most: usize,
    waiting: AtomicUsize,
}

impl Pending {
    /// Nobody waits yet.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, waiting: AtomicUsize::new(0) })
    }

    /// How many may wait.
    pub fn most(&self) -> usize {
        self.most
    }

    /// One more, if there is room.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Waiting> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(Arc::clone(self));
        (before < self.most).then_some(waiting)
    }
}

/// One that waits. Dropping it makes room.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<Pending>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Health checks, robots: requests that wake nobody.
#[derive(Debug, Default, Clone)]
pub struct Quiet {
    /// For any of these paths.
    pub paths: Vec<PathPrefix>,
    /// By any of these methods.
    pub methods: Vec<Method>,
    /// From whoever has one of these in its `User-Agent`; in lower case.
    pub agents: Vec<String>,
}

impl Quiet {
    pub(crate) fn covers<B>(&self, request: &Request<B>) -> bool {
        self.methods.contains(request.method())
            || self.paths.iter().any(|prefix| prefix.covers(request.uri().path()))
            || (!self.agents.is_empty() && self.is_from(request.headers()))
    }

    fn is_from(&self, headers: &HeaderMap) -> bool {
        let agent = headers.get(header::USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
        let agent = agent.to_ascii_lowercase();
        self.agents.iter().any(|part| agent.windows(part.len().max(1)).any(|here| here == part.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_requests_are_told_by_path_method_or_agent() {
        let quiet = Quiet {
            paths: vec!["/healthz".parse().unwrap()],
            methods: vec![Method::OPTIONS],
            agents: vec!["googlebot".into()],
        };
        for (method, path, agent, covered) in [
            ("GET", "/", "curl", false),
            ("GET", "/healthz", "curl", true),
            ("GET", "/healthz/db", "curl", true),
            ("GET", "/healthzz", "curl", false),
            ("OPTIONS", "/", "curl", true),
            ("GET", "/", "Mozilla/5.0 (compatible; Googlebot/2.1)", true),
        ] {
            let request = Request::builder().method(method).uri(path).header("user-agent", agent);
            assert_eq!(quiet.covers(&request.body(()).unwrap()), covered, "{method} {path} {agent}");
        }
        assert!(!Quiet::default().covers(&Request::new(())));
    }

    #[test]
    fn as_many_as_may_wait_and_each_that_leaves_makes_room() {
        let pending = Pending::new(2);
        let first = pending.enter();
        let _second = pending.enter().unwrap();
        assert!(pending.enter().is_none() && pending.enter().is_none());
        drop(first);
        assert!(pending.enter().is_some());
        assert!(Pending::new(0).enter().is_none());
    }

    #[test]
    fn a_page_is_said_to_be_one_unless_somebody_says_otherwise() {
        let kind = |headers: HeaderMap, body: &'static str| {
            let response = Canned::new(StatusCode::OK, headers, body.into()).response();
            response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned())
        };
        assert_eq!(kind(HeaderMap::new(), "\n<html>").as_deref(), Some("text/html; charset=utf-8"));
        assert_eq!(kind(HeaderMap::new(), "wait").as_deref(), Some("text/plain; charset=utf-8"));
        assert_eq!(kind(HeaderMap::new(), ""), None);
        let json =
            HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        assert_eq!(kind(json, "<").as_deref(), Some("application/json"));
    }
}
