//! Wakes: asked for by requests, done by a task, each service by one at a time.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rouse_core::endpoint::ServiceId;
use rouse_core::registry::Registry;
use rouse_core::service::Service;
use rouse_core::start::{Cause, StartFailure};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::planner::serving;
use super::{Cluster, Happening, Knowledge, lock};
use crate::events::{Event, Reason};
use crate::feed::Feed;
use crate::route::spec::{RouteKey, RouteSpec};
use crate::scale::{Woken, Workload};

/// Services that may wait to be woken. A wake that finds no room is repeated by the core.
const WAITING: usize = 10_000;
/// Wakes under way at a time.
const AT_ONCE: usize = 32;

/// Pods that are named in a condition.
const SHOWN: usize = 5;

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
        let outcome = match self.try_wake(service, &routes, feed).await {
            Err(failure) => self.beside_pods(service, feed, failure),
            woken => woken,
        };
        let known = registry.get(service);
        let refusing = known.as_ref().map(|known| known.refusing()).unwrap_or_default();
        match outcome {
            Ok(Woken::Scaled(replicas)) => {
                known.inspect(|known| known.wake_progressed());
                self.tell(Happening::Woken(service.clone(), replicas));
                let message = format!("a request woke Service {}: 0 to {replicas}", service.name());
                self.on_routes(&routes, Reason::Woken, &message);
                self.remember(&routes, None);
            }
            // There are pods, so the wake is not what is wrong.
            _ if !refusing.is_empty() => {
                let words = unreachable(&refusing);
                if self.remember(&routes, Some((Failing::Pods, &words))) {
                    self.tell(Happening::Unreachable(service.clone(), words));
                }
            }
            Ok(Woken::Already(_)) => {
                known.inspect(|known| known.wake_progressed());
                self.remember(&routes, None);
            }
            Err(failure) => {
                let why = failure.detail().to_owned();
                // By what the service remembers: a fallback may have no route of its own.
                let before = known.as_ref().and_then(|known| known.wake_failure());
                let again = before.is_some_and(|before| before.detail() == why);
                known.as_ref().inspect(|known| known.wake_failed(failure));
                let is_final = known.is_some_and(|known| known.start_failed().is_some());
                self.on_routes(&routes, Reason::WakeFailed, &why);
                self.remember(&routes, Some((if is_final { Failing::Start } else { Failing::Wake }, &why)));
                self.tell(Happening::WakeFailed { service: service.clone(), why, again });
            }
        }
    }

    /// The routes that lead to `service`, the oldest first.
    fn routes_to(&self, service: &ServiceId) -> Vec<Arc<RouteSpec>> {
        let plans = Arc::clone(&self.plans.borrow());
        let to = serving(&plans).filter(|plan| plan.spec.target.service == *service);
        let mut routes: Vec<Arc<RouteSpec>> = to.map(|plan| Arc::clone(&plan.spec)).collect();
        routes.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
        routes
    }

    async fn try_wake(
        &self,
        service: &ServiceId,
        routes: &[Arc<RouteSpec>],
        feed: &Mutex<Feed>,
    ) -> Result<Woken, StartFailure> {
        let workload = self.workload(service, routes, feed).await?;
        // A pause forbids the step from 0 only: what has pods may be kept from being ready by something else.
        let paused = self.targets.paused(&self.client, service.namespace(), &workload, routes);
        let least = routes.iter().map(|route| route.scaling.min).max().unwrap_or(0).max(1);
        match self.waker.wake(service.namespace(), &workload, least, paused).await {
            Ok(Woken::Already(replicas)) => match self.waker.blocked(service.namespace(), &workload).await {
                Some(failure) => Err(failure),
                None => Ok(Woken::Already(replicas)),
            },
            Ok(woken) => Ok(woken),
            Err(failure) => {
                if failure.cause == Cause::ScaleTargetMissing {
                    // Next time it is looked up anew: somebody may have replaced it.
                    for route in routes {
                        self.targets.forget(&route.key);
                    }
                }
                Err(failure)
            }
        }
    }

    /// What a failure to get pods is where there are some: another controller made them, and requests wait for them.
    fn beside_pods(
        &self,
        service: &ServiceId,
        feed: &Mutex<Feed>,
        failure: StartFailure,
    ) -> Result<Woken, StartFailure> {
        if !matches!(failure.cause, Cause::NoScaleTarget | Cause::PodsRefused) {
            return Err(failure);
        }
        let facts = lock(feed).service(service);
        let pods = facts.map_or(0, |facts| self.pods.selected(service.namespace(), &facts.selector));
        if pods > 0 { Ok(Woken::Already(pods)) } else { Err(failure) }
    }

    async fn workload(
        &self,
        service: &ServiceId,
        routes: &[Arc<RouteSpec>],
        feed: &Mutex<Feed>,
    ) -> Result<Workload, StartFailure> {
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
        let none =
            || StartFailure::new(Cause::NoScaleTarget, &format!("no route leads to Service {service}"));
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

    /// For the routes' status. Answers whether anything is new.
    fn remember(&self, routes: &[Arc<RouteSpec>], failure: Option<(Failing, &str)>) -> bool {
        let mut knowledge = self.knowledge();
        let Knowledge { book, wake_failures, .. } = &mut *knowledge;
        let mut changed = false;
        for route in routes {
            let failed = failure.zip(book.get(&route.key)).map(|((what, words), entry)| WakeFailure {
                uid: entry.uid.clone(),
                service: route.target.service.clone(),
                what,
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
        changed
    }

    /// Whether somebody must look soon whether failures are over: nobody tells that pods accept connections again.
    pub(super) fn has_unreachable(&self) -> bool {
        self.knowledge().wake_failures.values().any(|failure| failure.what == Failing::Pods)
    }

    /// Forgets failures of routes that are gone, were made anew or lead elsewhere, and of services that have pods: others
    /// may have woken them. Pods that refused connections may accept them again.
    pub(super) fn forget_failures(&self, knowledge: &mut Knowledge, registry: &Registry) {
        let Knowledge { book, wake_failures, .. } = knowledge;
        wake_failures.retain(|route, failure| {
            let leads_there = |good: &Arc<RouteSpec>| good.target.service == failure.service;
            let entry = book.get(route).filter(|entry| entry.uid == failure.uid);
            let same = entry.and_then(|entry| entry.good.as_ref()).is_some_and(leads_there);
            let is_over = |service: Arc<Service>| match failure.what {
                Failing::Wake | Failing::Start => service.snapshot().ready(),
                Failing::Pods => service.refusing().is_empty(),
            };
            same && !registry.get(&failure.service).is_some_and(is_over)
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
    pub(super) what: Failing,
    pub(super) words: String,
}

/// What it is that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failing {
    /// The wake, which may succeed later.
    Wake,
    /// The wake, for a reason that waiting does not mend: requests are refused.
    Start,
    /// The connections to pods that are ready.
    Pods,
}

/// Pods that refuse connections, in words.
fn unreachable(pods: &[SocketAddr]) -> String {
    let shown: Vec<String> = pods.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = if pods.len() > SHOWN { ", …" } else { "" };
    format!(
        "every ready pod refuses connections ({}{more}): check that the app listens on the Service's target port",
        shown.join(", ")
    )
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
