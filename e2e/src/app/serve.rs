//! The test app's life cycle: when it listens, accepts, stops accepting and ends after SIGTERM.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::select_all;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::routes::{self, Wire};
use crate::state::State;
use crate::tls;

/// After SIGTERM, the app ends once no request but probes has arrived for this long.
const QUIET: Duration = Duration::from_secs(1);

/// The whole life of the app.
pub(crate) async fn run(state: Arc<State>) -> io::Result<()> {
    // Before anything that takes time: until the handler is installed, SIGTERM ends the process.
    let mut term = Term(signal(SignalKind::terminate())?, state.settings.ignore_term);
    let listening = tokio::select! {
        listening = listen(&state) => listening?,
        () = term.came() => return Ok(()),
    };
    let graceful = GracefulShutdown::new();
    let accepting = listening.into_iter().map(|listener| Box::pin(accept(&state, listener, &graceful)));
    let enough = async {
        term.came().await;
        if !state.settings.term_delay.is_zero() {
            serve_on(&state).await;
        }
    };
    tokio::select! {
        (error, ..) = select_all(accepting) => return Err(error),
        () = enough => {}
    }
    graceful.shutdown().await;
    state.tasks.close();
    state.tasks.wait().await;
    Ok(())
}

/// Behaves like a pod that honours its grace period: it serves for `TERM_DELAY_MS`, then fails `/healthz`, and listens until
/// requests stop. Closing a listener earlier would reset the connections in its accept queue.
async fn serve_on(state: &State) {
    tokio::time::sleep(state.settings.term_delay).await;
    state.ready.store(false, Ordering::Relaxed);
    let mut before = None;
    while before != Some(state.asked()) {
        before = Some(state.asked());
        tokio::time::sleep(QUIET).await;
    }
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

async fn listen(state: &State) -> io::Result<Vec<TcpListener>> {
    let settings = &state.settings;
    tokio::time::sleep(settings.start_delay).await;
    if let Some(gate) = &settings.start_gate {
        opened(gate).await;
    }
    if settings.never_listen {
        eprintln!("rouse-test-app: no database: I shall never listen");
        std::future::pending::<()>().await;
    }
    let others = settings.more_ports.iter().map(|port| SocketAddr::new(settings.address.ip(), *port));
    let mut listening = Vec::new();
    for address in [settings.address].into_iter().chain(others) {
        let listener = TcpListener::bind(address).await?;
        if settings.log_listening {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
            println!("listening {now} on {}", listener.local_addr()?);
        }
        listening.push(listener);
    }
    Ok(listening)
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
    // Otherwise small responses in several writes wait for the peer's acknowledgements.
    let _unimportant = stream.set_nodelay(true);
    let Ok(local) = stream.local_addr() else { return };
    let wire = Wire { peer, local, tls: None };
    let watcher = graceful.watcher();
    let shared = Arc::clone(state);
    state.tasks.spawn(async move {
        let Some(settings) = &shared.settings.tls else {
            return speak(&shared, stream, wire, watcher).await;
        };
        match tls::accept(settings, stream).await {
            Ok((stream, seen)) => {
                speak(&shared, stream, Wire { tls: Some(seen), ..wire }, watcher).await;
            }
            Err(error) => eprintln!("rouse-test-app: no TLS with {peer}: {error}"),
        }
    });
}

async fn speak<IO>(state: &Arc<State>, stream: IO, wire: Wire, watcher: Watcher)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let wire = Arc::new(wire);
    let service = {
        let state = Arc::clone(state);
        service_fn(move |request: Request<Incoming>| {
            routes::answer(Arc::clone(&state), request, Arc::clone(&wire))
        })
    };
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().pipeline_flush(false).title_case_headers(false);
    server.http2().max_concurrent_streams(10_000);
    let connection = server.serve_connection_with_upgrades(TokioIo::new(stream), service);
    // Ignored: a test sees from the client how a connection ends.
    let _unimportant = pin!(watcher.watch(connection.into_owned())).await;
}
