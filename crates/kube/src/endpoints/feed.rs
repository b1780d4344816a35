//! Writes Services and `EndpointSlice`s into the registry.
//!
//! A service is in the registry while its Service object exists. Slices that arrive before their Service are kept.
//! A tenant who writes a slice could send requests to any address. So an endpoint gets no traffic unless the Service
//! selects pods and the endpoint is a pod of its namespace, at its own address, or the operator allows manual endpoints.
//! The registry's own policy must allow endpoints without a pod.

mod pod_changes;

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rouse_core::endpoint::{PodUid, ServiceId, Slice};
use rouse_core::registry::Registry;
use rouse_core::service::ServiceSpec;
use rouse_core::snapshot::ConcurrencyLimits;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::admission::{Admission, Slices};
use super::blocked_cluster_ips::{BlockedClusterIps, Cause};
use super::endpoint_policy::Trust;
use super::propagation::PropagationMeter;
use super::slice_facts::SliceFacts;
use crate::objects::service_summary::{ServiceKind, ServiceSummary};

/// Disagreements between slices and pods. Most end by themselves; if one lasts, slices or pods are listed again.
#[derive(Debug, Default)]
struct Disagreements {
    /// Notified when there is a new disagreement.
    changed: Arc<Notify>,
    /// Whether a pod has left since the last check.
    departed: bool,
    /// Whether a relist of all slices was requested.
    asked: bool,
    /// Unknown pods that slices name, for which all pods were listed again.
    asked_for: HashSet<PodUid>,
}

/// The known Services and slices, and what the registry has of them.
pub(super) struct RegistryFeed {
    registry: Arc<Registry>,
    admission: Admission,
    propagation: Arc<PropagationMeter>,
    services: HashMap<ServiceId, Arc<ServiceSummary>>,
    /// Those whose annotation selects their pods.
    annotated: HashSet<ServiceId>,
    spreads: HashMap<ServiceId, ConcurrencyLimits>,
    /// The Service of each slice, by the slice's `namespace/name`.
    homes: HashMap<Box<str>, ServiceId>,
    /// Whole slices that the registry may need later: those of services that the registry does not have, and those with
    /// endpoints that are not known pods.
    kept: HashMap<ServiceId, Slices>,
    /// Services whose kept slices name endpoints that get no traffic.
    blocked: BlockedClusterIps,
    /// Services that were deleted while slices of theirs were left. These slices are not kept any more.
    orphaned: HashSet<ServiceId>,
    /// Notified when all slices must be listed again.
    lost: Arc<Notify>,
    disagreements: Disagreements,
    stale: bool,
    /// Whether a service or a port was removed since the last [`RegistryFeed::take_remade`]. If it
    /// came back, it is a new one with the same name.
    remade: bool,
}

impl RegistryFeed {
    pub(super) fn new(
        registry: Arc<Registry>,
        admission: Admission,
        propagation: Arc<PropagationMeter>,
        lost: Arc<Notify>,
    ) -> Self {
        Self {
            registry,
            admission,
            propagation,
            services: HashMap::new(),
            annotated: HashSet::new(),
            spreads: HashMap::new(),
            homes: HashMap::new(),
            kept: HashMap::new(),
            blocked: BlockedClusterIps::default(),
            orphaned: HashSet::new(),
            lost,
            disagreements: Disagreements::default(),
            stale: false,
            remade: false,
        }
    }

    pub(super) fn service(&self, id: &ServiceId) -> Option<Arc<ServiceSummary>> {
        self.services.get(id).map(Arc::clone)
    }

    /// Whether the Service asks by annotation for endpoints without a pod, and the operator does not allow it.
    pub(super) fn ignores_manual_endpoints(&self, id: &ServiceId) -> bool {
        let facts = self.services.get(id);
        facts.is_some_and(|facts| facts.manual_endpoints && !self.admission.policy.allows_manual(facts))
    }

