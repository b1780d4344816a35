//! Snapshots: the immutable view of a service's endpoints, and the subscription that notifies readers of a new one.
//!
//! A writer publishes before it notifies; a reader subscribes before it reads. The reverse order of either loses a
//! notification.

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::endpoint::{Endpoint, PortName, State};
use crate::start_failure::REFUSED_FOR;
use crate::sync::{Mutex, Swap, lock};
use crate::time::Moment;

/// The endpoints of one port of a service.
#[derive(Debug, Default)]
pub struct PortView {
    name: PortName,
    endpoints: Vec<Arc<Endpoint>>,
    ready: Vec<u32>,
    draining: Vec<u32>,
}

impl PortView {
    /// The view of the port `name`, with its endpoints in order of first appearance.
    pub fn new(name: PortName, endpoints: Vec<Arc<Endpoint>>) -> Self {
        let states: Vec<State> = endpoints.iter().map(|endpoint| endpoint.state).collect();
        Self::with_states(name, endpoints, &states)
    }

    /// The same. `states` are those of the endpoints, so that endpoints which did not change are not read.
    pub(crate) fn with_states(name: PortName, endpoints: Vec<Arc<Endpoint>>, states: &[State]) -> Self {
        let places = |state: State| {
            let mut places = Vec::with_capacity(if state == State::Ready { states.len() } else { 0 });
            places.extend((0u32..).zip(states).filter(|(_, it)| **it == state).map(|(place, _)| place));
            places
        };
        Self { name, ready: places(State::Ready), draining: places(State::Draining), endpoints }
    }

    /// The port's name.
    pub fn name(&self) -> &PortName {
        &self.name
    }

    /// All endpoints, in any state, in order of first appearance.
    pub fn endpoints(&self) -> &[Arc<Endpoint>] {
        &self.endpoints
    }

    /// The best state among the endpoints; `Gone` if there are none.
    pub fn best(&self) -> State {
        self.endpoints.iter().map(|endpoint| endpoint.state).max().unwrap_or(State::Gone)
    }

    /// Whether any endpoint takes new requests.
    pub fn routable(&self) -> bool {
        !self.ready.is_empty() || !self.draining.is_empty()
    }

    /// Whether any endpoint is ejected at `now`.
    pub(crate) fn any_ejected(&self, now: Moment) -> bool {
        self.endpoints.iter().any(|one| one.health.ejected_until().is_some_and(|until| now < until))
    }

    /// Of the endpoints that take new requests: how many are ejected at `now`, and how many there are.
    pub(crate) fn ejected(&self, now: Moment) -> (usize, usize) {
        let tier = if self.ready.is_empty() { &self.draining } else { &self.ready };
        let endpoints = tier.iter().filter_map(|&at| self.endpoints.get(usize::try_from(at).ok()?));
        let out = endpoints.filter(|one| one.health.ejected_until().is_some_and(|until| now < until)).count();
        (out, tier.len())
    }

    /// Whether every endpoint that takes new requests has refused all connections for [`REFUSED_FOR`], and none is
    /// starting that could take them instead.
    pub fn refuses(&self, now: Moment) -> bool {
        let refused =
            |one: &Endpoint| one.health.refusing_since().is_some_and(|since| now >= since + REFUSED_FOR);
        self.routable()
            && self.endpoints.iter().all(|one| match one.state {
                State::Ready | State::Draining => refused(one),
                State::Starting => false,
                State::Gone => true,
            })
    }

    /// Indexes of the `Ready` endpoints.
    pub(crate) fn ready(&self) -> &[u32] {
        &self.ready
    }

    /// Indexes of the `Draining` endpoints.
    pub(crate) fn draining(&self) -> &[u32] {
        &self.draining
    }
}

/// How many requests one pod of a service may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConcurrencyLimits {
    /// The hard limit of requests in flight per pod.
    pub limit: Option<NonZeroU32>,
    /// Without a limit: how many requests released from a hold a pod may have before it has begun to answer them.
    pub max_released: NonZeroU32,
}

impl ConcurrencyLimits {
    /// The smallest limit on released requests, for any target.
    pub const MIN_RELEASED: NonZeroU32 = NonZeroU32::new(100).unwrap();

    /// Limits for pods with the concurrency target `target` and the hard limit `limit`; 0 means no target or no limit.
    pub fn new(target: u32, limit: u32) -> Self {
        let max_released =
            NonZeroU32::new(target).map_or(Self::MIN_RELEASED, |target| target.max(Self::MIN_RELEASED));
        Self { limit: NonZeroU32::new(limit), max_released }
    }
}

