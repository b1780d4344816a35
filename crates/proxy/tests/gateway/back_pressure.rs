//! Back pressure: clients and pods that do not read block only their own streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::Ping;
use http::Request;
use rouse_testkit::fakes::READY;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::http2_peers::{self, H2Client, answer, begin, h2c, upload};
use crate::rig::{GET, Options, Pod, Rig, eventually};
use crate::wire::{Wire, connect_with_small_buffer, fill};

/// A client that does not read, and its pod, which has begun to send a response of 1 GB.
pub(crate) async fn unread_response(rig: &Rig, pod: &Pod) -> (Wire, TcpStream) {
    let mut client = Wire::new(connect_with_small_buffer(rig.address).await);
    client.write(GET).await;
    let mut raw = pod.accept_request_raw().await;
    raw.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n").await.unwrap();
    (client, raw)
}

/// A client that has sent the head of an upload of 1 GB.
pub(crate) async fn long_upload(rig: &Rig) -> TcpStream {
    let mut client = TcpStream::connect(rig.address).await.unwrap();
    client
        .write_all(b"POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 1000000000\r\n\r\n")
        .await
        .unwrap();
    client
}

#[tokio::test]
async fn an_unread_response_is_not_kept_in_memory() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let (_client, mut raw) = unread_response(&rig, &pod).await;
    let most = 32 << 20;
    let taken = fill(&mut raw, most).await;
    assert!(taken < most, "{taken} bytes went somewhere");
}

#[tokio::test]
async fn a_client_that_leaves_while_the_pod_does_not_read_gives_its_slot_back() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let mut client = long_upload(&rig).await;
    let _stuck = pod.accept_raw().await;
    fill(&mut client, usize::MAX).await;
    assert_eq!(rig.service.in_flight(), 1);
    client.set_zero_linger().unwrap();
    drop(client);
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
}

#[tokio::test]
async fn an_early_answer_reaches_a_client_whose_upload_is_stuck() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let mut client = long_upload(&rig).await;
    let mut raw = pod.accept_request_raw().await;
    fill(&mut client, usize::MAX).await;
    // A head, and a body without an end.
    raw.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n").await.unwrap();
    Wire::new(client).until("early").await;
}

#[tokio::test]
async fn an_event_is_flushed_although_the_client_has_sent_its_next_request_already() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let (mut client, mut wire) = rig
        .send_to(&pod, "GET /a HTTP/1.1\r\nHost: cart.test\r\n\r\nGET /b HTTP/1.1\r\nHost: cart.test\r\n\r\n")
        .await;
    wire.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nevent\r\n").await;
    client.until("event").await;
}

#[tokio::test]
async fn unread_responses_do_not_stall_others_of_the_same_pod() {
    const WINDOW: usize = 64 * 1024;
    let (rig, pod) = Rig::with_pod(h2c()).await;
    let full = Arc::<AtomicUsize>::default();
    let (shared, large) = (Arc::clone(&full), Bytes::from(vec![b'x'; 1 << 20]));
    let _serving = pod.serve_h2(h2::server::Builder::new(), move |request, mut respond| {
        let (full, mut large) = (Arc::clone(&shared), large.clone());
        async move {
            let mut body = begin(&mut respond);
            if request.uri().path() == "/small" {
                return upload(&mut body, Bytes::from_static(b"small"), true).await;
            }
            upload(&mut body, large.split_to(WINDOW), false).await;
            full.fetch_add(1, Ordering::Relaxed);
            upload(&mut body, large, true).await;
        }
    });
    let (mut clients, mut unread) = (Vec::new(), Vec::new());
    // Enough that each worker has some.
    for _ in 0..4 {
        let client = H2Client::new(&rig).await;
        for _ in 0..16 {
            unread.push(client.get("http://cart.test/large").await.head().await);
        }
        clients.push(client);
    }
    eventually("each has filled its window", || full.load(Ordering::Relaxed) == 64).await;
    for _ in 0..4 {
        let client = H2Client::new(&rig).await;
        assert_eq!(client.get("http://cart.test/small").await.body().await, b"small");
    }
}

#[tokio::test]
async fn held_uploads_do_not_stall_those_of_other_services_on_the_same_connection() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let cold = rig.add("cold");
    let client = H2Client::new(&rig).await;
    let mut held = Vec::new();
    for number in 1..=20 {
        let (response, mut body) = client.send(Request::post("http://cold.test/"), false).await;
        upload(&mut body, Bytes::from(vec![b'x'; 64 * 1024]), false).await;
        held.push((response, body));
        eventually("it is held", || cold.holds() == number).await;
    }
    let response = client.post("http://cart.test/", "hello").await;
    let mut wire = pod.accept().await;
    wire.until("hello").await;
    wire.answer("thanks").await;
    assert_eq!(response.body().await, b"thanks");
    assert_eq!(cold.holds(), 20);
}

/// h2 ends a connection when half its window is taken up by unread frames, and counts each as 256 bytes at least.
#[tokio::test]
async fn small_unread_events_do_not_end_other_streams() {
    let (rig, pod) = Rig::with_pod(h2c()).await;
    let client = H2Client::new(&rig).await;
    let events = client.get("http://cart.test/events").await;
    let mut connection = pod.accept_h2().await;
    let mut pings = connection.ping_pong().unwrap();
    let (_, mut to_events) = connection.accept().await.unwrap().unwrap();
    let mut sending = begin(&mut to_events);
    let serving = async {
        let (_, mut to_other) = connection.accept().await.unwrap().unwrap();
        let answering = async {
            for _ in 0..12_000 {
                // All together they fit into the window of their stream.
                upload(&mut sending, Bytes::from_static(b"event"), false).await;
            }
            // The second request is sent after the events: once it is answered, they have all arrived.
            for _ in 0..2 {
                pings.ping(Ping::opaque()).await.unwrap();
            }
            answer(&mut to_other, "hello");
            sending.send_data(Bytes::new(), true).unwrap();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = answering => {}
            _ = connection.accept() => std::future::pending().await,
        }
    };
    let asking = async {
        let unread = events.head().await;
        // A GET would be retried.
        let other = client.send(Request::post("http://cart.test/other"), true).await.0;
        assert_eq!(other.body().await, b"hello");
        assert_eq!(http2_peers::read(unread.into_body()).await.len(), 5 * 12_000);
    };
    tokio::select! {
        () = asking => {}
        () = serving => {}
    }
}

/// The same for a client's connection.
#[tokio::test]
async fn small_messages_of_a_held_stream_do_not_end_its_connection() {
    let rig = Rig::new(Options::default());
    let client = H2Client::new(&rig).await;
    let (response, mut body) = client.send(Request::post("http://cart.test/"), false).await;
    eventually("it is held", || rig.service.holds() == 1).await;
    for _ in 0..3_000 {
        upload(&mut body, Bytes::from_static(b"small small small 20"), false).await;
    }
    body.send_data(Bytes::new(), true).unwrap();
    // The second request is sent after the messages: once it is answered, they have all arrived.
    for _ in 0..2 {
        assert_eq!(client.get("http://unknown.test/").await.head().await.status(), 404);
    }
    assert_eq!(rig.service.holds(), 1);
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut wire = pod.accept_request().await;
    assert_eq!(wire.until("\r\n0\r\n\r\n").await.matches("small small small 20").count(), 3_000);
    wire.answer("hello").await;
    assert_eq!(response.body().await, b"hello");
}
