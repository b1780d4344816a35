//! The fleet: gateways report the load of services, and targets are decided about when something can have changed. Ten thousand
//! random histories are compared with a model that tells every autoscaler everything each second.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]
#![cfg(not(any(loom, shuttle)))]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use proptest::prelude::*;
use rouse_core::endpoint::ServiceId;
use rouse_core::load_meter::{LoadKey, LoadSample};
use rouse_core::scale::{
    Autoscaler, CurrentLoad, Fleet, IdlePolicy, LoadReport, LoadUpdate, MAX_KEYS, ObservedTarget, Owner,
    Reporter, ScalePolicy, ScaleReason, ScaleSettings,
};
use rouse_core::time::{Moment, WallTime};

fn at(n: u64) -> Moment {
    Moment::from_secs(n)
}

fn service(name: &str) -> ServiceId {
    ServiceId::new("shop", name).unwrap()
}

fn key(name: &str) -> LoadKey {
    LoadKey::Service(service(name))
}

fn pods(replicas: u32) -> ObservedTarget<()> {
    ObservedTarget { replicas, ready: replicas, owner: Owner::Rouse, token: () }
}

/// A target concurrency of 10, and no limit on how many pods go at a time: such a limit counts from the moments of decisions,
/// and a fleet decides at other moments than the model.
fn ten() -> ScalePolicy {
    let settings = ScaleSettings {
        concurrency: Some(10.0),
        max: 20,
        max_scale_down_rate: 1_000_000.0,
        ..ScaleSettings::default()
    };
    ScalePolicy::try_from(&settings).unwrap()
}

/// The meter of one service in one gateway, by hand.
#[derive(Debug, Clone, Default)]
struct Counter {
    requests: u64,
    busy: Duration,
    present: u32,
}

impl Counter {
    fn sample(&self, name: &str, at: Moment) -> LoadSample {
        let Self { requests, busy, present } = *self;
        LoadSample { key: key(name), at, requests, busy, present, held: 0 }
    }
}

/// One target `cart` of one service `cart`, whose pods follow each decision at once, and gateways.
struct Scene {
    fleet: Fleet<&'static str, ()>,
    now: Moment,
    counters: BTreeMap<String, Counter>,
    replicas: u32,
}

impl Scene {
    /// A target that has had these pods and no load for longer than any window.
    fn new(replicas: u32, gateways: &[&str]) -> Self {
        let mut scene =
            Self { fleet: Fleet::new(at(1000)), now: at(1000), counters: BTreeMap::new(), replicas };
        scene.fleet.set_target(scene.now, &"cart", &ten(), BTreeSet::from([service("cart")]));
        scene.list(gateways);
        for gateway in gateways {
            scene.send(gateway, true, 0);
        }
        scene.observe();
        scene
    }

    fn list(&mut self, gateways: &[&str]) {
        let gateways: Vec<Reporter> = gateways.iter().map(|name| Reporter::new(name)).collect();
        self.fleet.list(self.now, &gateways);
    }

    fn observe(&mut self) {
        self.fleet.observe(self.now, &"cart", pods(self.replicas));
    }

    /// A second with `present` requests at each of these gateways. The others are silent.
    fn second(&mut self, gateways: &[(&str, u32)]) {
        self.now = self.now + Duration::from_secs(1);
        for (gateway, present) in gateways {
            let counter = self.counters.entry((*gateway).to_owned()).or_default();
            counter.busy += Duration::from_secs(1) * *present;
            counter.requests += u64::from(present.saturating_sub(counter.present));
            counter.present = *present;
            self.send(gateway, false, 7);
        }
    }

    fn send(&mut self, gateway: &str, complete: bool, boot: u64) {
        let sample = self.counters.get(gateway).map(|counter| counter.sample("cart", self.now));
        let samples = sample.into_iter().collect();
        self.fleet.heard(self.now, &Reporter::new(gateway), LoadUpdate { boot, complete, samples });
    }

    /// Decides, and lets the pods follow. Returns the last reason.
    fn decide(&mut self) -> Option<ScaleReason> {
        let mut last = None;
        for (_, decision) in self.fleet.decide(self.now) {
            self.replicas = decision.desired;
            last = Some(decision.reason);
        }
        if last.is_some() {
            self.observe();
        }
        last
    }

    fn seconds(&mut self, count: u64, gateways: &[(&str, u32)]) -> Option<ScaleReason> {
        let mut last = None;
        for _ in 0..count {
            self.second(gateways);
            last = self.decide().or(last);
        }
        last
    }
}

