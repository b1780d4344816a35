//! Held requests, and how their holds end.

use std::time::Duration;

use http::Request;
use rouse_core::endpoint::{PodRef, PodUid, PortName, Slice, SliceEndpoint, SlicePort};
use rouse_core::hold::HoldLimits;
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_core::start_failure::{StartFailure, StartFailureCause};
use rouse_proxy::routing::{NoPodPolicy, Target};
use rouse_proxy::upstream::{Timeouts, UpstreamProtocol};
use rouse_testkit::fakes::READY;

use crate::http2_peers::{H2Client, h2c};
use crate::rig::{GET, GET_AND_CLOSE, Options, Pod, Rig, backend, eventually, rule};

#[tokio::test]
async fn a_client_that_leaves_gives_its_place_up_at_once_and_is_no_failure_of_ours() {
    let rig = Rig::new(Options::default());
    let requests = [
        GET,
        "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 1000000\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n",
    ];
    for (gone, request) in (1..).zip(requests) {
        let client = rig.send_held(request).await;
        client.reset();
        eventually("its place is free", || rig.service.holds() == 0).await;
        rig.requests_counted(499, "http1", gone).await;
    }
    assert_eq!(rig.gateway.under_way().count(), 0);
}

#[tokio::test]
async fn a_full_wait_queue_rejects_requests_with_retry_after() {
    let bounds = HoldLimits { per_service: 1, ..HoldLimits::default() };
    let rig = Rig::new(Options { bounds, ..Options::default() });
    let _held = rig.send_held(GET).await;
    let answer = rig.get("/").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(
        answer.contains("\r\nx-rouse-error: queue_full\r\n") && answer.contains("\r\nretry-after: 1\r\n")
    );
}

#[tokio::test]
async fn requests_that_are_held_when_the_drain_ends_get_an_error() {
    let rig = Rig::new(Options::default());
    let mut held = rig.send_held(GET).await;
    rig.workers.drain();
    rig.registry.shut_down();
    let answer = held.rest().await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("\r\nx-rouse-error: shutting_down\r\n"), "{answer}");
}

#[tokio::test]
async fn a_readiness_timeout_gives_the_reason_of_the_engine() {
    let timeouts = Timeouts { readiness: Some(Duration::from_millis(50)), ..Timeouts::default() };
    let rig = Rig::new(Options { timeouts, ..Options::default() });
    rig.service.wake_failed(StartFailure::new(
        StartFailureCause::ScaleRefused,
        "pods \"cart\" is forbidden: quota of team-7",
    ));
    let answer = rig.get("/").await;
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("\r\nx-rouse-error: readiness_timeout\r\n"), "{answer}");
    assert!(
        answer.contains("\r\n\r\nno pod was ready in time: the cluster refused to scale its workload"),
        "{answer}"
    );
    assert!(!answer.contains("team-7"), "{answer}");
}

#[tokio::test]
async fn a_failed_start_ends_the_hold_at_once_and_only_developers_get_the_details() {
    let rig = Rig::new(Options::default());
    let target = Target::Backend(backend(&rig.service, UpstreamProtocol::Http1));
    let mut local = rule("cart", target, Timeouts::default(), NoPodPolicy::default());
    local.hosts = vec!["localhost".parse().unwrap()];
    rig.route(local);
    for (host, detailed) in [("cart.test", false), ("localhost", true)] {
        rig.service.start_over();
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let mut client = rig.send_held(&request).await;
        rig.service.wake_failed(StartFailure::new(
            StartFailureCause::CannotRun,
            "command not found: PATH is /home/me/bin",
        ));
        let answer = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("\r\nx-rouse-error: start_failed\r\n"), "{answer}");
        assert!(answer.contains("\r\nretry-after: 10\r\n"), "{answer}");
        assert_eq!(answer.contains("/home/me/bin"), detailed, "{host}: {answer}");
        assert_eq!(answer.contains("see `rouse logs cart`"), !detailed, "{host}: {answer}");
    }
}

#[tokio::test]
async fn requests_are_released_first_come_first_served_and_never_above_the_limit() {
    let rig = Rig::new(Options { concurrency: ConcurrencyLimits::new(0, 1), ..Options::default() });
    let pod = Pod::new(1).await;
    let mut clients = Vec::new();
    for number in 1..=5 {
        clients.push(rig.send_held(&format!("GET /{number} HTTP/1.1\r\nHost: cart.test\r\n\r\n")).await);
    }
    rig.pods(&[(&pod, READY)]);
    let served = pod.serve();
    for client in &mut clients {
        client.until("hello").await;
        assert!(rig.service.in_flight() <= 1);
    }
    assert_eq!(served.paths(), ["/1", "/2", "/3", "/4", "/5"]);
    assert_eq!(served.most_at_once(), 1);
}

#[tokio::test]
async fn a_large_head_counts_against_the_bytes_of_holds() {
    let bounds = HoldLimits { bytes: 32 * 1024, ..HoldLimits::default() };
    let rig = Rig::new(Options { bounds, ..Options::default() });
    let mut client = rig.connect().await;
    let large = "x".repeat(50_000);
    client
        .write(&format!("GET / HTTP/1.1\r\nHost: cart.test\r\nX-Large: {large}\r\nConnection: close\r\n\r\n"))
        .await;
    let answer = client.rest().await;
    assert!(answer.contains("\r\nx-rouse-error: queue_full\r\n"), "{answer}");
}

/// A held GET takes 22 KiB and more with its connection, its tasks and hyper's buffer, although it has no body.
#[tokio::test]
async fn a_held_get_counts_with_all_that_its_connection_takes() {
    let bounds = HoldLimits { bytes: 100 * 1024, ..HoldLimits::default() };
    let rig = Rig::new(Options { bounds, ..Options::default() });
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(rig.send_held(GET).await);
    }
    let answer = rig.get("/").await;
    assert!(answer.contains("\r\nx-rouse-error: queue_full\r\n"), "{answer}");
}

#[tokio::test]
async fn held_streams_end_with_their_connection() {
    let rig = Rig::new(h2c());
    let client = H2Client::new(&rig).await;
    let mut held = Vec::new();
    for number in 1..=40 {
        held.push(client.send(Request::post("http://cart.test/"), number % 2 == 0).await);
        eventually("it is held", || rig.service.holds() == number).await;
    }
    drop((held, client));
    eventually("all places are free", || rig.service.holds() == 0).await;
    rig.requests_counted(499, "http2", 40).await;
    assert_eq!(rig.gateway.under_way().count(), 0);
}

#[tokio::test]
async fn requests_held_for_a_removed_service_get_an_error() {
    let rig = Rig::new(Options::default());
    let mut held = rig.send_held(GET_AND_CLOSE).await;
    rig.registry.remove(rig.service.id());
    let answer = held.rest().await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("\r\nx-rouse-error: no_service\r\n"), "{answer}");
}

#[tokio::test]
async fn a_port_that_no_pod_offers_is_not_waited_for() {
    let rig = Rig::new(Options::default());
    let endpoint = SliceEndpoint { ip: [127, 0, 0, 1].into(), conditions: READY, pod: None };
    let port = SlicePort { name: PortName::new("other"), number: 1 };
    let pod = PodRef { uid: PodUid::new("uid-1"), name: "shop/pod-1".into() };
    let slice = Slice { ports: vec![port], endpoints: vec![SliceEndpoint { pod: Some(pod), ..endpoint }] };
    rig.service.put_slice("slice-1", slice);
    let answer = rig.get("/").await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert!(answer.contains("\r\nx-rouse-error: bad_port\r\n"), "{answer}");
}
