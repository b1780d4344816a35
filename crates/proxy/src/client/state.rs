//! The state of the requests of one client connection: how many there are, what they use of the budgets, and whether
//! their bytes move. The connection limiter reads it to choose which connection to close.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rouse_core::shutdown::{InFlightCounter, InFlightGuard};
use rouse_core::time::{Clock as _, Moment};
use rouse_net::clock::TokioClock;
use tokio::sync::Notify;

/// A connection whose receiver takes fewer bytes than this between two checks makes no progress: one byte now and then must
/// not keep buffers for ever.
pub(crate) const MIN_PROGRESS: u64 = 4 * 1024;

/// The state of the requests of one client connection.
#[derive(Debug)]
pub(crate) struct ClientState {
    clock: TokioClock,
    /// Requests under way.
    requests: Cell<usize>,
    has_had_request: Cell<bool>,
    /// Since when no request is under way.
    idle_since: Cell<Moment>,
    /// Requests that wait for more of their body from the client.
    stalled_bodies: Cell<usize>,
    /// Since when the last of these waits.
    stalled_since: Cell<Moment>,
    unsent: Unsent,
    /// Requests that are at pods.
    at_pods: Cell<usize>,
    /// HTTP/1 connections to pods that they use.
    pod_connections: Cell<usize>,
    /// Notified when a request has come back from its pod.
    back_from_pod: Notify,
    reader: Arc<ReaderCounters>,
    /// Where the connection is counted while the gateway drains.
    drain: RefCell<Option<Arc<InFlightCounter>>>,
    /// Counts a connection without a request while the gateway drains: hyper may still hold the end of a response that the
    /// client has not taken.
    unsent_response: RefCell<Option<InFlightGuard>>,
}

/// Counters that the requests of a connection share with the reader of its socket, which hyper may move between threads.
#[derive(Debug, Default)]
pub(crate) struct ReaderCounters {
    /// Requests that have ended.
    pub(crate) ended: AtomicU64,
    /// The capacity of the buffer that hyper last read into.
    pub(crate) buffer: AtomicUsize,
}

/// Bytes that wait in hyper's buffers for a client that does not read, or for pods that do not take its bodies.
#[derive(Debug, Default)]
struct Unsent {
    /// How many, with the buffers that stand behind them.
    cost: Cell<usize>,
    /// How many bytes have been taken so far.
    taken: Cell<u64>,
    /// The value of `taken` when progress was last seen.
    seen: Cell<u64>,
    /// Since when there is no progress.
    since: Cell<Option<Moment>>,
    was_checked: Cell<bool>,
    /// Bytes have moved between two checks. Before the second check, bytes may just have filled the kernel's buffers.
    has_moved: Cell<bool>,
}

impl ClientState {
    pub(crate) fn new(clock: TokioClock) -> Rc<Self> {
        Rc::new(Self {
            clock,
            requests: Cell::new(0),
            has_had_request: Cell::new(false),
            idle_since: Cell::new(clock.now()),
            stalled_bodies: Cell::new(0),
            stalled_since: Cell::new(Moment::ZERO),
            unsent: Unsent::default(),
            at_pods: Cell::new(0),
            pod_connections: Cell::new(0),
            back_from_pod: Notify::new(),
            reader: Arc::default(),
            drain: RefCell::default(),
            unsent_response: RefCell::default(),
        })
    }

    /// The counters that the reader of the socket shares.
    pub(crate) fn reader(&self) -> &Arc<ReaderCounters> {
        &self.reader
    }

    /// The capacity of the buffer that hyper last read into, over HTTP/1.
    pub(crate) fn read_buffer(&self) -> usize {
        self.reader.buffer.load(Ordering::Relaxed)
    }
}

/// Requests under way.
impl ClientState {
    /// A request begins. Dropping the guard ends it.
    pub(crate) fn begin_request(self: &Rc<Self>) -> RequestGuard {
        self.has_had_request.set(true);
        self.requests.set(self.requests.get() + 1);
        RequestGuard { client: Rc::clone(self), open: true }
    }

    fn end_request(&self, now: Moment) {
        self.requests.set(self.requests.get().saturating_sub(1));
        self.reader.ended.fetch_add(1, Ordering::Relaxed);
        self.idle_since.set(now);
        if self.requests.get() == 0
            && let Some(under_way) = &*self.drain.borrow()
        {
            *self.unsent_response.borrow_mut() = Some(under_way.begin());
        }
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.get()
    }

    pub(crate) fn has_had_request(&self) -> bool {
        self.has_had_request.get()
    }

    pub(crate) fn idle_since(&self) -> Moment {
        self.idle_since.get()
    }

