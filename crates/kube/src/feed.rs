//! Services and `EndpointSlice`s → the registry.
//!
//! A service is in the registry while its Service object exists. Slices that come first are kept until it does.
//! Whoever can write a slice could point us anywhere. So an endpoint is kept back unless the Service selects pods and
//! the endpoint is a pod of its namespace, at its own address, or somebody who may say so opted in; the registry's own policy
//! must allow endpoints without a pod.

mod suspects;
mod trust;
mod witness;

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rouse_core::endpoint::{Endpoint, PodUid, ServiceId, Slice, SliceEndpoint};
use rouse_core::registry::Registry;
use rouse_core::service::Spec;
use rouse_core::snapshot::{PortView, Spread};
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::objects::EndpointSlice;
use crate::objects::routing::{Unroutable, routable};
use crate::service::{ServiceFacts, ServiceKind};
use suspects::{Cause, Refusal, Suspects};
use trust::Trust;
pub(crate) use trust::{Allowed, Manual};
pub(crate) use witness::Witness;

/// The slices of one service by name.
type Slices = BTreeMap<String, Slice>;

/// A slice, reduced while it is read: a list of ten thousand must not be in memory whole.
#[derive(Debug, Deserialize)]
#[serde(from = "EndpointSlice")]
pub(crate) struct SliceFacts {
    /// `namespace/name`.
    key: Box<str>,
    name: String,
    /// Whose it is, if it says.
    pub(crate) home: Option<ServiceId>,
    slice: Slice,
    /// What cannot be routed to.
    pub(crate) faults: Vec<Unroutable>,
}

impl From<EndpointSlice> for SliceFacts {
    fn from(written: EndpointSlice) -> Self {
        let mut faults = Vec::new();
        let slice = routable(&written, &mut |fault| faults.push(fault));
        let namespace = written.metadata.namespace();
        let home = written.service_name().and_then(|name| ServiceId::new(namespace, name).ok());
        let key = format!("{namespace}/{}", written.metadata.name).into();
        Self { key, home, slice, faults, name: written.metadata.name }
    }
}

impl SliceFacts {
    /// Whose slice it is, for people.
    pub(crate) fn whose(&self) -> String {
        self.home.as_ref().map_or_else(|| self.key.to_string(), ToString::to_string)
    }
}

/// What slices and pods should agree on after a while.
#[derive(Debug, Default)]
struct Doubts {
    /// Rung when there is a new one.
    bell: Arc<Notify>,
    /// Pods have gone.
    departed: bool,
    /// All slices were asked for.
    asked: bool,
    /// Pods that slices name and that we have asked for.
    asked_for: HashSet<PodUid>,
}

/// What is known of Services and slices.
pub(crate) struct Feed {
    registry: Arc<Registry>,
    witness: Witness,
    allowed: Allowed,
    services: HashMap<ServiceId, Arc<ServiceFacts>>,
    spreads: HashMap<ServiceId, Spread>,
    /// `namespace/name` of each slice, and whose it is.
    homes: HashMap<Box<str>, ServiceId>,
    /// Slices as written, of services that the registry does not have, or with endpoints that are no pods we know of.
    kept: HashMap<ServiceId, Slices>,
    /// Services whose kept slices name endpoints that get no traffic.
    suspects: Suspects,
    /// Services that went while slices of theirs were left, which nobody has in hand any more.
    orphaned: HashSet<ServiceId>,
    /// Rung when all slices are needed again.
    lost: Arc<Notify>,
    doubts: Doubts,
    stale: bool,
    /// A service or a port went since somebody last asked. If it came back, it is another one of the same name.
    remade: bool,
}

impl Feed {
    pub(crate) fn new(
        registry: Arc<Registry>,
        witness: Witness,
        allowed: Allowed,
        lost: Arc<Notify>,
    ) -> Self {
        Self {
            registry,
            witness,
            allowed,
            services: HashMap::new(),
            spreads: HashMap::new(),
            homes: HashMap::new(),
            kept: HashMap::new(),
            suspects: Suspects::default(),
            orphaned: HashSet::new(),
            lost,
            doubts: Doubts::default(),
            stale: false,
            remade: false,
        }
    }

