//! A pod drains and goes: its streams live on, and new requests go elsewhere at once.
//!
//! The streams are open for `ROUSE_ENVOY_STREAM_SECONDS` (0) in each state of their pod.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rouse_core::envoy::EnvoyHealth::{Draining, Healthy};
use rouse_grpc::xds::resources::PodProtocol;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::client::who_answers;
use crate::pods::{Chunks, Pod, Speaks, chunks_of};
use crate::scene::{Scene, pod};

/// The states of the pod of a stream: alone, beside another, draining, gone.
pub(crate) const STATES: u32 = 4;

/// A stream through Envoy: what goes in at one end comes out at the other.
struct Open {
    what: &'static str,
    way_in: WayIn,
    way_out: WayOut,
    // Ends with the stream.
    connection: JoinSet<()>,
}

enum WayIn {
    Chunks(Chunks),
    Socket,
}

enum WayOut {
    Body(Incoming),
    Socket(TcpStream),
}

impl Open {
    /// Sends some bytes, and reads them at the other end. The number makes them different each time.
    async fn pass(&mut self, number: u32) {
        let sent: Bytes = (0..16_384u32).flat_map(|at| (at ^ number << 16).to_be_bytes()).collect();
        let (way_in, way_out) = (&mut self.way_in, &mut self.way_out);
        let received = match (way_in, way_out) {
            (WayIn::Chunks(chunks), WayOut::Body(body)) => {
                let (sending, received) = tokio::join!(chunks.send(sent.clone()), read(body, sent.len()));
                sending.unwrap();
                received
            }
            (WayIn::Socket, WayOut::Socket(socket)) => {
                let (mut reader, mut writer) = socket.split();
                let mut received = vec![0; sent.len()];
                let (reading, writing) =
                    tokio::join!(reader.read_exact(&mut received), writer.write_all(&sent));
                reading.unwrap();
                writing.unwrap();
                received.into()
            }
            _ => panic!("{}: its ends do not fit", self.what),
        };
        assert!(received == sent, "{}: other bytes, or in another order, in part {number}", self.what);
    }

    /// Ends the stream: nothing more comes, and no error.
    async fn end(self) {
        let Self { what, way_in, way_out, mut connection } = self;
        drop(way_in);
        match way_out {
            WayOut::Body(body) => assert_eq!(body.collect().await.unwrap().to_bytes(), "", "{what}"),
            WayOut::Socket(mut socket) => {
                socket.shutdown().await.unwrap();
                let mut rest = Vec::new();
                socket.read_to_end(&mut rest).await.unwrap();
                assert_eq!(rest, b"", "{what}");
            }
        }
        connection.shutdown().await;
    }
}

async fn read(body: &mut Incoming, length: usize) -> Bytes {
    let mut received = BytesMut::new();
    while received.len() < length {
        let frame = body.frame().await.unwrap().unwrap();
        received.extend_from_slice(&frame.into_data().unwrap());
    }
    received.freeze()
}

/// A long response over HTTP/1.1.
async fn long_response(envoy: SocketAddr, host: &str, served: &mut Pod) -> Open {
    let stream = TokioIo::new(TcpStream::connect(envoy).await.unwrap());
    let (mut sender, driver) = http1::handshake(stream).await.unwrap();
    let mut connection = JoinSet::new();
    connection.spawn(async move { driver.await.unwrap() });
    let request = Request::get("/stream").header("host", host).body(Empty::<Bytes>::new()).unwrap();
    // Envoy passes the head of the response on before there is a body.
    let (response, chunks) = tokio::join!(sender.send_request(request), served.next_stream());
    let body = response.unwrap().into_body();
    Open { what: "a long response", way_in: WayIn::Chunks(chunks), way_out: WayOut::Body(body), connection }
}

/// A request and a response over HTTP/2, both open.
async fn both_ways(envoy: SocketAddr, host: &str) -> Open {
    let stream = TokioIo::new(TcpStream::connect(envoy).await.unwrap());
    let (mut sender, driver) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let mut connection = JoinSet::new();
    connection.spawn(async move { driver.await.unwrap() });
    let (chunks, queue) = mpsc::channel(1);
    let body: BoxBody<Bytes, Infallible> = StreamBody::new(chunks_of(queue)).boxed();
    let request = Request::post(format!("http://{host}/echo")).body(body).unwrap();
    let body = sender.send_request(request).await.unwrap().into_body();
    Open {
        what: "a stream both ways",
        way_in: WayIn::Chunks(chunks),
        way_out: WayOut::Body(body),
        connection,
    }
}

