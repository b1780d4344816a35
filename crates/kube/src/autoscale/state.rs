//! What the autoscaler knows: the objects that its watches bring, the targets that follow from them, and the fleet that decides.
//!
//! No I/O: the driver passes in the time, applies what watches and gateways report, and carries out the [`Job`]s.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rouse_core::budget::{TokenBucket, WakeBudget, WakeRates};
use rouse_core::endpoint::ServiceId;
use rouse_core::load_meter::LoadKey;
use rouse_core::scale::{Fleet, LoadUpdate, Reporter, ScalePolicy};
use rouse_core::time::Moment;

use super::envoys::EnvoyKnowledge;
use super::expected_gateways::ExpectedGateways;
use super::learned::Shards;
use super::route_loads::RouteLoadChanges;
use super::target::{AutoscaleDefault, ResolvedNamespace, TargetKey, TargetSpec, resolve};
use super::target_state::{BlockReason, DecisionStatus, Observation, ScaleToken, TargetState};
use super::workload_cache::{WorkloadCache, WorkloadChange, targets_within};
use crate::objects::route::{RouteKey, RouteKind, RouteObject, RouteSpec};
use crate::objects::service_summary::ServiceSummary;
use crate::objects::workload_object::WorkloadObject;
use crate::routes::store::RouteStore;
use crate::wake::find;

/// How many reads of scales may follow each other at once.
const READS: u32 = 50;
/// The least time between two reads in the long run.
const READ_EVERY: Duration = Duration::from_millis(50);

/// What the autoscaler knows.
pub(super) struct AutoscaleState {
    pub(super) default: AutoscaleDefault,
    pub(super) store: RouteStore,
    pub(super) services: HashMap<ServiceId, Arc<ServiceSummary>>,
    pub(super) workload_cache: WorkloadCache,
    pub(super) gateways: ExpectedGateways,
    pub(super) envoys: EnvoyKnowledge,
    /// Namespaces in which the workload of a route may have changed.
    dirty: BTreeSet<Arc<str>>,
    /// The workload of each route, or why there is none.
    pub(super) workloads: BTreeMap<RouteKey, Result<TargetKey, String>>,
    pub(super) targets: BTreeMap<TargetKey, TargetState>,
    pub(super) fleet: Fleet<TargetKey, ScaleToken>,
    /// Targets to consider.
    pub(super) queue: VecDeque<TargetKey>,
    /// When a target is to be considered again.
    pub(super) timers: BTreeSet<(Moment, TargetKey)>,
    pub(super) budget: WakeBudget,
    pub(super) reads: TokenBucket,
    /// What is new about the load of routes.
    pub(super) route_loads: RouteLoadChanges,
    /// Routes whose condition may have changed.
    pub(super) touched: BTreeSet<RouteKey>,
    /// What idle policies had learned when it was read or written last; `None`: it was not read yet.
    pub(super) learned: Option<Shards>,
}

impl AutoscaleState {
    pub(super) fn new(default: AutoscaleDefault, wakes: WakeRates, now: Moment, seed: u64) -> Self {
        Self {
            default,
            store: RouteStore::default(),
            services: HashMap::new(),
            workload_cache: WorkloadCache::default(),
            gateways: ExpectedGateways::default(),
            envoys: EnvoyKnowledge::new(now, seed),
            dirty: BTreeSet::new(),
            workloads: BTreeMap::new(),
            targets: BTreeMap::new(),
            fleet: Fleet::new(now),
            queue: VecDeque::new(),
            timers: BTreeSet::new(),
            budget: WakeBudget::new(wakes, now),
            reads: TokenBucket::every(READ_EVERY, READS, now),
            route_loads: RouteLoadChanges::default(),
            touched: BTreeSet::new(),
            learned: None,
        }
    }

