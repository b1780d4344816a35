//! A pod that leaves, and a gateway that does.

use rouse_testkit::fakes::{DRAINING, READY};
use tokio::time::timeout;

use crate::rig::{Options, PATIENCE, Pod, Rig, eventually};

const KEEP_ALIVE: &str = "GET / HTTP/1.1\r\nHost: cart.test\r\n\r\n";

#[tokio::test]
async fn the_idle_connections_of_a_pod_close_when_it_drains() {
    let rig = Rig::new(Options::default());
    let (leaving, staying) = (Pod::new(1).await, Pod::new(2).await);
    rig.pods(&[(&leaving, READY)]);
    let mut client = rig.connect().await;
    client.write(KEEP_ALIVE).await;
    let mut wire = leaving.accept().await;
    wire.head().await;
    wire.answer("one").await;
    client.until("one").await;
    client.write(KEEP_ALIVE).await;
    wire.head().await;
    wire.answer("two").await;
    client.until("two").await;
    // That was the same connection. Now it is idle, and its pod leaves.
    rig.pods(&[(&leaving, DRAINING), (&staying, READY)]);
    assert_eq!(wire.rest().await, "");
    client.write(KEEP_ALIVE).await;
    let mut wire = staying.accept().await;
    wire.head().await;
    wire.answer("three").await;
    client.until("three").await;
}

#[tokio::test]
async fn what_is_in_flight_on_a_leaving_pod_is_finished() {
    let rig = Rig::new(Options::default());
    let (leaving, staying) = (Pod::new(1).await, Pod::new(2).await);
    rig.pods(&[(&leaving, READY)]);
    let serving = async {
        let mut wire = leaving.accept().await;
        wire.head().await;
        rig.pods(&[(&leaving, DRAINING), (&staying, READY)]);
        wire.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst").await;
        // Not even in the slices any more.
        rig.pods(&[(&staying, READY)]);
        wire.write(" last").await;
        assert_eq!(wire.rest().await, "", "and then nobody uses it again");
    };
    let (answer, ()) = tokio::join!(rig.get("/"), serving);
    assert!(answer.ends_with("first last"), "{answer}");
}

#[tokio::test]
async fn the_last_pod_serves_while_it_drains_and_a_successor_is_woken() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, DRAINING)]);
    let serving = async {
        let mut wire = pod.accept().await;
        wire.head().await;
        wire.answer("hello").await;
    };
    let (answer, ()) = tokio::join!(rig.get("/"), serving);
    assert!(answer.ends_with("hello"), "{answer}");
    assert_eq!(rig.metric(r#"rouse_requests_to_draining_total{service="shop/cart"}"#), 1);
    assert_eq!(rig.engine.wakes(), 1);
}

#[tokio::test]
async fn a_gateway_that_drains_finishes_what_it_has_and_closes_what_is_idle() {
    let mut rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let (mut idle, mut busy) = (rig.connect().await, rig.connect().await);
    idle.write(KEEP_ALIVE).await;
    let mut wire = pod.accept().await;
    wire.head().await;
    wire.answer("hello").await;
    idle.until("hello").await;
    busy.write(KEEP_ALIVE).await;
    let mut other = tokio::select! {
        head = wire.head() => { drop(head); None }
        other = pod.accept() => Some(other),
    };
    if let Some(other) = &mut other {
        other.head().await;
    }
    rig.workers.drain();
    assert_eq!(idle.rest().await, "");
    eventually("only the request is under way", || rig.gateway.under_way().count() == 1).await;
    other.as_mut().unwrap_or(&mut wire).answer("done").await;
    let answer = busy.rest().await;
    assert!(answer.ends_with("done"), "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    timeout(PATIENCE, rig.gateway.under_way().idle()).await.unwrap();
    assert!(tokio::net::TcpStream::connect(rig.address).await.is_err(), "nobody listens any more");
    rig.workers.close();
    timeout(PATIENCE, rig.workers.ended()).await.unwrap();
}

#[tokio::test]
async fn a_websocket_is_told_that_the_gateway_leaves_and_other_upgrades_are_cut() {
    for (upgrade, farewell) in [("websocket", &[0x88, 0x02, 0x03, 0xe9][..]), ("rot13", &[])] {
        let mut rig = Rig::new(Options::default());
        let pod = Pod::new(1).await;
        rig.pods(&[(&pod, READY)]);
        let mut client = rig.connect().await;
        client
            .write(&format!(
                "GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
            ))
            .await;
        let mut wire = pod.accept().await;
        let head = wire.head().await;
        assert!(head.contains(&format!("\r\nupgrade: {upgrade}\r\n")), "{head}");
        wire.write(&format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
        ))
        .await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        // A frame of three bytes there, and one of two back.
        client.bytes(&[0x82, 0x83, 1, 2, 3, 4, b'a', b'b', b'c']).await;
        wire.until("abc").await;
        wire.bytes(&[0x82, 0x02, b'h', b'i']).await;
        client.until("hi").await;
        assert_eq!((rig.gateway.under_way().count(), rig.service.in_flight()), (1, 1));
        rig.workers.drain();
        rig.workers.close();
        assert_eq!(client.raw_rest().await, farewell, "{upgrade}");
        timeout(PATIENCE, rig.workers.ended()).await.unwrap();
        eventually("its slot is given back", || rig.service.in_flight() == 0).await;
    }
}

#[tokio::test]
async fn a_websocket_that_is_in_the_middle_of_a_frame_is_cut() {
    let mut rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = rig.connect().await;
    client
        .write("GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .await;
    let mut wire = pod.accept().await;
    wire.head().await;
    wire.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").await;
    client.head().await;
    wire.bytes(&[0x82, 0x05, b'h', b'a', b'l', b'f']).await;
    client.until("half").await;
    rig.workers.close();
    assert_eq!(client.raw_rest().await, b"");
    timeout(PATIENCE, rig.workers.ended()).await.unwrap();
}
