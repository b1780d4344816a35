//! What the watches have seen of Services, pods, nodes and our slices; which services a change concerns; and what a sync of
//! one service has to do.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::slices::{EndpointSlice, Freshness, MissingNode, Nodes, Tracker, selects};
use rouse_core::time::Moment;

use super::updates::{Demand, NodeUpdate, PodUpdate, SeenPod, SelectedService, ServiceUpdate, SliceUpdate};

/// How long a service may wait for the watch to show our writes before all slices are listed again.
const STALE: Duration = Duration::from_secs(30);

/// Why the slices of a service may have to be written. Decides how soon it is synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its Service has changed, or objects were listed.
    Service,
    /// Its Service has a selector now, so Kubernetes' own controller writes slices from now on.
    HandOver,
    /// One of its pods, or the node of one, has changed.
    Pod,
    /// Another client has changed or deleted one of its slices.
    Slice,
    /// The cache has changed for a service that waits for it.
    CaughtUp,
}

/// The services that a change concerns.
pub(super) type Concerned = Vec<(ServiceId, Cause)>;

/// What a sync of a service has to do.
#[derive(Debug)]
pub(super) enum Work {
    /// Nothing: we write no slices for it, and there are none.
    Nothing,
    /// Wait until the cache has our last write. If `relist`, all slices must be listed again.
    Wait { relist: bool },
    /// Leave its slices as they are: its annotation is invalid. Has the reason.
    Keep(String),
    /// Delete its slices: its Service does not ask for any.
    Delete(Vec<Arc<EndpointSlice>>),
    /// Write the slices of its pods.
    Reconcile(Box<Inputs>),
}

/// The facts that the slices of a service follow from.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) service: Arc<SelectedService>,
    pub(super) pods: Vec<Arc<SeenPod>>,
    pub(super) nodes: Arc<Nodes>,
    pub(super) slices: Vec<Arc<EndpointSlice>>,
    /// The earliest of the changes that this sync may publish, as Kubernetes' own controller computes it.
    pub(super) trigger_time: Option<Box<str>>,
    /// To be passed to [`Cache::synced`].
    pub(super) as_of: AsOf,
}

/// Which transitions of pods a sync has seen.
#[derive(Debug, Clone)]
pub(super) struct AsOf {
    uid: Arc<str>,
    transitions: u64,
}

/// The objects that the watches have seen.
#[derive(Debug, Default)]
pub(super) struct Cache {
    /// The Services that ask for slices, or whose annotation is invalid.
    services: HashMap<ServiceId, Demand>,
    /// The same by namespace.
    in_namespace: HashMap<Box<str>, HashSet<ServiceId>>,
    pods: HashMap<Arc<str>, HashMap<Arc<str>, Arc<SeenPod>>>,
    nodes: Arc<Nodes>,
    slices: HashMap<ServiceId, BTreeMap<Arc<str>, SeenSlice>>,
    /// The service of each slice, by the slice's `namespace/name`.
    homes: HashMap<Box<str>, ServiceId>,
    tracker: Tracker,
    /// Services that wait for the cache to have our last write, each with the time since.
    waiting: HashMap<ServiceId, Moment>,
    /// Counts the transitions of pods between ready and not ready.
    transitions: u64,
    /// What the last complete sync of each service has seen.
    synced: HashMap<ServiceId, AsOf>,
}

#[derive(Debug)]
struct SeenSlice {
    slice: Arc<EndpointSlice>,
    version: u64,
}

impl Cache {
    /// Adds or replaces a Service.
    pub(super) fn put_service(&mut self, update: ServiceUpdate) -> Concerned {
        let ServiceUpdate { id: Some(id), demand } = update else { return Vec::new() };
        let cause = if matches!(demand, Demand::InTree) { Cause::HandOver } else { Cause::Service };
        if self.services.get(&id).is_some_and(|before| *before == demand) {
            return Vec::new();
        }
        let known = self.services.remove(&id).is_some() || self.slices.contains_key(&id);
        match demand {
            Demand::Slices(_) | Demand::Invalid(_) => {
                self.in_namespace.entry(id.namespace().into()).or_default().insert(id.clone());
                self.services.insert(id.clone(), demand);
                vec![(id, cause)]
            }
            Demand::InTree | Demand::Nothing => {
                self.drop_from_namespace(&id);
                if known { vec![(id, cause)] } else { Vec::new() }
            }
        }
    }