#[test]
fn the_load_of_all_gateways_is_summed() {
    let mut scene = Scene::new(1, &["a", "b", "c"]);
    scene.seconds(70, &[("a", 0), ("b", 0), ("c", 0)]);
    scene.replicas = 1;
    scene.observe();
    scene.seconds(130, &[("a", 10), ("b", 15), ("c", 20)]);
    assert_eq!(scene.replicas, 5);
}

#[test]
fn a_silent_gateway_that_is_listed_keeps_the_pods_and_its_return_lets_them_go() {
    let mut scene = Scene::new(3, &["a", "b"]);
    scene.seconds(50, &[("a", 0), ("b", 0)]);
    scene.seconds(100, &[("a", 0)]);
    assert_eq!(scene.replicas, 3);
    let reason = scene.seconds(1, &[("a", 0)]);
    assert!(matches!(reason, None | Some(ScaleReason::ReporterStale { .. })), "{reason:?}");
    scene.seconds(1, &[("a", 0), ("b", 0)]);
    assert_eq!(scene.replicas, 0);
}

#[test]
fn a_gateway_that_is_not_listed_any_more_is_forgotten() {
    let mut scene = Scene::new(1, &["a", "b"]);
    scene.seconds(70, &[("a", 0), ("b", 30)]);
    assert!(scene.replicas >= 3);
    scene.list(&["a"]);
    scene.seconds(200, &[("a", 0)]);
    assert_eq!(scene.replicas, 0);
}

#[test]
fn nothing_is_scaled_down_while_no_gateway_is_listed() {
    let mut scene = Scene::new(4, &[]);
    scene.seconds(300, &[]);
    assert_eq!(scene.replicas, 4);
}

#[test]
fn a_target_without_load_is_due_only_when_time_can_change_the_decision() {
    let mut scene = Scene::new(0, &["a"]);
    let mut decisions = 0;
    for _ in 0..3600 {
        scene.now = scene.now + Duration::from_secs(1);
        let heartbeat = LoadUpdate { boot: 0, complete: false, samples: Vec::new() };
        scene.fleet.heard(scene.now, &Reporter::new("a"), heartbeat);
        decisions += scene.fleet.decide(scene.now).len();
    }
    assert!(decisions < 10, "{decisions} decisions in an hour without load");
}

#[test]
fn a_request_shorter_than_a_second_counts() {
    let mut scene = Scene::new(1, &["a"]);
    scene.seconds(100, &[("a", 0)]);
    // The target is at zero by now, and the gateway has woken it.
    scene.replicas = 1;
    scene.observe();
    scene.seconds(50, &[("a", 0)]);
    scene.counters.get_mut("a").unwrap().requests += 1;
    scene.seconds(59, &[("a", 0)]);
    assert_eq!(scene.replicas, 1, "idle-after counts from that request");
    scene.seconds(5, &[("a", 0)]);
    assert_eq!(scene.replicas, 0);
}

#[test]
fn what_happened_before_the_controller_started_is_no_load() {
    let mut scene = Scene::new(0, &["a"]);
    let counter = Counter { requests: 1_000_000, busy: Duration::from_hours(1), present: 0 };
    scene.counters.insert("a".to_owned(), counter);
    scene.now = scene.now + Duration::from_secs(1);
    scene.send("a", true, 9);
    scene.decide();
    assert_eq!(scene.replicas, 0);
    assert_eq!(scene.fleet.loads().present(&key("cart")), CurrentLoad::default());
}

#[test]
fn the_first_requests_of_a_new_gateway_count() {
    let mut fleet: Fleet<&str, ()> = Fleet::new(at(0));
    let gateway = Reporter::new("new");
    fleet.list(at(500), std::slice::from_ref(&gateway));
    fleet.set_target(at(500), &"cart", &ten(), BTreeSet::from([service("cart")]));
    fleet.observe(at(500), &"cart", pods(0));
    drop(fleet.decide(at(500)));
    // It started 2 s ago and has had one short request since.
    let sample = Counter { requests: 1, ..Counter::default() }.sample("cart", at(2));
    fleet.heard(at(501), &gateway, LoadUpdate { boot: 1, complete: true, samples: vec![sample] });
    let decisions = fleet.decide(at(501));
    assert_eq!(decisions[0].1.desired, 1);
}

