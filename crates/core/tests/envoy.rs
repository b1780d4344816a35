//! What Envoys are told of a service: the rows of the specification, the shared vectors, and a naive model.
#![allow(clippy::unwrap_used, reason = "a test may panic, also in its helpers")]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use proptest::prelude::*;
use rouse_core::endpoint::{Conditions, Endpoint, PortName, Slice, SliceEndpoint, SlicePort, Source, State};
use rouse_core::envoy::{EnvoyEndpoint, EnvoyTarget, GatewayUse, endpoints};
use rouse_core::merge::{EndpointMerge, MergePolicy};
use rouse_core::snapshot::{ConcurrencyLimits, PortView, Snapshot};
use rouse_core::time::Moment;
use rouse_testkit::fakes::{DRAINING, READY, STARTING, http, pod};
use rouse_testkit::vectors;

const GONE: Conditions = Conditions::new(false, false, true);
const CANNOT_WAKE: GatewayUse = GatewayUse { always: false, without_pods: false, parked: false };
const CAN_WAKE: GatewayUse = GatewayUse { always: false, without_pods: true, parked: false };
const PARKED: GatewayUse = GatewayUse { always: false, without_pods: true, parked: true };
const DIRECT_DISABLED: GatewayUse = GatewayUse { always: true, without_pods: true, parked: false };

