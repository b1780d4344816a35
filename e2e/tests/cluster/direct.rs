//! The three modes of direct pod routing, checked by the remote addresses of the gateway's connections.

use std::net::SocketAddr;

use http::StatusCode;
use rouse_e2e::client::session::{self, FullResponse};
use rouse_e2e::gateway::Gateway;
use rouse_e2e::target::Target;
use rouse_e2e::wait::{patiently, within};
use tokio::task::JoinSet;

use crate::app::App;
use crate::harness::{Case, trial};
use crate::node::Node;
use crate::test_namespace::{TestNamespace, programs};

pub(crate) const TRIALS: &[Case] = &[
    trial!(cold_start_only_sends_the_held_request_to_the_pod_and_later_ones_to_the_service),
    trial!(disabled_never_connects_to_a_pod),
    trial!(always_never_connects_to_the_service),
    trial!(a_route_may_differ_from_its_gateway),
    trial!(a_bad_value_is_refused_at_the_start_in_words),
    trial!(disabled_waits_for_a_proxy_that_lags_behind_the_pod).alone().on_our_node(),
    trial!(cold_start_only_does_not_wait_for_a_proxy_that_lags_behind_the_pod).alone().on_our_node(),
];

/// The addresses of the one pod of `shop` and of its Service.
struct Places {
    pod: SocketAddr,
    service: SocketAddr,
}

impl Places {
    async fn of(space: &TestNamespace, app: &str) -> Self {
        let [pod] = &space.ready_pods(app, 1).await[..] else { panic!("one pod") };
        let service = space.cluster_ip(app).await;
        Self { pod: (pod.ip, 8080).into(), service: (service, 80).into() }
    }

    /// The gateway is connected to the one of them that mode `always` or `disabled` asks for, and not to the other.
    fn assert_connected(&self, mode: &str, connected: &[SocketAddr], context: &str) {
        let (to, not_to) = match mode {
            "always" => (self.pod, self.service),
            _ => (self.service, self.pod),
        };
        assert!(connected.contains(&to), "{context}: to {to}: {connected:?}");
        assert!(!connected.contains(&not_to), "{context}: not to {not_to}: {connected:?}");
    }
}

/// How many requests the gateway has sent to a pod, and to a Service, by its metrics.
async fn counted(gateway: &Gateway) -> (u64, u64) {
    let metrics = gateway.admin.metrics().await;
    let count = |result| metrics.count("rouse_direct_routing_total", &[("result", result)]);
    (count("pod"), count("cluster_ip"))
}

/// A request that the pod does not answer before [`let_go`].
fn linger(target: &Target) -> JoinSet<FullResponse> {
    session::get_many(target, "/wait", 1)
}

/// Waits until the lingering request is at the pod. Returns the remote addresses of the gateway's connections then.
async fn connections_meanwhile(gateway: &Gateway, places: &Places) -> Vec<SocketAddr> {
    Target::plain(places.pod).until("waiting", |waiting| waiting == 1).await;
    gateway.connections()
}

async fn let_go(mut lingering: JoinSet<FullResponse>, places: &Places) -> FullResponse {
    Target::plain(places.pod).next().await;
    within("the answer", lingering.join_next()).await.expect("a request").expect("an answer")
}

async fn cold_start_only_sends_the_held_request_to_the_pod_and_later_ones_to_the_service(
    space: TestNamespace,
) {
    space.serve(&App::new("shop")).await;
    let gateway = space.gateway_in_mode("cold-start-only").await;
    let target = gateway.target(&space.host("shop"));

    let lingering = linger(&target);
    let places = Places::of(&space, "shop").await;
    let held = connections_meanwhile(&gateway, &places).await;
    assert!(held.contains(&places.pod), "the held request is on its way to {}: {held:?}", places.pod);
    let answer = let_go(lingering, &places).await;
    assert_eq!((answer.status, answer.header("x-rouse-cold-start")), (StatusCode::OK, "true"));
    assert_eq!(counted(&gateway).await, (1, 0));

    // Requests go to the pod until the Service has accepted a connection.
    patiently("a request through the Service", async || {
        assert_eq!(session::get(&target, "/").await.status, 200);
        (counted(&gateway).await.1 > 0).then_some(())
    })
    .await;
    let (to_pods, _) = counted(&gateway).await;
    let lingering = linger(&target);
    let warm = connections_meanwhile(&gateway, &places).await;
    assert!(warm.contains(&places.service), "a warm request goes to {}: {warm:?}", places.service);
    let answer = let_go(lingering, &places).await;
    assert_eq!((answer.status, answer.header("x-rouse-cold-start")), (StatusCode::OK, "false"));
    assert_eq!(counted(&gateway).await.0, to_pods, "no request went to the pod itself");
    gateway.stop().await;
}

/// In this mode, a cold and a warm request both go to the pod or both to the Service, and are counted so.
async fn both_requests_go_one_way(space: TestNamespace, mode: &str, expected: (u64, u64)) {
    space.serve(&App::new("shop")).await;
    let gateway = space.gateway_in_mode(mode).await;
    let target = gateway.target(&space.host("shop"));
    for cold in ["true", "false"] {
        let lingering = linger(&target);
        let places = Places::of(&space, "shop").await;
        let connected = connections_meanwhile(&gateway, &places).await;
        places.assert_connected(mode, &connected, mode);
        let answer = let_go(lingering, &places).await;
        assert_eq!((answer.status, answer.header("x-rouse-cold-start")), (StatusCode::OK, cold));
    }
    assert_eq!(counted(&gateway).await, expected);
    gateway.stop().await;
}

