//! What counts as the load of a route and of a service: requests from their first moment to the end of their response.

use rouse_core::load_meter::LoadMeter;
use rouse_proxy::routing::{NoPodPolicy, PassiveRequests};
use rouse_testkit::fakes::READY;

use crate::rig::{GET, Options, Pod, Rig, eventually};

/// Requests so far, present and held.
fn reading(meter: &LoadMeter) -> (u64, u32, u32) {
    let sample = meter.sample();
    (sample.requests, sample.present, sample.held)
}

#[tokio::test]
async fn a_request_counts_until_the_last_byte_of_its_response_was_sent() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let route = rig.metered(NoPodPolicy::default());
    let (mut client, mut wire) = rig.send_to(&pod, GET).await;
    wire.write("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab").await;
    client.until("ab").await;
    for meter in [&route, rig.service.meter()] {
        assert_eq!(reading(meter), (1, 1, 0), "{meter:?}: half of the body is missing");
    }
    wire.write("cd").await;
    client.until("cd").await;
    for meter in [&route, rig.service.meter()] {
        eventually("it is over", || reading(meter) == (1, 0, 0)).await;
    }
}

#[tokio::test]
async fn a_held_request_counts_and_one_whose_client_leaves_counts_no_more() {
    let rig = Rig::new(Options::default());
    let route = rig.metered(NoPodPolicy::default());
    let first = rig.send_held(GET).await;
    let _second = rig.send_held(GET).await;
    assert_eq!((reading(&route), reading(rig.service.meter())), ((2, 2, 0), (2, 2, 2)));
    // Not closed: a client that only closes its side may wait for the response.
    first.reset();
    eventually("its client left", || reading(rig.service.meter()) == (2, 1, 1) && route.present() == 1).await;
}

#[tokio::test]
async fn an_upgraded_connection_counts_while_it_is_open() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let route = rig.metered(NoPodPolicy::default());
    let upgrade = "GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let (mut client, mut wire) = rig.send_to(&pod, upgrade).await;
    wire.write("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").await;
    client.until("\r\n\r\n").await;
    for meter in [&route, rig.service.meter()] {
        assert_eq!(reading(meter), (1, 1, 0), "{meter:?}");
    }
    drop((client, wire));
    for meter in [&route, rig.service.meter()] {
        eventually("it is closed", || reading(meter) == (1, 0, 0)).await;
    }
}

#[tokio::test]
async fn a_passive_request_is_no_load() {
    let rig = Rig::new(Options::default());
    let passive = PassiveRequests { paths: vec!["/healthz".parse().unwrap()], ..PassiveRequests::default() };
    let route = rig.metered(NoPodPolicy { passive, ..NoPodPolicy::default() });
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let _pod = pod.serve();
    assert!(rig.get("/healthz").await.starts_with("HTTP/1.1 200"));
    assert_eq!((reading(&route), reading(rig.service.meter())), ((0, 0, 0), (0, 0, 0)));
    assert!(rig.registry.loads().read().is_empty());
    assert!(rig.get("/").await.starts_with("HTTP/1.1 200"));
    assert_eq!(route.requests(), 1);
}
