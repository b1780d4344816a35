//! Logs the events of the cluster (watches, wakes, failed writes), and counts the wakes.

use std::time::Duration;

use rouse_kube::client::watch::{WatchReport, WatchState};
use rouse_kube::cluster::{Cluster, ClusterEvent};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

use crate::admin::metrics::EventMetrics;

/// The pause before a gateway that has not synced logs what it waits for. It doubles each time.
const MISSING_FIRST: Duration = Duration::from_secs(2);
/// The longest pause between these messages.
const MISSING_MOST: Duration = Duration::from_mins(1);

/// Logs and counts every event of the cluster.
pub(super) async fn follow(mut events: Receiver<ClusterEvent>, event_metrics: EventMetrics) {
    loop {
        match events.recv().await {
            Ok(event) => {
                match &event {
                    ClusterEvent::Woken(..) => event_metrics.wake(true),
                    ClusterEvent::WakeFailed { .. } => event_metrics.wake(false),
                    _ => {}
                }
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
        // Wakes are repeated while requests come: a failure is logged when it changes.
        ClusterEvent::WakeFailed { again: true, .. } => {}
        ClusterEvent::WakeFailed { service, why, again: false } => {
            tracing::warn!(%service, reason = why, "cannot be woken");
        }
        ClusterEvent::Unreachable(service, why) => {
            tracing::warn!(%service, reason = why, "no pod accepts connections");
        }
        ClusterEvent::LeftOut(what) => tracing::warn!(reason = what, "an object is ignored"),
        ClusterEvent::WriteFailed(why) => tracing::warn!(reason = why, "a write to the API server failed"),
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

/// Logs what a gateway that has not synced waits for, with growing pauses. Never returns.
pub(super) async fn missing(cluster: &Cluster) {
    let mut pause = MISSING_FIRST;
    loop {
        sleep_until(Instant::now() + pause).await;
        pause = (2 * pause).min(MISSING_MOST);
        for what in cluster.missing() {
            tracing::warn!("waiting for {what}; requests are answered 503 (starting)");
        }
    }
}