async fn disabled_never_connects_to_a_pod(space: TestNamespace) {
    both_requests_go_one_way(space, "disabled", (0, 2)).await;
}

async fn always_never_connects_to_the_service(space: TestNamespace) {
    both_requests_go_one_way(space, "always", (2, 0)).await;
}

async fn a_route_may_differ_from_its_gateway(space: TestNamespace) {
    space.run(&App::new("shop").replicas(1)).await;
    let routes = [("disabled", (0, 1)), ("always", (1, 0))];
    for (mode, _) in routes {
        let route = space.route("shop").named(mode).hosts(&[&space.host(mode)]);
        space.apply(route.annotate("direct-pod-routing", mode).object()).await;
    }
    let places = Places::of(&space, "shop").await;
    for gateway_mode in ["always", "disabled"] {
        for (mode, expected) in routes {
            let gateway = space.gateway_in_mode(gateway_mode).await;
            let lingering = linger(&gateway.target(&space.host(mode)));
            let connected = connections_meanwhile(&gateway, &places).await;
            places.assert_connected(mode, &connected, &format!("{mode} on {gateway_mode}"));
            assert_eq!(let_go(lingering, &places).await.status, 200);
            assert_eq!(counted(&gateway).await, expected, "{mode} on {gateway_mode}");
            gateway.stop().await;
        }
    }
}

async fn a_bad_value_is_refused_at_the_start_in_words(space: TestNamespace) {
    let launch = space.launch().await;
    let by_flag = launch.clone().flag("--direct-pod-routing", "sometimes");
    let by_variable = launch.clone().env("ROUSE_DIRECT_POD_ROUTING", "sometimes");
    let by_kedas_variable = launch.env("KEDA_HTTP_DIRECT_POD_ROUTING", "sometimes");
    for (launch, name) in [
        (by_flag, "--direct-pod-routing"),
        (by_variable, "ROUSE_DIRECT_POD_ROUTING"),
        (by_kedas_variable, "KEDA_HTTP_DIRECT_POD_ROUTING"),
    ] {
        let ran = launch.refused(&programs()).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
        for word in [name, "sometimes", "disabled", "cold-start-only", "always"] {
            assert!(ran.stderr.contains(word), "{word} in {:?}", ran.stderr);
        }
    }
}

async fn disabled_waits_for_a_proxy_that_lags_behind_the_pod(space: TestNamespace) {
    space.serve(&App::new("shop")).await;
    let gateway = space.gateway_in_mode("disabled").await;
    let target = gateway.target(&space.host("shop"));
    let frozen = Node::ours().freeze("kube-proxy");
    let lingering = linger(&target);
    let places = Places::of(&space, "shop").await;
    // The pod is ready and the gateway knows it, but the Service's address does not work yet. This lasts for a while: a
    // faulty gateway would answer 502 here.
    let service = format!("{}/shop", space.name());
    patiently("the gateway to know that the pod is ready", async || {
        let service = gateway.admin.service_named(&service).await;
        service.endpoints.iter().any(|endpoint| endpoint.state == "Ready").then_some(())
    })
    .await;
    let mut attempts = 0;
    patiently("the gateway to try the Service", async || {
        assert!(!gateway.connections().contains(&places.pod), "never to the pod");
        attempts += 1;
        (attempts > 15).then_some(())
    })
    .await;
    assert_eq!(lingering.len(), 1);
    assert_eq!(Target::plain(places.pod).stat("waiting").await, 0, "nothing has reached the pod");
    drop(frozen);
    let connected = connections_meanwhile(&gateway, &places).await;
    assert!(connected.contains(&places.service), "through {}: {connected:?}", places.service);
    let answer = let_go(lingering, &places).await;
    assert_eq!((answer.status, answer.header("x-rouse-cold-start")), (StatusCode::OK, "true"));
    assert_eq!(gateway.admin.metrics().await.count("rouse_requests_total", &[("code", "502")]), 0);
    gateway.stop().await;
}

async fn cold_start_only_does_not_wait_for_a_proxy_that_lags_behind_the_pod(space: TestNamespace) {
    space.serve(&App::new("shop")).await;
    let gateway = space.gateway_in_mode("cold-start-only").await;
    let target = gateway.target(&space.host("shop"));
    let frozen = Node::ours().freeze("kube-proxy");
    for cold in ["true", "false", "false"] {
        let answer = session::get(&target, "/").await;
        assert_eq!((answer.status, answer.header("x-rouse-cold-start")), (StatusCode::OK, cold));
    }
    assert_eq!(counted(&gateway).await, (3, 0), "the Service accepts no connection yet");
    drop(frozen);
    patiently("requests to go through the Service", async || {
        assert_eq!(session::get(&target, "/").await.status, 200);
        (counted(&gateway).await.1 > 0).then_some(())
    })
    .await;
    gateway.stop().await;
}
