//! Review: HTTP/1.

use std::time::Duration;

use rouse_core::hold::Bounds;
use rouse_proxy::gateway::Timeouts;
use rouse_testkit::fakes::READY;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;
use tokio::time::{sleep, timeout};

use crate::rig::{Options, Pod, Rig, Wire, eventually};

/// A client that does not read keeps hyper from asking for the body, and so nobody looks at the deadline.
#[tokio::test]
async fn a_request_deadline_is_kept_although_the_client_does_not_read() {
    let timeouts = Timeouts { request: Some(Duration::from_millis(300)), ..Timeouts::default() };
    let rig = Rig::new(Options { timeouts, ..Options::default() });
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = Wire::new(socket.connect(rig.address).await.unwrap());
    client.write("GET / HTTP/1.1\r\nHost: cart.test\r\n\r\n").await;
    let mut raw = pod.accept_raw().await;
    let pouring = async {
        raw.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n").await.unwrap();
        while raw.write_all(&[b'x'; 64 * 1024]).await.is_ok() {}
    };
    timeout(Duration::from_secs(3), pouring).await.ok();
    assert_eq!(rig.service.in_flight(), 0, "ten times the deadline has passed");
}

/// A pod that accepts and reads nothing: `response-header` never ends the upload, since the source is not done.
#[tokio::test]
async fn a_pod_that_does_not_read_an_upload_meets_the_response_timeout() {
    let timeouts = Timeouts { response_header: Some(Duration::from_millis(300)), ..Timeouts::default() };
    let rig = Rig::new(Options { timeouts, ..Options::default() });
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = tokio::net::TcpStream::connect(rig.address).await.unwrap();
    client
        .write_all(b"POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 1000000000\r\n\r\n")
        .await
        .unwrap();
    let _stuck = pod.accept_raw().await;
    let pouring = async { while client.write_all(&[b'x'; 64 * 1024]).await.is_ok() {} };
    timeout(Duration::from_secs(3), pouring).await.ok();
    assert_eq!(rig.service.in_flight(), 0, "ten times the limit has passed");
}

/// The same, and the client has left (with a reset): its slot is held for ever.
#[tokio::test]
async fn a_client_that_leaves_while_the_pod_does_not_read_gives_its_slot_back() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = tokio::net::TcpStream::connect(rig.address).await.unwrap();
    client
        .write_all(b"POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 1000000000\r\n\r\n")
        .await
        .unwrap();
    let _stuck = pod.accept_raw().await;
    let pouring = async { while client.write_all(&[b'x'; 64 * 1024]).await.is_ok() {} };
    timeout(Duration::from_secs(2), pouring).await.ok();
    client.set_zero_linger().unwrap();
    drop(client);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(rig.service.in_flight(), 0, "nobody is there any more");
}

/// "once if it is idempotent, replayable and no response byte came"
#[tokio::test]
async fn a_get_whose_response_had_begun_is_not_sent_again() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let serving = async {
        let mut wire = pod.accept().await;
        wire.head().await;
        wire.write("HTTP/1.1 200 OK\r\nContent-Le").await;
        drop(wire);
        let mut wire = pod.accept().await;
        wire.head().await;
        wire.answer("twice").await;
    };
    let answer = tokio::select! {
        answer = rig.get("/") => answer,
        () = async { serving.await; std::future::pending().await } => unreachable!(),
    };
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}

/// `Connection: host` must not take the Host away: "`Host` preserved".
#[tokio::test]
async fn a_connection_header_cannot_name_the_host_away() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = rig.connect().await;
    client.write("GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: host, via\r\n\r\n").await;
    let mut wire = pod.accept().await;
    let head = wire.head().await;
    assert!(head.contains("\r\nhost: cart.test\r\n"), "{head}");
    assert!(head.contains("\r\nvia: 1.1 rouse-test\r\n"), "{head}");
}

/// What a hold keeps in memory counts, a large head too.
#[tokio::test]
async fn a_large_head_counts_against_the_bytes_of_holds() {
    let bounds = Bounds { bytes: 32 * 1024, ..Bounds::default() };
    let rig = Rig::new(Options { bounds, ..Options::default() });
    let mut client = rig.connect().await;
    let large = "x".repeat(50_000);
    client
        .write(&format!("GET / HTTP/1.1\r\nHost: cart.test\r\nX-Large: {large}\r\nConnection: close\r\n\r\n"))
        .await;
    let answer = timeout(Duration::from_secs(2), client.rest()).await.expect("it should not be held");
    assert!(answer.contains("queue_full"), "{answer}");
}

/// A client that vanished with a reset: the pod hears the end, and need not close for the slot to come back.
#[tokio::test]
async fn a_tunnel_whose_client_was_reset_ends() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let stream = tokio::net::TcpStream::connect(rig.address).await.unwrap();
    stream.set_zero_linger().unwrap();
    let mut client = Wire::new(stream);
    client
        .write("GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .await;
    let mut wire = pod.accept().await;
    wire.head().await;
    wire.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").await;
    client.head().await;
    eventually("it is open", || rig.service.in_flight() == 1).await;
    drop(client);
    assert_eq!(wire.rest().await, "");
    sleep(Duration::from_millis(500)).await;
    assert_eq!(rig.service.in_flight(), 0);
}

