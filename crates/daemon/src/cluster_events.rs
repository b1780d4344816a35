//! Logs what happens between this process and the cluster: watches, wakes, scale writes, leadership, failed writes.

use std::time::Duration;

use rouse_kube::client::watch::{WatchReport, WatchState};
use rouse_kube::events::{ClusterEvent, ScaleChange};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

/// The pause before a role that has not synced logs what it waits for. It doubles each time.
const MISSING_FIRST: Duration = Duration::from_secs(2);
/// The longest pause between these messages.
const MISSING_MOST: Duration = Duration::from_mins(1);

/// Logs every event of the cluster, after `seen` has seen it. Ends when the sender is gone.
pub(crate) async fn follow(mut events: Receiver<ClusterEvent>, seen: impl Fn(&ClusterEvent) + Send) {
    loop {
        match events.recv().await {
            Ok(event) => {
                seen(&event);
                log(&event);
            }
            Err(RecvError::Lagged(count)) => {
                tracing::warn!(count, "{count} events were skipped: they came too fast");
            }
            Err(RecvError::Closed) => return,
        }
    }
}

fn log(event: &ClusterEvent) {
    match event {
        ClusterEvent::Watch(report) => log_watch(report),
        ClusterEvent::Woken(service, pods) => tracing::info!(%service, pods, "woken"),
        // Wakes are repeated while requests come, and syncs until they succeed: a failure is logged when it changes.
        ClusterEvent::WakeFailed { again: true, .. } | ClusterEvent::SliceSyncFailed { again: true, .. } => {}
        ClusterEvent::WakeFailed { service, why, again: false } => {
            tracing::warn!(%service, reason = why, "cannot be woken");
        }
        ClusterEvent::Unreachable(service, why) => {
            tracing::warn!(%service, reason = why, "no pod accepts connections");
        }
        ClusterEvent::LeftOut(what) => tracing::warn!(reason = what, "an object is ignored"),
        ClusterEvent::WriteFailed(why) => tracing::warn!(reason = why, "a write to the API server failed"),
        ClusterEvent::SliceSyncFailed { service, why, again: false } => {
            tracing::warn!(%service, reason = why, "EndpointSlices are not up to date");
        }
        ClusterEvent::Leader(true) => tracing::info!("this replica leads"),
        ClusterEvent::Leader(false) => tracing::info!("this replica does not lead any more"),
        ClusterEvent::Scaled(ScaleChange { workload, from, to, why }) => {
            tracing::info!(workload, from, to, reason = why, "scaled");
        }
        ClusterEvent::ScaleFailed { change: ScaleChange { workload, from, to, .. }, failure } => {
            tracing::warn!(workload, from, to, reason = failure, "cannot be scaled");
        }
    }
}

fn log_watch(WatchReport { kind, state, synced, .. }: &WatchReport) {
    match state {
        WatchState::Starting => {}
        WatchState::Following => tracing::info!(kind, "following {kind}"),
        WatchState::Missing => {
            tracing::warn!(kind, "the cluster does not have {kind}: install it with `rouse install`");
        }
        WatchState::Broken { why, .. } => {
            let so = if *synced { "the last known state stays in use" } else { "retrying" };
            tracing::warn!(kind, reason = why, "cannot watch {kind}; {so}");
        }
    }
}

/// Logs what a role that has not synced waits for, with growing pauses. Never returns.
pub(crate) async fn missing(missing: impl Fn() -> Vec<String>, consequence: &str) {
    let mut pause = MISSING_FIRST;
    loop {
        sleep_until(Instant::now() + pause).await;
        pause = (2 * pause).min(MISSING_MOST);
        for what in missing() {
            tracing::warn!("waiting for {what}; {consequence}");
        }
    }
}
