//! The state of a watch, for metrics, `/readyz` and the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rouse_core::time::Moment;
use tokio::sync::watch;

/// How a watch is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchState {
    /// It has not seen anything yet.
    Starting,
    /// The server reports every change.
    Following,
    /// The server is out of reach, or refuses; the last known objects stand.
    Broken {
        /// Since when.
        since: Moment,
        /// The cause.
        why: String,
    },
    /// The cluster does not have this kind, which is as if there were none. Looked for again every 30 s.
    Missing,
}

/// A watch, as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchReport {
    /// The kind, like `EndpointSlice`.
    pub kind: &'static str,
    /// How it is doing.
    pub state: WatchState,
    /// When the server last sent anything: an object, a bookmark, a list.
    pub heard: Option<Moment>,
    /// Everything there was has been seen once, or there is no such kind.
    pub synced: bool,
    /// How often everything was listed.
    pub lists: u64,
}

/// The writer's side of a [`WatchReport`].
#[derive(Debug)]
pub(crate) struct WatchHealth {
    report: Mutex<WatchReport>,
    /// The server has sent something since the last list.
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
        // Whether it lives is for the watch to show.
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
