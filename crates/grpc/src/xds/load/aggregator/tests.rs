//! Sums and memories of Envoys, also against a model.

use proptest::prelude::*;
use rouse_core::scale::MAX_ENVOY_SERVICES;

use super::*;

fn at(seconds: u64) -> Moment {
    Moment::from_secs(seconds)
}

fn service(name: &str) -> ServiceId {
    ServiceId::new("shop", name).unwrap()
}

fn envoy(node: &str) -> EnvoyId {
    EnvoyId::new("spiffe://a/envoy", node)
}

fn load(issued: u64, ended: u64, present: u64) -> ClusterLoad {
    ClusterLoad { issued, ended, present }
}

fn change(name: &str, began: u64, present: u64) -> ServiceChange {
    ServiceChange { service: service(name), began, present }
}

fn cart(load: ClusterLoad) -> [(ServiceId, ClusterLoad); 1] {
    [(service("cart"), load)]
}

/// Whether an Envoy is silent; `None`: it is not known.
fn silent(accounts: &mut EnvoyLoadAggregator, now: u64, node: &str) -> Option<bool> {
    accounts.states(at(now)).get(&envoy(node)).map(|state| state.load != EnvoyLoad::Reported)
}

fn connected(node: &str, services: &[&str]) -> ConnectedEnvoy {
    let services = EnvoyServices::Named(services.iter().map(|name| service(name)).collect());
    ConnectedEnvoy { id: envoy(node), services }
}

#[test]
fn the_load_of_a_service_is_the_sum_over_its_clusters_and_all_envoys() {
    let mut accounts = EnvoyLoadAggregator::default();
    let (a, b) = (accounts.open(at(0), envoy("a")), accounts.open(at(0), envoy("b")));
    let two = [(service("cart"), load(3, 0, 2)), (service("cart"), load(4, 0, 1))];
    assert_eq!(accounts.report(at(1), a, two), [change("cart", 7, 3)]);
    assert_eq!(accounts.report(at(1), b, cart(load(1, 1, 5))), [change("cart", 1, 8)]);
    assert_eq!(accounts.report(at(2), a, cart(load(0, 3, 0))), [change("cart", 0, 5)]);
    assert_eq!(
        accounts.report(at(2), b, []),
        [change("cart", 0, 0)],
        "it does not name the cluster: no load"
    );
    assert_eq!(accounts.report(at(3), b, cart(load(0, 0, 0))), []);
}

#[test]
fn an_envoy_that_does_not_say_how_many_began_is_counted_by_how_many_ended() {
    let mut accounts = EnvoyLoadAggregator::default();
    let old = accounts.open(at(0), envoy("old"));
    assert_eq!(accounts.report(at(1), old, cart(load(0, 4, 1))), [change("cart", 4, 1)]);
    assert_eq!(accounts.report(at(2), old, cart(load(0, 1, 0))), [change("cart", 1, 0)]);
    let new = accounts.open(at(2), envoy("new"));
    assert_eq!(accounts.report(at(3), new, cart(load(1, 0, 1))), [change("cart", 1, 1)]);
    assert_eq!(accounts.report(at(4), new, cart(load(0, 1, 0))), [change("cart", 0, 0)], "it began before");
}

#[test]
fn a_stream_that_ends_takes_its_requests_away_and_its_envoy_is_silent_for_ten_minutes() {
    let mut accounts = EnvoyLoadAggregator::default();
    let stream = accounts.open(at(0), envoy("a"));
    assert_eq!(silent(&mut accounts, 0, "a"), Some(true), "it has not reported yet");
    accounts.report(at(1), stream, cart(load(2, 0, 2)));
    assert_eq!(silent(&mut accounts, 1, "a"), Some(false));
    assert_eq!(accounts.close(at(2), stream), [change("cart", 0, 0)]);
    let state = accounts.states(at(2))[&envoy("a")].clone();
    assert_eq!(state.load, EnvoyLoad::Silent { since: at(1) });
    assert_eq!(state.services, EnvoyServices::Named([service("cart")].into()));
    assert_eq!(silent(&mut accounts, 601, "a"), Some(true));
    assert_eq!(silent(&mut accounts, 602, "a"), None);
}

#[test]
fn a_stream_without_messages_is_silent_and_keeps_its_requests() {
    let mut accounts = EnvoyLoadAggregator::default();
    let stream = accounts.open(at(0), envoy("a"));
    accounts.report(at(1), stream, cart(load(2, 0, 2)));
    assert_eq!(silent(&mut accounts, 5, "a"), Some(false));
    assert_eq!(silent(&mut accounts, 6, "a"), Some(true));
    assert_eq!(accounts.present(&service("cart")), 2);
    accounts.report(at(7), stream, cart(load(0, 0, 2)));
    assert_eq!(silent(&mut accounts, 7, "a"), Some(false));
}

