//! Pods → `EndpointSlice`s: the packing rules as tables, and everything else against a naive model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic, also in its helpers")]

use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;
use rouse_core::endpoint::{Conditions, PodUid, PortName, ServiceId};
use rouse_core::slices::{
    ContainerPort, EndpointSkipped, EndpointSlice, Family, HEADLESS, InitContainer, MANAGED_BY, MANAGER,
    MaxEndpoints, Node, Nodes, Options, Pod, PodPhase, Protocol, SERVICE_NAME, ServiceFacts, ServicePort,
    SliceContent, SlicePlan, TargetPort, endpoint, ports, reconcile,
};

/// The input of a reconcile, without the existing slices.
#[derive(Debug, Clone)]
struct World {
    service: ServiceFacts,
    pods: Vec<Pod>,
    nodes: Nodes,
    options: Options,
}

impl World {
    /// The Service `cart` on port 8080, with these pods, at most `max` endpoints a slice.
    fn new(max: usize, pods: impl IntoIterator<Item = Pod>) -> Self {
        let max_endpoints_per_slice = MaxEndpoints::new(max).unwrap();
        Self {
            service: cart(),
            pods: pods.into_iter().collect(),
            nodes: nodes(),
            options: Options { max_endpoints_per_slice, ..Options::default() },
        }
    }

    fn plan(&self, existing: &[EndpointSlice]) -> SlicePlan {
        reconcile(&self.service, &self.pods, &self.nodes, existing, &self.options)
    }

    /// The slices after a first reconcile, with names that begin with `old`.
    fn settle(&self) -> Vec<EndpointSlice> {
        named(self.plan(&[]), "old")
    }
}

/// The slices after `plan` is written; new ones are called `prefix` and a number.
fn named(plan: SlicePlan, prefix: &str) -> Vec<EndpointSlice> {
    let mut count = 0;
    plan.into_slices(|| {
        count += 1;
        format!("{prefix}{count}")
    })
}

fn cart() -> ServiceFacts {
    ServiceFacts {
        id: ServiceId::new("shop", "cart").unwrap(),
        uid: "cart-uid".into(),
        labels: [("team".into(), "a".into())].into(),
        ports: vec![service_port("http", Protocol::Tcp, TargetPort::Number(8080))],
        ip_families: vec![Family::Ipv4],
        cluster_ip: Some("10.96.0.1".parse().unwrap()),
        publish_not_ready: false,
        deleting: false,
    }
}

fn service_port(name: &str, protocol: Protocol, target: TargetPort) -> ServicePort {
    ServicePort { name: PortName::new(name), protocol, target, app_protocol: None }
}

fn container_port(name: &str, protocol: Protocol, number: u16) -> ContainerPort {
    ContainerPort { name: name.into(), protocol, number }
}

/// `n0` and `n1` in a zone, `n2` in none; `n3` does not exist.
fn nodes() -> Nodes {
    let node = |(name, zone): (&str, Option<&str>)| (name.into(), Node { zone: zone.map(Into::into) });
    [("n0", Some("a")), ("n1", Some("b")), ("n2", None)].map(node).into()
}

/// A running, ready pod.
fn pod(name: &str) -> Pod {
    let number = name.bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    Pod {
        namespace: "shop".into(),
        name: name.into(),
        uid: PodUid::new(&format!("{name}-uid")),
        labels: [].into(),
        phase: PodPhase::Running,
        ready: true,
        deleting: false,
        ips: vec![IpAddr::from([10, 0, 0, number])],
        node: Some("n0".into()),
        hostname: None,
        subdomain: None,
        ports: vec![],
        init_containers: vec![],
    }
}

fn pods(prefix: &str, count: usize) -> Vec<Pod> {
    (0..count).map(|number| pod(&format!("{prefix}-{number}"))).collect()
}

/// A plan in short: `a:2` stays with two endpoints, `a:2!` is updated, `a:-` is deleted, `+2` is created.
fn short(plan: &SlicePlan) -> String {
    let size = |content: &SliceContent| content.endpoints.len();
    let unchanged = plan.unchanged.iter().map(|slice| format!("{}:{}", slice.name, size(&slice.content)));
    let updated = plan.update.iter().map(|slice| format!("{}:{}!", slice.name, size(&slice.content)));
    let deleted = plan.delete.iter().map(|slice| format!("{}:-", slice.name));
    let mut existing: Vec<String> = unchanged.chain(updated).chain(deleted).collect();
    existing.sort();
    existing.extend(plan.create.iter().map(|content| format!("+{}", size(content))));
    existing.join(" ")
}

