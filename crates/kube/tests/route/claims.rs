//! Host claims over time: random histories of routes with two replicas that lag, race and restart, against a naive model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use rouse_kube::objects::route::{RouteKey, RouteKind};
use rouse_kube::routes::claim_record::{ClaimRecord, ClaimTime, LONGEST_RECORD};
use rouse_kube::routes::claims::{Claimant, HostClaims, HostOverlap, HostRules};
use serde_json::json;

const HOSTS: [&str; 6] = ["a.x.test", "b.x.test", "*.x.test", "*", "*.a.x.test", "c.test"];
const REPLICAS: usize = 2;

/// A route as the API server has it.
#[derive(Debug, Clone, PartialEq)]
struct Object {
    uid: String,
    created: u64,
    hosts: BTreeSet<Arc<str>>,
    /// The message of the condition that records its claims.
    record: Option<String>,
    version: u64,
}

impl Object {
    fn record(&self) -> ClaimRecord {
        let conditions = self.record.iter().map(|text| json!({"type": "HostsClaimed", "message": text}));
        ClaimRecord::read(&conditions.collect::<Vec<_>>())
    }
}

/// Namespace and name.
type Name = (u8, u8);
type Objects = BTreeMap<Name, Object>;

#[derive(Debug, Default)]
struct Replica {
    ledger: HostClaims,
    seen: Objects,
    /// The granted claims (namespace, host) of its last decision.
    granted: BTreeSet<(String, String)>,
    /// Statuses that it wants to write.
    due: Vec<(Name, u64, Option<String>)>,
}

#[derive(Debug, Clone)]
enum Step {
    /// Created, or edited: its hosts are these now, and it was created at that time if it is new.
    Put(Name, BTreeSet<usize>, u64),
    Delete(Name),
    /// A replica sees everything and decides.
    See(usize),
    /// A replica writes its decisions. Writes to objects that changed meanwhile are refused.
    Write(usize),
    Restart(usize),
    /// All replicas see and write until nothing changes.
    Settle,
}

struct PlanInputs {
    rules: HostRules,
    objects: Objects,
    replicas: [Replica; REPLICAS],
    /// Claims that all replicas had granted and recorded, until they were given up.
    established: BTreeSet<(String, String)>,
    now: i64,
    version: u64,
}

fn namespace(name: Name) -> String {
    format!("ns{}", name.0)
}

fn overlap(one: &str, other: &str) -> bool {
    crate::overlap(&["a.x.test", "b.x.test", "z.x.test", "z.a.x.test", "c.test"], one, other)
}

impl PlanInputs {
    fn new(rules: HostRules) -> Self {
        let (objects, established) = (Objects::new(), BTreeSet::new());
        Self { rules, objects, replicas: Default::default(), established, now: 0, version: 0 }
    }

    fn named(&self, (namespace, host): &(String, String)) -> bool {
        let mut all = self.objects.iter();
        all.any(|(name, object)| self::namespace(*name) == *namespace && object.hosts.contains(&**host))
    }

    fn see(&mut self, replica: usize) {
        self.now += 1;
        let replica = &mut self.replicas[replica];
        replica.seen.clone_from(&self.objects);
        let routes: Vec<(RouteKey, ClaimRecord, &Object)> = replica
            .seen
            .iter()
            .map(|(name, object)| {
                let key = RouteKey {
                    namespace: namespace(*name).into(),
                    name: format!("r{}", name.1).into(),
                    kind: RouteKind::InterceptorRoute,
                };
                (key, object.record(), object)
            })
            .collect();
        let claimants: Vec<Claimant<'_>> = routes
            .iter()
            .map(|(key, record, object)| Claimant {
                key,
                uid: &object.uid,
                created: object.created,
                hosts: &object.hosts,
                record,
            })
            .collect();
        let owners = replica.ledger.settle(&claimants, &self.rules, ClaimTime(self.now));
        replica.granted.clear();
        replica.due.clear();
        for ((key, _, object), name) in routes.iter().zip(replica.seen.keys()) {
            let record = owners.record(&key.namespace, &object.hosts);
            for (host, _) in record.entries() {
                replica.granted.insert((key.namespace.to_string(), host.to_string()));
            }
            let text = (!record.is_empty()).then(|| record.to_string());
            if text != object.record {
                replica.due.push((*name, object.version, text));
            }
        }
    }

