//! Chooses the connection that is closed to free its place, its memory or its file descriptor.

use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use rouse_core::time::Clock as _;

use super::tracked::Eviction;
use super::{ConnectionLimiter, Connections, TrackedConnection};

/// How long a client, or the pods for it, may take no bytes while memory or file descriptors are short.
pub(super) const MAX_STALL: Duration = Duration::from_secs(1);
/// A client gets this long for the first bytes of its first request before its connection may be closed for another one: the
/// request may be on its way.
pub(super) const NEW: Duration = Duration::from_millis(250);

impl ConnectionLimiter {
    /// The connection that is closed first to make room for a new one.
    pub(super) fn evictable<'c>(
        &self,
        connections: &'c Connections,
    ) -> Option<(&'c Rc<TrackedConnection>, Eviction)> {
        self.longest_idle(connections)
            .map(|connection| (connection, Eviction::Idle))
            .or_else(|| Some((self.longest_body_stall(connections)?, Eviction::BodyStalled)))
            .or_else(|| Some((self.longest_unread(connections, MAX_STALL)?, Eviction::Unread)))
    }

    /// The connection that has been idle for the longest. Those that have never had a request go first; while all of these are
    /// new, none that has had one goes in their place.
    fn longest_idle<'c>(&self, connections: &'c Connections) -> Option<&'c Rc<TrackedConnection>> {
        let now = self.clock.now();
        let is_new = |connection: &TrackedConnection| {
            !connection.client.has_had_request() && connection.client.idle_since() + NEW > now
        };
        let idle =
            connections.iter().map(|(_, connection)| connection).filter(|connection| connection.is_idle());
        let longest = idle
            .min_by_key(|connection| (connection.client.has_had_request(), connection.client.idle_since()));
        longest.filter(|connection| !is_new(connection))
    }

    /// The connection whose request bodies have not arrived for the longest.
    fn longest_body_stall<'c>(&self, connections: &'c Connections) -> Option<&'c Rc<TrackedConnection>> {
        let before = self.clock.now() - self.limits.head;
        let stalled = connections.iter().map(|(_, connection)| connection);
        let stalled = stalled.filter(|connection| connection.body_stalled(before));
        stalled.min_by_key(|connection| connection.client.bodies_stalled_since())
    }

    /// The connection that has not read for the longest, if that is at least as long as `at_least`.
    fn longest_unread<'c>(
        &self,
        connections: &'c Connections,
        at_least: Duration,
    ) -> Option<&'c Rc<TrackedConnection>> {
        let before = self.clock.now() - at_least;
        let unread = |connection: &&Rc<TrackedConnection>| {
            connection.client.unread_since(before).filter(|_| !connection.is_cut())
        };
        let stalled = connections.iter().map(|(_, connection)| connection);
        stalled.filter(|connection| unread(connection).is_some()).min_by_key(unread)
    }

    /// Lets long heads be read again if there is room. If not, closes the connections whose heads have been incomplete for the
    /// longest. Returns how many. To be called often.
    pub(crate) fn relieve_heads(&self) -> usize {
        let paused = self.heads.take_paused();
        let mut closed = 0;
        if self.heads.are_full() {
            let before = self.clock.now() - MAX_STALL;
            let connections = self.connections.borrow();
            let stalled = connections.iter().map(|(_, connection)| connection);
            let mut stalled: Vec<_> = stalled
                .filter_map(|connection| Some((connection.long_head_since(before)?, connection)))
                .collect();
            stalled.sort_by_key(|(since, _)| *since);
            // Half of them: what they free may suffice for the others.
            closed = stalled.len().div_ceil(2);
            stalled.iter().take(closed).for_each(|(_, connection)| connection.cut());
        }
        paused.into_iter().for_each(Waker::wake);
        closed
    }

    /// Checks which connections make progress. To be called often.
    pub(crate) fn check_progress(&self) {
        let now = self.clock.now();
        self.connections.borrow().iter().for_each(|(_, connection)| connection.client.check_progress(now));
    }

    /// Closes the connection that has not read for the longest. Returns how many bytes that frees.
    pub(crate) fn cut_longest_unread(&self) -> Option<usize> {
        let connections = self.connections.borrow();
        let connection = self.longest_unread(&connections, MAX_STALL)?;
        connection.cut();
        Some(connection.client.buffered())
    }

    /// Closes a connection when memory is far over its budget, however short its stall is. A connection that has made progress
    /// and has stalled for less than [`MAX_STALL`] is the last choice: one slow check must not cut a client that reads. Returns
    /// how many bytes that frees.
    pub(crate) fn cut_at_once(&self) -> Option<usize> {
        let now = self.clock.now();
        let connections = self.connections.borrow();
        let rank = |connection: &Rc<TrackedConnection>| {
            let since = connection.client.unread_since(now)?;
            let reads = connection.client.has_moved() && since + MAX_STALL > now;
            (!connection.is_cut()).then_some((reads, since, connection.client.taken()))
        };
        let ranked = connections.iter().filter_map(|(_, connection)| Some((rank(connection)?, connection)));
        let (_, connection) = ranked.min_by_key(|(rank, _)| *rank)?;
        connection.cut();
        Some(connection.client.buffered())
    }

    /// Closes the connection that is needed least, to free its file descriptor: one that has not read, then one whose request
    /// bodies do not arrive, then an idle one. Returns whether there was one.
    pub(crate) fn free_descriptor(&self) -> bool {
        self.cut_longest_unread().is_some() || self.cut_longest_body_stall() || self.close_longest_idle()
    }

    fn cut_longest_body_stall(&self) -> bool {
        let connections = self.connections.borrow();
        self.longest_body_stall(&connections).inspect(|connection| connection.cut()).is_some()
    }

    fn close_longest_idle(&self) -> bool {
        let connections = self.connections.borrow();
        let idle = self.longest_idle(&connections);
        idle.inspect(|connection| connection.evict(Eviction::Idle)).is_some()
    }
}
