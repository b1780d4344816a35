//! From the first breath to SIGTERM: when the app listens, accepts, stops accepting and ends.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::routes;
use crate::state::State;

/// The whole life of the app.
pub(crate) async fn run(state: Arc<State>) -> io::Result<()> {
    // Before anything that takes time: until it is there, SIGTERM ends the process.
    let mut term = Term(signal(SignalKind::terminate())?, state.settings.ignore_term);
    let listening = tokio::select! {
        listening = listen(&state) => listening?,
        () = term.came() => return Ok(()),
    };
    let graceful = GracefulShutdown::new();
    tokio::select! {
        error = accept(&state, listening, &graceful) => return Err(error),
        () = term.came() => {}
    }
    graceful.shutdown().await;
    state.tasks.close();
    state.tasks.wait().await;
    Ok(())
}

struct Term(Signal, bool);

impl Term {
    async fn came(&mut self) {
        let Self(signal, ignored) = self;
        while signal.recv().await.is_some() {
            if !*ignored {
                return;
            }
        }
    }
}

async fn listen(state: &State) -> io::Result<TcpListener> {
    let settings = &state.settings;
    tokio::time::sleep(settings.start_delay).await;
    if let Some(gate) = &settings.start_gate {
        opened(gate).await;
    }
    if settings.never_listen {
        eprintln!("rouse-test-app: no database: I shall never listen");
        std::future::pending::<()>().await;
    }
    let listener = TcpListener::bind(settings.address).await?;
    if settings.log_listening {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        println!("listening {now} on {}", listener.local_addr()?);
    }
    Ok(listener)
}

async fn opened(gate: &Path) {
    while !gate.exists() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn accept(state: &Arc<State>, listener: TcpListener, graceful: &GracefulShutdown) -> io::Error {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => return error,
        };
        let connections = state.connected();
        connection(state, stream, peer, graceful);
        if state.settings.close_after.is_some_and(|most| connections >= most) {
            drop(listener);
            println!("listens no more");
            return std::future::pending().await;
        }
    }
}

fn connection(state: &Arc<State>, stream: TcpStream, peer: SocketAddr, graceful: &GracefulShutdown) {
    // Small answers in several writes would wait for the peer's acknowledgements.
    let _unimportant = stream.set_nodelay(true);
    let service = {
        let state = Arc::clone(state);
        service_fn(move |request: Request<Incoming>| routes::answer(Arc::clone(&state), request, peer))
    };
    let watcher = graceful.watcher();
    state.tasks.spawn(async move {
        let mut server = auto::Builder::new(TokioExecutor::new());
        server.http1().pipeline_flush(false).title_case_headers(false);
        server.http2().max_concurrent_streams(10_000);
        let connection = server.serve_connection_with_upgrades(TokioIo::new(stream), service);
        // How a connection ends is the client's business: a test sees it from there.
        let _unimportant = pin!(watcher.watch(connection.into_owned())).await;
        Ok::<_, Infallible>(())
    });
}