/// A pod: its conditions, and where it is.
type TestPod<'a> = (Conditions, &'a [&'a str]);

const R1: TestPod<'static> = (READY, &["10.0.0.1:80"]);
const R2: TestPod<'static> = (READY, &["10.0.0.2:80"]);
const D1: TestPod<'static> = (DRAINING, &["10.0.0.1:80"]);
const D2: TestPod<'static> = (DRAINING, &["10.0.0.2:80"]);
const S3: TestPod<'static> = (STARTING, &["10.0.0.3:80"]);
const G4: TestPod<'static> = (GONE, &["10.0.0.4:80"]);
const GATEWAYS: [&str; 2] = ["10.9.0.1:8080", "10.9.0.2:8080"];

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn endpoint(number: u32, (conditions, addresses): TestPod<'_>) -> Arc<Endpoint> {
    Arc::new(Endpoint {
        pod: Some(pod(number)),
        addresses: addresses.iter().map(|text| address(text)).collect(),
        state: conditions.state(),
        source: Source::Slice,
        conditions,
        load: Arc::default(),
        health: Arc::default(),
    })
}

fn snapshot(pods: &[TestPod<'_>], limit: u32) -> Snapshot {
    let endpoints = (1..).zip(pods).map(|(number, pod)| endpoint(number, *pod)).collect();
    Snapshot {
        ports: vec![PortView::new(http(), endpoints)],
        concurrency: ConcurrencyLimits::new(0, limit),
        ..Snapshot::default()
    }
}

/// `gateway 10.9.0.1:8080 HEALTHY`.
fn in_words(endpoints: &[EnvoyEndpoint]) -> Vec<String> {
    let words = endpoints.iter().map(|EnvoyEndpoint { target, health }| match target {
        EnvoyTarget::Gateway(address) => format!("gateway {address} {health}"),
        EnvoyTarget::Pod(addresses) => {
            let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            format!("pod {} {health}", addresses.join("+"))
        }
    });
    words.collect()
}

/// The endpoints of a service with these pods, whose gateways are [`GATEWAYS`].
fn check(pods: &[TestPod<'_>], gateway_use: GatewayUse, expected: &[&str]) {
    check_with(&snapshot(pods, 0), gateway_use, &GATEWAYS, expected);
}

fn check_with(snapshot: &Snapshot, gateway_use: GatewayUse, gateways: &[&str], expected: &[&str]) {
    let gateways: Vec<_> = gateways.iter().map(|text| address(text)).collect();
    let found = in_words(&endpoints(snapshot, &http(), gateway_use, &gateways));
    assert_eq!(found, expected, "{gateway_use:?} {gateways:?} {snapshot:?}");
}

const BOTH_GATEWAYS: &[&str] = &["gateway 10.9.0.1:8080 HEALTHY", "gateway 10.9.0.2:8080 HEALTHY"];

fn both_gateways_and(pods: &[&'static str]) -> Vec<&'static str> {
    [BOTH_GATEWAYS, pods].concat()
}

#[test]
fn the_vectors_hold_for_a_service_that_cannot_be_woken() {
    for row in vectors::endpoint_conditions().unwrap() {
        let endpoint = |(number, endpoint): (u32, &vectors::ConditionsEndpoint)| {
            let vectors::ConditionsEndpoint { ready, serving, terminating, .. } = *endpoint;
            let ip: IpAddr = endpoint.addresses.first().unwrap().parse().unwrap();
            SliceEndpoint {
                ip,
                conditions: Conditions { ready, serving, terminating },
                pod: Some(pod(number)),
            }
        };
        let slice = Slice {
            ports: vec![SlicePort { name: http(), number: 80 }],
            endpoints: (1..).zip(&row.endpoints).map(endpoint).collect(),
        };
        let mut merge = EndpointMerge::new(MergePolicy::default());
        merge.put_slice("web-1", slice, Moment::from_nanos(0));
        let snapshot = Snapshot { ports: merge.view(), ..Snapshot::default() };

        let expected = row.expected.envoy.iter();
        let expected: Vec<_> =
            expected.map(|one| format!("pod {}:80 {}", one.address, one.health_status)).collect();
        let gateways = GATEWAYS.map(address);
        let found = in_words(&endpoints(&snapshot, &http(), CANNOT_WAKE, &gateways));
        assert_eq!(found, expected, "{} {}", row.id, row.name);
    }
}

#[test]
fn ready_pods_take_requests_and_draining_ones_finish() {
    let pods = [D1, R2, S3, G4];
    let expected = ["pod 10.0.0.1:80 DRAINING", "pod 10.0.0.2:80 HEALTHY"];
    for gateway_use in [CANNOT_WAKE, CAN_WAKE] {
        check(&pods, gateway_use, &expected);
    }
}

#[test]
fn the_last_pods_serve_while_they_drain_if_nothing_can_wake_another() {
    check(&[D1, D2, S3], CANNOT_WAKE, &["pod 10.0.0.1:80 HEALTHY", "pod 10.0.0.2:80 HEALTHY"]);
}

#[test]
fn gateways_take_new_requests_while_the_last_pods_drain_if_they_can_wake_another() {
    let expected = both_gateways_and(&["pod 10.0.0.1:80 DRAINING", "pod 10.0.0.2:80 DRAINING"]);
    check(&[D1, S3, D2, G4], CAN_WAKE, &expected);
}

#[test]
fn gateways_take_requests_while_there_is_no_pod_if_they_can_wake_one() {
    for pods in [&[][..], &[S3], &[G4], &[S3, G4]] {
        check(pods, CAN_WAKE, BOTH_GATEWAYS);
        check(pods, CANNOT_WAKE, &[]);
    }
}

#[test]
fn a_pod_that_is_ready_again_replaces_the_gateways() {
    check(&[S3], CAN_WAKE, BOTH_GATEWAYS);
    check(&[(READY, S3.1)], CAN_WAKE, &["pod 10.0.0.3:80 HEALTHY"]);
}

#[test]
fn all_requests_pass_the_gateways_if_there_is_a_limit_or_pods_may_not_be_dialled() {
    for pods in [&[][..], &[R1], &[R1, D2], &[D2], &[S3]] {
        check(pods, DIRECT_DISABLED, BOTH_GATEWAYS);
        check(pods, GatewayUse { without_pods: false, ..DIRECT_DISABLED }, BOTH_GATEWAYS);
        for gateway_use in [CANNOT_WAKE, CAN_WAKE, PARKED] {
            check_with(&snapshot(pods, 4), gateway_use, &GATEWAYS, BOTH_GATEWAYS);
        }
    }
}

#[test]
fn a_limit_keeps_pods_from_envoys_even_without_gateways() {
    check_with(&snapshot(&[R1], 4), CAN_WAKE, &[], &[]);
    check_with(&snapshot(&[R1], 0), DIRECT_DISABLED, &[], &[]);
}

#[test]
fn a_parked_service_leaves_its_pods_to_the_requests_that_they_have() {
    check(
        &[R1, D2, S3],
        PARKED,
        &both_gateways_and(&["pod 10.0.0.1:80 DRAINING", "pod 10.0.0.2:80 DRAINING"]),
    );
    check(&[], PARKED, BOTH_GATEWAYS);
}

#[test]
fn a_service_is_not_parked_if_no_gateway_can_wake_it() {
    check(&[R1], GatewayUse { without_pods: false, ..PARKED }, &["pod 10.0.0.1:80 HEALTHY"]);
    check_with(&snapshot(&[R1], 0), PARKED, &[], &["pod 10.0.0.1:80 HEALTHY"]);
}

#[test]
fn pods_serve_as_well_as_they_can_while_no_gateway_is_known() {
    check_with(
        &snapshot(&[D1, D2], 0),
        CAN_WAKE,
        &[],
        &["pod 10.0.0.1:80 HEALTHY", "pod 10.0.0.2:80 HEALTHY"],
    );
    check_with(&snapshot(&[S3], 0), CAN_WAKE, &[], &[]);
}

#[test]
fn an_address_is_there_once_and_the_first_counts() {
    check(&[R1, (DRAINING, R1.1), R2], CANNOT_WAKE, &["pod 10.0.0.1:80 HEALTHY", "pod 10.0.0.2:80 HEALTHY"]);
    let twice = [GATEWAYS[0], GATEWAYS[1], GATEWAYS[0]];
    check_with(&snapshot(&[], 0), CAN_WAKE, &twice, BOTH_GATEWAYS);
    // A pod of the gateways that is a pod of the service too.
    check(&[(DRAINING, &GATEWAYS[..1])], CAN_WAKE, BOTH_GATEWAYS);
    // Ports make addresses different.
    check(
        &[R1, (READY, &["10.0.0.1:81"])],
        CAN_WAKE,
        &["pod 10.0.0.1:80 HEALTHY", "pod 10.0.0.1:81 HEALTHY"],
    );
}

#[test]
fn a_dual_stack_pod_is_one_endpoint_with_both_addresses() {
    let dual: TestPod<'_> = (READY, &["10.0.0.1:80", "[fd00::1]:80"]);
    check(&[dual, R2], CAN_WAKE, &["pod 10.0.0.1:80+[fd00::1]:80 HEALTHY", "pod 10.0.0.2:80 HEALTHY"]);
}

#[test]
fn a_port_that_no_pod_has_is_empty_or_left_to_the_gateways() {
    let (snapshot, other) = (snapshot(&[R1], 0), PortName::new("metrics"));
    let gateways = GATEWAYS.map(address);
    assert_eq!(endpoints(&snapshot, &other, CANNOT_WAKE, &gateways), []);
    assert_eq!(in_words(&endpoints(&snapshot, &other, CAN_WAKE, &gateways)), BOTH_GATEWAYS);
}

/// The table of the specification, row by row.
fn model(
    pods: &[(State, Vec<SocketAddr>)],
    limited: bool,
    gateway_use: GatewayUse,
    gateways: &[SocketAddr],
) -> Vec<String> {
    let in_state = |wanted: State| pods.iter().any(|(state, _)| *state == wanted);
    let can_wake = gateway_use.without_pods && !gateways.is_empty();
    let gateways_healthy =
        limited || gateway_use.always || (can_wake && (gateway_use.parked || !in_state(State::Ready)));
    let pod_health = |state: State| match state {
        State::Starting | State::Gone => None,
        _ if limited || gateway_use.always => None,
        _ if gateways_healthy => Some("DRAINING"),
        State::Draining if in_state(State::Ready) => Some("DRAINING"),
        State::Ready | State::Draining => Some("HEALTHY"),
    };
    let mut all: Vec<(SocketAddr, String)> = Vec::new();
    if gateways_healthy {
        all.extend(gateways.iter().map(|gateway| (*gateway, format!("gateway {gateway} HEALTHY"))));
    }
    for (state, addresses) in pods {
        let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let in_words = |health| (addresses[0], format!("pod {} {health}", texts.join("+")));
        all.extend(pod_health(*state).map(in_words));
    }
    let mut kept: Vec<(SocketAddr, String)> = Vec::new();
    for (address, words) in all {
        if kept.iter().all(|(known, _)| *known != address) {
            kept.push((address, words));
        }
    }
    kept.into_iter().map(|(_, words)| words).collect()
}

/// Few addresses, so that many are equal.
fn some_address() -> impl Strategy<Value = SocketAddr> {
    (0..6u8, 80..82u16).prop_map(|(host, port)| match host {
        0..4 => SocketAddr::from(([10, 0, 0, host], port)),
        _ => SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, host.into()], port)),
    })
}

fn some_use() -> impl Strategy<Value = GatewayUse> {
    let flags = (prop::bool::weighted(0.2), any::<bool>(), any::<bool>());
    flags.prop_map(|(always, without_pods, parked)| GatewayUse { always, without_pods, parked })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(10_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_endpoints_of_any_service_are_those_of_the_model(
        pods in prop::collection::vec(
            (prop::sample::select(&State::ALL[..]), prop::collection::vec(some_address(), 1..3)), 0..6,
        ),
        limit in prop::sample::select(vec![0, 0, 0, 7]),
        gateway_use in some_use(),
        gateways in prop::collection::vec(some_address(), 0..4),
    ) {
        let conditions = |state| match state {
            State::Ready => READY,
            State::Draining => DRAINING,
            State::Starting => STARTING,
            State::Gone => GONE,
        };
        let texts: Vec<Vec<String>> =
            pods.iter().map(|(_, all)| all.iter().map(ToString::to_string).collect()).collect();
        let texts: Vec<Vec<&str>> = texts.iter().map(|all| all.iter().map(String::as_str).collect()).collect();
        let test_pods: Vec<TestPod<'_>> =
            pods.iter().zip(&texts).map(|((state, _), texts)| (conditions(*state), &texts[..])).collect();
        let found = endpoints(&snapshot(&test_pods, limit), &http(), gateway_use, &gateways);
        prop_assert_eq!(in_words(&found), model(&pods, limit > 0, gateway_use, &gateways));
    }
}