    /// Removes a Service.
    pub(super) fn remove_service(&mut self, update: ServiceUpdate) -> Concerned {
        self.put_service(ServiceUpdate { demand: Demand::Nothing, ..update })
    }

    /// Replaces all Services.
    pub(super) fn replace_services(&mut self, all: Vec<ServiceUpdate>) -> Concerned {
        let before = self.all_services();
        self.services.clear();
        self.in_namespace.clear();
        for update in all {
            self.put_service(update);
        }
        before.into_iter().chain(self.all_services()).map(|id| (id, Cause::Service)).collect()
    }

    fn drop_from_namespace(&mut self, id: &ServiceId) {
        if let Some(services) = self.in_namespace.get_mut(id.namespace()) {
            services.remove(id);
            if services.is_empty() {
                self.in_namespace.remove(id.namespace());
            }
        }
    }

    /// Every service that asks for slices or has some.
    fn all_services(&self) -> HashSet<ServiceId> {
        self.services.keys().chain(self.slices.keys()).cloned().collect()
    }

    /// Adds or replaces a pod.
    pub(super) fn put_pod(&mut self, update: PodUpdate) -> Concerned {
        let PodUpdate { pod, labels, ready_changed } = update;
        if pod.phase.is_terminal() {
            // It has no endpoint, and will have none.
            return self.remove_pod(&pod.namespace, &pod.name);
        }
        let (namespace, name) = (Arc::clone(&pod.namespace), Arc::clone(&pod.name));
        let pods = self.pods.entry(namespace).or_default();
        let before = pods.get(&name).map(Arc::clone);
        let same = before.as_ref().filter(|before| before.ready_changed == ready_changed);
        let transition = same.map_or(self.transitions + 1, |before| before.transition);
        self.transitions = self.transitions.max(transition);
        let seen = Arc::new(SeenPod { pod, labels, ready_changed, transition });
        pods.insert(name, Arc::clone(&seen));
        self.concerned_by(before.as_deref(), Some(&seen))
    }

    /// Removes a pod.
    pub(super) fn remove_pod(&mut self, namespace: &str, name: &str) -> Concerned {
        let Some(pods) = self.pods.get_mut(namespace) else { return Vec::new() };
        let gone = pods.remove(name);
        if pods.is_empty() {
            self.pods.remove(namespace);
        }
        self.concerned_by(gone.as_deref(), None)
    }

    /// Replaces all pods.
    pub(super) fn replace_pods(&mut self, all: Vec<PodUpdate>) -> Concerned {
        let mut before = std::mem::take(&mut self.pods);
        for update in all {
            // `put_pod` compares with the pod that was there.
            let (namespace, name) = (&update.pod.namespace, &update.pod.name);
            if let Some((name, seen)) = before.get_mut(namespace).and_then(|pods| pods.remove_entry(name)) {
                self.pods.entry(Arc::clone(namespace)).or_default().insert(name, seen);
            }
            self.put_pod(update);
        }
        self.services.keys().map(|id| (id.clone(), Cause::Pod)).collect()
    }

    /// The services whose endpoints may differ between two states of a pod.
    fn concerned_by(&self, before: Option<&SeenPod>, after: Option<&SeenPod>) -> Concerned {
        let Some(pod) = after.or(before) else { return Vec::new() };
        let same = before.zip(after).is_some_and(|(before, after)| before.pod == after.pod);
        let services = self.in_namespace.get(&*pod.pod.namespace).into_iter().flatten();
        let concerned = services.filter(|id| {
            let Some(Demand::Slices(service)) = self.services.get(*id) else { return false };
            let selected = |pod: &SeenPod| selects(&service.selector, &pod.labels);
            let (was, is) = (before.is_some_and(selected), after.is_some_and(selected));
            was != is || is && !same
        });
        concerned.map(|id| (id.clone(), Cause::Pod)).collect()
    }