/// The only slice of `world`, called `name`.
fn only_slice(world: &World, name: &str) -> EndpointSlice {
    let mut slices = world.settle();
    assert_eq!(slices.len(), 1);
    EndpointSlice { name: name.into(), ..slices.remove(0) }
}

/// Packs `new` endpoints next to slices `a`, `b`, … that have endpoints to (keep, lose).
#[track_caller]
fn check_packing(max: usize, slices: &[(usize, usize)], new: usize, expected: &str) {
    let mut world = World::new(max, pods("new", new));
    let mut existing = vec![];
    for (name, (kept, gone)) in ["a", "b", "c"].iter().zip(slices) {
        let kept = pods(&format!("kept-{name}"), *kept);
        let all = [kept.clone(), pods(&format!("gone-{name}"), *gone)].concat();
        existing.push(only_slice(&World::new(1000, all), name));
        world.pods.extend(kept);
    }
    let plan = world.plan(&existing);
    assert_eq!(short(&plan), expected, "max {max}, (kept, gone) {slices:?}, {new} new");
    assert_eq!(
        world.plan(&named(plan, "new")).writes(),
        0,
        "max {max}, (kept, gone) {slices:?}, {new} new: again"
    );
}

#[test]
fn endpoints_stay_where_they_are() {
    check_packing(4, &[(2, 0), (1, 0)], 0, "a:2 b:1");
    check_packing(4, &[(2, 0), (1, 1)], 0, "a:2 b:1!");
}

#[test]
fn slices_that_are_written_anyway_are_filled_first_and_the_fullest_of_them_before_the_others() {
    check_packing(4, &[(1, 1), (3, 1), (2, 1)], 1, "a:1! b:4! c:2!");
    check_packing(4, &[(1, 1), (3, 1), (2, 1)], 3, "a:1! b:4! c:4!");
    check_packing(4, &[(2, 1), (2, 1)], 1, "a:3! b:2!");
    check_packing(4, &[(1, 1), (3, 0)], 1, "a:2! b:3");
}

#[test]
fn the_rest_goes_to_the_one_clean_slice_where_it_fits_best() {
    check_packing(4, &[(1, 0), (3, 0), (2, 0)], 1, "a:1 b:4! c:2");
    check_packing(4, &[(1, 0), (3, 0), (2, 0)], 2, "a:1 b:3 c:4!");
    check_packing(4, &[(3, 1), (1, 0), (2, 0)], 3, "a:4! b:1 c:4!");
}

#[test]
fn the_rest_goes_to_a_new_slice_rather_than_to_several_clean_ones() {
    check_packing(4, &[(3, 0), (3, 0)], 2, "a:3 b:3 +2");
    check_packing(4, &[(3, 0)], 5, "a:4! +4");
    check_packing(4, &[], 9, "+4 +4 +1");
}

#[test]
fn what_would_be_created_takes_over_what_would_be_deleted() {
    check_packing(4, &[(0, 3)], 2, "a:2!");
    check_packing(2, &[(0, 2), (2, 0), (0, 1)], 3, "a:2! b:2 c:1!");
    check_packing(2, &[(0, 2), (2, 0), (0, 1)], 1, "a:1! b:2 c:-");
    check_packing(4, &[(0, 2), (2, 0)], 1, "a:- b:3!");
    check_packing(4, &[(0, 2), (2, 0)], 0, "a:- b:2");
}

#[test]
fn the_last_slice_becomes_a_placeholder_and_the_placeholder_becomes_the_first_slice() {
    check_packing(4, &[(0, 2)], 0, "a:0!");
    check_packing(4, &[(0, 0)], 0, "a:0");
    check_packing(4, &[(0, 0)], 3, "a:3!");
    check_packing(4, &[(0, 0), (0, 0)], 0, "a:0 b:-");
    check_packing(4, &[], 0, "+0");
}

#[test]
fn a_slice_that_is_too_big_since_the_maximum_was_lowered_gives_up_the_surplus() {
    check_packing(2, &[(3, 0)], 0, "a:2! +1");
    check_packing(2, &[(3, 0), (1, 0)], 0, "a:2! b:2!");
}

/// Changes the world after it has settled on one slice, `a`, and expects this plan.
#[track_caller]
fn check_change(change: impl FnOnce(&mut World, &mut EndpointSlice), expected: &str) -> SlicePlan {
    let mut world = World::new(4, pods("web", 2));
    let mut slice = only_slice(&world, "a");
    change(&mut world, &mut slice);
    let plan = world.plan(&[slice]);
    assert_eq!(short(&plan), expected);
    plan
}