#[test]
fn an_envoy_that_reports_again_is_not_silent() {
    let mut accounts = EnvoyLoadAggregator::default();
    let first = accounts.open(at(0), envoy("a"));
    accounts.report(at(1), first, cart(load(1, 0, 1)));
    accounts.close(at(2), first);
    let second = accounts.open(at(3), envoy("a"));
    assert_eq!(silent(&mut accounts, 3, "a"), Some(true), "it has only opened a stream");
    accounts.report(at(4), second, cart(load(0, 0, 0)));
    assert_eq!(silent(&mut accounts, 4, "a"), Some(false));
    assert_eq!(silent(&mut accounts, 5, "b"), None);
}

#[test]
fn a_connection_that_is_found_dead_after_the_reconnect_leaves_no_silent_envoy() {
    let mut accounts = EnvoyLoadAggregator::default();
    let first = accounts.open(at(0), envoy("a"));
    accounts.report(at(10), first, cart(load(1, 0, 1)));
    let second = accounts.open(at(11), envoy("a"));
    accounts.report(at(12), second, cart(load(0, 0, 1)));
    accounts.close(at(25), first);
    accounts.report(at(25), second, cart(load(0, 0, 1)));
    assert_eq!(silent(&mut accounts, 25, "a"), Some(false));
}

#[test]
fn an_envoy_with_the_id_of_another_does_not_stand_for_it() {
    let mut accounts = EnvoyLoadAggregator::default();
    let (one, twin) = (accounts.open(at(0), envoy("a")), accounts.open(at(0), envoy("a")));
    for second in 1..100 {
        accounts.report(at(second), one, cart(load(1, 0, 1)));
        accounts.report(at(second), twin, cart(load(1, 0, 1)));
    }
    accounts.close(at(100), one);
    accounts.report(at(101), twin, cart(load(0, 0, 1)));
    assert_eq!(silent(&mut accounts, 101, "a"), Some(true));
    let again = accounts.open(at(102), envoy("a"));
    accounts.report(at(103), again, cart(load(0, 0, 1)));
    accounts.report(at(103), twin, cart(load(0, 0, 1)));
    assert_eq!(silent(&mut accounts, 103, "a"), Some(false));
    // Each stream stands for one.
    accounts.close(at(104), twin);
    accounts.report(at(105), again, cart(load(0, 0, 1)));
    assert_eq!(silent(&mut accounts, 105, "a"), Some(true));
}

#[test]
fn an_envoy_with_endpoints_and_without_load_reports_is_silent_while_it_is_connected_and_after() {
    let mut accounts = EnvoyLoadAggregator::default();
    accounts.set_connected(at(0), &[connected("a", &["cart"]), connected("b", &[])]);
    for second in [0, 1000, 5000] {
        assert_eq!(silent(&mut accounts, second, "a"), Some(true));
        assert_eq!(silent(&mut accounts, second, "b"), None, "it has no endpoints of ours");
    }
    assert_eq!(accounts.states(at(5000))[&envoy("a")].load, EnvoyLoad::Silent { since: at(0) });
    let stream = accounts.open(at(5001), envoy("a"));
    accounts.report(at(5002), stream, []);
    let state = accounts.states(at(5002))[&envoy("a")].clone();
    assert_eq!(state.load, EnvoyLoad::Reported);
    assert_eq!(state.services, EnvoyServices::Named([service("cart")].into()));
    accounts.close(at(5003), stream);
    accounts.set_connected(at(5004), &[]);
    assert_eq!((silent(&mut accounts, 5602, "a"), silent(&mut accounts, 5603, "a")), (Some(true), None));
    accounts.set_connected(at(6000), &[connected("c", &["cart"])]);
    accounts.states(at(6000));
    accounts.set_connected(at(6001), &[]);
    assert_eq!((silent(&mut accounts, 6600, "c"), silent(&mut accounts, 6601, "c")), (Some(true), None));
}

#[test]
fn more_envoys_than_are_told_apart_keep_all_services_up() {
    let mut accounts = EnvoyLoadAggregator::default();
    for n in 0..=MAX_ENVOYS {
        let stream = accounts.open(at(0), envoy(&format!("e{n}")));
        accounts.report(at(1), stream, []);
    }
    let states = accounts.states(at(2));
    assert_eq!(states.len(), MAX_ENVOYS);
    let all = |state: &&EnvoyState| state.load != EnvoyLoad::Reported && state.services == EnvoyServices::All;
    assert_eq!(states.values().filter(all).count(), 1);
}