/// An upgraded connection.
async fn upgraded(envoy: SocketAddr, host: &str) -> Open {
    let mut socket = TcpStream::connect(envoy).await.unwrap();
    let key = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==";
    let head = format!("GET /upgrade HTTP/1.1\r\nhost: {host}\r\n{key}\r\nsec-websocket-version: 13\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(socket.read_u8().await.unwrap());
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    Open {
        what: "an upgraded connection",
        way_in: WayIn::Socket,
        way_out: WayOut::Socket(socket),
        connection: JoinSet::new(),
    }
}

/// How long the streams are open in each state.
pub(crate) fn open_for() -> Duration {
    let seconds = std::env::var("ROUSE_ENVOY_STREAM_SECONDS");
    Duration::from_secs(seconds.map_or(0, |text| text.parse().unwrap()))
}

/// Passes bytes over all streams, for as long as the test was told.
async fn pass_all(open: &mut [Open], number: &mut u32) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    for _ in 0..=open_for().as_secs() {
        ticks.tick().await;
        *number += 1;
        for stream in &mut *open {
            stream.pass(*number).await;
        }
    }
}

pub(crate) async fn open_streams() {
    let scene = Scene::start().await;
    let clusters = [("shop/one", PodProtocol::Http1), ("shop/two", PodProtocol::Http2)];
    for (name, protocol) in clusters {
        scene.cluster(name, protocol);
    }
    let listener = scene.listen_for(&["shop/one", "shop/two"]).await;
    let mut leaving = [Pod::numbered(1, Speaks::Http1).await, Pod::numbered(2, Speaks::Http2).await];
    let staying = [Pod::numbered(3, Speaks::Http1).await, Pod::numbered(4, Speaks::Http2).await];
    for ((name, _), pods) in clusters.iter().zip(&leaving) {
        scene.endpoints(name, &[pod(pods.address, Healthy)], false).await;
    }
    let mut open = vec![
        long_response(listener, "shop.one", &mut leaving[0]).await,
        upgraded(listener, "shop.one").await,
        long_response(listener, "shop.two", &mut leaving[1]).await,
        both_ways(listener, "shop.two").await,
    ];
    let mut number = 0;
    pass_all(&mut open, &mut number).await;
    for health in [Some(Healthy), Some(Draining), None] {
        for (((name, _), leaving), staying) in clusters.iter().zip(&leaving).zip(&staying) {
            let old = health.map(|health| pod(leaving.address, health));
            let all: Vec<_> = old.into_iter().chain([pod(staying.address, Healthy)]).collect();
            scene.endpoints(name, &all, false).await;
            let both = BTreeSet::from([leaving.address, staying.address]);
            let expected = if health == Some(Healthy) { both } else { [staying.address].into() };
            let answered = who_answers(listener, &name.replace('/', ".")).await;
            assert_eq!(answered, expected, "{name}: {health:?}");
        }
        pass_all(&mut open, &mut number).await;
    }
    for stream in open {
        stream.end().await;
    }
}

pub(crate) async fn last_pod() {
    let scene = Scene::start().await;
    scene.cluster("shop/web", PodProtocol::Http1);
    let listener = scene.listen_for(&["shop/web"]).await;
    let (old, new) = (Pod::numbered(1, Speaks::Http1).await, Pod::numbered(2, Speaks::Http1).await);
    for (all, expected) in [
        (vec![pod(old.address, Healthy)], old.address),
        (vec![pod(old.address, Draining), pod(new.address, Healthy)], new.address),
        // The last Ready pod goes: the one that drains is HEALTHY again.
        (vec![pod(old.address, Healthy)], old.address),
        (vec![pod(old.address, Draining), pod(new.address, Healthy)], new.address),
        (vec![pod(new.address, Healthy)], new.address),
    ] {
        scene.endpoints("shop/web", &all, false).await;
        assert_eq!(who_answers(listener, "shop.web").await, [expected].into(), "{all:?}");
    }
}

/// Only the health changes, again and again: Envoy puts some changes off for a second, and must not put off these.
pub(crate) async fn flapping() {
    let scene = Scene::start().await;
    scene.cluster("shop/web", PodProtocol::Http1);
    let listener = scene.listen_for(&["shop/web"]).await;
    let (one, two) = (Pod::numbered(1, Speaks::Http1).await, Pod::numbered(2, Speaks::Http1).await);
    for (first, second, expected) in [
        (Healthy, Healthy, vec![one.address, two.address]),
        (Draining, Healthy, vec![two.address]),
        (Healthy, Draining, vec![one.address]),
        (Draining, Healthy, vec![two.address]),
        (Healthy, Healthy, vec![one.address, two.address]),
    ] {
        let all = [pod(one.address, first), pod(two.address, second)];
        scene.endpoints("shop/web", &all, false).await;
        let expected: BTreeSet<SocketAddr> = expected.into_iter().collect();
        assert_eq!(who_answers(listener, "shop.web").await, expected, "{first} {second}");
    }
}
