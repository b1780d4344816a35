//! Those who tell the log and the metrics what happens.

use std::sync::Arc;
use std::time::Duration;

use rouse_core::registry::Registry;
use rouse_core::timeline::Read;
use rouse_kube::cluster::{Cluster, Happening};
use rouse_kube::watch::WatchState;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

use crate::admin::metrics::Tally;
use crate::process::screen::Screen;
use crate::up::lines;

/// When a gateway that has not synced first says what it waits for. Doubled each time.
const MISSING_FIRST: Duration = Duration::from_secs(2);
/// It says so at least this often.
const MISSING_MOST: Duration = Duration::from_mins(1);

/// Tells of everything that happens between us and the cluster.
pub(super) async fn happenings(mut happenings: Receiver<Happening>, tally: Tally, screen: Screen) {
    loop {
        match happenings.recv().await {
            Ok(happening) => {
                match &happening {
                    Happening::Woken(..) => tally.wake(true),
                    Happening::WakeFailed { .. } => tally.wake(false),
                    _ => {}
                }
                if let Some(line) = line(&happening) {
                    screen.say(line);
                }
            }
            Err(RecvError::Lagged(count)) => {
                screen.say(lines::warning(&format!("{count} events are missing here: there were too many")));
            }
            Err(RecvError::Closed) => return,
        }
    }
}

fn line(happening: &Happening) -> Option<String> {
    Some(match happening {
        Happening::Watch(report) => match &report.state {
            WatchState::Starting => return None,
            WatchState::Following => format!("following {}", report.kind),
            WatchState::Missing => {
                lines::warning(&format!("the cluster has no {}: `rouse install` has it", report.kind))
            }
            WatchState::Broken { why, .. } => {
                let kind = report.kind;
                let so = if report.synced { "the last that is known keeps serving" } else { "tried again" };
                lines::warning(&format!("cannot follow {kind}: {why}; {so}"))
            }
        },
        Happening::LeftOut(what) => lines::warning(what),
        Happening::Woken(service, pods) => format!("{service}: woken, {pods} wanted"),
        // Wakes are repeated while requests come: it is said when it changes.
        Happening::WakeFailed { again: true, .. } => return None,
        Happening::WakeFailed { service, why, again: false } => {
            lines::warning(&format!("{service}: cannot be woken: {why}"))
        }
        Happening::Unreachable(service, why) => lines::warning(&format!("{service}: {why}")),
        Happening::WriteFailed(why) => lines::warning(why),
    })
}

/// Says again and again, less and less often, what a gateway that has not synced waits for. Does not end.
pub(super) async fn missing(cluster: &Cluster, screen: &Screen) {
    let mut pause = MISSING_FIRST;
    loop {
        sleep_until(Instant::now() + pause).await;
        pause = (2 * pause).min(MISSING_MOST);
        for what in cluster.missing() {
            screen.say(lines::warning(&format!("waiting for {what}; requests are answered 503 (starting)")));
        }
    }
}

/// Tells of every cold start.
pub(super) async fn cold_starts(registry: Arc<Registry>, tally: Tally, screen: Screen) {
    let mut read = Read::default();
    loop {
        for cold in registry.cold_starts().after(&mut read).await {
            tally.cold_start(&cold);
            if let Some(source) = cold.ready_by {
                tally.ready_by(source);
            }
            screen.say(lines::cold_start(&cold));
        }
    }
}
