//! Measures how long changes of pods take until the snapshots of their services show them.
//!
//! A change has two witnesses: the pod, whose status says when it happened, and the slice, with which it is published. Their
//! watches are independent, so either may come first. Kubernetes' times have a resolution of one second.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as Metrics;
use rouse_core::endpoint::{PodUid, Slice, State};
use rouse_core::snapshot::{PortView, Snapshot};

use super::pod_index::PodUpdate;

/// The buckets in seconds. Finer ones would show nothing: see the resolution.
const SECONDS: [f64; 8] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0];

/// A change of a pod that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edge {
    /// It became ready.
    Ready,
    /// Its deletion was requested.
    Terminating,
}

const EDGES: [(Edge, &str); 2] = [(Edge::Ready, "ready"), (Edge::Terminating, "terminating")];

/// When the changes of a pod happened, as its status says: seconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PodTimes {
    /// Since when it is ready; `None` while it is not.
    pub(crate) ready: Option<u64>,
    /// When its deletion was requested.
    pub(crate) terminating: Option<u64>,
}

impl PodTimes {
    fn of(self, edge: Edge) -> Option<u64> {
        match edge {
            Edge::Ready => self.ready,
            Edge::Terminating => self.terminating,
        }
    }
}

/// What is known of one change of one pod.
#[derive(Debug, Default)]
struct Seen {
    /// When it happened; `None`: it did not, or is over.
    at: Option<u64>,
    /// Whether it was seen as it happened, and no snapshot has shown it since.
    pending: bool,
    /// Whether the slices say it.
    shown: bool,
    /// Since when. `None`: from another source, before the slices, or from a list.
    since: Option<Duration>,
}

/// The changes of one pod, as in [`EDGES`].
type Changes = [Seen; 2];

/// Changes that a slice publishes.
pub(super) type News = Vec<(PodUid, Edge)>;

/// Measures the changes of all pods.
pub(crate) struct PropagationMeter {
    pods: Mutex<HashMap<PodUid, Changes>>,
    seconds: Family<[(&'static str, &'static str); 1], Histogram>,
    time_of_day: fn() -> SystemTime,
}

impl PropagationMeter {
    pub(crate) fn new(time_of_day: fn() -> SystemTime) -> Self {
        let make: fn() -> Histogram = || Histogram::new(SECONDS);
        let seconds = Family::new_with_constructor(make);
        for (_, edge) in EDGES {
            // The first sample of a series that appears later has no rate.
            drop(seconds.get_or_create(&[("edge", edge)]));
        }
        Self { pods: Mutex::default(), seconds, time_of_day }
    }

    pub(crate) fn register(&self, metrics: &mut Metrics) {
        metrics.register(
            "rouse_endpoint_propagation_seconds",
            "Time from a change of a pod, as its status says, to the snapshot that shows it",
            self.seconds.clone(),
        );
    }

    /// A pod was added or has changed.
    pub(super) fn pod_put(&self, pod: &PodUpdate) {
        let Some(uid) = pod.any_uid() else { return };
        if pod.uid().is_none() {
            // It has ended.
            self.lock().remove(uid);
            return;
        }
        let mut pods = self.lock();
        let changes = pods.entry(uid.clone()).or_default();
        for ((edge, _), seen) in EDGES.into_iter().zip(changes) {
            let at = pod.times().of(edge);
            if seen.at == at {
                continue;
            }
            (seen.at, seen.pending) = (at, at.is_some());
            if seen.shown
                && let Some(at) = at
            {
                seen.pending = false;
                self.observe(edge, at, seen.since);
            }
        }
    }

    /// A pod is gone.
    pub(super) fn pod_removed(&self, uid: &PodUid) {
        self.lock().remove(uid);
    }

    /// All pods were listed. Changes that are first seen in a list are not measured: they may be old.
    pub(super) fn pods_listed(&self, all: &[PodUpdate]) {
        let mut before = std::mem::take(&mut *self.lock());
        let listed = all.iter().filter_map(|pod| {
            let uid = pod.uid()?;
            let mut changes = before.remove(uid).unwrap_or_default();
            for ((edge, _), seen) in EDGES.into_iter().zip(&mut changes) {
                let at = pod.times().of(edge);
                seen.pending &= seen.at == at;
                seen.at = at;
            }
            Some((uid.clone(), changes))
        });
        let listed = listed.collect();
        *self.lock() = listed;
    }

    /// What `slice` says and the slices before it did not. The caller publishes it, and then calls
    /// [`PropagationMeter::published`].
    pub(super) fn news(&self, slice: &Slice) -> News {
        let (mut pods, mut news) = (self.lock(), News::new());
        for endpoint in &slice.endpoints {
            let Some(uid) = endpoint.pod.as_ref().map(|pod| &pod.uid) else { continue };
            let Some(changes) = pods.get_mut(uid) else { continue };
            for ((edge, _), seen) in EDGES.into_iter().zip(changes) {
                let says = match edge {
                    Edge::Ready => endpoint.conditions.state() == State::Ready,
                    Edge::Terminating => endpoint.conditions.terminating == Some(true),
                };
                if !says {
                    seen.shown = false;
                } else if !seen.shown {
                    news.push((uid.clone(), edge));
                }
            }
        }
        news
    }

    /// The news are in the snapshot of the service. `before` is the snapshot before that: a push or a probe may have
    /// published the change earlier.
    pub(super) fn published(&self, news: News, before: &Snapshot) {
        if news.is_empty() {
            return;
        }
        let now = (self.time_of_day)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut pods = self.lock();
        for (uid, edge) in news {
            let Some(changes) = pods.get_mut(&uid) else { continue };
            let place = EDGES.iter().position(|(known, _)| *known == edge);
            let Some(seen) = place.and_then(|place| changes.get_mut(place)) else { continue };
            (seen.shown, seen.since) = (true, (!shows(before, &uid, edge)).then_some(now));
            if std::mem::take(&mut seen.pending)
                && let Some(at) = seen.at
            {
                self.observe(edge, at, seen.since);
            }
        }
    }

    fn observe(&self, edge: Edge, at: u64, shown: Option<Duration>) {
        // A clock that is ahead of ours, or another source that was faster, gives zero.
        let took = shown.unwrap_or_default().saturating_sub(Duration::from_secs(at));
        let name = EDGES.iter().find(|(known, _)| *known == edge).map_or("", |(_, name)| name);
        self.seconds.get_or_create(&[("edge", name)]).observe(took.as_secs_f64());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, Changes>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PropagationMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PropagationMeter")
    }
}

/// Whether a snapshot shows a change of a pod.
fn shows(snapshot: &Snapshot, pod: &PodUid, edge: Edge) -> bool {
    let mut endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
    endpoints.any(|endpoint| {
        endpoint.pod.as_ref().is_some_and(|known| known.uid == *pod)
            && match edge {
                Edge::Ready => endpoint.state == State::Ready,
                Edge::Terminating => matches!(endpoint.state, State::Draining | State::Gone),
            }
    })
}