/// A long request that is lost after its readiness deadline is no failure to connect.
#[tokio::test]
async fn a_get_that_is_lost_late_is_told_as_lost_or_sent_again() {
    let timeouts = Timeouts { readiness: Some(Duration::from_millis(200)), ..Timeouts::default() };
    let rig = Rig::new(Options { timeouts, ..Options::default() });
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let serving = async {
        let mut wire = pod.accept().await;
        wire.head().await;
        sleep(Duration::from_millis(400)).await;
        drop(wire);
        let mut wire = pod.accept().await;
        wire.head().await;
        wire.answer("hello").await;
        std::future::pending::<()>().await;
    };
    let answer = tokio::select! {
        answer = rig.get("/") => answer,
        () = serving => unreachable!(),
    };
    assert!(
        answer.starts_with("HTTP/1.1 200 ") || answer.contains("upstream_reset"),
        "nobody failed to connect: {answer}"
    );
}

/// Memory does not grow with what a client does not read.
#[tokio::test]
async fn a_response_that_nobody_reads_is_not_kept_in_memory() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = Wire::new(socket.connect(rig.address).await.unwrap());
    client.write("GET / HTTP/1.1\r\nHost: cart.test\r\n\r\n").await;
    let mut raw = pod.accept_raw().await;
    let mut poured = 0_u64;
    let pouring = async {
        raw.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n").await.unwrap();
        while poured < 400 << 20 && raw.write_all(&[b'x'; 64 * 1024]).await.is_ok() {
            poured += 64 * 1024;
        }
    };
    timeout(Duration::from_secs(3), pouring).await.ok();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let rss = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    assert!(poured < 32 << 20, "{poured} bytes went somewhere; {rss}");
}

/// "SSE flushed as it comes", also when the client has sent its next request already.
#[tokio::test]
async fn an_event_is_flushed_although_the_client_has_pipelined_its_next_request() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = rig.connect().await;
    client
        .write("GET /a HTTP/1.1\r\nHost: cart.test\r\n\r\nGET /b HTTP/1.1\r\nHost: cart.test\r\n\r\n")
        .await;
    let mut wire = pod.accept().await;
    wire.head().await;
    wire.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nevent\r\n").await;
    timeout(Duration::from_secs(2), client.until("event")).await.expect("the event should come");
}

/// An early answer to an upload that the pod has stopped to read.
#[tokio::test]
async fn an_early_answer_reaches_a_client_whose_upload_is_stuck() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let client = tokio::net::TcpStream::connect(rig.address).await.unwrap();
    let (read, mut write) = client.into_split();
    write
        .write_all(b"POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 1000000000\r\n\r\n")
        .await
        .unwrap();
    let mut raw = pod.accept_raw().await;
    let pouring = async { while write.write_all(&[b'x'; 64 * 1024]).await.is_ok() {} };
    timeout(Duration::from_secs(1), pouring).await.ok();
    // A head, and a body that goes on.
    raw.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n").await.unwrap();
    let readable = timeout(Duration::from_secs(3), read.readable()).await;
    assert!(readable.is_ok(), "the answer should come");
}

