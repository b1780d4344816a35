//! The state machine of one pod of an app: starting, ready, draining, leaving, stopping.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::EndpointLoad;
use rouse_core::endpoint::{Endpoint, PodUid, State};
use rouse_core::time::Moment;

use super::pod_processes::PodProcesses;
use super::spec::Readiness;
use super::status::{LocalPodStatus, PodStage};

/// How often a leaving pod is checked.
pub(super) const LOOK: Duration = Duration::from_millis(10);
/// How long to wait for a request that picked the pod at the moment when it was removed from the slices.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// One pod.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) name: Arc<str>,
    pub(super) ordinal: u32,
    pub(super) uid: PodUid,
    /// Where its requests go: to the sidecar, if it has one, else to the app.
    pub(super) address: SocketAddr,
    /// The version of the app that it belongs to.
    pub(super) generation: u64,
    /// Its readiness check.
    pub(super) readiness: Readiness,
    /// The time of the decision to start it.
    pub(super) begun: Moment,
    /// `None` while it is being started.
    pub(super) processes: Option<Arc<PodProcesses>>,
    /// Its requests in flight; known once it was in a snapshot.
    pub(super) load: Option<Arc<EndpointLoad>>,
    /// It has been ready at least once.
    pub(super) served: bool,
    /// The stop order was sent.
    pub(super) told: bool,
    pub(super) stage: Stage,
    /// The last line of an earlier pod with the same name. Later lines are this pod's own.
    pub(super) line_before: Option<Arc<str>>,
}

/// The stage of a pod. Once a pod is draining, it never becomes ready again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not ready yet, or no longer ready.
    Starting {
        since: Moment,
    },
    Ready,
    /// Finishes its requests; takes new ones only if no other pod can.
    Draining {
        until: Moment,
    },
    /// Takes no new requests. Waits for a request that picked it just before.
    Leaving {
        from: Moment,
        until: Moment,
    },
    /// Ordered to stop.
    Stopping,
}

impl Pod {
    /// Whether it is not being removed.
    pub(super) fn stays(&self) -> bool {
        matches!(self.stage, Stage::Starting { .. } | Stage::Ready)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.load.as_ref().map_or(0, |load| load.in_flight())
    }

    /// Updates the stage from its endpoint in a snapshot. Returns whether it is ready for the first time.
    pub(super) fn see(&mut self, endpoint: &Endpoint, now: Moment) -> bool {
        self.load.get_or_insert_with(|| Arc::clone(&endpoint.load));
        match (self.stage, endpoint.state) {
            (Stage::Starting { .. }, State::Ready) => {
                self.stage = Stage::Ready;
                !std::mem::replace(&mut self.served, true)
            }
            (Stage::Ready, State::Starting) => {
                self.stage = Stage::Starting { since: now };
                false
            }
            _ => false,
        }
    }

    /// Begins to remove it.
    pub(super) fn remove(&mut self, now: Moment, grace: Duration) {
        self.stage = match self.stage {
            Stage::Ready => Stage::Draining { until: now + grace },
            // It failed its probe: it may still have requests, but must get no new ones.
            Stage::Starting { .. } if self.served => Stage::Leaving { from: now, until: now + grace },
            Stage::Starting { .. } => Stage::Stopping,
            leaving => leaving,
        };
    }

    /// Continues the removal. Returns whether the stage changed. `is_known`: all proxies that send requests to the pod know the
    /// present endpoints.
    pub(super) fn advance(&mut self, now: Moment, is_known: bool) -> bool {
        let idle = self.in_flight() == 0;
        let next = match self.stage {
            Stage::Draining { until } if (idle && is_known) || now >= until => {
                Stage::Leaving { from: now, until: now + LAST_REQUEST }
            }
            // Not at the first check: a request may have picked the pod and not be counted yet.
            Stage::Leaving { from, until } if now >= until || (idle && now >= from + LOOK) => Stage::Stopping,
            stage => stage,
        };
        std::mem::replace(&mut self.stage, next) != next
    }

    /// When [`Pod::advance`] is to be called again.
    pub(super) fn next_look(&self, now: Moment) -> Option<Moment> {
        matches!(self.stage, Stage::Draining { .. } | Stage::Leaving { .. }).then(|| now + LOOK)
    }

    /// Its status; `None` while it has no process.
    pub(super) fn status(&self) -> Option<LocalPodStatus> {
        let phase = match self.stage {
            Stage::Starting { .. } => PodStage::Starting,
            Stage::Ready => PodStage::Ready,
            Stage::Draining { .. } | Stage::Leaving { .. } => PodStage::Draining,
            Stage::Stopping => PodStage::Stopping,
        };
        Some(LocalPodStatus {
            name: Arc::clone(&self.name),
            uid: self.uid.clone(),
            address: self.address,
            pid: self.processes.as_ref()?.pid(),
            phase,
        })
    }
}
