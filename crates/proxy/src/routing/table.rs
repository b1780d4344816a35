//! The route table: finds the route of a request by host, then path, then headers.
//!
//! The table is compiled once and looked up by hash: the host and the wildcards above it, and for each of these the path and
//! the prefixes above it. So the cost of a lookup does not grow with the number of routes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use rouse_core::host::Host;

use crate::message::RequestHead;

/// Matches the host of a request, without its port. Case does not matter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This host.
    Exact(String),
    /// Any host below this one, at any depth: `*.example.com` is kept as `example.com`.
    Below(String),
    /// Any host.
    Any,
}

/// A text that is not a [`HostPattern`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a host: expected a name like shop.example.com, a wildcard like *.example.com, or *")]
pub struct BadHost(String);

impl FromStr for HostPattern {
    type Err = BadHost;

    fn from_str(text: &str) -> Result<Self, BadHost> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let below = text.strip_prefix("*.");
        let host = Host::parse_without_port(below.unwrap_or(text)).map_err(|_| BadHost(text.into()))?;
        match below {
            Some(_) if host.is_ipv6() => Err(BadHost(text.into())),
            Some(_) => Ok(Self::Below(host.name().into())),
            None => Ok(Self::Exact(host.name().into())),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Exact(name) => f.write_str(name),
            HostPattern::Below(name) => write!(f, "*.{name}"),
            HostPattern::Any => f.write_str("*"),
        }
    }
}

/// A path and everything below it: `/shop` is `/shop` and `/shop/cart`, but not `/shopping`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathPrefix(String);

/// A text that is not a [`PathPrefix`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a path: expected one that begins with a slash and has no ? and no #")]
pub struct BadPath(String);

impl FromStr for PathPrefix {
    type Err = BadPath;

    fn from_str(text: &str) -> Result<Self, BadPath> {
        if !text.starts_with('/') || text.contains(['?', '#']) {
            return Err(BadPath(text.into()));
        }
        Ok(Self(text.trim_end_matches('/').into()))
    }
}

impl PathPrefix {
    /// Whether `path` is this path, or below it.
    pub(crate) fn covers(&self, path: &str) -> bool {
        path.strip_prefix(&*self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl fmt::Display for PathPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "/" } else { &self.0 })
    }
}

/// Matches a header of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderMatch {
    /// The name of the header.
    pub name: HeaderName,
    /// Its value; `None`: any, as long as it is there.
    pub value: Option<HeaderValue>,
}

impl HeaderMatch {
    fn matches(&self, head: &impl RequestHead) -> bool {
        match &self.value {
            None => head.header(&self.name).is_some(),
            Some(value) => head.header_values(&self.name).any(|given| given == value.as_bytes()),
        }
    }
}

/// Matches requests of a route: any of the hosts, any of the paths, all of the headers.
#[derive(Debug, Clone)]
pub struct Rule<T> {
    /// Any of these; none means any host.
    pub hosts: Vec<HostPattern>,
    /// Any of these; none means any path.
    pub paths: Vec<PathPrefix>,
    /// All of these.
    pub headers: Vec<HeaderMatch>,
    /// When the route was created, on any clock: of equal rules, the older one wins.
    pub created: u64,
    /// The name of the route: of equal rules, the first in the alphabet wins.
    pub name: String,
    /// The owner of the route. A request for a host of one owner never goes to a wider pattern of another.
    pub owner: Arc<str>,
    /// The target of the rule.
    pub target: T,
}

/// All rules, compiled for lookups.
#[derive(Debug)]
pub struct RouteTable<T> {
    hosts: Hosts,
    rules: Vec<Rule<T>>,
}

/// The rules for the requests of one host pattern that no more specific pattern matches.
#[derive(Debug)]
pub struct VirtualHost<'a, T> {
    /// The pattern.
    pub host: HostPattern,
    /// The path prefix of each rule, without a trailing slash, and the rule. The first one whose path and headers match wins.
    pub rules: Vec<(&'a str, &'a Rule<T>)>,
}

