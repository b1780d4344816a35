//! The state of one watch, for metrics, `/readyz` and the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rouse_core::time::Moment;
use tokio::sync::watch;

/// The state of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchState {
    /// It has not started to watch yet.
    Starting,
    /// The server reports every change.
    Following,
    /// The API server cannot be reached, or rejects the request. The last known objects stay in use.
    Broken {
        /// When it broke.
        since: Moment,
        /// The cause.
        why: String,
    },
    /// The cluster does not have this kind, which counts as an empty list. It is listed again with a backoff of 1 to 30 s.
    Missing,
}

/// The state of a watch and its history, for metrics, `/readyz` and the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchReport {
    /// The kind, like `EndpointSlice`.
    pub kind: &'static str,
    /// Its state.
    pub state: WatchState,
    /// When the server last sent anything: an object, a bookmark, a list.
    pub heard: Option<Moment>,
    /// Whether all objects were listed once, or the cluster does not have the kind.
    pub synced: bool,
    /// How many lists were completed.
    pub lists: u64,
}

/// The writer's side of a [`WatchReport`].
#[derive(Debug)]
pub(crate) struct WatchHealth {
    report: Mutex<WatchReport>,
    /// Whether the server has sent anything since the last list.
    lived: AtomicBool,
    /// Notified when the state or `synced` changes.
    changes: watch::Sender<()>,
}

impl WatchHealth {
    pub(crate) fn new(kind: &'static str, changes: watch::Sender<()>) -> Self {
        let report = WatchReport { kind, state: WatchState::Starting, heard: None, synced: false, lists: 0 };
        Self { report: Mutex::new(report), lived: AtomicBool::new(false), changes }
    }

    pub(crate) fn report(&self) -> WatchReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut WatchReport)) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let before = (report.state.clone(), report.synced);
        change(&mut report);
        let changed = before != (report.state.clone(), report.synced);
        drop(report);
        if changed {
            self.changes.send_replace(());
        }
    }

    pub(crate) fn heard(&self, now: Moment) {
        self.lived.store(true, Ordering::Relaxed);
        self.report.lock().unwrap_or_else(PoisonError::into_inner).heard = Some(now);
    }

    pub(crate) fn listed(&self, now: Moment) {
        // A list does not show that watches work: only an event or a bookmark does.
        self.lived.store(false, Ordering::Relaxed);
        self.change(|report| {
            (report.heard, report.synced) = (Some(now), true);
            report.lists += 1;
        });
    }

    pub(crate) fn following(&self, now: Moment) {
        self.change(|report| {
            report.heard = Some(now);
            report.state = WatchState::Following;
        });
    }

    pub(crate) fn broken(&self, now: Moment, why: String) {
        self.change(|report| {
            let since = match report.state {
                WatchState::Broken { since, .. } => since,
                _ => now,
            };
            report.state = WatchState::Broken { since, why };
        });
    }

    pub(crate) fn missing(&self, now: Moment) {
        self.change(|report| {
            (report.heard, report.synced) = (Some(now), true);
            report.state = WatchState::Missing;
        });
    }

    /// Whether the server has sent anything since the last list.
    pub(crate) fn lived(&self) -> bool {
        self.lived.load(Ordering::Relaxed)
    }
}
