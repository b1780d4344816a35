//! The status of each app, and the events of the engine.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::{PodUid, ServiceId};
use rouse_core::time::Moment;

/// How an app stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppStatus {
    /// Its service.
    pub service: ServiceId,
    /// How many pods there should be.
    pub desired: u32,
    /// Why so many: the autoscaler's sentence.
    pub reason: String,
    /// Where an operator pinned it.
    pub pinned: Option<u32>,
    /// Its processes, in the order of their names' numbers; also those on their way out.
    pub pods: Vec<LocalPodStatus>,
    /// What is wrong, for people.
    pub trouble: Option<String>,
    /// Pods of an older version are still there.
    pub rolling: bool,
}

/// How a pod stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPodStatus {
    /// `<app>-<ordinal>`.
    pub name: Arc<str>,
    /// Its incarnation.
    pub uid: PodUid,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its process id.
    pub pid: u32,
    /// Where it is in its life.
    pub phase: PodStage,
}

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PodStage {
    /// It runs, and is not ready yet, or not any more.
    Starting,
    /// It takes requests.
    Ready,
    /// It finishes its requests.
    Draining,
    /// It was told to stop.
    Stopping,
}

impl PodStage {
    /// The phase as people see it.
    pub const fn as_str(self) -> &'static str {
        match self {
            PodStage::Starting => "Starting",
            PodStage::Ready => "Ready",
            PodStage::Draining => "Draining",
            PodStage::Stopping => "Stopping",
        }
    }
}

impl fmt::Display for PodStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Something that happened to an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppEvent {
    /// Its service.
    pub service: ServiceId,
    /// When, by the engine's clock.
    pub at: Moment,
    /// What.
    pub what: AppEventKind,
}

/// What happened to an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppEventKind {
    /// It is new.
    Declared,
    /// A request wants it, and it is at zero.
    Wake,
    /// It should have another number of pods.
    Scaled {
        /// So many before.
        from: u32,
        /// So many now.
        to: u32,
        /// Why.
        reason: String,
    },
    /// A pod's process runs.
    Started {
        /// `<app>-<ordinal>`.
        pod: Arc<str>,
        /// Its process id.
        pid: u32,
        /// Where it is to listen.
        address: SocketAddr,
    },
    /// A pod takes requests, for the first time.
    Ready {
        /// `<app>-<ordinal>`.
        pod: Arc<str>,
        /// How long after it was decided to start it.
        after: Duration,
    },
    /// A pod is told to stop.
    Stopping {
        /// `<app>-<ordinal>`.
        pod: Arc<str>,
    },
    /// A pod is gone, and so is everything it started.
    Exited {
        /// `<app>-<ordinal>`.
        pod: Arc<str>,
        /// How, for people.
        exit: String,
        /// It was on its way out.
        expected: bool,
    },
    /// A pod could not be started.
    Failed {
        /// Why, for people.
        reason: String,
    },
    /// The last pod of an older version is gone.
    RolledOut,
    /// It is not in the file any more, its pods are gone and so is its service.
    Removed,
}