#[derive(Debug, Default)]
struct Hosts {
    exact: HashMap<String, Paths>,
    below: HashMap<String, Paths>,
    any: Paths,
    /// The most labels that a wildcard has: longer names need no lookup.
    deepest_wildcard: usize,
}

impl Hosts {
    fn entry(&mut self, host: &HostPattern) -> &mut Paths {
        match host {
            HostPattern::Exact(name) => self.exact.entry(name.clone()).or_default(),
            HostPattern::Below(name) => {
                self.deepest_wildcard = self.deepest_wildcard.max(name.split('.').count());
                self.below.entry(name.clone()).or_default()
            }
            HostPattern::Any => &mut self.any,
        }
    }
}

#[derive(Debug, Default)]
struct Paths {
    /// The owner of the host pattern: the assigned one, or that of the first rule.
    owner: Option<Arc<str>>,
    /// Indexes into `rules`; the first that matches wins.
    by_prefix: HashMap<String, Vec<usize>>,
    /// The longest prefix, in bytes: longer paths need no lookup.
    longest: usize,
}

impl<T> Default for RouteTable<T> {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl<T> RouteTable<T> {
    /// Compiles the rules.
    pub fn new(rules: Vec<Rule<T>>) -> Self {
        Self::with_owners(rules, [])
    }

    /// Compiles the rules. `owners` own their patterns also without a rule: otherwise a wider pattern of another owner would get
    /// the requests.
    pub fn with_owners(
        rules: Vec<Rule<T>>,
        owners: impl IntoIterator<Item = (HostPattern, Arc<str>)>,
    ) -> Self {
        let mut order: Vec<usize> = (0..rules.len()).collect();
        order.sort_by_key(|&place| {
            rules.get(place).map(|rule| (Reverse(rule.headers.len()), rule.created, rule.name.clone()))
        });
        let mut table = Self { hosts: Hosts::default(), rules };
        for (host, owner) in owners {
            table.hosts.entry(&host).owner = Some(owner);
        }
        for place in order {
            table.enter(place);
        }
        table
    }

    fn enter(&mut self, place: usize) {
        let Some(rule) = self.rules.get(place) else { return };
        let any_host = [HostPattern::Any];
        for host in if rule.hosts.is_empty() { &any_host[..] } else { &rule.hosts } {
            let paths = self.hosts.entry(host);
            paths.owner.get_or_insert_with(|| Arc::clone(&rule.owner));
            let any_path = [PathPrefix(String::new())];
            for PathPrefix(prefix) in if rule.paths.is_empty() { &any_path[..] } else { &rule.paths } {
                paths.longest = paths.longest.max(prefix.len());
                let here = paths.by_prefix.entry(prefix.clone()).or_default();
                if here.last() != Some(&place) {
                    here.push(place);
                }
            }
        }
    }

    /// All rules, in the given order.
    pub fn rules(&self) -> &[Rule<T>] {
        &self.rules
    }

    /// Each host pattern with the rules that its requests may match, in the order in which they are tried. For proxies that know
    /// no wider pattern once a host matches, and no owners.
    pub fn virtual_hosts(&self) -> Vec<VirtualHost<'_, T>> {
        let Hosts { exact, below, any, .. } = &self.hosts;
        let exact = exact.iter().map(|(name, paths)| (HostPattern::Exact(name.clone()), paths));
        let below = below.iter().map(|(name, paths)| (HostPattern::Below(name.clone()), paths));
        let any = any.owner.as_ref().map(|_| (HostPattern::Any, any));
        let all = exact.chain(below).chain(any);
        let mut hosts: Vec<_> = all.map(|(host, own)| self.virtual_host(host, own)).collect();
        hosts.sort_by_cached_key(|one| one.host.to_string());
        hosts
    }

