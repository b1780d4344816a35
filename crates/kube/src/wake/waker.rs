//! Wakes services in a background task when requests ask for it, one wake per service at a time.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use rouse_core::endpoint::ServiceId;
use rouse_core::registry::Registry;
use rouse_core::start_failure::{StartFailure, StartFailureCause};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::failures::{FailureKind, Failures, WakeFailure};
use super::queue::Queue;
use super::scale::{ScaleClient, WakeOutcome};
use super::workload_lookup::Targets;
use crate::client::at;
use crate::events::{ClusterEvent, EventSender};
use crate::objects::route::{RouteKey, RouteSpec, ServingRoutes};
use crate::objects::service_summary::ServiceSummary;
use crate::objects::workload::Workload;

/// The most wakes under way at a time.
const CONCURRENT_WAKES: usize = 32;
/// The most pods that are named in a condition.
const NAMED_PODS: usize = 5;
/// Workloads are looked up again after this time: they are not watched.
const LOOK_UP_AGAIN: Duration = Duration::from_mins(1);

/// The routes of one namespace, each with its Service.
type Routes = Vec<(Arc<RouteSpec>, Option<Arc<ServiceSummary>>)>;

/// What the waker asks other modules, and tells them.
pub(crate) trait WakeContext: Send + Sync + 'static {
    /// What is known of a Service.
    fn service(&self, id: &ServiceId) -> Option<Arc<ServiceSummary>>;
    /// How many pods of `namespace` have all labels of `selector`.
    fn selected_pods(&self, namespace: &str, selector: &BTreeMap<String, String>) -> u32;
    /// The UID of a route object, if there is one.
    fn uid(&self, route: &RouteKey) -> Option<String>;
    /// A workload was scaled from 0: its routes get a Kubernetes event.
    fn woken(&self, routes: &[Arc<RouteSpec>], message: &str);
    /// A wake failed: its routes get a Kubernetes event.
    fn wake_failed(&self, routes: &[Arc<RouteSpec>], message: &str);
    /// The status of routes may have changed.
    fn findings_changed(&self);
}

/// Wakes services, and keeps the workload of each route and the failure of its last wake.
pub(crate) struct Waker {
    client: Client,
    queue: Queue,
    scale: ScaleClient,
    targets: Targets,
    failures: Failures,
    /// The routes that serve.
    routes: watch::Receiver<ServingRoutes>,
    events: EventSender,
}

impl Waker {
    pub(crate) fn new(client: &Client, routes: watch::Receiver<ServingRoutes>, events: EventSender) -> Self {
        Self {
            client: client.clone(),
            queue: Queue::default(),
            scale: ScaleClient::new(client.clone()),
            targets: Targets::default(),
            failures: Failures::default(),
            routes,
            events,
        }
    }

    /// Asks for a wake of `service`. Requests call this: it never waits.
    pub(crate) fn request(&self, service: &ServiceId) {
        self.queue.push(service);
    }

    /// Starts the tasks that wake services and look up workloads.
    pub(crate) fn spawn<C: WakeContext>(
        self: &Arc<Self>,
        registry: &Arc<Registry>,
        context: &Arc<C>,
        tasks: &mut JoinSet<()>,
        cancel: &CancellationToken,
    ) {
        tasks.spawn(Arc::clone(self).wake(Arc::clone(registry), Arc::clone(context), cancel.clone()));
        tasks.spawn(Arc::clone(self).look_up_targets(Arc::clone(context), cancel.clone()));
    }

    /// Why the workload of a route is not known.
    pub(crate) fn missing_target(&self, route: &RouteKey) -> Option<String> {
        let failure = self.targets.get(route)?.err()?;
        Some(failure.detail().to_owned())
    }

    /// Why the last wake of a route failed.
    pub(crate) fn failure(&self, route: &RouteKey) -> Option<(FailureKind, String)> {
        self.failures.get(route).map(|failure| (failure.kind, failure.text))
    }

    /// Whether the last wake of `service` failed; `None`: of any service.
    pub(crate) fn has_failed(&self, service: Option<&ServiceId>) -> bool {
        self.failures.has(service)
    }

    /// Whether failures must be looked at again soon: no watch says that pods accept connections again.
    pub(crate) fn has_refused_connections(&self) -> bool {
        self.failures.has_refused_connections()
    }

    /// Forgets failures that are over, and those of routes for which `is_current` is false: it gets the route, the UID of
    /// its object and the Service at the time of the failure.
    pub(crate) fn forget_past_failures(
        &self,
        registry: &Registry,
        is_current: impl Fn(&RouteKey, &str, &ServiceId) -> bool,
    ) {
        self.failures.forget_past(registry, is_current);
    }