    /// Adds or replaces a node.
    pub(super) fn put_node(&mut self, update: NodeUpdate) -> Concerned {
        if self.nodes.get(&update.name) == Some(&update.node) {
            return Vec::new();
        }
        let concerned = self.concerned_by_node(&update.name);
        Arc::make_mut(&mut self.nodes).insert(update.name, update.node);
        concerned
    }

    /// Removes a node. As with Kubernetes' own controller, that alone changes no endpoint: the pods of the node are deleted
    /// soon if it does not come back.
    pub(super) fn remove_node(&mut self, update: &NodeUpdate) {
        Arc::make_mut(&mut self.nodes).remove(&update.name);
    }

    /// Replaces all nodes.
    pub(super) fn replace_nodes(&mut self, all: Vec<NodeUpdate>) -> Concerned {
        self.nodes = Arc::new(all.into_iter().map(|update| (update.name, update.node)).collect());
        self.services.keys().map(|id| (id.clone(), Cause::Pod)).collect()
    }

    /// The services that have a pod on this node.
    fn concerned_by_node(&self, node: &str) -> Concerned {
        let mut concerned = HashSet::new();
        for (namespace, services) in &self.in_namespace {
            let pods = self.pods.get(&**namespace).into_iter().flat_map(HashMap::values);
            for pod in pods.filter(|pod| pod.pod.node.as_deref() == Some(node)) {
                concerned.extend(services.iter().filter(|id| self.selects(id, pod)));
            }
        }
        concerned.into_iter().map(|id| (id.clone(), Cause::Pod)).collect()
    }

    fn selects(&self, id: &ServiceId, pod: &SeenPod) -> bool {
        let demand = self.services.get(id);
        matches!(demand, Some(Demand::Slices(service)) if selects(&service.selector, &pod.labels))
    }

    /// Adds or replaces a slice.
    pub(super) fn put_slice(&mut self, update: SliceUpdate) -> Concerned {
        let SliceUpdate { key, name, ours: Some((home, slice)), version } = update else {
            return self.remove_slice(&update);
        };
        let moved = self.homes.get(&key).is_some_and(|before| *before != home);
        let mut concerned = if moved { self.drop_slice(&key, &name) } else { Vec::new() };
        // Our own write needs no further sync.
        if !self.tracker.is_own_write(&home, &name, version) {
            concerned.push((home.clone(), Cause::Slice));
        }
        concerned.extend(self.caught_up(&home));
        self.homes.insert(key, home.clone());
        self.slices.entry(home).or_default().insert(name, SeenSlice { slice: Arc::new(slice), version });
        concerned
    }

    /// Removes a slice that was deleted, is being deleted, or is not ours any more.
    pub(super) fn remove_slice(&mut self, update: &SliceUpdate) -> Concerned {
        self.drop_slice(&update.key, &update.name)
    }

    fn drop_slice(&mut self, key: &str, name: &str) -> Concerned {
        let Some(home) = self.homes.remove(key) else { return Vec::new() };
        if let Some(slices) = self.slices.get_mut(&home) {
            slices.remove(name);
            if slices.is_empty() {
                self.slices.remove(&home);
            }
        }
        let mut concerned = self.caught_up(&home);
        if !self.tracker.vanished(&home, name) {
            concerned.push((home, Cause::Slice));
        }
        concerned
    }

    /// A list of all slices begins.
    pub(super) fn listing_slices(&mut self) {
        self.tracker.listing();
    }

    /// Replaces all slices.
    pub(super) fn replace_slices(&mut self, all: Vec<SliceUpdate>) -> Concerned {
        let before = self.all_services();
        self.slices.clear();
        self.homes.clear();
        self.tracker.relisted();
        for SliceUpdate { key, name, ours, version } in all {
            let Some((home, slice)) = ours else { continue };
            self.homes.insert(key, home.clone());
            self.slices.entry(home).or_default().insert(name, SeenSlice { slice: Arc::new(slice), version });
        }
        before.into_iter().chain(self.all_services()).map(|id| (id, Cause::CaughtUp)).collect()
    }

