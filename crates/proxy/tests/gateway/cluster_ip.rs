//! The `ClusterIP`: when it is used, and what happens while it does not accept connections.

use std::net::SocketAddr;
use std::time::Duration;

use rouse_core::endpoint::{PodRef, PodUid, PortName, Slice, SliceEndpoint, SlicePort};
use rouse_core::routing_mode::RoutingMode;
use rouse_proxy::upstream::Timeouts;
use rouse_testkit::fakes::READY;
use tokio::net::TcpSocket;
use tokio::time::timeout;

use crate::http2_peers::{H2Client, read};
use crate::rig::{GET, Options, PATIENCE, Pod, Rig, Served, eventually};

/// A `ClusterIP` before kube-proxy has set it up: connections to it are refused.
struct Closed {
    socket: TcpSocket,
    address: SocketAddr,
}

impl Closed {
    fn new() -> Self {
        Self::at("127.0.0.1:0")
    }

    fn at(address: &str) -> Self {
        let address: SocketAddr = address.parse().unwrap();
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
        // An earlier socket at the address may not be closed yet.
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        Self { address: socket.local_addr().unwrap(), socket }
    }

    /// Accepts connections from now on.
    fn open(self) -> Pod {
        Pod::on(0, self.socket.listen(1024).unwrap())
    }
}

fn options(direct: RoutingMode, cluster_ip: &[SocketAddr]) -> Options {
    Options { direct, cluster_ip: cluster_ip.to_vec(), ..Options::default() }
}

fn impatient() -> Timeouts {
    Timeouts { readiness: Some(Duration::from_secs(2)), ..Timeouts::default() }
}

