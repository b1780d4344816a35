//! Upgraded connections: forwarding in both directions, and their end.

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::rig::{Options, PATIENCE, Pod, Rig, eventually};
use crate::wire::Wire;

/// Switches the client's connection to another protocol. Returns the pod's side.
async fn switch_protocols(client: &mut Wire, pod: &Pod, upgrade: &str) -> Wire {
    let headers = format!("Connection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n");
    client.write(&format!("GET / HTTP/1.1\r\nHost: cart.test\r\n{headers}")).await;
    let mut wire = pod.accept().await;
    let head = wire.head().await;
    assert!(head.contains(&format!("\r\nupgrade: {upgrade}\r\n")), "{head}");
    wire.write(&format!("HTTP/1.1 101 Switching Protocols\r\n{headers}")).await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    wire
}

#[tokio::test]
async fn at_shutdown_websockets_get_a_close_frame_and_other_upgrades_are_cut() {
    for (upgrade, close_frame) in [("websocket", &[0x88, 0x02, 0x03, 0xe9][..]), ("rot13", &[])] {
        let (mut rig, pod) = Rig::with_pod(Options::default()).await;
        let mut client = rig.connect().await;
        let mut wire = switch_protocols(&mut client, &pod, upgrade).await;
        // A frame of three bytes to the pod, and one of two back.
        client.bytes(&[0x82, 0x83, 1, 2, 3, 4, b'a', b'b', b'c']).await;
        wire.until("abc").await;
        wire.bytes(&[0x82, 0x02, b'h', b'i']).await;
        client.until("hi").await;
        assert_eq!((rig.gateway.under_way().count(), rig.service.in_flight()), (1, 1));
        rig.workers.drain();
        rig.workers.close();
        assert_eq!(client.raw_rest().await, close_frame, "{upgrade}");
        timeout(PATIENCE, rig.workers.ended()).await.unwrap();
        eventually("its slot is given back", || rig.service.in_flight() == 0).await;
    }
}

#[tokio::test]
async fn a_websocket_that_is_in_the_middle_of_a_frame_is_cut() {
    let (mut rig, pod) = Rig::with_pod(Options::default()).await;
    let mut client = rig.connect().await;
    let mut wire = switch_protocols(&mut client, &pod, "websocket").await;
    wire.bytes(&[0x82, 0x05, b'h', b'a', b'l', b'f']).await;
    client.until("half").await;
    rig.workers.close();
    assert_eq!(client.raw_rest().await, b"");
    timeout(PATIENCE, rig.workers.ended()).await.unwrap();
}

#[tokio::test]
async fn bytes_that_come_along_with_an_upgrade_pass() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let request = "GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: Upgrade\r\nUpgrade: rot13\r\n\r\nearly";
    let (mut client, mut wire) = rig.send_to(&pod, request).await;
    wire.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: rot13\r\n\r\nhasty")
        .await;
    client.until("hasty").await;
    wire.until("early").await;
    drop(client);
    assert_eq!(wire.rest().await, "");
    drop(wire);
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
    rig.requests_counted(101, "http1", 1).await;
}

/// The pod sees the end of the connection, and need not close its side for the slot to be released.
#[tokio::test]
async fn an_upgraded_connection_whose_client_was_reset_ends() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let stream = TcpStream::connect(rig.address).await.unwrap();
    stream.set_zero_linger().unwrap();
    let mut client = Wire::new(stream);
    let mut wire = switch_protocols(&mut client, &pod, "websocket").await;
    assert_eq!(rig.service.in_flight(), 1);
    drop(client);
    assert_eq!(wire.rest().await, "");
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
    drop(wire);
}
