//! Runs every row of both vector files through the binary, as Kubernetes objects in JSON and in YAML.

use rouse_testkit::vectors::{self, ContainerPort, EndpointConditions, PodToEndpoint, TargetPort};
use serde_json::{Value, json};

use crate::{list, rouse, yaml};

#[test]
fn every_row_of_endpoint_conditions_comes_out_as_expected() {
    let rows = vectors::endpoint_conditions().unwrap();
    assert!(!rows.is_empty());
    // Manual endpoints, and endpoints with a pod each: the rows apply to both.
    for with_pods in [false, true] {
        let objects = list(rows.iter().map(|row| slice_of(row, with_pods)).collect());
        for input in [objects.to_string(), yaml(&objects)] {
            let answer = rouse("explain endpoints -o json", input).json();
            let services = answer["services"].as_array().unwrap();
            assert_eq!(services.len(), rows.len());
            for (row, service) in rows.iter().zip(services) {
                check_conditions(row, service);
            }
        }
    }
}

fn slice_of(row: &EndpointConditions, with_pods: bool) -> Value {
    let name = row.id.to_lowercase();
    let endpoints = row.endpoints.iter().enumerate().map(|(index, endpoint)| {
        let mut object = json!({
            "addresses": endpoint.addresses,
            "conditions": {
                "ready": endpoint.ready, "serving": endpoint.serving, "terminating": endpoint.terminating,
            },
        });
        if with_pods {
            object["targetRef"] =
                json!({"kind": "Pod", "name": format!("pod-{index}"), "uid": format!("{name}-{index}")});
        }
        object
    });
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{name}-x"), "namespace": "rows", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

fn check_conditions(row: &EndpointConditions, service: &Value) {
    assert_eq!(service["service"], format!("rows/{}", row.id.to_lowercase()));
    assert_eq!(service["ports"][0]["port"], "http", "{}", row.id);
    let endpoints = service["ports"][0]["endpoints"].as_array().unwrap();
    let address =
        |endpoint: &Value| endpoint["address"].as_str().unwrap().strip_suffix(":8080").unwrap().to_owned();

    let states = endpoints.iter().map(|e| (address(e), e["state"].as_str().unwrap().to_owned())).collect();
    assert_eq!(row.expected.states, states, "{} {}", row.id, row.name);
    assert_eq!(endpoints.len(), row.expected.states.len(), "{}: an address twice", row.id);

    let envoy = endpoints.iter().filter(|e| !e["envoy"].is_null());
    let envoy: Vec<_> = envoy.map(|e| (address(e), e["envoy"].as_str().unwrap().to_owned())).collect();
    let expected: Vec<_> =
        row.expected.envoy.iter().map(|e| (e.address.clone(), e.health_status.clone())).collect();
    assert_eq!(expected, envoy, "{} {}", row.id, row.name);

    let new: Vec<_> = endpoints.iter().filter(|e| e["new_traffic"] == true).map(address).collect();
    assert_eq!(row.expected.new_traffic, new, "{} {}", row.id, row.name);
    assert!(endpoints.iter().all(|e| !e["why"].as_str().unwrap().is_empty()), "{}", row.id);
}

#[test]
fn every_row_of_pod_to_endpoint_comes_out_as_expected() {
    let rows = vectors::pod_to_endpoint().unwrap();
    assert!(!rows.is_empty());
    let objects = list(rows.iter().flat_map(objects_of).collect());
    for input in [objects.to_string(), yaml(&objects)] {
        let answer = rouse("explain slices -o json", input);
        let slices = answer.json()["items"].as_array().unwrap().clone();
        for row in &rows {
            let ours = |slice: &&Value| {
                slice["metadata"]["namespace"] == namespace(row)
                    && slice["addressType"] == row.address_type.as_str()
            };
            check_pod(row, &slices.iter().filter(ours).collect::<Vec<_>>(), &answer.err);
        }
    }
}

/// A namespace for each row keeps them apart; the Service's name is part of what is tested.
fn namespace(row: &PodToEndpoint) -> String {
    row.id.to_lowercase()
}

/// Nodes have no namespace, so each row has a node of its own.
fn node(row: &PodToEndpoint) -> String {
    format!("{}-{}", row.pod.node_name, namespace(row))
}

fn objects_of(row: &PodToEndpoint) -> Vec<Value> {
    let (pod, service) = (&row.pod, &row.service);
    let ports = |ports: &[ContainerPort]| -> Vec<Value> {
        let port = |p: &ContainerPort| json!({"name": p.name, "containerPort": p.container_port, "protocol": p.protocol});
        ports.iter().map(port).collect()
    };
    let conditions: Vec<Value> =
        pod.ready.iter().map(|status| json!({"type": "Ready", "status": status})).collect();
    let init = pod.init_containers.iter().map(
        |init| json!({"name": "init", "restartPolicy": init.restart_policy, "ports": ports(&init.ports)}),
    );
    let service_ports = service.ports.iter().map(|port| {
        let target = match &port.target_port {
            TargetPort::Number(number) => json!(number),
            TargetPort::Name(name) => json!(name),
        };
        json!({"name": port.name, "port": port.port, "targetPort": target, "protocol": port.protocol})
    });
    let mut objects = vec![
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "pod", "namespace": namespace(row), "uid": format!("uid-{}", row.id), "labels": {"app": "x"},
                "deletionTimestamp": pod.deletion_timestamp.then_some("2025-01-01T00:00:00Z"),
            },
            "spec": {
                "nodeName": node(row), "hostname": pod.hostname, "subdomain": pod.subdomain,
                "restartPolicy": pod.restart_policy,
                "containers": [{"name": "app", "ports": ports(&pod.container_ports)}],
                "initContainers": init.collect::<Vec<_>>(),
            },
            "status": {
                "phase": pod.phase, "conditions": conditions, "podIP": pod.pod_ip,
                "podIPs": pod.pod_ips.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>(),
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": service.name, "namespace": namespace(row), "uid": format!("service-{}", row.id)},
            "spec": {
                "clusterIP": service.cluster_ip, "ipFamilies": service.ip_families, "selector": {"app": "x"},
                "publishNotReadyAddresses": service.publish_not_ready_addresses,
                "ports": service_ports.collect::<Vec<_>>(),
            },
        }),
    ];
    if row.node.exists {
        let labels = if row.node.zone.is_empty() {
            json!({})
        } else {
            json!({"topology.kubernetes.io/zone": row.node.zone})
        };
        objects.push(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node(row), "labels": labels}}),
        );
    }
    objects
}

