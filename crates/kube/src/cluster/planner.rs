//! Compiles routes whenever something they depend on changes, and keeps up with the `ConfigMap`s they name.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::registry::Registry;
use rouse_core::snapshot::Spread;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::bodies::Bodies;
use super::credentials::Credentials;
use super::named::Followed;
use super::wakes::Failing;
use super::{Cluster, Happening, Knowledge, NEEDED, Plans, at, lock};
use crate::feed::Feed;
use crate::route::plan::{Findings, RoutePlan, World, compile, refuse};
use crate::route::spec::{DirectMode, RouteKey, RouteSpec};
use crate::route::status::{Standing, conditions, shunned};
use crate::service::{PortFault, ServiceFacts, TlsFacts};
use crate::watch::{Health, WatchState};

/// Routes are compiled at most so often: a burst of changes is one change.
const PAUSE: Duration = Duration::from_millis(20);
/// Statuses that could not be written, and watches that panicked, are tried again after this.
const RETRY: Duration = Duration::from_secs(30);
/// How often pods that refuse connections are looked at again.
const UNREACHABLE: Duration = Duration::from_secs(5);
/// Workloads are looked up again after this, since nobody tells of new ones.
const LOOK_AGAIN: Duration = Duration::from_mins(1);
/// How long routes wait at the start for the objects that they and their Services name.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// The routes of one namespace, and their Services.
type Routes = Vec<(Arc<RouteSpec>, Option<Arc<ServiceFacts>>)>;

/// What there is besides routes.
struct Present<'a> {
    feed: &'a Mutex<Feed>,
    bodies: &'a Bodies,
    credentials: RefCell<&'a mut Credentials>,
    judge_tls: fn(&TlsFacts) -> Option<String>,
    former: Plans,
    direct: DirectMode,
    /// One for all routes, so that each Service is judged once.
    now: Instant,
}

impl World for Present<'_> {
    fn service(&self, id: &ServiceId) -> Option<Arc<ServiceFacts>> {
        // For one look only: slices must not wait for routes.
        lock(self.feed).service(id)
    }

    fn body(&self, namespace: &str, name: &str, key: Option<&str>) -> Option<Arc<str>> {
        self.bodies.entry(namespace, name, key)?.ok()
    }

    fn no_body(&self, namespace: &str, name: &str, key: Option<&str>) -> Option<String> {
        self.bodies.entry(namespace, name, key)?.err()
    }

    fn former(&self, route: &RouteSpec) -> Option<Arc<RoutePlan>> {
        // One that was deleted and made anew under the same name was nothing before.
        let same = |plan: &&Arc<RoutePlan>| plan.spec.key == route.key && plan.spec.created == route.created;
        self.former.iter().find(same).cloned()
    }

    fn direct(&self) -> DirectMode {
        self.direct
    }

    fn shuns_cluster_ip(&self, service: &ServiceId) -> bool {
        lock(self.feed).shuns_cluster_ip(service, self.now)
    }

    fn tls(&self, service: &ServiceFacts) -> Arc<TlsFacts> {
        self.credentials.borrow_mut().tls(service, self.judge_tls)
    }
}

