//! The HTTP server of the admin API: limits connections, sets timeouts for reads and writes, and shuts down gracefully.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::limiter::{ConnectionLimiter, Place, Use};
use super::write_timeout::WriteTimeout;

/// How long a client may take to send the head of a request, and a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The buffer size of a connection, in bytes.
const BUFFER: usize = 16 * 1024;
/// How long responses may take to finish when the process stops. Followed logs never end by themselves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after a failed accept, for example without free file descriptors: an immediate retry would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Marks a response without an end, such as a followed log: it has no write timeout, so the client may pause reading.
#[derive(Debug, Clone, Copy)]
pub(super) struct Endless;

/// The client of a request, which handlers find among its extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Answers all connections to `listener`, until `stop`.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let limiter = ConnectionLimiter::default();
    let (graceful, mut connections) = (GracefulShutdown::new(), JoinSet::new());
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    connections.spawn(answer((stream, peer), limiter.place(), router.clone(), &graceful));
                    // Reap finished connections and let evicted ones end: otherwise they pile up while new ones come.
                    while connections.try_join_next().is_some() {}
                    yield_now().await;
                }
                Err(_) => sleep_until(Instant::now() + ACCEPT_PAUSE).await,
            }
        }
    }
    drop(listener);
    timeout(LEAVE_TIMEOUT, graceful.shutdown()).await.ok();
}

fn answer(
    (stream, peer): (TcpStream, SocketAddr),
    place: Place,
    router: Router,
    graceful: &GracefulShutdown,
) -> impl Future<Output = ()> + use<> {
    let (place, endless) = (Arc::new(place), Arc::new(AtomicBool::new(false)));
    let stream = WriteTimeout::new(stream, Arc::clone(&endless));
    let (own, router) = (Arc::clone(&place), TowerToHyperService::new(router));
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        request.extensions_mut().insert(Arc::clone(&own));
        let used_for = Use::of(request.uri().path());
        own.use_for(used_for);
        let (answered, endless) = (router.call(request), Arc::clone(&endless));
        async move {
            if used_for == Use::Other {
                // Yield, so that a client with many pipelined requests does not delay probes.
                yield_now().await;
            }
            let answered = answered.await;
            let lasts = answered.as_ref().is_ok_and(|answer| answer.extensions().get::<Endless>().is_some());
            endless.store(lasts, Ordering::Relaxed);
            answered
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(BUFFER);
    let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
    async move {
        tokio::select! {
            // A client that closes the connection early is not an error.
            _ = connection => {}
            () = place.evicted() => {}
        }
    }
}