    fn write(&mut self, replica: usize) -> bool {
        let mut wrote = false;
        for (name, version, text) in std::mem::take(&mut self.replicas[replica].due) {
            if let Some(object) = self.objects.get_mut(&name).filter(|object| object.version == version) {
                self.version += 1;
                (object.record, object.version, wrote) = (text, self.version, true);
            }
        }
        wrote
    }

    /// All replicas see and write until nothing changes; this must converge soon.
    fn settle(&mut self) {
        for _ in 0..20 {
            let mut wrote = false;
            for replica in 0..REPLICAS {
                self.see(replica);
                wrote |= self.write(replica);
            }
            if !wrote {
                let [first, others @ ..] = &self.replicas;
                for other in others {
                    assert_eq!(first.granted, other.granted, "replicas agree");
                }
                let claims = first.granted.clone();
                self.check_grants(&claims);
                self.established = claims;
                return;
            }
        }
        panic!("replicas write for ever: {:?}", self.objects);
    }

    /// Asserts that granted claims do not overlap, and that each other claim overlaps a granted one.
    fn check_grants(&self, granted: &BTreeSet<(String, String)>) {
        let excludes = |(one, host): &(String, String), (other, theirs): &(String, String)| {
            let wild = |host: &str| host.starts_with("*.");
            let lets = self.rules.overlap == HostOverlap::Allow && wild(host) != wild(theirs);
            one != other && !lets && overlap(host, theirs)
        };
        for claim in granted {
            assert!(self.named(claim), "{claim:?} is named");
            let rival = granted.iter().find(|other| excludes(claim, other));
            assert_eq!(rival, None, "has a part of {claim:?} too");
        }
        for (name, object) in &self.objects {
            for host in &object.hosts {
                let claim = (namespace(*name), host.to_string());
                let taken = granted.iter().any(|other| excludes(&claim, other));
                assert_eq!(granted.contains(&claim), !taken, "{claim:?} in {granted:?}");
            }
        }
    }