#[test]
fn a_complete_update_ends_the_load_of_what_it_leaves_out_and_so_does_a_restart() {
    for (boot, complete) in [(7, true), (8, true), (8, false)] {
        let mut scene = Scene::new(1, &["a"]);
        scene.second(&[("a", 5)]);
        assert_eq!(scene.fleet.loads().present(&key("cart")).total(), 5);
        let empty = LoadUpdate { boot, complete, samples: Vec::new() };
        let heard = scene.fleet.heard(scene.now, &Reporter::new("a"), empty);
        let changed: Vec<LoadKey> = heard.changes.into_iter().map(|change| change.key).collect();
        assert_eq!(changed, [key("cart")]);
        assert_eq!(scene.fleet.loads().present(&key("cart")).total(), 0, "{boot} {complete}");
    }
}

#[test]
fn a_gateway_cannot_report_more_services_than_the_limit() {
    let mut fleet: Fleet<&str, ()> = Fleet::new(at(0));
    let samples = (0..MAX_KEYS + 3).map(|n| Counter::default().sample(&format!("s{n}"), at(1))).collect();
    let update = LoadUpdate { boot: 1, complete: true, samples };
    let heard = fleet.heard(at(1), &Reporter::new("a"), update);
    assert_eq!((heard.changes.len(), heard.refused), (MAX_KEYS, 3));
}

#[test]
fn two_services_of_one_target_are_summed_and_a_service_that_is_taken_away_is_not() {
    let mut fleet: Fleet<&str, ()> = Fleet::new(at(0));
    let gateway = Reporter::new("a");
    fleet.list(at(0), std::slice::from_ref(&gateway));
    fleet.set_target(at(0), &"both", &ten(), BTreeSet::from([service("x"), service("y")]));
    let mut desired = 0;
    for n in 1..200 {
        let counter = Counter { requests: 20, busy: Duration::from_secs(20 * n), present: 20 };
        let samples = ["x", "y"].map(|name| counter.sample(name, at(n))).to_vec();
        fleet.heard(at(n), &gateway, LoadUpdate { boot: 1, complete: n == 1, samples });
        fleet.observe(at(n), &"both", pods(desired.max(1)));
        for (_, decision) in fleet.decide(at(n)) {
            desired = decision.desired;
        }
        if n == 100 {
            assert_eq!(desired, 4);
            fleet.set_target(at(n), &"both", &ten(), BTreeSet::from([service("y")]));
        }
    }
    assert_eq!(desired, 2);
    fleet.remove_target(&"both");
    assert_eq!((fleet.targets().count(), fleet.next_due()), (0, None));
}

fn with_schedule(text: &str) -> ScalePolicy {
    let settings = ScaleSettings { schedule: text.parse().unwrap(), ..ScaleSettings::default() };
    ScalePolicy::try_from(&settings).unwrap()
}

/// 1970-01-02, a Friday, at this time.
fn friday(hour: u64, minute: u64) -> WallTime {
    WallTime::from_unix_millis(i64::try_from((24 + hour) * 3_600_000 + minute * 60_000).unwrap())
}

#[test]
fn a_schedule_holds_for_targets_that_came_before_the_clock_and_after_it() {
    let mut fleet: Fleet<&str, ()> = Fleet::new(at(0));
    let morning = with_schedule("Fri 08:00-09:00 UTC = 2");
    fleet.set_target(at(0), &"before", &morning, BTreeSet::from([service("x")]));
    fleet.observe(at(0), &"before", pods(0));
    assert_eq!(fleet.decide(at(0))[0].1.desired, 0, "wall time is not known");
    fleet.set_wall_clock(at(10), friday(7, 0));
    fleet.set_target(at(20), &"after", &morning, BTreeSet::from([service("y")]));
    fleet.observe(at(20), &"after", pods(0));
    let window = at(10 + 3600);
    while let Some(due) = fleet.next_due().filter(|due| *due < window) {
        assert!(fleet.decide(due).iter().all(|(_, decision)| decision.desired == 0));
    }
    assert_eq!(fleet.next_due(), Some(window));
    let decisions = fleet.decide(window);
    let desired: Vec<(&str, u32)> =
        decisions.iter().map(|(key, decision)| (*key, decision.desired)).collect();
    assert_eq!(desired, [("after", 2), ("before", 2)]);
    assert_eq!(decisions[0].1.reason, ScaleReason::Schedule);
}

