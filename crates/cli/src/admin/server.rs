//! Connections to the admin address: few, impatient with slow ones, and ended in good order.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// How many connections there may be. Whoever comes beyond that waits to be accepted.
const CONNECTIONS: usize = 128;
/// How long a client may take to send the head of a request, and a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long answers under way may take when we leave. Followed logs never end by themselves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Out of file descriptors, for example: trying again at once would only burn the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers whoever connects to `listener`, until `stop`.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let (graceful, mut connections) = (GracefulShutdown::new(), JoinSet::new());
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = accept(&listener, &room) => match accepted {
                Ok((stream, permit)) => { connections.spawn(answer(stream, permit, router.clone(), &graceful)); }
                Err(_) => sleep_until(Instant::now() + ACCEPT_PAUSE).await,
            }
        }
    }
    drop(listener);
    timeout(LEAVE_TIMEOUT, graceful.shutdown()).await.ok();
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

fn answer(
    stream: TcpStream,
    permit: OwnedSemaphorePermit,
    router: Router,
    graceful: &GracefulShutdown,
) -> impl Future<Output = Result<(), Infallible>> + use<> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let connection = graceful.watch(connection);
    async move {
        // A client that breaks off is nobody's trouble.
        connection.await.ok();
        drop(permit);
        Ok(())
    }
}
