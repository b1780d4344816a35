//! Limits client connections. Closes idle and stalled ones at the limit, after their timeouts, and when memory or descriptors
//! run short.
//!
//! When a worker has as many connections as it may have, the one that has been idle for the longest makes room, then the one
//! whose request bodies have not arrived for the longest, then the one that has not read for the longest. When all of them
//! make progress, new connections stay in the kernel's queue for a moment ([`ConnectionLimiter::wait_for_room`]); after that
//! they are closed.

mod eviction;
mod heads;
#[cfg(test)]
mod tests;
mod tracked;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::shutdown::InFlightCounter;
use rouse_core::time::{Clock as _, Moment};
use rouse_net::clock::TokioClock;
use slab::Slab;

use self::heads::IncompleteHeads;
pub(crate) use self::heads::ReadTracker;
pub(crate) use self::tracked::{ConnectionPermit, TrackedConnection};
use crate::budget::ConnectionLimits;
use crate::client::ClientState;

/// How long new connections wait for a place. Longer than a stall is tolerated, so that a burst of clients that do not read
/// makes room in time.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// How often to check whether there is a place.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

type Connections = Slab<Rc<TrackedConnection>>;

/// The client connections of one worker.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    clock: TokioClock,
    limits: ConnectionLimits,
    /// How many connections this worker may have.
    most: usize,
    connections: RefCell<Connections>,
    /// Since when there is no place for a new connection.
    full_since: Cell<Option<Moment>>,
    heads: Arc<IncompleteHeads>,
    /// Where connections are counted while the gateway drains.
    draining: RefCell<Option<Arc<InFlightCounter>>>,
}

impl ConnectionLimiter {
    /// The limiter of one of `workers`.
    pub(crate) fn new(clock: TokioClock, limits: ConnectionLimits, workers: usize) -> Rc<Self> {
        let workers = workers.max(1);
        Rc::new(Self {
            clock,
            limits,
            most: limits.connections.div_ceil(workers).max(1),
            connections: RefCell::default(),
            full_since: Cell::default(),
            // Half as many bytes as bodies may take.
            heads: IncompleteHeads::new(limits.buffers / 2 / workers),
            draining: RefCell::default(),
        })
    }

    /// Waits until there is a place for a new connection, for at most [`MAX_WAIT`]: then [`ConnectionLimiter::admit`] rejects it.
    /// The caller leaves new connections in the kernel's queue meanwhile.
    pub(crate) async fn wait_for_room(&self) {
        loop {
            let now = self.clock.now();
            if self.has_room() {
                return self.full_since.set(None);
            }
            let since = self.full_since.get().unwrap_or(now);
            self.full_since.set(Some(since));
            if now >= since + MAX_WAIT {
                return;
            }
            self.clock.sleep_until(now + CHECK_INTERVAL).await;
        }
    }

    fn has_room(&self) -> bool {
        let connections = self.connections.borrow();
        !self.is_full(&connections) || self.evictable(&connections).is_some()
    }

    fn is_full(&self, connections: &Connections) -> bool {
        let leaving = || connections.iter().filter(|(_, connection)| connection.leaving.get()).count();
        connections.len() >= self.most && connections.len() - leaving() >= self.most
    }

    /// The permit of a new connection; `None` if there is no room for it.
    pub(crate) fn admit(self: &Rc<Self>) -> Option<ConnectionPermit> {
        let mut connections = self.connections.borrow_mut();
        if self.is_full(&connections) {
            let (connection, eviction) = self.evictable(&connections)?;
            connection.evict(eviction);
        }
        self.full_since.set(None);
        let client = ClientState::new(self.clock);
        if let Some(under_way) = &*self.draining.borrow() {
            client.drain(under_way);
        }
        let tracker = ReadTracker::new(&self.heads, client.reader());
        let connection = TrackedConnection::new(client, tracker);
        let key = connections.insert(Rc::clone(&connection));
        Some(ConnectionPermit { limiter: Rc::clone(self), key, connection })
    }

    /// How many connections there are.
    pub(crate) fn len(&self) -> usize {
        self.connections.borrow().len()
    }

    /// The gateway drains: from now on every connection counts as under way until it ends.
    pub(crate) fn drain(&self, under_way: &Arc<InFlightCounter>) {
        *self.draining.borrow_mut() = Some(Arc::clone(under_way));
        self.connections.borrow().iter().for_each(|(_, connection)| connection.client.drain(under_way));
    }
}
