//! Wakes: asked for by requests, done by a task, each service by one at a time.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use rouse_core::endpoint::ServiceId;
use rouse_core::registry::Registry;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Cluster, Happening, Knowledge, lock};
use crate::events::{Event, Reason};
use crate::feed::Feed;
use crate::route::spec::{RouteKey, RouteSpec};
use crate::scale::{WakeFault, Woken, Workload};

/// Services that may wait to be woken. A wake that finds no room is repeated by the core.
const WAITING: usize = 10_000;
/// Wakes under way at a time.
const AT_ONCE: usize = 32;

/// Services that wait to be woken, each once.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    order: VecDeque<ServiceId>,
    /// Those in `order` and those under way.
    known: HashSet<ServiceId>,
}

impl Queue {
    /// Called by requests: never waits.
    pub(super) fn push(&self, service: &ServiceId) {
        let mut waiting = lock(&self.waiting);
        if waiting.order.len() >= WAITING || !waiting.known.insert(service.clone()) {
            return;
        }
        waiting.order.push_back(service.clone());
        drop(waiting);
        self.bell.notify_one();
    }

    fn pop(&self) -> Option<ServiceId> {
        lock(&self.waiting).order.pop_front()
    }

    fn done(&self, service: &ServiceId) {
        lock(&self.waiting).known.remove(service);
    }
}

impl Cluster {
    /// Wakes what is asked for until `cancel`.
    pub(super) async fn wake_up(
        self: Arc<Self>,
        registry: Arc<Registry>,
        feed: Arc<Mutex<Feed>>,
        cancel: CancellationToken,
    ) {
        let mut under_way = JoinSet::new();
        loop {
            while under_way.len() < AT_ONCE
                && let Some(service) = self.wakes.pop()
            {
                let (cluster, registry, feed) = (Arc::clone(&self), Arc::clone(&registry), Arc::clone(&feed));
                under_way.spawn(async move {
                    // Also when the wake panics: the service could otherwise never be woken again.
                    let _done = Done(&cluster, &service);
                    cluster.wake_one(&service, &registry, &feed).await;
                });
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                Some(_) = under_way.join_next() => {}
                () = self.wakes.bell.notified(), if under_way.len() < AT_ONCE => {}
            }
        }
    }

    async fn wake_one(&self, service: &ServiceId, registry: &Registry, feed: &Mutex<Feed>) {
        let routes = self.routes_to(service);
        let outcome = self.try_wake(service, &routes, feed).await;
        match outcome {
            Ok(Woken::Scaled(replicas)) => {
                self.tell(Happening::Woken(service.clone(), replicas));
                let message = format!("a request woke Service {}: 0 to {replicas}", service.name());
                self.on_routes(&routes, Reason::Woken, &message);
                self.remember(&routes, None);
            }
            Ok(Woken::Already(_)) => self.remember(&routes, None),
            Err(words) => {
                if let Some(service) = registry.get(service) {
                    service.wake_failed(&words);
                }
                self.on_routes(&routes, Reason::WakeFailed, &words);
                self.remember(&routes, Some(&words));
                self.tell(Happening::WakeFailed(service.clone(), words));
            }
        }
    }

    /// The routes that lead to `service`, the oldest first.
    fn routes_to(&self, service: &ServiceId) -> Vec<Arc<RouteSpec>> {
        let plans = Arc::clone(&self.plans.borrow());
        let to = plans.iter().filter(|plan| plan.spec.target.service == *service);
        let mut routes: Vec<Arc<RouteSpec>> = to.map(|plan| Arc::clone(&plan.spec)).collect();
        routes.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
        routes
    }

    async fn try_wake(
        &self,
        service: &ServiceId,
        routes: &[Arc<RouteSpec>],
        feed: &Mutex<Feed>,
    ) -> Result<Woken, String> {
        let workload = self.workload(service, routes, feed).await?;
        // A pause forbids the step from 0 only: what has pods may be kept from being ready by something else.
        let paused = self.targets.paused(&self.client, service.namespace(), &workload, routes);
        let least = routes.iter().map(|route| route.scaling.min).max().unwrap_or(0).max(1);
        match self.waker.wake(service.namespace(), &workload, least, paused).await {
            Ok(Woken::Already(replicas)) => match self.waker.blocked(service.namespace(), &workload).await {
                Some(words) => Err(words),
                None => Ok(Woken::Already(replicas)),
            },
            Ok(woken) => Ok(woken),
            Err(fault) => {
                if let WakeFault::Gone(_) = fault {
                    // Next time it is looked up anew: somebody may have replaced it.
                    for route in routes {
                        self.targets.forget(&route.key);
                    }
                }
                Err(fault.to_string())
            }
        }
    }

