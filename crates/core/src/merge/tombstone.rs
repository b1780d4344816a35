//! Tombstones of removed pods, so that a late push or a stale slice does not bring a removed pod back.

use std::collections::HashMap;

use super::pod::{Pod, Pushed};
use crate::endpoint::PodUid;
use crate::time::Moment;

/// How many tombstones a service keeps. At the limit the oldest is dropped.
const MAX_TOMBSTONES: usize = 1024;

/// The tombstones of one service.
#[derive(Debug, Default)]
pub(super) struct Tombstones(HashMap<PodUid, Tombstone>);

/// What is remembered about one removed pod.
#[derive(Debug)]
pub(super) struct Tombstone {
    /// Until then its pushes are stale, and slices that list it again find it terminating if it was.
    until: Moment,
    /// Its address was taken over: the pod never comes back, even if a slice lists it again much later.
    pub(super) replaced: bool,
    pub(super) terminated: bool,
    /// Its last push. Without it, an older push that arrives late would count as the newest.
    pub(super) push: Option<Pushed>,
}

impl Tombstone {
    fn remembered(&self, now: Moment) -> bool {
        self.replaced || now < self.until
    }
}

impl Tombstones {
    /// The tombstone of a pod, unless it has expired.
    pub(super) fn get(&self, uid: &PodUid, now: Moment) -> Option<&Tombstone> {
        self.0.get(uid).filter(|tombstone| tombstone.remembered(now))
    }

    /// Adds the tombstone of a removed pod, valid until `until`. An endpoint without a pod has no UID and gets none.
    pub(super) fn add(&mut self, pod: Pod, until: Moment) {
        let Some(id) = pod.id.as_ref() else { return };
        if self.0.len() >= MAX_TOMBSTONES {
            let oldest = self.0.iter().min_by_key(|(_, tombstone)| tombstone.until);
            let oldest = oldest.map(|(uid, _)| uid.clone());
            oldest.map(|uid| self.0.remove(&uid));
        }
        let uid = id.uid.clone();
        let tombstone = Tombstone {
            until,
            replaced: pod.replaced,
            terminated: pod.terminating(),
            push: pod.push.map(|push| Pushed { until: None, ..push }),
        };
        self.0.insert(uid, tombstone);
    }

    /// Drops the tombstones that have expired.
    pub(super) fn expire(&mut self, now: Moment) {
        self.0.retain(|_, tombstone| tombstone.remembered(now));
    }

    /// When the next tombstone expires.
    pub(super) fn next_expiry(&self) -> Option<Moment> {
        self.0.values().filter(|tombstone| !tombstone.replaced).map(|tombstone| tombstone.until).min()
    }
}
