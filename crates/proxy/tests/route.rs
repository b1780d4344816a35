//! The table against a naive model: look at every rule, keep those that match, take the best.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use rouse_proxy::route::{HeaderMatch, HostPattern, PathPrefix, Rule, Table};

/// How well a host pattern fits: exact before wildcard, longer wildcard before shorter, `*` last.
fn host_fit(pattern: &str, host: &str) -> Option<usize> {
    let host = host.split(':').next().unwrap().to_lowercase();
    match pattern.strip_prefix("*.") {
        Some(suffix) => host.ends_with(&format!(".{suffix}")).then_some(1 + suffix.len()),
        None if pattern == "*" => Some(0),
        None => (host == pattern).then_some(usize::MAX),
    }
}

/// How well a path prefix fits: the longer the better.
fn path_fit(prefix: &str, path: &str) -> Option<usize> {
    let prefix = prefix.trim_end_matches('/');
    (path == prefix || path.starts_with(&format!("{prefix}/"))).then_some(prefix.len())
}

#[derive(Debug, Clone)]
struct Written {
    hosts: Vec<&'static str>,
    paths: Vec<&'static str>,
    headers: Vec<(&'static str, Option<&'static str>)>,
    created: u64,
    name: &'static str,
}

/// The best of all matching (host, path) pairs of all rules.
fn naive(rules: &[Written], host: &str, path: &str, headers: &HeaderMap) -> Option<usize> {
    let mut found = Vec::new();
    for (place, rule) in rules.iter().enumerate() {
        let given = |name: &str| headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned());
        let all = rule.headers.iter().all(|(name, value)| match value {
            Some(value) => given(name).any(|given| given == *value),
            None => given(name).next().is_some(),
        });
        if !all {
            continue;
        }
        let hosts = if rule.hosts.is_empty() { vec!["*"] } else { rule.hosts.clone() };
        let paths = if rule.paths.is_empty() { vec!["/"] } else { rule.paths.clone() };
        for host in hosts.iter().filter_map(|pattern| host_fit(pattern, host)) {
            for path in paths.iter().filter_map(|prefix| path_fit(prefix, path)) {
                let age = (std::cmp::Reverse(rule.created), std::cmp::Reverse(rule.name));
                found.push(((host, path, rule.headers.len(), age, std::cmp::Reverse(place)), place));
            }
        }
    }
    found.into_iter().max().map(|(_, place)| place)
}

fn compile(rules: &[Written]) -> Table<usize> {
    let header = |(name, value): &(&'static str, Option<&'static str>)| HeaderMatch {
        name: HeaderName::from_static(name),
        value: value.map(HeaderValue::from_static),
    };
    let rule = |(place, rule): (usize, &Written)| Rule {
        hosts: rule.hosts.iter().map(|host| host.parse::<HostPattern>().unwrap()).collect(),
        paths: rule.paths.iter().map(|path| path.parse::<PathPrefix>().unwrap()).collect(),
        headers: rule.headers.iter().map(header).collect(),
        created: rule.created,
        name: rule.name.into(),
        target: place,
    };
    Table::new(rules.iter().enumerate().map(rule).collect())
}

const HOSTS: [&str; 7] = ["a.b.c", "b.c", "x.c", "*.b.c", "*.c", "*", "c"];
const PATHS: [&str; 6] = ["/", "/s", "/s/t", "/s/", "/st", "/s/t/u"];
const NAMES: [&str; 3] = ["x-a", "x-b", "x-c"];
const VALUES: [&str; 2] = ["1", "2"];

fn written() -> impl Strategy<Value = Written> {
    let some = |all: &'static [&'static str]| prop::collection::vec(prop::sample::select(all), 0..3);
    let value = prop::option::of(prop::sample::select(&VALUES[..]));
    let headers = prop::collection::vec((prop::sample::select(&NAMES[..]), value), 0..3);
    (some(&HOSTS), some(&PATHS), headers, 0..3u64, prop::sample::select(&NAMES[..]))
        .prop_map(|(hosts, paths, headers, created, name)| Written { hosts, paths, headers, created, name })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn the_table_finds_what_looking_at_every_rule_finds(
        rules in prop::collection::vec(written(), 0..8),
        host in prop::sample::select(&["a.b.c", "A.b.C:80", "b.c", "z.b.c", "q.z.b.c", "x.c", "c", "other", "", "d.c"][..]),
        path in prop::sample::select(&["/", "/s", "/s/", "/s/t", "/stu", "/st", "/s/t/u/v", "/q", "/s//t"][..]),
        given in prop::collection::vec((prop::sample::select(&NAMES[..]), prop::sample::select(&VALUES[..])), 0..4),
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let found = compile(&rules).find(host, path, &headers).map(|rule| rule.target);
        prop_assert_eq!(found, naive(&rules, host, path, &headers));
    }
}

#[test]
fn headers_that_do_not_match_leave_the_shorter_path_to_try() {
    let rule = |paths: &[&'static str], headers: &[(&'static str, Option<&'static str>)]| Written {
        hosts: vec!["a.b.c"],
        paths: paths.to_vec(),
        headers: headers.to_vec(),
        created: 0,
        name: "x-a",
    };
    let table = compile(&[rule(&["/shop"], &[("x-a", Some("1"))]), rule(&["/"], &[])]);
    let find = |headers: &HeaderMap| table.find("a.b.c", "/shop/cart", headers).map(|rule| rule.target);
    assert_eq!(find(&HeaderMap::new()), Some(1));
    let mut headers = HeaderMap::new();
    headers.insert("x-a", HeaderValue::from_static("1"));
    assert_eq!(find(&headers), Some(0));
}