    /// Asserts the guarantee: no other namespace gets a host in any replica before its owner gave it up.
    fn check_promise(&self) {
        for claim in &self.established {
            for replica in &self.replicas {
                let lets = |other: &str| {
                    let wild = |host: &str| host.starts_with("*.");
                    self.rules.overlap == HostOverlap::Allow && wild(&claim.1) != wild(other)
                };
                let thief = replica
                    .granted
                    .iter()
                    .find(|(other, host)| *other != claim.0 && !lets(host) && overlap(&claim.1, host));
                assert_eq!(thief, None, "took {claim:?}");
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Put(name, hosts, created) => {
                self.version += 1;
                let version = self.version;
                let hosts: BTreeSet<Arc<str>> = hosts.iter().map(|host| HOSTS[*host].into()).collect();
                let fresh = || Object {
                    uid: format!("uid{version}"),
                    created: *created,
                    hosts: BTreeSet::new(),
                    record: None,
                    version,
                };
                let object = self.objects.entry(*name).or_insert_with(fresh);
                (object.hosts, object.version) = (hosts, version);
            }
            Step::Delete(name) => drop(self.objects.remove(name)),
            Step::See(replica) => self.see(*replica),
            Step::Write(replica) => drop(self.write(*replica)),
            Step::Restart(replica) => {
                // After a restart, only recorded claims are known. A route that took a host over from another route of its
                // namespace has no record of it before a gateway has seen both.
                let objects = &self.objects;
                self.established.retain(|(namespace, host)| {
                    let mut all = objects.iter().filter(|(name, _)| self::namespace(**name) == *namespace);
                    all.any(|(_, object)| {
                        object.hosts.contains(&**host) && object.record().since(host).is_some()
                    })
                });
                self.replicas[*replica] = Replica::default();
                self.see(*replica);
            }
            Step::Settle => self.settle(),
        }
        let given_up: Vec<_> = self.established.iter().filter(|claim| !self.named(claim)).cloned().collect();
        for claim in given_up {
            self.established.remove(&claim);
        }
        self.check_promise();
    }
}

fn a_step() -> impl Strategy<Value = Step> {
    let name = || (0..3_u8, 0..2_u8);
    let hosts = proptest::collection::btree_set(0..HOSTS.len(), 0..4);
    prop_oneof![
        4 => (name(), hosts, 0..5_u64).prop_map(|(name, hosts, created)| Step::Put(name, hosts, created)),
        1 => name().prop_map(Step::Delete),
        3 => (0..REPLICAS).prop_map(Step::See),
        2 => (0..REPLICAS).prop_map(Step::Write),
        1 => (0..REPLICAS).prop_map(Step::Restart),
        2 => Just(Step::Settle),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, ..ProptestConfig::default() })]

    #[test]
    fn no_namespace_gets_a_host_that_another_one_had_first_and_has_not_given_up(
        steps in proptest::collection::vec(a_step(), 0..40),
        allow in any::<bool>(),
    ) {
        let overlap = if allow { HostOverlap::Allow } else { HostOverlap::Deny };
        let mut inputs = PlanInputs::new(HostRules { overlap, ..HostRules::default() });
        for step in steps.iter().chain([&Step::Settle]) {
            inputs.step(step);
        }
    }
}

fn record(entries: &[(&str, i64)]) -> ClaimRecord {
    entries.iter().map(|(host, time)| (Arc::from(*host), ClaimTime(*time))).collect()
}

fn read(text: &str) -> ClaimRecord {
    ClaimRecord::read(&[
        json!({"type": "Ready", "message": "x"}),
        json!({"type": "HostsClaimed", "message": text}),
    ])
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let all =
        record(&[("b.test", 1_700_000_000_000_001), ("*.c.test", 0), ("a.test", 1_700_000_000_000_001)]);
    let text = "1970-01-01T00:00:00Z *.c.test; 2023-11-14T22:13:20.000001Z a.test, b.test";
    assert_eq!(all.to_string(), text);
    assert_eq!(read(text), all);
    assert_eq!(record(&[]).to_string(), "");
}

#[test]
fn a_text_that_is_no_record_claims_nothing() {
    for text in [
        "",
        "serving",
        "a.test",
        "2023-11-14T22:13:20Z",
        "2023-11-14T22:13:20Z ",
        "2023-11-14T22:13:20Z a.test, b c",
        "soon a.test",
        "2023-11-14T22:13:20Z a.test;2023-11-14T22:13:20Z b.test",
    ] {
        assert!(read(text).is_empty(), "{text:?}");
    }
    assert!(ClaimRecord::read(&[]).is_empty());
    assert!(ClaimRecord::read(&[json!({"type": "HostsClaimed"}), json!(7)]).is_empty());
}

#[test]
fn a_record_has_a_bound_and_says_how_many_hosts_it_leaves_out() {
    let host = |n: i64| format!("{n:0>60}.{n:0>60}.test");
    let hosts: Vec<(String, i64)> = (0..1000).map(|n| (host(n), n % 7)).collect();
    let hosts: Vec<(&str, i64)> = hosts.iter().map(|(host, time)| (host.as_str(), *time)).collect();
    let text = record(&hosts).to_string();
    assert!(text.len() < LONGEST_RECORD + 100, "{}", text.len());
    let kept = read(&text);
    let left = 1000 - kept.entries().count();
    assert!(left > 0 && text.ends_with(&format!("; and {left} more that do not fit: split the route")));
    assert!(kept.entries().all(|(host, time)| hosts.contains(&(&**host, time.0))));
}
