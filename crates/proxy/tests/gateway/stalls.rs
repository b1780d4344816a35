//! Stalled transfers: limits on the buffers of clients that do not read and of pods that do not accept data.

use http::Request;
use rouse_proxy::budget::ConnectionLimits;
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;

use crate::http2_peers::H2Client;
use crate::rig::{GET, Options, Pod, Rig, eventually};
use crate::wire::take_head;

const CUT: &str = r#"rouse_connections_cut_total{reason="memory"}"#;

/// A pod whose responses never end.
fn endless(pod: Pod) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let mut stream = pod.accept_raw().await;
            connections.spawn(async move {
                take_head(&mut stream).await;
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\n").await.ok();
                while stream.write_all(&[b'a'; 16 * 1024]).await.is_ok() {}
            });
        }
    });
    tasks
}

#[tokio::test]
async fn the_longest_stalled_client_is_cut_when_buffers_are_full_and_a_reading_one_is_not() {
    // Room for the buffers of about thirty stalled downloads.
    let limits = ConnectionLimits { buffers: 4 << 20, ..ConnectionLimits::default() };
    let (rig, pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
    let _pod = endless(pod);
    let mut reading = rig.send(GET).await;
    reading.head().await;
    // More than the kernel's buffers hold, so that the gateway sees that this client reads.
    for _ in 0..512 {
        reading.until(&"a".repeat(16 * 1024)).await;
    }
    let cut = async {
        let mut stalled = Vec::new();
        for _ in 0..40 {
            stalled.push(rig.send(GET).await);
        }
        eventually("stalled ones are cut", || rig.metric(CUT) >= 5).await;
    };
    let reads = async {
        loop {
            reading.until(&"a".repeat(16 * 1024)).await;
        }
    };
    tokio::select! {
        () = cut => {}
        () = reads => {}
    }
    for _ in 0..64 {
        reading.until(&"a".repeat(16 * 1024)).await;
    }
    eventually("what they took up is free", || rig.service.in_flight() <= 36).await;
}

#[tokio::test]
async fn one_http2_client_does_not_pin_all_pod_connections_and_its_other_requests_wait() {
    let limits = ConnectionLimits { pod_connections_per_client: 3, ..ConnectionLimits::default() };
    let (rig, pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
    let client = H2Client::new(&rig).await;
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.push(client.get("http://cart.test/").await);
    }
    let mut wires = Vec::new();
    for _ in 0..3 {
        wires.push(pod.accept_request().await);
    }
    // A client without any gets one, and no other client does meanwhile.
    let other = H2Client::new(&rig).await;
    let (answer, _) = other.send(Request::get("http://cart.test/other"), true).await;
    let mut wire = pod.accept().await;
    assert!(wire.head().await.starts_with("GET /other "), "one beyond the limit went first");
    wire.answer("hello").await;
    drop(answer);
    // A response makes room for the next request.
    let mut first = wires.remove(0);
    first.answer("hello").await;
    let next = tokio::select! {
        head = first.head() => head,
        mut wire = pod.accept() => wire.head().await,
    };
    assert!(next.starts_with("GET / "), "{next}");
}

#[tokio::test]
async fn a_stalled_client_is_closed_when_all_pod_connections_are_in_use() {
    let limits = ConnectionLimits { pod_connections: 4, ..ConnectionLimits::default() };
    let (rig, pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
    let _pod = endless(pod);
    let mut clients = Vec::new();
    for _ in 0..12 {
        let mut client = rig.send(GET).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        clients.push(client);
    }
    assert!(rig.metric(r#"rouse_connections_cut_total{reason="descriptors"}"#) >= 8);
    assert_eq!(rig.metric("rouse_ejections_total"), 0);
}
