//! One client connection as the connection limiter tracks it, and the permit that keeps its place.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use rouse_core::time::{Clock as _, Moment};
use tokio::sync::Notify;

use super::ConnectionLimiter;
use super::heads::ReadTracker;
use crate::client::{ClientState, RequestGuard};
use crate::downstream::http1_validator::Violation;
use crate::runtime::Deadlines;

/// How long the runtime may take to report bytes that a client has sent.
pub(super) const SOCKET_LATENCY: Duration = Duration::from_millis(100);

/// Why a connection is closed to make room for another.
#[derive(Debug, Clone, Copy)]
pub(super) enum Eviction {
    /// It has no request under way.
    Idle,
    /// The bodies of its requests do not arrive.
    BodyStalled,
    /// It does not read what waits for it.
    Unread,
}

/// One client connection.
#[derive(Debug)]
pub(crate) struct TrackedConnection {
    pub(super) client: Rc<ClientState>,
    tracker: ReadTracker,
    /// It has to close when no request is under way.
    pub(super) leaving: Cell<bool>,
    /// It has to close also while requests are under way.
    evicted: Cell<bool>,
    /// It has to close at once, without what waits in its buffers.
    cut: Cell<bool>,
    /// Notified when one of these is set.
    leave: Notify,
}

impl TrackedConnection {
    pub(super) fn new(client: Rc<ClientState>, tracker: ReadTracker) -> Rc<Self> {
        Rc::new(Self {
            client,
            tracker,
            leaving: Cell::new(false),
            evicted: Cell::new(false),
            cut: Cell::new(false),
            leave: Notify::new(),
        })
    }

    /// Its state, which the modules below `downstream` update.
    pub(crate) fn client(&self) -> &Rc<ClientState> {
        &self.client
    }

    /// The tracker for the reader of the connection.
    pub(crate) fn tracker(&self) -> ReadTracker {
        self.tracker.clone()
    }

    /// Why the last head was refused.
    pub(crate) fn refused(&self) -> Option<Violation> {
        self.tracker.refused()
    }

    /// A request begins.
    pub(crate) fn begin_request(&self) -> RequestGuard {
        if !self.client.has_had_request() {
            self.tracker.head_ends();
        }
        if !self.evicted.get() {
            // It came while the connection was about to close, and needs its place: otherwise there would be more than allowed.
            self.leaving.set(false);
        }
        self.client.begin_request()
    }

    /// Whether a request is under way that may be completed.
    pub(crate) fn has_request(&self) -> bool {
        self.client.requests() > 0 && !self.evicted.get()
    }

    /// Whether it has to close at once.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.get()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.client.requests() == 0 && !self.leaving.get()
    }

    /// Whether all requests wait for bodies that have not moved since `before`.
    pub(super) fn body_stalled(&self, before: Moment) -> bool {
        self.client.bodies_stalled_since().is_some_and(|since| since <= before) && !self.leaving.get()
    }

    pub(super) fn long_head_since(&self, before: Moment) -> Option<Moment> {
        self.tracker.long_head_since(before).filter(|_| !self.cut.get())
    }

    pub(super) fn evict(&self, eviction: Eviction) {
        match eviction {
            Eviction::Idle | Eviction::BodyStalled => {
                self.evicted.set(matches!(eviction, Eviction::BodyStalled));
                self.leaving.set(true);
                self.leave.notify_one();
            }
            Eviction::Unread => self.cut(),
        }
    }

    /// Closes it at once.
    pub(super) fn cut(&self) {
        self.cut.set(true);
        self.evicted.set(true);
        self.leaving.set(true);
        self.leave.notify_one();
    }
}

/// A connection's place in the limiter. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    pub(super) limiter: Rc<ConnectionLimiter>,
    pub(super) key: usize,
    pub(crate) connection: Rc<TrackedConnection>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.connection.client.connection_ended();
        self.limiter.connections.borrow_mut().try_remove(self.key);
    }
}

impl ConnectionPermit {
    /// Ends when the connection has been idle for too long, or has to make room. `unread`: whether the client has sent bytes
    /// that are not read yet.
    pub(crate) async fn expired(&self, deadlines: &Rc<Deadlines>, unread: impl Fn() -> bool) {
        tokio::select! {
            () = self.connection.leave.notified() => {}
            () = self.timed_out(deadlines, unread) => {}
        }
    }

    async fn timed_out(&self, deadlines: &Rc<Deadlines>, unread: impl Fn() -> bool) {
        let (limits, connection) = (&self.limiter.limits, &self.connection);
        let TrackedConnection { client, tracker, .. } = &**connection;
        let mut spared = None;
        loop {
            if connection.evicted.get() {
                return;
            }
            let now = self.limiter.clock.now();
            // A connection that has to make room and has no request closes now: its place is given away already.
            let patience = if connection.leaving.get() { Duration::ZERO } else { limits.idle };
            let idle = (client.requests() == 0).then(|| client.idle_since() + patience);
            // While a request is under way, the next head is incomplete because it is not read.
            let head = tracker.head_since().filter(|_| client.requests() == 0);
            let head = head.map(|since| since.max(client.idle_since()) + limits.head);
            let half_closed = tracker.half_closed_since().map(|since| since + limits.half_closed);
            if half_closed.is_some_and(|due| due <= now) {
                connection.evicted.set(true);
                return;
            }
            match idle.into_iter().chain(head).chain(half_closed).min() {
                // A process that was stopped sees the time before it sees its sockets: a request that came meanwhile would
                // be lost. Once only: a client must not get more time by sending bytes.
                Some(due) if due <= now && spared != Some(due) && unread() => {
                    spared = Some(due);
                    deadlines.at(now + SOCKET_LATENCY).await;
                }
                Some(due) if due <= now => return,
                // A head may begin at any time.
                due => {
                    let check = now + limits.head;
                    deadlines.at(due.map_or(check, |due| due.min(check))).await;
                }
            }
        }
    }
}
