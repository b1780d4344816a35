//! How long the parts of a request may take, and the deadlines of one request that follow from it.

use std::time::Duration;

use rouse_core::hold::HoldLimits;
use rouse_core::time::Moment;

/// How long the parts of a request may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until a pod is ready; `None`: as long as the request may take.
    pub readiness: Option<Duration>,
    /// The whole request; `None`: no limit.
    pub request: Option<Duration>,
    /// From when it was sent until the response begins; `None`: no limit of its own.
    pub response_header: Option<Duration>,
    /// One attempt to connect.
    pub connect: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            readiness: None,
            request: None,
            response_header: Some(Duration::from_mins(5)),
            connect: Duration::from_millis(500),
        }
    }
}

/// The deadlines of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestDeadlines {
    pub(crate) timeouts: Timeouts,
    /// When the request stops waiting for a pod.
    pub(crate) readiness: Moment,
    /// When the request must be over.
    pub(crate) end: Option<Moment>,
}

impl RequestDeadlines {
    pub(crate) fn new(bounds: &HoldLimits, timeouts: Timeouts, began: Moment) -> Self {
        let end = timeouts.request.map(|limit| began + limit);
        let readiness = timeouts.readiness.map(|limit| began + limit);
        let wanted = readiness.into_iter().chain(end).min();
        Self { timeouts, readiness: bounds.deadline(began, wanted), end }
    }

    /// When half of the time for the whole request is over.
    pub(crate) fn half(&self) -> Option<Moment> {
        self.end.zip(self.timeouts.request).map(|(end, limit)| end - limit / 2)
    }
}
