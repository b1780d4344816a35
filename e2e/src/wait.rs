//! Waiting, always under a deadline.

use std::time::Duration;

/// Long enough for two slow cores under load; nothing that works takes it.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// The same where a whole cluster is at work.
pub const LONG_PATIENCE: Duration = Duration::from_mins(3);

/// How often [`eventually`] looks.
const POLL: Duration = Duration::from_millis(10);

/// How often [`patiently`] looks.
const SLOW_POLL: Duration = Duration::from_millis(100);

/// What `future` gives. Panics if it does not within [`PATIENCE`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("waited {PATIENCE:?} in vain: {what}"))
}

/// Asks again until there is an answer. Panics if there is none within [`PATIENCE`].
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

/// The same for what takes longer to ask and to come about. Panics if there is no answer within [`LONG_PATIENCE`].
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
        .unwrap_or_else(|_| panic!("waited {LONG_PATIENCE:?} in vain: {what}"))
}

/// Asks until the answer has not changed for a while: what does not move any more has run into something.
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