    /// Whether the `ClusterIP` of this Service must not be dialled: kube-proxy would send requests from there to endpoints
    /// that get no traffic from the gateway.
    pub(super) fn blocks_cluster_ip(&self, id: &ServiceId, now: Instant) -> bool {
        self.trust(id) != Trust::All && self.blocked.has(id, now)
    }

    /// When [`RegistryFeed::blocks_cluster_ip`] next changes by the passing of time.
    pub(super) fn next_block_change(&mut self, now: Instant) -> Option<Instant> {
        self.blocked.next(now)
    }

    /// Notified when [`RegistryFeed::blocks_cluster_ip`] or [`RegistryFeed::next_block_change`] may have changed.
    pub(super) fn block_changes(&self) -> Arc<Notify> {
        self.blocked.changed()
    }

    /// Whether a service or a port was removed since the last call.
    pub(super) fn take_remade(&mut self) -> bool {
        std::mem::take(&mut self.remade)
    }

    /// Adds or replaces a slice.
    pub(super) fn put_slice(&mut self, written: SliceFacts) {
        let SliceFacts { key, name, home, slice, .. } = written;
        let Some(id) = home else { return self.drop_slice(&key, &name) };
        if self.homes.get(&key).is_some_and(|before| *before != id) {
            self.drop_slice(&key, &name);
        }
        self.homes.insert(key, id.clone());
        // Review the old slice with the pods that are known now, before it is replaced: otherwise it would count as forged.
        self.review(&id, Cause::Facts);
        if !self.declared(&id) {
            self.kept.entry(id).or_default().insert(name, slice);
            return;
        }
        self.give_one(&id, &name, slice);
        self.review(&id, Cause::Slice);
    }

