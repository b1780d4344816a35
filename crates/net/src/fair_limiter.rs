//! Limits connections and handshakes. At the limit, closes an idle connection of the source that has the most.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rouse_core::time::Moment;
use tokio_util::sync::CancellationToken;

/// What counts as one source: an IPv4 address, or the /80 of an IPv6 address. A node has a /80 or less on some clouds, and
/// all nodes of a subnet share one /64 there: with a /64, one pod could use up the permits of all others.
pub fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4(ip),
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 48))),
    }
}

/// The limiter. A connection within the limit has a permit.
#[derive(Debug)]
pub struct FairLimiter {
    limit: usize,
    /// The most permits of one source.
    per_source: usize,
    /// Minimum age before a connection may be cancelled for another source, unless its source has more than others.
    min_age: Duration,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    taken: usize,
    /// The number of the next use of a permit.
    next: u64,
    /// The permits of each source, in the order of their last use.
    sources: HashMap<IpAddr, BTreeMap<u64, Entry>>,
}

#[derive(Debug)]
struct Entry {
    /// Cancels the connection.
    cancel: CancellationToken,
    since: Moment,
    /// A request is being decided.
    busy: bool,
    /// A request over it was accepted.
    proven: bool,
}

/// The permit of one connection. Dropping it returns it.
#[derive(Debug)]
pub struct FairPermit {
    limiter: Arc<FairLimiter>,
    source: IpAddr,
    last_use: AtomicU64,
}

/// A request is being decided. Dropping it makes the connection idle.
#[derive(Debug)]
pub struct ActiveRequest<'a>(&'a FairPermit);

impl Table {
    fn add(&mut self, source: IpAddr, entry: Entry) -> u64 {
        let number = self.next;
        self.next += 1;
        self.taken += 1;
        self.sources.entry(source).or_default().insert(number, entry);
        number
    }

    fn remove(&mut self, source: IpAddr, number: u64) -> Option<Entry> {
        let of_source = self.sources.get_mut(&source)?;
        let entry = of_source.remove(&number)?;
        if of_source.is_empty() {
            self.sources.remove(&source);
        }
        self.taken -= 1;
        Some(entry)
    }

    fn count(&self, source: IpAddr) -> usize {
        self.sources.get(&source).map_or(0, BTreeMap::len)
    }

    /// The source with the most permits. Ties: the least recently used source.
    fn largest(&self) -> Option<IpAddr> {
        let age =
            |numbers: &BTreeMap<u64, _>| numbers.first_key_value().map_or(0, |(number, _)| u64::MAX - number);
        self.sources
            .iter()
            .max_by_key(|(_, of_source)| (of_source.len(), age(of_source)))
            .map(|(source, _)| *source)
    }

    /// The permit of `source` that was used least recently and has no request. Connections without an accepted request
    /// come first: a pod that only opens connections does not cancel those of its neighbours behind the same address.
    fn idle(&self, source: IpAddr) -> Option<u64> {
        let idle = || self.sources.get(&source).into_iter().flatten().filter(|(_, entry)| !entry.busy);
        idle().find(|(_, entry)| !entry.proven).or_else(|| idle().next()).map(|(number, _)| *number)
    }

    fn oldest(&self, source: IpAddr) -> Option<u64> {
        self.sources.get(&source)?.first_key_value().map(|(number, _)| *number)
    }

    /// Cancels one connection, so that `source` gets its permit. Returns false if no connection may be cancelled.
    fn make_room(&mut self, source: IpAddr, now: Moment, limiter: &FairLimiter) -> bool {
        let own = self.count(source);
        let largest = if own >= limiter.per_source { Some(source) } else { self.largest() };
        let Some(largest) = largest.filter(|_| own >= limiter.per_source || self.taken >= limiter.limit)
        else {
            return true;
        };
        let is_larger = self.count(largest) > own;
        let from = if is_larger { largest } else { source };
        let victim = self.idle(from).or_else(|| self.oldest(from).filter(|_| from != source));
        // Sources with one connection each may be pods that all start at once: to end their handshakes, which may be
        // nearly done, would serve none of them.
        let is_greedy = is_larger && self.count(from) > 1;
        let may_end = |number: &u64| is_greedy || self.age(from, *number, now) >= limiter.min_age;
        let entry = victim.filter(may_end).and_then(|number| self.remove(from, number));
        if let Some(entry) = &entry {
            entry.cancel.cancel();
        }
        entry.is_some()
    }

