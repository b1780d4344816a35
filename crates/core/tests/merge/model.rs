//! A naive model of the endpoint merge: it keeps every fact and computes every answer from scratch.
//!
//! Written from the specification alone. It has no caches and no indexes, so nothing can be out of date.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use rouse_core::endpoint::{Conditions, PodUid, PortName, Slice, State};
use rouse_core::merge::{MergePolicy, Push, PushEvent, PushOrder, PushOutcome, PushRefused};
use rouse_core::time::Moment;

/// The owner of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Who {
    /// One incarnation of a pod.
    Pod(PodUid),
    /// An endpoint made by hand at this address.
    Manual(IpAddr),
}

/// One endpoint of one port, with the fields that the model covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) who: Who,
    pub(crate) addresses: BTreeSet<SocketAddr>,
    pub(crate) state: State,
}

/// The ports that have endpoints, both in order of first appearance.
pub(crate) type View = Vec<(PortName, Vec<Seen>)>;

/// All facts about a pod since it became known.
#[derive(Debug, Clone)]
struct Known {
    uid: PodUid,
    first_seen: Moment,
    /// Its conditions in slices, write after write; empty if no slice has listed it.
    written: Vec<Conditions>,
    /// It was terminating when it was removed, and came back before its tombstone expired.
    was_terminating: bool,
    /// The pushes that were accepted, oldest first.
    heard: Vec<Push>,
    /// When the newest of them was accepted or renewed.
    renewed: Moment,
    /// The lease of the newest of them has lapsed.
    lapsed: bool,
    promoted: bool,
}

/// A pod that is gone.
#[derive(Debug, Clone)]
struct Gone {
    uid: PodUid,
    heard: Vec<Push>,
    how: Leaving,
}

#[derive(Debug, Clone)]
enum Leaving {
    /// No slice lists it any more.
    Removed { at: Moment, terminating: bool },
    /// Its address has a new owner.
    Replaced,
}

/// Everything said of one service.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    policy: MergePolicy,
    slices: Vec<(String, Slice)>,
    /// In order of first appearance.
    known: Vec<Known>,
    gone: Vec<Gone>,
}

impl Known {
    fn new(uid: &PodUid, now: Moment) -> Self {
        Self {
            uid: uid.clone(),
            first_seen: now,
            written: vec![],
            was_terminating: false,
            heard: vec![],
            renewed: now,
            lapsed: false,
            promoted: false,
        }
    }

    fn listed(&self) -> bool {
        !self.written.is_empty()
    }

    fn last(&self) -> Option<PushOrder> {
        self.heard.last().map(|push| push.order)
    }

    /// The newest push of its sidecar, while the lease runs.
    fn word(&self) -> Option<PushEvent> {
        self.heard.last().filter(|_| !self.lapsed).map(|push| push.event)
    }

    /// Rule 6: a slice's `terminating` is final.
    fn latched(&self) -> bool {
        self.was_terminating || self.written.iter().any(|conditions| conditions.is_terminating())
    }

    /// Whether there was ever more than a draining push about it.
    fn announced(&self) -> bool {
        self.listed() || self.heard.iter().any(|push| push.event != PushEvent::Draining)
    }

    /// `(ready, serving, terminating)` according to the slices.
    fn by_slices(&self) -> Option<(bool, bool, bool)> {
        let last = *self.written.last()?;
        if self.latched() && !last.is_terminating() {
            return Some((false, last.is_serving(), true));
        }
        Some((last.is_ready(), last.is_serving(), last.is_terminating()))
    }

    fn state(&self) -> State {
        let (ready, serving, terminating) = match (self.word(), self.by_slices()) {
            (Some(PushEvent::NotReady), slices) => (false, false, slices.is_some_and(|(_, _, t)| t)),
            (Some(PushEvent::Draining), Some((_, serving, true))) => (false, serving, true),
            (Some(PushEvent::Draining), _) => (false, true, true),
            (Some(PushEvent::Ready), None) => (true, true, false),
            (Some(PushEvent::Ready), Some((false, _, false))) if !self.ready_once() => (true, true, false),
            (_, Some(_)) if self.promoted => (true, true, false),
            (_, Some(slices)) => slices,
            (None, None) => (false, false, true),
        };
        Conditions::new(ready, serving, terminating).state()
    }

