//! The tasks of one connection: hyper's executor, and their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::rt::Executor;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Runs the tasks that hyper starts for one connection. They end with the guard of [`ConnectionTasks::new`], so that none
/// outlives the connection.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionTasks {
    tasks: TaskTracker,
    end: CancellationToken,
    started: Arc<AtomicU64>,
}

/// How many tasks a connection has had so far, and whether there are some now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Activity {
    started: u64,
    running: bool,
}

impl Activity {
    /// Whether nothing has happened since `before`.
    pub(crate) fn is_idle_since(self, before: Self) -> bool {
        !self.running && self == before
    }
}

impl ConnectionTasks {
    /// No task, and the guard that ends all of them when it is dropped.
    pub(crate) fn new() -> (Self, DropGuard) {
        let end = CancellationToken::new();
        let guard = end.clone().drop_guard();
        (Self { tasks: TaskTracker::new(), end, started: Arc::default() }, guard)
    }

    /// What has happened so far.
    pub(crate) fn activity(&self) -> Activity {
        Activity { started: self.started.load(Ordering::Relaxed), running: !self.tasks.is_empty() }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for ConnectionTasks {
    fn execute(&self, task: F) {
        self.started.fetch_add(1, Ordering::Relaxed);
        self.tasks.spawn(self.end.clone().run_until_cancelled_owned(task));
    }
}
