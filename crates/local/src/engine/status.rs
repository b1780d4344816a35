//! The status of apps and pods, and the events of the local engine.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::{PodUid, ServiceId};
use rouse_core::scale::IdleExplanation;
use rouse_core::time::Moment;

/// The status of an app.
#[derive(Debug, Clone, PartialEq)]
pub struct AppStatus {
    /// Its service.
    pub service: ServiceId,
    /// The desired number of pods.
    pub desired: u32,
    /// The autoscaler's reason for that number.
    pub reason: String,
    /// The number of pods that an operator pinned it at.
    pub pinned: Option<u32>,
    /// Its pods, ordered by the number in their name, including those that are being removed.
    pub pods: Vec<LocalPodStatus>,
    /// What is wrong, as a text for people.
    pub trouble: Option<String>,
    /// Whether pods of an older version still exist.
    pub rolling: bool,
    /// By which policy it is scaled.
    pub policy: String,
    /// What its idle policy has learned, if it learns.
    pub idle: Option<IdleExplanation>,
}

/// The status of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPodStatus {
    /// `<app>-<ordinal>`.
    pub name: Arc<str>,
    /// Its UID.
    pub uid: PodUid,
    /// The address that it was given.
    pub address: SocketAddr,
    /// Its process id.
    pub pid: u32,
    /// Its stage.
    pub phase: PodStage,
}

/// The stage of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PodStage {
    /// It runs but is not ready yet, or no longer ready.
    Starting,
    /// It takes requests.
    Ready,
    /// It finishes its requests.
    Draining,
    /// It was ordered to stop.
    Stopping,
}

impl PodStage {
    /// The stage as people see it.
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
    /// The app was added.
    Declared,
    /// The app is at zero, and a request needs it.
    Wake,
    /// The desired number of pods changed.
    Scaled {
        /// The number before.
        from: u32,
        /// The new number.
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
        /// The address that it should listen on.
        address: SocketAddr,
    },
    /// A pod is ready for the first time.
    Ready {
        /// `<app>-<ordinal>`.
        pod: Arc<str>,
        /// The time since the decision to start it.
        after: Duration,
    },
    /// A pod is ordered to stop.
    Stopping {
        /// `<app>-<ordinal>`.
        pod: Arc<str>,
    },
    /// A pod and all its descendant processes have ended.
    Exited {
        /// `<app>-<ordinal>`.
        pod: Arc<str>,
        /// How it ended, as a text for people.
        exit: String,
        /// Whether it was being removed.
        expected: bool,
    },
    /// A pod could not be started.
    Failed {
        /// The reason, as a text for people.
        reason: String,
    },
    /// The last pod of an older version is gone.
    RolledOut,
    /// The app was removed from the configuration file, and its pods and its service are gone.
    Removed,
}