    /// Rule 4: whether a slice has once said ready; from then on slices take precedence.
    fn ready_once(&self) -> bool {
        self.written.iter().any(|conditions| conditions.is_ready())
    }
}

impl Model {
    pub(crate) fn new(policy: MergePolicy) -> Self {
        Self { policy, slices: vec![], known: vec![], gone: vec![] }
    }

    pub(crate) fn put_slice(&mut self, name: &str, slice: Slice, now: Moment) {
        self.write(name, slice);
        self.settle(now);
    }

    pub(crate) fn drop_slice(&mut self, name: &str, now: Moment) {
        self.slices.retain(|(known, _)| known != name);
        self.settle(now);
    }

    pub(crate) fn replace_slices(&mut self, slices: Vec<(String, Slice)>, now: Moment) {
        self.slices.retain(|(known, _)| slices.iter().any(|(name, _)| name == known));
        for (name, slice) in slices {
            self.write(&name, slice);
        }
        self.settle(now);
    }

    pub(crate) fn push(&mut self, push: &Push, now: Moment) -> Result<PushOutcome, PushRefused> {
        let uid = &push.pod.uid;
        if let Some(gone) = self.gone.iter().find(|gone| gone.uid == *uid && self.remembers(gone, now)) {
            return Ok(PushOutcome::Stale(gone.heard.last().map(|push| push.order)));
        }
        if !self.known.iter().any(|known| known.uid == *uid) {
            let bound = self.policy.max_unlisted;
            if self.known.iter().filter(|known| !known.listed()).count() >= bound {
                return Err(PushRefused::TooManyPods { bound });
            }
            self.known.push(Known::new(uid, now));
        }
        let known = self.known.iter_mut().find(|known| known.uid == *uid).unwrap();
        if let Some(last) = known.heard.last() {
            let leaving = last.order.boot == push.order.boot && last.event == PushEvent::Draining;
            match push.order.cmp(&last.order) {
                Ordering::Less => return Ok(PushOutcome::Stale(known.last())),
                Ordering::Equal => {
                    known.promoted &= !known.lapsed;
                    (known.renewed, known.lapsed) = (now, false);
                    return Ok(PushOutcome::Renewed);
                }
                Ordering::Greater if leaving && push.event != PushEvent::Draining => {
                    return Ok(PushOutcome::Stale(known.last()));
                }
                Ordering::Greater => {}
            }
        }
        known.heard.push(push.clone());
        (known.renewed, known.lapsed, known.promoted) = (now, false, false);
        if push.event != PushEvent::Draining && !known.latched() && push.owns_addresses {
            let seen = known.first_seen;
            self.replace_previous_pods(&claims_of(push), uid, seen);
        }
        Ok(PushOutcome::Accepted)
    }

    pub(crate) fn replace_previous_pods(&mut self, addresses: &[SocketAddr], by: &PodUid, seen: Moment) {
        let (replaced, kept) = self.known.iter().cloned().partition(|known: &Known| {
            known.uid != *by
                && known.first_seen <= seen
                && self.claims(known).iter().any(|(_, address)| addresses.contains(address))
        });
        self.known = kept;
        for Known { uid, heard, .. } in replaced {
            self.gone.push(Gone { uid, heard, how: Leaving::Replaced });
        }
    }

    pub(crate) fn probe_passed(&mut self, uid: &PodUid) {
        if let Some(known) = self.known.iter_mut().find(|known| known.uid == *uid) {
            let word = known.word();
            known.promoted |=
                known.listed() && known.state() == State::Starting && word != Some(PushEvent::NotReady);
        }
    }

    pub(crate) fn probe_failed(&mut self, uid: &PodUid) {
        self.known.iter_mut().filter(|known| known.uid == *uid).for_each(|known| known.promoted = false);
    }

