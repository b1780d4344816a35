//! The worker threads: one thread and one runtime per core, all accepting from the same sockets.

use std::io;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rouse_core::shutdown::InFlightGuard;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::accept::{HandedOffConnection, Peer, Peers, ProxyListener, accept, take_over};
use super::gateway::Gateway;
use super::worker::Worker;

/// Connections that wait to be taken over by another worker.
const INBOX: usize = 64;

/// The threads of the data plane.
#[derive(Debug)]
pub struct Workers {
    gateway: Arc<Gateway>,
    queues: Arc<AcceptBacklog>,
    drain: CancellationToken,
    close: CancellationToken,
    /// Closed when the last thread has ended.
    alive: watch::Receiver<()>,
}

/// The accept queues of all sockets. During a drain they count as work under way until all are empty: otherwise the drain
/// could end before connections that the kernel has queued are served.
#[derive(Debug)]
pub(super) struct AcceptBacklog {
    open: AtomicUsize,
    drain: Mutex<Option<InFlightGuard>>,
}

impl AcceptBacklog {
    fn emptied(&self) {
        if self.open.fetch_sub(1, Ordering::SeqCst) == 1 {
            drop(self.drain.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

impl Workers {
    /// Starts `count` threads, all of which accept from all of `listeners`.
    #[expect(clippy::needless_pass_by_value, reason = "no listener may outlive the drain")]
    pub fn start(
        gateway: &Arc<Gateway>,
        listeners: Vec<ProxyListener>,
        count: NonZeroUsize,
    ) -> io::Result<Self> {
        let (drain, close) = (CancellationToken::new(), CancellationToken::new());
        let (here, alive) = watch::channel(());
        let queues = AtomicUsize::new(count.get() * listeners.len());
        let queues = Arc::new(AcceptBacklog { open: queues, drain: Mutex::default() });
        // From here on an error drops this value, which ends the threads that have started.
        let workers = Self { gateway: Arc::clone(gateway), queues, drain, close, alive };
        let (peers, inboxes): (Vec<Peer>, Vec<_>) = (0..count.get())
            .map(|_| {
                let (sender, inbox) = mpsc::channel(INBOX);
                (Peer { connections: Arc::default(), inbox: sender }, inbox)
            })
            .unzip();
        let (all, here) = (Arc::new(peers), Arc::new(here));
        for (number, inbox) in inboxes.into_iter().enumerate() {
            let listeners = listeners.iter().map(ProxyListener::share).collect::<io::Result<_>>()?;
            let peers = Peers { number, all: Arc::clone(&all), queues: Arc::clone(&workers.queues) };
            workers.spawn(peers, listeners, inbox, Arc::clone(&here))?;
        }
        Ok(workers)
    }

    /// Starts one thread, and waits until it runs.
    fn spawn(
        &self,
        peers: Peers,
        listeners: Vec<ProxyListener>,
        inbox: mpsc::Receiver<HandedOffConnection>,
        here: Arc<watch::Sender<()>>,
    ) -> io::Result<()> {
        let (gateway, drain, close) = (Arc::clone(&self.gateway), self.drain.clone(), self.close.clone());
        let (sender, started) = std::sync::mpsc::sync_channel(1);
        std::thread::Builder::new().name(format!("worker-{}", peers.number)).spawn(move || {
            let _here = here;
            let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(sender.send(Err(error))),
            };
            sender.send(Ok(())).ok();
            let worker = Worker::new(gateway, peers.all.len(), drain, close);
            runtime.block_on(run(worker, listeners, peers, inbox));
        })?;
        started.recv().map_err(io::Error::other)?
    }

    /// Accepts what is queued, closes the listeners, and asks clients to go elsewhere after their requests under way.
    pub fn drain(&self) {
        if !self.drain.is_cancelled() && self.queues.open.load(Ordering::SeqCst) > 0 {
            // Before the workers drain, so that a wait for all work under way includes the queues.
            let work = self.gateway.under_way().begin();
            *self.queues.drain.lock().unwrap_or_else(PoisonError::into_inner) = Some(work);
        }
        self.drain.cancel();
    }

    /// The drain is over: WebSocket clients get a close frame, and all other connections are cut.
    pub fn close(&self) {
        self.drain();
        self.close.cancel();
    }

    /// Waits until all threads have ended.
    pub async fn ended(&mut self) {
        while self.alive.changed().await.is_ok() {}
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.close();
    }
}

/// Runs one worker until the gateway closes and its tasks have ended.
async fn run(
    worker: Rc<Worker>,
    listeners: Vec<ProxyListener>,
    peers: Peers,
    inbox: mpsc::Receiver<HandedOffConnection>,
) {
    let runtime = &worker.runtime;
    for listener in listeners {
        let (worker, peers) = (Rc::clone(&worker), peers.clone());
        runtime.spawn(async move {
            accept(&worker, listener, &peers).await;
            // `accept` also returns if the runtime cannot use the socket: that does not begin a drain.
            if worker.runtime.drain.is_cancelled() {
                worker.limiter.drain(worker.gateway.under_way());
            }
            peers.queues.emptied();
        });
    }
    let housekeeping = async {
        tokio::join!(
            runtime.run(),
            worker.sweep(),
            worker.relieve(),
            worker.free_descriptors(),
            take_over(&worker, inbox),
        )
    };
    let over = async {
        runtime.close.cancelled().await;
        runtime.tasks.close();
        runtime.tasks.wait().await;
    };
    tokio::select! {
        _ = housekeeping => {}
        () = over => {}
    }
}
