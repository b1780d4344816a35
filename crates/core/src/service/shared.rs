//! State that all services share: clock, engine, budgets, timers, cold-start records, and the index from address to services.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use super::Service;
use super::timers::Timers;
use crate::budget::WakeBudget;
use crate::cold_start::ColdStartLog;
use crate::endpoint::ServiceId;
use crate::engine::Engine;
use crate::hold::Budget;
use crate::load_meter::{LoadFeed, LoadKey, LoadMeter};
use crate::merge::AddressChanges;
use crate::service_changes::ServiceChanges;
use crate::sync::atomic::{AtomicU64, AtomicUsize};
use crate::sync::{Mutex, lock};
use crate::time::{Clock, Moment};

/// All services by name.
pub(crate) type Services = Mutex<HashMap<ServiceId, Arc<Service>>>;

/// The state that all services share.
pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) holds: Budget,
    pub(crate) tickets: AtomicU64,
    pub(crate) wakes: Mutex<WakeBudget>,
    pub(crate) timers: Timers,
    pub(crate) cold_starts: Arc<ColdStartLog>,
    pub(crate) loads: Arc<LoadFeed>,
    pub(crate) changes: Arc<ServiceChanges>,
    /// The services that have an endpoint at each address. A pod that takes over an address replaces the old pod in all of
    /// them.
    pub(crate) addresses: Mutex<BTreeSet<(SocketAddr, ServiceId)>>,
    /// The services by name. The registry owns them.
    pub(crate) services: Weak<Services>,
}

impl Shared {
    /// Takes one wake from the budget. Returns false if the budget is used up.
    pub(crate) fn may_wake(&self, id: &ServiceId, now: Moment) -> bool {
        lock(&self.wakes).take(id.namespace(), now)
    }

    /// A meter without load. `held` is how many of its requests wait for a pod.
    pub(crate) fn meter(&self, key: LoadKey, held: Arc<AtomicUsize>) -> Arc<LoadMeter> {
        LoadMeter::new(key, held, Arc::clone(&self.clock), Arc::clone(&self.loads))
    }

    /// Changes the addresses of a service in the index.
    pub(crate) fn move_addresses(&self, id: &ServiceId, changes: &AddressChanges) {
        if changes.came.is_empty() && changes.left.is_empty() {
            return;
        }
        let mut addresses = lock(&self.addresses);
        for &left in &changes.left {
            addresses.remove(&(left, id.clone()));
        }
        for &came in &changes.came {
            addresses.insert((came, id.clone()));
        }
    }

    /// The services that have an endpoint at any of `addresses`.
    pub(crate) fn at(&self, addresses: &[SocketAddr]) -> impl Iterator<Item = Arc<Service>> + use<> {
        let known = lock(&self.addresses);
        let mut ids = BTreeSet::new();
        for &address in addresses {
            let from = (address, ServiceId::first());
            let here = known.range(from..).take_while(|(at, _)| *at == address);
            ids.extend(here.map(|(_, id)| id.clone()));
        }
        drop(known);
        let services = self.services.upgrade();
        ids.into_iter().filter_map(move |id| lock(services.as_ref()?).get(&id).map(Arc::clone))
    }
}
