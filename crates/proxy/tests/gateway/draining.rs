//! Draining a gateway: requests in flight finish, idle connections close, and new ones are refused.

use std::io::Write as _;
use std::time::Duration;

use http::Request;
use rouse_proxy::budget::ConnectionLimits;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::http2_peers::{self, H2Client, answer, h2c};
use crate::rig::{GET, Options, PATIENCE, Rig, eventually};
use crate::wire::Wire;

/// Begins the drain, and waits until all present connections have noticed it.
async fn drain(rig: &Rig) {
    let mut idle = Vec::new();
    // Enough that each worker has some. Each connection notices the drain after all earlier ones.
    for _ in 0..4 {
        let mut client = rig.send("GET / HTTP/1.1\r\nHost: unknown.test\r\n\r\n").await;
        assert!(client.head().await.starts_with("HTTP/1.1 404 "));
        idle.push(client);
    }
    rig.workers.drain();
    for mut client in idle {
        client.rest().await;
    }
}

/// A request that has just arrived: the gateway may or may not have read it.
fn arrived(rig: &Rig) -> Wire {
    let mut client = std::net::TcpStream::connect(rig.address).unwrap();
    client.write_all(GET.as_bytes()).unwrap();
    client.set_nonblocking(true).unwrap();
    Wire::new(TcpStream::from_std(client).unwrap())
}

#[tokio::test]
async fn a_gateway_that_drains_finishes_what_it_has_and_closes_what_is_idle() {
    let (mut rig, pod) = Rig::with_pod(Options::default()).await;
    let (mut idle, mut busy) = (rig.connect().await, rig.connect().await);
    let mut wire = idle.get_from(&pod, "hello").await;
    busy.write(GET).await;
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
    assert!(TcpStream::connect(rig.address).await.is_err(), "the listener is closed");
    rig.workers.close();
    timeout(PATIENCE, rig.workers.ended()).await.unwrap();
}

#[tokio::test]
async fn a_gateway_that_is_about_to_leave_serves_on_and_says_so_with_each_answer() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let mut kept = rig.send(GET).await;
    let mut wire = pod.accept().await;
    for last in [false, true] {
        wire.head().await;
        wire.answer("hello").await;
        let answer = kept.until("hello").await;
        assert_eq!(answer.contains("\r\nconnection: close\r\n"), last, "{answer}");
        if !last {
            rig.gateway.leave();
            kept.write(GET).await;
        }
    }
    assert_eq!(kept.rest().await, "");
    let mut new = rig.send(GET).await;
    let mut wire = tokio::select! {
        mut other = pod.accept() => {
            // A response that does not wait for the request may arrive before the request is sent.
            other.head().await;
            other
        }
        head = wire.head() => { drop(head); wire }
    };
    wire.answer("still here").await;
    let answer = new.rest().await;
    assert!(answer.ends_with("still here"), "{answer}");
}

/// A drain until no request is in flight, and then the end.
#[tokio::test]
async fn a_request_that_had_arrived_when_the_drain_began_is_answered() {
    let mut lost = Vec::new();
    for _ in 0..40 {
        let (mut rig, pod) = Rig::with_pod(Options::default()).await;
        let _served = pod.serve();
        let mut client = arrived(&rig);
        rig.workers.drain();
        timeout(PATIENCE, rig.gateway.under_way().idle()).await.unwrap();
        rig.workers.close();
        timeout(PATIENCE, rig.workers.ended()).await.unwrap();
        let answer = client.rest().await;
        lost.extend((!answer.starts_with("HTTP/1.1 200 OK\r\n")).then_some(answer));
    }
    assert!(lost.is_empty(), "{} of 40: {:?}", lost.len(), lost.first());
}

#[tokio::test]
async fn connections_that_are_queued_when_the_drain_begins_are_served() {
    let mut lost = Vec::new();
    for _ in 0..60 {
        let (rig, pod) = Rig::with_pod(Options::default()).await;
        let _served = pod.serve();
        let clients: Vec<Wire> = (0..8).map(|_| arrived(&rig)).collect();
        rig.workers.drain();
        for mut client in clients {
            let answer = client.rest().await;
            lost.extend((!answer.starts_with("HTTP/1.1 200 OK\r\n")).then_some(answer));
        }
    }
    assert!(lost.is_empty(), "{} of 480: {:?}", lost.len(), lost.first());
}

