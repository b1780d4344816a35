//! Decides which namespace owns which host: the earliest claim wins, and its time is recorded in the route's status.
//!
//! Route objects can be edited, so their age says nothing about who used a host first. The gateway therefore
//! records the time at which it first accepted a host in the status of the route, which only gateways write. This
//! module is pure: it takes the routes with their recorded claims and returns the owners and what to record.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::claim_record::{ClaimRecord, ClaimTime};
use super::hosts::{ANY, AssignedHosts, Conflict, assignment};
use crate::objects::route::{RouteKey, RuleSpec};

/// Whether an exact host of one namespace may be below a wildcard of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum HostOverlap {
    /// The first claim keeps the other one out.
    #[default]
    Deny,
    /// The exact host takes precedence over the wildcard.
    Allow,
}

/// What the operator decides about hosts.
#[derive(Debug, Clone, Default)]
pub struct HostRules {
    /// Hosts that belong to a namespace regardless of what routes claim.
    pub assigned: AssignedHosts,
    /// Whether an exact host may be below a wildcard of another namespace.
    pub overlap: HostOverlap,
}

/// A route and the hosts that it claims.
#[derive(Debug, Clone)]
pub struct Claimant<'a> {
    /// The route object.
    pub key: &'a RouteKey,
    /// The object's UID: a record belongs to one object, not to a later one with the same name.
    pub uid: &'a str,
    /// When the object was created: orders claims of which no time is known.
    pub created: u64,
    /// The hosts that its newest version names.
    pub hosts: &'a BTreeSet<Arc<str>>,
    /// The claims that its status records.
    pub record: &'a ClaimRecord,
}

/// A host that a namespace claims.
type Claim<'a> = (&'a str, &'a str);

/// What this process remembers of claims between two settlements.
#[derive(Debug, Default)]
pub struct HostClaims {
    /// Claims that were granted, by namespace and host. They count while their record is not written yet.
    held: HashMap<(Arc<str>, Arc<str>), ClaimTime>,
    /// Entries of records whose claim has ended although the status still has them: UID, host and time. Without these,
    /// a host that was given up and named again would get its old time back.
    ended: HashSet<(Box<str>, Arc<str>, ClaimTime)>,
}

/// The owner of each host.
#[derive(Debug)]
pub struct Owners<'a> {
    rules: &'a HostRules,
    granted: HashMap<(Arc<str>, Arc<str>), ClaimTime>,
    index: Index,
}

/// Granted claims by pattern, so that an overlap is found in as many steps as a host has labels.
#[derive(Debug, Default)]
struct Index {
    /// Exact hosts, and [`ANY`].
    exact: HashMap<Arc<str>, Arc<str>>,
    /// Wildcards, by the name below which they match.
    wildcards: HashMap<Box<str>, Arc<str>>,
    /// The namespaces that have a pattern below a name.
    below: HashMap<Box<str>, BTreeSet<Arc<str>>>,
}

impl HostClaims {
    /// Settles all claims. `now` is the time of claims that are granted for the first time.
    pub fn settle<'a>(
        &mut self,
        routes: &[Claimant<'_>],
        rules: &'a HostRules,
        now: ClaimTime,
    ) -> Owners<'a> {
        self.end_claims(routes);
        let mut owners = Owners { rules, granted: HashMap::new(), index: Index::default() };
        for (_, (namespace, host), known) in self.in_order(routes) {
            if owners.conflict(namespace, host).is_none() {
                owners.grant(namespace, host, known.unwrap_or(now));
            }
        }
        self.held.clone_from(&owners.granted);
        owners
    }

    /// Forgets claims that no route names any more.
    fn end_claims(&mut self, routes: &[Claimant<'_>]) {
        let named: HashSet<Claim<'_>> = routes.iter().flat_map(Claimant::claims).collect();
        self.held.retain(|(namespace, host), _| named.contains(&(&**namespace, &**host)));
        let before = std::mem::take(&mut self.ended);
        for route in routes {
            for (host, time) in route.record.entries() {
                let entry = (route.uid.into(), Arc::clone(host), time);
                if !route.hosts.contains(host) || before.contains(&entry) {
                    self.ended.insert(entry);
                }
            }
        }
    }

    /// All claims, in the order in which they are granted.
    fn in_order<'a>(&self, routes: &'a [Claimant<'a>]) -> Vec<(Rank<'a>, Claim<'a>, Option<ClaimTime>)> {
        let mut all: BTreeMap<Claim<'a>, (Option<ClaimTime>, (u64, &'a RouteKey))> = BTreeMap::new();
        for route in routes {
            let age = (route.created, route.key);
            for (namespace, host) in route.claims() {
                let recorded = route.record.since(host);
                let valid = |time: &ClaimTime| {
                    self.ended.is_empty() || !self.ended.contains(&(route.uid.into(), host.into(), *time))
                };
                let recorded = recorded.filter(valid);
                let (known, oldest) = all.entry((namespace, host)).or_insert((recorded, age));
                *known = known.iter().copied().chain(recorded).min();
                *oldest = (*oldest).min(age);
            }
        }
        let ranked = all.into_iter().map(|(claim, (recorded, oldest))| {
            let held = self.held.get(&(claim.0.into(), claim.1.into())).copied();
            let rank = match (recorded, held) {
                (Some(since), _) => Rank::Recorded(since, claim.0),
                (None, Some(since)) => Rank::Held(since, claim.0),
                (None, None) => Rank::New(oldest),
            };
            let known = recorded.or(held);
            (rank, claim, known)
        });
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort();
        ranked
    }
}

