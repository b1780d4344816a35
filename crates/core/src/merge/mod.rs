//! Merges `EndpointSlices`, probe results and pushes into one set of endpoints per service.
//!
//! Slices are authoritative: they add, change and remove endpoints. A push reports on its own pod, for the time of a lease.
//! A probe promotes a pod that slices call not ready yet. `pod.rs` has the rules for one pod; this file keeps the set of
//! pods, and decides which are known, which are replaced and which are removed.

mod address_assignment;
mod pod;
mod push;
mod tombstone;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use crate::endpoint::{PodRef, PodUid, Slice, SliceEndpoint, SlicePort, State};
use crate::probe::ProbePlan;
use crate::snapshot::PortView;
use crate::time::Moment;
pub use address_assignment::AddressChanges;
use address_assignment::{PortLayout, lay_out};
use pod::{Key, Pod, Pushed};
pub use push::{BadBoot, BootId, Push, PushEvent, PushOrder, PushOutcome, PushRefused};
use tombstone::Tombstones;

/// The slab index of an endpoint without a pod, if the operator has not enabled such endpoints.
const NO_POD: usize = usize::MAX;

/// The merge settings of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergePolicy {
    /// How long a push is valid unless it is renewed.
    pub lease: Duration,
    /// Whether endpoints without a pod get requests. The author of a slice can give them any address.
    pub manual_endpoints: bool,
    /// The most pods that are known from pushes only, and listed in no slice.
    pub max_unlisted: usize,
}

impl Default for MergePolicy {
    fn default() -> Self {
        Self { lease: Duration::from_mins(1), manual_endpoints: false, max_unlisted: 1000 }
    }
}

/// Everything that the three sources report about the pods of one service.
///
/// Methods that take a report return whether the endpoints may have changed; [`EndpointMerge::view`] then returns the new
/// endpoints. The time is passed in and must not go back.
#[derive(Debug, Default)]
pub struct EndpointMerge {
    policy: MergePolicy,
    slices: Vec<Listing>,
    pods: Slab<Pod>,
    places: HashMap<Key, usize>,
    tombstones: Tombstones,
    ports: Vec<PortLayout>,
    /// What the last layout changed.
    changes: AddressChanges,
    /// Pods whose entries changed since the last [`EndpointMerge::settle`].
    dirty: Vec<usize>,
    /// A pod was added, removed or moved to another address: the layout must be computed again.
    moved: bool,
    pods_ever: u64,
}

/// A slice as last written, with the slab index of each endpoint's pod.
#[derive(Debug)]
struct Listing {
    name: Arc<str>,
    slice: Slice,
    pods: Vec<usize>,
}

