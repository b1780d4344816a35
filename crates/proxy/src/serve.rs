//! The workers: one thread and one runtime per core, all accepting from the same sockets.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rouse_core::drain::Work;
use rouse_net::listen::Listener;
use rouse_net::tls::ServerTls;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::connection;
use crate::gateway::Gateway;
use crate::pool;
use crate::worker::Worker;

/// Where clients come in.
#[derive(Debug)]
pub struct Door {
    /// The socket.
    pub listener: Listener,
    /// How to shake hands; `None`: in the clear.
    pub tls: Option<Arc<ServerTls>>,
}

impl Door {
    fn share(&self) -> io::Result<Self> {
        Ok(Self { listener: self.listener.share()?, tls: self.tls.clone() })
    }
}

impl From<Listener> for Door {
    /// In the clear.
    fn from(listener: Listener) -> Self {
        Self { listener, tls: None }
    }
}

/// Connections that wait to be taken over by another worker.
const INBOX: usize = 64;
/// How many more connections than the idlest worker one may have before it hands a new one over.
const SLACK: usize = 2;
/// A pause after an accept that failed: for want of file descriptors, as a rule.
const PAUSE: Duration = Duration::from_millis(50);

/// The threads of the data plane.
#[derive(Debug)]
pub struct Workers {
    gateway: Arc<Gateway>,
    queues: Arc<Queues>,
    drain: CancellationToken,
    close: CancellationToken,
    /// Closed when the last thread has gone.
    alive: watch::Receiver<()>,
}

/// How one worker is reached by the others.
#[derive(Debug)]
struct Mate {
    connections: Arc<AtomicUsize>,
    inbox: mpsc::Sender<Handed>,
}

/// A connection that was accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: TcpStream,
    /// Where it came from.
    pub(crate) client: SocketAddr,
    /// How to shake hands; `None`: in the clear.
    pub(crate) tls: Option<Arc<ServerTls>>,
}

/// A connection that another worker accepted. It counts as the taker's from then on: a burst would otherwise all go to
/// the one that looked idle at its beginning.
#[derive(Debug)]
struct Handed {
    stream: std::net::TcpStream,
    client: SocketAddr,
    tls: Option<Arc<ServerTls>>,
    counted: Counted,
    arrival: Work,
}

/// Counts as under way from the beginning of a drain until nothing is queued any more.
#[derive(Debug)]
struct Queues {
    open: AtomicUsize,
    drain: Mutex<Option<Work>>,
}

