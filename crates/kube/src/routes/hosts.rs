//! The hosts that a route names, the operator's list of assigned hosts, and conflicts over hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use crate::objects::route::ANY;
use crate::objects::route::{RouteSpec, RuleSpec};

/// Hosts that an operator has assigned to namespaces, regardless of what routes claim. `*.example.com` matches every host
/// below it, `*` matches every host; the most specific pattern wins.
pub type AssignedHosts = BTreeMap<String, String>;

/// A host that a route claims and does not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The host.
    pub host: Arc<str>,
    /// The owner, as text that shows nothing of other namespaces but their name.
    pub owner: String,
}

/// The namespace that an operator has given `host` to.
pub(super) fn assignment<'a>(assigned: &'a AssignedHosts, host: &str) -> Option<&'a String> {
    if assigned.is_empty() {
        return None;
    }
    // `*.b.c` is below `*.c`, as `a.b.c` is below `*.b.c`.
    let name = host.strip_prefix("*.").unwrap_or(host);
    let above = name.match_indices('.').filter_map(|(dot, _)| name.get(dot + 1..));
    let mut wider = above.map(|name| format!("*.{name}")).chain([ANY.to_owned()]);
    assigned.get(host).or_else(|| wider.find_map(|pattern| assigned.get(&pattern)))
}

/// Whether a request may match both patterns. [`ANY`] is a catch-all, and overlaps nothing but itself.
pub fn overlap(one: &str, other: &str) -> bool {
    let covers = |wide: &str, narrow: &str| {
        let name = wide.strip_prefix("*.");
        let above = |name: &str| narrow.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'));
        name.is_some_and(above)
    };
    one == other || covers(one, other) || covers(other, one)
}

/// Every host that `route` names; [`ANY`] if a rule of it has none.
pub fn named(route: &RouteSpec) -> BTreeSet<Arc<str>> {
    let statics = route.static_routes.iter().flat_map(|route| &route.rules);
    let any = route.rules.is_empty().then(|| ANY.into());
    named_by(&route.rules).chain(statics.flat_map(|rule| rule.hosts.iter().cloned())).chain(any).collect()
}

/// Every host that `rules` name; [`ANY`] if one of them has none.
pub(super) fn named_by(rules: &[RuleSpec]) -> impl Iterator<Item = Arc<str>> {
    rules.iter().flat_map(|rule| {
        let any = rule.hosts.is_empty().then(|| ANY.into());
        rule.hosts.iter().cloned().chain(any)
    })
}
