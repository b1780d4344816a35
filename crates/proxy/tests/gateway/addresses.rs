//! A pod that keeps its UID and changes its port or its IP: no request goes to the old address any more.

use std::net::SocketAddr;

use rouse_core::endpoint::{PodRef, PodUid, PortName, Slice, SliceEndpoint, SlicePort};
use rouse_net::tls::{ClientSettings, ClientTls, Roots, ServerName};
use rouse_proxy::upstream::UpstreamProtocol;
use rouse_testkit::fakes::READY;
use tokio::task::JoinSet;

use crate::certificates::Authority;
use crate::http2_peers::{self, H2Client, h2c};
use crate::rig::{GET, GET_AND_CLOSE, Options, Pod, Rig, eventually};
use crate::upstream_tls::{TlsPod, server};

/// Connections to the old port stay open at the pod, so only the gateway can stop using them.
#[tokio::test]
async fn a_connection_to_a_pods_former_port_is_not_used_again() {
    let (rig, former) = Rig::with_pod(Options::default()).await;
    let present = Pod::new(1).await;
    let mut client = rig.connect().await;
    let mut wire = client.get_from(&former, "one").await;
    // The connection is idle now, and the very next request comes with the new port.
    rig.pods(&[(&present, READY)]);
    let _newer = client.get_from(&present, "two").await;
    assert_eq!(wire.rest().await, "", "the old connection is closed, and nothing was sent on it");
}

#[tokio::test]
async fn what_is_in_flight_on_a_pods_former_port_is_finished_and_its_connection_not_kept() {
    let (rig, former) = Rig::with_pod(Options::default()).await;
    let present = Pod::new(1).await;
    let (mut client, mut wire) = rig.send_to(&former, GET).await;
    wire.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst").await;
    client.until("first").await;
    rig.pods(&[(&present, READY)]);
    assert_eq!(rig.service.in_flight(), 1, "it counts as load of the pod, wherever that is reached now");
    wire.write(" last").await;
    client.until(" last").await;
    let _newer = client.get_from(&present, "two").await;
    assert_eq!(wire.rest().await, "");
    eventually("nothing is in flight", || rig.service.in_flight() == 0).await;
}

#[tokio::test]
async fn a_shared_http_2_connection_to_a_pods_former_port_takes_no_new_stream() {
    let (rig, former) = Rig::with_pod(h2c()).await;
    let present = Pod::new(1).await;
    let client = H2Client::new(&rig).await;
    let early = client.get("http://cart.test/early").await;
    let mut connection = former.accept_h2().await;
    let (_, mut respond) = connection.accept().await.unwrap().unwrap();
    rig.pods(&[(&present, READY)]);
    let late = client.get("http://cart.test/late").await;
    let serving = async {
        let mut connection = present.accept_h2().await;
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        assert_eq!(request.uri().path(), "/late");
        http2_peers::answer(&mut respond, "new");
        while connection.accept().await.is_some() {}
    };
    let old = async { while connection.accept().await.is_some() {} };
    let asking = async {
        assert_eq!(late.body().await, b"new");
        // Requests in flight continue.
        http2_peers::answer(&mut respond, "old");
        assert_eq!(early.body().await, b"old");
    };
    tokio::select! {
        () = asking => {}
        () = async { tokio::join!(serving, old); } => unreachable!("the pods outlive the requests"),
    }
}

/// One endpoint with two addresses, as for dual-stack pods.
#[tokio::test]
async fn an_address_that_a_pod_with_two_loses_is_not_used_again() {
    let rig = Rig::new(Options::default());
    let (lost, kept) = (Pod::new(1).await, Pod::new(1).await);
    two_addresses(&rig, &[lost.address, kept.address]);
    let mut client = rig.connect().await;
    let mut wire = client.get_from(&lost, "one").await;
    two_addresses(&rig, &[kept.address]);
    let _other = client.get_from(&kept, "two").await;
    assert_eq!(wire.rest().await, "");
}

/// The pod `uid-1` in one slice for each address.
fn two_addresses(rig: &Rig, addresses: &[SocketAddr]) {
    let slices = addresses.iter().enumerate().map(|(n, address)| {
        let pod = PodRef { uid: PodUid::new("uid-1"), name: "shop/pod-1".into() };
        let slice = Slice {
            ports: vec![SlicePort { name: PortName::new("http"), number: address.port() }],
            endpoints: vec![SliceEndpoint { ip: address.ip(), conditions: READY, pod: Some(pod) }],
        };
        (format!("slice-{n}"), slice)
    });
    rig.service.replace_slices(slices);
}

/// The address changes during a slow TLS handshake to the old one.
#[tokio::test]
async fn a_connection_that_was_being_made_to_a_former_address_gets_no_request() {
    let authority = Authority::new();
    let name = ServerName::try_from("cart.shop.svc").unwrap();
    let (tls, _) = ClientTls::new(ClientSettings::new(name, Roots::Pem(vec![authority.ca()]))).unwrap();
    let options = Options { protocol: UpstreamProtocol::Tls(tls.into()), ..Options::default() };
    let (rig, former) = Rig::with_pod(options).await;
    let present = Pod::new(1).await;
    let mut client = rig
        .send("POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .await;
    // The TCP connection waits to be accepted, and the handshake waits for the pod.
    let waiting = former.accept_raw().await;
    rig.pods(&[(&present, READY)]);
    let former = TlsPod::shake(waiting, server(authority.leaf(&["cart.shop.svc"])));
    let present = TlsPod::serve(present, server(authority.leaf(&["cart.shop.svc"])), false);
    let answer = client.rest().await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert_eq!((former.shaken().len(), former.asked()), (1, vec![]));
    assert_eq!(present.asked().len(), 1);
    assert_eq!(rig.metric("rouse_ejections_total"), 0, "nothing against the pod");
}

/// As after a late list: held requests got slots on a pod whose address changes before they are sent. Requests that were
/// sent before the change finish at the former address.
#[tokio::test]
async fn many_requests_are_all_served_when_their_pod_gets_another_address() {
    let rig = Rig::new(Options::default());
    let (former, present, other) = (Pod::new(1).await, Pod::new(1).await, Pod::new(2).await);
    let mut asked = JoinSet::new();
    for _ in 0..90 {
        let mut client = rig.connect().await;
        asked.spawn(async move {
            client.write(GET_AND_CLOSE).await;
            client.rest().await
        });
    }
    eventually("all are held", || rig.service.holds() == 90).await;
    rig.pods(&[(&former, READY)]);
    rig.pods(&[(&present, READY), (&other, READY)]);
    let _serving = [former.serve(), present.serve(), other.serve()];
    while let Some(answer) = asked.join_next().await {
        let answer = answer.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
}
