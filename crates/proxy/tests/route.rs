//! The route table against a naive model, which checks every rule and takes the best match.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use proptest::prelude::*;
use rouse_core::host::Host;
use rouse_proxy::routing::{HeaderMatch, HostPattern, PathPrefix, RouteTable, Rule};

fn head(path: &str, headers: &HeaderMap) -> Parts {
    let mut head = Request::builder().uri(path).body(()).unwrap().into_parts().0;
    head.headers.clone_from(headers);
    head
}

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
    owner: &'static str,
}

/// The best of all matching (host, path) pairs of all rules.
fn naive(
    rules: &[Written],
    assigned: &[(&str, &'static str)],
    host: &str,
    path: &str,
    headers: &HeaderMap,
) -> Option<usize> {
    let mut found = Vec::new();
    let hosts = |rule: &Written| if rule.hosts.is_empty() { vec!["*"] } else { rule.hosts.clone() };
    let fits = rules.iter().flat_map(|rule| {
        hosts(rule).into_iter().filter_map(|pattern| Some((host_fit(pattern, host)?, rule.owner)))
    });
    let given =
        assigned.iter().filter_map(|(pattern, owner)| host_fit(pattern, host).map(|fit| (fit, *owner)));
    let owner = fits.chain(given).max().map(|(_, owner)| owner);
    for (place, rule) in rules.iter().enumerate().filter(|(_, rule)| Some(rule.owner) == owner) {
        let given = |name: &str| headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned());
        let all = rule.headers.iter().all(|(name, value)| match value {
            Some(value) => given(name).any(|given| given == *value),
            None => given(name).next().is_some(),
        });
        if !all {
            continue;
        }
        let hosts = hosts(rule);
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

/// What a proxy does that takes the best host pattern alone, and there the first rule that matches.
fn first_match(table: &RouteTable<usize>, host: &str, path: &str, headers: &HeaderMap) -> Option<usize> {
    let hosts = table.virtual_hosts();
    let fits = hosts.iter().filter_map(|one| Some((host_fit(&one.host.to_string(), host)?, one)));
    let (_, best) = fits.max_by_key(|(fit, _)| *fit)?;
    let matches = |(prefix, rule): &&(&str, &Rule<usize>)| {
        let all = rule.headers.iter().all(|header| match &header.value {
            Some(value) => headers.get_all(&header.name).iter().any(|given| given == value),
            None => headers.contains_key(&header.name),
        });
        all && path_fit(prefix, path).is_some()
    };
    best.rules.iter().find(matches).map(|(_, rule)| rule.target)
}

fn compile(rules: &[Written], assigned: &[(&'static str, &'static str)]) -> RouteTable<usize> {
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
        owner: rule.owner.into(),
        target: place,
    };
    let owners = assigned.iter().map(|(pattern, owner)| (pattern.parse().unwrap(), (*owner).into()));
    RouteTable::with_owners(rules.iter().enumerate().map(rule).collect(), owners)
}

/// Each host has one owner.
const HOSTS: [(&str, &[&str]); 2] =
    [("one", &["a.b.c", "b.c", "*.b.c", "*"]), ("two", &["x.c", "*.c", "c", "z.b.c"])];
/// Hosts that may be assigned to an owner: those above, and some without a rule.
const ASSIGNED: [(&str, &str); 11] = [
    ("a.b.c", "one"),
    ("b.c", "one"),
    ("*.b.c", "one"),
    ("*", "one"),
    ("x.c", "two"),
    ("*.c", "two"),
    ("c", "two"),
    ("z.b.c", "two"),
    ("*.z.b.c", "two"),
    ("d.c", "one"),
    ("other", "two"),
];
const PATHS: [&str; 6] = ["/", "/s", "/s/t", "/s/", "/st", "/s/t/u"];
const NAMES: [&str; 3] = ["x-a", "x-b", "x-c"];
const VALUES: [&str; 2] = ["1", "2"];

fn written() -> impl Strategy<Value = Written> {
    let some = |all: &'static [&'static str]| prop::collection::vec(prop::sample::select(all), 0..3);
    let value = prop::option::of(prop::sample::select(&VALUES[..]));
    let headers = prop::collection::vec((prop::sample::select(&NAMES[..]), value), 0..3);
    let hosts = prop::sample::select(&HOSTS[..]).prop_flat_map(move |(owner, all)| {
        // A rule without hosts is for any host, which belongs to the first owner.
        let least = usize::from(owner != "one");
        (Just(owner), prop::collection::vec(prop::sample::select(all), least..3))
    });
    (hosts, some(&PATHS), headers, 0..3u64, prop::sample::select(&NAMES[..])).prop_map(
        |((owner, hosts), paths, headers, created, name)| Written {
            hosts,
            paths,
            headers,
            created,
            name,
            owner,
        },
    )
}

fn host(name: &str) -> Host<'_> {
    Host::parse(name.as_bytes()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn the_table_finds_what_looking_at_every_rule_finds(
        rules in prop::collection::vec(written(), 0..8),
        assigned in prop::sample::subsequence(ASSIGNED.to_vec(), 0..4),
        host in prop::sample::select(&["a.b.c", "A.b.C:80", "b.c", "z.b.c", "q.z.b.c", "x.c", "c", "other", "", "d.c"][..]),
        path in prop::sample::select(&["/", "/s", "/s/", "/s/t", "/stu", "/st", "/s/t/u/v", "/q", "/s//t"][..]),
        given in prop::collection::vec((prop::sample::select(&NAMES[..]), prop::sample::select(&VALUES[..])), 0..4),
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let parsed = Host::parse(host.as_bytes()).ok();
        let found = compile(&rules, &assigned).find(parsed.as_ref(), &head(path, &headers)).map(|rule| rule.target);
        prop_assert_eq!(found, naive(&rules, &assigned, host, path, &headers));
        prop_assert_eq!(first_match(&compile(&rules, &assigned), host, path, &headers), found);
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
        owner: "one",
    };
    let table = compile(&[rule(&["/shop"], &[("x-a", Some("1"))]), rule(&["/"], &[])], &[]);
    let find = |headers: &HeaderMap| {
        table.find(Some(&host("a.b.c")), &head("/shop/cart", headers)).map(|rule| rule.target)
    };
    assert_eq!(find(&HeaderMap::new()), Some(1));
    let mut headers = HeaderMap::new();
    headers.insert("x-a", HeaderValue::from_static("1"));
    assert_eq!(find(&headers), Some(0));
}

#[test]
fn a_host_of_one_owner_never_leads_to_a_wider_pattern_of_another() {
    let rule = |hosts: &[&'static str], paths: &[&'static str], owner: &'static str| Written {
        hosts: hosts.to_vec(),
        paths: paths.to_vec(),
        headers: Vec::new(),
        created: 0,
        name: "x-a",
        owner,
    };
    let rules =
        [rule(&["a.b.c"], &["/api"], "one"), rule(&["*.b.c"], &[], "two"), rule(&["*"], &["/help"], "one")];
    let table = compile(&rules, &[]);
    let find = |name: &str, path: &str| {
        table.find(Some(&host(name)), &head(path, &HeaderMap::new())).map(|rule| rule.target)
    };
    assert_eq!(find("a.b.c", "/api"), Some(0));
    assert_eq!(find("a.b.c", "/login"), None);
    assert_eq!(find("a.b.c", "/help"), Some(2), "it is the same owner's");
    assert_eq!(find("x.b.c", "/login"), Some(1));
    assert_eq!(find("x.b.c", "/help"), Some(1));
}