#[test]
fn a_clock_that_is_set_is_followed_at_once_and_one_that_runs_costs_nothing() {
    let mut fleet: Fleet<&str, ()> = Fleet::new(at(0));
    fleet.set_wall_clock(at(0), friday(12, 0));
    fleet.set_target(
        at(0),
        &"cart",
        &with_schedule("Fri 08:00-09:00 UTC = 2"),
        BTreeSet::from([service("x")]),
    );
    fleet.observe(at(0), &"cart", pods(0));
    drop(fleet.decide(at(0)));
    let due = fleet.next_due();
    for n in 1..50 {
        fleet.set_wall_clock(at(n), friday(12, 0) + Duration::from_millis(1001 * n));
        assert_eq!(fleet.next_due(), due);
    }
    fleet.set_wall_clock(at(50), friday(8, 30));
    assert_eq!(fleet.next_due(), Some(at(50)));
    assert_eq!(fleet.decide(at(50))[0].1.desired, 2);
}

#[test]
fn what_a_target_has_learned_can_be_taken_and_given_back() {
    let settings = ScaleSettings {
        idle: IdlePolicy::Learned { cold_start_cost: Duration::from_mins(10) },
        ..ScaleSettings::default()
    };
    let learned = ScalePolicy::try_from(&settings).unwrap();
    let mut scene = Scene::new(1, &["a"]);
    scene.fleet.set_target(scene.now, &"cart", &learned, BTreeSet::from([service("cart")]));
    assert_eq!(scene.fleet.scaler(&"cart").unwrap().learned(), None, "nothing yet");
    for _ in 0..6 {
        scene.seconds(5, &[("a", 1)]);
        scene.seconds(60, &[("a", 0)]);
    }
    let bytes = scene.fleet.scaler(&"cart").unwrap().learned().unwrap();
    let mut other: Fleet<&str, ()> = Fleet::new(at(0));
    other.set_target(at(0), &"cart", &learned, BTreeSet::from([service("cart")]));
    other.observe(at(0), &"cart", pods(0));
    drop(other.decide(at(0)));
    other.restore_learned(at(1), &"cart", &bytes).unwrap();
    assert_eq!(other.next_due(), Some(at(1)), "it may decide otherwise now");
    assert_eq!(other.scaler(&"cart").unwrap().learned(), Some(bytes));
    assert!(other.restore_learned(at(1), &"cart", &bytes[1..]).is_err());
    assert_eq!(other.restore_learned(at(1), &"gone", &bytes), Ok(()));
}

/// One second of a history: for each gateway whether it is heard, and the present requests and short requests of each service.
type Second = Vec<(bool, [(u32, u64); 3])>;

const SERVICES: [&str; 3] = ["x", "y", "z"];
/// The targets, and the services that lead to each.
const TARGETS: [(&str, &[&str]); 2] = [("first", &["x", "y"]), ("second", &["z"])];

/// Tells every autoscaler of every gateway that is heard, each second, and asks it each second.
struct Naive {
    scalers: BTreeMap<&'static str, Autoscaler>,
    last: HashMap<(usize, &'static str), LoadSample>,
}

impl Naive {
    fn new(now: Moment, gateways: &[Reporter]) -> Self {
        let scaler = || {
            let mut scaler = Autoscaler::new(ten(), now);
            scaler.list(now, gateways.iter().cloned()).unwrap();
            scaler
        };
        Self { scalers: TARGETS.iter().map(|(name, _)| (*name, scaler())).collect(), last: HashMap::new() }
    }

