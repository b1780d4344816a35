//! Compiles routes whenever something they depend on changes, publishes them, and has their status written.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::routing_mode::RoutingMode;
use rouse_core::snapshot::ConcurrencyLimits;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::bodies::{self, Body};
use super::claims::{HostClaims, Owners};
use super::credentials::{self, Credential, TlsSettings};
use super::event_writer::EventWriter;
use super::events::{EventReason, RouteEvent};
use super::named_objects::{NamedObjects, WatchSet};
use super::plan::{Findings, PlanInputs, RoutePlan, compile, refuse};
use super::sink::RouteSink;
use super::status::{CurrentStatus, StatusAuthor, blocked_cluster_ip_text, conditions};
use super::status_writer::StatusWriter;
use super::store::RouteStore;
use super::{RouteContext, RoutePlans, RouteSettings};
use crate::client::{Watches, at};
use crate::events::{ClusterEvent, EventSender};
use crate::objects::route::{RouteKey, RouteKind, RouteSpec, ServingRoutes};
use crate::objects::service_summary::{PortFault, ServiceSummary, TlsFacts};

/// The least time between two compilations: a burst of changes is one change.
const PAUSE: Duration = Duration::from_millis(20);
/// Statuses that could not be written, and watches that panicked, are tried again after this.
const RETRY: Duration = Duration::from_secs(30);
/// How often pods that refuse connections are looked at again.
const UNREACHABLE: Duration = Duration::from_secs(5);
/// How long routes wait at the start for the objects that they and their Services name.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// Compiles and publishes routes.
pub(crate) struct RoutePlanner {
    settings: RouteSettings,
    watches: Arc<Watches>,
    state: Mutex<PlannerState>,
    bodies: Arc<NamedObjects<Body>>,
    credentials: Arc<NamedObjects<Credential>>,
    statuses: StatusWriter,
    kube_events: EventWriter,
    plans: watch::Sender<RoutePlans>,
    serving: watch::Sender<ServingRoutes>,
    synced: watch::Sender<bool>,
    /// Notified when routes must be compiled again.
    changed: Arc<Notify>,
    events: EventSender,
}

/// The route objects, and what was decided about them before.
#[derive(Default)]
pub(super) struct PlannerState {
    pub(super) store: RouteStore,
    tls: TlsSettings,
    /// Which namespace was granted which host.
    claims: HostClaims,
    /// Services whose `ClusterIP` routes would dial but must not, as last reported.
    blocked_cluster_ips: BTreeSet<ServiceId>,
}

/// The watches of the objects that routes and Services name.
#[derive(Default)]
struct Following {
    bodies: WatchSet,
    credentials: WatchSet,
    tasks: JoinSet<()>,
}

/// The state of other modules that plans depend on.
struct CurrentInputs<'a, C> {
    context: &'a C,
    bodies: &'a NamedObjects<Body>,
    credentials: &'a NamedObjects<Credential>,
    tls: RefCell<&'a mut TlsSettings>,
    check_tls: fn(&TlsFacts) -> Option<String>,
    former: RoutePlans,
    direct: RoutingMode,
    /// The same time for all routes, so that the decision about a Service is the same for all of them.
    now: Instant,
}

impl<C: RouteContext> PlanInputs for CurrentInputs<'_, C> {
    fn service(&self, id: &ServiceId) -> Option<Arc<ServiceSummary>> {
        self.context.service(id)
    }

    fn body(&self, namespace: &str, name: &str, key: Option<&str>) -> Option<Arc<str>> {
        self.bodies.body(namespace, name, key)?.ok()
    }

    fn no_body(&self, namespace: &str, name: &str, key: Option<&str>) -> Option<String> {
        self.bodies.body(namespace, name, key)?.err()
    }

    fn former(&self, route: &RouteSpec) -> Option<Arc<RoutePlan>> {
        // An object that was deleted and created again under the same name has no former plan.
        let same = |plan: &&Arc<RoutePlan>| plan.spec.key == route.key && plan.spec.created == route.created;
        self.former.iter().find(same).cloned()
    }

    fn direct(&self) -> RoutingMode {
        self.direct
    }

    fn blocks_cluster_ip(&self, service: &ServiceId) -> bool {
        self.context.blocks_cluster_ip(service, self.now)
    }

    fn tls(&self, service: &ServiceSummary) -> Arc<TlsFacts> {
        self.tls.borrow_mut().of(service, self.credentials, self.check_tls)
    }
}