    /// A route object was added or has changed.
    pub(super) fn put_route(&mut self, kind: RouteKind, object: &RouteObject) {
        let key = RouteKey::new(kind, &object.metadata);
        let before = self.store.get(&key).and_then(|entry| entry.good.clone());
        self.store.put(kind, object);
        let entry = self.store.get(&key);
        // The gateways and this controller write the status of routes, which changes nothing here.
        let same = match (before, entry.and_then(|entry| entry.good.as_ref())) {
            (Some(before), Some(good)) => Arc::ptr_eq(&before, good),
            (None, None) => true,
            _ => false,
        };
        if !same {
            self.mark_dirty(&key.namespace);
            self.route_loads.changed(&key);
        }
        self.touched.insert(key);
    }

    pub(super) fn remove_route(&mut self, kind: RouteKind, object: &RouteObject) {
        self.store.remove(kind, object);
        self.mark_dirty(object.metadata.namespace());
        self.route_loads.changed(&RouteKey::new(kind, &object.metadata));
    }

    pub(super) fn replace_routes(&mut self, kind: RouteKind, all: &[RouteObject]) {
        let before = self.store.entries().map(|(key, _)| key.clone());
        before.for_each(|key| self.route_loads.changed(&key));
        self.store.replace(kind, all);
        self.store.entries().for_each(|(key, _)| self.route_loads.changed(key));
        self.mark_all_dirty();
    }

    pub(super) fn put_service(&mut self, service: ServiceSummary) {
        let (id, service) = (service.id.clone(), Arc::new(service));
        let selector = |service: &ServiceSummary| service.pod_selector().cloned();
        let before = self.services.insert(id.clone(), Arc::clone(&service));
        let same = before.is_some_and(|before| selector(&before) == selector(&service));
        if !same {
            self.mark_dirty(id.namespace());
        }
    }

    pub(super) fn remove_service(&mut self, id: &ServiceId) {
        self.services.remove(id);
        self.mark_dirty(id.namespace());
    }

    pub(super) fn replace_services(&mut self, all: Vec<ServiceSummary>) {
        self.services = all.into_iter().map(|service| (service.id.clone(), Arc::new(service))).collect();
        self.mark_all_dirty();
    }

    /// A workload was added, has changed or is gone.
    pub(super) fn workload_changed(&mut self, now: Moment, change: &WorkloadChange) {
        if change.identity {
            self.mark_dirty(&change.key.namespace);
        }
        if !self.is_outdated(&change.key) {
            self.observe_watched(now, &change.key);
        }
    }

    /// Replaces all workloads of a kind: also a list of older versions is the truth, after a restore of the cluster.
    pub(super) fn replace_workloads(&mut self, now: Moment, kind: &'static str, all: Vec<WorkloadObject>) {
        for change in self.workload_cache.replace_workloads(kind, all) {
            self.mark_dirty(&change.key.namespace);
            self.observe_watched(now, &change.key);
        }
    }

    /// Whether an event was under way while we wrote: what it says is older than the answer to our write.
    fn is_outdated(&self, key: &TargetKey) -> bool {
        let observed = self.targets.get(key).and_then(|target| target.observed.as_ref());
        let watched = self.workload_cache.workload(key).map(|workload| &workload.metadata.resource_version);
        observed.zip(watched).is_some_and(|(observed, watched)| observed.outdates(watched))
    }

    /// Marks a namespace in which the workload of a route may have changed.
    pub(super) fn mark_dirty(&mut self, namespace: &str) {
        self.dirty.insert(namespace.into());
    }

    pub(super) fn mark_all_dirty(&mut self) {
        let routes = self.store.entries().map(|(key, _)| Arc::clone(&key.namespace));
        let targets = self.targets.keys().map(|key| Arc::clone(&key.namespace));
        let known = self.workloads.keys().map(|key| Arc::clone(&key.namespace));
        self.dirty = routes.chain(targets).chain(known).collect();
    }

