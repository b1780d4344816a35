//! One worker: one thread, one runtime, and everything that its requests need and no other thread touches.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::service::Service;
use rouse_core::time::Clock as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::buffers::Buffers;
use crate::crowd::Crowd;
use crate::deadline::Deadlines;
use crate::gateway::Gateway;
use crate::pool::{Pools, Room};
use crate::signal::Signal;

/// How often connections that nobody uses are looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// How often stalled connections are looked for while anything waits in buffers.
const RELIEF: Duration = Duration::from_millis(250);

/// What the requests of one worker share.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) deadlines: Rc<Deadlines>,
    pub(crate) crowd: Rc<Crowd>,
    /// What waits in hyper's buffers.
    pub(crate) buffers: Rc<Buffers>,
    /// Owns every task of the worker.
    pub(crate) tasks: TaskTracker,
    /// Stop accepting; connections end with what they have.
    pub(crate) drain: Signal,
    /// The drain is over: whatever is left ends now.
    pub(crate) close: Signal,
    /// For connections to pods that nobody uses.
    pub(crate) room: Rc<Room>,
    pools: RefCell<HashMap<ServiceId, Rc<Pools>>>,
    dice: Dice,
}

impl Worker {
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        workers: usize,
        drain: CancellationToken,
        close: CancellationToken,
    ) -> Rc<Self> {
        Rc::new(Self {
            deadlines: Deadlines::new(gateway.settings.clock),
            crowd: Crowd::new(gateway.settings.clock, gateway.settings.limits, workers),
            buffers: Buffers::new(&gateway.buffers, gateway.settings.limits.buffers_per_connection),
            room: Room::new(&gateway.settings.limits, workers),
            tasks: TaskTracker::new(),
            drain: Signal::of(drain),
            close: Signal::of(close),
            pools: RefCell::default(),
            dice: Dice::new(),
            gateway,
        })
    }

    /// Fresh randomness.
    pub(crate) fn roll(&self) -> u64 {
        self.dice.roll()
    }

    /// The connections to the pods of `service`. They follow its snapshots from the first time on.
    pub(crate) fn pools(self: &Rc<Self>, service: &Arc<Service>) -> Rc<Pools> {
        if let Some(pools) = self.pools.borrow().get(service.id()).filter(|pools| pools.are_of(service)) {
            return Rc::clone(pools);
        }
        // New, or removed and declared again: another service of the same name.
        let pools = Rc::new(Pools::new(service));
        self.pools.borrow_mut().insert(service.id().clone(), Rc::clone(&pools));
        let (worker, following) = (Rc::clone(self), Rc::clone(&pools));
        let mut snapshots = service.subscribe();
        self.tasks.spawn_local(async move {
            loop {
                let snapshot = tokio::select! {
                    () = worker.close.cancelled() => break,
                    snapshot = snapshots.changed() => snapshot,
                };
                following.follow(&snapshot);
                if snapshot.gone {
                    break;
                }
            }
            let mut all = worker.pools.borrow_mut();
            if all.get(following.service()).is_some_and(|newest| Rc::ptr_eq(newest, &following)) {
                all.remove(following.service());
            }
        });
        pools
    }

    /// Closes what is needed least, since there are too few file descriptors: idle connections to pods, then the client
    /// connection that has not read for the longest, then the one whose request bodies have not come for the longest, then the one
    /// that has been quiet for the longest. Where this worker has none of them, the others look.
    pub(crate) fn free_descriptor(&self) {
        if !self.close_least_needed() {
            self.gateway.pod_connections.want();
        }
    }

    fn close_least_needed(&self) -> bool {
        if self.pools.borrow().values().any(|pools| pools.close_idle()) {
            return true;
        }
        let crowd = &self.crowd;
        let closed = crowd.cut_longest_stalled().is_some()
            || crowd.cut_longest_stopped()
            || crowd.close_longest_quiet();
        if closed {
            self.gateway.metrics.cut("descriptors");
        }
        closed
    }

    /// Keeps what waits in hyper's buffers within the gateway's budget, for ever: while there is too much, the connections
    /// that have stalled for the longest are closed.
    pub(crate) async fn relieve(&self) {
        let mut was_used = false;
        loop {
            let clock = self.gateway.settings.clock;
            clock.sleep_until(clock.now() + RELIEF).await;
            if self.gateway.pod_connections.is_wanted() && self.close_least_needed() {
                self.gateway.pod_connections.granted();
            }
            for _ in 0..self.crowd.relieve_heads() {
                self.gateway.metrics.cut("memory");
            }
            let is_used = self.buffers.own() > 0;
            // Once more after the last: a connection that has been looked at must not count as stalled from then on.
            if !std::mem::replace(&mut was_used, is_used) && !is_used {
                continue;
            }
            self.crowd.look();
            self.cut_excess();
            self.buffers.wake();
        }
    }

    /// Closes connections until this worker uses no more than its part of the budget.
    fn cut_excess(&self) {
        let excess = self.buffers.excess();
        let mut freed = 0;
        while freed < excess
            && let Some(one) = self.crowd.cut_longest_stalled()
        {
            freed += one;
            self.gateway.metrics.cut("memory");
        }
        // Far over the budget, connections that have stalled for a moment go as well, and then those that move. A few at a time: what
        // is being freed may suffice.
        let mut left = if self.buffers.is_overrun() { self.crowd.len().div_ceil(8) } else { 0 };
        while freed < excess
            && left > 0
            && let Some(one) = self.crowd.cut_at_once()
        {
            freed += one;
            left -= 1;
            self.gateway.metrics.cut("memory");
        }
    }

    /// Closes what has been idle for too long, for ever.
    pub(crate) async fn sweep(&self) {
        let mut ticks = tokio::time::interval(SWEEP);
        loop {
            ticks.tick().await;
            for pools in self.pools.borrow().values() {
                pools.sweep();
            }
        }
    }
}