impl EndpointMerge {
    /// A merge without any reports.
    pub fn new(policy: MergePolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Adds or replaces a slice.
    pub fn put_slice(&mut self, name: &str, slice: Slice, now: Moment) -> bool {
        self.write(name, slice, now);
        self.settle(now)
    }

    /// Removes a slice.
    pub fn drop_slice(&mut self, name: &str, now: Moment) -> bool {
        self.erase(|listing| &*listing.name == name);
        self.settle(now)
    }

    /// Replaces all slices, as after a relist. A pod that is in none of them is removed.
    pub fn replace_slices<N: AsRef<str>>(
        &mut self,
        slices: impl IntoIterator<Item = (N, Slice)>,
        now: Moment,
    ) -> bool {
        let slices: Vec<(N, Slice)> = slices.into_iter().collect();
        self.erase(|listing| !slices.iter().any(|(name, _)| name.as_ref() == &*listing.name));
        for (name, slice) in slices {
            self.write(name.as_ref(), slice, now);
        }
        // Settle once, after all slices: a pod that only moved to another slice must not be removed in between.
        self.settle(now)
    }

    /// Removes endpoints from the stored slices, as if the slices had been written without them.
    pub fn retain_endpoints(&mut self, keep: impl Fn(&SliceEndpoint) -> bool, now: Moment) -> bool {
        let affected = self.slices.iter().filter(|listing| !listing.slice.endpoints.iter().all(&keep));
        let affected: Vec<(Arc<str>, Slice)> = affected
            .map(|listing| {
                let mut slice = listing.slice.clone();
                slice.endpoints.retain(&keep);
                (Arc::clone(&listing.name), slice)
            })
            .collect();
        for (name, slice) in affected {
            self.write(&name, slice, now);
        }
        self.settle(now)
    }

    /// Applies a push of a verified sender. On `Accepted` the caller must also call [`EndpointMerge::replace_previous_pods`] of
    /// the other services at these addresses, if the pod owns them.
    pub fn push(&mut self, push: Push, now: Moment) -> Result<(PushOutcome, bool), PushRefused> {
        let key = Key::Pod(push.pod.uid.clone());
        let place = if let Some(&place) = self.places.get(&key) {
            place
        } else {
            if let Some(tombstone) = self.tombstones.get(&push.pod.uid, now) {
                return Ok((PushOutcome::Stale(tombstone.push.as_ref().map(|push| push.order)), false));
            }
            let unlisted = self.pods.iter().filter(|(_, pod)| pod.listed.is_none()).count();
            if unlisted >= self.policy.max_unlisted {
                return Err(PushRefused::TooManyPods { bound: self.policy.max_unlisted });
            }
            self.admit(key, Some(push.pod.clone()), now)
        };
        let Some(pod) = self.pods.get_mut(place) else { return Ok((PushOutcome::Stale(None), false)) };
        if pod.replaced {
            return Ok((PushOutcome::Stale(pod.push.as_ref().map(|push| push.order)), false));
        }
        let arrives = push.event != PushEvent::Draining && !pod.terminating() && push.owns_addresses;
        let (uid, seen, addresses) = (push.pod.uid.clone(), pod.seen, push.addresses());
        let outcome = pod.push(push, now + self.policy.lease);
        // The push sets the addresses of an unlisted pod, the slices those of a listed one.
        let moves = outcome == PushOutcome::Accepted && pod.listed.is_none() && pod.visible();
        self.moved |= moves;
        let mut changed = self.judge(place) || moves;
        if outcome == PushOutcome::Accepted && arrives {
            changed |= self.replace_previous_pods(&addresses, &uid, seen, now);
        }
        Ok((outcome, changed))
    }

    /// The pod `by`, first seen at `seen`, is verified to be at `addresses`: replaces for good every pod that was known there
    /// before it (rule 1).
    pub fn replace_previous_pods(
        &mut self,
        addresses: &[SocketAddr],
        by: &PodUid,
        seen: Moment,
        now: Moment,
    ) -> bool {
        let mut victims: Vec<usize> = Vec::new();
        for (place, pod) in self.claimants(addresses) {
            let older = pod.id.as_ref().is_some_and(|pod| pod.uid != *by) && pod.seen <= seen;
            if older && !pod.replaced && !victims.contains(&place) {
                victims.push(place);
            }
        }
        for &place in &victims {
            self.moved = true;
            if let Some(pod) = self.pods.get_mut(place) {
                pod.replaced = true;
                pod.push = pod.push.take().map(|push| Pushed { until: None, ..push });
                pod.judge();
                if pod.listed.is_none() {
                    self.remove(place, now);
                }
            }
        }
        !victims.is_empty()
    }

    /// Withdraws the push of a pod, as if its lease had ended.
    pub fn withdraw_push(&mut self, uid: &PodUid) -> bool {
        let Some(&place) = self.places.get(&Key::Pod(uid.clone())) else { return false };
        let Some(pod) = self.pods.get_mut(place) else { return false };
        if pod.listed.is_none() {
            let visible = pod.visible();
            self.forget(place);
            return visible;
        }
        if let Some(push) = &mut pod.push {
            push.until = None;
        }
        self.judge(place)
    }

    /// All checks of the pod's plan passed (rule 8). The plan proves that probes can decide about this pod. The caller keeps
    /// probing while the endpoint's source is `probe`.
    pub fn probe_passed(&mut self, uid: &PodUid, _plan: &ProbePlan) -> bool {
        let Some(&place) = self.places.get(&Key::Pod(uid.clone())) else { return false };
        let Some(pod) = self.pods.get_mut(place) else { return false };
        let starting = pod.verdict.is_some_and(|verdict| verdict.state == State::Starting);
        if pod.listed.is_none() || !starting || pod.word() == Some(PushEvent::NotReady) {
            return false;
        }
        pod.probed = true;
        self.judge(place)
    }

    /// A check of the pod's plan failed: ends the promotion.
    pub fn probe_failed(&mut self, uid: &PodUid) -> bool {
        let Some(&place) = self.places.get(&Key::Pod(uid.clone())) else { return false };
        if let Some(pod) = self.pods.get_mut(place) {
            pod.probed = false;
        }
        self.judge(place)
    }

    /// Expires leases and tombstones.
    pub fn expire(&mut self, now: Moment) -> bool {
        let lapsed: Vec<usize> = self
            .pods
            .iter()
            .filter(|(_, pod)| {
                pod.push.as_ref().is_some_and(|push| push.until.is_some_and(|until| until <= now))
            })
            .map(|(place, _)| place)
            .collect();
        let mut changed = false;
        for place in lapsed {
            let Some(pod) = self.pods.get_mut(place) else { continue };
            if pod.listed.is_none() {
                // No slice lists it: the pod disappears with its lease (rule 3).
                changed |= pod.visible();
                self.forget(place);
            } else if let Some(push) = &mut pod.push {
                push.until = None;
                changed |= self.judge(place);
            }
        }
        self.tombstones.expire(now);
        changed
    }

    /// When [`EndpointMerge::expire`] has something to do next.
    pub fn next_expiry(&self) -> Option<Moment> {
        let leases = self.pods.iter().filter_map(|(_, pod)| pod.push.as_ref()?.until);
        leases.chain(self.tombstones.next_expiry()).min()
    }

    /// When a pod that a push has just verified was first seen; `None` if it is leaving or replaced. The pod owns its
    /// addresses, in every service, against pods that were seen earlier.
    pub fn arrived(&self, uid: &PodUid) -> Option<Moment> {
        let pod = self.pods.get(*self.places.get(&Key::Pod(uid.clone()))?)?;
        let comes = !pod.terminating() && !pod.replaced && pod.word() != Some(PushEvent::Draining);
        comes.then_some(pod.seen)
    }

    /// When any source first reported the pod, if it is known.
    pub fn first_seen(&self, uid: &PodUid) -> Option<Moment> {
        let place = self.places.get(&Key::Pod(uid.clone()))?;
        self.pods.get(*place).map(|pod| pod.seen)
    }

    /// The addresses that came and left with the last [`EndpointMerge::view`]. Call this after each view.
    pub fn take_address_changes(&mut self) -> AddressChanges {
        std::mem::take(&mut self.changes)
    }

    /// Every address that a pod claims, with duplicates.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.ports.iter().flat_map(|port| port.claims().iter().map(|claim| claim.address))
    }