    pub(crate) fn expire(&mut self, now: Moment) {
        let lease = self.policy.lease;
        for known in &mut self.known {
            known.lapsed |= !known.heard.is_empty() && now >= known.renewed + lease;
        }
        self.known.retain(|known| known.listed() || !known.lapsed);
    }

    /// The first moment at which the view changes without a new fact.
    pub(crate) fn changes_by_itself(&self) -> Option<Moment> {
        let mut ends: Vec<Moment> =
            self.known.iter().map(|known| known.renewed + self.policy.lease).collect();
        ends.sort_unstable();
        let before = self.view();
        ends.into_iter().find(|end| {
            let mut later = self.clone();
            later.expire(*end);
            later.view() != before
        })
    }

    pub(crate) fn first_seen(&self, uid: &PodUid) -> Option<Moment> {
        self.known.iter().find(|known| known.uid == *uid).map(|known| known.first_seen)
    }

    pub(crate) fn replaced(&self, uid: &PodUid) -> bool {
        self.gone.iter().any(|gone| gone.uid == *uid && matches!(gone.how, Leaving::Replaced))
    }

    /// Every address that an announced pod claims.
    pub(crate) fn addresses(&self) -> BTreeSet<SocketAddr> {
        let known = self.known.iter().filter(|known| known.announced());
        known.flat_map(|known| self.claims(known)).map(|(_, address)| address).collect()
    }

    pub(crate) fn view(&self) -> View {
        let mut ports: Vec<PortName> = vec![];
        // Every visible claim in order: owner, state, port, address.
        let mut claims: Vec<(Who, State, PortName, SocketAddr)> = vec![];
        for (_, slice) in &self.slices {
            for port in &slice.ports {
                ports.push(port.name.clone());
                for endpoint in &slice.endpoints {
                    let address = SocketAddr::new(endpoint.ip, port.number);
                    let uid = endpoint.pod.as_ref().map(|pod| &pod.uid);
                    let (who, state) = match uid {
                        Some(uid) => match self.known.iter().find(|known| known.uid == *uid) {
                            Some(known) => (Who::Pod(uid.clone()), known.state()),
                            None => continue,
                        },
                        None if self.policy.manual_endpoints => {
                            (Who::Manual(endpoint.ip), self.manual_state(endpoint.ip))
                        }
                        None => continue,
                    };
                    claims.push((who, state, port.name.clone(), address));
                }
            }
        }
        for known in self.known.iter().filter(|known| !known.listed() && known.announced()) {
            for (port, address) in self.claims(known) {
                ports.push(port.clone());
                claims.push((Who::Pod(known.uid.clone()), known.state(), port, address));
            }
        }
        let mut view: View = vec![];
        for port in ports {
            if !view.iter().any(|(name, _)| *name == port) {
                let endpoints =
                    endpoints(&claims.iter().filter(|(_, _, name, _)| *name == port).collect::<Vec<_>>());
                view.push((port, endpoints));
            }
        }
        view.retain(|(_, endpoints)| !endpoints.is_empty());
        view
    }

