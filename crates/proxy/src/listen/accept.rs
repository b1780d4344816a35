//! Accepts connections from one socket, and hands each to a worker that has clearly fewer connections, if there is one.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rouse_core::shutdown::InFlightGuard;
use rouse_net::listen::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::worker::Worker;
use super::worker_pool::AcceptBacklog;
use crate::downstream::{Accepted, ListenerOptions};
use crate::upstream::is_local;

/// How many more connections than the idlest worker one may have before it hands a new one over.
const SLACK: usize = 2;
/// A pause after an accept that failed, usually because file descriptors ran out.
const PAUSE: Duration = Duration::from_millis(50);

/// A socket on which clients connect.
#[derive(Debug)]
pub struct ProxyListener {
    /// The socket.
    pub listener: Listener,
    /// How its connections begin.
    pub options: ListenerOptions,
}

impl ProxyListener {
    /// The same socket, for another worker.
    pub(super) fn share(&self) -> io::Result<Self> {
        Ok(Self { listener: self.listener.share()?, options: self.options.clone() })
    }
}

/// One worker, as other workers hand connections to it.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) connections: Arc<AtomicUsize>,
    pub(super) inbox: mpsc::Sender<HandedOffConnection>,
}

/// All workers, as one of them sees them.
#[derive(Debug, Clone)]
pub(super) struct Peers {
    /// The number of this worker.
    pub(super) number: usize,
    pub(super) all: Arc<Vec<Peer>>,
    pub(super) queues: Arc<AcceptBacklog>,
}

/// A connection that one worker accepted and hands to another. It counts for the receiving worker at once: otherwise a
/// whole burst of connections would go to the worker that was idle when the burst began.
#[derive(Debug)]
pub(super) struct HandedOffConnection {
    stream: std::net::TcpStream,
    client: SocketAddr,
    options: ListenerOptions,
    counted: Counted,
    arrival: InFlightGuard,
}

/// Serves the connections that other workers have accepted.
pub(super) async fn take_over(worker: &Rc<Worker>, mut inbox: mpsc::Receiver<HandedOffConnection>) {
    while let Some(HandedOffConnection { stream, client, options, counted, arrival }) = inbox.recv().await {
        // The worker that accepted it had room for it. This one may have none.
        worker.limiter.wait_for_room().await;
        if let Ok(stream) = TcpStream::from_std(stream) {
            worker.downstream.spawn(Accepted { stream, client, options }, counted, arrival);
        }
    }
}

/// Accepts from one socket until the drain, and then what is queued.
pub(super) async fn accept(worker: &Rc<Worker>, listener: ProxyListener, peers: &Peers) {
    let ProxyListener { listener, options } = listener;
    // A listener that the runtime does not take cannot be waited for; the others go on.
    let Ok(listener) = TcpListener::from_std(listener.into_std()) else { return };
    let drain = &worker.runtime.drain;
    loop {
        let accepting = async {
            worker.limiter.wait_for_room().await;
            let accepted = listener.accept().await;
            // The place may have gone to a connection of another worker meanwhile.
            worker.limiter.wait_for_room().await;
            accepted
        };
        let accepted = tokio::select! {
            biased;
            accepted = accepting => accepted,
            () = drain.cancelled() => break,
        };
        match accepted {
            Ok((stream, client)) => {
                place(worker, Accepted { stream, client, options: options.clone() }, peers);
            }
            Err(error) if is_aborted(&error) => {}
            Err(error) if is_local(&error) => {
                worker.free_descriptor();
                drop(tokio::time::timeout(PAUSE, drain.cancelled()).await);
            }
            Err(_) => drop(tokio::time::timeout(PAUSE, drain.cancelled()).await),
        }
    }
    // What the kernel has queued: the runtime may not know of it yet.
    let Ok(listener) = listener.into_std() else { return };
    loop {
        match listener.accept() {
            Ok((stream, client)) => {
                if stream.set_nonblocking(true).is_ok()
                    && let Ok(stream) = TcpStream::from_std(stream)
                {
                    place(worker, Accepted { stream, client, options: options.clone() }, peers);
                }
            }
            Err(error) if is_aborted(&error) => {}
            Err(_) => return,
        }
    }
}

/// The client left before its connection was accepted.
fn is_aborted(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Serves a connection here, or hands it to a worker that has clearly fewer: a few long-lived connections on one
/// core would leave the others idle.
fn place(worker: &Rc<Worker>, accepted: Accepted, Peers { number, all, .. }: &Peers) {
    let count = |peer: &Peer| peer.connections.load(Ordering::Relaxed);
    let Some(own) = all.get(*number) else { return };
    let arrival = worker.gateway.under_way().begin();
    let idlest = all.iter().min_by_key(|peer| count(peer)).filter(|idlest| {
        // Handing over costs more than it brings where many come and go.
        count(idlest) + SLACK + count(own) / 4 <= count(own)
    });
    let Some(idlest) = idlest else {
        return worker.downstream.spawn(accepted, Counted::new(&own.connections), arrival);
    };
    let Accepted { stream, client, options } = accepted;
    let Ok(stream) = stream.into_std() else { return };
    let handed =
        HandedOffConnection { stream, client, options, counted: Counted::new(&idlest.connections), arrival };
    // A worker whose inbox is full leaves the connection here.
    if let Err(refused) = idlest.inbox.try_send(handed) {
        let HandedOffConnection { stream, client, options, arrival, .. } = refused.into_inner();
        if let Ok(stream) = TcpStream::from_std(stream) {
            let accepted = Accepted { stream, client, options };
            worker.downstream.spawn(accepted, Counted::new(&own.connections), arrival);
        }
    }
}

/// One connection in the count of its worker.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(connections))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