    fn caught_up(&self, home: &ServiceId) -> Concerned {
        if self.waiting.contains_key(home) { vec![(home.clone(), Cause::CaughtUp)] } else { Vec::new() }
    }

    /// What the sync of a service has to do now.
    pub(super) fn work(&mut self, id: &ServiceId, now: Moment) -> Work {
        let slices = self.slices.get(id).into_iter().flatten();
        let freshness = self.tracker.check(id, slices.map(|(name, seen)| (&**name, seen.version)));
        if freshness != Freshness::Fresh {
            return self.wait(id, freshness, now);
        }
        self.waiting.remove(id);
        let slices: Vec<Arc<EndpointSlice>> =
            self.slices.get(id).into_iter().flatten().map(|(_, seen)| Arc::clone(&seen.slice)).collect();
        match self.services.get(id) {
            Some(Demand::Slices(service)) => {
                let service = Arc::clone(service);
                Work::Reconcile(Box::new(self.inputs(service, slices)))
            }
            Some(Demand::Invalid(why)) => Work::Keep(why.clone()),
            _ if slices.is_empty() => {
                self.tracker.forget(id);
                self.synced.remove(id);
                Work::Nothing
            }
            _ => Work::Delete(slices),
        }
    }

    fn wait(&mut self, id: &ServiceId, freshness: Freshness, now: Moment) -> Work {
        let known = self.waiting.get(id).copied();
        // A list that failed is repeated by the watch. It is asked for again only if the cache still does not change.
        let relist = match known {
            None => freshness == Freshness::Regressed,
            Some(since) => now.since(since) >= STALE,
        };
        if known.is_none() || relist {
            self.waiting.insert(id.clone(), now);
        }
        Work::Wait { relist }
    }

    fn inputs(&self, service: Arc<SelectedService>, slices: Vec<Arc<EndpointSlice>>) -> Inputs {
        let id = &service.facts.id;
        let pods = self.pods.get(id.namespace()).into_iter().flat_map(HashMap::values);
        let pods = pods.filter(|pod| selects(&service.selector, &pod.labels));
        let pods: Vec<Arc<SeenPod>> = pods.map(Arc::clone).collect();
        let before = self.synced.get(id).filter(|before| before.uid == service.facts.uid);
        let trigger_time = match before {
            Some(before) => {
                let changed = pods.iter().filter(|pod| pod.transition > before.transitions);
                // The API server writes all times in one format, so the texts are ordered.
                changed.filter_map(|pod| pod.ready_changed.clone()).min()
            }
            // A new Service. After a restart of ours, it is not known what has changed.
            None => service.created.clone().filter(|_| slices.is_empty()),
        };
        let as_of = AsOf { uid: Arc::clone(&service.facts.uid), transitions: self.transitions };
        Inputs { service, pods, nodes: Arc::clone(&self.nodes), slices, trigger_time, as_of }
    }

    /// All writes of a sync have succeeded.
    pub(super) fn synced(&mut self, id: &ServiceId, as_of: AsOf) {
        if matches!(self.services.get(id), Some(Demand::Slices(_))) {
            self.synced.insert(id.clone(), as_of);
        }
    }

    /// We created or updated a slice.
    pub(super) fn wrote(&mut self, id: &ServiceId, slice: &str, version: u64) {
        self.tracker.wrote(id, slice, version);
    }

    /// We deleted a slice.
    pub(super) fn deleted(&mut self, id: &ServiceId, slice: &str) {
        self.tracker.deleted(id, slice);
    }

    /// A write of ours may or may not have been applied.
    pub(super) fn doubt(&mut self, id: &ServiceId) {
        self.tracker.doubt(id);
    }

    /// Another process may have written slices.
    pub(super) fn doubt_all(&mut self) {
        self.tracker.doubt_all();
    }

    /// Whether the missing node of a pod has been seen since.
    pub(super) fn has_node(&self, missing: &MissingNode) -> bool {
        self.nodes.contains_key(&missing.node)
    }
}