    /// Forgets the workloads of routes that are gone.
    pub(crate) fn retain_targets(&self, exists: impl FnMut(&RouteKey) -> bool) {
        self.targets.retain(exists);
    }

    /// Wakes services until `cancel`.
    async fn wake<C: WakeContext>(
        self: Arc<Self>,
        registry: Arc<Registry>,
        context: Arc<C>,
        cancel: CancellationToken,
    ) {
        let mut under_way = JoinSet::new();
        loop {
            while under_way.len() < CONCURRENT_WAKES
                && let Some(service) = self.queue.pop()
            {
                let (waker, registry, context) =
                    (Arc::clone(&self), Arc::clone(&registry), Arc::clone(&context));
                under_way.spawn(async move {
                    // A guard, so that a wake that panics ends as well: otherwise the service could never be woken again.
                    let _done = Done(&waker.queue, &service);
                    waker.wake_one(&service, &registry, &*context).await;
                });
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                Some(_) = under_way.join_next() => {}
                () = self.queue.added(), if under_way.len() < CONCURRENT_WAKES => {}
            }
        }
    }

    async fn wake_one(&self, service: &ServiceId, registry: &Registry, context: &impl WakeContext) {
        let routes = self.routes_to(service);
        let outcome = match self.try_wake(service, &routes, context).await {
            Err(failure) => allow_for_other_pods(service, context, failure),
            woken => woken,
        };
        let known = registry.get(service);
        let refusing = known.as_ref().map(|known| known.refusing()).unwrap_or_default();
        match outcome {
            Ok(WakeOutcome::Scaled(replicas)) => {
                known.inspect(|known| known.wake_progressed());
                self.events.send(ClusterEvent::Woken(service.clone(), replicas));
                let message =
                    format!("a request woke Service {}: scaled from 0 to {replicas}", service.name());
                context.woken(&routes, &message);
                self.record(&routes, None, context);
            }
            // The pods are there, but refuse connections: the wake is not the problem.
            _ if !refusing.is_empty() => {
                let text = unreachable(&refusing);
                if self.record(&routes, Some((FailureKind::Connections, &text)), context) {
                    self.events.send(ClusterEvent::Unreachable(service.clone(), text));
                }
            }
            Ok(WakeOutcome::AlreadyScaled(_)) => {
                known.inspect(|known| known.wake_progressed());
                self.record(&routes, None, context);
            }
            Err(failure) => {
                let why = failure.detail().to_owned();
                // Compare with the failure that the service remembers: a fallback may have no route of its own.
                let before = known.as_ref().and_then(|known| known.wake_failure());
                let again = before.is_some_and(|before| before.detail() == why);
                known.as_ref().inspect(|known| known.wake_failed(failure));
                let is_final = known.is_some_and(|known| known.start_failed().is_some());
                context.wake_failed(&routes, &why);
                let kind = if is_final { FailureKind::Start } else { FailureKind::Wake };
                self.record(&routes, Some((kind, &why)), context);
                self.events.send(ClusterEvent::WakeFailed { service: service.clone(), why, again });
            }
        }
    }

    /// The routes that lead to `service`, the oldest first.
    fn routes_to(&self, service: &ServiceId) -> Vec<Arc<RouteSpec>> {
        let all = Arc::clone(&self.routes.borrow());
        let to = all.iter().filter(|route| route.target.service == *service);
        let mut routes: Vec<Arc<RouteSpec>> = to.map(Arc::clone).collect();
        routes.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
        routes
    }

    async fn try_wake(
        &self,
        service: &ServiceId,
        routes: &[Arc<RouteSpec>],
        context: &impl WakeContext,
    ) -> Result<WakeOutcome, StartFailure> {
        let workload = self.workload(service, routes, context).await?;
        // A paused ScaledObject forbids only the step from 0. If the workload is not at 0, a pause is not why no pod is ready.
        let paused = self.targets.paused(&self.client, service.namespace(), &workload, routes);
        let least = routes.iter().map(|route| route.scaling.min).max().unwrap_or(0).max(1);
        match self.scale.wake(service.namespace(), &workload, least, paused).await {
            Ok(WakeOutcome::AlreadyScaled(replicas)) => {
                match self.scale.blocked(service.namespace(), &workload).await {
                    Some(failure) => Err(failure),
                    None => Ok(WakeOutcome::AlreadyScaled(replicas)),
                }
            }
            Ok(woken) => Ok(woken),
            Err(failure) => {
                if failure.cause == StartFailureCause::ScaleTargetMissing {
                    // The next wake looks it up again: it may have been replaced.
                    for route in routes {
                        self.targets.forget(&route.key);
                    }
                }
                Err(failure)
            }
        }
    }

