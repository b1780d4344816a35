//! Packs the endpoints of a Service into `EndpointSlice`s, with as few writes as possible.
//!
//! Slices are grouped by address family and by the ports of their endpoints. Within a group, every endpoint first stays in
//! its slice. New endpoints then go to slices that are written anyway, the fullest first; then to one more slice with room
//! for all the rest; then to new slices. A new slice reuses the name of a slice that would be deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::endpoint::{EndpointSkipped, MissingNode, endpoint, ports};
use super::{
    EndpointPort, EndpointSlice, Family, Labels, ListedEndpoint, MANAGED_BY, MANAGER, Nodes, Options, Pod,
    SERVICE_NAME, ServiceFacts, SliceContent,
};

/// The writes to make, and the slices that result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlicePlan {
    /// Slices to create, with names that begin with [`ServiceFacts::generate_name`].
    pub create: Vec<SliceContent>,
    /// Slices to replace, each with the resourceVersion that was read.
    pub update: Vec<EndpointSlice>,
    /// Slices to delete.
    pub delete: Vec<EndpointSlice>,
    /// Slices that stay as they are.
    pub unchanged: Vec<EndpointSlice>,
    /// The pods that are left out because their node is not known. Write the plan, then try again.
    pub missing_nodes: BTreeSet<MissingNode>,
}

impl SlicePlan {
    /// The number of writes.
    pub fn writes(&self) -> usize {
        self.create.len() + self.update.len() + self.delete.len()
    }

    /// The content of all slices after the writes.
    pub fn contents(&self) -> impl Iterator<Item = &SliceContent> {
        self.unchanged.iter().chain(&self.update).map(|slice| &slice.content).chain(&self.create)
    }

    /// The slices after the writes, for an engine without an API server. `name` returns a name for each new slice.
    pub fn into_slices(self, mut name: impl FnMut() -> String) -> Vec<EndpointSlice> {
        let created = self.create.into_iter().map(|content| EndpointSlice {
            name: name().into(),
            resource_version: Arc::default(),
            annotations: Labels::new(),
            content,
        });
        self.unchanged.into_iter().chain(self.update).chain(created).collect()
    }
}

/// Plans the slices of `service` for the `pods` that its selector selects. The order of pods and slices does not matter.
/// Slices that we do not manage, or that belong to another service, are ignored.
pub fn reconcile<'a>(
    service: &ServiceFacts,
    pods: impl IntoIterator<Item = &'a Pod>,
    nodes: &Nodes,
    existing: impl IntoIterator<Item = &'a EndpointSlice>,
    options: &Options,
) -> SlicePlan {
    let pods: Vec<&Pod> = pods.into_iter().collect();
    let mut ours: Vec<&EndpointSlice> =
        existing.into_iter().filter(|slice| is_ours(slice, service)).collect();
    ours.sort_by(|a, b| a.name.cmp(&b.name));

    let mut planner =
        Planner { service, labels: service.slice_labels(), options, plan: SlicePlan::default() };
    for family in service.families() {
        let (of_family, rest) = ours.into_iter().partition(|slice| slice.content.family == family);
        ours = rest;
        let desired = planner.desired(family, &pods, nodes);
        planner.plan_family(family, desired, of_family);
    }
    planner.plan.delete.extend(ours.into_iter().cloned());
    planner.plan
}

fn is_ours(slice: &EndpointSlice, service: &ServiceFacts) -> bool {
    let label = |key| slice.content.labels.get(key).map(String::as_str);
    label(MANAGED_BY) == Some(MANAGER) && label(SERVICE_NAME) == Some(service.id.name())
}

/// The identity of an endpoint in a slice. Not its UID: a pod that returns with the same name and address is updated in
/// place.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pod: Option<(Arc<str>, Arc<str>)>,
    addresses: Vec<IpAddr>,
    hostname: Option<Arc<str>>,
}

impl Key {
    fn of(endpoint: &ListedEndpoint) -> Self {
        let pod = endpoint.target.as_ref().map(|pod| (pod.namespace.clone(), pod.name.clone()));
        let mut addresses = endpoint.addresses.clone();
        addresses.sort();
        Self { pod, addresses, hostname: endpoint.hostname.clone() }
    }
}

/// Endpoints that have no slice yet, in a deterministic order.
type Desired = BTreeMap<Key, ListedEndpoint>;

fn take(desired: &mut Desired, count: usize) -> impl Iterator<Item = ListedEndpoint> {
    std::iter::from_fn(|| desired.pop_first().map(|(_, endpoint)| endpoint)).take(count)
}

/// An existing slice and the endpoints it will hold.
struct Packed<'a> {
    slice: &'a EndpointSlice,
    endpoints: Vec<ListedEndpoint>,
    dirty: bool,
}

/// One family's plan while it is made.
#[derive(Default)]
struct Draft<'a> {
    packed: Vec<Packed<'a>>,
    create: Vec<SliceContent>,
    /// Slices without any desired endpoint. Their names can be reused.
    doomed: Vec<&'a EndpointSlice>,
}

struct Planner<'s> {
    service: &'s ServiceFacts,
    labels: Labels,
    options: &'s Options,
    plan: SlicePlan,
}

