//! Signals a shortage of file descriptors: code that fails to open a socket reports it, and this worker or another one closes a
//! connection.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A shortage that one worker could not end by itself. Shared by all workers.
#[derive(Debug, Default)]
pub(crate) struct SharedShortage(AtomicBool);

/// The shortage of file descriptors as one worker sees it.
#[derive(Debug)]
pub(crate) struct DescriptorShortage {
    shared: Arc<SharedShortage>,
    reports: Cell<usize>,
    reported: Notify,
}

impl DescriptorShortage {
    pub(crate) fn new(shared: &Arc<SharedShortage>) -> Rc<Self> {
        Rc::new(Self { shared: Arc::clone(shared), reports: Cell::new(0), reported: Notify::new() })
    }

    /// A socket could not be opened. The worker closes a connection soon.
    pub(crate) fn report(&self) {
        self.reports.set(self.reports.get() + 1);
        self.reported.notify_one();
    }

    /// Waits for reports. Returns how many there are since the last call.
    pub(crate) async fn reports(&self) -> usize {
        self.reported.notified().await;
        self.reports.take()
    }

    /// Asks all workers to close a connection: this one has none that may be closed.
    pub(crate) fn ask_all_workers(&self) {
        self.shared.0.store(true, Ordering::Relaxed);
    }

    /// Whether a worker asks for a descriptor.
    pub(crate) fn is_asked(&self) -> bool {
        self.shared.0.load(Ordering::Relaxed)
    }

    /// This worker has closed a connection for the worker that asked.
    pub(crate) fn answered(&self) {
        self.shared.0.store(false, Ordering::Relaxed);
    }
}