    async fn workload(
        &self,
        service: &ServiceId,
        routes: &[Arc<RouteSpec>],
        feed: &Mutex<Feed>,
    ) -> Result<Workload, String> {
        let known = || routes.iter().filter_map(|route| self.targets.get(&route.key));
        if let Some(found) = known().find_map(Result::ok) {
            return Ok(found);
        }
        // Never looked up, or not found: look now, somebody waits.
        let facts = lock(feed).service(service);
        let asked: Vec<_> = routes.iter().map(|route| (Arc::clone(route), facts.clone())).collect();
        if self.targets.look_up_now(&self.client, service.namespace(), &asked).await {
            self.dirty.notify_one();
        }
        let none = || format!("no route leads to Service {service}");
        known().find_map(Result::ok).ok_or_else(|| known().find_map(Result::err).unwrap_or_else(none))
    }

    fn on_routes(&self, routes: &[Arc<RouteSpec>], reason: Reason, message: &str) {
        if !self.settings.write_status {
            return;
        }
        let keys: BTreeSet<_> = routes.iter().map(|route| &route.key).collect();
        let knowledge = self.knowledge();
        for (key, entry) in knowledge.book.entries().filter(|(key, _)| keys.contains(key)) {
            let event =
                Event { route: key.clone(), uid: entry.uid.clone(), reason, message: message.to_owned() };
            // Full: events are a courtesy.
            drop(self.events.0.try_send(event));
        }
    }

    /// For the routes' status.
    fn remember(&self, routes: &[Arc<RouteSpec>], failure: Option<&str>) {
        let mut knowledge = self.knowledge();
        let Knowledge { book, wake_failures, .. } = &mut *knowledge;
        let mut changed = false;
        for route in routes {
            let failed = failure.zip(book.get(&route.key)).map(|(words, entry)| WakeFailure {
                uid: entry.uid.clone(),
                service: route.target.service.clone(),
                words: words.to_owned(),
            });
            changed |= wake_failures.get(&route.key) != failed.as_ref();
            match failed {
                Some(failed) => drop(wake_failures.insert(route.key.clone(), failed)),
                None => drop(wake_failures.remove(&route.key)),
            }
        }
        self.note_failing(wake_failures);
        drop(knowledge);
        if changed {
            self.dirty.notify_one();
        }
    }

    /// Forgets failures of routes that are gone, were made anew or lead elsewhere, and of services that have pods: others
    /// may have woken them.
    pub(super) fn forget_failures(&self, knowledge: &mut Knowledge, registry: &Registry) {
        let Knowledge { book, wake_failures, .. } = knowledge;
        wake_failures.retain(|route, failure| {
            let leads_there = |good: &Arc<RouteSpec>| good.target.service == failure.service;
            let entry = book.get(route).filter(|entry| entry.uid == failure.uid);
            let same = entry.and_then(|entry| entry.good.as_ref()).is_some_and(leads_there);
            same && !registry.get(&failure.service).is_some_and(|service| service.snapshot().ready())
        });
        self.note_failing(wake_failures);
    }

    fn note_failing(&self, failures: &HashMap<RouteKey, WakeFailure>) {
        *lock(&self.failing) = failures.values().map(|failure| failure.service.clone()).collect();
    }

    /// A wake that failed is told until there are pods all the same: the pods of these services may have changed. Others'
    /// must not ring, since compiling routes takes long where there are many.
    pub(super) fn mind_failures(&self, of: impl FnMut(&ServiceId) -> bool) {
        if lock(&self.failing).iter().any(of) {
            self.dirty.notify_one();
        }
    }
}

/// Why the last wake of a route came to nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WakeFailure {
    /// Which object of the route's name.
    uid: String,
    service: ServiceId,
    pub(super) words: String,
}

/// The wake of a service is over, however it ended.
struct Done<'a>(&'a Cluster, &'a ServiceId);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.wakes.done(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_waits_once_however_often_it_is_asked_for() {
        let queue = Queue::default();
        let cart = ServiceId::new("shop", "cart").unwrap();
        (0..100).for_each(|_| queue.push(&cart));
        assert_eq!((queue.pop(), queue.pop()), (Some(cart.clone()), None));
        queue.push(&cart);
        assert_eq!(queue.pop(), None, "it is under way");
        queue.done(&cart);
        queue.push(&cart);
        assert_eq!(queue.pop(), Some(cart));
    }

    #[test]
    fn no_more_wait_than_may() {
        let queue = Queue::default();
        for n in 0..=WAITING {
            queue.push(&ServiceId::new("shop", &format!("s{n}")).unwrap());
        }
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), WAITING);
    }
}
