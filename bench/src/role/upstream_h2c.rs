//! The upstream server of all proxies for HTTP/2 without TLS.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use super::{LARGE, SMALL, address, block_on};
use crate::Result;

/// Runs until SIGTERM.
pub(crate) fn run() -> Result<()> {
    block_on(serve())
}

async fn serve() -> Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(address()?).await?;
    let bodies = [SMALL, LARGE].map(|size| Bytes::from("x".repeat(size)));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => { connections.spawn(connection(accepted?.0, bodies.clone())); }
            Some(_) = connections.join_next() => {}
            _ = term.recv() => return Ok(()),
        }
    }
}

async fn connection(stream: TcpStream, [small, large]: [Bytes; 2]) {
    let service = service_fn(move |request: Request<Incoming>| {
        let body = if request.uri().path() == "/large" { large.clone() } else { small.clone() };
        async move { Ok::<_, Infallible>(Response::new(Full::new(body))) }
    });
    if stream.set_nodelay(true).is_ok() {
        let mut server = http2::Builder::new(TokioExecutor::new());
        server.max_concurrent_streams(1_000);
        // Ignored: the load generator sees failed requests.
        server.serve_connection(TokioIo::new(stream), service).await.ok();
    }
}
