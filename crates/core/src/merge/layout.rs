//! Which pod stands behind which address of which port.
//!
//! Claims change when pods come and go, states change far more often. So the layout is worked out once per
//! change of claims, and a change of state only looks it through.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;

use slab::Slab;

use crate::endpoint::{Endpoint, PortName};
use crate::health::Health;
use crate::merge::pod::Pod;

/// One port's part of the layout.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) name: PortName,
    /// Every claim in order of first appearance, contested ones included.
    claims: Vec<Claim>,
    /// The claims gathered by pod: what is offered.
    seats: Vec<Seat>,
    /// Two visible pods claim one address, so a change of state may move the seat.
    contested: bool,
}

/// A pod says that it is at this address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) address: SocketAddr,
    pub(super) pod: usize,
}

/// A pod on a port, with every address it holds there (two for dual stack).
#[derive(Debug)]
struct Seat {
    pod: usize,
    /// The pod's own number: a place in the slab is used again, and nothing may be inherited by that.
    number: u64,
    addresses: Vec<SocketAddr>,
    health: Arc<Health>,
    /// The endpoint as last published, also while the pod has lost its address; reused while nothing about it changed.
    endpoint: Option<Arc<Endpoint>>,
}

impl Port {
    pub(super) fn new(name: PortName) -> Self {
        Self { name, claims: Vec::new(), seats: Vec::new(), contested: false }
    }

    pub(super) fn claim(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    pub(super) fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Gives every address to one pod. What is known of those that were there before lives on.
    pub(super) fn seat(&mut self, pods: &Slab<Pod>, before: Option<Port>) {
        // By the pod's place, not by hash: this runs for every pod of the service whenever one comes or goes.
        let mut old: Vec<Option<Seat>> = Vec::new();
        old.resize_with(pods.capacity(), || None);
        for seat in before.into_iter().flat_map(|port| port.seats) {
            if let Some(place) = old.get_mut(seat.pod) {
                *place = Some(seat);
            }
        }
        let holders = self.holders(pods);
        let mut seats: Vec<Option<usize>> = vec![None; pods.capacity()];
        self.seats = Vec::with_capacity(holders.len());
        for Claim { address, pod } in holders {
            let (Some(at), Some(number)) = (seats.get_mut(pod), pods.get(pod).map(|pod| pod.number)) else {
                continue;
            };
            if let Some(seat) = at.and_then(|at| self.seats.get_mut(at)) {
                seat.addresses.push(address);
                continue;
            }
            *at = Some(self.seats.len());
            let known = old.get_mut(pod).and_then(Option::take).filter(|seat| seat.number == number);
            let (health, endpoint) =
                known.map_or_else(|| (Arc::default(), None), |seat| (seat.health, seat.endpoint));
            self.seats.push(Seat { pod, number, addresses: vec![address], health, endpoint });
        }
        for seat in &mut self.seats {
            // A pod at another address is another endpoint: its connections and its ejection are those of the old one.
            if seat.endpoint.as_ref().is_some_and(|old| !same_addresses(&old.addresses, &seat.addresses)) {
                seat.health = Arc::default();
            }
        }
        // A pod that lost its address to a rival may get it back, and is then still the same endpoint.
        let still = |seat: &Seat| pods.get(seat.pod).is_some_and(|pod| pod.number == seat.number);
        let unseated = old.into_iter().flatten().filter(still);
        self.seats.extend(unseated.map(|seat| Seat { addresses: Vec::new(), ..seat }));
    }

    /// One claim per address: the better state wins, the first of equals stays, and the place in the order is
    /// that of the first claim.
    fn holders(&mut self, pods: &Slab<Pod>) -> Vec<Claim> {
        let state = |pod: usize| pods.get(pod).and_then(|pod| pod.verdict).map(|verdict| verdict.state);
        let mut holders: Vec<Claim> = Vec::with_capacity(self.claims.len());
        let mut held: HashMap<SocketAddr, usize> = HashMap::with_capacity(self.claims.len());
        self.contested = false;
        for &claim in &self.claims {
            let Some(claimed) = state(claim.pod) else { continue };
            match held.entry(claim.address) {
                Entry::Vacant(free) => {
                    free.insert(holders.len());
                    holders.push(claim);
                }
                Entry::Occupied(at) => {
                    let Some(holder) = holders.get_mut(*at.get()) else { continue };
                    self.contested |= holder.pod != claim.pod;
                    if state(holder.pod) < Some(claimed) {
                        holder.pod = claim.pod;
                    }
                }
            }
        }
        holders
    }

    /// Whether a change of state may change who holds an address.
    pub(super) fn contested(&self) -> bool {
        self.contested
    }

    /// The endpoints as they are now, in order of first appearance.
    pub(super) fn endpoints(&mut self, pods: &Slab<Pod>) -> Vec<Arc<Endpoint>> {
        let mut endpoints = Vec::with_capacity(self.seats.len());
        for seat in self.seats.iter_mut().filter(|seat| !seat.addresses.is_empty()) {
            let Some(pod) = pods.get(seat.pod) else { continue };
            let Some(verdict) = pod.verdict else { continue };
            let same = seat.endpoint.as_ref().filter(|old| {
                old.state == verdict.state
                    && old.source == verdict.source
                    && old.conditions == verdict.conditions
                    && *old.addresses == *seat.addresses
            });
            if same.is_none() {
                seat.endpoint = Some(Arc::new(Endpoint {
                    pod: pod.id.clone(),
                    addresses: seat.addresses.as_slice().into(),
                    state: verdict.state,
                    source: verdict.source,
                    conditions: verdict.conditions,
                    load: Arc::clone(&pod.load),
                    health: Arc::clone(&seat.health),
                }));
            }
            endpoints.extend(seat.endpoint.clone());
        }
        endpoints
    }
}

/// Whether two endpoints have the same addresses, in whatever order.
fn same_addresses(one: &[SocketAddr], other: &[SocketAddr]) -> bool {
    one.len() == other.len() && one.iter().all(|address| other.contains(address))
}