    /// The endpoints of every port, both in order of first appearance.
    pub fn view(&mut self) -> Vec<PortView> {
        if std::mem::take(&mut self.moved) {
            (self.ports, self.changes) = lay_out(&self.slices, &self.pods, std::mem::take(&mut self.ports));
        }
        for port in self.ports.iter_mut().filter(|port| port.contested()) {
            let before = std::mem::replace(port, PortLayout::new(port.name.clone()));
            for &claim in before.claims() {
                port.claim(claim);
            }
            port.assign(&self.pods, before, Vec::new());
        }
        let pods = &self.pods;
        self.ports.iter_mut().map(|port| port.view(pods)).collect()
    }

    /// Stores a slice. The caller must call `settle`.
    fn write(&mut self, name: &str, slice: Slice, now: Moment) {
        let at = self.slices.iter().position(|listing| &*listing.name == name);
        if let Some(listing) = at.and_then(|at| self.slices.get_mut(at))
            && same_claims(&listing.slice, &slice)
        {
            let entries = listing.slice.endpoints.iter_mut().zip(&slice.endpoints).zip(&listing.pods);
            for ((old, new), &place) in entries.filter(|((old, new), _)| old.conditions != new.conditions) {
                old.conditions = new.conditions;
                mark(&mut self.pods, &mut self.dirty, place);
            }
            return;
        }
        let pods: Vec<usize> = slice.endpoints.iter().map(|endpoint| self.enrol(endpoint, now)).collect();
        for &place in &pods {
            mark(&mut self.pods, &mut self.dirty, place);
        }
        self.moved = true;
        let listing = Listing { name: name.into(), slice, pods };
        match at.and_then(|at| self.slices.get_mut(at)) {
            Some(before) => {
                for &place in &std::mem::replace(before, listing).pods {
                    mark(&mut self.pods, &mut self.dirty, place);
                }
            }
            None => self.slices.push(listing),
        }
    }

    /// Removes the slices that match `which`. The caller must call `settle`.
    fn erase(&mut self, which: impl Fn(&Listing) -> bool) {
        for listing in self.slices.extract_if(.., |listing| which(listing)) {
            self.moved = true;
            for place in listing.pods {
                mark(&mut self.pods, &mut self.dirty, place);
            }
        }
    }

