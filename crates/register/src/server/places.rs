//! Places for connections. Sources share them fairly: when all are taken, the source with the most loses one.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rouse_core::time::Moment;
use tokio_util::sync::CancellationToken;

/// The places.
#[derive(Debug)]
pub(super) struct Places {
    limit: usize,
    /// The most places of one source.
    share: usize,
    /// How long a connection keeps its place for sure, unless its source has more than others.
    keep: Duration,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    taken: usize,
    /// The number of the next use of a place.
    next: u64,
    /// The places of each source, in the order of their last use.
    sources: HashMap<IpAddr, BTreeMap<u64, Occupant>>,
}

#[derive(Debug)]
struct Occupant {
    /// Ends the connection.
    cut: CancellationToken,
    since: Moment,
    /// A request is being decided.
    busy: bool,
}

/// A place that a connection has. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    source: IpAddr,
    last_use: AtomicU64,
}

/// A request is being decided. Dropping it makes the connection idle.
#[derive(Debug)]
pub(super) struct Busy<'a>(&'a Place);

impl Table {
    fn add(&mut self, source: IpAddr, occupant: Occupant) -> u64 {
        let number = self.next;
        self.next += 1;
        self.taken += 1;
        self.sources.entry(source).or_default().insert(number, occupant);
        number
    }

    fn remove(&mut self, source: IpAddr, number: u64) -> Option<Occupant> {
        let of_source = self.sources.get_mut(&source)?;
        let occupant = of_source.remove(&number)?;
        if of_source.is_empty() {
            self.sources.remove(&source);
        }
        self.taken -= 1;
        Some(occupant)
    }

    fn count(&self, source: IpAddr) -> usize {
        self.sources.get(&source).map_or(0, BTreeMap::len)
    }

    /// The source with the most places. Of several, the one that has not used a place for the longest time.
    fn largest(&self) -> Option<IpAddr> {
        let age =
            |numbers: &BTreeMap<u64, _>| numbers.first_key_value().map_or(0, |(number, _)| u64::MAX - number);
        self.sources
            .iter()
            .max_by_key(|(_, of_source)| (of_source.len(), age(of_source)))
            .map(|(source, _)| *source)
    }

    /// The place of `source` that was used least recently and has no request.
    fn idle(&self, source: IpAddr) -> Option<u64> {
        self.sources.get(&source)?.iter().find(|(_, occupant)| !occupant.busy).map(|(number, _)| *number)
    }

    fn oldest(&self, source: IpAddr) -> Option<u64> {
        self.sources.get(&source)?.first_key_value().map(|(number, _)| *number)
    }

    /// Ends one connection, so that `source` gets its place. Returns false if there is none that may be ended.
    fn make_room(&mut self, source: IpAddr, now: Moment, places: &Places) -> bool {
        let own = self.count(source);
        let largest = if own >= places.share { Some(source) } else { self.largest() };
        let Some(largest) = largest.filter(|_| own >= places.share || self.taken >= places.limit) else {
            return true;
        };
        let is_larger = self.count(largest) > own;
        let from = if is_larger { largest } else { source };
        let victim = self.idle(from).or_else(|| self.oldest(from).filter(|_| from != source));
        // Sources with one connection each may be pods that all start at once: to end their handshakes, which may be
        // nearly done, would serve none of them.
        let is_greedy = is_larger && self.count(from) > 1;
        let may_end = |number: &u64| is_greedy || self.age(from, *number, now) >= places.keep;
        let occupant = victim.filter(may_end).and_then(|number| self.remove(from, number));
        if let Some(occupant) = &occupant {
            occupant.cut.cancel();
        }
        occupant.is_some()
    }

    fn age(&self, source: IpAddr, number: u64, now: Moment) -> Duration {
        let occupant = self.sources.get(&source).and_then(|of_source| of_source.get(&number));
        occupant.map_or(Duration::ZERO, |occupant| now.since(occupant.since))
    }
}

impl Places {
    /// `limit` places, of which one source gets at most `share`. A connection keeps its place for `keep`, unless its source has
    /// more than others.
    pub(super) fn new(limit: usize, share: usize, keep: Duration) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), share: share.max(1), keep, table: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a connection of `source`, which ends when `cut` is cancelled. If all are taken, another connection
    /// is cut: an idle one of the source that has the most.
    pub(super) fn take(
        self: &Arc<Self>,
        source: IpAddr,
        cut: CancellationToken,
        now: Moment,
    ) -> Option<Place> {
        let mut table = self.lock();
        if !table.make_room(source, now, self) {
            return None;
        }
        let number = table.add(source, Occupant { cut, since: now, busy: false });
        drop(table);
        Some(Place { places: Arc::clone(self), source, last_use: AtomicU64::new(number) })
    }
}