    pub(crate) fn service(&self, id: &ServiceId) -> Option<Arc<ServiceFacts>> {
        self.services.get(id).map(Arc::clone)
    }

    /// Whether the `ClusterIP` of this Service must not be dialled: kube-proxy would send requests from there to endpoints
    /// that get no traffic from us.
    pub(crate) fn shuns_cluster_ip(&self, id: &ServiceId, now: Instant) -> bool {
        self.trust(id) != Trust::Anybody && self.suspects.has(id, now)
    }

    /// When [`Feed::shuns_cluster_ip`] answers something else by itself.
    pub(crate) fn next_verdict(&mut self, now: Instant) -> Option<Instant> {
        self.suspects.next(now)
    }

    /// Rung when [`Feed::shuns_cluster_ip`] or [`Feed::next_verdict`] may answer something else.
    pub(crate) fn verdicts(&self) -> Arc<Notify> {
        self.suspects.bell()
    }

    /// Whether a service or a port went since this was last asked.
    pub(crate) fn take_remade(&mut self) -> bool {
        std::mem::take(&mut self.remade)
    }

    /// A slice is new or has changed.
    pub(crate) fn put_slice(&mut self, written: SliceFacts) {
        let SliceFacts { key, name, home, slice, .. } = written;
        let Some(id) = home else { return self.drop_slice(&key, &name) };
        if self.homes.get(&key).is_some_and(|before| *before != id) {
            self.drop_slice(&key, &name);
        }
        self.homes.insert(key, id.clone());
        // Pods that were seen a moment ago count before the old slice goes: it would seem to have been forged.
        self.review(&id, Cause::Facts);
        if !self.declared(&id) {
            self.kept.entry(id).or_default().insert(name, slice);
            return;
        }
        let given = self.given(&id, &name, slice);
        self.registry.service(&id).put_slice(&name, given);
        self.review(&id, Cause::Slice);
    }

    /// A slice is gone.
    pub(crate) fn remove_slice(&mut self, written: &SliceFacts) {
        self.drop_slice(&written.key, &written.name);
    }

    fn drop_slice(&mut self, key: &str, name: &str) {
        let Some(id) = self.homes.remove(key) else { return };
        self.review(&id, Cause::Facts);
        self.forget(&id, name);
        if self.orphaned.contains(&id) && !self.homes.values().any(|home| *home == id) {
            self.orphaned.remove(&id);
        }
        if self.declared(&id) {
            self.registry.service(&id).drop_slice(name);
        }
        self.review(&id, Cause::Slice);
    }

    fn forget(&mut self, id: &ServiceId, name: &str) {
        if let Some(kept) = self.kept.get_mut(id) {
            kept.remove(name);
            if kept.is_empty() {
                self.kept.remove(id);
            }
        }
    }

    /// These are all slices there are. Each service changes once, from what it had to what it has.
    pub(crate) fn replace_slices(&mut self, all: Vec<SliceFacts>) {
        let missed = !std::mem::take(&mut self.doubts.asked);
        self.witness.slices_listed(missed);
        let mut by_service: HashMap<ServiceId, Slices> = HashMap::new();
        self.homes.clear();
        self.kept.clear();
        self.orphaned.clear();
        for SliceFacts { key, name, home, slice, .. } in all {
            let Some(id) = home else { continue };
            self.homes.insert(key, id.clone());
            by_service.entry(id).or_default().insert(name, slice);
        }
        let known: Vec<ServiceId> = self.services.keys().filter(|id| self.declared(id)).cloned().collect();
        for id in known {
            let slices = by_service.remove(&id).unwrap_or_default();
            self.give(&id, slices);
        }
        self.kept.extend(by_service);
        let named: HashSet<ServiceId> = self.kept.keys().chain(self.suspects.services()).cloned().collect();
        for id in named {
            self.review(&id, Cause::List);
        }
    }