#[test]
fn a_slice_with_drifted_labels_is_updated_and_keeps_its_annotations_and_version() {
    let plan = check_change(
        |_, slice| {
            slice.content.labels.insert("team".into(), "b".into());
            slice.annotations.insert("note".into(), "kept".into());
            slice.resource_version = "42".into();
        },
        "a:2!",
    );
    let [updated] = &plan.update[..] else { panic!("{plan:?}") };
    assert_eq!(updated.content.labels, cart().slice_labels());
    assert_eq!((updated.annotations["note"].as_str(), &*updated.resource_version), ("kept", "42"));
    check_change(|world, _| world.service.labels.clear(), "a:2!");
    check_change(|world, _| world.service.cluster_ip = None, "a:2!");
    check_change(|_, slice| _ = slice.content.labels.insert(HEADLESS.into(), String::new()), "a:2!");
}

#[test]
fn a_changed_port_is_written_over_the_old_slice() {
    check_change(|world, _| world.service.ports[0].app_protocol = Some("h2c".into()), "a:2!");
    check_change(|world, _| world.service.ports[0].target = TargetPort::Number(9090), "a:2!");
    let plan = check_change(|world, _| world.service.ports.clear(), "a:2!");
    assert_eq!(plan.update[0].content.ports, []);
}

#[test]
fn the_order_of_a_slices_ports_is_no_reason_to_write() {
    let mut world = World::new(4, pods("web", 2));
    world.service.ports.insert(0, service_port("udp", Protocol::Udp, TargetPort::Number(53)));
    let mut slice = only_slice(&world, "a");
    slice.content.ports.reverse();
    assert_eq!(world.plan(&[slice]).writes(), 0);
}

#[test]
fn a_slice_of_an_earlier_service_of_that_name_is_deleted_and_not_reused() {
    check_change(|_, slice| slice.content.owner = Some("earlier".into()), "a:- +2");
    check_change(|_, slice| slice.content.owner = None, "a:- +2");
}

#[test]
fn a_slice_of_a_family_that_the_service_lost_is_deleted_and_not_reused() {
    check_change(|world, _| world.service.ip_families = vec![Family::Ipv6], "a:- +0");
}

#[test]
fn a_family_without_endpoints_has_a_placeholder() {
    let plan = check_change(|world, _| world.service.ip_families.push(Family::Ipv6), "a:2 +0");
    assert_eq!((plan.create[0].family, plan.create[0].ports.len()), (Family::Ipv6, 0));
}

#[test]
fn a_service_being_deleted_gets_nothing_new() {
    check_change(
        |world, _| {
            world.service.deleting = true;
            world.pods.extend(pods("more", 4));
        },
        "a:2",
    );
    check_change(
        |world, _| {
            world.service.deleting = true;
            world.pods.pop();
        },
        "a:1!",
    );
}

#[test]
fn slices_of_others_are_neither_counted_nor_touched() {
    for (label, value) in [(MANAGED_BY, "endpointslice-controller.k8s.io"), (SERVICE_NAME, "other")] {
        check_change(|_, slice| _ = slice.content.labels.insert(label.into(), value.into()), "+2");
        check_change(|_, slice| _ = slice.content.labels.remove(label), "+2");
    }
}

#[test]
fn an_endpoint_that_stands_twice_is_left_once() {
    check_change(
        |_, slice| {
            let twice = slice.content.endpoints[0].clone();
            slice.content.endpoints.push(twice);
        },
        "a:2!",
    );
}

#[test]
fn a_pod_that_came_back_with_its_name_and_address_is_changed_in_place() {
    let plan = check_change(|world, _| world.pods[0].uid = PodUid::new("reborn"), "a:2!");
    let target = plan.update[0].content.endpoints[0].target.as_ref().unwrap();
    assert_eq!(target.uid.as_str(), "reborn");
}

