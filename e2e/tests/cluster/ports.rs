//! Service ports: selected by number and by name, on Services of every kind.

use std::collections::BTreeSet;

use http::StatusCode;
use rouse_e2e::client::session;
use rouse_e2e::wait::patiently;
use serde_json::{Value, json};

use crate::app::App;
use crate::harness::{Case, trial};
use crate::test_namespace::{DEPLOYMENT, TestNamespace, programs};

pub(crate) const TRIALS: &[Case] = &[
    trial!(a_port_is_found_by_number_and_by_name),
    trial!(one_name_on_two_numbers_during_a_rolling_update),
    trial!(a_port_that_the_service_lacks_is_told_and_refused),
    trial!(a_port_that_no_pod_offers_is_asked_of_the_service),
    trial!(a_headless_service_is_served_directly_and_has_nothing_else),
    trial!(an_external_name_is_refused),
    trial!(endpoints_written_by_hand_count_only_if_allowed),
];

/// A Service of the pods of `app`.
fn service(name: &str, ports: &[Value]) -> Value {
    let mut service = App::new("app").service_ports(ports).service();
    service["metadata"]["name"] = json!(name);
    service
}

async fn a_port_is_found_by_number_and_by_name(space: TestNamespace) {
    let app = App::new("app").replicas(1).container_ports(&[("http", 8080), ("side", 8081), ("back", 8082)]);
    space.apply(app.deployment()).await;
    space.apply(service("unnamed", &[json!({ "port": 80, "targetPort": 8080 })])).await;
    space.apply(service("named", &[json!({ "name": "web", "port": 80, "targetPort": 8081 })])).await;
    let several = [
        json!({ "name": "web", "port": 80, "targetPort": "http" }),
        json!({ "name": "admin", "port": 81, "targetPort": 8081 }),
        json!({ "name": "back", "port": 82, "targetPort": "back" }),
        // The same number for another protocol.
        json!({ "name": "dns", "port": 82, "targetPort": 8080, "protocol": "UDP" }),
    ];
    space.apply(service("several", &several)).await;
    let number = |number: u16| json!({ "port": number });
    let name = |name: &str| json!({ "portName": name });
    let table = [
        ("unnamed", number(80), 8080),
        ("named", number(80), 8081),
        ("named", name("web"), 8081),
        ("several", number(80), 8080),
        ("several", name("web"), 8080),
        ("several", number(81), 8081),
        ("several", name("admin"), 8081),
        ("several", number(82), 8082),
        ("several", name("back"), 8082),
    ];
    for (at, (service, port, _)) in table.iter().enumerate() {
        let name = format!("route-{at}");
        let route = space.route(&name).service(service);
        let route = match port["port"].as_u64() {
            Some(number) => route.port(u16::try_from(number).unwrap()),
            None => route.port_name(port["portName"].as_str().unwrap()),
        };
        space.apply(route.object()).await;
    }
    let [pod] = &space.ready_pods_of("app", &["unnamed", "named", "several"], 1).await[..] else { panic!() };
    let gateway = space.gateway().await;
    for (at, (service, port, expected)) in table.iter().enumerate() {
        let name = format!("route-{at}");
        space.condition(&name, "Ready", "True").await;
        let answer = session::get(&gateway.target(&space.host(&name)), "/headers").await;
        assert_eq!(answer.status, StatusCode::OK, "{service} {port}: {}", answer.text());
        assert_eq!(answer.json()["local"], format!("{}:{expected}", pod.ip), "{service} {port}");
    }
    let metrics = gateway.admin.metrics().await;
    let all = metrics.count("rouse_direct_routing_total", &[]);
    assert_eq!(metrics.count("rouse_direct_routing_total", &[("result", "pod")]), all, "none but to pods");
    gateway.stop().await;
}

