//! Caches workloads, HPAs and `ScaledObject`s from watches, and finds the workload of a route and what else scales it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rouse_core::slices::Labels;

use super::target::{ExternalOwner, OwnerKind, TargetKey};
use crate::client::ObjectKind;
use crate::objects::hpa::HorizontalPodAutoscaler;
use crate::objects::route::RouteKey;
use crate::objects::scaled_object::ScaledObject;
use crate::objects::workload::Workload;
use crate::objects::workload_object::WorkloadObject;
use crate::wake::Candidates;

/// The group of watched workloads.
const APPS: &str = "apps";

/// What was watched, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct WorkloadCache {
    workloads: BTreeMap<TargetKey, WorkloadObject>,
    scaled: BTreeMap<(Arc<str>, Arc<str>), ScaledObject>,
    hpas: BTreeMap<(Arc<str>, Arc<str>), HorizontalPodAutoscaler>,
}

/// What a change of a workload means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorkloadChange {
    pub(super) key: TargetKey,
    /// It is new or gone, or has other pods: the workload of a route may be another one.
    pub(super) identity: bool,
}

impl WorkloadCache {
    /// Whether workloads of this kind are watched. Others are read when they are needed.
    pub(super) fn watches(workload: &Workload) -> bool {
        let kinds = [ObjectKind::DEPLOYMENT, ObjectKind::STATEFUL_SET];
        kinds.iter().any(|kind| (kind.group, kind.name) == (&*workload.group, &*workload.kind))
    }

    pub(super) fn workload(&self, key: &TargetKey) -> Option<&WorkloadObject> {
        self.workloads.get(key)
    }

    pub(super) fn put_workload(&mut self, workload: WorkloadObject) -> WorkloadChange {
        let key = key_of(&workload);
        let before = self.workloads.get(&key);
        let same = before.is_some_and(|before| before.pod_labels() == workload.pod_labels());
        self.workloads.insert(key.clone(), workload);
        WorkloadChange { key, identity: !same }
    }

    pub(super) fn remove_workload(&mut self, workload: &WorkloadObject) -> WorkloadChange {
        let key = key_of(workload);
        self.workloads.remove(&key);
        WorkloadChange { key, identity: true }
    }

    /// Replaces all workloads of a kind. Returns the targets that have changed or may have.
    pub(super) fn replace_workloads(
        &mut self,
        kind: &'static str,
        all: Vec<WorkloadObject>,
    ) -> Vec<WorkloadChange> {
        let before = std::mem::take(&mut self.workloads);
        let (gone, kept) = before.into_iter().partition::<BTreeMap<_, _>, _>(|(key, _)| *key.kind == *kind);
        self.workloads = kept;
        let removed = gone.into_keys().map(|key| WorkloadChange { key, identity: true });
        let mut changes: Vec<WorkloadChange> = removed.collect();
        changes.extend(all.into_iter().map(|workload| self.put_workload(workload)));
        changes
    }

    /// Returns whether anything that matters has changed.
    pub(super) fn put_scaled_object(&mut self, scaled: &ScaledObject) -> bool {
        let key = (Arc::clone(&scaled.namespace), Arc::clone(&scaled.name));
        self.scaled.insert(key, scaled.clone()).as_ref() != Some(scaled)
    }

    pub(super) fn remove_scaled_object(&mut self, scaled: &ScaledObject) {
        self.scaled.remove(&(Arc::clone(&scaled.namespace), Arc::clone(&scaled.name)));
    }

    pub(super) fn replace_scaled_objects(&mut self, all: Vec<ScaledObject>) {
        self.scaled.clear();
        for scaled in all {
            self.put_scaled_object(&scaled);
        }
    }

    /// Returns whether anything that matters has changed: the status of an HPA changes all the time.
    pub(super) fn put_hpa(&mut self, hpa: &HorizontalPodAutoscaler) -> bool {
        let key = (Arc::clone(&hpa.namespace), Arc::clone(&hpa.name));
        self.hpas.insert(key, hpa.clone()).as_ref() != Some(hpa)
    }

    pub(super) fn remove_hpa(&mut self, hpa: &HorizontalPodAutoscaler) {
        self.hpas.remove(&(Arc::clone(&hpa.namespace), Arc::clone(&hpa.name)));
    }

