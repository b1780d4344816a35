//! The thread of the registration listener, with a runtime of its own: TLS handshakes and requests of many pods, or of an
//! attacker, must not delay the watches and the admin API, which share the control threads.

use std::io;
use std::thread;

use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// The name of the thread.
const NAME: &str = "registrations";

/// Runs `task` in a new thread, with a runtime of its own. The result ends when the task has ended or panicked.
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> io::Result<impl Future<Output = ()>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (alive, ended) = oneshot::channel::<()>();
    thread::Builder::new().name(NAME.to_owned()).spawn(move || {
        let _alive = alive;
        runtime.block_on(task);
    })?;
    Ok(async move { ended.await.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const GENEROUS: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_busy_task_delays_no_other_thread_and_its_end_is_seen() {
        let (release, wait) = std::sync::mpsc::sync_channel::<()>(1);
        let (tell, told) = oneshot::channel();
        let ended = spawn(async move {
            tell.send(thread::current().name().map(str::to_owned)).unwrap();
            // Blocks the thread, as a flood of handshakes does.
            wait.recv().unwrap();
        });
        assert_eq!(timeout(GENEROUS, told).await.unwrap().unwrap().as_deref(), Some(NAME));
        release.send(()).unwrap();
        timeout(GENEROUS, ended.unwrap()).await.unwrap();
    }

    #[tokio::test]
    async fn a_task_that_panics_ends() {
        timeout(GENEROUS, spawn(async { panic!("as a test") }).unwrap()).await.unwrap();
    }
}