impl Place {
    /// A request came.
    pub(super) fn begin(&self) -> Busy<'_> {
        self.used(true);
        Busy(self)
    }

    /// Whether more than half of all places are taken.
    pub(super) fn is_half_taken(&self) -> bool {
        self.places.lock().taken > self.places.limit / 2
    }

    fn used(&self, busy: bool) {
        let mut table = self.places.lock();
        // A connection that was cut has no place any more.
        if let Some(occupant) = table.remove(self.source, self.last_use.load(Ordering::Relaxed)) {
            let number = table.add(self.source, Occupant { busy, ..occupant });
            self.last_use.store(number, Ordering::Relaxed);
        }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.used(false);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().remove(self.source, self.last_use.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    /// A connection with its place.
    fn connect(places: &Arc<Places>, n: u8) -> Option<(Place, CancellationToken)> {
        let cut = CancellationToken::new();
        places.take(source(n), cut.clone(), Moment::ZERO).map(|place| (place, cut))
    }

    fn cuts(connections: &[(Place, CancellationToken)]) -> Vec<bool> {
        connections.iter().map(|(_, cut)| cut.is_cancelled()).collect()
    }

    #[test]
    fn when_all_places_are_taken_the_source_with_the_most_loses_one_that_is_idle() {
        let places = Places::new(4, 4, Duration::ZERO);
        let one: Vec<_> = (0..3).map(|_| connect(&places, 1).unwrap()).collect();
        let two = connect(&places, 2).unwrap();
        let busy = one[0].0.begin();
        drop(one[1].0.begin());
        let three = connect(&places, 3).unwrap();
        assert_eq!(cuts(&one), [false, false, true], "the one that was used least recently");
        drop(busy);
        // All have one, but the first source.
        let four = connect(&places, 4).unwrap();
        assert_eq!(cuts(&one), [false, true, true]);
        // All have one: the one that was used least recently goes.
        let five = connect(&places, 5).unwrap();
        assert!(
            two.1.is_cancelled()
                && !three.1.is_cancelled()
                && !four.1.is_cancelled()
                && !five.1.is_cancelled()
        );
    }

    #[test]
    fn a_source_gets_no_more_than_its_share_and_replaces_its_own_idle_connections() {
        let places = Places::new(100, 2, Duration::ZERO);
        let mut one: Vec<_> = (0..3).map(|_| connect(&places, 1).unwrap()).collect();
        assert_eq!(cuts(&one), [true, false, false]);
        one.remove(0);
        let busy = [one[0].0.begin(), one[1].0.begin()];
        assert!(connect(&places, 1).is_none(), "its own requests go on");
        assert!(connect(&places, 2).is_some());
        drop(busy);
    }

    #[test]
    fn requests_of_the_largest_source_make_room_if_it_has_nothing_else() {
        let places = Places::new(2, 2, Duration::ZERO);
        let one: Vec<_> = (0..2).map(|_| connect(&places, 1).unwrap()).collect();
        let busy = [one[0].0.begin(), one[1].0.begin()];
        let two = connect(&places, 2).unwrap();
        assert_eq!(cuts(&one), [true, false]);
        drop(busy);
        assert_eq!(
            places.lock().taken,
            2,
            "a connection that was cut does not come back when its request ends"
        );
        drop(two);
    }

    #[test]
    fn what_has_just_begun_is_ended_only_for_a_source_with_fewer() {
        let places = Places::new(3, 3, Duration::from_secs(1));
        let take = |n: u8, milliseconds: u64| {
            let cut = CancellationToken::new();
            let place = places.take(source(n), cut.clone(), Moment::from_millis(milliseconds));
            place.map(|place| (place, cut))
        };
        let one = [take(1, 0).unwrap(), take(1, 0).unwrap()];
        let two = take(2, 500).unwrap();
        let three = take(3, 500).unwrap();
        assert_eq!(cuts(&one), [true, false], "the first source had two");
        assert!(take(4, 999).is_none(), "each source has one that has just begun");
        let four = take(4, 1000).unwrap();
        assert_eq!(cuts(&one), [true, true], "it has stalled");
        assert!(take(5, 1499).is_none());
        drop((two, three, four));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn a_source_with_fewer_places_than_another_always_gets_one(
            steps in prop::collection::vec((0_u8..6, 0_u8..4, 0_usize..8), 1..60)
        ) {
            let places = Places::new(5, 3, Duration::ZERO);
            let mut open: Vec<(u8, Place, CancellationToken)> = Vec::new();
            for (n, step, at) in steps {
                if step > 0 {
                    let counts = |n: u8| open.iter().filter(|(of, _, cut)| *of == n && !cut.is_cancelled()).count();
                    let (own, most) = (counts(n), (0..6).map(counts).max().unwrap());
                    let taken = connect(&places, n);
                    prop_assert!(taken.is_some() || own >= most.min(3));
                    open.extend(taken.map(|(place, cut)| (n, place, cut)));
                } else if at < open.len() {
                    open.remove(at);
                }
                let live = |n: u8| open.iter().filter(|(of, _, cut)| *of == n && !cut.is_cancelled()).count();
                let counts: Vec<usize> = (0..6).map(live).collect();
                prop_assert!(counts.iter().sum::<usize>() <= 5 && counts.iter().all(|count| *count <= 3));
                prop_assert_eq!(places.lock().taken, counts.iter().sum::<usize>());
            }
        }
    }
}