    fn virtual_host<'a>(&'a self, host: HostPattern, own: &'a Paths) -> VirtualHost<'a, T> {
        let Hosts { below, any, deepest_wildcard, .. } = &self.hosts;
        let name = match &host {
            HostPattern::Exact(name) | HostPattern::Below(name) => name.as_str(),
            HostPattern::Any => "",
        };
        let wider = wildcards(name, *deepest_wildcard).filter_map(|name| below.get(name));
        let any = (host != HostPattern::Any).then_some(any);
        let patterns = [own].into_iter().chain(wider).chain(any).filter(|paths| paths.owner == own.owner);
        let mut rules = Vec::new();
        for paths in patterns {
            let mut prefixes: Vec<_> = paths.by_prefix.iter().collect();
            prefixes.sort_unstable_by_key(|(prefix, _)| (Reverse(prefix.len()), *prefix));
            for (prefix, places) in prefixes {
                let found = places.iter().filter_map(|&place| self.rules.get(place));
                rules.extend(found.map(|rule| (prefix.as_str(), rule)));
            }
        }
        VirtualHost { host, rules }
    }

    /// The rule for a request: of all that match, the one with the most specific host, then the longest path, then the most
    /// headers, then the oldest. The owner of the most specific pattern owns the host: rules of other owners do not match.
    /// Without a host, only rules for any host match.
    pub fn find(&self, host: Option<&Host<'_>>, head: &impl RequestHead) -> Option<&Rule<T>> {
        let host = host.map(Host::name).unwrap_or_default();
        let Hosts { exact, below, any, deepest_wildcard } = &self.hosts;
        let wildcards = wildcards(host, *deepest_wildcard).filter_map(|name| below.get(name));
        let patterns = exact.get(host).into_iter().chain(wildcards).chain([any]);
        let mut owner = None;
        patterns
            .filter(|paths| *owner.get_or_insert(&paths.owner) == &paths.owner)
            .find_map(|paths| self.find_path(paths, head))
    }

    fn find_path(&self, paths: &Paths, head: &impl RequestHead) -> Option<&Rule<T>> {
        let matches = |rule: &&Rule<T>| rule.headers.iter().all(|header| header.matches(head));
        prefixes(head.path(), paths.longest)
            .filter_map(|prefix| paths.by_prefix.get(prefix))
            .find_map(|places| places.iter().filter_map(|&place| self.rules.get(place)).find(matches))
    }
}

/// The names above `host`, from the longest of at most `deepest` labels.
fn wildcards(host: &str, deepest: usize) -> impl Iterator<Item = &str> {
    let dots = host.match_indices('.').map(|(dot, _)| dot);
    let above = dots.filter_map(move |dot| host.get(dot + 1..));
    above.filter(move |name| name.bytes().filter(|byte| *byte == b'.').count() < deepest)
}

/// The path and every path above it, from the longest of at most `longest` bytes; `""` stands for `/`.
fn prefixes(path: &str, longest: usize) -> impl Iterator<Item = &str> {
    let path = path.trim_end_matches('/');
    let whole = std::iter::once(path);
    let above = path.rmatch_indices('/').filter_map(move |(slash, _)| path.get(..slash));
    whole.chain(above).filter(move |prefix| prefix.len() <= longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_host_or_path_is_refused_with_its_text() {
        for bad in
            ["", "*.", "a..b", "*x.com", "a.*", "a b", "http://a", "a/b", "a:80", "*.*", "*.[::1]", "[x]"]
        {
            assert_eq!(bad.parse::<HostPattern>(), Err(BadHost(bad.into())));
        }
        for bad in ["", "shop", "/a?b", "/a#b"] {
            assert_eq!(bad.parse::<PathPrefix>(), Err(BadPath(bad.into())));
        }
    }

    #[test]
    fn a_prefix_ends_at_a_slash() {
        let all: Vec<&str> = prefixes("/shop/cart/", 100).collect();
        assert_eq!(all, ["/shop/cart", "/shop", ""]);
        assert_eq!(prefixes("/", 100).collect::<Vec<_>>(), [""]);
        assert_eq!(prefixes("/a/b", 2).collect::<Vec<_>>(), ["/a", ""]);
    }
}
