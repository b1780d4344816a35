//! The input and the output of a scaling decision: observed pods, desired replicas, and the reason.

use std::fmt;
use std::time::Duration;

use super::report::{MAX_REPORTERS, Reporter};

/// The scale target as the driver last saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedTarget<T = ()> {
    /// Pods asked for (`spec.replicas`).
    pub replicas: u32,
    /// Pods that are Ready.
    pub ready: u32,
    /// What scales it.
    pub owner: Owner,
    /// What the write must carry so that it fails if this is out of date: a resourceVersion, a generation.
    pub token: T,
}

/// What scales the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// This autoscaler alone.
    Rouse,
    /// An HPA or a `ScaledObject`: only a wake from zero is ours.
    Other,
}

/// How many pods there should be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Decision<T = ()> {
    /// Pods asked for when this was decided.
    pub replicas: u32,
    /// Pods to ask for.
    pub desired: u32,
    /// The rule that decided.
    pub reason: ScaleReason,
    /// The token of the [`ObservedTarget`] that this was decided on.
    pub token: T,
}

impl<T> Decision<T> {
    /// What to write, if anything.
    pub fn change(&self) -> Option<u32> {
        (self.desired != self.replicas).then_some(self.desired)
    }
}

/// The rule that decided; its Display is a sentence for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScaleReason {
    /// The average over the stable window.
    Load {
        /// Pods that it takes.
        pods: u32,
    },
    /// A surge within the last stable window: up only.
    Panic {
        /// Pods that the load takes.
        pods: u32,
    },
    /// A request waits for a service that is at zero.
    Wake,
    /// At zero, and no request waits for it.
    AtZero,
    /// Nothing to do for as long as `idle-after`.
    Idle {
        /// `idle-after`.
        after: Duration,
    },
    /// Idle, but not yet ready for `idle-after` since the wake.
    JustWoken {
        /// `idle-after`.
        after: Duration,
    },
    /// A new service starts with its initial scale.
    Initial,
    /// `min` holds it up.
    Min,
    /// `max` holds it down.
    Max,
    /// The max scale-up rate holds it down.
    UpRate,
    /// The max scale-down rate holds it up.
    DownRate,
    /// Fewer pods would have more than they are meant to.
    InFlight {
        /// Requests, holds, streams and upgraded connections.
        present: u64,
    },
    /// An operator pinned it.
    Pinned {
        /// Where.
        pods: u32,
    },
    /// Another owner scales it.
    OwnedElsewhere,
    /// No scale-down: the autoscaler has not watched for a whole stable window.
    WarmingUp {
        /// The stable window.
        window: Duration,
    },
    /// No scale-down: a reporter is listed and silent.
    ReporterStale {
        /// The first of them.
        reporter: Reporter,
    },
    /// No scale-down: no reporter is listed.
    NoReporters,
    /// No scale-down: more reporters are listed than are kept apart.
    TooManyReporters,
}

impl fmt::Display for ScaleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load { pods: 1 } => f.write_str("the load takes one pod"),
            Self::Load { pods } => write!(f, "the load takes {pods} pods"),
            Self::Panic { pods } => write!(f, "a surge: the load takes {pods} pods, and none is taken away"),
            Self::Wake => f.write_str("a request wants a service that is at zero"),
            Self::AtZero => f.write_str("at zero, and no request wants it"),
            Self::Idle { after } => {
                write!(f, "no request, hold, stream or upgraded connection for {after:?}")
            }
            Self::JustWoken { after } => {
                write!(f, "idle, but not yet ready for {after:?} since it was woken")
            }
            Self::Initial => f.write_str("a new service starts with its initial scale"),
            Self::Min => f.write_str("the load takes less, but this is the minimum"),
            Self::Max => f.write_str("the load takes more, but this is the maximum"),
            Self::UpRate => f.write_str("the load takes more, but this is the most that one step may add"),
            Self::DownRate => {
                f.write_str("the load takes less, but this is the most that one step may remove")
            }
            Self::InFlight { present } => write!(f, "{present} requests and connections need these pods"),
            Self::Pinned { pods } => write!(f, "pinned at {pods} by an operator"),
            Self::OwnedElsewhere => f.write_str("an HPA or ScaledObject scales it"),
            Self::WarmingUp { window } => write!(f, "not scaled down before it was watched for {window:?}"),
            Self::ReporterStale { reporter } => write!(f, "not scaled down while {reporter} serves but is silent"),
            Self::NoReporters => f.write_str("not scaled down: no gateway is listed that would report load"),
            Self::TooManyReporters => {
                write!(f, "not scaled down while more than {MAX_REPORTERS} reporters are listed")
            }
        }
    }
}
