//! Cluster events for the operator's log, and the channel that carries them.

use std::sync::Arc;

use rouse_core::endpoint::ServiceId;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::client::Watches;
use crate::client::watch::{WatchReport, WatchState};

/// How far a reader may lag behind before it misses events.
const CAPACITY: usize = 1024;

/// An event for the operator's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterEvent {
    /// The state of a watch has changed.
    Watch(WatchReport),
    /// An object, or a part of it, cannot be used. Says which and why.
    LeftOut(String),
    /// A workload was scaled from 0 to this many pods.
    Woken(ServiceId, u32),
    /// A wake failed.
    WakeFailed {
        /// The service that was to be woken.
        service: ServiceId,
        /// The cause.
        why: String,
        /// The same failure was reported before, and nothing has changed since.
        again: bool,
    },
    /// Every ready pod of a service refuses connections. Says which pods.
    Unreachable(ServiceId, String),
    /// A write to the API server failed. Says what and why.
    WriteFailed(String),
    /// The `EndpointSlice`s of a service are not as they should be. The sync is repeated.
    SliceSyncFailed {
        /// The service.
        service: ServiceId,
        /// The cause.
        why: String,
        /// The same failure was reported before, and nothing has changed since.
        again: bool,
    },
    /// Whether this process leads, which has just changed.
    Leader(bool),
    /// The autoscaler scaled a workload.
    Scaled(ScaleChange),
    /// The autoscaler could not scale a workload.
    ScaleFailed {
        /// What was to be done.
        change: ScaleChange,
        /// Why it was not.
        failure: String,
    },
}

/// A change of the number of pods of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScaleChange {
    /// The workload: `Deployment cart in shop`.
    pub workload: String,
    /// The number before.
    pub from: u32,
    /// The number after.
    pub to: u32,
    /// The rule that decided it, as a sentence.
    pub why: String,
}

/// Sends events to all readers. Clones send into the same channel.
#[derive(Debug, Clone)]
pub(crate) struct EventSender(broadcast::Sender<ClusterEvent>);

impl EventSender {
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(CAPACITY))
    }

    pub(crate) fn send(&self, event: ClusterEvent) {
        // An error means that there is no reader.
        drop(self.0.send(event));
    }

    /// All events from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<ClusterEvent> {
        self.0.subscribe()
    }

    /// Sends an event whenever the state of a watch changes, until `cancel`.
    pub(crate) async fn report_watches(self, watches: Arc<Watches>, cancel: CancellationToken) {
        let mut changes = watches.changes();
        let mut known: Vec<Option<WatchState>> = vec![None; watches.reports().len()];
        loop {
            for (report, known) in watches.reports().into_iter().zip(&mut known) {
                if known.as_ref() != Some(&report.state) {
                    *known = Some(report.state.clone());
                    self.send(ClusterEvent::Watch(report));
                }
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                _ = changes.changed() => {}
            }
        }
    }
}
