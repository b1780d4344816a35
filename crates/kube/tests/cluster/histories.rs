//! Random histories of routes against two whole gateways and an API server, beside a naive model of who owns what.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::api::Api;
use crate::rig::{ROUTES, Rig, condition, pass, route, service};

const HOSTS: [&str; 5] = ["a.x.test", "b.x.test", "*.x.test", "*", "c.test"];
/// What clients ask for.
const ASKED: [&str; 5] = ["a.x.test", "b.x.test", "z.x.test", "c.test", "elsewhere.test"];

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

/// The naive model: claims in the order in which they were granted.
#[derive(Debug, Default)]
struct Model {
    routes: BTreeMap<Name, (u32, BTreeSet<&'static str>)>,
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
    fn names(&self, namespace: u8, host: &str) -> bool {
        self.routes.iter().any(|((of, _), (_, hosts))| *of == namespace && hosts.contains(host))
    }

    /// Who gave up a host has lost it; then the oldest routes come first.
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
        for (namespace, host) in waiting {
            let taken = self.granted.iter().any(|(of, theirs)| *of != namespace && overlap(host, theirs));
            if !taken && !self.granted.contains(&(namespace, host)) {
                self.granted.push((namespace, host));
            }
        }
    }

    /// Whose requests for `host` are: those of the most exact pattern.
    fn owner(&self, host: &str) -> Option<String> {
        let matching = self.granted.iter().filter(|(_, pattern)| matches(pattern, host));
        matching.max_by_key(|(_, pattern)| pattern.len()).map(|(namespace, _)| format!("ns{namespace}"))
    }
}

fn object(api: &Api, name: Name, hosts: &BTreeSet<usize>, year: u32, fault: Option<Fault>) -> Value {
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
    let hosts: Vec<&str> = hosts.iter().map(|host| HOSTS[*host]).collect();
    object["spec"]["rules"] = json!([{"hosts": hosts}]);
    match fault {
        None => {}
        Some(Fault::Timeout) => object["spec"]["timeouts"] = json!({"request": "soon"}),
        Some(Fault::Annotation) => object["metadata"]["annotations"] = json!({"rouse.dev/min": "few"}),
        Some(Fault::NoTarget) => drop(object["spec"].as_object_mut().unwrap().remove("target")),
    }
    object
}

/// Whose routes get the requests for `host`, by the rule of the data plane: the most exact pattern.
fn served_by(rig: &Rig, host: &str) -> BTreeSet<String> {
    let plans = rig.cluster.plans().borrow().clone();
    let served = plans.iter().flat_map(|plan| {
        let hosts = plan.rules.iter().flat_map(|rule| &rule.hosts).filter(|pattern| matches(pattern, host));
        hosts.map(|pattern| (pattern.len(), plan.spec.key.namespace.to_string()))
    });
    let served: Vec<(usize, String)> = served.collect();
    let most = served.iter().map(|(length, _)| *length).max();
    served.into_iter().filter(|(length, _)| Some(*length) == most).map(|(_, namespace)| namespace).collect()
}

fn a_step() -> impl Strategy<Value = Step> {
    let name = || (0..3_u8, 0..2_u8);
    let hosts = proptest::collection::btree_set(0..HOSTS.len(), 1..4);
    let faults = prop_oneof![Just(Fault::Timeout), Just(Fault::Annotation), Just(Fault::NoTarget)];
    let put = (name(), hosts, 2020..2025_u32, proptest::option::weighted(0.3, faults));
    prop_oneof![
        6 => put.prop_map(|(name, hosts, year, fault)| Step::Put { name, hosts, year, fault }),
        2 => name().prop_map(Step::Delete),
        1 => (0..2_usize).prop_map(Step::Restart),
    ]
}

/// Until both gateways have seen everything and have written what they had to.
async fn quiet(api: &Api) {
    loop {
        let before = api.version();
        pass(Duration::from_millis(500)).await;
        if api.version() == before {
            return;
        }
    }
}

async fn live_through(steps: Vec<Step>) {
    let api = Api::default();
    api.put("services", service("cart"));
    let mut rigs = vec![Rig::synced(&api).await, Rig::synced(&api).await];
    let mut model = Model::default();
    for step in &steps {
        match step {
            Step::Put { name, hosts, year, fault } => {
                // A faulty version names what the one before it named: where it does not, the last good version may
                // go on to serve what belongs to no other.
                let before = model.routes.get(name).filter(|_| fault.is_some()).map(|(_, hosts)| hosts);
                let place = |host: &&str| HOSTS.iter().position(|one| one == host);
                let hosts = &before.map_or_else(|| hosts.clone(), |it| it.iter().filter_map(place).collect());
                api.put(ROUTES, object(&api, *name, hosts, *year, *fault));
                let named = hosts.iter().map(|host| HOSTS[*host]).collect();
                model.routes.entry(*name).or_insert((*year, BTreeSet::new())).1 = named;
            }
            Step::Delete(name) => {
                if model.routes.remove(name).is_some() {
                    api.delete(ROUTES, &format!("ns{}", name.0), &format!("r{}", name.1));
                }
            }
            Step::Restart(which) => {
                rigs.remove(*which).stop().await;
                rigs.insert(*which, Rig::synced(&api).await);
            }
        }
        model.settle();
        quiet(&api).await;
        for host in ASKED {
            let owner: BTreeSet<String> = model.owner(host).into_iter().collect();
            for (replica, rig) in rigs.iter().enumerate() {
                assert_eq!(
                    served_by(rig, host),
                    owner,
                    "{host} in replica {replica} after {step:?} of {steps:?}"
                );
            }
        }
        for ((namespace, name), (_, hosts)) in &model.routes {
            let object = api.get(ROUTES, &format!("ns{namespace}"), &format!("r{name}")).unwrap();
            let lost = hosts.iter().any(|host| !model.granted.contains(&(*namespace, *host)));
            let told = condition(&object, "HostConflict").is_some();
            assert_eq!(told, lost, "ns{namespace}/r{name} after {step:?} of {steps:?}");
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
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(live_through(steps));
    }
}