impl Planner<'_> {
    /// The endpoints that should be in the slices of `family`, grouped by their ports.
    fn desired(
        &mut self,
        family: Family,
        pods: &[&Pod],
        nodes: &Nodes,
    ) -> BTreeMap<Vec<EndpointPort>, Desired> {
        let mut groups: BTreeMap<_, Desired> = BTreeMap::new();
        for pod in pods {
            match endpoint(self.service, pod, nodes, family, self.options) {
                Ok(endpoint) => {
                    let group = groups.entry(ports(self.service, pod)).or_default();
                    group.insert(Key::of(&endpoint), endpoint);
                }
                Err(EndpointSkipped::NodeMissing(missing)) => {
                    self.plan.missing_nodes.insert(missing);
                }
                Err(_) => {}
            }
        }
        groups
    }

    fn plan_family(
        &mut self,
        family: Family,
        desired: BTreeMap<Vec<EndpointPort>, Desired>,
        existing: Vec<&EndpointSlice>,
    ) {
        let mut by_ports: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for slice in existing {
            if slice.content.owner.as_ref() == Some(&self.service.uid) {
                let mut ports = slice.content.ports.clone();
                ports.sort();
                by_ports.entry(ports).or_default().push(slice);
            } else {
                // It belongs to a deleted Service with the same name. The garbage collector deletes it, so do not reuse it.
                self.plan.delete.push(slice.clone());
            }
        }
        let mut draft = Draft::default();
        for (ports, endpoints) in desired {
            let slices = by_ports.remove(&ports).unwrap_or_default();
            self.pack(&mut draft, family, &ports, endpoints, slices);
        }
        draft.doomed.extend(by_ports.into_values().flatten());
        if draft.packed.is_empty() && draft.create.is_empty() {
            // A placeholder: a watcher must be able to tell "no endpoints" from "not written yet".
            draft.create.push(self.content(family, &[], vec![]));
        }
        self.finish(draft);
    }

    /// Assigns each of the `desired` endpoints of one group to a slice; `slices` are the existing slices of the group.
    fn pack<'a>(
        &self,
        draft: &mut Draft<'a>,
        family: Family,
        ports: &[EndpointPort],
        mut desired: Desired,
        slices: Vec<&'a EndpointSlice>,
    ) {
        let max = self.options.max_endpoints_per_slice.get();
        let kept = slices.into_iter().map(|slice| self.keep_in_place(slice, &mut desired));
        let (mut packed, emptied): (Vec<_>, Vec<_>) = kept.partition(|packed| !packed.endpoints.is_empty());
        draft.doomed.extend(emptied.into_iter().map(|packed| packed.slice));

        // The sort is stable, so slices that are equally full stay in the order of their names.
        packed.sort_by_key(|packed| std::cmp::Reverse(packed.endpoints.len()));
        for packed in packed.iter_mut().filter(|packed| packed.dirty) {
            let room = max - packed.endpoints.len();
            packed.endpoints.extend(take(&mut desired, room));
        }
        while !desired.is_empty() {
            let has_room =
                |packed: &&mut Packed| !packed.dirty && packed.endpoints.len() + desired.len() <= max;
            // The first one is the fullest with enough room.
            if let Some(fitting) = packed.iter_mut().find(has_room) {
                fitting.endpoints.extend(take(&mut desired, max));
                fitting.dirty = true;
            } else {
                let endpoints = take(&mut desired, max).collect();
                draft.create.push(self.content(family, ports, endpoints));
            }
        }
        draft.packed.extend(packed);
    }

    /// Moves the endpoints that `slice` already has from `desired` into it, in their new version.
    fn keep_in_place<'a>(&self, slice: &'a EndpointSlice, desired: &mut Desired) -> Packed<'a> {
        let mut endpoints = Vec::new();
        let mut dirty = slice.content.labels != self.labels;
        for old in &slice.content.endpoints {
            // Endpoints beyond the maximum, which may have been lowered since, must move.
            let fits = endpoints.len() < self.options.max_endpoints_per_slice.get();
            match fits.then(|| desired.remove(&Key::of(old))).flatten() {
                Some(new) => {
                    dirty |= self.differs(old, &new);
                    endpoints.push(new);
                }
                None => dirty = true,
            }
        }
        Packed { slice, endpoints, dirty }
    }

    /// Whether two endpoints with the same [`Key`] differ so that the slice must be written.
    fn differs(&self, old: &ListedEndpoint, new: &ListedEndpoint) -> bool {
        let same_conditions = if self.options.terminating_conditions {
            old.conditions == new.conditions
        } else {
            // Turning the option off alone must not rewrite every slice of the cluster.
            old.conditions.ready == new.conditions.ready
        };
        !same_conditions || (&old.node, &old.zone, &old.target) != (&new.node, &new.zone, &new.target)
    }

    fn content(
        &self,
        family: Family,
        ports: &[EndpointPort],
        endpoints: Vec<ListedEndpoint>,
    ) -> SliceContent {
        let owner = Some(self.service.uid.clone());
        SliceContent { family, ports: ports.to_vec(), endpoints, labels: self.labels.clone(), owner }
    }

    fn finish(&mut self, mut draft: Draft) {
        for Packed { slice, endpoints, dirty } in draft.packed {
            if dirty {
                let content = self.content(slice.content.family, &slice.content.ports, endpoints);
                self.plan.update.push(EndpointSlice { content, ..slice.clone() });
            } else {
                self.plan.unchanged.push(slice.clone());
            }
        }
        for content in draft.create {
            if let Some(same) = draft.doomed.iter().position(|slice| slice.content == content) {
                self.plan.unchanged.push(draft.doomed.remove(same).clone());
            } else if !draft.doomed.is_empty() {
                self.plan.update.push(EndpointSlice { content, ..draft.doomed.remove(0).clone() });
            } else if !self.service.deleting {
                // A Service that is being deleted gets no new slices: the garbage collector may have run already.
                self.plan.create.push(content);
            }
        }
        self.plan.delete.extend(draft.doomed.into_iter().cloned());
    }
}