impl RoutePlanner {
    pub(crate) fn new(settings: RouteSettings, watches: &Arc<Watches>, events: &EventSender) -> Self {
        let changed = Arc::default();
        Self {
            settings,
            watches: Arc::clone(watches),
            state: Mutex::default(),
            bodies: NamedObjects::new(&changed, events),
            credentials: NamedObjects::new(&changed, events),
            statuses: StatusWriter::new(StatusAuthor::Gateway),
            kube_events: EventWriter::new(),
            plans: watch::Sender::new(Arc::default()),
            serving: watch::Sender::new(Arc::default()),
            synced: watch::Sender::new(false),
            changed,
            events: events.clone(),
        }
    }

    /// All plans, whenever they change.
    pub(crate) fn plans(&self) -> watch::Receiver<RoutePlans> {
        self.plans.subscribe()
    }

    /// The specs of the routes that serve, whenever plans change.
    pub(crate) fn serving(&self) -> watch::Receiver<ServingRoutes> {
        self.serving.subscribe()
    }

    /// Whether plans were published.
    pub(crate) fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    /// Has routes compiled again.
    pub(crate) fn refresh(&self) {
        self.changed.notify_one();
    }

    /// The UID of a route object, if there is one.
    pub(crate) fn uid(&self, route: &RouteKey) -> Option<String> {
        self.state().store.get(route).map(|entry| entry.uid.clone())
    }

    /// Writes a Kubernetes event on each of these routes.
    pub(crate) fn put_events(&self, routes: &[Arc<RouteSpec>], reason: EventReason, message: &str) {
        if !self.settings.write_status {
            return;
        }
        let keys: BTreeSet<_> = routes.iter().map(|route| &route.key).collect();
        for (key, entry) in self.state().store.entries().filter(|(key, _)| keys.contains(key)) {
            let (route, kind) = (key.clone(), key.kind.object_kind());
            let (uid, message) = (entry.uid.clone(), message.to_owned());
            self.kube_events.put(RouteEvent { route, kind, uid, reason, message });
        }
    }

    /// Starts the watches of routes, the planner, and the tasks that write statuses and events. `seen` ends when all
    /// objects were seen once: routes are compiled after that.
    pub(crate) fn spawn<C: RouteContext>(
        self: &Arc<Self>,
        context: &Arc<C>,
        seen: impl Future<Output = ()> + Send + 'static,
        tasks: &mut JoinSet<()>,
        cancel: &CancellationToken,
    ) {
        for (kind, object_kind) in RouteKind::WATCHED {
            let sink = RouteSink { planner: Arc::clone(self), kind };
            tasks.spawn(self.watches.of(object_kind, &Arc::default()).run(sink, cancel.clone()));
        }
        let (planner, context, until) = (Arc::clone(self), Arc::clone(context), cancel.clone());
        tasks.spawn(async move {
            let work = async {
                seen.await;
                planner.run(&*context, &until).await;
            };
            tokio::select! {
                biased;
                () = until.cancelled() => {}
                () = work => {}
            }
        });
        let (planner, until) = (Arc::clone(self), cancel.clone());
        tasks.spawn(async move {
            let client = planner.watches.client();
            planner.statuses.run(client, &planner.events, &planner.changed, || true, until).await;
        });
        let (planner, until) = (Arc::clone(self), cancel.clone());
        tasks.spawn(async move {
            let (client, author) = (planner.watches.client(), planner.settings.event_author());
            planner.kube_events.run(client, &author, &planner.events, until).await;
        });
    }