#[test]
fn a_pod_whose_node_is_missing_is_left_out_and_retried_while_the_rest_is_written() {
    let plan = check_change(|world, _| world.pods[0].node = Some("n3".into()), "a:1!");
    let notes: Vec<String> = plan.missing_nodes.iter().map(ToString::to_string).collect();
    assert_eq!(notes, [r#"node "n3" of pod "web-0" is not known"#]);
    let plan = check_change(|world, _| world.pods[0].node = None, "a:1!");
    assert_eq!(plan.missing_nodes.len(), 1);
}

#[test]
fn named_ports_resolve_per_pod_by_name_and_protocol_and_split_the_slices() {
    let mut world = World::new(4, ["tcp", "both", "sidecar", "init", "none"].map(pod));
    let named = || TargetPort::Name("app".into());
    world.service.ports = vec![
        service_port("a", Protocol::Tcp, named()),
        service_port("b", Protocol::Udp, named()),
        service_port("c", Protocol::Sctp, TargetPort::Number(7)),
    ];
    let init =
        |sidecar| vec![InitContainer { sidecar, ports: vec![container_port("app", Protocol::Tcp, 3)] }];
    world.pods[0].ports =
        vec![container_port("app", Protocol::Tcp, 1), container_port("app", Protocol::Tcp, 9)];
    world.pods[1].ports =
        vec![container_port("app", Protocol::Udp, 2), container_port("app", Protocol::Tcp, 1)];
    world.pods[1].init_containers = init(true);
    world.pods[2].init_containers = init(true);
    world.pods[3].init_containers = init(false);

    let numbers = world.pods.iter().map(|pod| {
        let ports = ports(&world.service, pod);
        ports
            .iter()
            .map(|port| format!("{}={}", port.name, port.number.unwrap()))
            .collect::<Vec<_>>()
            .join(" ")
    });
    assert_eq!(numbers.collect::<Vec<_>>(), ["a=1 c=7", "a=1 b=2 c=7", "a=3 c=7", "c=7", "c=7"]);
    let mut sizes: Vec<usize> =
        world.plan(&[]).create.iter().map(|content| content.endpoints.len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 1, 1, 2]);
}

#[test]
fn a_pod_that_is_left_out_has_a_reason() {
    let check = |change: fn(&mut World), expected: &str| {
        let mut world = World::new(4, [pod("web")]);
        change(&mut world);
        let World { service, pods, nodes, options } = &world;
        let made = endpoint(service, &pods[0], nodes, Family::Ipv4, options);
        assert_eq!(made.as_ref().map_err(EndpointSkipped::to_string).unwrap_err(), expected);
    };
    check(|world| world.pods[0].phase = PodPhase::Failed, "it has ended (phase Failed)");
    check(|world| world.pods[0].ips.clear(), "it has no address");
    check(|world| world.pods[0].ips = vec!["fd00::1".parse().unwrap()], "it has no IPv4 address");
    check(|world| world.pods[0].node = None, "its node is not known");
    check(
        |world| {
            world.pods[0].deleting = true;
            world.options.terminating_conditions = false;
        },
        "it is being deleted, and terminating conditions are off",
    );
}

#[test]
fn an_ipv4_address_in_ipv6_clothes_is_ipv4() {
    let mut world = World::new(4, [pod("web")]);
    world.pods[0].ips = vec!["::ffff:10.0.0.9".parse().unwrap()];
    let slice = only_slice(&world, "a");
    assert_eq!(slice.content.endpoints[0].addresses[0].to_string(), "10.0.0.9");
}

#[test]
fn a_hostname_needs_a_service_in_the_same_namespace() {
    let mut world = World::new(4, [pod("web-0")]);
    world.pods[0].hostname = Some("web-0".into());
    world.pods[0].subdomain = Some("cart".into());
    let hostname = |world: &World| only_slice(world, "a").content.endpoints[0].hostname.clone();
    assert_eq!(hostname(&world).as_deref(), Some("web-0"));
    world.pods[0].namespace = "elsewhere".into();
    assert_eq!(hostname(&world), None);
}

#[test]
fn with_the_gate_off_old_conditions_stay_until_their_slice_is_written() {
    let only_ready = |ready| Conditions { ready: Some(ready), serving: None, terminating: None };
    let conditions = |slice: &EndpointSlice| {
        slice.content.endpoints.iter().map(|endpoint| endpoint.conditions).collect::<Vec<_>>()
    };
    let mut world = World::new(4, pods("web", 3));
    let slice = only_slice(&world, "a");

    world.options.terminating_conditions = false;
    let plan = world.plan(std::slice::from_ref(&slice));
    assert_eq!(plan.unchanged, std::slice::from_ref(&slice), "turning it off alone writes nothing");

    world.pods[0].ready = false;
    world.pods[1].deleting = true;
    world.pods.extend(pods("more", 1));
    let plan = world.plan(&[slice]);
    assert_eq!(short(&plan), "a:3!");
    assert_eq!(conditions(&plan.update[0]), [only_ready(false), only_ready(true), only_ready(true)]);

    world.options.terminating_conditions = true;
    let plan = world.plan(&plan.update);
    assert_eq!(short(&plan), "a:4!", "turning it on brings back what was left out");
    let [starting, ready] = [Conditions::new(false, false, false), Conditions::new(true, true, false)];
    let draining = Conditions::new(false, true, true);
    assert_eq!(conditions(&plan.update[0]), [starting, ready, ready, draining]);
}

#[test]
fn with_the_gate_off_a_clean_slice_that_takes_more_is_written_without_the_old_conditions() {
    let mut world = World::new(4, pods("web", 1));
    let slice = only_slice(&world, "a");
    world.options.terminating_conditions = false;
    world.pods.extend(pods("more", 1));
    let plan = world.plan(&[slice]);
    assert_eq!(short(&plan), "a:2!");
    assert!(plan.update[0].content.endpoints.iter().all(|endpoint| endpoint.conditions.serving.is_none()));
}

// --- Against a naive model ---

/// One endpoint under one set of ports, as text; with `gate` off, without fields that may be left over.
fn line(content: &SliceContent, at: usize, gate: bool) -> String {
    let endpoint = &content.endpoints[at];
    let mut ports: Vec<String> = content
        .ports
        .iter()
        .map(|port| format!("{}/{}={}", port.name, port.protocol, port.number.unwrap()))
        .collect();
    ports.sort();
    let Conditions { ready, serving, terminating } = endpoint.conditions;
    let more = gate.then_some((serving.unwrap_or_default(), terminating.unwrap_or_default()));
    let target = endpoint.target.as_ref().unwrap();
    format!(
        "{} {ports:?} {} {} {:?} {:?} {more:?} {:?} {:?} {:?}",
        content.family,
        target.name,
        target.uid,
        endpoint.addresses,
        ready.unwrap(),
        endpoint.node,
        endpoint.zone,
        endpoint.hostname
    )
}

fn lines<'a>(contents: impl IntoIterator<Item = &'a SliceContent>, gate: bool) -> Vec<String> {
    let lines_of =
        |content: &'a SliceContent| (0..content.endpoints.len()).map(move |at| line(content, at, gate));
    let mut lines: Vec<String> = contents.into_iter().flat_map(lines_of).collect();
    lines.sort();
    lines
}

