//! The input and the output of a scaling decision: observed pods, desired replicas, and the reason.

use std::fmt;
use std::time::Duration;

use super::envoys::EnvoyId;
use super::report::{MAX_REPORTERS, Reporter};

/// The scale target as the driver last saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedTarget<T = ()> {
    /// Requested pods (`spec.replicas`).
    pub replicas: u32,
    /// Pods that are Ready.
    pub ready: u32,
    /// What scales it.
    pub owner: Owner,
    /// The resourceVersion or generation to send with the write, so that the write fails if this observation is outdated.
    pub token: T,
}

/// What scales the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// This autoscaler alone.
    Rouse,
    /// An HPA or a `ScaledObject`: Rouse only wakes the target from zero.
    Other,
}

/// The desired number of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Decision<T = ()> {
    /// Requested pods at the time of the decision.
    pub replicas: u32,
    /// Desired pods.
    pub desired: u32,
    /// The rule that decided.
    pub reason: ScaleReason,
    /// The token of the [`ObservedTarget`] that the decision is based on.
    pub token: T,
}

impl<T> Decision<T> {
    /// The number of pods to write, if it differs from the requested one.
    pub fn change(&self) -> Option<u32> {
        (self.desired != self.replicas).then_some(self.desired)
    }
}

/// The rule that decided; its Display is a sentence for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScaleReason {
    /// The average over the stable window.
    Load {
        /// Pods that the load needs.
        pods: u32,
    },
    /// Panic mode: a surge within the last stable window. Scales up only.
    Panic {
        /// Pods that the load needs.
        pods: u32,
    },
    /// At zero, and a request needs the service.
    Wake,
    /// At zero, and no request needs the service.
    AtZero,
    /// No load for `idle-after`.
    Idle {
        /// `idle-after`.
        after: Duration,
    },
    /// Idle, but ready for less than `idle-after` since the wake.
    JustWoken {
        /// `idle-after`.
        after: Duration,
    },
    /// No load, and the learned idle policy expects no request soon.
    Away,
    /// No load, and the learned idle policy expects a request soon.
    KeptWarm {
        /// It is expected before this time without load.
        until: Duration,
    },
    /// The learned idle policy expects a request: a pod is started before it comes.
    Ahead {
        /// It is expected after this time without load.
        from: Duration,
        /// It is expected before this time without load.
        to: Duration,
    },
    /// A new service starts with its initial scale.
    Initial,
    /// The schedule keeps the number up.
    Schedule,
    /// `min` keeps the number up.
    Min,
    /// `max` keeps the number down.
    Max,
    /// The max scale-up rate keeps the number down.
    UpRate,
    /// The max scale-down rate keeps the number up.
    DownRate,
    /// Fewer pods would each have more requests in flight than the target.
    InFlight {
        /// Requests, holds, streams and upgraded connections.
        present: u64,
    },
    /// An operator pinned it.
    Pinned {
        /// The pinned number of pods.
        pods: u32,
    },
    /// Another owner scales it.
    OwnedElsewhere,
    /// No scale-down: the autoscaler has not observed the service for a whole stable window yet.
    WarmingUp {
        /// The stable window.
        window: Duration,
    },
    /// No scale-down: a listed reporter sends no load reports.
    ReporterStale {
        /// The first of them.
        reporter: Reporter,
    },
    /// No scale-down: an Envoy may send it requests past the gateways, and reports no load.
    EnvoySilent {
        /// The first of them.
        envoy: EnvoyId,
    },
    /// No scale-down: no reporter is listed.
    NoReporters,
    /// No scale-down: more than [`MAX_REPORTERS`] reporters are listed.
    TooManyReporters,
}

impl ScaleReason {
    /// The reason in metrics and views.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Load { .. } => "load",
            Self::Panic { .. } => "panic",
            Self::Wake => "wake",
            Self::AtZero => "at_zero",
            Self::Idle { .. } => "idle",
            Self::JustWoken { .. } => "just_woken",
            Self::Away => "away",
            Self::KeptWarm { .. } => "kept_warm",
            Self::Ahead { .. } => "ahead",
            Self::Schedule => "schedule",
            Self::Initial => "initial",
            Self::Min => "min",
            Self::Max => "max",
            Self::UpRate => "up_rate",
            Self::DownRate => "down_rate",
            Self::InFlight { .. } => "in_flight",
            Self::Pinned { .. } => "pinned",
            Self::OwnedElsewhere => "owned_elsewhere",
            Self::WarmingUp { .. } => "warming_up",
            Self::ReporterStale { .. } => "reporter_silent",
            Self::EnvoySilent { .. } => "envoy_silent",
            Self::NoReporters => "no_reporters",
            Self::TooManyReporters => "too_many_reporters",
        }
    }
}

impl fmt::Display for ScaleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load { pods: 1 } => f.write_str("the load needs one pod"),
            Self::Load { pods } => write!(f, "the load needs {pods} pods"),
            Self::Panic { pods } => {
                write!(f, "panic mode after a surge: the load needs {pods} pods, and no pod is removed")
            }
            Self::Wake => f.write_str("at zero, and a request needs it"),
            Self::AtZero => f.write_str("at zero, and no request needs it"),
            Self::Idle { after } => {
                write!(f, "no request, hold, stream or upgraded connection for {after:?}")
            }
            Self::JustWoken { after } => {
                write!(f, "idle, but ready for less than {after:?} since the wake")
            }
            Self::Away => f.write_str("no load, and by the gaps between past requests, none is likely soon"),
            Self::KeptWarm { until } => {
                write!(
                    f,
                    "no load, but by past gaps, a request is likely within {} of the last",
                    rough(*until)
                )
            }
            Self::Ahead { from, to } => write!(
                f,
                "no load, but by past gaps, a request is likely {} to {} after the last",
                rough(*from),
                rough(*to)
            ),
            Self::Schedule => f.write_str("the load needs fewer pods, but this is what the schedule says"),
            Self::Initial => f.write_str("a new service starts with its initial scale"),
            Self::Min => f.write_str("the load needs fewer pods, but this is the minimum"),
            Self::Max => f.write_str("the load needs more pods, but this is the maximum"),
            Self::UpRate => {
                f.write_str("the load needs more pods, but the max scale-up rate allows no more yet")
            }
            Self::DownRate => {
                f.write_str("the load needs fewer pods, but the max scale-down rate allows no fewer yet")
            }
            Self::InFlight { present } => {
                write!(f, "{present} requests and connections in progress need these pods")
            }
            Self::Pinned { pods } => write!(f, "pinned at {pods} by an operator"),
            Self::OwnedElsewhere => f.write_str("an HPA or ScaledObject scales it"),
            Self::WarmingUp { window } => {
                write!(f, "not scaled down until its load has been observed for {window:?}")
            }
            Self::ReporterStale { reporter } => {
                write!(f, "not scaled down while {reporter} serves but sends no load reports")
            }
            Self::EnvoySilent { envoy } => {
                write!(f, "not scaled down while Envoy {envoy} may send it requests but reports no load")
            }
            Self::NoReporters => f.write_str("not scaled down: no gateway that reports load is known"),
            Self::TooManyReporters => {
                write!(f, "not scaled down while more than {MAX_REPORTERS} load reporters are listed")
            }
        }
    }
}

/// A learned time, no more exact than it is known: `12s`, `4m45s`, `1h13m`.
fn rough(time: Duration) -> String {
    let seconds = time.as_secs_f64().round();
    match Duration::try_from_secs_f64(seconds).unwrap_or(time).as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        seconds => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
    }
}