    fn age(&self, source: IpAddr, number: u64, now: Moment) -> Duration {
        let entry = self.sources.get(&source).and_then(|of_source| of_source.get(&number));
        entry.map_or(Duration::ZERO, |entry| now.since(entry.since))
    }
}

impl FairLimiter {
    /// `limit` permits, of which one source gets at most `per_source`. A connection younger than `min_age` keeps its permit,
    /// unless its source has more than others.
    pub fn new(limit: usize, per_source: usize, min_age: Duration) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.max(1),
            per_source: per_source.max(1),
            min_age,
            table: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a permit for a connection of `source`, which ends when `cancel` is cancelled. At the limit, another connection
    /// is cancelled: an idle one of the source that has the most.
    pub fn take(
        self: &Arc<Self>,
        source: IpAddr,
        cancel: CancellationToken,
        now: Moment,
    ) -> Option<FairPermit> {
        let mut table = self.lock();
        if !table.make_room(source, now, self) {
            return None;
        }
        let number = table.add(source, Entry { cancel, since: now, busy: false, proven: false });
        drop(table);
        Some(FairPermit { limiter: Arc::clone(self), source, last_use: AtomicU64::new(number) })
    }
}

impl FairPermit {
    /// A request came.
    pub fn begin(&self) -> ActiveRequest<'_> {
        self.used(true);
        ActiveRequest(self)
    }

    /// A request over the connection was accepted.
    pub fn prove(&self) {
        let mut table = self.limiter.lock();
        let number = self.last_use.load(Ordering::Relaxed);
        if let Some(entry) = table.sources.get_mut(&self.source).and_then(|entries| entries.get_mut(&number))
        {
            entry.proven = true;
        }
    }

    /// Whether more than half of all permits are taken.
    pub fn is_half_taken(&self) -> bool {
        self.limiter.lock().taken > self.limiter.limit / 2
    }

    fn used(&self, busy: bool) {
        let mut table = self.limiter.lock();
        // A connection that was cancelled has no permit any more.
        if let Some(entry) = table.remove(self.source, self.last_use.load(Ordering::Relaxed)) {
            let number = table.add(self.source, Entry { busy, ..entry });
            self.last_use.store(number, Ordering::Relaxed);
        }
    }
}

