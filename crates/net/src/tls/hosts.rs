//! SNI patterns: matches host names against exact names first, then wildcards, ignoring case and a trailing dot.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use rouse_core::host::Host;

/// A host name, or `*.` and a host name for all hosts below it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SniPattern {
    wildcard: bool,
    /// In lower case, without the `*.`.
    name: Box<str>,
}

/// Neither a host name nor a wildcard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a host name nor `*.` and a host name")]
pub struct BadSniPattern(String);

impl FromStr for SniPattern {
    type Err = BadSniPattern;

    fn from_str(text: &str) -> Result<Self, BadSniPattern> {
        let below = text.strip_prefix("*.");
        // SNI carries host names only, never an IP address.
        let host = Host::parse_without_port(below.unwrap_or(text)).ok().filter(|host| !host.is_ipv6());
        let host = host.ok_or_else(|| BadSniPattern(text.into()))?;
        Ok(Self { wildcard: below.is_some(), name: host.name().into() })
    }
}

impl fmt::Display for SniPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.wildcard { "*." } else { "" }, self.name)
    }
}

/// A map from SNI patterns to values. The first value for a pattern stays.
#[derive(Debug)]
pub(super) struct Hosts<T> {
    exact: HashMap<Box<str>, T>,
    /// Keyed by the name after `*.`.
    wildcard: HashMap<Box<str>, T>,
}

impl<T> Hosts<T> {
    pub(super) fn new() -> Self {
        Self { exact: HashMap::new(), wildcard: HashMap::new() }
    }

    pub(super) fn claim(&mut self, host: SniPattern, value: T) {
        let names = if host.wildcard { &mut self.wildcard } else { &mut self.exact };
        names.entry(host.name).or_insert(value);
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.exact.values().chain(self.wildcard.values())
    }

    /// Matches as certificates do: a wildcard stands for exactly one label. `host` is a [`Host::name`].
    pub(super) fn one_label(&self, host: &str) -> Option<&T> {
        let under = || self.wildcard.get(host.split_once('.')?.1);
        self.exact.get(host).or_else(under)
    }

    /// Matches as routes do: a wildcard stands for one or more labels, and the longest pattern wins. `host` is a
    /// [`Host::name`].
    pub(super) fn any_depth(&self, host: &str) -> Option<&T> {
        let parents = std::iter::successors(host.split_once('.'), |(_, rest)| rest.split_once('.'));
        let under = || parents.into_iter().find_map(|(_, parent)| self.wildcard.get(parent));
        self.exact.get(host).or_else(under)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(patterns: &[&'static str]) -> Hosts<&'static str> {
        let mut hosts = Hosts::new();
        for pattern in patterns {
            hosts.claim(pattern.parse().unwrap(), *pattern);
        }
        hosts
    }

    #[test]
    fn exact_names_go_before_wildcards_and_those_cover_one_label_of_a_certificate() {
        let hosts = hosts(&["*.shop.test", "cart.shop.test", "*.test"]);
        for (host, one_label, any_depth) in [
            ("cart.shop.test", Some("cart.shop.test"), Some("cart.shop.test")),
            ("CART.Shop.Test.:8443", Some("cart.shop.test"), Some("cart.shop.test")),
            ("a.shop.test", Some("*.shop.test"), Some("*.shop.test")),
            ("a.b.shop.test", None, Some("*.shop.test")),
            ("shop.test", Some("*.test"), Some("*.test")),
            ("x.y.test", None, Some("*.test")),
            ("test", None, None),
            ("shop.test.evil", None, None),
            ("[::1]:443", None, None),
        ] {
            let name = Host::parse(host.as_bytes()).unwrap();
            assert_eq!(hosts.one_label(name.name()).copied(), one_label, "{host}");
            assert_eq!(hosts.any_depth(name.name()).copied(), any_depth, "{host}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for bad in
            ["", "*", "*.", ".", "a..b", "*.*.test", "a.*.test", "a b", "a/b", "ä.test", "a:1", "[::1]"]
        {
            assert_eq!(bad.parse::<SniPattern>(), Err(BadSniPattern(bad.into())), "{bad}");
        }
        assert_eq!("*.Shop.Test.".parse::<SniPattern>().unwrap().to_string(), "*.shop.test");
    }
}