#[test]
fn more_ended_streams_than_are_remembered_keep_all_services_up_for_ten_minutes() {
    let mut accounts = EnvoyLoadAggregator::default();
    for _ in 0..=MAX_REMEMBERED {
        let stream = accounts.open(at(10), envoy("a"));
        accounts.report(at(20), stream, []);
        accounts.close(at(20), stream);
    }
    let all = |accounts: &mut EnvoyLoadAggregator, now| {
        accounts.states(at(now)).values().any(|state| state.services == EnvoyServices::All)
    };
    assert!(all(&mut accounts, 21) && all(&mut accounts, 619));
    assert!(!all(&mut accounts, 620));
}

#[test]
fn an_envoy_of_many_services_concerns_all() {
    let mut accounts = EnvoyLoadAggregator::default();
    let stream = accounts.open(at(0), envoy("a"));
    let names = (0..=MAX_ENVOY_SERVICES).map(|n| (service(&format!("s{n}")), load(0, 0, 0)));
    accounts.report(at(1), stream, names.collect::<Vec<_>>());
    assert_eq!(accounts.states(at(1))[&envoy("a")].services, EnvoyServices::All);
}

#[derive(Debug, Clone)]
enum Step {
    Open(usize),
    Report(usize, Vec<(usize, u64, u64, u64)>),
    Close(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let cluster = (0..3_usize, 0..5_u64, 0..5_u64, 0..5_u64);
    prop_oneof![
        2 => (0..2_usize).prop_map(Step::Open),
        6 => (0..6_usize, prop::collection::vec(cluster, 0..4)).prop_map(|(n, all)| Step::Report(n, all)),
        2 => (0..6_usize).prop_map(Step::Close),
        2 => (0..300_u64).prop_map(Step::Pass),
    ]
}

/// A stream, as the model knows it: its Envoy, whether it said how many began, and its present requests by service.
struct Known {
    id: StreamId,
    envoy: usize,
    reported: bool,
    issued: bool,
    present: [u64; 3],
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn sums_are_those_of_the_open_streams_and_every_broken_envoy_is_silent_or_replaced(
        steps in prop::collection::vec(step(), 0..60)
    ) {
        let (mut accounts, mut streams, mut now) = (EnvoyLoadAggregator::default(), Vec::<Known>::new(), 10);
        let (mut began, mut counted) = ([0_u64; 3], [0_u64; 3]);
        let mut last_end = [None::<u64>; 2];
        for step in steps {
            now += 2;
            let changes = match step {
                Step::Open(n) => {
                    let id = accounts.open(at(now), envoy(&n.to_string()));
                    streams.push(Known { id, envoy: n, reported: false, issued: false, present: [0; 3] });
                    Vec::new()
                }
                Step::Report(n, clusters) if !streams.is_empty() => {
                    let n = n % streams.len();
                    let known = &mut streams[n];
                    known.issued |= clusters.iter().any(|(_, issued, _, _)| *issued > 0);
                    known.reported = true;
                    known.present = [0; 3];
                    for (service, issued, ended, present) in &clusters {
                        known.present[*service] += present;
                        began[*service] += if known.issued { *issued } else { *ended };
                    }
                    let all = clusters.iter().map(|(n, issued, ended, present)| {
                        (service(&n.to_string()), load(*issued, *ended, *present))
                    });
                    accounts.report(at(now), known.id, all.collect::<Vec<_>>())
                }
                Step::Close(n) if !streams.is_empty() => {
                    let known = streams.remove(n % streams.len());
                    if known.reported {
                        last_end[known.envoy] = Some(now);
                    }
                    accounts.close(at(now), known.id)
                }
                Step::Report(..) | Step::Close(_) => Vec::new(),
                Step::Pass(seconds) => {
                    now += seconds;
                    Vec::new()
                }
            };
            for change in changes {
                let n: usize = change.service.name().parse().unwrap();
                counted[n] += change.began;
                prop_assert_eq!(change.present, streams.iter().map(|known| known.present[n]).sum::<u64>());
            }
            for n in 0..3 {
                let expected = streams.iter().map(|known| known.present[n]).sum::<u64>();
                prop_assert_eq!(accounts.present(&service(&n.to_string())), expected);
            }
            prop_assert_eq!(counted, began);
            for (n, ended) in last_end.iter().enumerate() {
                let is = silent(&mut accounts, now, &n.to_string());
                let open = streams.iter().any(|known| known.envoy == n);
                let recent = ended.is_some_and(|end| now < end + 600);
                if open {
                    prop_assert!(is.is_some());
                } else {
                    // Nothing stands for it.
                    prop_assert_eq!(is, recent.then_some(true));
                }
            }
        }
    }
}