    /// Takes what a gateway sent. Returns how many readings were refused.
    pub(super) fn heard(&mut self, now: Moment, from: &Reporter, update: LoadUpdate) -> usize {
        let heard = self.fleet.heard(now, from, update);
        if self.envoys.parked.replicas().any(|replica| replica == from) {
            self.heard_services(now, &heard.changes);
        }
        for change in &heard.changes {
            if let LoadKey::Route(name) = &change.key
                && let Some(key) = RouteKey::from_load_name(name)
                && let Some(route) = self.store.get(&key).and_then(|entry| entry.good.as_ref())
            {
                self.route_loads.heard(now, &key, &route.scaling, &change.report);
            }
        }
        heard.refused
    }

    /// The gateways that serve, or xds replicas, may be others. Also forgets those that are gone.
    pub(super) fn list_gateways(&mut self, now: Moment) {
        let mut serving = self.gateways.serving();
        // Without a gateway, no load is known at all, whatever xds replicas say.
        if !serving.is_empty() {
            serving.extend(self.envoys.parked.replicas().cloned());
        }
        let serving: Vec<Reporter> = serving.into_iter().collect();
        self.fleet.list(now, &serving);
    }

    /// Finds the workloads of the routes in all namespaces where they may have changed.
    pub(super) fn resolve(&mut self, now: Moment) {
        for namespace in std::mem::take(&mut self.dirty) {
            let resolved = self.resolve_namespace(&namespace);
            self.apply(now, &namespace, resolved);
        }
    }

    fn resolve_namespace(&self, namespace: &str) -> ResolvedNamespace {
        let good = self.store.entries_of(namespace).filter_map(|(_, entry)| entry.good.clone());
        let good: Vec<_> = good.collect();
        if good.is_empty() {
            return ResolvedNamespace::default();
        }
        let index = self.workload_cache.index(namespace);
        let service = |route: &RouteSpec| self.services.get(&route.target.service).map(|service| &**service);
        let workload = |route: &RouteSpec| find(route, service(route), &index);
        resolve(namespace, &good, self.default, workload, |workload| index.owner(workload))
    }

    /// Changes the targets and routes of a namespace to these.
    fn apply(&mut self, now: Moment, namespace: &Arc<str>, resolved: ResolvedNamespace) {
        let before: Vec<TargetKey> =
            targets_within(&self.targets, namespace).map(|(key, _)| key.clone()).collect();
        for key in before.iter().filter(|key| !resolved.targets.contains_key(*key)) {
            self.remove_target(key);
        }
        for (key, spec) in resolved.targets {
            self.set_target(now, &key, spec);
        }
        let gone = |route: &RouteKey| route.namespace == *namespace && !resolved.routes.contains_key(route);
        self.workloads.retain(|route, _| !gone(route));
        for (route, found) in resolved.routes {
            if self.workloads.get(&route) != Some(&found) {
                self.touched.insert(route.clone());
                self.workloads.insert(route, found);
            }
        }
    }

    fn remove_target(&mut self, key: &TargetKey) {
        self.fleet.remove_target(key);
        if let Some(target) = self.targets.remove(key) {
            self.touched.extend(target.spec.routes.iter().map(|route| route.key.clone()));
            drop(self.end_requests(&target.spec.services));
        }
    }

    fn set_target(&mut self, now: Moment, key: &TargetKey, spec: TargetSpec) {
        let before = self.targets.get(key).map(|target| &target.spec);
        if before == Some(&spec) {
            return;
        }
        let routes = before.into_iter().chain([&spec]).flat_map(|spec| &spec.routes);
        self.touched.extend(routes.map(|route| route.key.clone()));
        let (was, is) = (before.and_then(TargetSpec::managed).cloned(), spec.managed().cloned());
        let services = spec.services.clone();
        match self.targets.get_mut(key) {
            Some(target) => target.spec = spec,
            None => drop(self.targets.insert(key.clone(), TargetState::new(spec))),
        }
        match (was, is) {
            (_, None) => self.stop_deciding(key),
            (None, Some(policy)) => self.begin_deciding(now, key, &policy, services),
            (Some(_), Some(policy)) => {
                self.fleet.set_target(now, key, &policy, services);
                if self.learned_by(key).is_none() {
                    self.recall(now, key);
                }
            }
        }
    }

