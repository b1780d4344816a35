//! Address assignment: decides which pod owns each address (IP and port) when several pods claim it.
//!
//! Claims change when pods come and go; states change far more often. So the layout is computed once per change of
//! claims, and a change of state only reads it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;

use slab::Slab;

use crate::endpoint::{Endpoint, EndpointHealth, PortName};
use crate::merge::pod::{Pod, Verdict};
use crate::merge::{Listing, NO_POD};
use crate::snapshot::PortView;

/// The layout of one port.
#[derive(Debug)]
pub(super) struct PortLayout {
    pub(super) name: PortName,
    /// Every claim in order of first appearance, including contested ones.
    claims: Vec<Claim>,
    /// The assigned addresses by slab index of the pod. Not hashed, and changed in place: every pod of the service is visited
    /// whenever one comes or goes.
    placements: Vec<Option<Placement>>,
    /// The pods that have an address, in order of first appearance.
    order: Vec<usize>,
    /// Counts the assignments.
    round: u64,
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
    /// The assignment that was the last to give it an address.
    round: u64,
    /// The pod's unique number. The slab reuses indexes, and a new pod must not inherit the health of an old one.
    number: u64,
    addresses: Addresses,
    health: Arc<EndpointHealth>,
    /// The endpoint as last published, kept also while the pod has lost its address. Reused as long as nothing changes.
    endpoint: Option<Arc<Endpoint>>,
    /// The verdict in `endpoint`, and whether `addresses` are those of `endpoint`, in this order. Both are kept here because
    /// the endpoints of a large service are not in the cache.
    verdict: Option<Verdict>,
    current: bool,
}

/// The addresses of a placement. The first needs no allocation, and few pods have more.
#[derive(Debug, Default, PartialEq, Eq)]
struct Addresses {
    first: Option<SocketAddr>,
    more: Vec<SocketAddr>,
}

impl Addresses {
    fn iter(&self) -> impl Iterator<Item = SocketAddr> {
        self.first.into_iter().chain(self.more.iter().copied())
    }

    fn contains(&self, address: SocketAddr) -> bool {
        self.first == Some(address) || self.more.contains(&address)
    }

    fn add(&mut self, address: SocketAddr) {
        match self.first {
            None => self.first = Some(address),
            // Two slices may list one pod.
            Some(_) if self.contains(address) => {}
            Some(_) => self.more.push(address),
        }
    }
}

/// The addresses that pods of a service claim now and did not claim before, and the reverse.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AddressChanges {
    /// Claimed now, and not before.
    pub came: Vec<SocketAddr>,
    /// Claimed before, and not now.
    pub left: Vec<SocketAddr>,
}

impl PortLayout {
    pub(super) fn new(name: PortName) -> Self {
        let (claims, placements, order) = (Vec::new(), Vec::new(), Vec::new());
        Self { name, claims, placements, order, round: 0, contested: false }
    }