/// The naive model: the same lines, directly from the pods, without slices, packing or state.
fn model(world: &World) -> Vec<String> {
    let World { service, pods, nodes, options } = world;
    let gate = options.terminating_conditions;
    let mut lines = vec![];
    for family in service.families() {
        for pod in pods {
            let known = pod.node.as_ref().is_some_and(|node| nodes.contains_key(node));
            let over = matches!(pod.phase, PodPhase::Failed | PodPhase::Succeeded) || (pod.deleting && !gate);
            let addresses: Vec<IpAddr> =
                pod.ips.iter().copied().filter(|ip| ip.is_ipv4() == (family == Family::Ipv4)).collect();
            if over || addresses.is_empty() || !(known || service.publish_not_ready) {
                continue;
            }
            let mut ports: Vec<String> = vec![];
            for port in &service.ports {
                let number = match &port.target {
                    TargetPort::Number(number) => Some(*number),
                    TargetPort::Name(name) => pod
                        .ports
                        .iter()
                        .find(|container| container.name == *name && container.protocol == port.protocol)
                        .map(|container| container.number),
                };
                ports.extend(number.map(|number| format!("{}/{}={number}", port.name, port.protocol)));
            }
            ports.sort();
            let ready = service.publish_not_ready || (pod.ready && !pod.deleting);
            let more = gate.then_some((pod.ready, pod.deleting));
            let zone = pod.node.as_ref().and_then(|node| nodes.get(node)?.zone.clone());
            let hostname = pod.hostname.clone().filter(|_| pod.subdomain.as_deref() == Some("cart"));
            lines.push(format!(
                "{family} {ports:?} {} {} {addresses:?} {ready:?} {more:?} {:?} {zone:?} {hostname:?}",
                pod.name, pod.uid, pod.node
            ));
        }
    }
    lines.sort();
    lines
}

/// How many slices each family needs: as many as its groups of ports fill, but one at least.
fn fewest_slices(world: &World) -> BTreeMap<Family, usize> {
    let mut groups: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let model = model(world);
    for line in &model {
        let (family, rest) = line.split_once(' ').unwrap();
        *groups.entry((family, rest.split_once(']').unwrap().0)).or_default() += 1;
    }
    let max = world.options.max_endpoints_per_slice.get();
    let needs = |family: Family| {
        let sizes = groups.iter().filter(|((of, _), _)| *of == family.as_str());
        sizes.map(|(_, size)| size.div_ceil(max)).sum::<usize>().max(1)
    };
    world.service.families().into_iter().map(|family| (family, needs(family))).collect()
}