#[tokio::test]
async fn errors_of_holds_at_the_end_of_the_drain_reach_the_clients() {
    let mut rig = Rig::new(Options::default());
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(rig.send_held(GET).await);
    }
    rig.workers.drain();
    rig.registry.shut_down();
    timeout(PATIENCE, rig.gateway.under_way().idle()).await.unwrap();
    rig.workers.close();
    for mut client in held {
        let answer = client.rest().await;
        assert!(answer.contains("\r\nx-rouse-error: shutting_down\r\n"), "{answer}");
    }
    timeout(PATIENCE, rig.workers.ended()).await.unwrap();
}

#[tokio::test]
async fn a_request_behind_the_one_under_way_is_left_to_another_connection_by_the_drain() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let (mut client, mut wire) = rig
        .send_to(&pod, "GET /1 HTTP/1.1\r\nHost: cart.test\r\n\r\nGET /2 HTTP/1.1\r\nHost: cart.test\r\n\r\n")
        .await;
    drain(&rig).await;
    wire.answer("one").await;
    let answer = client.rest().await;
    assert!(answer.contains("\r\nconnection: close\r\n") && answer.ends_with("one"), "{answer}");
    eventually("nothing is under way", || rig.gateway.under_way().count() == 0).await;
}

#[tokio::test]
async fn a_drain_finishes_the_streams_of_an_http2_connection_and_then_closes_it() {
    let (mut rig, pod) = Rig::with_pod(h2c()).await;
    let client = H2Client::new(&rig).await;
    let response = client.get("http://cart.test/").await;
    let mut connection = pod.accept_h2().await;
    let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
    let mut moving = JoinSet::new();
    moving.spawn(async move { drop(connection.accept().await) });
    drain(&rig).await;
    answer(&mut respond, "hello");
    assert_eq!(response.body().await, b"hello");
    timeout(PATIENCE, rig.gateway.under_way().idle()).await.unwrap();
    timeout(PATIENCE, client.ended()).await.expect("the connection should end");
    rig.workers.close();
    timeout(PATIENCE, rig.workers.ended()).await.expect("all threads should end");
}

#[tokio::test]
async fn workers_end_although_a_pod_does_not_read() {
    let (mut rig, pod) = Rig::with_pod(h2c()).await;
    let client = H2Client::new(&rig).await;
    let (response, mut body) = client.send(Request::post("http://cart.test/"), false).await;
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(1 << 30).initial_connection_window_size(1 << 30);
    let mut connection = builder.handshake::<_, bytes::Bytes>(pod.accept_raw().await).await.unwrap();
    let stream = connection.accept().await.unwrap().unwrap();
    // The client stops reading, so the response cannot be sent.
    http2_peers::fill(&mut body).await;
    rig.workers.close();
    let ended = timeout(PATIENCE, rig.workers.ended()).await;
    drop((connection, stream, response));
    assert!(ended.is_ok(), "all threads should end");
}

/// A client that has never sent a request gets a short time, not the whole drain timeout.
#[tokio::test]
async fn connections_without_a_complete_request_do_not_delay_the_drain() {
    // Only the drain closes these connections.
    let limits = ConnectionLimits {
        head: Duration::from_hours(1),
        idle: Duration::from_hours(1),
        ..ConnectionLimits::default()
    };
    let (mut rig, _pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
    let mut silent = Vec::new();
    for begin in [
        "",
        "P",
        "GET / HTTP/1.1\r\nHost: ",
        "PRI * HT",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x20\x01",
    ] {
        silent.push(rig.send(begin).await);
    }
    eventually("all have arrived", || rig.gateway.under_way().count() == silent.len()).await;
    rig.workers.drain();
    timeout(PATIENCE, rig.gateway.under_way().idle()).await.expect("nothing should be under way");
    for mut client in silent {
        client.raw_rest().await;
    }
    rig.workers.close();
    timeout(PATIENCE, rig.workers.ended()).await.unwrap();
}
