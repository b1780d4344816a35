//! Review: requests at the moment of the drain, and at its end.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rouse_testkit::fakes::READY;
use tokio::time::timeout;

use crate::rig::{Options, PATIENCE, Pod, Rig, eventually};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: cart.test\r\n\r\n";

fn answer(mut client: TcpStream) -> String {
    let mut text = Vec::new();
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let end = client.read_to_end(&mut text).map(drop);
    format!("{} ({end:?})", String::from_utf8_lossy(&text).lines().next().unwrap_or("nothing"))
}

/// What `rouse up` does: drain, wait until nothing is under way, close. A request that had arrived before the
/// drain began is neither in the count nor safe.
#[tokio::test]
async fn a_request_that_had_arrived_when_the_drain_began_is_answered() {
    let mut lost = 0;
    for _ in 0..40 {
        let mut rig = Rig::new(Options::default());
        let pod = Pod::new(1).await;
        rig.pods(&[(&pod, READY)]);
        let _served = pod.serve();
        let mut client = TcpStream::connect(rig.address).unwrap();
        client.write_all(GET).unwrap();
        rig.workers.drain();
        // `rouse up` sleeps for 100 ms here, which hides it.
        timeout(PATIENCE, rig.gateway.under_way().idle()).await.unwrap();
        rig.workers.close();
        timeout(PATIENCE, rig.workers.ended()).await.unwrap();
        let answer = tokio::task::spawn_blocking(|| answer(client)).await.unwrap();
        lost += usize::from(!answer.contains("200 OK"));
    }
    assert_eq!(lost, 0, "of 40");
}

/// Only the drain: connections that the kernel had queued are taken (`Workers::drain` says so).
#[tokio::test]
async fn connections_that_are_queued_when_the_drain_begins_are_served() {
    let mut lost = Vec::new();
    for _ in 0..60 {
        let rig = Rig::new(Options::default());
        let pod = Pod::new(1).await;
        rig.pods(&[(&pod, READY)]);
        let _served = pod.serve();
        let clients: Vec<TcpStream> = (0..8)
            .map(|_| {
                let mut client = TcpStream::connect(rig.address).unwrap();
                client.write_all(GET).unwrap();
                client
            })
            .collect();
        rig.workers.drain();
        for client in clients {
            let answer = tokio::task::spawn_blocking(|| answer(client)).await.unwrap();
            if !answer.contains("200 OK") {
                lost.push(answer);
            }
        }
    }
    assert!(lost.is_empty(), "{} of 480: {:?}", lost.len(), lost.first());
}

/// The end of a drain: holds are told `shutting_down`, and that reaches the client although the workers close
/// right after.
#[tokio::test]
async fn what_holds_are_told_at_the_end_of_the_drain_reaches_the_client() {
    let mut rig = Rig::new(Options::default());
    let mut held = Vec::new();
    for number in 1..=20 {
        let mut client = rig.connect().await;
        client.write("GET / HTTP/1.1\r\nHost: cart.test\r\n\r\n").await;
        eventually("it is held", || rig.service.holds() == number).await;
        held.push(client);
    }
    rig.workers.drain();
    rig.registry.shut_down();
    timeout(PATIENCE, rig.gateway.under_way().idle()).await.unwrap();
    rig.workers.close();
    let mut told = 0;
    for mut client in held {
        told += usize::from(client.rest().await.contains("x-rouse-error: shutting_down"));
    }
    timeout(PATIENCE, rig.workers.ended()).await.unwrap();
    assert_eq!(told, 20);
}
