//! The door of the listener: until the first complete state, connections are closed, so that an Envoy turns to another replica.

use rouse_grpc::GrpcTransport;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Serves once `complete` has ended, and says so to `open`, until `end`.
pub(super) async fn serve(
    listener: TcpListener,
    transport: GrpcTransport,
    (complete, open): (impl Future<Output = ()>, watch::Sender<bool>),
    end: CancellationToken,
) {
    let closed = async {
        loop {
            // An error is that of one connection, or passes.
            drop(listener.accept().await);
        }
    };
    tokio::select! {
        () = end.cancelled() => return,
        () = complete => {}
        () = closed => return,
    }
    open.send_replace(true);
    let _ = (listener, transport);
    end.cancelled().await;
}
