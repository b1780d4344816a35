//! Owns the tasks of a component: they run until it is cancelled, and the end of one ends all.

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A task ended although it was not cancelled: it panicked.
#[derive(Debug, thiserror::Error)]
#[error("a task that follows the cluster has ended: {0}")]
pub struct TaskEnded(String);

/// Waits until the first of `tasks` ends, cancels `inner`, the token of all of them, and waits for the others. Ends with an
/// error unless `cancel`, the parent of `inner`, was cancelled before.
pub(crate) async fn run(
    mut tasks: JoinSet<()>,
    inner: CancellationToken,
    cancel: CancellationToken,
) -> Result<(), TaskEnded> {
    let first = tasks.join_next().await;
    let early = !cancel.is_cancelled();
    inner.cancel();
    let reason = match first {
        Some(Err(error)) => error.to_string(),
        _ => "without an error".to_owned(),
    };
    while tasks.join_next().await.is_some() {}
    if early { Err(TaskEnded(reason)) } else { Ok(()) }
}