impl Default for ConcurrencyLimits {
    fn default() -> Self {
        Self::new(0, 0)
    }
}

/// The consistent state of a service at one generation.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Grows by one with each publication.
    pub generation: u64,
    /// The ports, in order of first appearance.
    pub ports: Vec<PortView>,
    /// How many requests one pod may have.
    pub concurrency: ConcurrencyLimits,
    /// The slice source (the Kubernetes watch) is disconnected, so this snapshot may be out of date.
    pub stale: bool,
    /// The service was removed. No further snapshot follows.
    pub gone: bool,
}

impl Snapshot {
    /// The endpoints of the port `name`; `None` if no slice and no push has that port.
    pub fn port(&self, name: &PortName) -> Option<&PortView> {
        self.ports.iter().find(|port| port.name == *name)
    }

    /// Whether any endpoint of any port takes new requests.
    pub fn routable(&self) -> bool {
        self.ports.iter().any(PortView::routable)
    }

    /// Whether any endpoint of any port is `Starting`.
    pub(crate) fn starting(&self) -> bool {
        self.ports.iter().flat_map(PortView::endpoints).any(|endpoint| endpoint.state == State::Starting)
    }

    /// Whether any endpoint of any port is `Ready`.
    pub fn ready(&self) -> bool {
        self.ports.iter().any(|port| !port.ready.is_empty())
    }
}

/// The newest snapshot of one service, and its subscribers.
#[derive(Debug)]
pub struct SnapshotFeed {
    newest: Swap<Snapshot>,
    /// The wakers of subscribers that wait for a newer snapshot. `None`: subscribed, but not waiting now.
    waiting: Mutex<Slab<Option<Waker>>>,
}

impl Default for SnapshotFeed {
    fn default() -> Self {
        Self { newest: Swap::new(Snapshot::default()), waiting: Mutex::new(Slab::new()) }
    }
}

impl SnapshotFeed {
    /// The newest snapshot. Takes no lock.
    pub fn newest(&self) -> impl std::ops::Deref<Target = Arc<Snapshot>> + use<> {
        self.newest.load()
    }

    /// Replaces the snapshot and notifies the subscribers. The caller must ensure that there is one writer at a time.
    pub(crate) fn publish(&self, snapshot: Snapshot) {
        self.newest.store(Arc::new(snapshot));
        // After the store: a subscriber woken earlier would find nothing new and go back to sleep.
        let wakers: Vec<Waker> =
            lock(&self.waiting).iter_mut().filter_map(|(_, waiting)| waiting.take()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Subscribes to changes. The first call of `changed` returns the current snapshot.
    pub fn subscribe(self: &Arc<Self>) -> Subscription {
        let place = lock(&self.waiting).insert(None);
        Subscription { feed: Arc::clone(self), place, seen: None }
    }
}

/// One reader of a [`SnapshotFeed`]. It gets the newest snapshot each time, and can miss those in between.
#[derive(Debug)]
pub struct Subscription {
    feed: Arc<SnapshotFeed>,
    place: usize,
    seen: Option<u64>,
}

impl Subscription {
    /// Waits for a snapshot that this subscription has not returned yet.
    pub async fn changed(&mut self) -> Arc<Snapshot> {
        poll_fn(|context| self.poll_changed(context)).await
    }

    fn poll_changed(&mut self, context: &mut Context<'_>) -> Poll<Arc<Snapshot>> {
        if let Some(waiting) = lock(&self.feed.waiting).get_mut(self.place) {
            *waiting = Some(context.waker().clone());
        }
        // Register before reading: the reverse order misses a snapshot that is published in between.
        let newest = Arc::clone(&self.feed.newest.load());
        if self.seen == Some(newest.generation) {
            return Poll::Pending;
        }
        self.seen = Some(newest.generation);
        Poll::Ready(newest)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        lock(&self.feed.waiting).try_remove(self.place);
    }
}

/// Loom models (`make loom`): every interleaving of a writer and a reader.
#[cfg(all(test, loom))]
mod models {
    use loom::future::block_on;
    use loom::thread;

    use super::*;

    #[test]
    fn a_subscriber_never_sleeps_through_the_last_publication() {
        loom::model(|| {
            let feed = Arc::new(SnapshotFeed::default());
            let mut subscription = feed.subscribe();
            let writer = thread::spawn({
                let feed = Arc::clone(&feed);
                move || {
                    (1..=2)
                        .for_each(|generation| feed.publish(Snapshot { generation, ..Snapshot::default() }))
                }
            });
            block_on(async { while subscription.changed().await.generation < 2 {} });
            writer.join().unwrap();
        });
    }
}