    /// Compiles routes whenever something changes. Never ends.
    async fn run(&self, context: &impl RouteContext, cancel: &CancellationToken) {
        let block_changes = context.block_changes();
        let mut following = Following::default();
        self.follow(context, &mut following, cancel);
        self.first_look(&following).await;
        let mut retry: Option<Instant> = None;
        loop {
            if retry.is_some_and(|retry| retry <= Instant::now()) {
                retry = None;
                following.credentials.forget_panicked();
                following.bodies.forget_panicked();
                self.statuses.retry();
            }
            self.follow(context, &mut following, cancel);
            let now = Instant::now();
            self.compile(context, now);
            let next_change = context.next_block_change(now);
            self.synced.send_replace(true);
            let panicked = following.credentials.has_panicked() || following.bodies.has_panicked();
            if retry.is_none() && (panicked || self.statuses.has_unwritten()) {
                retry = Some(Instant::now() + RETRY);
            }
            let look = context.has_refused_connections().then(|| Instant::now() + UNREACHABLE);
            sleep_until(Instant::now() + PAUSE).await;
            tokio::select! {
                () = self.changed.notified() => {}
                () = block_changes.notified() => {}
                () = at(next_change) => {}
                () = at(retry) => {}
                () = at(look) => {}
                Some(ended) = following.tasks.join_next() => if let Err(error) = ended {
                    following.credentials.ended(&error, &self.events);
                    following.bodies.ended(&error, &self.events);
                }
            }
        }
    }

    /// Follows the objects that routes and their Services name, and no others.
    fn follow(&self, context: &impl RouteContext, following: &mut Following, cancel: &CancellationToken) {
        let (services, bodies) = {
            let mut state = self.state();
            let services = state.store.services();
            state.tls.retain(&services);
            (services, bodies::entries(state.store.bodies()))
        };
        let facts = services.iter().filter_map(|id| context.service(id));
        let named = facts.flat_map(|service| credentials::entries(&service)).collect();
        let Following { bodies: followed_bodies, credentials: followed_credentials, tasks } = following;
        self.credentials.follow(&named, followed_credentials, &self.watches, tasks, cancel);
        self.bodies.follow(&bodies, followed_bodies, &self.watches, tasks, cancel);
    }

    /// Waits until every object that is followed was read once, but not for long. Otherwise the first requests after a
    /// start would be refused, or answered without a body.
    async fn first_look(&self, following: &Following) {
        let deadline = Instant::now() + FIRST_LOOK;
        let all =
            || self.credentials.are_read(&following.credentials) && self.bodies.are_read(&following.bodies);
        while !all() {
            if timeout_at(deadline, self.changed.notified()).await.is_err() {
                return self.bodies.give_up(&following.bodies);
            }
        }
    }

    /// Compiles all routes, publishes them if they changed, and has their status written.
    fn compile(&self, context: &impl RouteContext, now: Instant) {
        let mut state = self.state();
        let PlannerState { store, tls, claims, blocked_cluster_ips } = &mut *state;
        context.forget_past_failures(&|route, uid, service| {
            let entry = store.get(route).filter(|entry| entry.uid == uid);
            let good = entry.and_then(|entry| entry.good.as_ref());
            good.is_some_and(|good| good.target.service == *service)
        });
        let inputs = CurrentInputs {
            context,
            bodies: &self.bodies,
            credentials: &self.credentials,
            tls: RefCell::new(tls),
            check_tls: self.settings.check_tls,
            former: Arc::clone(&self.plans.borrow()),
            direct: self.settings.direct,
            now,
        };
        let mut found: HashMap<RouteKey, Findings> = HashMap::new();
        let owners = claims.settle(&store.claimants(), &self.settings.hosts, self.settings.claim_time());
        let mut plans = compile(&store.good(), &owners, &inputs, |key, findings| {
            found.insert(key.clone(), findings);
        });
        plans.extend(refuse(&store.unserved(), &owners, |key, conflicts| {
            found.entry(key.clone()).or_default().conflicts.extend(conflicts);
        }));
        self.warn_of_blocked(blocked_cluster_ips, &found);
        let replaced = context.set_spreads(spreads(&plans));
        self.publish(plans, replaced);
        let present: HashSet<&RouteKey> = store.entries().map(|(key, _)| key).collect();
        context.retain_routes(&present);
        if self.settings.write_status {
            self.statuses.retain(|key| present.contains(key));
            self.put_statuses(store, found, &owners, context);
        }
    }