fn arb_pod() -> impl Strategy<Value = Pod> {
    let phase = prop_oneof![
        6 => Just(PodPhase::Running),
        1 => Just(PodPhase::Pending),
        1 => prop_oneof![Just(PodPhase::Failed), Just(PodPhase::Succeeded), Just(PodPhase::Unknown)],
    ];
    let node = prop_oneof![6 => (0..3_u8).prop_map(Some), 1 => Just(Some(3)), 1 => Just(None)];
    // Small numbers, so that pods share an address, as on the host network.
    let ips = (option::weighted(0.8, 1..20_u8), option::weighted(0.5, 1..20_u8));
    let app_port = prop_oneof![3 => Just(Some(8080)), 2 => Just(Some(9090)), 1 => Just(None)];
    let named = prop_oneof![3 => Just(None), 1 => Just(Some("cart")), 1 => Just(Some("other"))];
    (phase, any::<bool>(), prop::bool::weighted(0.2), ips, node, app_port, any::<bool>(), named).prop_map(
        |(phase, ready, deleting, (v4, v6), node, app_port, dns, subdomain)| Pod {
            phase,
            ready,
            deleting,
            ips: Iterator::chain(
                v4.map(|last| IpAddr::from([10, 0, 0, last])).into_iter(),
                v6.map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)])),
            )
            .collect(),
            node: node.map(|number| format!("n{number}").into()),
            hostname: subdomain.map(|_| "host".into()),
            subdomain: subdomain.map(Into::into),
            ports: Iterator::chain(
                app_port.map(|number| container_port("app", Protocol::Tcp, number)).into_iter(),
                dns.then(|| container_port("app", Protocol::Udp, 53)),
            )
            .collect(),
            ..pod("")
        },
    )
}

/// Pods called `p0`, `p1`, …, some of them missing.
fn arb_pods() -> impl Strategy<Value = Vec<Pod>> {
    vec(option::weighted(0.8, arb_pod()), 0..12).prop_map(|pods| {
        let numbered = pods.into_iter().enumerate().filter_map(|(number, pod)| Some((number, pod?)));
        numbered
            .map(|(number, pod)| Pod {
                name: format!("p{number}").into(),
                uid: PodUid::new(&format!("uid{number}")),
                ..pod
            })
            .collect()
    })
}

fn arb_service() -> impl Strategy<Value = ServiceFacts> {
    use Family::{Ipv4, Ipv6};
    let families =
        prop::sample::select(vec![vec![Ipv4], vec![Ipv6], vec![Ipv4, Ipv6], vec![Ipv6, Ipv4], vec![]]);
    let named = || TargetPort::Name("app".into());
    let all_ports = vec![
        service_port("num", Protocol::Tcp, TargetPort::Number(80)),
        service_port("app", Protocol::Tcp, named()),
        service_port("dns", Protocol::Udp, named()),
        service_port("no", Protocol::Sctp, named()),
    ];
    let ports = prop::sample::subsequence(all_ports, 0..=4);
    let team = prop::sample::select(vec!["a", "b"]);
    (families, ports, team, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        |(ip_families, ports, team, headless, publish_not_ready)| ServiceFacts {
            ip_families,
            ports,
            labels: [("team".into(), team.into())].into(),
            cluster_ip: (!headless).then(|| "10.96.0.1".parse().unwrap()),
            publish_not_ready,
            ..cart()
        },
    )
}

fn arb_world() -> impl Strategy<Value = World> {
    (arb_service(), arb_pods(), 1..5_usize, prop::bool::weighted(0.7)).prop_map(
        |(service, pods, max, terminating_conditions)| {
            let world = World { service, ..World::new(max, pods) };
            World { options: Options { terminating_conditions, ..world.options }, ..world }
        },
    )
}

/// What has happened to a pod since the earlier world.
#[derive(Debug, Clone, Copy)]
enum Change {
    None,
    New,
    Readiness,
    Incarnation,
}

/// What another client may do to a slice.
#[derive(Debug, Clone, Copy)]
enum Meddling {
    Relabel,
    Disown,
    Empty,
    Duplicate,
    Strip,
    TakeOver,
}