impl Cluster {
    /// Compiles routes until `cancel`.
    pub(super) async fn plan(
        self: Arc<Self>,
        registry: Arc<Registry>,
        feed: Arc<Mutex<Feed>>,
        cancel: CancellationToken,
    ) {
        let work = async {
            self.wait_for_all().await;
            self.mind_pods(&feed);
            let verdicts = lock(&feed).verdicts();
            let mut tasks = JoinSet::new();
            let (mut credentials, mut bodies) = (Followed::default(), Followed::default());
            self.follow_credentials(&feed, &mut credentials, &mut tasks, &cancel);
            self.follow_config_maps(&mut bodies, &mut tasks, &cancel);
            self.first_look(&credentials, &bodies).await;
            let mut retry: Option<Instant> = None;
            loop {
                if retry.is_some_and(|retry| retry <= Instant::now()) {
                    retry = None;
                    credentials.forget_panicked();
                    bodies.forget_panicked();
                    let mut statuses = lock(&self.statuses);
                    for key in std::mem::take(&mut *lock(&self.unwritten)) {
                        statuses.failed(&key);
                    }
                }
                self.follow_credentials(&feed, &mut credentials, &mut tasks, &cancel);
                self.follow_config_maps(&mut bodies, &mut tasks, &cancel);
                let now = Instant::now();
                self.compile(&registry, &feed, now);
                let verdict = lock(&feed).next_verdict(now);
                self.synced.send_replace(true);
                let panicked = credentials.has_panicked() || bodies.has_panicked();
                if retry.is_none() && (panicked || !lock(&self.unwritten).is_empty()) {
                    retry = Some(Instant::now() + RETRY);
                }
                let look = self.has_unreachable().then(|| Instant::now() + UNREACHABLE);
                sleep_until(Instant::now() + PAUSE).await;
                tokio::select! {
                    () = self.dirty.notified() => {}
                    () = verdicts.notified() => {}
                    () = at(verdict) => {}
                    () = at(retry) => {}
                    () = at(look) => {}
                    Some(ended) = tasks.join_next() => if let Err(error) = ended {
                        credentials.ended(&self, &error);
                        bodies.ended(&self, &error);
                    }
                }
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = work => {}
        }
    }

    /// Waits until everything that is followed was looked at once, but not for long. Otherwise the first requests after a
    /// start would be refused, or answered without a body.
    async fn first_look(&self, credentials: &Followed, bodies: &Followed) {
        let deadline = Instant::now() + FIRST_LOOK;
        let all = || {
            let knowledge = self.knowledge();
            knowledge.credentials.know(credentials) && knowledge.bodies.know(bodies)
        };
        while !all() {
            if timeout_at(deadline, self.dirty.notified()).await.is_err() {
                return self.knowledge().bodies.give_up(bodies);
            }
        }
    }

    /// Half the truth would be 404s for the other half.
    async fn wait_for_all(&self) {
        let mut changes = self.changes.subscribe();
        let looked = |(at, health): (usize, &Arc<Health>)| {
            let report = health.report();
            report.synced || at >= NEEDED && matches!(report.state, WatchState::Broken { .. })
        };
        while !self.healths.iter().enumerate().all(looked) {
            // The sender is our own, so it is never gone.
            drop(changes.changed().await);
        }
    }

    /// Compiles all routes, publishes them if they changed, and has written what their owners are to be told.
    fn compile(&self, registry: &Registry, feed: &Mutex<Feed>, now: Instant) {
        let mut knowledge = self.knowledge();
        self.forget_failures(&mut knowledge, registry);
        let Knowledge { book, bodies, credentials, wake_failures, claims, shunned } = &mut *knowledge;
        let (credentials, judge_tls) = (RefCell::new(credentials), self.settings.judge_tls);
        let (former, direct) = (Arc::clone(&self.plans.borrow()), self.settings.direct);
        let world = Present { feed, bodies, credentials, judge_tls, former, direct, now };
        let mut found: HashMap<RouteKey, Findings> = HashMap::new();
        let owners = claims.settle(&book.claimants(), &self.settings.hosts, self.claim_time());
        let mut plans = compile(&book.good(), &owners, &world, |key, findings| {
            found.insert(key.clone(), findings);
        });
        plans.extend(refuse(&book.unserved(), &owners, |key, conflicts| {
            found.entry(key.clone()).or_default().conflicts.extend(conflicts);
        }));
        self.warn_of_shunned(shunned, &found);
        let remade = {
            let mut feed = lock(feed);
            feed.set_spreads(spreads(&plans));
            // Whoever has them in hand must look for the new ones, although their names are the same.
            feed.take_remade()
        };
        self.plans.send_if_modified(|before| {
            let changed = remade || **before != *plans;
            if changed {
                *before = plans.into();
            }
            changed
        });
        let present: HashSet<&RouteKey> = book.entries().map(|(key, _)| key).collect();
        self.targets.retain(|key| present.contains(key));
        if !self.settings.write_status {
            return;
        }
        let mut statuses = lock(&self.statuses);
        statuses.retain(|key| present.contains(key));
        let now = self.now_text();
        for (key, entry) in book.entries() {
            let mut findings = found.remove(key).unwrap_or_default();
            // What is not known yet is not told: it would have to be taken back.
            if findings.unseen {
                continue;
            }
            findings.claims = owners.record(&key.namespace, &entry.hosts);
            findings.faults.clone_from(&entry.faults);
            findings.outdated = !entry.faults.is_empty() && entry.good.is_some();
            findings.unlisted = entry.good.as_deref().is_some_and(|good| self.is_unlisted(feed, good));
            let none = self.targets.get(key).and_then(Result::err);
            findings.no_scale_target = none.map(|failure| failure.detail().to_owned());
            if let Some(failure) = wake_failures.get(key) {
                let words = Some(failure.words.clone());
                match failure.what {
                    Failing::Wake => findings.wake_failure = words,
                    Failing::Start => findings.start_failure = words,
                    Failing::Pods => findings.unreachable = words,
                }
            }
            let (uid, version) = (entry.uid.as_str(), entry.version.as_str());
            let (generation, present) = (entry.generation, entry.conditions.as_slice());
            let object = Standing { uid, generation, version, conditions: present };
            let again = match statuses.due(key, object, conditions(&findings), &now) {
                Some(write) => self.writes.0.try_send(write).is_err(),
                // A restart would forget the claims.
                None => statuses.lacks_record(key, object),
            };
            if again {
                lock(&self.unwritten).insert(key.clone());
            }
        }
    }

    /// Tells of Services whose `ClusterIP` is not dialled any more, each once.
    fn warn_of_shunned(&self, known: &mut BTreeSet<ServiceId>, found: &HashMap<RouteKey, Findings>) {
        let all: BTreeSet<ServiceId> =
            found.values().flat_map(|findings| &findings.shunned).cloned().collect();
        for service in all.difference(known) {
            self.tell(Happening::LeftOut(shunned(service)));
        }
        *known = all;
    }

    /// Whether the route's Service allows endpoints without a pod in a namespace that the operator does not list.
    fn is_unlisted(&self, feed: &Mutex<Feed>, route: &RouteSpec) -> bool {
        let asks = lock(feed).service(&route.target.service).is_some_and(|facts| facts.manual_endpoints);
        let settings = &self.settings;
        asks && !settings.manual_endpoints && !settings.manual_endpoints_of.contains(&*route.key.namespace)
    }

    /// Looks up the workloads of all routes, when routes change and every minute.
    pub(super) async fn look_up_targets(self: Arc<Self>, feed: Arc<Mutex<Feed>>, cancel: CancellationToken) {
        let mut plans = self.plans.subscribe();
        let mut seen: HashMap<Arc<str>, (Routes, Instant)> = HashMap::new();
        let work = async {
            loop {
                let all = Arc::clone(&plans.borrow_and_update());
                let by_namespace = by_namespace(&all, &feed);
                seen.retain(|namespace, _| by_namespace.contains_key(namespace));
                for (namespace, routes) in by_namespace {
                    let known = seen.get(&namespace);
                    if known.is_some_and(|(known, when)| *known == routes && when.elapsed() < LOOK_AGAIN) {
                        continue;
                    }
                    if self.targets.look_up(&self.client, &namespace, &routes).await {
                        self.dirty.notify_one();
                    }
                    seen.insert(namespace, (routes, Instant::now()));
                }
                let again = seen.values().map(|(_, when)| *when + LOOK_AGAIN).min();
                tokio::select! {
                    _ = plans.changed() => {}
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

fn by_namespace(plans: &[Arc<RoutePlan>], feed: &Mutex<Feed>) -> HashMap<Arc<str>, Routes> {
    let mut by_namespace: HashMap<Arc<str>, Routes> = HashMap::new();
    for plan in serving(plans) {
        let service = lock(feed).service(&plan.spec.target.service);
        let routes = by_namespace.entry(Arc::clone(&plan.spec.key.namespace)).or_default();
        routes.push((Arc::clone(&plan.spec), service));
    }
    by_namespace
}

/// All but those that stand for faulty routes and lead nowhere.
pub(super) fn serving(plans: &[Arc<RoutePlan>]) -> impl Iterator<Item = &Arc<RoutePlan>> {
    plans.iter().filter(|plan| !matches!(plan.target, Err(PortFault::Faulty(_))))
}

/// How requests to each service are spread. Where several routes lead to one, the strictest limit counts.
fn spreads(plans: &[Arc<RoutePlan>]) -> HashMap<ServiceId, Spread> {
    let mut all: HashMap<ServiceId, (u32, Option<u32>)> = HashMap::new();
    for plan in serving(plans) {
        let scaling = &plan.spec.scaling;
        let (target, limit) = all.entry(plan.spec.target.service.clone()).or_default();
        *target = (*target).max(scaling.concurrency.unwrap_or(0));
        *limit = limit.iter().copied().chain(scaling.concurrency_limit).min();
    }
    let spread = |(id, (target, limit)): (ServiceId, (u32, Option<u32>))| {
        (id, Spread::new(target, limit.unwrap_or(0)))
    };
    all.into_iter().map(spread).collect()
}