    /// `replaced`: a service was replaced by another of the same name, which readers of the plans must look up again.
    fn publish(&self, plans: Vec<Arc<RoutePlan>>, replaced: bool) {
        if !replaced && **self.plans.borrow() == *plans {
            return;
        }
        let serving = serving(&plans).map(|plan| Arc::clone(&plan.spec)).collect();
        // Before the plans: a request that a new plan admits may have to wake the service of the route.
        self.serving.send_replace(serving);
        self.plans.send_replace(plans.into());
    }

    fn put_statuses(
        &self,
        store: &RouteStore,
        mut found: HashMap<RouteKey, Findings>,
        owners: &Owners<'_>,
        context: &impl RouteContext,
    ) {
        let now = self.settings.now_text();
        for (key, entry) in store.entries() {
            let mut findings = found.remove(key).unwrap_or_default();
            // A status that rests on an object that was not read yet would have to be taken back.
            if findings.unseen {
                continue;
            }
            findings.claims = owners.record(&key.namespace, &entry.hosts);
            findings.faults.clone_from(&entry.faults);
            findings.outdated = !entry.faults.is_empty() && entry.good.is_some();
            let service = entry.good.as_ref().map(|good| &good.target.service);
            findings.unlisted = service.is_some_and(|service| context.ignores_manual_endpoints(service));
            context.add_wake_findings(key, &mut findings);
            let (uid, version) = (entry.uid.as_str(), entry.version.as_str());
            let (generation, present) = (entry.generation, entry.conditions.as_slice());
            let object = CurrentStatus { uid, generation, version, conditions: present };
            self.statuses.put(key, key.kind.object_kind(), object, conditions(&findings), &now);
        }
    }

    /// Reports Services whose `ClusterIP` is not dialled any more, each once.
    fn warn_of_blocked(&self, known: &mut BTreeSet<ServiceId>, found: &HashMap<RouteKey, Findings>) {
        let all: BTreeSet<ServiceId> =
            found.values().flat_map(|findings| &findings.blocked_cluster_ips).cloned().collect();
        for service in all.difference(known) {
            self.events.send(ClusterEvent::LeftOut(blocked_cluster_ip_text(service)));
        }
        *known = all;
    }

    pub(super) fn state(&self) -> MutexGuard<'_, PlannerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn events(&self) -> &EventSender {
        &self.events
    }
}

/// All plans but those that refuse the requests of faulty routes.
fn serving(plans: &[Arc<RoutePlan>]) -> impl Iterator<Item = &Arc<RoutePlan>> {
    plans.iter().filter(|plan| !matches!(plan.target, Err(PortFault::Faulty(_))))
}

/// How requests to each service are spread. Where several routes lead to one, the strictest limit counts.
fn spreads(plans: &[Arc<RoutePlan>]) -> HashMap<ServiceId, ConcurrencyLimits> {
    let mut all: HashMap<ServiceId, (u32, Option<u32>)> = HashMap::new();
    for plan in serving(plans) {
        let scaling = &plan.spec.scaling;
        let (target, limit) = all.entry(plan.spec.target.service.clone()).or_default();
        *target = (*target).max(scaling.concurrency.unwrap_or(0));
        *limit = limit.iter().copied().chain(scaling.concurrency_limit).min();
    }
    let concurrency = |(id, (target, limit)): (ServiceId, (u32, Option<u32>))| {
        (id, ConcurrencyLimits::new(target, limit.unwrap_or(0)))
    };
    all.into_iter().map(concurrency).collect()
}