    pub(super) fn replace_hpas(&mut self, all: Vec<HorizontalPodAutoscaler>) {
        self.hpas.clear();
        for hpa in all {
            self.put_hpa(&hpa);
        }
    }

    /// The objects of one namespace, indexed: a namespace may have thousands of routes.
    pub(super) fn index<'a>(&'a self, namespace: &str) -> CatalogIndex<'a> {
        let mut index = CatalogIndex::default();
        let namespace: Arc<str> = namespace.into();
        for (_, workload) in targets_within(&self.workloads, &namespace) {
            for (label, value) in workload.pod_labels() {
                index.by_label.entry((label, value)).or_default().push(workload);
            }
        }
        for scaled in within(&self.scaled, &namespace) {
            for route in scaled.routes() {
                index.by_route.entry(route).or_insert(scaled);
            }
            if let Ok(target) = &scaled.target {
                let owner = ExternalOwner { kind: OwnerKind::ScaledObject, name: Arc::clone(&scaled.name) };
                index.own(target, owner);
            }
        }
        // After ScaledObjects, each of which has an HPA of its own.
        for hpa in within(&self.hpas, &namespace) {
            if let Some(target) = &hpa.target {
                index.own(target, ExternalOwner { kind: OwnerKind::Hpa, name: Arc::clone(&hpa.name) });
            }
        }
        index
    }
}

fn key_of(workload: &WorkloadObject) -> TargetKey {
    TargetKey {
        namespace: workload.metadata.namespace.as_str().into(),
        group: APPS.into(),
        kind: workload.kind.into(),
        name: workload.metadata.name.as_str().into(),
    }
}

fn within<'a, T>(
    all: &'a BTreeMap<(Arc<str>, Arc<str>), T>,
    namespace: &Arc<str>,
) -> impl Iterator<Item = &'a T> + use<'a, T> {
    let namespace = Arc::clone(namespace);
    let all = all.range((Arc::clone(&namespace), "".into())..);
    all.take_while(move |((of, _), _)| *of == namespace).map(|(_, object)| object)
}

/// What is known of the targets of a namespace.
pub(super) fn targets_within<'a, T>(
    all: &'a BTreeMap<TargetKey, T>,
    namespace: &Arc<str>,
) -> impl Iterator<Item = (&'a TargetKey, &'a T)> + use<'a, T> {
    let (namespace, none): (Arc<str>, Arc<str>) = (Arc::clone(namespace), "".into());
    let first = TargetKey {
        namespace: Arc::clone(&namespace),
        group: Arc::clone(&none),
        kind: Arc::clone(&none),
        name: none,
    };
    all.range(first..).take_while(move |(key, _)| key.namespace == namespace)
}

/// The objects of one namespace.
#[derive(Debug, Default)]
pub(super) struct CatalogIndex<'a> {
    by_label: HashMap<(&'a String, &'a String), Vec<&'a WorkloadObject>>,
    by_route: HashMap<RouteKey, &'a ScaledObject>,
    /// By group, kind and name.
    owners: HashMap<[Arc<str>; 3], ExternalOwner>,
}

impl CatalogIndex<'_> {
    fn own(&mut self, target: &Workload, owner: ExternalOwner) {
        let key = [&target.group, &target.kind, &target.name].map(Arc::clone);
        self.owners.entry(key).or_insert(owner);
    }

    /// What else scales this workload.
    pub(super) fn owner(&self, workload: &Workload) -> Option<ExternalOwner> {
        let key = [&workload.group, &workload.kind, &workload.name].map(Arc::clone);
        self.owners.get(&key).cloned()
    }
}

impl Candidates for CatalogIndex<'_> {
    fn naming(&self, route: &RouteKey) -> Option<&ScaledObject> {
        self.by_route.get(route).copied()
    }

    fn with_pods_of(&self, selector: &Labels) -> Vec<&WorkloadObject> {
        // Nearly always, the first label leaves one workload.
        let first = selector.iter().next();
        let fitting =
            first.and_then(|label| self.by_label.get(&label)).map(Vec::as_slice).unwrap_or_default();
        fitting.iter().copied().filter(|workload| workload.has_pods_of(selector)).collect()
    }
}
