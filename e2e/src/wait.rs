//! Helpers that wait for a condition or a future, always with a deadline.

use std::time::Duration;

/// Long enough for two slow cores under load; a working product needs far less.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// The same for steps of a whole cluster.
pub const LONG_PATIENCE: Duration = Duration::from_mins(3);

/// The poll interval of [`eventually`].
const POLL: Duration = Duration::from_millis(10);

/// The poll interval of [`patiently`].
const SLOW_POLL: Duration = Duration::from_millis(100);

/// Returns the output of `future`. Panics if it is not ready within [`PATIENCE`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("timed out after {PATIENCE:?}: {what}"))
}

/// Calls `ask` until it returns a value. Panics if it returns none within [`PATIENCE`].
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    within(what, async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            pause(POLL).await;
        }
    })
    .await
}

/// The same for conditions that take longer to check and to become true. Panics after [`LONG_PATIENCE`].
pub async fn patiently<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            pause(SLOW_POLL).await;
        }
    };
    tokio::time::timeout(LONG_PATIENCE, asking)
        .await
        .unwrap_or_else(|_| panic!("timed out after {LONG_PATIENCE:?}: {what}"))
}

/// Calls `ask` until its result has not changed for a while, for example because a sender is blocked.
pub async fn settled<T: PartialEq>(what: &str, mut ask: impl AsyncFnMut() -> T) -> T {
    const SAME: u32 = 30;
    let mut last = ask().await;
    let mut same = 0;
    eventually(what, async || {
        let now = ask().await;
        same = if now == last { same + 1 } else { 0 };
        last = now;
        (same >= SAME).then_some(())
    })
    .await;
    last
}

#[expect(clippy::disallowed_methods, reason = "the one place that polls: other processes cannot notify us")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