/// The random numbers of one worker: splitmix64.
#[derive(Debug)]
struct Dice(Cell<u64>);

impl Dice {
    /// From a seed of the system's. One derived from a neighbour's would repeat its numbers: all seeds are states of the
    /// same sequence, and those that are a few steps apart soon meet.
    fn new() -> Self {
        // The standard library asks the system for the keys of its hash maps.
        Self::from(RandomState::new().hash_one(()))
    }

    fn from(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    fn roll(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const WORKERS: u64 = 8;
    const ROLLS: usize = 20_000;

    /// The numbers of eight workers, each rolled on a thread of its own.
    fn rolls(dice: fn(u64) -> Dice) -> Vec<Vec<u64>> {
        let roll = |number| {
            let rolling = move || {
                let dice = dice(number);
                (0..ROLLS).map(|_| dice.roll()).collect()
            };
            std::thread::spawn(rolling)
        };
        let threads: Vec<_> = (0..WORKERS).map(roll).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    /// How many of the numbers came up before, with any worker.
    fn repeated(all: &[Vec<u64>]) -> usize {
        let distinct: HashSet<&u64> = all.iter().flatten().collect();
        all.iter().flatten().count() - distinct.len()
    }

    /// How many of a hundred picks out of two pods two workers agree in, up to 16 rolls apart: the most of all pairs.
    fn agreement(all: &[Vec<u64>]) -> usize {
        let share = |one: &[u64], other: &[u64]| {
            let agree = one.iter().zip(other).filter(|(one, other)| **one >> 63 == **other >> 63).count();
            agree * 100 / one.len()
        };
        let pairs = all
            .iter()
            .enumerate()
            .flat_map(|(place, one)| all.iter().skip(place + 1).map(move |it| (one, it)));
        let shifted = pairs.flat_map(|(one, other)| (0..16).map(move |lag| share(&one[lag..], other)));
        shifted.max().unwrap()
    }

    #[test]
    fn no_worker_repeats_the_numbers_of_another_nor_picks_as_it_does() {
        let all = rolls(|_| Dice::new());
        assert_eq!(repeated(&all), 0);
        assert!(agreement(&all) < 55, "{}", agreement(&all));
        // Seeds that are spaced by the generator's own step are what this test must find.
        let spaced =
            rolls(|number| Dice::from(7_u64.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))));
        assert!(repeated(&spaced) > 0 && agreement(&spaced) > 98);
    }
}
