//! Metrics of requests, and the removal of series that are no longer needed.

use std::time::Duration;

use rouse_proxy::routing::{NoPodPolicy, RouteTable, Target};
use rouse_proxy::upstream::{Timeouts, UpstreamProtocol};

use crate::rig::{GET_AND_CLOSE, Options, Rig, backend, eventually, rule};

#[tokio::test]
async fn a_route_that_is_gone_leaves_no_page_behind() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let (mut client, mut wire) = rig.send_to(&pod, GET_AND_CLOSE).await;
    rig.gateway.set_routes(RouteTable::new(Vec::new()));
    wire.answer("hello").await;
    client.rest().await;
    rig.requests_counted(200, "http1", 1).await;
    assert_eq!(rig.metric(r#"rouse_request_duration_seconds_count{route="cart"}"#), 0);
    rig.gateway.set_routes(RouteTable::new(Vec::new()));
    assert!(!rig.metrics_text().contains("cart"), "what was under way is forgotten with the next change");
}

#[tokio::test]
async fn routes_that_come_and_go_leave_the_metrics_as_small_as_they_were() {
    let rig = Rig::new(Options::default());
    let (own, before) = (rig.gateway.routes().rules().to_vec(), rig.metrics_text());
    let at_once = Timeouts { readiness: Some(Duration::ZERO), ..Timeouts::default() };
    for n in 0..1000 {
        let name = format!("n{n}");
        let target = Target::Backend(backend(&rig.add(&name), UpstreamProtocol::Http1));
        let mut rules = own.clone();
        rules.push(rule(&name, target, at_once, NoPodPolicy::default()));
        rig.gateway.set_routes(RouteTable::new(rules));
        let request = format!("GET / HTTP/1.1\r\nHost: {name}.test\r\nConnection: close\r\n\r\n");
        let answer = rig.send(&request).await.rest().await;
        assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    }
    eventually("the last is written down", || {
        rig.metric(r#"rouse_requests_total{route="n999",code="504",protocol="http1"}"#) == 1
    })
    .await;
    assert_eq!(rig.metric(r#"rouse_hold_duration_seconds_count{service="shop/n999",outcome="deadline"}"#), 1);
    rig.gateway.set_routes(RouteTable::new(own));
    assert_eq!(rig.metrics_text(), before);
}
