//! Limits concurrent probes, in total and per node, so that many starting pods do not cause a burst of probes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// The limits, shared by all services. A probe waits while one of them is reached.
#[derive(Debug)]
pub struct ProbeLimits {
    in_all: usize,
    per_node: usize,
    all: Semaphore,
    /// Only nodes with a probe that runs or waits.
    nodes: Mutex<HashMap<Arc<str>, Node>>,
}

#[derive(Debug)]
struct Node {
    turns: Arc<Semaphore>,
    /// How many probes of the node run or wait. The entry is removed with the last.
    users: usize,
}

impl ProbeLimits {
    /// At most `in_all` probes at a time, and `per_node` to one node; at least one of each.
    pub fn new(in_all: usize, per_node: usize) -> Self {
        let in_all = in_all.clamp(1, Semaphore::MAX_PERMITS);
        let per_node = per_node.clamp(1, in_all);
        Self { in_all, per_node, all: Semaphore::new(in_all), nodes: Mutex::default() }
    }

    /// How many probes run now.
    pub fn in_flight(&self) -> usize {
        self.in_all.saturating_sub(self.all.available_permits())
    }

    /// Waits for the right to probe a pod of `node`, first come first served. Dropping the turn gives it back.
    pub async fn turn(&self, node: &Arc<str>) -> ProbePermit<'_> {
        let entry = NodeEntry::new(self, node);
        // Wait for the node first: a probe that waits for a busy node must not block probes of other nodes. (Nothing closes
        // the semaphores, so neither wait can fail.)
        let node = Arc::clone(&entry.turns).acquire_owned().await.ok();
        let all = self.all.acquire().await.ok();
        ProbePermit { _all: all, _node: node, _seat: entry }
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Arc<str>, Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ProbeLimits {
    fn default() -> Self {
        Self::new(256, 32)
    }
}

/// The right to send one probe.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub struct ProbePermit<'a> {
    _all: Option<SemaphorePermit<'a>>,
    _node: Option<OwnedSemaphorePermit>,
    _seat: NodeEntry<'a>,
}

/// Keeps the entry of a node while a probe of it runs or waits.
#[derive(Debug)]
struct NodeEntry<'a> {
    limits: &'a ProbeLimits,
    node: Arc<str>,
    turns: Arc<Semaphore>,
}

impl<'a> NodeEntry<'a> {
    fn new(limits: &'a ProbeLimits, node: &Arc<str>) -> Self {
        let mut nodes = limits.nodes();
        let entries = nodes
            .entry(Arc::clone(node))
            .or_insert_with(|| Node { turns: Arc::new(Semaphore::new(limits.per_node)), users: 0 });
        entries.users += 1;
        Self { limits, node: Arc::clone(node), turns: Arc::clone(&entries.turns) }
    }
}

impl Drop for NodeEntry<'_> {
    fn drop(&mut self) {
        let mut nodes = self.limits.nodes();
        if let Some(entries) = nodes.get_mut(&self.node) {
            entries.users -= 1;
            if entries.users == 0 {
                nodes.remove(&self.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn nodes() -> [Arc<str>; 2] {
        ["a".into(), "b".into()]
    }

    fn now<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_busy_node_does_not_hold_up_the_others() {
        let [a, b] = nodes();
        let limits = ProbeLimits::new(2, 1);
        let first = now(pin!(limits.turn(&a))).unwrap();
        let mut waits = pin!(limits.turn(&a));
        assert!(now(waits.as_mut()).is_none());
        let other = now(pin!(limits.turn(&b))).unwrap();
        assert_eq!(limits.in_flight(), 2);
        drop(first);
        let second = now(waits.as_mut()).unwrap();
        drop((second, other));
        assert_eq!(limits.in_flight(), 0);
    }

    #[test]
    fn whoever_gives_up_waiting_leaves_nothing_behind() {
        let [a, b] = nodes();
        let limits = ProbeLimits::new(1, 1);
        let first = now(pin!(limits.turn(&a))).unwrap();
        {
            assert!(now(pin!(limits.turn(&a))).is_none());
            assert!(now(pin!(limits.turn(&b))).is_none());
        }
        assert_eq!(limits.nodes().len(), 1);
        drop(first);
        assert!(limits.nodes().is_empty());
        assert_eq!(limits.in_flight(), 0);
    }
}