    pub(super) fn claim(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    pub(super) fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Whether the pod of the claim has the address of the claim.
    fn places(&self, claim: &Claim) -> bool {
        let placement = self.placements.get(claim.pod).and_then(Option::as_ref);
        placement.is_some_and(|placement| placement.addresses.contains(claim.address))
    }

    /// Assigns every address to one pod. Pods that are also in `before` keep their health and their endpoint. `fresh` are the
    /// claims that `before` does not place.
    pub(super) fn assign(&mut self, pods: &Slab<Pod>, before: PortLayout, fresh: Vec<Claim>) {
        let contested = before.contested || self.is_contested(pods, fresh);
        let holders = contested.then(|| self.holders(pods));
        self.contested &= contested;
        self.round = before.round + 1;
        self.order = Vec::with_capacity(before.order.len() + 1);
        self.placements = before.placements;
        self.placements.resize_with(pods.capacity(), || None);
        let round = self.round;
        for &Claim { address, pod } in holders.as_ref().unwrap_or(&self.claims) {
            let (Some(place), Some(facts)) = (self.placements.get_mut(pod), pods.get(pod)) else { continue };
            match place {
                _ if facts.verdict.is_none() => continue,
                Some(placement) if placement.number == facts.number && placement.round == round => {
                    placement.addresses.add(address);
                    placement.current = false;
                    continue;
                }
                Some(placement) if placement.number == facts.number => placement.put(address, round),
                _ => *place = Some(Placement::new(facts.number, address, round)),
            }
            self.order.push(pod);
        }
        for (pod, place) in self.placements.iter_mut().enumerate() {
            match place {
                Some(placement) if placement.round == round => placement.compare(),
                // A pod that lost its address to another pod may get it back, and is then still the same endpoint.
                Some(placement) if pods.get(pod).is_some_and(|pod| pod.number == placement.number) => {
                    placement.addresses = Addresses::default();
                    placement.current = false;
                }
                _ => *place = None,
            }
        }
    }

    /// Whether two visible pods claim one address. Only new claims are looked up: those that stand since an uncontested layout
    /// cannot be in conflict with each other.
    fn is_contested(&self, pods: &Slab<Pod>, mut fresh: Vec<Claim>) -> bool {
        let visible = |claim: &Claim| pods.get(claim.pod).is_some_and(|pod| pod.verdict.is_some());
        fresh.retain(visible);
        if fresh.is_empty() {
            return false;
        }
        fresh.sort_unstable_by_key(|claim| claim.address);
        let twice = fresh.windows(2).any(|pair| match pair {
            [one, other] => one.address == other.address && one.pod != other.pod,
            _ => false,
        });
        // From here on, each address in `fresh` has one pod.
        twice
            || self.claims.iter().any(|claim| {
                let at = fresh.binary_search_by_key(&claim.address, |fresh| fresh.address).ok();
                let fresh = at.and_then(|at| fresh.get(at));
                fresh.is_some_and(|fresh| fresh.pod != claim.pod) && visible(claim)
            })
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
    pub(super) fn view(&mut self, pods: &Slab<Pod>) -> PortView {
        let mut endpoints = Vec::with_capacity(self.order.len());
        let mut states = Vec::with_capacity(self.order.len());
        for &place in &self.order {
            let placement = self.placements.get_mut(place).and_then(Option::as_mut);
            let (Some(placement), Some(pod)) = (placement, pods.get(place)) else { continue };
            let Some(verdict) = pod.verdict else { continue };
            states.push(verdict.state);
            endpoints.push(placement.publish(pod, verdict));
        }
        PortView::with_states(self.name.clone(), endpoints, &states)
    }
}

impl Placement {
    fn new(number: u64, address: SocketAddr, round: u64) -> Self {
        let addresses = Addresses { first: Some(address), more: Vec::new() };
        let health = Arc::default();
        Self { round, number, addresses, health, endpoint: None, verdict: None, current: false }
    }

    /// Gives it `address`, and takes the addresses of earlier rounds.
    fn put(&mut self, address: SocketAddr, round: u64) {
        self.round = round;
        self.current &= self.addresses.first == Some(address) && self.addresses.more.is_empty();
        if !self.current {
            self.addresses.first = Some(address);
            self.addresses.more.clear();
        }
    }

    /// Compares the new addresses with those of the endpoint. A pod at another address is another endpoint: connections and
    /// ejection belong to the old one.
    fn compare(&mut self) {
        if self.current {
            return;
        }
        let Some(endpoint) = &self.endpoint else { return };
        let (old, new) = (&endpoint.addresses, &self.addresses);
        if old.len() != new.iter().count() || !old.iter().all(|address| new.contains(*address)) {
            self.health = Arc::default();
        }
        self.current = new.iter().eq(old.iter().copied());
    }

    /// The endpoint with this verdict: the last one, unless something has changed.
    fn publish(&mut self, pod: &Pod, verdict: Verdict) -> Arc<Endpoint> {
        if self.current
            && self.verdict == Some(verdict)
            && let Some(endpoint) = &self.endpoint
        {
            return Arc::clone(endpoint);
        }
        let endpoint = Arc::new(Endpoint {
            pod: pod.id.clone(),
            addresses: self.addresses.iter().collect(),
            state: verdict.state,
            source: verdict.source,
            conditions: verdict.conditions,
            load: Arc::clone(&pod.load),
            health: Arc::clone(&self.health),
        });
        (self.endpoint, self.verdict, self.current) = (Some(Arc::clone(&endpoint)), Some(verdict), true);
        endpoint
    }
}

/// The layout of every port, in order of first appearance, and what it changes. Pods that are also in `before` keep their
/// health and their endpoint.
pub(super) fn lay_out(
    slices: &[Listing],
    pods: &Slab<Pod>,
    mut before: Vec<PortLayout>,
) -> (Vec<PortLayout>, AddressChanges) {
    let mut ports = claimed_ports(slices, pods, &before);
    let (mut came, mut left) = (Vec::new(), Vec::new());
    let mut claims_before = Vec::with_capacity(before.len());
    for port in &mut ports {
        let at = before.iter().position(|old| old.name == port.name);
        let mut old = at.map_or_else(|| PortLayout::new(port.name.clone()), |at| before.swap_remove(at));
        let fresh: Vec<Claim> = port.claims.iter().filter(|claim| !old.places(claim)).copied().collect();
        came.extend(fresh.iter().map(|claim| claim.address));
        let claims = std::mem::take(&mut old.claims);
        port.assign(pods, old, fresh);
        left.extend(claims.iter().filter(|claim| !port.places(claim)).map(|claim| claim.address));
        claims_before.push(claims);
    }
    for old in before {
        left.extend(old.claims.iter().map(|claim| claim.address));
        claims_before.push(old.claims);
    }
    // An address may have another claim, of another pod or on another port.
    exclude(&mut came, claims_before.iter().flatten());
    exclude(&mut left, ports.iter().flat_map(|port| &port.claims));
    (ports, AddressChanges { came, left })
}

/// Sorts `addresses`, and removes duplicates and those that one of `claims` claims.
fn exclude<'a>(addresses: &mut Vec<SocketAddr>, claims: impl Iterator<Item = &'a Claim>) {
    if addresses.is_empty() {
        return;
    }
    addresses.sort_unstable();
    addresses.dedup();
    let mut claimed = vec![false; addresses.len()];
    for claim in claims {
        if let Ok(at) = addresses.binary_search(&claim.address)
            && let Some(claimed) = claimed.get_mut(at)
        {
            *claimed = true;
        }
    }
    let mut claimed = claimed.into_iter();
    addresses.retain(|_| !claimed.next().unwrap_or(false));
}

/// The ports with all their claims, in order of first appearance. No address is assigned yet.
fn claimed_ports(slices: &[Listing], pods: &Slab<Pod>, before: &[PortLayout]) -> Vec<PortLayout> {
    let mut ports: Vec<PortLayout> = Vec::with_capacity(before.len());
    for listing in slices {
        for offered in &listing.slice.ports {
            let port = port_named(&mut ports, &offered.name, before);
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
            let port = port_named(&mut ports, &offered.name, before);
            for &ip in &push.ips {
                port.claim(Claim { address: SocketAddr::new(ip, offered.number), pod });
            }
        }
    }
    ports
}

fn port_named<'a>(
    ports: &'a mut Vec<PortLayout>,
    name: &PortName,
    before: &[PortLayout],
) -> &'a mut PortLayout {
    let at = ports.iter().position(|port| port.name == *name).unwrap_or(ports.len());
    if at == ports.len() {
        let mut port = PortLayout::new(name.clone());
        let claims = before.iter().find(|old| old.name == *name).map_or(0, |old| old.claims.len());
        port.claims.reserve(claims + 1);
        ports.push(port);
    }
    // In bounds: the port was found or just added.
    &mut ports[at]
}
