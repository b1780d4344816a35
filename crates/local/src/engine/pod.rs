//! One pod of an app, as its owner sees it: from the decision to start it until its process is gone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::EndpointLoad;
use rouse_core::endpoint::{Endpoint, PodUid, State};
use rouse_core::time::Moment;

use super::spec::Readiness;
use super::status::{LocalPodStatus, PodStage};
use crate::process::Process;

/// How often a pod that leaves is looked at.
pub(super) const LOOK: Duration = Duration::from_millis(10);
/// How long a request may take that picked a pod at the very moment when it was taken off.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// One pod.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) name: Arc<str>,
    pub(super) ordinal: u32,
    pub(super) uid: PodUid,
    pub(super) address: SocketAddr,
    /// Which version of the app it is.
    pub(super) generation: u64,
    /// How it is asked whether it is ready.
    pub(super) readiness: Readiness,
    /// When it was decided to start it.
    pub(super) begun: Moment,
    /// `None` while it is being started.
    pub(super) process: Option<Arc<Process>>,
    /// What it carries; known once it was in a snapshot.
    pub(super) load: Option<Arc<EndpointLoad>>,
    /// It was ready once.
    pub(super) served: bool,
    /// It was told to stop.
    pub(super) told: bool,
    pub(super) stage: Stage,
    /// The last line that a namesake printed before it: what comes after is its own.
    pub(super) line_before: Option<Arc<str>>,
}

/// Where a pod is in its life. There is no way back from one on the way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not ready yet, or not any more.
    Starting {
        since: Moment,
    },
    Ready,
    /// Takes new requests only if no other pod can, and finishes those that it has.
    Draining {
        until: Moment,
    },
    /// Takes no new requests. One that picked it just before is waited for.
    Leaving {
        from: Moment,
        until: Moment,
    },
    /// Told to stop.
    Stopping,
}

impl Pod {
    /// Whether it is here to stay.
    pub(super) fn stays(&self) -> bool {
        matches!(self.stage, Stage::Starting { .. } | Stage::Ready)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.load.as_ref().map_or(0, |load| load.in_flight())
    }

    /// Takes in what a snapshot says of it. Answers whether it is ready for the first time.
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

    /// Begins to take it away.
    pub(super) fn remove(&mut self, now: Moment, grace: Duration) {
        self.stage = match self.stage {
            Stage::Ready => Stage::Draining { until: now + grace },
            // It failed its probe and may still work on something, but must get nothing new.
            Stage::Starting { .. } if self.served => Stage::Leaving { from: now, until: now + grace },
            Stage::Starting { .. } => Stage::Stopping,
            leaving => leaving,
        };
    }

    /// Goes on with taking it away. Answers whether the stage is another.
    pub(super) fn advance(&mut self, now: Moment) -> bool {
        let idle = self.in_flight() == 0;
        let next = match self.stage {
            Stage::Draining { until } if idle || now >= until => {
                Stage::Leaving { from: now, until: now + LAST_REQUEST }
            }
            // Not at the first look: a request may be between its pick and its count.
            Stage::Leaving { from, until } if now >= until || (idle && now >= from + LOOK) => Stage::Stopping,
            stage => stage,
        };
        std::mem::replace(&mut self.stage, next) != next
    }

    /// When [`Pod::advance`] is to be called again.
    pub(super) fn next_look(&self, now: Moment) -> Option<Moment> {
        matches!(self.stage, Stage::Draining { .. } | Stage::Leaving { .. }).then(|| now + LOOK)
    }

    /// `None` while there is no process.
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
            pid: self.process.as_ref()?.pid(),
            phase,
        })
    }
}
