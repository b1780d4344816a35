//! What the connections to all controllers share: the newest readings, and the beat at which they are sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rouse_core::endpoint::ServiceId;
use rouse_core::load_meter::{LoadKey, LoadSample};
use rouse_core::scale::{EnvoyId, EnvoyState};
use rouse_core::time::Moment;
use tokio::sync::watch;

use super::readings::{Cursor, Readings};
use crate::proto::report::Loads;

/// The readings, and who waits for them.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    readings: Mutex<Readings>,
    beat: watch::Sender<Beat>,
}

/// Counts what connections must react to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Beat {
    /// Readings changed.
    news: u64,
    /// A second has passed: a connection without news sends a heartbeat.
    pub(super) ticks: u64,
}

/// Tells controllers which services an xds replica has prepared for zero. Clones are the same.
#[derive(Debug, Clone)]
pub struct PreparedServices(pub(super) Arc<Outbox>);

impl PreparedServices {
    /// `PrepareZero` with this id is done; `None`: the service is not prepared any more.
    pub fn set(&self, service: &ServiceId, id: Option<u64>) {
        if self.0.readings().park(service, id) {
            self.0.beat.send_modify(|beat| beat.news += 1);
        }
    }
}

/// Tells controllers which Envoys an xds replica has, and whether their load is known. Clones are the same.
#[derive(Debug, Clone)]
pub struct EnvoyReports(pub(super) Arc<Outbox>);

impl EnvoyReports {
    /// These are all Envoys.
    pub fn set(&self, all: &BTreeMap<EnvoyId, EnvoyState>) {
        if self.0.readings().set_envoys(all) {
            self.0.beat.send_modify(|beat| beat.news += 1);
        }
    }
}

impl Outbox {
    fn readings(&self) -> MutexGuard<'_, Readings> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes readings that began with an edge.
    pub(super) fn edge(&self, samples: Vec<LoadSample>) {
        if self.readings().read(samples) {
            self.beat.send_modify(|beat| beat.news += 1);
        }
    }

    /// Takes the readings of each second.
    pub(super) fn tick(&self, samples: Vec<LoadSample>) {
        self.readings().read(samples);
        self.beat.send_modify(|beat| beat.ticks += 1);
    }

    /// Forgets what does not exist any more.
    pub(super) fn retain(&self, exists: impl Fn(&LoadKey) -> bool) {
        self.readings().retain(exists);
    }

    /// How many meters are known.
    pub(super) fn len(&self) -> usize {
        self.readings().len()
    }

    /// Where a new connection begins, and its beat.
    pub(super) fn subscribe(&self) -> (Cursor, watch::Receiver<Beat>) {
        // Before the readings: what changes in between is sent twice, and not never.
        let beat = self.beat.subscribe();
        (self.readings().cursor(), beat)
    }

    /// The next message of a connection.
    pub(super) fn next_message(&self, cursor: &mut Cursor, now: Moment) -> Loads {
        self.readings().next_message(cursor, now)
    }

    /// Whether there is something to send.
    pub(super) fn has_news(&self, cursor: &Cursor) -> bool {
        self.readings().has_news(cursor)
    }
}