    fn hear(
        &mut self,
        now: Moment,
        n: usize,
        gateway: &Reporter,
        samples: &BTreeMap<&'static str, LoadSample>,
    ) {
        for (target, services) in TARGETS {
            let present = services.iter().map(|name| CurrentLoad::from(&samples[name]));
            let in_flight = present.map(|present| present.in_flight).sum();
            let present = CurrentLoad { in_flight, ..CurrentLoad::default() };
            for name in services {
                let sample = &samples[name];
                let before = self.last.insert((n, name), sample.clone());
                let scaler = self.scalers.get_mut(target).unwrap();
                // What was before the first reading is of an unknown time.
                if before.is_none() && sample.requests > 0 {
                    scaler.assume_load(now);
                }
                let before = before.unwrap_or_else(|| LoadSample { present: 0, ..sample.clone() });
                let silence = sample.at.since(before.at);
                let report = LoadReport { present, ..LoadReport::after_silence(&before, sample, silence) };
                scaler.report(now, gateway, &report).unwrap();
            }
        }
    }
}

fn history() -> impl Strategy<Value = Vec<(u32, Second)>> {
    let load = prop_oneof![5 => Just((0, 0)), 2 => (1_u32..40, 0_u64..3), 1 => (Just(0), 1_u64..3)];
    let gateway = (prop::bool::weighted(0.9), [load.clone(), load.clone(), load]);
    // Each is repeated for some seconds.
    prop::collection::vec((1_u32..70, prop::collection::vec(gateway, 2)), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn a_fleet_decides_as_if_every_gateway_reported_every_service_each_second(history in history()) {
        let gateways = [Reporter::new("a"), Reporter::new("b")];
        let mut now = at(1000);
        let (mut fleet, mut naive) = (Fleet::new(now), Naive::new(now, &gateways));
        fleet.list(now, &gateways);
        let mut replicas: BTreeMap<&str, u32> = BTreeMap::new();
        for (target, services) in TARGETS {
            fleet.set_target(now, &target, &ten(), services.iter().map(|name| service(name)).collect());
            replicas.insert(target, 3);
        }
        let mut counters: Vec<BTreeMap<&'static str, Counter>> = vec![BTreeMap::new(); 2];
        let mut sent: HashMap<(usize, &str), (u64, u32)> = HashMap::new();
        let (mut complete, mut observed) = ([true; 2], HashMap::new());
        for (seconds, second) in history {
            for _ in 0..seconds {
                now = now + Duration::from_secs(1);
                for (n, (heard, loads)) in second.iter().enumerate() {
                    let mut samples = BTreeMap::new();
                    for (name, (present, short)) in SERVICES.iter().zip(loads) {
                        let counter = counters[n].entry(name).or_default();
                        counter.busy += Duration::from_secs(1) * *present;
                        counter.requests += short + u64::from(present.saturating_sub(counter.present));
                        counter.present = *present;
                        samples.insert(*name, counter.sample(name, now));
                    }
                    if !heard {
                        continue;
                    }
                    naive.hear(now, n, &gateways[n], &samples);
                    // As the feed does: what has load or has changed.
                    let mut changed = Vec::new();
                    for (name, sample) in samples {
                        let state = (sample.requests, sample.present);
                        if sent.insert((n, name), state) != Some(state) || sample.present > 0 {
                            changed.push(sample);
                        }
                    }
                    let complete = std::mem::take(&mut complete[n]);
                    fleet.heard(now, &gateways[n], LoadUpdate { boot: 1, complete, samples: changed });
                }
                // Only what has changed, as a watch does.
                for (target, replicas) in &replicas {
                    if observed.insert(*target, *replicas) != Some(*replicas) {
                        fleet.observe(now, target, pods(*replicas));
                    }
                }
                let decided: BTreeMap<&str, u32> =
                    fleet.decide(now).into_iter().map(|(key, decision)| (key, decision.desired)).collect();
                for (target, replicas) in &mut replicas {
                    let decision = naive.scalers.get_mut(target).unwrap().decide(now, pods(*replicas));
                    prop_assert_eq!(
                        decided.get(target).copied().unwrap_or(*replicas), decision.desired,
                        "{} at {:?}: {}", target, now, decision.reason
                    );
                    *replicas = decision.desired;
                }
            }
        }
    }
}

/// An Envoy that may send requests to these services and does not report.
fn silent(services: &[&str]) -> rouse_core::scale::SilentEnvoys {
    use rouse_core::scale::{EnvoyId, EnvoyLoad, EnvoyServices, EnvoyState, EnvoyTable, EnvoyUpdate};
    let services = EnvoyServices::Named(services.iter().map(|name| service(name)).collect());
    let state = EnvoyState { load: EnvoyLoad::Silent { since: at(0) }, services };
    let envoys = vec![(EnvoyId::new("", "edge-1"), Some(state))];
    let mut table = EnvoyTable::default();
    table.update(&Reporter::new("xds-1"), EnvoyUpdate { complete: true, envoys });
    table.silent()
}

#[test]
fn a_silent_envoy_keeps_the_pods_of_its_services_and_of_no_others() {
    for (named, expected) in [("till", 0), ("cart", 3)] {
        let mut scene = Scene::new(3, &["a"]);
        scene.fleet.set_silent_envoys(scene.now, silent(&[named]));
        scene.seconds(200, &[("a", 0)]);
        assert_eq!(scene.replicas, expected, "an Envoy of {named}");
        scene.fleet.set_silent_envoys(scene.now, silent(&[]));
        scene.seconds(5, &[("a", 0)]);
        assert_eq!(scene.replicas, 0);
    }
}
