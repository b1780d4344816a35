//! Runs the shared test vectors, row by row.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic, also in its helpers")]

use std::sync::Arc;

use rouse_core::endpoint::{Conditions, PodUid, PortName, ServiceId, State};
use rouse_core::envoy::health_without_gateways;
use rouse_core::slices::{
    ContainerPort, EndpointPort, EndpointSkipped, Family, InitContainer, Node, Nodes, Options, Pod, PodPhase,
    Protocol, ServiceFacts, ServicePort, TargetPort, TargetRef, endpoint, ports, reconcile,
};
use rouse_testkit::vectors;

#[test]
fn conditions_mean_what_the_vectors_say() {
    for row in vectors::endpoint_conditions().unwrap() {
        // Same address: the better state wins, in the place of the first.
        let mut states: Vec<(&str, State)> = vec![];
        for endpoint in &row.endpoints {
            let vectors::ConditionsEndpoint { ready, serving, terminating, .. } = *endpoint;
            let address = endpoint.addresses.first().unwrap().as_str();
            let state = Conditions { ready, serving, terminating }.state();
            match states.iter_mut().find(|(known, _)| *known == address) {
                Some((_, known)) => *known = state.max(*known),
                None => states.push((address, state)),
            }
        }
        let best = states.iter().map(|(_, state)| *state).max().unwrap_or(State::Gone);
        let envoy = states.iter().filter_map(|(address, state)| {
            let health_status = health_without_gateways(*state, best)?.as_str().to_owned();
            Some(vectors::ExpectedEnvoy { address: (*address).into(), health_status })
        });
        let new_traffic =
            states.iter().filter(|(_, state)| state.takes_new(best)).map(|(address, _)| *address);

        let context = format!("{} {}", row.id, row.name);
        assert_eq!(envoy.collect::<Vec<_>>(), row.expected.envoy, "{context}");
        assert_eq!(new_traffic.collect::<Vec<_>>(), row.expected.new_traffic, "{context}");
        let named = states.iter().map(|(address, state)| ((*address).into(), state.to_string())).collect();
        assert_eq!(row.expected.states, named, "{context}");
    }
}

#[test]
fn a_pod_becomes_the_endpoint_that_the_vectors_say() {
    for row in vectors::pod_to_endpoint().unwrap() {
        let context = format!("{} {}", row.id, row.name);
        let (service, pod, nodes) = (service(&row.service), pod(&row.pod), nodes(&row));
        let family = Family::parse(&row.address_type).unwrap();
        let made = endpoint(&service, &pod, &nodes, family, &Options::default());
        let expected = &row.expected;
        let retried = matches!(made, Err(EndpointSkipped::NodeMissing(_)));
        assert_eq!((made.is_ok(), retried), (expected.included, expected.sync_error), "{context}");

        let plan = reconcile(&service, [&pod], &nodes, [], &Options::default());
        assert_eq!(!plan.missing_nodes.is_empty(), expected.sync_error, "{context}");
        assert!(plan.missing_nodes.iter().all(|missing| *missing.node == *row.pod.node_name), "{context}");
        let slices: Vec<_> = plan.contents().filter(|slice| slice.family == family).collect();
        let [slice] = slices[..] else { panic!("{context}: {slices:?}") };
        assert_eq!(slice.endpoints, Vec::from_iter(made.clone().ok()), "{context}");
        if !expected.included {
            assert_eq!(slice.ports, [], "{context}: a placeholder has no ports");
            continue;
        }
        assert_eq!(slice.ports, ports(&service, &pod), "{context}");
        assert_eq!(slice.ports, expected.ports.iter().map(expected_port).collect::<Vec<_>>(), "{context}");

        let made = made.unwrap();
        let addresses: Vec<_> = made.addresses.iter().map(ToString::to_string).collect();
        let vectors::ExpectedConditions { ready, serving, terminating } = expected.conditions.unwrap();
        assert_eq!(addresses, expected.addresses, "{context}");
        assert_eq!(made.conditions, Conditions::new(ready, serving, terminating), "{context}");
        assert_eq!(made.zone.as_deref(), expected.zone.as_deref(), "{context}");
        assert_eq!(made.node.as_deref(), expected.node_name.as_deref(), "{context}");
        assert_eq!(made.hostname.as_deref(), expected.hostname.as_deref(), "{context}");
        let TargetRef { namespace, name, uid } = made.target.unwrap();
        assert_eq!((&*namespace, &*name, uid.as_str()), ("shop", "web-0", "pod-uid"), "{context}");
    }
}

fn non_empty(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}

fn service(row: &vectors::Service) -> ServiceFacts {
    let target = |port: &vectors::ServicePort| match &port.target_port {
        vectors::TargetPort::Number(number) => TargetPort::Number(*number),
        vectors::TargetPort::Name(name) => TargetPort::Name(name.as_str().into()),
    };
    let port = |port: &vectors::ServicePort| ServicePort {
        name: PortName::new(&port.name),
        protocol: Protocol::parse(&port.protocol).unwrap(),
        target: target(port),
        app_protocol: None,
    };
    ServiceFacts {
        id: ServiceId::new("shop", &row.name).unwrap(),
        uid: "service-uid".into(),
        labels: [].into(),
        ports: row.ports.iter().map(port).collect(),
        ip_families: row.ip_families.iter().map(|family| Family::parse(family).unwrap()).collect(),
        cluster_ip: row.cluster_ip.parse().ok(),
        publish_not_ready: row.publish_not_ready_addresses,
        deleting: false,
    }
}

fn pod(row: &vectors::Pod) -> Pod {
    let container_ports = |ports: &[vectors::ContainerPort]| {
        let port = |port: &vectors::ContainerPort| ContainerPort {
            name: port.name.as_str().into(),
            number: port.container_port,
            protocol: Protocol::parse(&port.protocol).unwrap(),
        };
        ports.iter().map(port).collect()
    };
    let init_container = |init: &vectors::InitContainer| InitContainer {
        sidecar: init.restart_policy.as_deref() == Some("Always"),
        ports: container_ports(&init.ports),
    };
    Pod {
        namespace: "shop".into(),
        name: "web-0".into(),
        uid: PodUid::new("pod-uid"),
        labels: [].into(),
        phase: PodPhase::parse(&row.phase),
        ready: row.ready.as_deref() == Some("True"),
        deleting: row.deletion_timestamp,
        ips: row.pod_ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        node: non_empty(&row.node_name),
        hostname: non_empty(&row.hostname),
        subdomain: non_empty(&row.subdomain),
        ports: container_ports(&row.container_ports),
        init_containers: row.init_containers.iter().map(init_container).collect(),
    }
}

fn nodes(row: &vectors::PodToEndpoint) -> Nodes {
    let node = Node { zone: non_empty(&row.node.zone) };
    row.node.exists.then(|| (row.pod.node_name.as_str().into(), node)).into_iter().collect()
}

fn expected_port(port: &vectors::ExpectedPort) -> EndpointPort {
    EndpointPort {
        name: PortName::new(&port.name),
        protocol: Protocol::parse(&port.protocol).unwrap(),
        number: Some(port.port),
        app_protocol: None,
    }
}
