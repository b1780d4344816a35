//! Limits the connections of the admin server: at the limit, a new one evicts the least recently used one of its kind that no
//! handler keeps.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// What a connection is used for. Each use has its own limit, so a flood of one kind does not close connections of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// No request yet, or the last one was a probe: the connection costs little.
    Probe,
    /// The last request was not a probe: the response may be long or endless.
    Other,
}

impl Use {
    /// The use of a connection after a request for `path`.
    pub(super) fn of(path: &str) -> Self {
        match path {
            "/livez" | "/readyz" | "/healthz" => Use::Probe,
            _ => Use::Other,
        }
    }

    /// The limit of connections with this use.
    const fn places(self) -> usize {
        match self {
            Use::Probe => 96,
            Use::Other => 32,
        }
    }
}

/// The most connections that handlers keep at a time, of the places for other requests.
const MOST_KEPT: usize = 8;

/// The open connections. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionLimiter(Arc<Mutex<Connections>>);

#[derive(Debug, Default)]
struct Connections {
    next_id: u64,
    /// Ordered by the last request (or accept), oldest first. The limits bound the length, so a linear search is cheap.
    by_age: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    used_for: Use,
    /// A handler keeps it: it is not evicted.
    kept: bool,
    evicted: CancellationToken,
}

impl Connections {
    fn remove(&mut self, found: impl Fn(&Connection) -> bool) -> Option<Connection> {
        let index = self.by_age.iter().position(found)?;
        Some(self.by_age.remove(index))
    }

    /// Adds the youngest connection, and evicts the oldest of its use that is not kept if there are too many.
    fn add(&mut self, connection: Connection) {
        let used_for = connection.used_for;
        self.by_age.push(connection);
        let same = |it: &Connection| it.used_for == used_for;
        if self.by_age.iter().filter(|it| same(it)).count() > used_for.places()
            && let Some(oldest) = self.remove(|it| same(it) && !it.kept)
        {
            oldest.evicted.cancel();
        }
    }
}

impl ConnectionLimiter {
    /// Adds a new connection; at the limit, evicts the oldest one.
    pub(super) fn place(&self) -> Place {
        let evicted = CancellationToken::new();
        let mut connections = self.lock();
        let id = connections.next_id;
        connections.next_id = id.wrapping_add(1);
        connections.add(Connection { id, used_for: Use::Probe, kept: false, evicted: evicted.clone() });
        Place { id, evicted, limiter: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection in the limiter. Dropping it removes the connection.
#[derive(Debug)]
pub(crate) struct Place {
    id: u64,
    evicted: CancellationToken,
    limiter: ConnectionLimiter,
}

impl Place {
    /// Records a request: the connection is now the most recently used one.
    pub(super) fn use_for(&self, used_for: Use) {
        let mut connections = self.limiter.lock();
        // An evicted connection is no longer in the list.
        if let Some(connection) = connections.remove(|it| it.id == self.id) {
            connections.add(Connection { used_for, ..connection });
        }
    }

    /// Keeps the connection from being evicted until the guard is dropped, for a trusted client that waits for its response.
    /// `None` if so many are kept already that other clients need the places.
    pub(crate) fn keep(self: &Arc<Self>) -> Option<KeptPlace> {
        let mut connections = self.limiter.lock();
        if connections.by_age.iter().filter(|it| it.kept).count() >= MOST_KEPT {
            return None;
        }
        connections.by_age.iter_mut().find(|it| it.id == self.id)?.kept = true;
        drop(connections);
        Some(KeptPlace(Arc::clone(self)))
    }

    /// Resolves when the connection is evicted and must be closed.
    pub(super) fn evicted(&self) -> WaitForCancellationFuture<'_> {
        self.evicted.cancelled()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.limiter.lock().remove(|it| it.id == self.id);
    }
}

/// Keeps a connection from being evicted.
#[derive(Debug)]
pub(crate) struct KeptPlace(Arc<Place>);

impl Drop for KeptPlace {
    fn drop(&mut self) {
        let mut connections = self.0.limiter.lock();
        if let Some(connection) = connections.by_age.iter_mut().find(|it| it.id == self.0.id) {
            connection.kept = false;
        }
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

    #[test]
    fn a_kept_connection_is_not_evicted_until_it_is_let_go_and_few_are_kept() {
        let limiter = ConnectionLimiter::default();
        let ask = || {
            let place = Arc::new(limiter.place());
            place.use_for(Use::of("/drain"));
            place
        };
        let hooks: Vec<Arc<Place>> = (0..=MOST_KEPT).map(|_| ask()).collect();
        let mut kept: Vec<Option<KeptPlace>> = hooks.iter().map(Place::keep).collect();
        assert_eq!(kept.iter().flatten().count(), MOST_KEPT);
        let evicted = || hooks.iter().map(|place| place.evicted.is_cancelled()).collect::<Vec<_>>();
        let _flood: Vec<Arc<Place>> = (0..3 * Use::Other.places()).map(|_| ask()).collect();
        let mut expected = vec![false; MOST_KEPT];
        expected.push(true);
        assert_eq!(evicted(), expected, "only the one that is not kept");
        kept[0] = None;
        let _one_more = ask();
        expected[0] = true;
        assert_eq!(evicted(), expected, "a connection that was let go is the oldest");
    }
}
