//! What is written down of requests, and what is forgotten.

use rouse_proxy::route::Table;

use crate::rig::{Options, Rig, eventually};

#[tokio::test]
async fn a_route_that_is_gone_leaves_no_page_behind() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let mut client = rig.connect().await;
    client.write("GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\n\r\n").await;
    let mut wire = pod.accept().await;
    wire.head().await;
    rig.gateway.set_routes(Table::new(Vec::new()));
    wire.answer("hello").await;
    client.rest().await;
    eventually("it is over", || {
        rig.metric(r#"rouse_requests_total{route="cart",code="200",protocol="http1"}"#) == 1
    })
    .await;
    assert_eq!(rig.metric(r#"rouse_request_duration_seconds_count{route="cart"}"#), 0);
}
