//! Services and `EndpointSlice`s → the registry.
//!
//! A service is in the registry while its Service object exists. Slices that come first are kept until it does.
//! Endpoints without a pod are kept back unless somebody who may say so opted in, so the registry's own policy must
//! allow them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use rouse_core::endpoint::{ServiceId, Slice};
use rouse_core::registry::Registry;
use rouse_core::service::Spec;
use rouse_core::snapshot::Spread;
use serde::Deserialize;
use tokio::sync::Notify;

use crate::objects::EndpointSlice;
use crate::objects::routing::{Unroutable, routable};
use crate::service::{ServiceFacts, ServiceKind};

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
    home: Option<ServiceId>,
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

/// What is known of Services and slices.
pub(crate) struct Feed {
    registry: Arc<Registry>,
    /// Endpoints without a pod get traffic in every service.
    manual: bool,
    services: HashMap<ServiceId, Arc<ServiceFacts>>,
    spreads: HashMap<ServiceId, Spread>,
    /// `namespace/name` of each slice, and whose it is.
    homes: HashMap<Box<str>, ServiceId>,
    /// Slices as written, of services that the registry does not have, or that were not given whole.
    kept: HashMap<ServiceId, Slices>,
    /// Services that went while slices of theirs were left, which nobody has in hand any more.
    orphaned: HashSet<ServiceId>,
    /// Rung when all slices are needed again.
    lost: Arc<Notify>,
    stale: bool,
    /// A service or a port went since somebody last asked. If it came back, it is another one of the same name.
    remade: bool,
}

impl Feed {
    pub(crate) fn new(registry: Arc<Registry>, manual: bool, lost: Arc<Notify>) -> Self {
        Self {
            registry,
            manual,
            services: HashMap::new(),
            spreads: HashMap::new(),
            homes: HashMap::new(),
            kept: HashMap::new(),
            orphaned: HashSet::new(),
            lost,
            stale: false,
            remade: false,
        }
    }

    pub(crate) fn service(&self, id: &ServiceId) -> Option<Arc<ServiceFacts>> {
        self.services.get(id).map(Arc::clone)
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
        if !self.declared(&id) {
            self.kept.entry(id).or_default().insert(name, slice);
            return;
        }
        let given = self.given(&id, &name, slice);
        self.registry.service(&id).put_slice(&name, given);
    }

    /// A slice is gone.
    pub(crate) fn remove_slice(&mut self, written: &SliceFacts) {
        self.drop_slice(&written.key, &written.name);
    }

    fn drop_slice(&mut self, key: &str, name: &str) {
        let Some(id) = self.homes.remove(key) else { return };
        self.forget(&id, name);
        if self.declared(&id) {
            self.registry.service(&id).drop_slice(name);
        }
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
    }

    /// A Service is new or has changed. Answers whether anything that routes see is new.
    pub(crate) fn put_service(&mut self, facts: ServiceFacts) -> bool {
        let id = facts.id.clone();
        let before = self.services.get(&id).map(Arc::clone);
        if before.as_deref() == Some(&facts) {
            return false;
        }
        let was_declared = self.declared(&id);
        let opted = before.as_ref().is_some_and(|before| before.manual_endpoints != facts.manual_endpoints);
        self.remade |= before.is_some_and(|before| before.ports != facts.ports);
        self.services.insert(id.clone(), Arc::new(facts));
        match (was_declared, self.declared(&id)) {
            (true, false) => self.undeclare(&id),
            (_, false) => {}
            (was, true) => {
                self.declare(&id);
                if !was {
                    let slices = self.kept.remove(&id).unwrap_or_default();
                    self.give(&id, slices);
                    if self.orphaned.remove(&id) {
                        self.lost.notify_one();
                    }
                } else if opted {
                    self.give_anew(&id);
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

    /// Those slices that were not given whole, now that the rule has changed.
    fn give_anew(&mut self, id: &ServiceId) {
        if self.kept.contains_key(id) || self.allows_manual(id) {
            for (name, slice) in self.kept.remove(id).unwrap_or_default() {
                let given = self.given(id, &name, slice);
                self.registry.service(id).put_slice(&name, given);
            }
        } else {
            // They were given whole, so nobody has them in hand.
            self.lost.notify_one();
        }
    }

    fn allows_manual(&self, id: &ServiceId) -> bool {
        self.manual || self.services.get(id).is_some_and(|facts| facts.manual_endpoints)
    }

    /// What the registry may have of `slice`. If it is not all, the whole is kept.
    fn given(&mut self, id: &ServiceId, name: &str, mut slice: Slice) -> Slice {
        if self.allows_manual(id) || slice.endpoints.iter().all(|endpoint| endpoint.pod.is_some()) {
            self.forget(id, name);
            return slice;
        }
        self.kept.entry(id.clone()).or_default().insert(name.to_owned(), slice.clone());
        slice.endpoints.retain(|endpoint| endpoint.pod.is_some());
        slice
    }
}

#[cfg(test)]
mod tests;
