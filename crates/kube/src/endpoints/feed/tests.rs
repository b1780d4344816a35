//! The feed against a naive model: the registry is right for any order of facts.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use rouse_core::endpoint::PortName;
use rouse_core::merge::MergePolicy;
use rouse_core::registry::RegistrySettings;
use rouse_testkit::fakes::Bench;
use serde_json::json;

use super::*;
use crate::endpoints::endpoint_policy::{EndpointPolicy, ManualEndpoints};
use crate::endpoints::ownership::OwnershipCheck;
use crate::endpoints::pod_index::{PodChange, PodUpdate};

const SERVICES: [&str; 2] = ["a", "b"];

/// The operator lets Services opt in.
fn admission() -> Admission {
    let policy =
        EndpointPolicy { manual: ManualEndpoints::In(BTreeSet::from(["shop".to_owned()])), own: Vec::new() };
    Admission { ownership: OwnershipCheck::new(Arc::default(), Arc::default()), policy }
}

fn feed_of(bench: &Bench) -> RegistryFeed {
    let propagation = Arc::new(PropagationMeter::new(|| std::time::SystemTime::UNIX_EPOCH));
    RegistryFeed::new(Arc::clone(&bench.registry), admission(), propagation, Arc::default())
}

/// A slice as the API server has it.
#[derive(Debug, Clone)]
struct Written {
    home: Option<usize>,
    endpoints: Vec<(u8, Claim)>,
}

/// Pods with numbers above this are always there, and no endpoint has their addresses.
const ELSEWHERE: u8 = 10;

/// What an endpoint says that it is: the address is always that of the pod of its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// Nothing.
    Bare,
    /// The pod of its number.
    Pod,
    /// Another pod, whose address this is not.
    Other,
}

/// What a Service says of its endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ServiceOptions {
    opted: bool,
    selects: Selects,
}

/// The pods that a Service selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Selects {
    Nothing,
    /// By its selector, which is not compared with the pods.
    Selector,
    /// Those of a group, by its annotation.
    Group(u8),
}

#[derive(Debug, Clone)]
enum Fact {
    PutSlice(usize, Written),
    DropSlice(usize),
    /// It changes while the watch is broken: nothing is seen until the next list.
    Unseen(usize, Option<Written>),
    PutService(usize, ServiceOptions),
    DropService(usize),
    ListSlices,
    ListServices,
    /// A pod of a group.
    PutPod(u8, u8),
    DropPod(u8),
    ListPods,
    LosePods,
}

#[derive(Debug, Default)]
struct Cluster {
    slices: BTreeMap<usize, Written>,
    services: BTreeMap<usize, ServiceOptions>,
    /// The group of each pod.
    pods: BTreeMap<u8, u8>,
    /// Whether pods were listed.
    listed: bool,
    /// Something was not seen yet.
    behind: bool,
}