/// Bytes after a response end the reuse of their connection, whenever they come.
#[tokio::test]
async fn stray_bytes_after_a_response_end_the_connection() {
    for apart in [false, true] {
        let rig = Rig::new(Options::default());
        let pod = Pod::new(1).await;
        rig.pods(&[(&pod, READY)]);
        let mut client = rig.connect().await;
        client.write("GET /1 HTTP/1.1\r\nHost: cart.test\r\n\r\n").await;
        let mut wire = pod.accept().await;
        wire.head().await;
        let stray = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
        if apart {
            wire.answer("one").await;
            sleep(Duration::from_millis(50)).await;
            wire.write(stray).await;
        } else {
            wire.write(&format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none{stray}")).await;
        }
        client.until("one").await;
        sleep(Duration::from_millis(50)).await;
        client.write("GET /2 HTTP/1.1\r\nHost: cart.test\r\n\r\n").await;
        let mut other = pod.accept().await;
        other.head().await;
        other.answer("two").await;
        let answer = client.until("two").await;
        assert!(!answer.contains("evil"));
    }
}

/// Responses without a body, and what the books say of them.
#[tokio::test]
async fn responses_without_a_body_leave_their_connection_usable() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = rig.connect().await;
    let mut wire = None;
    for (method, head) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: x\r\n\r\n"),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ] {
        client.write(&format!("{method} / HTTP/1.1\r\nHost: cart.test\r\n\r\n")).await;
        if wire.is_none() {
            wire = Some(pod.accept().await);
        }
        let wire = wire.as_mut().unwrap();
        wire.head().await;
        wire.write(head).await;
        let answer = client.head().await;
        assert_eq!(answer.lines().next(), head.lines().next());
        eventually("its slot is free", || rig.service.in_flight() == 0).await;
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(rig.metric(r#"rouse_requests_total{route="cart",code="499",protocol="http1"}"#), 0);
}

/// Servers close idle connections after 5 s (Node, uvicorn): ours must be gone clearly before.
#[tokio::test]
async fn idle_connections_are_closed_before_servers_close_them() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut wires = Vec::new();
    for _ in 0..8 {
        let mut client = rig.connect().await;
        client.write("GET / HTTP/1.1\r\nHost: cart.test\r\n\r\n").await;
        let mut wire = pod.accept().await;
        wire.head().await;
        wires.push((client, wire));
    }
    let mut idle = tokio::task::JoinSet::new();
    for (mut client, mut wire) in wires {
        wire.answer("hello").await;
        client.until("hello").await;
        let since = std::time::Instant::now();
        idle.spawn(async move {
            wire.rest().await;
            drop(client);
            since.elapsed()
        });
        sleep(Duration::from_millis(125)).await;
    }
    let longest = idle.join_all().await.into_iter().max().unwrap();
    assert!(longest < Duration::from_millis(4300), "{longest:?}");
}

/// A GET that meets the closing of an idle connection does not wait: nothing is wrong with the pod.
#[tokio::test]
async fn a_get_that_meets_the_closing_of_an_idle_connection_is_sent_again_at_once() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = rig.connect().await;
    client.write("GET / HTTP/1.1\r\nHost: cart.test\r\n\r\n").await;
    let mut wire = pod.accept().await;
    wire.head().await;
    wire.answer("one").await;
    client.until("one").await;
    client.write("GET / HTTP/1.1\r\nHost: cart.test\r\n\r\n").await;
    // The pod closes just as the request arrives.
    wire.head().await;
    let since = std::time::Instant::now();
    drop(wire);
    let mut wire = pod.accept().await;
    let took = since.elapsed();
    wire.head().await;
    wire.answer("two").await;
    client.until("two").await;
    assert!(took < Duration::from_millis(80), "{took:?}");
}

/// Trailers both ways.
#[tokio::test]
async fn trailers_pass_both_ways() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = rig.connect().await;
    client
        .write("POST / HTTP/1.1\r\nHost: cart.test\r\nTE: trailers\r\nConnection: TE, close\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 7\r\n\r\n")
        .await;
    let mut wire = pod.accept().await;
    let head = wire.head().await;
    assert!(head.contains("\r\ntrailer: X-Sum\r\n"), "{head}");
    let body = wire.until("x-sum: 7\r\n\r\n").await;
    assert!(body.starts_with("3\r\nabc\r\n0\r\n"), "{body}");
    wire.write("HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 8\r\n\r\n").await;
    let answer = client.rest().await;
    assert!(answer.contains("x-sum: 8"), "{answer}");
}

/// Bytes that come with the upgrade, on either side, are not lost.
#[tokio::test]
async fn bytes_that_come_along_with_an_upgrade_pass() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = rig.connect().await;
    client
        .write("GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: Upgrade\r\nUpgrade: rot13\r\n\r\nearly")
        .await;
    let mut wire = pod.accept().await;
    wire.head().await;
    wire.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: rot13\r\n\r\nhasty")
        .await;
    client.until("hasty").await;
    wire.until("early").await;
    drop(client);
    assert_eq!(wire.rest().await, "");
    drop(wire);
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
    assert_eq!(rig.metric(r#"rouse_requests_total{route="cart",code="101",protocol="http1"}"#), 1);
}

/// A request that was pipelined behind one under way when the drain began: the client hears `close`, nothing hangs.
#[tokio::test]
async fn a_pipelined_request_at_the_drain_is_answered_or_refused_clearly() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = rig.connect().await;
    client
        .write("GET /1 HTTP/1.1\r\nHost: cart.test\r\n\r\nGET /2 HTTP/1.1\r\nHost: cart.test\r\n\r\n")
        .await;
    let mut wire = pod.accept().await;
    wire.head().await;
    rig.workers.drain();
    sleep(Duration::from_millis(50)).await;
    wire.answer("one").await;
    let answer = timeout(Duration::from_secs(3), client.rest()).await.expect("the connection ends");
    assert!(answer.contains("\r\nconnection: close\r\n") && answer.ends_with("one"), "{answer}");
    assert_eq!(rig.gateway.under_way().count(), 0);
}

/// Old clients send one CRLF too many after a body, and some send bytes after a last request.
#[tokio::test]
async fn an_answer_is_not_lost_when_bytes_follow_its_request() {
    for request in [
        "POST / HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc\r\n",
        "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 3\r\n\r\nabc\r\n",
        "GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\n\r\nGET /2 HTTP/1.1\r\n\r\n",
    ] {
        let rig = Rig::new(Options::default());
        let pod = Pod::new(1).await;
        rig.pods(&[(&pod, READY)]);
        let mut client = rig.connect().await;
        client.write(request).await;
        let mut wire = pod.accept().await;
        wire.head().await;
        wire.answer("hello").await;
        let answer = timeout(Duration::from_secs(2), client.until("hello")).await;
        assert!(answer.is_ok(), "no answer to {request:?}");
    }
}