    /// A Service is new or has changed. Answers whether anything that routes see is new.
    pub(crate) fn put_service(&mut self, facts: ServiceFacts) -> bool {
        let id = facts.id.clone();
        let before = self.services.get(&id).map(Arc::clone);
        if before.as_deref() == Some(&facts) {
            return false;
        }
        let was_declared = self.declared(&id);
        let trusted = self.trust(&id);
        self.remade |= before.is_some_and(|before| before.ports != facts.ports);
        self.services.insert(id.clone(), Arc::new(facts));
        match (was_declared, self.declared(&id)) {
            (true, false) => self.undeclare(&id),
            (_, false) => {}
            (was, true) => {
                self.declare(&id);
                if was {
                    match self.trust(&id).cmp(&trusted) {
                        Ordering::Greater => self.give_kept(&id),
                        // Most were given whole, so nobody has them in hand.
                        Ordering::Less => self.ask(),
                        Ordering::Equal => {}
                    }
                } else {
                    let slices = self.kept.remove(&id).unwrap_or_default();
                    self.give(&id, slices);
                    self.review(&id, Cause::Slice);
                    if self.orphaned.remove(&id) {
                        self.ask();
                    }
                }
            }
        }
        true
    }

    /// A Service is gone: whoever waits for it is told.
    pub(crate) fn remove_service(&mut self, id: &ServiceId) {
        let declared = self.declared(id);
        self.services.remove(id);
        if declared {
            self.undeclare(id);
        }
    }

    /// These are all Services there are.
    pub(crate) fn replace_services(&mut self, all: Vec<ServiceFacts>) {
        let names: HashSet<&ServiceId> = all.iter().map(|facts| &facts.id).collect();
        let gone: Vec<ServiceId> = self.services.keys().filter(|id| !names.contains(id)).cloned().collect();
        for id in gone {
            self.remove_service(&id);
        }
        for facts in all {
            self.put_service(facts);
        }
    }

    /// How requests are spread, as routes say.
    pub(crate) fn set_spreads(&mut self, spreads: HashMap<ServiceId, Spread>) {
        let before = std::mem::replace(&mut self.spreads, spreads);
        let all: HashSet<&ServiceId> = before.keys().chain(self.spreads.keys()).collect();
        let changed = all.into_iter().filter(|id| before.get(*id) != self.spreads.get(*id));
        let changed: Vec<ServiceId> = changed.cloned().collect();
        for id in changed {
            if self.declared(&id) {
                self.declare(&id);
            }
        }
    }

    /// The slices are out of reach, or are back.
    pub(crate) fn set_stale(&mut self, stale: bool) {
        if std::mem::replace(&mut self.stale, stale) == stale {
            return;
        }
        for id in self.services.keys().filter(|id| self.declared(id)) {
            self.registry.service(id).set_stale(stale);
        }
    }

    /// Whether the registry has it.
    fn declared(&self, id: &ServiceId) -> bool {
        self.services.get(id).is_some_and(|facts| facts.kind != ServiceKind::ExternalName)
    }

    fn declare(&self, id: &ServiceId) {
        let Some(facts) = self.services.get(id) else { return };
        let ports = facts.ports.iter().map(|port| port.name.clone()).collect();
        let spread = self.spreads.get(id).copied().unwrap_or_default();
        let service = self.registry.declare(id, &Spec { ports, spread });
        if self.stale {
            service.set_stale(true);
        }
    }

    fn undeclare(&mut self, id: &ServiceId) {
        self.registry.remove(id);
        self.remade = true;
        self.kept.remove(id);
        self.review(id, Cause::Slice);
        if self.homes.values().any(|home| home == id) {
            self.orphaned.insert(id.clone());
        }
    }

    /// All slices of a declared service.
    fn give(&mut self, id: &ServiceId, slices: Slices) {
        let given: Vec<(String, Slice)> = slices
            .into_iter()
            .map(|(name, slice)| {
                let given = self.given(id, &name, slice);
                (name, given)
            })
            .collect();
        self.registry.service(id).replace_slices(given);
    }

    /// Those slices that were not given whole, now that more of them may be.
    fn give_kept(&mut self, id: &ServiceId) {
        for (name, slice) in self.kept.remove(id).unwrap_or_default() {
            let given = self.given(id, &name, slice);
            self.registry.service(id).put_slice(&name, given);
        }
        self.review(id, Cause::Facts);
    }