    /// The gateway drains: from now on the connection counts as under way until it ends.
    pub(crate) fn drain(&self, under_way: &Arc<InFlightCounter>) {
        *self.drain.borrow_mut() = Some(Arc::clone(under_way));
        if self.requests.get() == 0 {
            *self.unsent_response.borrow_mut() = Some(under_way.begin());
        }
    }

    /// The connection has ended: it does not count as under way any more.
    pub(crate) fn connection_ended(&self) {
        self.drain.borrow_mut().take();
        self.unsent_response.borrow_mut().take();
    }
}

/// Request bodies that do not arrive.
impl ClientState {
    /// A request waits for more of its body, since `now`.
    pub(crate) fn body_stalls(&self, now: Moment) {
        self.stalled_bodies.set(self.stalled_bodies.get() + 1);
        self.stalled_since.set(now);
    }

    /// More of the body has arrived, or it is not needed any more.
    pub(crate) fn body_resumes(&self) {
        self.stalled_bodies.set(self.stalled_bodies.get().saturating_sub(1));
    }

    /// Since when all requests under way wait for their bodies; `None` if one of them does not.
    pub(crate) fn bodies_stalled_since(&self) -> Option<Moment> {
        let all = self.requests.get() > 0 && self.stalled_bodies.get() == self.requests.get();
        all.then(|| self.stalled_since.get())
    }
}

/// Bytes in hyper's buffers.
impl ClientState {
    /// What waits in hyper's buffers, with the buffers that stand behind it.
    pub(crate) fn buffered(&self) -> usize {
        self.unsent.cost.get()
    }

    /// `cost` bytes more wait.
    pub(crate) fn add_buffered(&self, cost: usize) {
        self.unsent.cost.set(self.unsent.cost.get() + cost);
    }

    /// `bytes` were taken, which frees `cost`.
    pub(crate) fn remove_buffered(&self, cost: usize, bytes: usize) {
        let Unsent { cost: all, taken, .. } = &self.unsent;
        all.set(all.get().saturating_sub(cost));
        taken.set(taken.get() + bytes as u64);
    }

    /// Checks whether buffered bytes have moved since the last call.
    pub(crate) fn check_progress(&self, now: Moment) {
        let Unsent { cost, taken, seen, since, was_checked, has_moved } = &self.unsent;
        let moves = taken.get() - seen.get() >= MIN_PROGRESS;
        if was_checked.replace(true) && moves {
            has_moved.set(true);
        }
        if moves || since.get().is_none() {
            seen.set(taken.get());
            since.set(Some(now));
        }
        if cost.get() == 0 {
            since.set(None);
        }
    }

    /// How many buffered bytes have been taken so far.
    pub(crate) fn taken(&self) -> u64 {
        self.unsent.taken.get()
    }

    /// Whether bytes have moved between two checks.
    pub(crate) fn has_moved(&self) -> bool {
        self.unsent.has_moved.get()
    }

    /// Since when the client has read almost nothing of its buffered bytes. `None` if that began after `before`.
    pub(crate) fn unread_since(&self, before: Moment) -> Option<Moment> {
        let Unsent { taken, seen, since, .. } = &self.unsent;
        since.get().filter(|since| *since <= before && taken.get() - seen.get() < MIN_PROGRESS)
    }
}

/// Requests at pods.
impl ClientState {
    /// How many requests are at pods.
    pub(crate) fn at_pods(&self) -> usize {
        self.at_pods.get()
    }

    /// How many HTTP/1 connections to pods they use.
    pub(crate) fn pod_connections(&self) -> usize {
        self.pod_connections.get()
    }

    /// A request goes to a pod. `exclusive`: on a connection for itself.
    pub(crate) fn request_dispatched(&self, exclusive: bool) {
        self.at_pods.set(self.at_pods.get() + 1);
        self.pod_connections.set(self.pod_connections.get() + usize::from(exclusive));
    }

    /// It has come back.
    pub(crate) fn request_returned(&self, exclusive: bool) {
        self.at_pods.set(self.at_pods.get().saturating_sub(1));
        self.pod_connections.set(self.pod_connections.get().saturating_sub(usize::from(exclusive)));
        self.back_from_pod.notify_one();
    }

    /// Ends when a request has come back from its pod.
    pub(crate) async fn next_return(&self) {
        self.back_from_pod.notified().await;
    }
}

/// One request under way on a client connection. Dropping it ends the request.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    client: Rc<ClientState>,
    open: bool,
}

impl RequestGuard {
    /// Ends the request at `now`, without another look at the clock.
    pub(crate) fn end(&mut self, now: Moment) {
        if std::mem::replace(&mut self.open, false) {
            self.client.end_request(now);
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if self.open {
            self.end(self.client.clock.now());
        }
    }
}
