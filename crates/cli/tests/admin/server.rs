//! The admin server on a real socket: streams, slow clients, and shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rouse_daemon::admin::serve;
use rouse_local::output::{AppLog, Line, Stream};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::scene::{Scene, app};

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    task: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start(scene: &Scene) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop, mut task) =
            (listener.local_addr().unwrap(), CancellationToken::new(), JoinSet::new());
        task.spawn(serve(listener, scene.router.clone(), stop.clone()));
        Self { address, stop, task }
    }

    pub(crate) async fn send(&self, text: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        BufReader::new(stream)
    }
}

pub(crate) fn line(text: &str) -> Line {
    Line { pod: "cart-1".into(), stream: Stream::Stdout, text: text.into() }
}

/// Reads on until a line with `text`.
pub(crate) async fn read_to(stream: &mut BufReader<TcpStream>, text: &str) {
    let found = async {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(stream.read_line(&mut line).await.unwrap() > 0, "it ended before {text:?}");
        }
    };
    timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("{text:?} never came"));
}

#[tokio::test]
async fn followed_logs_bring_what_was_and_what_comes_and_end_with_the_app() {
    let scene = Scene::new();
    let log = AppLog::new(1000);
    scene.apps.set(vec![app("shop/cart")]);
    scene.apps.keep_log(Some(Arc::clone(&log)));
    log.push(line("before"));
    let server = Server::start(&scene).await;
    let head = "GET /api/v1/services/shop/cart/logs?follow=true HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    let mut stream = server.send(head).await;
    read_to(&mut stream, "cart-1 | before").await;
    log.push(line("after"));
    read_to(&mut stream, "cart-1 | after").await;
    for n in 0..1000 {
        log.push(line(&format!("many {n}")));
    }
    read_to(&mut stream, "lines not shown").await;
    read_to(&mut stream, "cart-1 | many 999").await;
    scene.apps.keep_log(None);
    drop(log);
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it must end with the app").unwrap();
    assert_eq!(rest, b"\r\n0\r\n\r\n");
}

#[tokio::test]
async fn logs_that_are_not_followed_end() {
    let scene = Scene::new();
    let log = AppLog::new(1000);
    log.push(line("one"));
    scene.apps.set(vec![app("shop/cart")]);
    scene.apps.keep_log(Some(log));
    let answer = scene.get("/api/v1/services/shop/cart/logs").await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "cart-1 | one\n"));
    assert_eq!(answer.kind, "text/plain; charset=utf-8");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_finish_its_question_is_sent_away() {
    let scene = Scene::new();
    let server = Server::start(&scene).await;
    let mut stream = server.send("GET /livez HTTP/1.1\r\n").await;
    let mut rest = Vec::new();
    timeout(Duration::from_mins(1), stream.read_to_end(&mut rest)).await.expect("it must be closed").unwrap();
}

#[tokio::test]
async fn the_server_ends_although_a_client_follows_a_log() {
    let scene = Scene::new();
    scene.apps.set(vec![app("shop/cart")]);
    let log = AppLog::new(1000);
    log.push(line("before"));
    scene.apps.keep_log(Some(log));
    let mut server = Server::start(&scene).await;
    let head = "GET /api/v1/services/shop/cart/logs?follow=true HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    let mut stream = server.send(head).await;
    read_to(&mut stream, "before").await;
    server.stop.cancel();
    timeout(PATIENCE, server.task.join_next()).await.expect("it must end").unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err(), "no connection is accepted any more");
}