#[test]
fn an_assigned_host_belongs_to_its_owner_also_without_a_rule() {
    let rule = |hosts: &[&'static str], owner: &'static str| Written {
        hosts: hosts.to_vec(),
        paths: Vec::new(),
        headers: Vec::new(),
        created: 0,
        name: "x-a",
        owner,
    };
    let rules = [rule(&["*.b.c"], "web"), rule(&["*"], "all")];
    let assigned = [("shop.b.c", "shop"), ("*.deep.shop.b.c", "shop"), ("help.d", "all"), ("web.d", "web")];
    let table = compile(&rules, &assigned);
    let find =
        |name: &str| table.find(Some(&host(name)), &head("/", &HeaderMap::new())).map(|rule| rule.target);
    assert_eq!(find("shop.b.c"), None);
    assert_eq!(find("x.deep.shop.b.c"), None, "a wildcard that is deeper than those of all rules");
    assert_eq!(find("x.b.c"), Some(0));
    assert_eq!(find("web.d"), None);
    assert_eq!(find("help.d"), Some(1), "it is the same owner's");
    assert_eq!(find("x.d"), Some(1));
    let table = compile(&[rule(&["x.b.c"], "web")], &[("*", "shop")]);
    let find =
        |name: &str| table.find(Some(&host(name)), &head("/", &HeaderMap::new())).map(|rule| rule.target);
    assert_eq!((find("x.b.c"), find("y.b.c")), (Some(0), None));
}
