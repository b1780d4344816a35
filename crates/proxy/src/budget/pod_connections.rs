//! Limits connections to pods, in total and for one client connection.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::client::ClientState;

/// A client connection that has pod connections gets another one while it has at most `1 / SHARE` as many as are free.
const SHARE: usize = 4;
/// One in [`RESERVE`] of all pod connections is reserved for client connections that have none.
const RESERVE: usize = 8;

/// Counts the connections to pods of the whole gateway.
#[derive(Debug)]
pub(crate) struct PodConnections {
    most: usize,
    open: AtomicUsize,
}

impl PodConnections {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: AtomicUsize::new(0) })
    }

    /// Counts one more connection; `None` if the limit is reached.
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

    /// Whether a client connection that has `own` pod connections, of at most `most`, may have another one.
    pub(crate) fn allows(&self, own: usize, most: usize) -> bool {
        let free = self.free().saturating_sub(self.most / RESERVE);
        own == 0 || (own < most && own <= free / SHARE && free > 0)
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

/// The right of a client connection to have one more request at a pod. Dropping it gives the right back.
#[derive(Debug)]
pub(crate) struct PodRequestPermit {
    client: Rc<ClientState>,
    /// The request uses an HTTP/1 connection by itself.
    exclusive: bool,
}

impl PodRequestPermit {
    pub(crate) fn new(client: &Rc<ClientState>, exclusive: bool) -> Self {
        client.request_dispatched(exclusive);
        Self { client: Rc::clone(client), exclusive }
    }
}

impl Drop for PodRequestPermit {
    fn drop(&mut self) {
        self.client.request_returned(self.exclusive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_with_many_pod_connections_leave_one_for_a_client_without_any() {
        let ask = |pods: &Arc<PodConnections>, own: &mut Vec<PodConnection>| {
            if pods.allows(own.len(), 100) {
                own.extend(pods.open());
            }
        };
        for (clients, one_by_one) in
            [1, 4, 22, 40, 47].into_iter().flat_map(|count| [(count, false), (count, true)])
        {
            let pods = PodConnections::new(384);
            let mut lines: Vec<Vec<PodConnection>> = (0..clients).map(|_| Vec::new()).collect();
            // All requests of one client before the next, or one request of each in turns.
            let (rounds, requests) = if one_by_one { (1, 1000) } else { (1000, 1) };
            for _ in 0..rounds {
                for own in &mut lines {
                    (0..requests).for_each(|_| ask(&pods, own));
                }
            }
            assert!(lines.iter().all(|own| !own.is_empty() && own.len() <= 100));
            assert!(
                pods.allows(0, 100) && pods.open().is_some(),
                "{clients} clients took all, one by one: {one_by_one}"
            );
        }
    }
}