/// Slices of an earlier world that has most pods in common with this one, changed by other clients.
fn arb_existing(world: World) -> impl Strategy<Value = (World, Vec<EndpointSlice>)> {
    let meddling = prop::sample::select(vec![
        Meddling::Relabel,
        Meddling::Disown,
        Meddling::Empty,
        Meddling::Duplicate,
        Meddling::Strip,
        Meddling::TakeOver,
    ]);
    let same = || prop::bool::weighted(0.7);
    let change = prop_oneof![
        6 => Just(Change::None),
        1 => Just(Change::New),
        1 => Just(Change::Readiness),
        1 => Just(Change::Incarnation),
    ];
    let changes = vec(change, world.pods.len());
    let before = (arb_world(), same(), same(), changes, vec(arb_pod(), 0..3)).prop_map(
        move |(mut before, same_service, same_options, changes, gone)| {
            if same_service {
                before.service = world.service.clone();
            }
            if same_options {
                before.options = world.options;
            }
            let survivors = world.pods.iter().zip(changes).filter_map(|(pod, change)| match change {
                Change::None => Some(pod.clone()),
                Change::New => None,
                Change::Readiness => Some(Pod { ready: !pod.ready, ..pod.clone() }),
                Change::Incarnation => Some(Pod { uid: PodUid::new("earlier"), ..pod.clone() }),
            });
            let gone = gone.into_iter().zip(["gone0", "gone1", "gone2"]);
            before.pods = survivors.chain(gone.map(|(pod, name)| Pod { name: name.into(), ..pod })).collect();
            (world.clone(), before.settle())
        },
    );
    (before, vec((any::<Index>(), meddling), 0..3)).prop_map(|((world, mut slices), meddlings)| {
        for (number, (at, meddling)) in meddlings.into_iter().enumerate() {
            let at = at.index(slices.len());
            let mut slice = slices[at].clone();
            let is_copy = matches!(meddling, Meddling::Duplicate | Meddling::TakeOver | Meddling::Disown);
            match meddling {
                Meddling::Relabel => _ = slice.content.labels.insert("team".into(), "intruder".into()),
                Meddling::Disown => slice.content.owner = Some("earlier".into()),
                Meddling::Empty => slice.content.endpoints.clear(),
                Meddling::Duplicate => {}
                Meddling::Strip => {
                    slice.content.endpoints.iter_mut().for_each(|endpoint| endpoint.target = None);
                }
                Meddling::TakeOver => {
                    slice.content.labels.insert(MANAGED_BY.into(), "somebody".into());
                }
            }
            if is_copy {
                slice.name = format!("copy{number}").into();
                slices.push(slice);
            } else {
                slices[at] = slice;
            }
        }
        (world, slices)
    })
}

/// A world, and slices of an earlier one.
fn arb_case() -> impl Strategy<Value = (World, Vec<EndpointSlice>)> {
    arb_world().prop_flat_map(arb_existing)
}

