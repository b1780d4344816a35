//! The workers: one thread and one runtime per core, all accepting from the same sockets.

use std::io;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rouse_net::listen::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::connection;
use crate::gateway::Gateway;
use crate::worker::Worker;

/// Connections that wait to be taken over by another worker.
const INBOX: usize = 64;
/// How many more connections than the idlest worker one may have before it hands a new one over.
const SLACK: usize = 2;
/// A pause after an accept that failed: for want of file descriptors, as a rule.
const PAUSE: Duration = Duration::from_millis(50);

/// The threads of the data plane.
#[derive(Debug)]
pub struct Workers {
    drain: CancellationToken,
    close: CancellationToken,
    /// Closed when the last thread has gone.
    alive: watch::Receiver<()>,
}

/// How one worker is reached by the others.
#[derive(Debug)]
struct Mate {
    connections: Arc<AtomicUsize>,
    inbox: mpsc::Sender<std::net::TcpStream>,
}

impl Workers {
    /// Starts `count` of them, all of which accept from all of `listeners`.
    #[expect(clippy::needless_pass_by_value, reason = "no listener may outlive the drain")]
    pub fn start(gateway: &Arc<Gateway>, listeners: Vec<Listener>, count: NonZeroUsize) -> io::Result<Self> {
        let (drain, close) = (CancellationToken::new(), CancellationToken::new());
        let (here, alive) = watch::channel(());
        let (mates, inboxes): (Vec<Mate>, Vec<_>) = (0..count.get())
            .map(|_| {
                let (sender, inbox) = mpsc::channel(INBOX);
                (Mate { connections: Arc::default(), inbox: sender }, inbox)
            })
            .unzip();
        let (mates, here) = (Arc::new(mates), Arc::new(here));
        for (number, inbox) in inboxes.into_iter().enumerate() {
            let listeners: Vec<Listener> =
                listeners.iter().map(Listener::share).collect::<io::Result<_>>()?;
            let (gateway, mates, here) = (Arc::clone(gateway), Arc::clone(&mates), Arc::clone(&here));
            let (drain, close) = (drain.clone(), close.clone());
            let runtime =
                move || Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
            let (told, started) = std::sync::mpsc::sync_channel(1);
            std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                let _here = here;
                let runtime = match runtime() {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(told.send(Err(error))),
                };
                told.send(Ok(())).ok();
                let seed = gateway.settings.seed.rotate_left(u32::try_from(number % 64).unwrap_or_default());
                let worker = Worker::new(gateway, seed.wrapping_add(number as u64), drain, close);
                runtime.block_on(run(worker, listeners, number, mates, inbox));
            })?;
            started.recv().map_err(io::Error::other)??;
        }
        Ok(Self { drain, close, alive })
    }

    /// Accepts what is queued, closes the listeners, and tells clients to go elsewhere after what is under way.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// The drain is over: upgraded connections are told so, and whatever is left is cut.
    pub fn close(&self) {
        self.drain.cancel();
        self.close.cancel();
    }

    /// Waits until all threads have gone.
    pub async fn ended(&mut self) {
        while self.alive.changed().await.is_ok() {}
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.close();
    }
}

/// The life of one worker.
async fn run(
    worker: Rc<Worker>,
    listeners: Vec<Listener>,
    number: usize,
    mates: Arc<Vec<Mate>>,
    mut inbox: mpsc::Receiver<std::net::TcpStream>,
) {
    let connections = mates.get(number).map(|mate| Arc::clone(&mate.connections)).unwrap_or_default();
    for listener in listeners {
        let (worker, mates) = (Rc::clone(&worker), Arc::clone(&mates));
        worker.tasks.clone().spawn_local(accept(worker, listener, number, mates));
    }
    let taking_over = async {
        while let Some(stream) = inbox.recv().await {
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve(&worker, stream, &connections);
            }
        }
    };
    let housekeeping = async { tokio::join!(worker.deadlines.run(), worker.sweep(), taking_over) };
    let over = async {
        worker.drain.cancelled().await;
        // Tasks may still come while connections last; the tracker is empty only when all have gone.
        worker.tasks.close();
        worker.tasks.wait().await;
        worker.close.cancelled().await;
    };
    tokio::select! {
        _ = housekeeping => {}
        () = over => {}
    }
}

/// Accepts from one socket until the drain, and then what is queued.
async fn accept(worker: Rc<Worker>, listener: Listener, number: usize, mates: Arc<Vec<Mate>>) {
    // A listener that the runtime does not take cannot be waited for; the others go on.
    let Ok(listener) = TcpListener::from_std(listener.into_std()) else { return };
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            () = worker.drain.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => place(&worker, stream, number, &mates),
            Err(error) if is_fleeting(&error) => {}
            Err(_) => drop(tokio::time::timeout(PAUSE, worker.drain.cancelled()).await),
        }
    }
}

/// The client was gone before it was accepted.
fn is_fleeting(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Serves a connection here, or hands it to a worker that has clearly fewer: a few long-lived connections on one
/// core would leave the others idle.
fn place(worker: &Rc<Worker>, stream: TcpStream, number: usize, mates: &[Mate]) {
    let count = |mate: &Mate| mate.connections.load(Ordering::Relaxed);
    let Some(own) = mates.get(number) else { return };
    let idlest =
        mates.iter().min_by_key(|mate| count(mate)).filter(|idlest| count(idlest) + SLACK <= count(own));
    let Some(idlest) = idlest else {
        return serve(worker, stream, &own.connections);
    };
    let Ok(stream) = stream.into_std() else { return };
    match idlest.inbox.try_send(stream) {
        Ok(()) => {}
        Err(mpsc::error::TrySendError::Full(stream) | mpsc::error::TrySendError::Closed(stream)) => {
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve(worker, stream, &own.connections);
            }
        }
    }
}

fn serve(worker: &Rc<Worker>, stream: TcpStream, connections: &Arc<AtomicUsize>) {
    connections.fetch_add(1, Ordering::Relaxed);
    let counted = Counted(Arc::clone(connections));
    let worker = Rc::clone(worker);
    worker.tasks.clone().spawn_local(async move {
        let _counted = counted;
        connection::serve(worker, stream).await;
    });
}

/// One connection in the count.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
