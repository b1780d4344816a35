//! From zero: a request wakes its app and goes directly to the pod's address, and its response is marked as a cold start.

use std::net::SocketAddr;

use http::StatusCode;
use rouse_e2e::client::session;
use rouse_e2e::proc;
use rouse_e2e::target::Target;
use serde_json::json;

use crate::app::App;
use crate::harness::{Case, trial};
use crate::identity;
use crate::node::{Node, is_scale_write};
use crate::test_namespace::TestNamespace;

pub(crate) const TRIALS: &[Case] = &[
    trial!(a_request_wakes_the_app_and_goes_to_the_pods_address),
    trial!(the_same_for_an_http_scaled_object),
    trial!(a_hundred_first_requests_are_answered_after_one_scale_write).on_our_node(),
];

async fn a_request_wakes_the_app_and_goes_to_the_pods_address(space: TestNamespace) {
    space.serve(&App::new("shop")).await;
    wakes(&space, "shop").await;
}

async fn the_same_for_an_http_scaled_object(space: TestNamespace) {
    space.run(&App::new("shop")).await;
    space.apply(space.route("shop").scaled_object()).await;
    wakes(&space, "shop").await;
}

/// A first and a second request, and their effects: replicas, headers, logs and metrics.
async fn wakes(space: &TestNamespace, app: &str) {
    let gateway = space.gateway().await;
    let host = space.host(app);
    let target = gateway.target(&host);
    assert_eq!(space.replicas(app).await, 0, "there was no request yet");

    let cold = session::get(&target, "/headers").await;
    assert_eq!((cold.status, cold.header("x-rouse-cold-start")), (StatusCode::OK, "true"), "{}", cold.text());
    assert_eq!(space.replicas(app).await, 1, "the app was scaled");
    let [pod] = &space.ready_pods(app, 1).await[..] else { panic!("one pod") };
    let seen = cold.json();
    assert_eq!(seen["pod"], pod.name);
    assert_eq!(seen["local"], format!("{}:8080", pod.ip), "the connection was made to the pod's own address");
    assert_eq!(seen["headers"]["host"], json!([host]));

    let warm = session::get(&target, "/headers").await;
    assert_eq!(
        (warm.status, warm.header("x-rouse-cold-start")),
        (StatusCode::OK, "false"),
        "{}",
        warm.text()
    );

    // The pod's own log: its peer is the gateway's socket, and the host is the client's.
    let straight = Target::plain((pod.ip, 8080).into());
    let lingering = session::get_many(&target, "/wait", 1);
    straight.until("waiting", |waiting| waiting == 1).await;
    let sockets = proc::sockets(gateway.pid);
    straight.next().await;
    assert_eq!(lingering.join_all().await[0].status, StatusCode::OK);
    let log = space.requests_seen_by(&pod.name).await;
    let line = log.iter().find(|line| line["uri"] == "/wait").expect("a line in the pod's log");
    let is_peer =
        |(own, to): &&(SocketAddr, SocketAddr)| *to == straight.address && line["peer"] == own.to_string();
    assert!(sockets.iter().any(|ends| is_peer(&ends)), "{line} has an end of {sockets:?}");
    assert_eq!(line["headers"]["host"], json!([host]));
    let metrics = gateway.admin.metrics().await;
    let to_pods = metrics.count("rouse_direct_routing_total", &[("result", "pod")]);
    let to_services = metrics.count("rouse_direct_routing_total", &[("result", "cluster_ip")]);
    assert_eq!((to_pods, to_services), (3, 0));
    gateway.stop().await;
}

async fn a_hundred_first_requests_are_answered_after_one_scale_write(space: TestNamespace) {
    space.serve(&App::new("shop")).await;
    let gateway = space.gateway().await;
    let target = gateway.target(&space.host("shop"));
    let mut clients = session::get_many(&target, "/order", 100);
    let mut places = Vec::new();
    while let Some(answer) = clients.join_next().await {
        let answer = answer.expect("an answer");
        let said = (answer.status, answer.header("x-rouse-cold-start"));
        assert_eq!(said, (StatusCode::OK, "true"), "{}", answer.text());
        places.push(answer.text().trim().parse::<u32>().expect("a place"));
    }
    places.sort_unstable();
    assert_eq!(places, (1..=100).collect::<Vec<_>>(), "each request reached the one pod once");
    let user = identity::user(&space);
    let asked = Node::ours().until_asked(&user, "the scale write in the audit log", is_scale_write).await;
    let writes: Vec<_> = asked.iter().filter(|entry| is_scale_write(entry)).collect();
    let [write] = writes[..] else { panic!("one scale write, not {writes:#?}") };
    assert_eq!(write["responseStatus"]["code"], 200);
    gateway.stop().await;
}
