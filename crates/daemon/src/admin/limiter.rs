//! Limits the connections of the admin server: a new one always gets a place, and the oldest of its kind makes room.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// What a connection is used for. Each use has places of its own, so that a flood of one does not close the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// It has asked for nothing yet, or for probes: it costs little.
    Probe,
    /// It asked for something else: the answer may be long, or never end.
    Other,
}

impl Use {
    /// What a request for `path` makes of its connection.
    pub(super) fn of(path: &str) -> Self {
        match path {
            "/livez" | "/readyz" => Use::Probe,
            _ => Use::Other,
        }
    }

    /// How many connections there may be.
    const fn places(self) -> usize {
        match self {
            Use::Probe => 96,
            Use::Other => 32,
        }
    }
}

/// All connections. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionLimiter(Arc<Mutex<Connections>>);

#[derive(Debug, Default)]
struct Connections {
    next_id: u64,
    /// The one whose last request (or accept) is longest ago comes first. As many as there are places, so that a search
    /// is short.
    by_age: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    used_for: Use,
    evicted: CancellationToken,
}

impl Connections {
    fn remove(&mut self, found: impl Fn(&Connection) -> bool) -> Option<Connection> {
        let index = self.by_age.iter().position(found)?;
        Some(self.by_age.remove(index))
    }

    /// Adds the youngest connection, and evicts the oldest of its use if there are too many.
    fn add(&mut self, connection: Connection) {
        let used_for = connection.used_for;
        self.by_age.push(connection);
        let same = |it: &Connection| it.used_for == used_for;
        if self.by_age.iter().filter(|it| same(it)).count() > used_for.places()
            && let Some(oldest) = self.remove(same)
        {
            oldest.evicted.cancel();
        }
    }
}

impl ConnectionLimiter {
    /// A place for a new connection.
    pub(super) fn place(&self) -> Place {
        let evicted = CancellationToken::new();
        let mut connections = self.lock();
        let id = connections.next_id;
        connections.next_id = id.wrapping_add(1);
        connections.add(Connection { id, used_for: Use::Probe, evicted: evicted.clone() });
        Place { id, evicted, limiter: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Place {
    id: u64,
    evicted: CancellationToken,
    limiter: ConnectionLimiter,
}

impl Place {
    /// The connection has sent a request, and is the youngest again.
    pub(super) fn use_for(&self, used_for: Use) {
        let mut connections = self.limiter.lock();
        // One that was evicted meanwhile is not there any more.
        if let Some(connection) = connections.remove(|it| it.id == self.id) {
            connections.add(Connection { used_for, ..connection });
        }
    }

    /// Ends when the connection has to make room for another one.
    pub(super) fn evicted(&self) -> WaitForCancellationFuture<'_> {
        self.evicted.cancelled()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.limiter.lock().remove(|it| it.id == self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(places: &[Place]) -> Vec<u64> {
        places.iter().filter(|place| !place.evicted.is_cancelled()).map(|place| place.id).collect()
    }

    #[test]
    fn the_oldest_of_the_same_use_makes_room() {
        let limiter = ConnectionLimiter::default();
        let other = limiter.place();
        other.use_for(Use::of("/metrics"));
        let places: Vec<Place> = (0..Use::Probe.places()).map(|_| limiter.place()).collect();
        assert_eq!(open(&places).len(), places.len());
        places[0].use_for(Use::of("/livez"));
        let one_more = limiter.place();
        assert_eq!(open(&places).len(), places.len() - 1);
        assert!(places[1].evicted.is_cancelled() && !places[0].evicted.is_cancelled());
        assert!(open(&[one_more, other]).len() == 2, "neither the new one nor one of another use");
    }

    #[test]
    fn a_request_for_something_else_than_a_probe_takes_a_place_of_the_others() {
        let limiter = ConnectionLimiter::default();
        let probes: Vec<Place> = (0..Use::Probe.places()).map(|_| limiter.place()).collect();
        let others = |count: usize| -> Vec<Place> {
            let ask = |_| {
                let place = limiter.place();
                place.use_for(Use::of("/api/v1/services"));
                place
            };
            (0..count).map(ask).collect()
        };
        drop(probes);
        let first = others(Use::Other.places());
        let second = others(Use::Other.places());
        assert_eq!((open(&first).len(), open(&second).len()), (0, Use::Other.places()));
        drop(first);
        assert_eq!(limiter.lock().by_age.len(), Use::Other.places());
        drop(second);
        assert!(limiter.lock().by_age.is_empty());
    }
}
