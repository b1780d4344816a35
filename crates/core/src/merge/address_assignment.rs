//! Address assignment: decides which pod owns each address (IP and port) when several pods claim it.
//!
//! Claims change when pods come and go; states change far more often. So the layout is computed once per change of
//! claims, and a change of state only reads it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;

use slab::Slab;

use crate::endpoint::EndpointHealth;
use crate::endpoint::{Endpoint, PortName};
use crate::merge::pod::Pod;
use crate::merge::{Listing, NO_POD};

/// The layout of one port.
#[derive(Debug)]
pub(super) struct PortLayout {
    pub(super) name: PortName,
    /// Every claim in order of first appearance, including contested ones.
    claims: Vec<Claim>,
    /// The assigned addresses, by pod.
    placements: Vec<Placement>,
    /// Two visible pods claim one address, so a change of state may assign it to the other pod.
    contested: bool,
}

/// A pod's claim to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) address: SocketAddr,
    pub(super) pod: usize,
}

/// A pod on a port, with every address that it has there (two for dual stack).
#[derive(Debug)]
struct Placement {
    pod: usize,
    /// The pod's unique number. The slab reuses indexes, and a new pod must not inherit the health of an old one.
    number: u64,
    addresses: Vec<SocketAddr>,
    health: Arc<EndpointHealth>,
    /// The endpoint as last published, kept also while the pod has lost its address. Reused as long as nothing changes.
    endpoint: Option<Arc<Endpoint>>,
}

impl PortLayout {
    pub(super) fn new(name: PortName) -> Self {
        Self { name, claims: Vec::new(), placements: Vec::new(), contested: false }
    }

    pub(super) fn claim(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    pub(super) fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Assigns every address to one pod. Pods that are also in `before` keep their health and their endpoint.
    pub(super) fn assign(&mut self, pods: &Slab<Pod>, before: Option<PortLayout>) {
        // Indexed by slab index, not hashed: this runs for every pod of the service whenever one comes or goes.
        let mut old: Vec<Option<Placement>> = Vec::new();
        old.resize_with(pods.capacity(), || None);
        for placement in before.into_iter().flat_map(|port| port.placements) {
            if let Some(place) = old.get_mut(placement.pod) {
                *place = Some(placement);
            }
        }
        let holders = self.holders(pods);
        let mut placements: Vec<Option<usize>> = vec![None; pods.capacity()];
        self.placements = Vec::with_capacity(holders.len());
        for Claim { address, pod } in holders {
            let (Some(at), Some(number)) = (placements.get_mut(pod), pods.get(pod).map(|pod| pod.number))
            else {
                continue;
            };
            if let Some(placement) = at.and_then(|at| self.placements.get_mut(at)) {
                placement.addresses.push(address);
                continue;
            }
            *at = Some(self.placements.len());
            let known =
                old.get_mut(pod).and_then(Option::take).filter(|placement| placement.number == number);
            let (health, endpoint) = known
                .map_or_else(|| (Arc::default(), None), |placement| (placement.health, placement.endpoint));
            self.placements.push(Placement { pod, number, addresses: vec![address], health, endpoint });
        }
        for placement in &mut self.placements {
            // A pod at another address is another endpoint: connections and ejection belong to the old one.
            if placement
                .endpoint
                .as_ref()
                .is_some_and(|old| !same_addresses(&old.addresses, &placement.addresses))
            {
                placement.health = Arc::default();
            }
        }
        // A pod that lost its address to another pod may get it back, and is then still the same endpoint.
        let still =
            |placement: &Placement| pods.get(placement.pod).is_some_and(|pod| pod.number == placement.number);
        let unplaced = old.into_iter().flatten().filter(still);
        self.placements.extend(unplaced.map(|placement| Placement { addresses: Vec::new(), ..placement }));
    }

    /// One claim per address: the better state wins, the first of equals stays. The result is in order of the first claims.
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

    /// Whether a change of state may assign an address to another pod.
    pub(super) fn contested(&self) -> bool {
        self.contested
    }

    /// The current endpoints, in order of first appearance.
    pub(super) fn endpoints(&mut self, pods: &Slab<Pod>) -> Vec<Arc<Endpoint>> {
        let mut endpoints = Vec::with_capacity(self.placements.len());
        for placement in self.placements.iter_mut().filter(|placement| !placement.addresses.is_empty()) {
            let Some(pod) = pods.get(placement.pod) else { continue };
            let Some(verdict) = pod.verdict else { continue };
            let same = placement.endpoint.as_ref().filter(|old| {
                old.state == verdict.state
                    && old.source == verdict.source
                    && old.conditions == verdict.conditions
                    && *old.addresses == *placement.addresses
            });
            if same.is_none() {
                placement.endpoint = Some(Arc::new(Endpoint {
                    pod: pod.id.clone(),
                    addresses: placement.addresses.as_slice().into(),
                    state: verdict.state,
                    source: verdict.source,
                    conditions: verdict.conditions,
                    load: Arc::clone(&pod.load),
                    health: Arc::clone(&placement.health),
                }));
            }
            endpoints.extend(placement.endpoint.clone());
        }
        endpoints
    }
}

/// Whether two endpoints have the same addresses, in any order.
fn same_addresses(one: &[SocketAddr], other: &[SocketAddr]) -> bool {
    one.len() == other.len() && one.iter().all(|address| other.contains(address))
}

/// The layout of every port, in order of first appearance. Pods that are also in `before` keep their health and their
/// endpoint.
pub(super) fn lay_out(slices: &[Listing], pods: &Slab<Pod>, mut before: Vec<PortLayout>) -> Vec<PortLayout> {
    let mut ports: Vec<PortLayout> = Vec::with_capacity(before.len());
    for listing in slices {
        for offered in &listing.slice.ports {
            let port = port_named(&mut ports, &offered.name);
            for (endpoint, &pod) in listing.slice.endpoints.iter().zip(&listing.pods) {
                if pod != NO_POD {
                    port.claim(Claim { address: SocketAddr::new(endpoint.ip, offered.number), pod });
                }
            }
        }
    }
    let mut unlisted: Vec<(usize, &Pod)> =
        pods.iter().filter(|(_, pod)| pod.listed.is_none() && pod.visible()).collect();
    unlisted.sort_by_key(|(_, pod)| pod.number);
    for (pod, push) in unlisted.into_iter().filter_map(|(place, pod)| Some((place, pod.push.as_ref()?))) {
        for offered in &push.ports {
            let port = port_named(&mut ports, &offered.name);
            for &ip in &push.ips {
                port.claim(Claim { address: SocketAddr::new(ip, offered.number), pod });
            }
        }
    }
    for port in &mut ports {
        let at = before.iter().position(|old| old.name == port.name);
        port.assign(pods, at.map(|at| before.swap_remove(at)));
    }
    ports
}

fn port_named<'a>(ports: &'a mut Vec<PortLayout>, name: &PortName) -> &'a mut PortLayout {
    let at = ports.iter().position(|port| port.name == *name).unwrap_or(ports.len());
    if at == ports.len() {
        ports.push(PortLayout::new(name.clone()));
    }
    // In bounds: the port was found or just added.
    &mut ports[at]
}
