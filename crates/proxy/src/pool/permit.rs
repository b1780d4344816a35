//! How many connections to pods there may be: in all, and for one client connection.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::crowd::Member;

/// A client connection may have one in so many of the pod connections that are free: it never takes the last ones, and
/// there is always one for a client that has none.
const SHARE: usize = 4;

/// The connections to pods of the whole gateway.
#[derive(Debug)]
pub(crate) struct PodConnections {
    most: usize,
    open: AtomicUsize,
}

impl PodConnections {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: AtomicUsize::new(0) })
    }

    /// The right to have one more.
    pub(crate) fn open(self: &Arc<Self>) -> Option<PodConnection> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.most {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(PodConnection(Arc::clone(self)))
    }

    fn free(&self) -> usize {
        self.most.saturating_sub(self.open.load(Ordering::Relaxed))
    }

    /// Whether a client connection that has `lines` pod connections, of at most `most`, may have another one.
    pub(crate) fn allows(&self, lines: usize, most: usize) -> bool {
        lines == 0 || (lines < most && lines <= self.free() / SHARE)
    }
}

/// One connection to a pod. Dropping it ends its count.
#[derive(Debug)]
pub(crate) struct PodConnection(Arc<PodConnections>);

impl Drop for PodConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The right of a client connection to use one HTTP/1 connection to a pod. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Turn(Rc<Member>);

impl Turn {
    pub(crate) fn of(member: &Rc<Member>) -> Self {
        member.takes_line();
        Self(Rc::clone(member))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.gives_line_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_clients_always_leave_a_connection_for_one_that_has_none() {
        for clients in [1, 4, 40, 90] {
            let pods = PodConnections::new(384);
            let mut lines: Vec<Vec<PodConnection>> = (0..clients).map(|_| Vec::new()).collect();
            for _ in 0..1000 {
                for own in &mut lines {
                    if pods.allows(own.len(), 100) {
                        own.extend(pods.open());
                    }
                }
            }
            assert!(lines.iter().all(|own| !own.is_empty() && own.len() <= 100));
            assert!(pods.allows(0, 100) && pods.open().is_some(), "{clients} clients took all");
        }
    }
}
