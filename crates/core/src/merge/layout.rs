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
use crate::merge::pod::Pod;
use crate::pick::Load;

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
    load: Arc<Load>,
    /// The endpoint as last published; reused while nothing about it changed.
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

    /// Gives every address to one pod. Loads of pods that were there before live on; nothing else does.
    pub(super) fn seat(&mut self, pods: &Slab<Pod>, before: Option<Port>) {
        let mut old: HashMap<u64, Seat> =
            before.into_iter().flat_map(|port| port.seats).map(|seat| (seat.number, seat)).collect();
        let holders = self.holders(pods);
        let mut place: HashMap<usize, usize> = HashMap::with_capacity(holders.len());
        self.seats = Vec::with_capacity(holders.len());
        for Claim { address, pod } in holders {
            match place.entry(pod) {
                Entry::Occupied(at) => {
                    if let Some(seat) = self.seats.get_mut(*at.get()) {
                        seat.addresses.push(address);
                    }
                }
                Entry::Vacant(at) => {
                    at.insert(self.seats.len());
                    let number = pods.get(pod).map_or(0, |pod| pod.number);
                    let (load, endpoint) = match old.remove(&number) {
                        Some(seat) => (seat.load, seat.endpoint),
                        None => (Arc::new(Load::new()), None),
                    };
                    self.seats.push(Seat { pod, number, addresses: vec![address], load, endpoint });
                }
            }
        }
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
        for seat in &mut self.seats {
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
                    pod: pod.pod.clone(),
                    addresses: seat.addresses.as_slice().into(),
                    state: verdict.state,
                    source: verdict.source,
                    conditions: verdict.conditions,
                    load: Arc::clone(&seat.load),
                }));
            }
            endpoints.extend(seat.endpoint.clone());
        }
        endpoints
    }
}