fn is_foreign(slice: &EndpointSlice) -> bool {
    slice.content.labels.get(MANAGED_BY).is_none_or(|manager| manager != MANAGER)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn what_stands_is_what_the_model_says_each_endpoint_once((world, existing) in arb_case()) {
        let plan = world.plan(&existing);
        prop_assert_eq!(lines(plan.contents(), world.options.terminating_conditions), model(&world));
    }

    #[test]
    fn a_second_reconcile_writes_nothing((world, existing) in arb_case()) {
        let plan = world.plan(&existing);
        let again = world.plan(&named(plan.clone(), "new"));
        prop_assert_eq!(again.writes(), 0, "{} then {}", short(&plan), short(&again));
        prop_assert_eq!(again.missing_nodes, plan.missing_nodes);
    }

    #[test]
    fn no_slice_is_too_big_and_none_is_empty_but_a_placeholder((world, existing) in arb_case()) {
        let plan = world.plan(&existing);
        for family in world.service.families() {
            let of_family: Vec<_> = plan.contents().filter(|content| content.family == family).collect();
            let max = world.options.max_endpoints_per_slice.get();
            prop_assert!(of_family.iter().all(|content| content.endpoints.len() <= max));
            match &of_family[..] {
                [only] if only.endpoints.is_empty() => prop_assert_eq!(&only.ports, &[]),
                several => prop_assert!(several.iter().all(|content| !content.endpoints.is_empty())),
            }
            prop_assert!(!of_family.is_empty());
        }
    }

    #[test]
    fn every_slice_carries_the_services_labels_owner_and_a_family_of_it((world, existing) in arb_case()) {
        let (families, labels) = (world.service.families(), world.service.slice_labels());
        for content in world.plan(&existing).contents() {
            prop_assert!(families.contains(&content.family));
            prop_assert_eq!(&content.labels, &labels);
            prop_assert_eq!(content.owner.as_ref(), Some(&world.service.uid));
        }
    }

    #[test]
    fn one_change_of_readiness_is_one_write_of_one_slice((mut world, existing) in arb_case(), at: Index) {
        world.pods.push(pod("one-at-least"));
        let settled = named(world.plan(&existing), "new");
        let mut changed = world.clone();
        let pod = &mut changed.pods[at.index(world.pods.len())];
        pod.ready = !pod.ready;
        let name = pod.name.clone();
        let holds = |content: &SliceContent| {
            content.endpoints.iter().any(|endpoint| endpoint.target.as_ref().unwrap().name == name)
        };

        let plan = changed.plan(&settled);
        // A dual-stack pod has an endpoint, and a slice, in each family. A change that does not show is not written.
        let shows = model(&world) != model(&changed);
        let mut touched: Vec<_> = settled.iter().filter(|slice| shows && holds(&slice.content)).collect();
        touched.sort_by(|a, b| a.name.cmp(&b.name));
        let mut updated: Vec<_> = plan.update.iter().collect();
        updated.sort_by(|a, b| a.name.cmp(&b.name));
        prop_assert_eq!(plan.writes(), touched.len());
        prop_assert_eq!(updated.len(), touched.len());
        for (before, after) in touched.iter().zip(updated) {
            let gate = world.options.terminating_conditions;
            prop_assert_eq!(&before.name, &after.name);
            prop_assert_eq!(before.content.endpoints.len(), after.content.endpoints.len());
            for at in 0..before.content.endpoints.len() {
                let is_it = before.content.endpoints[at].target.as_ref().unwrap().name == name;
                let same = line(&before.content, at, gate) == line(&after.content, at, gate);
                prop_assert_eq!(same, !is_it);
            }
        }
    }

    #[test]
    fn slices_of_others_make_no_difference((world, existing) in arb_case()) {
        let ours: Vec<_> = existing.iter().filter(|slice| !is_foreign(slice)).cloned().collect();
        let plan = world.plan(&existing);
        prop_assert_eq!(&plan, &world.plan(&ours));
        let mut touched = plan.update.iter().chain(&plan.delete).chain(&plan.unchanged);
        let named = |slice: &EndpointSlice| ours.iter().any(|our| our.name == slice.name);
        prop_assert!(touched.all(named));
        prop_assert!(existing.len() >= plan.update.len() + plan.delete.len() + plan.unchanged.len());
    }

    #[test]
    fn no_more_slices_stand_than_existed_and_are_needed((world, existing) in arb_case()) {
        let fresh = world.plan(&[]);
        let plan = world.plan(&existing);
        for (family, fewest) in fewest_slices(&world) {
            let count = |plan: &SlicePlan| plan.contents().filter(|content| content.family == family).count();
            let existed = existing.iter().filter(|slice| slice.content.family == family).count();
            prop_assert_eq!(count(&fresh), fewest);
            prop_assert!(count(&plan) >= fewest);
            prop_assert!(count(&plan) <= existed + fewest);
        }
    }

    #[test]
    fn no_write_is_in_vain((world, existing) in arb_case()) {
        let plan = world.plan(&existing);
        for updated in &plan.update {
            let before = existing.iter().find(|slice| slice.name == updated.name).unwrap();
            prop_assert_ne!(&before.content, &updated.content);
            prop_assert_eq!(before.content.family, updated.content.family, "the address type is immutable");
            prop_assert_eq!(&before.resource_version, &updated.resource_version);
        }
        for created in &plan.create {
            let reusable = |slice: &EndpointSlice| {
                slice.content.family == created.family && slice.content.owner == created.owner
            };
            prop_assert!(!plan.delete.iter().any(reusable), "{}", short(&plan));
        }
        // Every existing slice is in the plan exactly once.
        let ours = existing.iter().filter(|slice| !is_foreign(slice));
        let mut names: Vec<_> = ours.map(|slice| &slice.name).collect();
        let mut planned: Vec<_> =
            plan.update.iter().chain(&plan.delete).chain(&plan.unchanged).map(|slice| &slice.name).collect();
        names.sort();
        planned.sort();
        prop_assert_eq!(names, planned);
    }

    #[test]
    fn with_the_gate_off_nothing_written_says_more_than_ready((mut world, existing) in arb_case()) {
        world.options.terminating_conditions = false;
        let plan = world.plan(&existing);
        let written = plan.update.iter().map(|slice| &slice.content).chain(&plan.create);
        for endpoint in written.flat_map(|content| &content.endpoints) {
            prop_assert_eq!((endpoint.conditions.serving, endpoint.conditions.terminating), (None, None));
        }
        for unchanged in &plan.unchanged {
            prop_assert!(existing.contains(unchanged));
        }
    }

    #[test]
    fn the_order_of_pods_and_slices_makes_no_difference((mut world, mut existing) in arb_case(), by: Index) {
        let plan = world.plan(&existing);
        world.pods.reverse();
        existing.reverse();
        if !existing.is_empty() {
            let by = by.index(existing.len());
            existing.rotate_left(by);
        }
        prop_assert_eq!(world.plan(&existing), plan);
    }
}
