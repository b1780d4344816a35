//! The admin server under floods of connections that stay open without a complete request or without reading.

use std::io::{ErrorKind, Read as _};
use std::sync::Arc;
use std::time::Duration;

use rouse_local::output::AppLog;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::scene::{Scene, app};
use crate::server::{Server, line, read_to};

const PATIENCE: Duration = Duration::from_secs(30);
/// The connections of each kind, more than the server keeps.
const EACH: usize = 140;
/// How many connections the server keeps at most.
const PLACES: usize = 128;

const SCALE: &str = "/api/v1/services/shop/cart/scale";

/// What the connections of each flood send before they go silent.
fn kinds() -> [(&'static str, String); 5] {
    let head = |line: &str, more: &str| format!("{line} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}\r\n");
    let half_a_body =
        head(&format!("POST {SCALE}"), "Content-Type: application/json\r\nContent-Length: 11\r\n");
    [
        ("nothing", String::new()),
        ("half a head", "GET /livez HTTP/1.1\r\nHost: 127".to_owned()),
        ("half a body", half_a_body + "{\"pods"),
        ("probes that are not read", head("GET /livez", "").repeat(2000)),
        ("metrics that are not read", head("GET /metrics", "").repeat(50)),
    ]
}

/// A connection with a small receive buffer, which takes little of a response while it does not read.
async fn connect(server: &Server) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(server.address).await.unwrap()
}

/// Connects `EACH` times and sends as much of `text` as the server takes.
async fn flood(server: &Server, text: &str) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for _ in 0..EACH {
        let mut stream = connect(server).await;
        // The server may have stopped reading, or closed the connection already.
        timeout(Duration::from_millis(1), stream.write_all(text.as_bytes())).await.ok();
        all.push(stream);
    }
    all
}

async fn ask(server: &Server, request: &str, body: &str) -> String {
    let asked = async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "{request} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    timeout(PATIENCE, asked).await.unwrap_or_else(|_| panic!("{request} was not answered"))
}

/// Asserts that the server answers all requests of an honest client.
async fn serves(server: &Server, flood: &str) {
    for (request, body, expected) in [
        ("GET /livez", "", "\r\n\r\nok\n"),
        ("GET /readyz", "", "\r\n\r\nok\n"),
        ("GET /metrics", "", "# EOF"),
        ("GET /api/v1/services", "", "shop/cart"),
        (&format!("POST {SCALE}"), "{\"pods\": 2}", "\"pinned\":2"),
    ] {
        let answer = ask(server, request, body).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains(expected),
            "{flood}: {request}: {answer}"
        );
    }
}

/// How many of these connections the server has not closed.
fn kept(flood: Vec<TcpStream>) -> usize {
    let is_open = |stream: TcpStream| {
        let (mut stream, mut some) = (stream.into_std().unwrap(), vec![0; 1 << 16]);
        loop {
            match stream.read(&mut some) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    };
    flood.into_iter().map(is_open).filter(|open| *open).count()
}

fn scene() -> Scene {
    let scene = Scene::new();
    scene.apps.set(vec![app("shop/cart")]);
    scene.ready.set(true);
    // Makes the metrics long.
    for n in 0..50 {
        scene.cold_start(&format!("app-{n}"), 5);
    }
    for cold in scene.bench.registry.cold_starts().newest(None, 100) {
        scene.event_metrics.cold_start(&cold);
    }
    scene
}

#[tokio::test]
async fn connections_that_go_silent_at_any_point_keep_nobody_from_an_answer() {
    let scene = scene();
    let server = Server::start(&scene).await;
    let mut all = Vec::new();
    for (kind, text) in kinds() {
        all.extend(flood(&server, &text).await);
        serves(&server, kind).await;
    }
    let (count, kept) = (all.len(), kept(all));
    assert!(kept <= PLACES, "{kept} of {count} connections are kept");
}

#[tokio::test]
async fn silent_connections_do_not_close_a_log_that_is_followed() {
    let scene = scene();
    let log = AppLog::new(10);
    log.push(line("before"));
    scene.apps.keep_log(Some(Arc::clone(&log)));
    let server = Server::start(&scene).await;
    let head = "GET /api/v1/services/shop/cart/logs?follow=true HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    let mut followed = server.send(head).await;
    read_to(&mut followed, "before").await;
    let _silent = flood(&server, "").await;
    assert!(ask(&server, "GET /livez", "").await.ends_with("ok\n"));
    log.push(line("after"));
    read_to(&mut followed, "after").await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_is_answered_and_closed() {
    let scene = scene();
    let server = Server::start(&scene).await;
    let (_, half_a_body) = &kinds()[2];
    let mut stream = server.send(half_a_body).await;
    let mut answer = String::new();
    let read = timeout(Duration::from_mins(1), stream.read_to_string(&mut answer)).await;
    read.expect("it must be closed").unwrap();
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("body"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_read_is_given_up() {
    let scene = scene();
    let server = Server::start(&scene).await;
    let (_, metrics) = &kinds()[4];
    let mut stream = connect(&server).await;
    stream.write_all(metrics.as_bytes()).await.unwrap();
    // Ends only when the server has closed the connection: it has more to send than the sockets hold.
    let closed = timeout(Duration::from_mins(1), stream.ready(Interest::ERROR)).await;
    closed.expect("it must be closed").unwrap();
}
