//! Random histories of routes with two gateways and an API server, against a naive model of host ownership.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use rouse_kube::routes::claims::HostOverlap;
use serde_json::{Value, json};

use crate::rig::{ROUTES, Rig, condition, pass, route, service};
use rouse_testkit::api_server::ApiServer;

/// As routes spell them, and as they are compared. Two spellings are one host.
const HOSTS: [(&str, &str); 7] = [
    ("a.x.test", "a.x.test"),
    ("B.x.Test.", "b.x.test"),
    ("*.x.test", "*.x.test"),
    ("*", "*"),
    ("c.test", "c.test"),
    ("[fd00::1]", "[fd00::1]"),
    ("[FD00:0::1]", "[fd00::1]"),
];
/// The hosts of requests.
const ASKED: [&str; 6] = ["a.x.test", "b.x.test", "z.x.test", "c.test", "elsewhere.test", "[fd00::1]"];
const REPLICAS: usize = 2;

/// Namespace and name.
type Name = (u8, u8);

#[derive(Debug, Clone)]
enum Step {
    /// Created, or edited: it names these hosts now, and was created in that year if it is new.
    Put {
        name: Name,
        hosts: BTreeSet<usize>,
        year: u32,
        fault: Option<Fault>,
    },
    Delete(Name),
    Restart(usize),
}

/// What is wrong with a version.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Timeout,
    Annotation,
    NoTarget,
}

type Hosts = BTreeSet<&'static str>;

/// The naive model: claims in the order in which they were granted.
#[derive(Debug)]
struct Model {
    overlap: HostOverlap,
    /// Each with its year and the hosts of its newest version.
    routes: BTreeMap<Name, (u32, Hosts)>,
    /// The hosts of the newest good version that each replica knows.
    good: [BTreeMap<Name, Hosts>; REPLICAS],
    /// Routes whose newest version is faulty.
    faulty: BTreeSet<Name>,
    granted: Vec<(u8, &'static str)>,
}

fn matches(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(suffix) => host.ends_with(suffix),
        None => pattern == host,
    }
}

fn overlap(one: &str, other: &str) -> bool {
    let both = |host: &&str| matches(one, host) && matches(other, host);
    one == other || (one != "*" && other != "*" && ASKED.iter().any(both))
}

impl Model {
    fn new(overlap: HostOverlap) -> Self {
        let (routes, good, faulty, granted) = Default::default();
        Self { overlap, routes, good, faulty, granted }
    }

    fn put(&mut self, name: Name, hosts: Hosts, year: u32, is_faulty: bool) {
        if is_faulty {
            self.faulty.insert(name);
        } else {
            self.faulty.remove(&name);
            self.good.iter_mut().for_each(|good| drop(good.insert(name, hosts.clone())));
        }
        self.routes.entry(name).or_insert((year, Hosts::new())).1 = hosts;
    }

    /// Deletes a route. Returns whether it existed.
    fn delete(&mut self, name: Name) -> bool {
        self.good.iter_mut().for_each(|good| drop(good.remove(&name)));
        self.faulty.remove(&name);
        self.routes.remove(&name).is_some()
    }

    /// A replica that starts knows newest versions only.
    fn restart(&mut self, replica: usize) {
        let faulty = &self.faulty;
        self.good[replica].retain(|name, _| !faulty.contains(name));
    }

    fn names(&self, namespace: u8, host: &str) -> bool {
        self.routes.iter().any(|((of, _), (_, hosts))| *of == namespace && hosts.contains(host))
    }

    /// Whether a claim of another namespace keeps `namespace` out of `host`.
    fn taken(&self, namespace: u8, host: &str) -> bool {
        let wild = |host: &str| host.starts_with("*.");
        let lets = |theirs: &str| self.overlap == HostOverlap::Allow && wild(host) != wild(theirs);
        self.granted.iter().any(|(of, theirs)| *of != namespace && !lets(theirs) && overlap(host, theirs))
    }

    /// Ends claims that were given up; then grants open claims, the oldest route first.
    fn settle(&mut self) {
        let before = std::mem::take(&mut self.granted);
        self.granted = before.into_iter().filter(|(namespace, host)| self.names(*namespace, host)).collect();
        let mut routes: Vec<_> = self.routes.iter().collect();
        routes.sort_by_key(|(name, (year, _))| (*year, **name));
        let waiting = routes.into_iter().flat_map(|((namespace, _), (_, hosts))| {
            let mut hosts: Vec<&'static str> = hosts.iter().copied().collect();
            hosts.sort_unstable();
            hosts.into_iter().map(|host| (*namespace, host))
        });
        for (namespace, host) in waiting.collect::<Vec<_>>() {
            if !self.taken(namespace, host) && !self.granted.contains(&(namespace, host)) {
                self.granted.push((namespace, host));
            }
        }
    }

    /// The namespaces that may serve `host` in a replica, by the most exact pattern. Besides the owner of a claim, a last
    /// good version serves what its newest version gave up, as long as no other namespace claims it.
    fn served_by(&self, replica: usize, host: &str) -> BTreeSet<String> {
        let given_up =
            self.good[replica].iter().flat_map(|((of, _), hosts)| hosts.iter().map(|host| (*of, *host)));
        let given_up = given_up.filter(|(namespace, host)| !self.taken(*namespace, host));
        let all = self.granted.iter().copied().chain(given_up);
        most_exact(all.map(|(namespace, pattern)| (pattern.to_owned(), format!("ns{namespace}"))), host)
    }