/// The order in which claims are granted. A tie between two times goes by the name of the namespace, so that all gateways
/// decide alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank<'a> {
    /// Recorded in the status of a route, which all gateways read.
    Recorded(ClaimTime, &'a str),
    /// Granted by this gateway, but not recorded yet, or not any more. Comes after recorded claims: otherwise two gateways,
    /// one of which has missed an event, would overwrite each other's records for ever.
    Held(ClaimTime, &'a str),
    /// Not granted before. The oldest route is first.
    New((u64, &'a RouteKey)),
}

impl<'a> Claimant<'a> {
    fn claims(&self) -> impl Iterator<Item = Claim<'a>> + use<'a> {
        let (namespace, hosts) = (&*self.key.namespace, self.hosts);
        hosts.iter().map(move |host| (namespace, &**host))
    }
}

impl Owners<'_> {
    /// The conflict over `host` if `namespace` may not have it, because another namespace has it or a part of it.
    pub fn conflict(&self, namespace: &str, host: &str) -> Option<Conflict> {
        let conflict = |owner: String| Conflict { host: host.into(), owner };
        if let Some(assigned) = assignment(&self.rules.assigned, host) {
            let other = assigned != namespace;
            return other.then(|| conflict(format!("assigned to namespace {assigned} by the operator")));
        }
        let owner = self.keeps_out(namespace, host)?;
        Some(conflict(format!("claimed earlier by namespace {owner}")))
    }

    /// The other namespace whose claim keeps `namespace` out of `host`.
    pub fn keeps_out(&self, namespace: &str, host: &str) -> Option<&Arc<str>> {
        self.index.owner(namespace, host, self.rules.overlap)
    }

    /// What to record on a route of `namespace` that names `hosts`.
    pub fn record<'a>(
        &self,
        namespace: &Arc<str>,
        hosts: impl IntoIterator<Item = &'a Arc<str>>,
    ) -> ClaimRecord {
        let entry = |host: &Arc<str>| {
            let since = self.granted.get(&(Arc::clone(namespace), Arc::clone(host)))?;
            Some((Arc::clone(host), *since))
        };
        hosts.into_iter().filter_map(entry).collect()
    }

    /// `rule` with only the hosts that `namespace` may have, all named; `None` if there are none.
    pub fn allowed(
        &self,
        namespace: &str,
        rule: &RuleSpec,
        conflicts: &mut Vec<Conflict>,
    ) -> Option<RuleSpec> {
        let mut hosts: Vec<Arc<str>> =
            if rule.hosts.is_empty() { vec![ANY.into()] } else { rule.hosts.clone() };
        hosts.retain(|host| match self.conflict(namespace, host) {
            Some(conflict) => {
                if !conflicts.contains(&conflict) {
                    conflicts.push(conflict);
                }
                false
            }
            None => true,
        });
        // Without this, a rule that lost all its hosts would be one for any host.
        (!hosts.is_empty()).then(|| RuleSpec { hosts, ..rule.clone() })
    }

    fn grant(&mut self, namespace: &str, host: &str, since: ClaimTime) {
        let (namespace, host): (Arc<str>, Arc<str>) = (namespace.into(), host.into());
        // An assigned host does not keep others out of a wider pattern: the data plane has the list, too.
        if assignment(&self.rules.assigned, &host).is_none() {
            self.index.add(&namespace, &host, self.rules.overlap);
        }
        self.granted.insert((namespace, host), since);
    }
}

impl Index {
    fn add(&mut self, namespace: &Arc<str>, host: &Arc<str>, overlap: HostOverlap) {
        let wildcard = host.strip_prefix("*.");
        match wildcard {
            Some(name) => drop(self.wildcards.insert(name.into(), Arc::clone(namespace))),
            None => drop(self.exact.insert(Arc::clone(host), Arc::clone(namespace))),
        }
        if wildcard.is_some() || overlap == HostOverlap::Deny {
            for name in above(wildcard.unwrap_or(host)) {
                self.below.entry(name.into()).or_default().insert(Arc::clone(namespace));
            }
        }
    }

    /// The other namespace that keeps `namespace` out of `host`.
    fn owner(&self, namespace: &str, host: &str, overlap: HostOverlap) -> Option<&Arc<str>> {
        let other = |owner: &&Arc<str>| ***owner != *namespace;
        let wildcard = host.strip_prefix("*.");
        let same = match wildcard {
            Some(name) => self.wildcards.get(name),
            None => self.exact.get(host),
        };
        let wider = wildcard.is_some() || overlap == HostOverlap::Deny;
        let mut wider = above(wildcard.unwrap_or(host)).filter(|_| wider);
        let below = || self.below.get(wildcard?)?.iter().find(other);
        same.filter(other)
            .or_else(|| wider.find_map(|name| self.wildcards.get(name).filter(other)))
            .or_else(below)
    }
}

/// The names above `name`: `b.c` and `c` above `a.b.c`.
fn above(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('.').filter_map(|(dot, _)| name.get(dot + 1..))
}
