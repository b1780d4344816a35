//! Cluster events for the operator's log, and the channel that carries them.

use rouse_core::endpoint::ServiceId;
use tokio::sync::broadcast;

use crate::client::watch::WatchReport;

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
}
