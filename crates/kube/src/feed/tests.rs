//! The feed beside a naive model: in whatever order facts come, the registry has what there is.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use rouse_core::endpoint::PortName;
use rouse_core::merge::Policy;
use rouse_core::registry::Settings;
use rouse_testkit::fakes::Bench;
use serde_json::json;

use super::*;

const SERVICES: [&str; 2] = ["a", "b"];

/// A slice as the API server has it.
#[derive(Debug, Clone)]
struct Written {
    home: Option<usize>,
    /// Which pods, and whether they are pods at all.
    endpoints: Vec<(u8, bool)>,
}

#[derive(Debug, Clone)]
enum Fact {
    PutSlice(usize, Written),
    DropSlice(usize),
    /// It changes while the watch is broken: nothing is seen until the next list.
    Unseen(usize, Option<Written>),
    /// `Some(true)`: opted in to endpoints without a pod.
    PutService(usize, bool),
    DropService(usize),
    ListSlices,
    ListServices,
}

#[derive(Debug, Default)]
struct Cluster {
    slices: BTreeMap<usize, Written>,
    services: BTreeMap<usize, bool>,
    /// Something was not seen yet.
    behind: bool,
}

fn slice(n: usize, written: &Written) -> SliceFacts {
    let endpoint = |(pod, real): &(u8, bool)| {
        let target =
            real.then(|| json!({"kind": "Pod", "name": format!("p{pod}"), "uid": format!("p{pod}")}));
        json!({"addresses": [format!("10.0.0.{pod}")], "targetRef": target})
    };
    let labels = written.home.map(|home| json!({"kubernetes.io/service-name": SERVICES[home]}));
    let endpoints: Vec<_> = written.endpoints.iter().map(endpoint).collect();
    serde_json::from_value(json!({
        "metadata": {"name": format!("s{n}"), "namespace": "shop", "labels": labels},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 80}], "endpoints": endpoints,
    }))
    .unwrap()
}

fn service(n: usize, manual: bool) -> ServiceFacts {
    let annotations = json!({"rouse.dev/manual-endpoints": if manual { "allow" } else { "no" }});
    let object = json!({"metadata": {"name": SERVICES[n], "namespace": "shop", "annotations": annotations},
                        "spec": {"ports": [{"name": "http", "port": 80}]}});
    ServiceFacts::new(serde_json::from_value(object).unwrap()).unwrap()
}

/// What the registry must have of a service: `None` if there is no such Service.
fn expected(cluster: &Cluster, n: usize) -> Option<BTreeSet<String>> {
    let manual = *cluster.services.get(&n)?;
    let slices = cluster.slices.values().filter(|slice| slice.home == Some(n));
    let endpoints = slices.flat_map(|slice| &slice.endpoints).filter(|(_, real)| *real || manual);
    Some(endpoints.map(|(pod, _)| format!("10.0.0.{pod}:80")).collect())
}

fn actual(registry: &Registry, n: usize) -> Option<BTreeSet<String>> {
    let service = registry.get(&ServiceId::new("shop", SERVICES[n]).unwrap())?;
    let snapshot = Arc::clone(&service.snapshot());
    let endpoints =
        snapshot.port(&PortName::new("http")).map(|port| port.endpoints().to_vec()).unwrap_or_default();
    Some(endpoints.iter().map(|endpoint| endpoint.addresses[0].to_string()).collect())
}

fn rung(bell: &Notify) -> bool {
    pin!(bell.notified()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
}

fn facts() -> impl Strategy<Value = Fact> {
    let endpoints = proptest::collection::vec((1..5_u8, proptest::bool::weighted(0.8)), 0..4);
    let written = (proptest::option::weighted(0.9, 0..2_usize), endpoints)
        .prop_map(|(home, endpoints)| Written { home, endpoints });
    prop_oneof![
        1 => (0..3_usize, proptest::option::of(written.clone())).prop_map(|(n, written)| Fact::Unseen(n, written)),
        4 => (0..3_usize, written).prop_map(|(n, written)| Fact::PutSlice(n, written)),
        2 => (0..3_usize).prop_map(Fact::DropSlice),
        3 => (0..2_usize, any::<bool>()).prop_map(|(n, manual)| Fact::PutService(n, manual)),
        1 => (0..2_usize).prop_map(Fact::DropService),
        1 => Just(Fact::ListSlices),
        1 => Just(Fact::ListServices),
    ]
}

fn take_in(feed: &mut Feed, cluster: &mut Cluster, fact: Fact) {
    let all = |cluster: &Cluster| cluster.slices.iter().map(|(n, written)| slice(*n, written)).collect();
    match fact {
        Fact::PutSlice(n, written) => {
            feed.put_slice(slice(n, &written));
            cluster.slices.insert(n, written);
        }
        Fact::DropSlice(n) => {
            if let Some(written) = cluster.slices.remove(&n) {
                feed.remove_slice(&slice(n, &written));
            }
        }
        Fact::Unseen(n, written) => {
            cluster.slices.remove(&n);
            cluster.slices.extend(written.map(|written| (n, written)));
            cluster.behind = true;
        }
        Fact::PutService(n, manual) => {
            feed.put_service(service(n, manual));
            cluster.services.insert(n, manual);
        }
        Fact::DropService(n) => {
            cluster.services.remove(&n);
            feed.remove_service(&ServiceId::new("shop", SERVICES[n]).unwrap());
        }
        Fact::ListSlices => {
            feed.replace_slices(all(cluster));
            cluster.behind = false;
        }
        Fact::ListServices => {
            feed.replace_services(cluster.services.iter().map(|(n, manual)| service(*n, *manual)).collect());
        }
    }
    if rung(&feed.lost) {
        feed.replace_slices(all(cluster));
        cluster.behind = false;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn the_registry_has_what_there_is(history in proptest::collection::vec(facts(), 1..25)) {
        let policy = Policy { manual_endpoints: true, ..Policy::default() };
        let bench = Bench::with(Settings { policy, ..Settings::default() });
        let mut feed = Feed::new(Arc::clone(&bench.registry), false, Arc::default());
        let mut cluster = Cluster::default();
        for fact in history {
            take_in(&mut feed, &mut cluster, fact);
            for (n, name) in SERVICES.iter().enumerate() {
                let (is, should) = (actual(&bench.registry, n), expected(&cluster, n));
                prop_assert_eq!(is.is_some(), should.is_some(), "Service {}", name);
                prop_assert!(cluster.behind || is == should, "Service {}: {:?}, not {:?}", name, is, should);
            }
        }
    }
}

/// Whoever has a service or its port in hand would wait for one that is no more.
#[test]
fn a_service_or_a_port_that_went_and_came_back_is_told_of_although_it_looks_the_same() {
    let bench = Bench::new();
    let mut feed = Feed::new(Arc::clone(&bench.registry), false, Arc::default());
    let facts = |port: &str| {
        let json = json!({
            "metadata": {"namespace": "shop", "name": "a"},
            "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": port, "port": 80}]},
        });
        ServiceFacts::new(serde_json::from_value(json).unwrap()).unwrap()
    };
    feed.put_service(facts("http"));
    assert!(!feed.take_remade(), "nobody had it");
    feed.remove_service(&"shop/a".parse().unwrap());
    feed.put_service(facts("http"));
    assert!(feed.take_remade() && !feed.take_remade());
    feed.put_service(facts("web"));
    feed.put_service(facts("http"));
    assert!(feed.take_remade());
}