    fn stop_deciding(&mut self, key: &TargetKey) {
        self.fleet.remove_target(key);
        if let Some(target) = self.targets.get_mut(key) {
            target.reset();
        }
    }

    /// Decides about a target, as if it was just seen for the first time: nothing is scaled down before one stable window.
    fn begin_deciding(
        &mut self,
        now: Moment,
        key: &TargetKey,
        policy: &ScalePolicy,
        services: BTreeSet<ServiceId>,
    ) {
        let learned = self.learned_by(key);
        self.stop_deciding(key);
        self.fleet.set_target(now, key, policy, services);
        match learned {
            // What was written a moment ago can be read.
            Some(bytes) => drop(self.fleet.restore_learned(now, key, &bytes)),
            None => self.recall(now, key),
        }
        let Some(target) = self.targets.get_mut(key) else { return };
        if WorkloadCache::watches(&target.spec.workload) {
            self.observe_watched(now, key);
        } else {
            // It is read as soon as it is considered.
            target.observed = None;
            self.enqueue(key);
        }
    }

    /// This process begins to lead: what it knows may have a gap.
    pub(super) fn elected(&mut self, now: Moment) {
        let managed = self.targets.iter().filter_map(|(key, target)| {
            Some((key.clone(), target.spec.managed()?.clone(), target.spec.services.clone()))
        });
        for (key, policy, services) in managed.collect::<Vec<_>>() {
            self.begin_deciding(now, &key, &policy, services);
        }
        self.touched.extend(self.workloads.keys().cloned());
    }

    /// Passes on what the watch says of a workload.
    fn observe_watched(&mut self, now: Moment, key: &TargetKey) {
        let workload = self.workload_cache.workload(key);
        if !self.targets.contains_key(key) {
            return;
        }
        let seen = match workload {
            None => Err(format!("{key} does not exist")),
            Some(workload) if workload.metadata.deletion_timestamp.is_some() => {
                Err(format!("{key} is being deleted"))
            }
            Some(workload) => Ok(workload),
        };
        let seen = seen.map(|workload| Observation {
            replicas: workload.replicas(),
            ready: workload.status.ready_replicas,
            version: workload.metadata.resource_version.as_str().into(),
            at: now,
        });
        self.observe(now, key, seen);
    }

    /// The target was seen, or not found.
    pub(super) fn observe(&mut self, now: Moment, key: &TargetKey, seen: Result<Observation, String>) {
        let Some(target) = self.targets.get_mut(key) else { return };
        let missing = seen.as_ref().err().cloned();
        if target.missing != missing {
            self.touched.extend(target.spec.routes.iter().map(|route| route.key.clone()));
        }
        target.missing = missing;
        let version =
            |observed: &Option<Observation>| observed.as_ref().map(|seen| Arc::clone(&seen.version));
        let seen = seen.ok();
        if version(&target.observed) != version(&seen) && std::mem::take(&mut target.conflicted) {
            target.not_before = None;
        }
        target.observed = seen;
        if let Some(seen) = &target.observed {
            self.fleet.observe(now, key, seen.target());
        } else {
            target.forget_decision();
            self.fleet.lose_sight(key);
        }
    }

    /// It is known again what else scales workloads.
    pub(super) fn owners_known(&mut self) {
        let waits = |target: &TargetState| {
            matches!(target.decision_status, DecisionStatus::Blocked(BlockReason::UnknownOwners(_)))
        };
        let waiting = self.targets.iter().filter(|(_, target)| waits(target)).map(|(key, _)| key.clone());
        for key in waiting.collect::<Vec<_>>() {
            self.enqueue(&key);
        }
    }

    /// Has a target considered soon.
    pub(super) fn enqueue(&mut self, key: &TargetKey) {
        if let Some(target) = self.targets.get_mut(key)
            && !std::mem::replace(&mut target.queued, true)
        {
            self.queue.push_back(key.clone());
        }
    }
}