fn slice(n: usize, written: &Written) -> SliceFacts {
    let endpoint = |(pod, claim): &(u8, Claim)| {
        let named = |pod: u8| json!({"kind": "Pod", "name": format!("p{pod}"), "uid": format!("p{pod}")});
        let target = match claim {
            Claim::Bare => None,
            Claim::Pod => Some(named(*pod)),
            Claim::Other => Some(named(pod + ELSEWHERE)),
        };
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

fn pod(n: u8, group: u8) -> PodUpdate {
    let labels = json!({"group": format!("g{group}")});
    serde_json::from_value(json!({
        "metadata": {"name": format!("p{n}"), "namespace": "shop", "uid": format!("p{n}"), "labels": labels},
        "spec": {}, "status": {"podIPs": [{"ip": format!("10.0.0.{n}")}]},
    }))
    .unwrap()
}

fn service(n: usize, ServiceOptions { opted, selects }: ServiceOptions) -> ServiceSummary {
    let mut annotations = json!({"rouse.dev/manual-endpoints": if opted { "allow" } else { "no" }});
    if let Selects::Group(group) = selects {
        annotations["rouse.dev/selector"] = json!(format!("group=g{group}"));
    }
    let selector = if selects == Selects::Selector { json!({"app": "a"}) } else { json!({}) };
    let object = json!({"metadata": {"name": SERVICES[n], "namespace": "shop", "annotations": annotations},
                        "spec": {"selector": selector, "ports": [{"name": "http", "port": 80}]}});
    ServiceSummary::new(serde_json::from_value(object).unwrap()).unwrap()
}

/// What the registry must have of a service: `None` if there is no such Service.
fn expected(cluster: &Cluster, n: usize) -> Option<BTreeSet<String>> {
    let options = *cluster.services.get(&n)?;
    let slices = cluster.slices.values().filter(|slice| slice.home == Some(n));
    let counts = |(pod, claim): &&(u8, Claim)| match (options, claim) {
        (ServiceOptions { opted: true, .. }, _) => true,
        (ServiceOptions { selects: Selects::Nothing, .. }, _) | (_, Claim::Bare) => false,
        _ if !cluster.listed => true,
        (ServiceOptions { selects: Selects::Group(group), .. }, Claim::Pod) => {
            cluster.pods.get(pod) == Some(&group)
        }
        (_, Claim::Pod) => cluster.pods.contains_key(pod),
        (_, Claim::Other) => false,
    };
    let endpoints = slices.flat_map(|slice| &slice.endpoints).filter(counts);
    Some(endpoints.map(|(pod, _)| format!("10.0.0.{pod}:80")).collect())
}

fn actual(registry: &Registry, n: usize) -> Option<BTreeSet<String>> {
    let service = registry.get(&ServiceId::new("shop", SERVICES[n]).unwrap())?;
    let snapshot = Arc::clone(&service.snapshot());
    let endpoints =
        snapshot.port(&PortName::new("http")).map(|port| port.endpoints().to_vec()).unwrap_or_default();
    Some(endpoints.iter().map(|endpoint| endpoint.addresses[0].to_string()).collect())
}

fn was_notified(changed: &Notify) -> bool {
    pin!(changed.notified()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
}

fn facts() -> impl Strategy<Value = Fact> {
    let claim = prop_oneof![6 => Just(Claim::Pod), 1 => Just(Claim::Bare), 1 => Just(Claim::Other)];
    let endpoints = proptest::collection::vec((1..5_u8, claim), 0..4);
    let selects = prop_oneof![
        1 => Just(Selects::Nothing),
        2 => Just(Selects::Selector),
        2 => (0..2_u8).prop_map(Selects::Group),
    ];
    let options = (proptest::bool::weighted(0.3), selects);
    let options = options.prop_map(|(opted, selects)| ServiceOptions { opted, selects });
    let written = (proptest::option::weighted(0.9, 0..2_usize), endpoints)
        .prop_map(|(home, endpoints)| Written { home, endpoints });
    prop_oneof![
        1 => (0..3_usize, proptest::option::of(written.clone())).prop_map(|(n, written)| Fact::Unseen(n, written)),
        4 => (0..3_usize, written).prop_map(|(n, written)| Fact::PutSlice(n, written)),
        2 => (0..3_usize).prop_map(Fact::DropSlice),
        3 => (0..2_usize, options).prop_map(|(n, options)| Fact::PutService(n, options)),
        1 => (0..2_usize).prop_map(Fact::DropService),
        1 => Just(Fact::ListSlices),
        1 => Just(Fact::ListServices),
        4 => (1..5_u8, 0..2_u8).prop_map(|(n, group)| Fact::PutPod(n, group)),
        1 => (1..5_u8).prop_map(Fact::DropPod),
        2 => Just(Fact::ListPods),
        1 => Just(Fact::LosePods),
    ]
}

fn take_in(feed: &mut RegistryFeed, cluster: &mut Cluster, fact: Fact) {
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
        Fact::PutService(n, options) => {
            feed.put_service(service(n, options));
            cluster.services.insert(n, options);
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
            feed.replace_services(
                cluster.services.iter().map(|(n, options)| service(*n, *options)).collect(),
            );
        }
        Fact::PutPod(n, group) => {
            cluster.pods.insert(n, group);
            if feed.admission.ownership.pods().put(pod(n, group)) != PodChange::Same {
                feed.pod_changed(&PodUid::new(&format!("p{n}")));
            }
        }
        Fact::DropPod(n) => {
            cluster.pods.remove(&n);
            feed.pod_left();
            feed.admission.ownership.pods().remove(&pod(n, 0));
        }
        Fact::ListPods => {
            let others = (ELSEWHERE..ELSEWHERE + 5).map(|n| (n, 0));
            let all = others.chain(cluster.pods.iter().map(|(n, group)| (*n, *group)));
            feed.admission.ownership.pods().replace(all.map(|(n, group)| pod(n, group)).collect());
            feed.pods_listing();
            feed.set_pods_lost(false);
            feed.pods_seen();
            cluster.listed = true;
        }
        Fact::LosePods => {
            feed.set_pods_lost(true);
            cluster.listed = false;
        }
    }
    feed.settle_disagreements();
    if was_notified(&feed.lost) {
        feed.replace_slices(all(cluster));
        cluster.behind = false;
    }
    if was_notified(feed.admission.ownership.changed()) {
        take_in(feed, cluster, Fact::ListPods);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn the_registry_has_what_there_is(history in proptest::collection::vec(facts(), 1..25)) {
        let policy = MergePolicy { manual_endpoints: true, ..MergePolicy::default() };
        let bench = Bench::with(RegistrySettings { policy, ..RegistrySettings::default() });
        let mut feed = feed_of(&bench);
        let mut cluster = Cluster::default();
        feed.set_pods_lost(true);
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

/// A reader that keeps a service or its port would wait for one that was removed.
#[test]
fn a_service_or_a_port_that_was_replaced_is_reported_although_it_looks_the_same() {
    let bench = Bench::new();
    let mut feed = feed_of(&bench);
    let facts = |port: &str| {
        let json = json!({
            "metadata": {"namespace": "shop", "name": "a"},
            "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": port, "port": 80}]},
        });
        ServiceSummary::new(serde_json::from_value(json).unwrap()).unwrap()
    };
    feed.put_service(facts("http"));
    assert!(!feed.take_remade(), "it is new");
    feed.remove_service(&"shop/a".parse().unwrap());
    feed.put_service(facts("http"));
    assert!(feed.take_remade() && !feed.take_remade());
    feed.put_service(facts("web"));
    feed.put_service(facts("http"));
    assert!(feed.take_remade());
}
