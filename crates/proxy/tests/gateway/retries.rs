//! Retries: which failed requests are retried, and which must not be.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use rouse_proxy::upstream::Timeouts;
use rouse_testkit::fakes::READY;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::http2_peers::{self, Answer, H2Client, answer, h2c, upload};
use crate::rig::{GET, Options, PATIENCE, Pod, Rig, accept_either, eventually};
use crate::wire::Wire;

/// A reserved address without a listener, released at the end of the process.
fn refusing_address() -> SocketAddr {
    let socket = deaf();
    let address = socket.local_addr().unwrap();
    std::mem::forget(socket);
    address
}

/// A socket that refuses connections until it listens.
fn deaf() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}

pub(crate) const POST: &str =
    "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
const UPSTREAM_RESET: &str = "\r\nx-rouse-error: upstream_reset\r\n";
/// Attempts that got as far as a pod's connection.
const SENT: &str = r#"rouse_direct_routing_total{result="pod"}"#;

#[tokio::test]
async fn a_refused_connection_is_tried_on_another_pod_with_any_method() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.slices(&[(1, pod.address, READY), (2, refusing_address(), READY)]);
    let serving = async {
        loop {
            let mut wire = pod.accept().await;
            let head = wire.head().await;
            wire.until("abc").await;
            wire.answer("taken").await;
            assert!(head.starts_with("POST /"), "{head}");
            if rig.metric("rouse_ejections_total") > 0 {
                return;
            }
        }
    };
    let asking = async {
        // The pick decides at random which pod gets the first request.
        while rig.metric("rouse_ejections_total") == 0 {
            let answer = rig.send(POST).await.rest().await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        }
    };
    tokio::select! {
        () = async { tokio::join!(asking, serving); } => {}
        () = async { eventually("one of them was refused", || false).await } => {}
    }
    assert_eq!(rig.metric(r#"rouse_retries_total{reason="connect"}"#), 1);
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_costs_a_request_nothing() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    for _ in 0..20 {
        let serving = async {
            let _wire = pod.answer("hello").await;
            // Closed here, like a server at its idle timeout: at any moment of the next request.
        };
        let mut client = rig
            .send("POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .await;
        let (answer, ()) = tokio::join!(client.rest(), serving);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn a_get_that_was_lost_with_its_pod_is_sent_once_more_and_not_twice() {
    let (rig, pods) = Rig::with_pods(Options::default()).await;
    let serving = async {
        for _ in 0..2 {
            let mut wire = Wire::new(accept_either(&pods).await);
            wire.head().await;
        }
    };
    let (answer, ()) = tokio::join!(rig.get("/"), serving);
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(UPSTREAM_RESET), "{answer}");
    assert_eq!(rig.metric(r#"rouse_retries_total{reason="reset"}"#), 1);
}

/// Sends a POST to a pod that closes its connection once it has read `body`. The client gets a 502.
async fn lost_post_fails(rig: &Rig, pods: &[Pod; 2], framing: &str, body: &str) {
    let losing = async {
        let mut wire = Wire::new(accept_either(pods).await);
        wire.head().await;
        wire.until(body).await;
    };
    let mut client = rig.send(&format!("POST / HTTP/1.1\r\nHost: cart.test\r\n{framing}")).await;
    let (answer, ()) = tokio::join!(client.rest(), losing);
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(UPSTREAM_RESET), "{answer}");
}

#[tokio::test]
async fn a_post_that_was_sent_is_never_sent_twice() {
    let (rig, pods) = Rig::with_pods(Options::default()).await;
    for body in ["c", "abc"] {
        let framing = format!("Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        lost_post_fails(&rig, &pods, &framing, body).await;
    }
    assert_eq!(rig.metric(r#"rouse_retries_total{reason="reset"}"#), 0);
}

#[tokio::test]
async fn a_post_of_which_a_part_was_sent_is_never_sent_twice() {
    let (rig, pods) = Rig::with_pods(Options::default()).await;
    for framing in ["Content-Length: 1000\r\n\r\nbegun", "Transfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n"] {
        lost_post_fails(&rig, &pods, framing, "begun").await;
    }
    assert_eq!(rig.metric(SENT), 2, "each once");
}

/// Also if the body could be sent again: the pod may have acted on it already.
#[tokio::test]
async fn a_post_that_was_lost_with_its_http2_connection_is_never_sent_twice() {
    let (rig, pods) = Rig::with_pods(h2c()).await;
    for end in [true, false] {
        let client = H2Client::new(&rig).await;
        let (response, mut body) = client.send(Request::post("http://cart.test/"), false).await;
        upload(&mut body, Bytes::from_static(b"hello"), end).await;
        let serving = async {
            let mut connection = h2::server::handshake(accept_either(&pods).await).await.unwrap();
            let (request, respond) = connection.accept().await.unwrap().unwrap();
            let mut body = request.into_body();
            tokio::select! {
                part = body.data() => assert_eq!(part.unwrap().unwrap(), "hello"),
                _ = connection.accept() => {}
            }
            drop((connection, body, respond));
        };
        let (answer, ()) = tokio::join!(response.head(), serving);
        assert_eq!(answer.status(), 502);
        assert_eq!(answer.headers()["x-rouse-error"], "upstream_reset");
    }
    assert_eq!(rig.metric(SENT), 2, "each once");
}

#[tokio::test]
async fn when_every_ready_pod_has_refused_for_five_seconds_the_answer_comes_before_the_deadline() {
    let timeouts = Timeouts { readiness: Some(Duration::from_mins(5)), ..Timeouts::default() };
    let rig = Rig::new(Options { timeouts, ..Options::default() });
    rig.slices(&[(1, refusing_address(), READY)]);
    // Twice: the next request fails at once.
    for _ in 0..2 {
        let answer = timeout(Duration::from_mins(1), rig.get("/")).await.expect("long before the deadline");
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert!(answer.contains("\r\nx-rouse-error: connect_failed\r\n"), "{answer}");
    }
    assert!(rig.engine.wakes_of(rig.service.id()) > 0, "the engine still gets a wake");
}

#[tokio::test]
async fn when_every_pod_refuses_the_request_waits_and_fails_at_its_deadline() {
    let timeouts = Timeouts { readiness: Some(Duration::from_secs(2)), ..Timeouts::default() };
    let rig = Rig::new(Options { timeouts, ..Options::default() });
    rig.slices(&[(1, refusing_address(), READY), (2, refusing_address(), READY)]);
    let answer = rig.get("/").await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert!(answer.contains("\r\nx-rouse-error: connect_failed\r\n"), "{answer}");
    assert!(rig.metric("rouse_ejections_total") >= 2);
    assert_eq!(rig.service.holds(), 0);
}

#[tokio::test]
async fn a_pod_that_begins_to_listen_serves_the_requests_that_it_had_refused() {
    let rig = Rig::new(Options::default());
    let (pod, other) = (deaf(), refusing_address());
    rig.slices(&[(1, pod.local_addr().unwrap(), READY), (2, other, READY)]);
    let serving = async {
        eventually("both refused it", || rig.metric("rouse_ejections_total") >= 2).await;
        eventually("it is held", || rig.service.holds() == 1).await;
        let pod = pod.listen(16).unwrap();
        let (stream, _) =
            timeout(PATIENCE, pod.accept()).await.expect("the gateway should connect again").unwrap();
        let mut wire = Wire::new(stream);
        wire.until("\r\n\r\nabc").await;
        wire.answer("hello").await;
    };
    let mut client = rig.send(POST).await;
    let (answer, ()) = tokio::join!(client.rest(), serving);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test]
async fn a_request_that_was_refused_by_all_is_served_by_the_pod_that_comes() {
    let rig = Rig::new(Options::default());
    rig.slices(&[(1, refusing_address(), READY)]);
    let pod = Pod::new(2).await;
    let serving = async {
        eventually("it was refused", || rig.metric("rouse_ejections_total") > 0).await;
        rig.pods(&[(&pod, READY)]);
        pod.answer("hello").await
    };
    let (answer, _wire) = tokio::join!(rig.get("/"), serving);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test]
async fn a_get_whose_response_had_begun_is_not_sent_again() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let serving = async {
        let mut wire = pod.accept_request().await;
        wire.write("HTTP/1.1 200 OK\r\nContent-Le").await;
        drop(wire);
        pod.accept().await.head().await
    };
    let answer = tokio::select! {
        answer = rig.get("/") => answer,
        again = serving => again,
    };
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(UPSTREAM_RESET), "{answer}");
    assert_eq!(rig.metric(r#"rouse_retries_total{reason="reset"}"#), 0);
}

#[tokio::test]
async fn a_get_that_meets_the_closing_of_an_idle_connection_is_sent_again_without_a_wait() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let mut client = rig.connect().await;
    let mut wire = client.get_from(&pod, "one").await;
    client.write(GET).await;
    // The pod closes just as the request arrives.
    wire.head().await;
    drop(wire);
    let _wire = pod.answer("two").await;
    client.until("two").await;
    assert_eq!(rig.metric(r#"rouse_retries_total{reason="idle"}"#), 1);
    // The pod is healthy: it gets this request at once, and others, too.
    assert_eq!(rig.metric(r#"rouse_hold_duration_seconds_count{service="shop/cart",outcome="served"}"#), 0);
    assert_eq!(rig.metric("rouse_ejections_total"), 0);
}

#[tokio::test]
async fn a_refused_stream_is_tried_again_with_its_body_and_nothing_is_held_against_the_pod() {
    for body in ["", "hello"] {
        let (rig, pod) = Rig::with_pod(h2c()).await;
        let refused = Arc::new(AtomicBool::new(false));
        let _serving = pod.serve_h2(h2::server::Builder::new(), move |request, mut respond| {
            let refused = Arc::clone(&refused);
            async move {
                if !refused.swap(true, Ordering::Relaxed) {
                    return respond.send_reset(h2::Reason::REFUSED_STREAM);
                }
                let body = http2_peers::read(request.into_body()).await;
                upload(&mut http2_peers::begin(&mut respond), [b"taken: ", &*body].concat().into(), true)
                    .await;
            }
        });
        let client = H2Client::new(&rig).await;
        let response = client.post("http://cart.test/", body).await;
        assert_eq!(response.body().await, format!("taken: {body}").as_bytes());
        assert_eq!(rig.metric(r#"rouse_retries_total{reason="refused_stream"}"#), 1);
        assert_eq!(rig.metric("rouse_ejections_total"), 0);
    }
}

#[tokio::test]
async fn a_stream_that_meets_a_goaway_is_served_on_a_new_connection() {
    let (rig, pod) = Rig::with_pod(h2c()).await;
    let client = H2Client::new(&rig).await;
    let serving = async {
        for _ in 0..20 {
            let mut connection = pod.accept_h2().await;
            let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
            answer(&mut respond, "hello");
            connection.graceful_shutdown();
            while connection.accept().await.is_some() {}
        }
    };
    let asking = async {
        for _ in 0..20 {
            let response = client.send(Request::post("http://cart.test/"), true).await.0;
            assert_eq!(response.body().await, b"hello");
        }
    };
    tokio::join!(asking, serving);
    assert_eq!(rig.metric("rouse_ejections_total"), 0);
}

#[tokio::test]
async fn a_refused_stream_goes_to_another_pod_if_there_is_one() {
    let (rig, [unwilling, willing]) = Rig::with_pods(h2c()).await;
    let refused = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&refused);
    let _refusing = unwilling.serve_h2(h2::server::Builder::new(), move |_, mut respond| {
        seen.store(true, Ordering::Relaxed);
        async move { respond.send_reset(h2::Reason::REFUSED_STREAM) }
    });
    let _serving = willing.serve_h2(h2::server::Builder::new(), |request, mut respond| async move {
        let body = http2_peers::read(request.into_body()).await;
        upload(&mut http2_peers::begin(&mut respond), body.into(), true).await;
    });
    let client = H2Client::new(&rig).await;
    let asking = async {
        // The pick decides at random which pod gets the first request.
        while !refused.load(Ordering::Relaxed) {
            let response = client.post("http://cart.test/", "hello").await;
            assert_eq!(response.body().await, b"hello");
        }
    };
    timeout(PATIENCE, asking).await.expect("one of them should be asked first");
    assert_eq!(rig.metric(r#"rouse_retries_total{reason="refused_stream"}"#), 1);
    assert_eq!(rig.metric(r#"rouse_hold_duration_seconds_count{service="shop/cart",outcome="served"}"#), 1);
    assert_eq!(rig.metric("rouse_ejections_total"), 0);
}

/// The body is longer than the gateway keeps, so the request cannot be retried.
#[tokio::test]
async fn a_refused_stream_whose_body_is_no_longer_at_hand_fails() {
    let (rig, pod) = Rig::with_pod(h2c()).await;
    let _refusing = pod.serve_h2(h2::server::Builder::new(), |request, mut respond| async move {
        let (mut body, mut taken) = (request.into_body(), 0);
        while taken < 100_000 {
            let part = body.data().await.unwrap().unwrap();
            body.flow_control().release_capacity(part.len()).unwrap();
            taken += part.len();
        }
        respond.send_reset(h2::Reason::REFUSED_STREAM);
    });
    let client = H2Client::new(&rig).await;
    let response = client.post("http://cart.test/", vec![b'x'; 100_000]).await;
    let answer = response.head().await;
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.headers()["x-rouse-error"], "upstream_reset");
    assert_eq!(rig.metric(SENT), 1);
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
/// For SETTINGS and PING, the same bit is ACK.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A pod's side of a raw HTTP/2 connection: it can send frames that a library would not send.
pub(crate) struct ByHand(TcpStream);

impl ByHand {
    pub(crate) async fn new(mut stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.read_exact(&mut [0; 24]).await.unwrap();
        let mut by_hand = Self(stream);
        by_hand.send(SETTINGS, 0, 0, &[]).await;
        by_hand
    }

    pub(crate) async fn send(&mut self, kind: u8, flags: u8, stream: u8, payload: &[u8]) {
        let length = u8::try_from(payload.len()).unwrap();
        let head = [0, 0, length, kind, flags, 0, 0, 0, stream];
        self.0.write_all(&[&head, payload].concat()).await.unwrap();
    }

    /// Waits for the end of the request on `stream`.
    pub(crate) async fn request(&mut self, stream: u8) {
        let reading = async {
            loop {
                let mut head = [0; 9];
                self.0.read_exact(&mut head).await.unwrap();
                let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
                self.0.read_exact(&mut payload).await.unwrap();
                match (head[3], head[4]) {
                    (PING, 0) => self.send(PING, END_STREAM, 0, &payload).await,
                    (HEADERS | DATA, flags) if flags & END_STREAM != 0 && head[8] == stream => return,
                    _ => {}
                }
            }
        };
        timeout(PATIENCE, reading).await.expect("the request should come");
    }
}

/// Two requests on one HTTP/2 connection to a pod, which has read both.
pub(crate) struct TwoStreams {
    /// Dropping it ends both.
    pub(crate) client: H2Client,
    pub(crate) connection: ByHand,
    pub(crate) first: Answer,
    pub(crate) third: Answer,
}

impl TwoStreams {
    /// Sends `/1` as stream 1 and `/3` as stream 3.
    pub(crate) async fn open(rig: &Rig, pod: &Pod) -> Self {
        let client = H2Client::new(rig).await;
        let first = client.post("http://cart.test/1", "hello").await;
        let mut connection = ByHand::new(pod.accept_raw().await).await;
        connection.request(1).await;
        let third = client.post("http://cart.test/3", "hello").await;
        connection.request(3).await;
        Self { client, connection, first, third }
    }
}

/// Streams 1 and 3 are in flight when the pod sends a GOAWAY with last stream 1.
#[tokio::test]
async fn a_goaway_retries_the_streams_above_its_last_id_and_the_others_are_answered() {
    for other_pod in [false, true] {
        let (rig, pod) = Rig::with_pod(h2c()).await;
        let other = Pod::new(2).await;
        let streams = TwoStreams::open(&rig, &pod).await;
        let TwoStreams { client: _client, connection: mut old, first, third } = streams;
        if other_pod {
            rig.pods(&[(&pod, READY), (&other, READY)]);
        }
        old.send(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]).await;
        let next = if other_pod { &other } else { &pod };
        let mut new = next.accept_h2().await;
        let (request, mut respond) = new.accept().await.unwrap().unwrap();
        assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/3"));
        let mut body = request.into_body();
        let (part, more) = tokio::select! {
            part = body.data() => (part, None),
            more = new.accept() => (None, Some(more)),
        };
        assert!(more.is_none(), "nothing else is sent again");
        assert_eq!(part.unwrap().unwrap(), "hello");
        answer(&mut respond, "three");
        tokio::select! {
            body = third.body() => assert_eq!(body, b"three"),
            more = new.accept() => assert!(more.is_none(), "nothing else is sent again"),
        }
        old.send(HEADERS, END_HEADERS, 1, &[0x88]).await;
        old.send(DATA, END_STREAM, 1, b"one").await;
        assert_eq!(first.body().await, b"one");
        assert_eq!(rig.metric(r#"rouse_retries_total{reason="refused_stream"}"#), 1);
        assert_eq!(rig.metric("rouse_ejections_total"), 0);
    }
}