impl Queues {
    fn emptied(&self) {
        if self.open.fetch_sub(1, Ordering::SeqCst) == 1 {
            drop(self.drain.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

impl Workers {
    /// Starts `count` of them, all of which accept from all of `doors`.
    #[expect(clippy::needless_pass_by_value, reason = "no door may outlive the drain")]
    pub fn start(gateway: &Arc<Gateway>, doors: Vec<Door>, count: NonZeroUsize) -> io::Result<Self> {
        let (drain, close) = (CancellationToken::new(), CancellationToken::new());
        let (here, alive) = watch::channel(());
        let queues = AtomicUsize::new(count.get() * doors.len());
        let queues = Arc::new(Queues { open: queues, drain: Mutex::default() });
        // From here on: whatever fails ends those that have started.
        let workers = Self { gateway: Arc::clone(gateway), queues, drain, close, alive };
        let (mates, inboxes): (Vec<Mate>, Vec<_>) = (0..count.get())
            .map(|_| {
                let (sender, inbox) = mpsc::channel(INBOX);
                (Mate { connections: Arc::default(), inbox: sender }, inbox)
            })
            .unzip();
        let (mates, here) = (Arc::new(mates), Arc::new(here));
        for (number, inbox) in inboxes.into_iter().enumerate() {
            let doors: Vec<Door> = doors.iter().map(Door::share).collect::<io::Result<_>>()?;
            let crew = Crew { number, mates: Arc::clone(&mates), queues: Arc::clone(&workers.queues) };
            workers.spawn(crew, doors, inbox, Arc::clone(&here))?;
        }
        Ok(workers)
    }

    /// Starts one thread, and waits until it runs.
    fn spawn(
        &self,
        crew: Crew,
        doors: Vec<Door>,
        inbox: mpsc::Receiver<Handed>,
        here: Arc<watch::Sender<()>>,
    ) -> io::Result<()> {
        let (gateway, drain, close) = (Arc::clone(&self.gateway), self.drain.clone(), self.close.clone());
        let (told, started) = std::sync::mpsc::sync_channel(1);
        std::thread::Builder::new().name(format!("worker-{}", crew.number)).spawn(move || {
            let _here = here;
            let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(told.send(Err(error))),
            };
            told.send(Ok(())).ok();
            let worker = Worker::new(gateway, crew.mates.len(), drain, close);
            runtime.block_on(run(worker, doors, crew, inbox));
        })?;
        started.recv().map_err(io::Error::other)?
    }

    /// Accepts what is queued, closes the listeners, and tells clients to go elsewhere after what is under way.
    pub fn drain(&self) {
        if !self.drain.is_cancelled() && self.queues.open.load(Ordering::SeqCst) > 0 {
            // Before the workers hear of it: whoever waits for nothing to be under way waits for the queues, too.
            let work = self.gateway.under_way().begin();
            *self.queues.drain.lock().unwrap_or_else(PoisonError::into_inner) = Some(work);
        }
        self.drain.cancel();
    }

    /// The drain is over: upgraded connections are told so, and whatever is left is cut.
    pub fn close(&self) {
        self.drain();
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

/// One worker among the others.
#[derive(Debug, Clone)]
struct Crew {
    number: usize,
    mates: Arc<Vec<Mate>>,
    queues: Arc<Queues>,
}

/// The life of one worker.
async fn run(worker: Rc<Worker>, doors: Vec<Door>, crew: Crew, mut inbox: mpsc::Receiver<Handed>) {
    for door in doors {
        let (worker, crew) = (Rc::clone(&worker), crew.clone());
        worker.tasks.clone().spawn_local(async move {
            accept(&worker, door, &crew).await;
            // Not where a socket could not be used, and nobody leaves.
            if worker.drain.is_cancelled() {
                worker.crowd.drain(worker.gateway.under_way());
            }
            crew.queues.emptied();
        });
    }
    let taking_over = async {
        while let Some(Handed { stream, client, tls, counted, arrival }) = inbox.recv().await {
            // It was accepted where there was a place: none may be left here.
            worker.crowd.room().await;
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve(&worker, Accepted { stream, client, tls }, counted, arrival);
            }
        }
    };
    let housekeeping = async {
        tokio::join!(
            worker.deadlines.run(),
            worker.sweep(),
            worker.relieve(),
            taking_over,
            worker.drain.follow(),
            worker.close.follow()
        )
    };
    let over = async {
        worker.close.cancelled().await;
        worker.tasks.close();
        worker.tasks.wait().await;
    };
    tokio::select! {
        _ = housekeeping => {}
        () = over => {}
    }
}

/// Accepts from one socket until the drain, and then what is queued.
async fn accept(worker: &Rc<Worker>, Door { listener, tls }: Door, crew: &Crew) {
    // A listener that the runtime does not take cannot be waited for; the others go on.
    let Ok(listener) = TcpListener::from_std(listener.into_std()) else { return };
    loop {
        let accepting = async {
            worker.crowd.room().await;
            let accepted = listener.accept().await;
            // The place may have gone to a connection of another worker meanwhile.
            worker.crowd.room().await;
            accepted
        };
        let accepted = tokio::select! {
            biased;
            accepted = accepting => accepted,
            () = worker.drain.cancelled() => break,
        };
        match accepted {
            Ok((stream, client)) => place(worker, Accepted { stream, client, tls: tls.clone() }, crew),
            Err(error) if is_fleeting(&error) => {}
            Err(error) if pool::is_local(&error) => {
                worker.free_descriptor();
                drop(tokio::time::timeout(PAUSE, worker.drain.cancelled()).await);
            }
            Err(_) => drop(tokio::time::timeout(PAUSE, worker.drain.cancelled()).await),
        }
    }
    // What the kernel has queued: the runtime may not have heard of it yet.
    let Ok(listener) = listener.into_std() else { return };
    loop {
        match listener.accept() {
            Ok((stream, client)) => {
                if stream.set_nonblocking(true).is_ok()
                    && let Ok(stream) = TcpStream::from_std(stream)
                {
                    place(worker, Accepted { stream, client, tls: tls.clone() }, crew);
                }
            }
            Err(error) if is_fleeting(&error) => {}
            Err(_) => return,
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
fn place(worker: &Rc<Worker>, accepted: Accepted, Crew { number, mates, .. }: &Crew) {
    let count = |mate: &Mate| mate.connections.load(Ordering::Relaxed);
    let Some(own) = mates.get(*number) else { return };
    let arrival = worker.gateway.under_way().begin();
    let idlest = mates.iter().min_by_key(|mate| count(mate)).filter(|idlest| {
        // Handing over costs more than it brings where many come and go.
        count(idlest) + SLACK + count(own) / 4 <= count(own)
    });
    let Some(idlest) = idlest else {
        return serve(worker, accepted, Counted::new(&own.connections), arrival);
    };
    let Accepted { stream, client, tls } = accepted;
    let Ok(stream) = stream.into_std() else { return };
    let handed = Handed { stream, client, tls, counted: Counted::new(&idlest.connections), arrival };
    // One that does not keep up leaves it to us.
    if let Err(refused) = idlest.inbox.try_send(handed) {
        let Handed { stream, client, tls, arrival, .. } = refused.into_inner();
        if let Ok(stream) = TcpStream::from_std(stream) {
            serve(worker, Accepted { stream, client, tls }, Counted::new(&own.connections), arrival);
        }
    }
}

fn serve(worker: &Rc<Worker>, accepted: Accepted, counted: Counted, arrival: Work) {
    let Some(seat) = worker.crowd.enter() else {
        return worker.gateway.metrics.turned_away();
    };
    let worker = Rc::clone(worker);
    worker.tasks.clone().spawn_local(async move {
        let _counted = counted;
        connection::serve(worker, accepted, seat, arrival).await;
    });
}

/// One connection in the count.
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
