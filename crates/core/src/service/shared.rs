//! State that all services share: clock, engine, budgets, timers, cold-start records, and the index from address to services.

use std::cmp::Ordering::{Greater, Less};
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
use crate::sync::atomic::AtomicU64;
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

    /// Replaces the addresses of a service in the index. Both lists must be sorted and without duplicates.
    pub(crate) fn move_addresses(&self, id: &ServiceId, from: &[SocketAddr], to: &[SocketAddr]) {
        let mut addresses = lock(&self.addresses);
        let (mut from, mut to) = (from.iter().peekable(), to.iter().peekable());
        loop {
            let order = match (from.peek(), to.peek()) {
                (None, None) => break,
                (Some(_), None) => Less,
                (None, Some(_)) => Greater,
                (Some(left), Some(came)) => left.cmp(came),
            };
            let left = from.next_if(|_| order.is_le());
            let came = to.next_if(|_| order.is_ge());
            match (left, came) {
                (Some(&left), None) => addresses.remove(&(left, id.clone())),
                (None, Some(&came)) => addresses.insert((came, id.clone())),
                _ => false,
            };
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