    /// Combines the slice entries of every dirty pod and computes its state. Reads each entry of the service once.
    fn settle(&mut self, now: Moment) -> bool {
        let mut changed = self.moved;
        for listing in &self.slices {
            for (endpoint, &place) in listing.slice.endpoints.iter().zip(&listing.pods) {
                if let Some(pod) = self.pods.get_mut(place).filter(|pod| pod.dirty) {
                    pod.gather(endpoint.conditions);
                }
            }
        }
        for place in std::mem::take(&mut self.dirty) {
            let Some(pod) = self.pods.get_mut(place) else { continue };
            pod.dirty = false;
            match pod.gathered.take() {
                Some(said) => {
                    let unlisted = pod.id.as_ref().filter(|_| pod.listed.is_none());
                    let tombstone = unlisted.and_then(|id| self.tombstones.get(&id.uid, now));
                    pod.list(said, tombstone.is_some_and(|tombstone| tombstone.terminated));
                    if let Some(tombstone) = tombstone {
                        pod.replaced = tombstone.replaced;
                        pod.push.clone_from(&tombstone.push);
                    }
                    changed |= self.judge(place);
                }
                // No slice lists it any more: removed, even if its lease still runs (rule 7).
                None => self.remove(place, now),
            }
        }
        changed
    }

    /// The slab index of the pod of a slice's endpoint. Adds the pod if it is new.
    fn enrol(&mut self, endpoint: &SliceEndpoint, now: Moment) -> usize {
        let key = match &endpoint.pod {
            Some(pod) => Key::Pod(pod.uid.clone()),
            None if self.policy.manual_endpoints => Key::Manual(endpoint.ip),
            None => return NO_POD,
        };
        match self.places.get(&key) {
            Some(&place) => place,
            None => self.admit(key, endpoint.pod.clone(), now),
        }
    }

    fn admit(&mut self, key: Key, pod: Option<PodRef>, now: Moment) -> usize {
        self.pods_ever += 1;
        let place = self.pods.insert(Pod::new(self.pods_ever, key.clone(), pod, now));
        self.places.insert(key, place);
        place
    }

    /// Removes a pod and adds its tombstone.
    fn remove(&mut self, place: usize, now: Moment) {
        let Some(pod) = self.forget(place) else { return };
        self.tombstones.add(pod, now + self.policy.lease);
    }

    fn forget(&mut self, place: usize) -> Option<Pod> {
        let pod = self.pods.try_remove(place)?;
        self.moved = true;
        self.places.remove(&pod.key);
        Some(pod)
    }

    fn judge(&mut self, place: usize) -> bool {
        let Some(pod) = self.pods.get_mut(place) else { return false };
        let before = pod.verdict;
        pod.judge();
        // A pod that appears or disappears changes the claims to addresses, not only a state.
        self.moved |= before.is_none() != pod.verdict.is_none();
        before != pod.verdict
    }

    /// The pods that claim one of `addresses`, with duplicates.
    fn claimants<'a>(&'a self, addresses: &'a [SocketAddr]) -> impl Iterator<Item = (usize, &'a Pod)> {
        let listed = self.slices.iter().flat_map(move |listing| {
            let ports = &listing.slice.ports;
            let entries = listing.slice.endpoints.iter().zip(&listing.pods);
            entries
                .filter(move |(endpoint, _)| at_any(endpoint.ip, ports, addresses))
                .map(|(_, &place)| place)
        });
        let pushed = self.pods.iter().filter_map(move |(place, pod)| {
            let push = pod.push.as_ref().filter(|_| pod.listed.is_none())?;
            push.ips.iter().any(|&ip| at_any(ip, &push.ports, addresses)).then_some(place)
        });
        listed.chain(pushed).filter_map(|place| Some((place, self.pods.get(place)?)))
    }
}

/// Whether two versions of a slice differ in conditions only.
fn same_claims(old: &Slice, new: &Slice) -> bool {
    let same = |(old, new): (&SliceEndpoint, &SliceEndpoint)| old.ip == new.ip && old.pod == new.pod;
    old.ports == new.ports
        && old.endpoints.len() == new.endpoints.len()
        && old.endpoints.iter().zip(&new.endpoints).all(same)
}

fn at_any(ip: IpAddr, ports: &[SlicePort], addresses: &[SocketAddr]) -> bool {
    addresses.iter().any(|at| at.ip() == ip && ports.iter().any(|port| port.number == at.port()))
}

fn mark(pods: &mut Slab<Pod>, dirty: &mut Vec<usize>, place: usize) {
    if let Some(pod) = pods.get_mut(place).filter(|pod| !pod.dirty) {
        pod.dirty = true;
        dirty.push(place);
    }
}