async fn one_name_on_two_numbers_during_a_rolling_update(space: TestNamespace) {
    let app = App::new("app")
        .replicas(2)
        // Pods keep serving until all gateways know that they are terminating.
        .env("TERM_DELAY_MS", 3000)
        .deployment_with(json!({ "spec": {
            "minReadySeconds": 5,
            "strategy": { "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
        }}));
    space.serve(&app).await;
    space.ready_pods("app", 2).await;
    let gateway = space.gateway().await;
    let target = gateway.target(&space.host("app"));
    space.apply(app.container_ports(&[("http", 9090)]).deployment()).await;

    let (mut ports_seen, mut slices_seen) = (BTreeSet::new(), BTreeSet::new());
    patiently("the update to be over", async || {
        let answer = session::get(&target, "/headers").await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        let port =
            answer.json()["local"].as_str().and_then(|local| Some(local.rsplit_once(':')?.1.to_owned()));
        ports_seen.insert(port.expect("a port"));
        let slices = space.slices("app").await;
        let with_pods =
            slices.iter().filter(|slice| slice["endpoints"].as_array().is_some_and(|all| !all.is_empty()));
        slices_seen.insert(
            with_pods.filter_map(|slice| slice["ports"][0]["port"].as_u64()).collect::<BTreeSet<_>>(),
        );
        let deployment = space.get(DEPLOYMENT, "app").await.expect("the Deployment");
        let status = &deployment["status"];
        let over = status["observedGeneration"] == deployment["metadata"]["generation"]
            && status["updatedReplicas"] == 2
            && status["replicas"] == 2
            && slices_seen.last() == Some(&BTreeSet::from([9090]));
        over.then_some(())
    })
    .await;
    assert!(slices_seen.contains(&BTreeSet::from([8080, 9090])), "both at a time: {slices_seen:?}");
    assert_eq!(ports_seen, BTreeSet::from(["8080".to_owned(), "9090".to_owned()]));
    gateway.stop().await;
}

async fn a_port_that_the_service_lacks_is_told_and_refused(space: TestNamespace) {
    space.run(&App::new("app")).await;
    space.apply(space.route("app").named("number").hosts(&[&space.host("number")]).port(8443).object()).await;
    space
        .apply(space.route("app").named("name").hosts(&[&space.host("name")]).port_name("grpc").object())
        .await;
    let gateway = space.gateway().await;
    for (route, words) in [("number", "8443"), ("name", "grpc")] {
        let condition = space.condition(route, "Ready", "False").await;
        assert_eq!(condition["reason"], "BadPort");
        assert!(condition["message"].as_str().is_some_and(|text| text.contains(words)), "{condition}");
        space.condition(route, "BadPort", "True").await;
        let answer = session::get(&gateway.target(&space.host(route)), "/").await;
        assert_eq!((answer.status, answer.header("x-rouse-error")), (StatusCode::BAD_GATEWAY, "bad_port"));
    }
    assert_eq!(space.replicas("app").await, 0, "no app was woken for it");
    gateway.stop().await;
}

async fn a_port_that_no_pod_offers_is_asked_of_the_service(space: TestNamespace) {
    let app = App::new("app").replicas(1).service_ports(&[
        json!({ "name": "http", "port": 80, "targetPort": "http" }),
        json!({ "name": "ghost", "port": 81, "targetPort": "nowhere" }),
    ]);
    space.serve(&app).await;
    let ghost = space.route("app").named("ghost").hosts(&[&space.host("ghost")]).port(81);
    space.apply(ghost.readiness_timeout("3s").object()).await;
    space.ready_pods("app", 1).await;
    let gateway = space.gateway().await;
    let answer = session::get(&gateway.target(&space.host("app")), "/").await;
    assert_eq!(answer.status, StatusCode::OK, "the other port still works: {}", answer.text());
    // kube-proxy has no endpoint either, so the Service refuses connections, and the gateway reports that.
    let answer = session::get(&gateway.target(&space.host("ghost")), "/").await;
    let said = (answer.status, answer.header("x-rouse-error"));
    assert_eq!(said, (StatusCode::BAD_GATEWAY, "connect_failed"), "{}", answer.text());
    let metrics = gateway.admin.metrics().await;
    let counted = |result| metrics.count("rouse_direct_routing_total", &[("result", result)]);
    assert_eq!((counted("pod"), counted("cluster_ip_no_port")), (1, 1));
    gateway.stop().await;
}

async fn a_headless_service_is_served_directly_and_has_nothing_else(space: TestNamespace) {
    let app = App::new("app")
        .service_ports(&[
            json!({ "name": "http", "port": 8080, "targetPort": "http" }),
            json!({ "name": "ghost", "port": 81, "targetPort": "nowhere" }),
        ])
        .service_with(json!({ "spec": { "clusterIP": "None" } }));
    space.run(&app).await;
    space.apply(space.route("app").port(8080).object()).await;
    space.apply(space.route("app").named("ghost").hosts(&[&space.host("ghost")]).port(81).object()).await;
    let gateway = space.gateway().await;
    let answer = session::get(&gateway.target(&space.host("app")), "/headers").await;
    assert_eq!((answer.status, answer.header("x-rouse-cold-start")), (StatusCode::OK, "true"));
    let [pod] = &space.ready_pods("app", 1).await[..] else { panic!("one pod") };
    assert_eq!(answer.json()["local"], format!("{}:8080", pod.ip));
    let answer = session::get(&gateway.target(&space.host("ghost")), "/").await;
    assert_eq!((answer.status, answer.header("x-rouse-error")), (StatusCode::BAD_GATEWAY, "bad_port"));
    gateway.stop().await;
}

async fn an_external_name_is_refused(space: TestNamespace) {
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "outside" },
        "spec": { "type": "ExternalName", "externalName": "example.com", "ports": [{ "port": 80 }] },
    });
    space.apply(service).await;
    space.apply(space.route("outside").object()).await;
    let gateway = space.gateway().await;
    assert_eq!(space.condition("outside", "Ready", "False").await["reason"], "ExternalName");
    let answer = session::get(&gateway.target(&space.host("outside")), "/").await;
    assert_eq!(
        (answer.status, answer.header("x-rouse-error")),
        (StatusCode::SERVICE_UNAVAILABLE, "no_service")
    );
    gateway.stop().await;
}