    fn write(&mut self, name: &str, slice: Slice) {
        match self.slices.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = slice,
            None => self.slices.push((name.into(), slice)),
        }
    }

    /// Evaluates all slices again: which pods are listed, with which conditions, and which are removed.
    fn settle(&mut self, now: Moment) {
        let entries = self.slices.iter().flat_map(|(_, slice)| &slice.endpoints);
        let listed: Vec<PodUid> = entries.filter_map(|entry| Some(entry.pod.as_ref()?.uid.clone())).collect();
        for uid in listed {
            let gone = self.gone.iter().find(|gone| gone.uid == uid && self.remembers(gone, now));
            let mut known = Known::new(&uid, now);
            match gone.map(|gone| (&gone.how, &gone.heard)) {
                Some((Leaving::Replaced, _)) => continue,
                Some((Leaving::Removed { terminating, .. }, heard)) => {
                    // Its pushes no longer count, but their order is remembered.
                    (known.was_terminating, known.heard, known.lapsed) = (*terminating, heard.clone(), true);
                }
                None => {}
            }
            if self.known.iter().any(|known| known.uid == uid) {
                continue;
            }
            self.gone.retain(|gone| gone.uid != uid);
            self.known.push(known);
        }
        for mut known in std::mem::take(&mut self.known) {
            match self.gathered(|uid, _| uid == Some(&known.uid)) {
                Some(conditions) => {
                    known.promoted &= known.written.last() == Some(&conditions);
                    known.written.push(conditions);
                }
                None if known.listed() => {
                    let how = Leaving::Removed { at: now, terminating: known.latched() };
                    self.gone.push(Gone { uid: known.uid, heard: known.heard, how });
                    continue;
                }
                None => {}
            }
            self.known.push(known);
        }
    }

    /// The merged conditions of the entries in present slices that `which` selects by UID and IP.
    fn gathered(&self, which: impl Fn(Option<&PodUid>, IpAddr) -> bool) -> Option<Conditions> {
        let entries = self.slices.iter().flat_map(|(_, slice)| &slice.endpoints);
        let mut best: Option<Conditions> = None;
        for entry in entries.filter(|entry| which(entry.pod.as_ref().map(|pod| &pod.uid), entry.ip)) {
            // Without a pod nothing is final: the better state wins.
            let rank = |it: Conditions| (entry.pod.is_some() && it.is_terminating(), it.state());
            if best.is_none_or(|best| rank(entry.conditions) > rank(best)) {
                best = Some(entry.conditions);
            }
        }
        best
    }

    fn manual_state(&self, at: IpAddr) -> State {
        let conditions = self.gathered(|uid, ip| uid.is_none() && ip == at);
        conditions.map_or(State::Gone, Conditions::state)
    }

    fn remembers(&self, gone: &Gone, now: Moment) -> bool {
        match gone.how {
            Leaving::Removed { at, .. } => now < at + self.policy.lease,
            Leaving::Replaced => true,
        }
    }

    /// The ports and addresses that pushes or slices give for a pod.
    fn claims(&self, known: &Known) -> Vec<(PortName, SocketAddr)> {
        if !known.listed() {
            return known.heard.last().map(named_claims_of).unwrap_or_default();
        }
        let mut claims = vec![];
        for (_, slice) in &self.slices {
            for port in &slice.ports {
                for entry in &slice.endpoints {
                    if entry.pod.as_ref().is_some_and(|pod| pod.uid == known.uid) {
                        claims.push((port.name.clone(), SocketAddr::new(entry.ip, port.number)));
                    }
                }
            }
        }
        claims
    }
}

/// The endpoints of one port: each address goes to the best claim, and among equals to the first.
fn endpoints(claims: &[&(Who, State, PortName, SocketAddr)]) -> Vec<Seen> {
    let mut seen: Vec<Seen> = vec![];
    for (_, _, _, address) in claims {
        let mut rivals = claims.iter().filter(|(_, _, _, claimed)| claimed == address);
        let first = rivals.next().unwrap();
        let (who, state, _, _) =
            rivals.fold(first, |best, rival| if rival.1 > best.1 { rival } else { best });
        match seen.iter_mut().find(|seen| seen.who == *who) {
            Some(seen) => _ = seen.addresses.insert(*address),
            None => seen.push(Seen { who: who.clone(), addresses: [*address].into(), state: *state }),
        }
    }
    seen
}

fn named_claims_of(push: &Push) -> Vec<(PortName, SocketAddr)> {
    let ports = push.ports.iter();
    ports
        .flat_map(|port| push.ips.iter().map(|ip| (port.name.clone(), SocketAddr::new(*ip, port.number))))
        .collect()
}

/// Every address that a push claims.
pub(crate) fn claims_of(push: &Push) -> Vec<SocketAddr> {
    named_claims_of(push).into_iter().map(|(_, address)| address).collect()
}