    /// Removes a slice.
    pub(super) fn remove_slice(&mut self, written: &SliceFacts) {
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

    /// Replaces all slices. Each service changes once, from its old endpoints to the new ones, so a relist never empties it.
    pub(super) fn replace_slices(&mut self, all: Vec<SliceFacts>) {
        let missed = !std::mem::take(&mut self.disagreements.asked);
        self.admission.ownership.slices_listed(missed);
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
        let named: HashSet<ServiceId> = self.kept.keys().chain(self.blocked.services()).cloned().collect();
        for id in named {
            self.review(&id, Cause::List);
        }
    }

    /// Adds or replaces a Service. Returns whether anything that routes use has changed.
    pub(super) fn put_service(&mut self, facts: ServiceSummary) -> bool {
        let id = facts.id.clone();
        let before = self.services.get(&id).map(Arc::clone);
        if before.as_deref() == Some(&facts) {
            return false;
        }
        let was_declared = self.declared(&id);
        let trusted = self.trust(&id);
        let selector = facts.selector_of_own_slices();
        if selector.is_some() {
            self.annotated.insert(id.clone());
        } else {
            self.annotated.remove(&id);
        }
        let reselects = before.as_ref().is_some_and(|before| before.selector_of_own_slices() != selector);
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
                        // Slices that the registry has whole are not kept here, so they must be listed again.
                        Ordering::Less => self.request_relist(),
                        Ordering::Equal if reselects => {
                            self.drop_unselected(&id, |_| true);
                            self.give_kept(&id);
                        }
                        Ordering::Equal => {}
                    }
                } else {
                    let slices = self.kept.remove(&id).unwrap_or_default();
                    self.give(&id, slices);
                    self.review(&id, Cause::Slice);
                    if self.orphaned.remove(&id) {
                        self.request_relist();
                    }
                }
            }
        }
        true
    }

    /// Removes a Service. Requests that wait for it fail.
    pub(super) fn remove_service(&mut self, id: &ServiceId) {
        let declared = self.declared(id);
        self.services.remove(id);
        self.annotated.remove(id);
        if declared {
            self.undeclare(id);
        }
    }

    /// Replaces all Services.
    pub(super) fn replace_services(&mut self, all: Vec<ServiceSummary>) {
        let names: HashSet<&ServiceId> = all.iter().map(|facts| &facts.id).collect();
        let gone: Vec<ServiceId> = self.services.keys().filter(|id| !names.contains(id)).cloned().collect();
        for id in gone {
            self.remove_service(&id);
        }
        for facts in all {
            self.put_service(facts);
        }
    }

    /// Sets how requests to each service are spread over its pods, as routes say.
    pub(super) fn set_spreads(&mut self, spreads: HashMap<ServiceId, ConcurrencyLimits>) {
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

    /// Sets whether all services are stale, because slices cannot be watched.
    pub(super) fn set_stale(&mut self, stale: bool) {
        if std::mem::replace(&mut self.stale, stale) == stale {
            return;
        }
        for id in self.services.keys().filter(|id| self.declared(id)) {
            self.registry.service(id).set_stale(stale);
        }
    }

    /// Whether the service is in the registry. `ExternalName` Services are not.
    fn declared(&self, id: &ServiceId) -> bool {
        self.services.get(id).is_some_and(|facts| facts.kind != ServiceKind::ExternalName)
    }

    fn declare(&self, id: &ServiceId) {
        let Some(facts) = self.services.get(id) else { return };
        let ports = facts.ports.iter().map(|port| port.name.clone()).collect();
        let concurrency = self.spreads.get(id).copied().unwrap_or_default();
        let service = self.registry.declare(id, &ServiceSpec { ports, concurrency });
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

    /// Gives the registry one slice of a declared service.
    fn give_one(&mut self, id: &ServiceId, name: &str, slice: Slice) {
        let given = self.given(id, name, slice);
        let news = self.propagation.news(&given);
        let service = self.registry.service(id);
        let before = Arc::clone(&service.snapshot());
        service.put_slice(name, given);
        self.propagation.published(news, &before);
    }

    /// Gives the registry all slices of a declared service.
    fn give(&mut self, id: &ServiceId, slices: Slices) {
        let given: Vec<(String, Slice)> = slices
            .into_iter()
            .map(|(name, slice)| {
                let given = self.given(id, &name, slice);
                (name, given)
            })
            .collect();
        let news = given.iter().flat_map(|(_, slice)| self.propagation.news(slice)).collect();
        let service = self.registry.service(id);
        let before = Arc::clone(&service.snapshot());
        service.replace_slices(given);
        self.propagation.published(news, &before);
    }

    /// Gives the registry the kept slices of a service again, since more of their endpoints may get traffic now.
    fn give_kept(&mut self, id: &ServiceId) {
        for (name, slice) in self.kept.remove(id).unwrap_or_default() {
            self.give_one(id, &name, slice);
        }
        self.review(id, Cause::Facts);
    }

    /// Requests a relist of all slices, since some that are needed are not kept.
    fn request_relist(&mut self) {
        self.disagreements.asked = true;
        self.lost.notify_one();
    }

    fn trust(&self, id: &ServiceId) -> Trust {
        self.admission.trust(self.facts(id))
    }

    fn facts(&self, id: &ServiceId) -> Option<&ServiceSummary> {
        self.services.get(id).map(|facts| &**facts)
    }

    /// Checks again whether the slices of this service name refused endpoints.
    fn review(&mut self, id: &ServiceId, cause: Cause) {
        let slices = self.kept.get(id).filter(|_| self.declared(id));
        let worst = self.facts(id).zip(slices);
        let worst = worst.and_then(|(facts, slices)| self.admission.worst_refusal(facts, slices));
        self.blocked.review(id, worst, cause, Instant::now());
    }

    /// The part of `slice` that the registry gets. Keeps the whole slice if that may change, or if an endpoint is refused.
    fn given(&mut self, id: &ServiceId, name: &str, mut slice: Slice) -> Slice {
        match self.admission.reduce(self.facts(id), &mut slice) {
            None => self.forget(id, name),
            Some(whole) => {
                self.kept.entry(id.clone()).or_default().insert(name.to_owned(), whole);
                self.disagreements.changed.notify_one();
            }
        }
        slice
    }
}

#[cfg(test)]
mod tests;
