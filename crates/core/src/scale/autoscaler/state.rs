//! What an autoscaler remembers of its service: whether there are pods, panic mode, pins, the initial scale, the present step.

use crate::time::Moment;

/// Whether there are pods, as observed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Life {
    Zero {
        /// A request has arrived since the service is at zero. A flag, not a time: a request at the very moment of a decision
        /// must count.
        asked: bool,
        /// The last decision starts a pod ahead of a request.
        ahead: bool,
    },
    Up {
        woken: Moment,
        ready_since: Option<Moment>,
        cause: UpCause,
    },
}

impl Life {
    pub(super) const ZERO: Self = Self::Zero { asked: false, ahead: false };
}

/// Why there are pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpCause {
    /// A request, which is not served yet, or another reason.
    Woken,
    /// A request is expected.
    Ahead,
    /// There was a request while a pod was ready.
    Served,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ScaleMode {
    Calm,
    Panic { last_surge: Moment },
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Pin {
    Auto,
    At(u32),
    /// Pinned at 0, but pods are still observed.
    ToZero,
    /// Pinned at 0, and at zero. The next request ends the pin.
    Parked,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Initial {
    Due { until: Moment },
    Done,
}

/// One step: the pods that the rates are relative to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) since: Moment,
    /// Ready pods at the start.
    pub(super) ready: u32,
    /// The most pods, requested or ready, that were observed in this step.
    pub(super) most: u32,
    /// `ready` and `most` of a step that would start now.
    pub(super) next: (u32, u32),
}