    async fn workload(
        &self,
        service: &ServiceId,
        routes: &[Arc<RouteSpec>],
        context: &impl WakeContext,
    ) -> Result<Workload, StartFailure> {
        let known = || routes.iter().filter_map(|route| self.targets.get(&route.key));
        if let Some(found) = known().find_map(Result::ok) {
            return Ok(found);
        }
        // Never looked up, or not found: look now, since requests wait.
        let facts = context.service(service);
        let asked: Vec<_> = routes.iter().map(|route| (Arc::clone(route), facts.clone())).collect();
        if self.targets.look_up_now(&self.client, service.namespace(), &asked).await {
            context.findings_changed();
        }
        let none = || {
            StartFailure::new(
                StartFailureCause::NoScaleTarget,
                &format!("no route leads to Service {service}"),
            )
        };
        known().find_map(Result::ok).ok_or_else(|| known().find_map(Result::err).unwrap_or_else(none))
    }

    /// Records the outcome of a wake for the routes' status. Returns whether anything is new.
    fn record(
        &self,
        routes: &[Arc<RouteSpec>],
        failure: Option<(FailureKind, &str)>,
        context: &impl WakeContext,
    ) -> bool {
        // Before the failures are locked: the planner locks its routes first, then the failures.
        let outcomes = routes.iter().map(|route| {
            let failed = failure.and_then(|(kind, text)| {
                let uid = context.uid(&route.key)?;
                let service = route.target.service.clone();
                Some(WakeFailure { uid, service, kind, text: text.to_owned() })
            });
            (route.key.clone(), failed)
        });
        let changed = self.failures.record(outcomes.collect());
        if changed {
            context.findings_changed();
        }
        changed
    }

    /// Looks up the workloads of all routes, when routes change and every minute, until `cancel`.
    async fn look_up_targets<C: WakeContext>(self: Arc<Self>, context: Arc<C>, cancel: CancellationToken) {
        let mut routes = self.routes.clone();
        let mut seen: HashMap<Arc<str>, (Routes, Instant)> = HashMap::new();
        let work = async {
            loop {
                let all = Arc::clone(&routes.borrow_and_update());
                let by_namespace = by_namespace(&all, &*context);
                seen.retain(|namespace, _| by_namespace.contains_key(namespace));
                for (namespace, routes) in by_namespace {
                    let known = seen.get(&namespace);
                    if known.is_some_and(|(known, when)| *known == routes && when.elapsed() < LOOK_UP_AGAIN) {
                        continue;
                    }
                    if self.targets.look_up(&self.client, &namespace, &routes).await {
                        context.findings_changed();
                    }
                    seen.insert(namespace, (routes, Instant::now()));
                }
                let again = seen.values().map(|(_, when)| *when + LOOK_UP_AGAIN).min();
                tokio::select! {
                    _ = routes.changed() => {}
                    () = at(again) => {}
                }
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = work => {}
        }
    }
}

/// Drops the failure that no workload was found, or that it gets no pods, if the Service has pods: another controller
/// created them, and requests wait for them.
fn allow_for_other_pods(
    service: &ServiceId,
    context: &impl WakeContext,
    failure: StartFailure,
) -> Result<WakeOutcome, StartFailure> {
    if !matches!(failure.cause, StartFailureCause::NoScaleTarget | StartFailureCause::PodsRefused) {
        return Err(failure);
    }
    let facts = context.service(service);
    let selector = facts.as_ref().and_then(|facts| facts.pod_selector());
    let pods = selector.map_or(0, |selector| context.selected_pods(service.namespace(), selector));
    if pods > 0 { Ok(WakeOutcome::AlreadyScaled(pods)) } else { Err(failure) }
}

fn by_namespace(routes: &[Arc<RouteSpec>], context: &impl WakeContext) -> HashMap<Arc<str>, Routes> {
    let mut by_namespace: HashMap<Arc<str>, Routes> = HashMap::new();
    for route in routes {
        let service = context.service(&route.target.service);
        let routes = by_namespace.entry(Arc::clone(&route.key.namespace)).or_default();
        routes.push((Arc::clone(route), service));
    }
    by_namespace
}

/// Names the pods that refuse connections.
fn unreachable(pods: &[SocketAddr]) -> String {
    let shown: Vec<String> = pods.iter().take(NAMED_PODS).map(ToString::to_string).collect();
    let more = if pods.len() > NAMED_PODS { ", …" } else { "" };
    format!(
        "every ready pod refuses connections ({}{more}): check that the app listens on the Service's target port",
        shown.join(", ")
    )
}

/// Marks the wake of a service as done when it is dropped.
struct Done<'a>(&'a Queue, &'a ServiceId);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.done(self.1);
    }
}