fn sent_to(rig: &Rig, result: &str) -> u64 {
    rig.metric(&format!(r#"rouse_direct_routing_total{{result="{result}"}}"#))
}

fn refusals(rig: &Rig) -> u64 {
    rig.metric(r#"rouse_retries_total{reason="connect"}"#)
}

fn is_served(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hello"), "{answer}");
}

fn is_failed(answer: &str, code: &str) {
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert!(answer.contains(&format!("\r\nx-rouse-error: {code}\r\n")), "{answer}");
}

/// A gateway in front of a `ClusterIP` that answers.
fn with_cluster_ip(direct: RoutingMode) -> (Rig, Served) {
    let ip = Closed::new().open();
    let rig = Rig::new(options(direct, &[ip.address]));
    (rig, ip.serve())
}

/// Sends requests until one more has gone to the `ClusterIP`.
async fn ask_until_the_cluster_ip_is_used(rig: &Rig) {
    let before = sent_to(rig, "cluster_ip");
    let asking = async {
        while sent_to(rig, "cluster_ip") == before {
            is_served(&rig.get("/").await);
        }
    };
    timeout(PATIENCE, asking).await.expect("the ClusterIP accepts, and should be used");
}

/// A ready pod without the port of the route.
fn other_port(rig: &Rig) {
    let pod = PodRef { uid: PodUid::new("uid-9"), name: "shop/pod-9".into() };
    let slice = Slice {
        ports: vec![SlicePort { name: PortName::new("metrics"), number: 9 }],
        endpoints: vec![SliceEndpoint { ip: [127, 0, 0, 1].into(), conditions: READY, pod: Some(pod) }],
    };
    rig.service.put_slice("other", slice);
}

#[tokio::test]
async fn disabled_waits_for_a_pod_and_then_asks_the_cluster_ip_alone() {
    let (rig, ip) = with_cluster_ip(RoutingMode::Disabled);
    let pod = Pod::new(1).await;
    let coming = async {
        eventually("it is held", || rig.service.holds() == 1).await;
        assert_eq!(ip.paths(), [""; 0], "no pod is ready");
        rig.pods(&[(&pod, READY)]);
    };
    let (answer, ()) = tokio::join!(rig.get("/cold"), coming);
    is_served(&answer);
    assert!(answer.contains("\r\nx-rouse-cold-start: true\r\n"), "{answer}");
    let pod = pod.serve();
    for _ in 0..10 {
        is_served(&rig.get("/warm").await);
    }
    assert_eq!((ip.paths().len(), pod.paths().len()), (11, 0));
    assert_eq!((sent_to(&rig, "cluster_ip"), sent_to(&rig, "pod")), (11, 0));
    assert_eq!((rig.engine.wakes(), rig.service.asked()), (1, 11));
    eventually("its slots are given back", || rig.service.in_flight() == 0).await;
}

#[tokio::test]
async fn a_cluster_ip_that_refuses_is_asked_again_until_it_accepts() {
    for body in ["", "abc"] {
        let ip = Closed::new();
        let (rig, _pod) = Rig::with_pod(options(RoutingMode::Disabled, &[ip.address])).await;
        let method = if body.is_empty() { "GET" } else { "POST" };
        let mut client = rig
            .send(&format!(
                "{method} / HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ))
            .await;
        eventually("it was refused several times", || refusals(&rig) >= 4).await;
        let mut wire = ip.open().accept().await;
        let head = wire.head().await;
        assert!(head.starts_with(&format!("{method} / HTTP/1.1\r\n")), "{head}");
        if !body.is_empty() {
            wire.until(body).await;
        }
        wire.answer("hello").await;
        is_served(&client.rest().await);
        assert_eq!((sent_to(&rig, "cluster_ip"), sent_to(&rig, "pod")), (1, 0));
    }
}

#[tokio::test]
async fn a_cluster_ip_that_accepts_too_late_is_a_failed_connection() {
    let ip = Closed::new();
    let options = Options { timeouts: impatient(), ..options(RoutingMode::Disabled, &[ip.address]) };
    let (rig, _pod) = Rig::with_pod(options).await;
    is_failed(&rig.get("/").await, "connect_failed");
    // Every 50 ms for two seconds.
    assert!((1..=41).contains(&refusals(&rig)), "{}", refusals(&rig));
    eventually("its slot is given back", || rig.service.in_flight() == 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_while_the_cluster_ip_refuses_is_let_go() {
    let ip = Closed::new();
    let (rig, _pod) = Rig::with_pod(options(RoutingMode::Disabled, &[ip.address])).await;
    for request in [GET, "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 9\r\n\r\n"] {
        let before = refusals(&rig);
        let client = rig.send(request).await;
        eventually("it is refused", || refusals(&rig) > before).await;
        client.reset();
        eventually("its slot is given back", || rig.service.in_flight() == 0).await;
    }
    rig.requests_counted(499, "http1", 2).await;
    assert_eq!(rig.gateway.under_way().count(), 0);
}

#[tokio::test]
async fn what_was_sent_to_the_cluster_ip_is_not_sent_again_unless_that_does_no_harm() {
    let ip = Closed::new().open();
    let (rig, _pod) = Rig::with_pod(options(RoutingMode::Disabled, &[ip.address])).await;
    let mut client = rig.send("POST /once HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 3\r\n\r\nabc").await;
    ip.accept().await.until("abc").await;
    is_failed(&client.head().await, "upstream_reset");

    let asking = rig.get("/twice");
    let serving = async {
        let head = ip.accept().await.head().await;
        assert!(head.starts_with("GET /twice "), "the POST came again: {head}");
        let mut wire = ip.accept_request().await;
        wire.answer_last("hello").await;
    };
    let (answer, ()) = tokio::join!(asking, serving);
    is_served(&answer);

    let serving = async {
        for _ in 0..2 {
            ip.accept().await.head().await;
        }
    };
    let (answer, ()) = tokio::join!(rig.get("/in-vain"), serving);
    is_failed(&answer, "upstream_reset");
}

#[tokio::test]
async fn connections_to_the_cluster_ip_are_kept_until_the_endpoints_change() {
    let ip = Closed::new().open();
    let rig = Rig::new(options(RoutingMode::Disabled, &[ip.address]));
    let (one, other) = (Pod::new(1).await, Pod::new(2).await);
    rig.pods(&[(&one, READY)]);
    // One client connection, so that a single worker handles everything.
    let client = H2Client::new(&rig).await;
    let first = client.get("http://cart.test/1").await;
    let mut kept = ip.answer("hello").await;
    assert_eq!(first.body().await, b"hello");
    let second = client.get("http://cart.test/2").await;
    let head = kept.head().await;
    assert!(head.starts_with("GET /2 "), "{head}");
    let third = client.get("http://cart.test/3").await;
    let mut busy = ip.accept_request().await;
    kept.answer("hello").await;
    assert_eq!(second.body().await, b"hello");

    rig.pods(&[(&one, READY), (&other, READY)]);
    // The gateway sees it a moment later. Until then the connection is in use, and so does not become idle.
    let seeing = async {
        loop {
            let asked = client.get("http://cart.test/again").await;
            let mut fresh = tokio::select! {
                Some(_) = kept.next_head() => None,
                mut wire = ip.accept() => {
                    wire.head().await;
                    Some(wire)
                }
            };
            fresh.as_mut().unwrap_or(&mut kept).answer("hello").await;
            assert_eq!(asked.body().await, b"hello");
            if let Some(wire) = fresh {
                return wire;
            }
        }
    };
    let mut fresh = timeout(PATIENCE, seeing).await.expect("its pod may be leaving: it is not kept");
    busy.answer("hello").await;
    assert_eq!(read(third.head().await.into_body()).await, b"hello");
    for _ in 0..10 {
        let asked = client.get("http://cart.test/4").await;
        tokio::select! {
            Some(head) = busy.next_head() => panic!("neither is one that was in use at that time: {head}"),
            Some(_) = fresh.next_head() => {}
            mut wire = ip.accept() => {
                wire.head().await;
                fresh = wire;
            }
        }
        fresh.answer("hello").await;
        assert_eq!(asked.body().await, b"hello");
    }
}

#[tokio::test]
async fn a_request_that_waits_for_the_cluster_ip_wakes_a_new_pod_when_the_last_one_goes() {
    let ip = Closed::new();
    let rig = Rig::new(options(RoutingMode::Disabled, &[ip.address]));
    let (one, other) = (Pod::new(1).await, Pod::new(2).await);
    rig.pods(&[(&one, READY)]);
    let coming = async {
        eventually("it is refused", || refusals(&rig) >= 1).await;
        rig.pods(&[]);
        eventually("it waits for a pod", || rig.service.holds() == 1 && rig.engine.wakes() == 1).await;
        let ip = ip.open().serve();
        rig.pods(&[(&other, READY)]);
        ip
    };
    let (answer, ip) = tokio::join!(rig.get("/"), coming);
    is_served(&answer);
    assert_eq!((ip.paths().len(), rig.service.asked()), (1, 1));
}

#[tokio::test]
async fn cold_start_only_goes_to_the_pod_until_the_cluster_ip_accepts() {
    let closed = Closed::new();
    let rig = Rig::new(options(RoutingMode::ColdStartOnly, &[closed.address]));
    let pod = Pod::new(1).await;
    let address = pod.address;
    let pod = pod.serve();
    let pod_comes = async || {
        eventually("it is held", || rig.service.holds() == 1).await;
        rig.slices(&[(1, address, READY)]);
    };
    let (answer, ()) = tokio::join!(rig.get("/"), pod_comes());
    is_served(&answer);
    for _ in 0..10 {
        is_served(&rig.get("/").await);
    }
    assert_eq!((pod.paths().len(), refusals(&rig)), (11, 0), "no request finds out for the others");

    let ip_address = closed.address;
    let ip = closed.open().serve();
    ask_until_the_cluster_ip_is_used(&rig).await;
    let before = pod.paths().len();
    for _ in 0..10 {
        is_served(&rig.get("/").await);
    }
    assert_eq!(pod.paths().len(), before, "the ClusterIP has accepted once");

    // It refuses again: requests go directly to the pod without an error, also those with a body.
    ip.end().await;
    let closed = Closed::at(&ip_address.to_string());
    let post = "POST /post HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    is_served(&rig.send(post).await.rest().await);
    for _ in 0..10 {
        is_served(&rig.get("/").await);
    }
    assert_eq!(pod.paths().len(), before + 11);

    // And again.
    let ip = closed.open().serve();
    ask_until_the_cluster_ip_is_used(&rig).await;

    // Back to zero: earlier accepted connections do not count for the next pods.
    rig.pods(&[]);
    let (before, there) = (pod.paths().len(), ip.paths().len());
    let (answer, ()) = tokio::join!(rig.get("/cold"), pod_comes());
    is_served(&answer);
    assert_eq!((pod.paths().len(), ip.paths().len()), (before + 1, there));
}

#[tokio::test]
async fn without_the_port_a_cluster_ip_that_refuses_is_not_asked_without_a_pause() {
    for direct in [RoutingMode::Disabled, RoutingMode::ColdStartOnly, RoutingMode::Always] {
        let ip = Closed::new();
        let rig = Rig::new(Options { timeouts: impatient(), ..options(direct, &[ip.address]) });
        other_port(&rig);
        is_failed(&rig.get("/").await, "connect_failed");
        assert!((1..=41).contains(&refusals(&rig)), "{direct:?}: {}", refusals(&rig));
    }
}

#[tokio::test]
async fn always_goes_to_the_pods_while_one_offers_the_port() {
    let (rig, ip) = with_cluster_ip(RoutingMode::Always);
    let pod = Pod::new(1).await;
    let _client = rig.send_held(GET).await;
    rig.pods(&[(&pod, READY)]);
    let _wire = pod.accept_request().await;
    let pod = pod.serve();
    for _ in 0..10 {
        is_served(&rig.get("/").await);
    }
    assert_eq!((pod.paths().len(), ip.paths().len()), (10, 0));
}

#[tokio::test]
async fn a_port_that_no_endpoint_offers_leads_to_the_cluster_ip_and_is_counted() {
    for direct in [RoutingMode::Disabled, RoutingMode::ColdStartOnly, RoutingMode::Always] {
        let (rig, ip) = with_cluster_ip(direct);
        other_port(&rig);
        is_served(&rig.get("/").await);
        assert_eq!((ip.paths().len(), sent_to(&rig, "cluster_ip_no_port")), (1, 1), "{direct:?}");
        assert_eq!((rig.engine.wakes(), rig.service.holds()), (0, 0));
    }
    let rig = Rig::new(options(RoutingMode::Always, &[]));
    other_port(&rig);
    is_failed(&rig.get("/").await, "bad_port");
}

#[tokio::test]
async fn a_pod_that_comes_to_offer_the_port_is_gone_to_instead() {
    let ip = Closed::new();
    let rig = Rig::new(options(RoutingMode::Always, &[ip.address]));
    let pod = Pod::new(1).await;
    other_port(&rig);
    let coming = async {
        eventually("it is refused", || refusals(&rig) >= 1).await;
        rig.pods(&[(&pod, READY)]);
        pod.answer("hello").await
    };
    let (answer, _wire) = tokio::join!(rig.get("/"), coming);
    is_served(&answer);
    assert_eq!((sent_to(&rig, "cluster_ip_no_port"), sent_to(&rig, "pod")), (1, 1));
}

#[tokio::test]
async fn a_cluster_ip_may_be_of_either_family_or_of_both() {
    let (v4, v6) = ("127.0.0.1:0", "[::1]:0");
    for addresses in [&[v6][..], &[v4, v6], &[v6, v4]] {
        for direct in [RoutingMode::Disabled, RoutingMode::ColdStartOnly] {
            // Of two, only the second answers.
            let mut all: Vec<Closed> = addresses.iter().map(|address| Closed::at(address)).collect();
            let rig = Rig::new(options(direct, &all.iter().map(|one| one.address).collect::<Vec<_>>()));
            let ip = all.pop().unwrap().open().serve();
            let pod = Pod::new(1).await;
            rig.pods(&[(&pod, READY)]);
            let _pod = pod.serve();
            ask_until_the_cluster_ip_is_used(&rig).await;
            assert_eq!((ip.paths().len(), refusals(&rig)), (1, 0), "{addresses:?} {direct:?}");
        }
    }
}
