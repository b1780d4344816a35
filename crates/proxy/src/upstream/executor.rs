//! Runs hyper's own tasks on the worker's thread.

use std::rc::Rc;
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::Instant;

use crate::runtime::{Runtime, ShutdownSignal};

/// How long responses may take to be written once the drain is over.
const LAST_FLUSH: Duration = Duration::from_millis(250);

/// Ends a moment after the drain is over: the last responses have had time to be written.
pub(crate) async fn closed(close: &ShutdownSignal) {
    close.cancelled().await;
    tokio::time::sleep_until(Instant::now() + LAST_FLUSH).await;
}

/// Runs hyper's tasks on the worker's thread, owned by its task tracker, and no longer than the worker.
#[derive(Debug, Clone)]
pub(crate) struct LocalExecutor(Rc<Runtime>);

impl LocalExecutor {
    pub(crate) fn new(runtime: &Rc<Runtime>) -> Self {
        Self(Rc::clone(runtime))
    }
}

impl<F: Future + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, task: F) {
        let close = self.0.close.clone();
        drop(self.0.spawn(async move {
            tokio::select! {
                biased;
                _ = task => {}
                // A peer that does not read would keep the task for ever.
                () = closed(&close) => {}
            }
        }));
    }
}
