//! Logs and counts what happens between the gateway and the cluster.

use std::time::Duration;

use rouse_kube::client::watch::{WatchReport, WatchState};
use rouse_kube::cluster::{Cluster, ClusterEvent};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

use crate::admin::metrics::EventMetrics;

/// When a gateway that has not synced first says what it waits for. Doubled each time.
const MISSING_FIRST: Duration = Duration::from_secs(2);
/// It says so at least this often.
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
                tracing::warn!(count, "events are missing here: there were too many");
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
        WatchState::Missing => tracing::warn!(kind, "the cluster has no {kind}: `rouse install` has it"),
        WatchState::Broken { why, .. } => {
            let so = if *synced { "the last that is known keeps serving" } else { "tried again" };
            tracing::warn!(kind, reason = why, "cannot follow {kind}; {so}");
        }
    }
}

/// Says again and again, less and less often, what a gateway that has not synced waits for. Does not end.
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