async fn endpoints_written_by_hand_count_only_if_allowed(space: TestNamespace) {
    space.run(&App::new("app").replicas(1)).await;
    let [pod] = &space.ready_pods("app", 1).await[..] else { panic!("one pod") };
    let allowed = json!({ "rouse.dev/manual-endpoints": "allow" });
    for (name, annotations) in [("plain", json!({})), ("allowed", allowed)] {
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": name, "annotations": annotations },
            "spec": { "ports": [{ "name": "http", "port": 80 }] },
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-by-hand"),
                "labels": { "kubernetes.io/service-name": name },
            },
            "addressType": "IPv4",
            "endpoints": [{ "addresses": [pod.ip.to_string()], "conditions": { "ready": true } }],
            "ports": [{ "name": "http", "port": 8080 }],
        });
        space.apply(service).await;
        space.apply(slice).await;
        space.apply(space.route(name).readiness_timeout("30s").object()).await;
    }
    // No usable pod, and no selector to find a workload by.
    let (failed, served) = ((StatusCode::SERVICE_UNAVAILABLE, "start_failed"), (StatusCode::OK, ""));
    for (flag, value, for_plain, for_allowed) in [
        ("--manual-endpoints-of", "another", failed, failed),
        ("--manual-endpoints-of", space.name(), failed, served),
        ("--allow-manual-endpoints", "true", served, served),
    ] {
        let launch = space.launch().await.flag(flag, value);
        let gateway = launch.start(&programs()).await;
        for (name, expected) in [("plain", for_plain), ("allowed", for_allowed)] {
            let answer = session::get(&gateway.target(&space.host(name)), "/headers").await;
            let said = (answer.status, answer.header("x-rouse-error"));
            assert_eq!(said, expected, "{name}, {flag} {value}: {}", answer.text());
            if expected == served {
                assert_eq!(answer.json()["local"], format!("{}:8080", pod.ip));
            }
        }
        gateway.stop().await;
    }
}