    /// A pod is new or has changed. Answers whether slices had waited for it.
    pub(crate) fn pod_changed(&mut self, pod: &PodUid) -> bool {
        let inherited = self.witness.take_inherited(pod);
        if !inherited.is_empty() {
            self.evict(|ip| inherited.contains(&ip));
        }
        let is_it =
            |endpoint: &SliceEndpoint| endpoint.pod.as_ref().is_some_and(|written| written.uid == *pod);
        let waits = |slices: &Slices| slices.values().any(|slice| slice.endpoints.iter().any(is_it));
        self.give_waiting(waits)
    }

    /// A pod is gone, or not where it was. Its slice should say so, too.
    pub(crate) fn pod_left(&mut self) {
        self.doubts.departed = true;
        self.doubts.bell.notify_one();
    }

    /// Takes endpoints out whose address is now that of another pod. Their slices will say so later.
    fn evict(&mut self, at: impl Fn(IpAddr) -> bool) {
        if self.witness.is_lost() {
            return;
        }
        let stranger = |endpoint: &SliceEndpoint| {
            let pod = endpoint.pod.as_ref().filter(|_| at(endpoint.ip));
            pod.is_some_and(|pod| self.witness.is_taken(&pod.uid, endpoint.ip))
        };
        let seen = |endpoint: &Endpoint| {
            let Some(pod) = &endpoint.pod else { return false };
            let mut ips = endpoint.addresses.iter().map(SocketAddr::ip);
            ips.any(|ip| at(ip) && self.witness.is_taken(&pod.uid, ip))
        };
        let mut evicted = false;
        for id in self.services.keys().filter(|id| self.declared(id) && self.trust(id) == Trust::Pods) {
            let Some(service) = self.registry.get(id) else { continue };
            let snapshot = Arc::clone(&service.snapshot());
            if snapshot.ports.iter().flat_map(PortView::endpoints).any(|endpoint| seen(endpoint)) {
                service.retain_endpoints(|endpoint| !stranger(endpoint));
                evicted = true;
            }
        }
        // These slices are not at hand: should the address come back, they are needed.
        if evicted {
            self.ask();
        }
    }

    /// A list of pods begins.
    pub(crate) fn pods_listing(&mut self) {
        self.witness.pods_listing();
    }

    /// All pods were listed.
    pub(crate) fn pods_seen(&mut self) {
        self.witness.pods_listed();
        self.evict(|_| true);
        self.pod_left();
        self.give_waiting(|_| true);
    }

    /// Whether pods cannot be followed: we may not, or not for long.
    pub(crate) fn set_pods_lost(&mut self, lost: bool) {
        let before = self.witness.is_clear();
        self.witness.set_lost(lost);
        if self.witness.is_clear() != before {
            self.give_waiting(|_| true);
        }
    }

    /// Rung when there may be something for [`Feed::settle_doubts`], a while later.
    pub(crate) fn doubts(&self) -> Arc<Notify> {
        Arc::clone(&self.doubts.bell)
    }

    /// Asks for all pods if endpoints still wait for theirs, and for all slices if endpoints have lost theirs. Answers
    /// whether it did: not too often, since whoever writes such a slice could have us ask for ever.
    pub(crate) fn settle_doubts(&mut self) -> bool {
        if !self.witness.is_clear() {
            return false;
        }
        let departed = std::mem::take(&mut self.doubts.departed) && self.has_strangers();
        if departed {
            self.ask();
        }
        let missed: HashSet<PodUid> =
            self.kept.iter().flat_map(|(id, slices)| self.missed(id, slices)).collect();
        let news = !missed.is_subset(&self.doubts.asked_for);
        if news {
            self.witness.ask_again();
        }
        self.doubts.asked_for = missed;
        departed || news
    }