    /// Whether the status of a route shows that it does not get all its hosts, if all replicas agree on that.
    fn shows_conflict(&self, name: Name) -> Option<bool> {
        let loses = |hosts: &Hosts| hosts.iter().any(|host| self.taken(name.0, host));
        let newest = loses(&self.routes[&name].1);
        let good = self.good.iter().map(|good| good.get(&name).is_some_and(loses));
        let all: BTreeSet<bool> = good.map(|good| good || newest).collect();
        all.first().copied().filter(|_| all.len() == 1)
    }
}

/// The owners of the most exact patterns that match `host`.
fn most_exact(patterns: impl Iterator<Item = (String, String)>, host: &str) -> BTreeSet<String> {
    let matching: Vec<_> = patterns.filter(|(pattern, _)| matches(pattern, host)).collect();
    let most = matching.iter().map(|(pattern, _)| pattern.len()).max();
    matching.into_iter().filter(|(pattern, _)| Some(pattern.len()) == most).map(|(_, whose)| whose).collect()
}

fn object(api: &ApiServer, name: Name, hosts: &BTreeSet<usize>, year: u32, fault: Option<Fault>) -> Value {
    let (namespace, called) = (format!("ns{}", name.0), format!("r{}", name.1));
    let before = api.get(ROUTES, &namespace, &called);
    let mut object = route(&called, "unused.test", "cart");
    object["metadata"]["namespace"] = json!(namespace);
    object["metadata"]["uid"] = json!(format!("{}", api.version()));
    object["metadata"]["creationTimestamp"] = json!(format!("{year}-01-01T00:00:00Z"));
    if let Some(before) = before {
        object["metadata"] = before["metadata"].clone();
        object["metadata"]["generation"] = json!(before["metadata"]["generation"].as_i64().unwrap() + 1);
        object["status"] = before["status"].clone();
    }
    object["metadata"].as_object_mut().unwrap().remove("annotations");
    let hosts: Vec<&str> = hosts.iter().map(|host| HOSTS[*host].0).collect();
    object["spec"]["rules"] = json!([{"hosts": hosts}]);
    match fault {
        None => {}
        Some(Fault::Timeout) => object["spec"]["timeouts"] = json!({"request": "soon"}),
        Some(Fault::Annotation) => object["metadata"]["annotations"] = json!({"rouse.dev/min": "few"}),
        Some(Fault::NoTarget) => drop(object["spec"].as_object_mut().unwrap().remove("target")),
    }
    object
}

/// The namespaces whose routes get the requests for `host`, by the rule of the data plane: the most exact pattern.
fn served_by(rig: &Rig, host: &str) -> BTreeSet<String> {
    let plans = rig.cluster.plans().borrow().clone();
    let patterns = plans.iter().flat_map(|plan| {
        let hosts = plan.rules.iter().flat_map(|rule| &rule.hosts);
        hosts.map(|pattern| (pattern.to_string(), plan.spec.key.namespace.to_string()))
    });
    most_exact(patterns, host)
}

fn a_step() -> impl Strategy<Value = Step> {
    let name = || (0..3_u8, 0..2_u8);
    let hosts = proptest::collection::btree_set(0..HOSTS.len(), 1..4);
    let faults = prop_oneof![Just(Fault::Timeout), Just(Fault::Annotation), Just(Fault::NoTarget)];
    let put = (name(), hosts, 2020..2025_u32, proptest::option::weighted(0.3, faults));
    prop_oneof![
        6 => put.prop_map(|(name, hosts, year, fault)| Step::Put { name, hosts, year, fault }),
        2 => name().prop_map(Step::Delete),
        1 => (0..REPLICAS).prop_map(Step::Restart),
    ]
}

/// Waits until both gateways have seen everything and have written their statuses.
async fn settled(api: &ApiServer) {
    loop {
        let before = api.version();
        pass(Duration::from_millis(500)).await;
        if api.version() == before {
            return;
        }
    }
}

async fn start(api: &ApiServer, overlap: HostOverlap) -> Rig {
    Rig::synced_with(api, |settings| settings.routes.hosts.overlap = overlap).await
}

async fn live_through(steps: Vec<Step>, overlap: HostOverlap) {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    let mut rigs = vec![start(&api, overlap).await, start(&api, overlap).await];
    let mut model = Model::new(overlap);
    for step in &steps {
        match step {
            Step::Put { name, hosts, year, fault } => {
                api.put(ROUTES, object(&api, *name, hosts, *year, *fault));
                model.put(*name, hosts.iter().map(|host| HOSTS[*host].1).collect(), *year, fault.is_some());
            }
            Step::Delete(name) => {
                if model.delete(*name) {
                    api.delete(ROUTES, &format!("ns{}", name.0), &format!("r{}", name.1));
                }
            }
            Step::Restart(which) => {
                rigs.remove(*which).stop().await;
                rigs.insert(*which, start(&api, overlap).await);
                model.restart(*which);
            }
        }
        model.settle();
        settled(&api).await;
        for (replica, rig) in rigs.iter().enumerate() {
            for host in ASKED {
                let expected = model.served_by(replica, host);
                assert_eq!(
                    served_by(rig, host),
                    expected,
                    "{host} in replica {replica} after {step:?} of {steps:?}"
                );
            }
        }
        for name in model.routes.keys() {
            let object = api.get(ROUTES, &format!("ns{}", name.0), &format!("r{}", name.1)).unwrap();
            let reported = condition(&object, "HostConflict").is_some();
            assert_eq!(
                reported,
                model.shows_conflict(*name).unwrap_or(reported),
                "{name:?} after {step:?} of {steps:?}"
            );
        }
    }
    for rig in rigs {
        rig.stop().await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn gateways_serve_each_host_for_the_namespace_that_had_it_first(
        steps in proptest::collection::vec(a_step(), 1..12),
        allow in any::<bool>(),
    ) {
        let overlap = if allow { HostOverlap::Allow } else { HostOverlap::Deny };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(live_through(steps, overlap));
    }
}
