//! What a route does while it has no pod, and which of its requests do not wake one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use http::header;

use super::route::Target;
use super::static_response::StaticResponse;
use super::table::PathPrefix;
use crate::message::RequestHead;

/// What a route does while it has no pod.
#[derive(Debug, Default)]
pub struct NoPodPolicy {
    /// A response that replaces the pods.
    pub fixed: Option<FixedResponse>,
    /// A response for requests that would have to wait for a pod. The pod is woken all the same.
    pub placeholder: Option<Arc<StaticResponse>>,
    /// A response for requests that do not fit into the wait queue.
    pub overflow: Option<Arc<StaticResponse>>,
    /// Takes requests for which no pod was ready in time.
    pub fallback: Option<Target>,
    /// How many requests of this route may wait.
    pub pending: Option<Arc<PendingLimit>>,
    /// Requests that do not wake a pod and do not count as load.
    pub passive: PassiveRequests,
}

/// A response that replaces the pods of a route. It wakes no pod, and its requests do not count as load.
#[derive(Debug)]
pub struct FixedResponse {
    /// The response.
    pub response: Arc<StaticResponse>,
    /// Only while no pod takes requests.
    pub when_unavailable: bool,
}

/// Limits how many requests of one route wait.
#[derive(Debug)]
pub struct PendingLimit {
    most: usize,
    waiting: AtomicUsize,
}

impl PendingLimit {
    /// At most this many may wait.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, waiting: AtomicUsize::new(0) })
    }

    /// How many may wait.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Counts one more, if there is room.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<PendingGuard> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = PendingGuard(Arc::clone(self));
        (before < self.most).then_some(waiting)
    }
}

/// One request that waits. Dropping it makes room.
#[derive(Debug)]
pub(crate) struct PendingGuard(Arc<PendingLimit>);

impl Drop for PendingGuard {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Requests that do not wake a pod, such as health checks and robots.
#[derive(Debug, Default, Clone)]
pub struct PassiveRequests {
    /// For any of these paths.
    pub paths: Vec<PathPrefix>,
    /// With any of these methods.
    pub methods: Vec<Method>,
    /// With any of these in their `User-Agent`; in lower case.
    pub agents: Vec<String>,
}

impl PassiveRequests {
    pub(crate) fn covers(&self, head: &impl RequestHead) -> bool {
        self.methods.contains(head.method())
            || self.paths.iter().any(|prefix| prefix.covers(head.path()))
            || (!self.agents.is_empty() && self.covers_agent(head))
    }

    fn covers_agent(&self, head: &impl RequestHead) -> bool {
        let agent = head.header(&header::USER_AGENT).unwrap_or_default().to_ascii_lowercase();
        self.agents.iter().any(|part| agent.windows(part.len().max(1)).any(|here| here == part.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn passive_requests_are_recognised_by_path_method_or_agent() {
        let passive = PassiveRequests {
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
            assert_eq!(
                passive.covers(&request.body(()).unwrap().into_parts().0),
                covered,
                "{method} {path} {agent}"
            );
        }
        assert!(!PassiveRequests::default().covers(&Request::new(()).into_parts().0));
    }

    #[test]
    fn the_limit_admits_requests_again_when_others_have_left() {
        let pending = PendingLimit::new(2);
        let first = pending.enter();
        let _second = pending.enter().unwrap();
        assert!(pending.enter().is_none() && pending.enter().is_none());
        drop(first);
        assert!(pending.enter().is_some());
        assert!(PendingLimit::new(0).enter().is_none());
    }
}