    /// Pods that slices name and that we do not know.
    fn missed<'a>(&'a self, id: &'a ServiceId, slices: &'a Slices) -> impl Iterator<Item = PodUid> + 'a {
        let waits = self.declared(id) && self.trust(id) == Trust::Pods;
        let endpoints = slices.values().filter(move |_| waits).flat_map(|slice| &slice.endpoints);
        endpoints
            .filter(|endpoint| !self.judge(id, endpoint).1)
            .filter_map(|endpoint| endpoint.pod.as_ref().map(|pod| pod.uid.clone()))
    }

    /// Whether the registry has endpoints that are no pods any more.
    fn has_strangers(&self) -> bool {
        self.services.keys().filter(|id| self.declared(id) && self.trust(id) == Trust::Pods).any(|id| {
            let Some(service) = self.registry.get(id) else { return false };
            let snapshot = service.snapshot();
            let mut endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
            endpoints.any(|endpoint| {
                let Some(pod) = &endpoint.pod else { return true };
                let mut ips = endpoint.addresses.iter().map(SocketAddr::ip);
                !ips.all(|ip| self.witness.knows(id.namespace(), &pod.uid, ip))
            })
        })
    }

    /// Asks for all slices: we have let go of some that we need.
    fn ask(&mut self) {
        self.doubts.asked = true;
        self.lost.notify_one();
    }

    fn give_waiting(&mut self, waits: impl Fn(&Slices) -> bool) -> bool {
        let waiting = self.kept.iter().filter(|(id, slices)| self.declared(id) && waits(slices));
        let waiting: Vec<ServiceId> = waiting.map(|(id, _)| id.clone()).collect();
        for id in &waiting {
            self.give_kept(id);
        }
        !waiting.is_empty()
    }

    fn trust(&self, id: &ServiceId) -> Trust {
        match self.services.get(id) {
            Some(facts) if self.allowed.by_hand(facts) => Trust::Anybody,
            Some(facts) if facts.has_selector() => Trust::Pods,
            _ => Trust::Nobody,
        }
    }

    /// Whether an endpoint of this service gets traffic, and whether that will not change by what pods there are.
    fn judge(&self, id: &ServiceId, endpoint: &SliceEndpoint) -> (bool, bool) {
        match (self.trust(id), &endpoint.pod) {
            (Trust::Anybody, _) => (true, true),
            (Trust::Pods, Some(pod)) => {
                let known = self.witness.knows(id.namespace(), &pod.uid, endpoint.ip);
                (known || self.witness.believes(&pod.uid, endpoint.ip), known)
            }
            (Trust::Pods, None) | (Trust::Nobody, _) => (false, false),
        }
    }

    /// Why an endpoint of this service gets no traffic, if it gets none.
    fn refusal(&self, id: &ServiceId, endpoint: &SliceEndpoint, ports: &[u16]) -> Option<Refusal> {
        if self.trust(id) == Trust::Anybody {
            return None;
        }
        if !self.allowed.is_elsewhere(endpoint.ip, ports) {
            return Some(Refusal::Foreign);
        }
        if self.judge(id, endpoint).0 {
            return None;
        }
        let pod = endpoint.pod.as_ref().filter(|_| self.trust(id) == Trust::Pods);
        let late = pod.is_some_and(|pod| self.witness.may_come(id.namespace(), pod, endpoint.ip));
        Some(if late { Refusal::Unseen } else { Refusal::Foreign })
    }

    /// How the worst endpoint of this service is refused.
    fn worst(&self, id: &ServiceId) -> Option<Refusal> {
        let slices = self.kept.get(id).filter(|_| self.declared(id))?;
        let refusals = slices.values().flat_map(|slice| {
            let ports = numbers(slice);
            slice.endpoints.iter().filter_map(move |endpoint| self.refusal(id, endpoint, &ports))
        });
        refusals.max()
    }

    /// Looks again at which endpoints of this service are refused.
    fn review(&mut self, id: &ServiceId, cause: Cause) {
        let worst = self.worst(id);
        self.suspects.review(id, worst, cause, Instant::now());
    }

    /// What the registry may have of `slice`. If that may change, or if some of it is refused, the whole is kept.
    fn given(&mut self, id: &ServiceId, name: &str, mut slice: Slice) -> Slice {
        if slice.endpoints.iter().all(|endpoint| self.judge(id, endpoint).1) {
            self.forget(id, name);
        } else {
            self.kept.entry(id.clone()).or_default().insert(name.to_owned(), slice.clone());
            slice.endpoints.retain(|endpoint| self.judge(id, endpoint).0);
            self.doubts.bell.notify_one();
        }
        let ports = numbers(&slice);
        slice.endpoints.retain(|endpoint| self.allowed.is_elsewhere(endpoint.ip, &ports));
        slice
    }
}

fn numbers(slice: &Slice) -> Vec<u16> {
    slice.ports.iter().map(|port| port.number).collect()
}

#[cfg(test)]
mod tests;
