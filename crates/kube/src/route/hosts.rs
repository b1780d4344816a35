//! Whose host is whose: a host belongs to the namespace of the oldest route that claims it.
//!
//! Otherwise whoever may write routes in one namespace could take the requests of another, by a longer path.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::spec::{RouteKey, RouteSpec, RuleSpec};

/// What a rule without hosts claims.
pub const ANY: &str = "*";

/// Hosts that an operator has given to namespaces, whatever routes claim. `*.example.com` is everything below it, `*` is
/// everything; of several the most exact counts.
pub type Assigned = BTreeMap<String, String>;

/// Who has which host.
#[derive(Debug, Default)]
pub struct Owners<'a> {
    by_host: HashMap<&'a str, &'a RouteSpec>,
    assigned: Option<&'a Assigned>,
}

/// A host that a route claims and does not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The host.
    pub host: Arc<str>,
    /// Who has it, in words that tell nothing of other namespaces but their name.
    pub owner: String,
}

impl<'a> Owners<'a> {
    /// Settles the claims of all `routes`.
    pub fn new(routes: impl IntoIterator<Item = &'a RouteSpec>, assigned: &'a Assigned) -> Self {
        let mut by_host: HashMap<&str, &RouteSpec> = HashMap::new();
        for route in routes {
            for host in claims(route) {
                let owner = by_host.entry(host).or_insert(route);
                if age(route) < age(owner) {
                    *owner = route;
                }
            }
        }
        Self { by_host, assigned: Some(assigned) }
    }

    /// Who else has `host`, if `namespace` does not.
    pub fn conflict(&self, namespace: &str, host: &str) -> Option<Conflict> {
        let conflict = |owner: String| Conflict { host: host.into(), owner };
        if let Some(assigned) = self.assigned.and_then(|assigned| assignment(assigned, host)) {
            let other = assigned != namespace;
            return other.then(|| conflict(format!("assigned to namespace {assigned} by the operator")));
        }
        let owner = self.by_host.get(host).map(|route| &*route.key.namespace)?;
        (owner != namespace).then(|| conflict(format!("claimed earlier by namespace {owner}")))
    }

    /// `rule` with the hosts that `namespace` may have, said outright; `None` if there are none.
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
}

/// The namespace that an operator has given `host` to.
fn assignment<'a>(assigned: &'a Assigned, host: &str) -> Option<&'a String> {
    if assigned.is_empty() {
        return None;
    }
    // `*.b.c` is below `*.c`, as `a.b.c` is below `*.b.c`.
    let name = host.strip_prefix("*.").unwrap_or(host);
    let above = name.match_indices('.').filter_map(|(dot, _)| name.get(dot + 1..));
    let mut wider = above.map(|name| format!("*.{name}")).chain([ANY.to_owned()]);
    assigned.get(host).or_else(|| wider.find_map(|pattern| assigned.get(&pattern)))
}

/// Everything that `route` claims.
pub fn claims(route: &RouteSpec) -> impl Iterator<Item = &str> {
    let any = route.rules.is_empty() || route.rules.iter().any(|rule| rule.hosts.is_empty());
    let statics = route.static_routes.iter().flat_map(|route| &route.rules);
    let hosts = route.rules.iter().chain(statics).flat_map(|rule| &rule.hosts);
    any.then_some(ANY).into_iter().chain(hosts.map(|host| &**host))
}

/// Sorts the older first; of those made in the same second, the first in the alphabet.
fn age(route: &RouteSpec) -> (u64, &RouteKey) {
    (route.created, &route.key)
}