fn check_pod(row: &PodToEndpoint, slices: &[&Value], err: &str) {
    let what = format!("{} {}", row.id, row.name);
    let expected = &row.expected;
    let retried = format!("service {}/{}: pod pod is left out", namespace(row), row.service.name);
    assert_eq!(err.contains(&retried), expected.sync_error, "{what}: {err}");
    let endpoints: Vec<&Value> =
        slices.iter().flat_map(|slice| slice["endpoints"].as_array().unwrap()).collect();
    if !expected.included {
        assert!(endpoints.is_empty(), "{what}: {endpoints:?}");
        if row.service.ip_families.contains(&row.address_type) {
            // The placeholder: no ports, no endpoints.
            assert_eq!(slices.len(), 1, "{what}");
            assert_eq!(slices[0]["ports"], json!([]), "{what}");
        }
        return;
    }
    assert_eq!((slices.len(), endpoints.len()), (1, 1), "{what}: {slices:?}");
    let conditions = expected.conditions.unwrap();
    let mut wanted = json!({
        "addresses": expected.addresses,
        "conditions": {
            "ready": conditions.ready, "serving": conditions.serving, "terminating": conditions.terminating,
        },
        "nodeName": expected.node_name.as_ref().map(|_| node(row)),
        "targetRef": {"kind": "Pod", "namespace": namespace(row), "name": "pod", "uid": format!("uid-{}", row.id)},
        "zone": expected.zone,
        "hostname": expected.hostname,
    });
    wanted.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    assert_eq!(&wanted, endpoints[0], "{what}");
    let ports: Vec<Value> = expected
        .ports
        .iter()
        .map(|port| json!({"name": port.name, "port": port.port, "protocol": port.protocol}))
        .collect();
    assert_eq!(slices[0]["ports"], Value::from(ports), "{what}");
}