impl Drop for ActiveRequest<'_> {
    fn drop(&mut self) {
        self.0.used(false);
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        self.limiter.lock().remove(self.source, self.last_use.load(Ordering::Relaxed));
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
    fn connect(limiter: &Arc<FairLimiter>, n: u8) -> Option<(FairPermit, CancellationToken)> {
        let cancel = CancellationToken::new();
        limiter.take(source(n), cancel.clone(), Moment::ZERO).map(|place| (place, cancel))
    }

    fn cuts(connections: &[(FairPermit, CancellationToken)]) -> Vec<bool> {
        connections.iter().map(|(_, cancel)| cancel.is_cancelled()).collect()
    }

    #[test]
    fn when_all_places_are_taken_the_source_with_the_most_loses_one_that_is_idle() {
        let limiter = FairLimiter::new(4, 4, Duration::ZERO);
        let one: Vec<_> = (0..3).map(|_| connect(&limiter, 1).unwrap()).collect();
        let two = connect(&limiter, 2).unwrap();
        let busy = one[0].0.begin();
        drop(one[1].0.begin());
        let three = connect(&limiter, 3).unwrap();
        assert_eq!(cuts(&one), [false, false, true], "the one that was used least recently");
        drop(busy);
        // All have one, but the first source.
        let four = connect(&limiter, 4).unwrap();
        assert_eq!(cuts(&one), [false, true, true]);
        // All have one: the one that was used least recently goes.
        let five = connect(&limiter, 5).unwrap();
        assert!(
            two.1.is_cancelled()
                && !three.1.is_cancelled()
                && !four.1.is_cancelled()
                && !five.1.is_cancelled()
        );
    }

    #[test]
    fn a_source_gets_no_more_than_its_share_and_replaces_its_own_idle_connections() {
        let limiter = FairLimiter::new(100, 2, Duration::ZERO);
        let mut one: Vec<_> = (0..3).map(|_| connect(&limiter, 1).unwrap()).collect();
        assert_eq!(cuts(&one), [true, false, false]);
        one.remove(0);
        let busy = [one[0].0.begin(), one[1].0.begin()];
        assert!(connect(&limiter, 1).is_none(), "its own requests go on");
        assert!(connect(&limiter, 2).is_some());
        drop(busy);
    }

    #[test]
    fn a_flood_of_connections_cancels_no_connection_of_the_source_with_an_accepted_request() {
        let limiter = FairLimiter::new(100, 3, Duration::ZERO);
        let neighbour = connect(&limiter, 1).unwrap();
        let registering = neighbour.0.begin();
        neighbour.0.prove();
        drop(registering);
        let flood: Vec<_> = (0..50).map(|_| connect(&limiter, 1).unwrap()).collect();
        assert!(!neighbour.1.is_cancelled());
        assert_eq!(cuts(&flood).iter().filter(|cut| !**cut).count(), 2);
        // If all have one, the least recently used goes.
        for (permit, _) in flood.iter().filter(|(_, cancel)| !cancel.is_cancelled()) {
            permit.prove();
        }
        let next = connect(&limiter, 1).unwrap();
        assert!(neighbour.1.is_cancelled() && !next.1.is_cancelled());
    }

    #[test]
    fn requests_of_the_largest_source_make_room_if_it_has_nothing_else() {
        let limiter = FairLimiter::new(2, 2, Duration::ZERO);
        let one: Vec<_> = (0..2).map(|_| connect(&limiter, 1).unwrap()).collect();
        let busy = [one[0].0.begin(), one[1].0.begin()];
        let two = connect(&limiter, 2).unwrap();
        assert_eq!(cuts(&one), [true, false]);
        drop(busy);
        assert_eq!(
            limiter.lock().taken,
            2,
            "a cancelled connection does not come back when its request ends"
        );
        drop(two);
    }

    #[test]
    fn what_has_just_begun_is_ended_only_for_a_source_with_fewer() {
        let limiter = FairLimiter::new(3, 3, Duration::from_secs(1));
        let take = |n: u8, milliseconds: u64| {
            let cancel = CancellationToken::new();
            let place = limiter.take(source(n), cancel.clone(), Moment::from_millis(milliseconds));
            place.map(|place| (place, cancel))
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
            let limiter = FairLimiter::new(5, 3, Duration::ZERO);
            let mut open: Vec<(u8, FairPermit, CancellationToken)> = Vec::new();
            for (n, step, at) in steps {
                if step > 0 {
                    let counts = |n: u8| open.iter().filter(|(of, _, cancel)| *of == n && !cancel.is_cancelled()).count();
                    let (own, most) = (counts(n), (0..6).map(counts).max().unwrap());
                    let taken = connect(&limiter, n);
                    prop_assert!(taken.is_some() || own >= most.min(3));
                    open.extend(taken.map(|(place, cancel)| (n, place, cancel)));
                } else if at < open.len() {
                    open.remove(at);
                }
                let live = |n: u8| open.iter().filter(|(of, _, cancel)| *of == n && !cancel.is_cancelled()).count();
                let counts: Vec<usize> = (0..6).map(live).collect();
                prop_assert!(counts.iter().sum::<usize>() <= 5 && counts.iter().all(|count| *count <= 3));
                prop_assert_eq!(limiter.lock().taken, counts.iter().sum::<usize>());
            }
        }
    }
}
