//! Holds: limits on requests that wait for a slot, and the errors of requests that get none.
//!
//! Each port of a service has one FIFO wait queue. The thread that brings capacity (a new snapshot, a slot given back) gives
//! slots to the first requests in the queue, under the queue's lock, so no request is woken only to lose a race. A new
//! request joins the end of the queue while others wait.

mod wait_queue;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use wait_queue::{Grant, Taken, Ticket, WaitQueue, Waiter};

use crate::start_failure::StartFailure;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::time::Moment;

/// Why a request got no slot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// The request reached its deadline.
    #[error("no pod took the request before its deadline")]
    Deadline,
    /// The start failed for good: waiting longer does not help.
    #[error("the service cannot be started: {0}")]
    StartFailed(Arc<StartFailure>),
    /// Every pod that takes requests has refused connections for [`REFUSED_FOR`](crate::start_failure::REFUSED_FOR), and none is
    /// starting.
    #[error("every pod refuses connections")]
    Refused,
    /// A limit on held requests is reached.
    #[error("too many requests are held already: the limit on {0} is reached")]
    QueueFull(HoldLimit),
    /// The service has no such port.
    #[error("the service has no such port")]
    NoSuchPort,
    /// The service was deleted.
    #[error("the service was deleted")]
    ServiceGone,
    /// This process is shutting down.
    #[error("this gateway is shutting down")]
    ShuttingDown,
}

/// Which limit on holds was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldLimit {
    /// Holds of one service.
    Service,
    /// Holds of all services.
    Total,
    /// Bytes that all holds keep in memory.
    Bytes,
}

impl fmt::Display for HoldLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HoldLimit::Service => "held requests of this service",
            HoldLimit::Total => "held requests of all services",
            HoldLimit::Bytes => "bytes of held requests in memory",
        })
    }
}

/// The limits on held requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldLimits {
    /// Held requests of one service.
    pub per_service: usize,
    /// Held requests of all services. One service may have at most a quarter of them.
    pub total: usize,
    /// Bytes that all held requests keep in memory.
    pub bytes: usize,
    /// The longest wait, even if the request has a later deadline.
    pub max_wait: Duration,
}

impl HoldLimits {
    /// The deadline of a hold that begins now: `wanted`, but at most the longest wait from now.
    pub fn deadline(&self, now: Moment, wanted: Option<Moment>) -> Moment {
        let latest = now + self.max_wait;
        wanted.map_or(latest, |wanted| wanted.min(latest))
    }
}

impl Default for HoldLimits {
    fn default() -> Self {
        Self { per_service: 10_000, total: 40_000, bytes: 256 << 20, max_wait: Duration::from_mins(5) }
    }
}

/// Counts the held requests of all services, and their bytes, against the limits.
#[derive(Debug)]
pub(crate) struct Budget {
    bounds: HoldLimits,
    holds: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

/// Counts one held request against the limits. Dropping it gives the share back.
#[derive(Debug)]
pub(crate) struct Permit {
    _service: Share,
    _total: Share,
    _bytes: Share,
}

impl Budget {
    pub(crate) fn new(bounds: HoldLimits) -> Self {
        Self { bounds, holds: Arc::default(), bytes: Arc::default() }
    }

    /// Admits a held request that keeps `bytes` in memory; `service` counts the held requests of its service.
    pub(crate) fn admit(&self, service: &Arc<AtomicUsize>, bytes: usize) -> Result<Permit, AcquireError> {
        let HoldLimits { per_service, total, bytes: most, .. } = self.bounds;
        let full = |bound: HoldLimit| move || AcquireError::QueueFull(bound);
        Ok(Permit {
            _service: Share::of(service, 1, per_service.min(total / 4))
                .ok_or_else(full(HoldLimit::Service))?,
            _total: Share::of(&self.holds, 1, total).ok_or_else(full(HoldLimit::Total))?,
            _bytes: Share::of(&self.bytes, bytes, most).ok_or_else(full(HoldLimit::Bytes))?,
        })
    }

    pub(crate) fn holds(&self) -> usize {
        self.holds.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// An amount added to a counter, and subtracted again on drop.
#[derive(Debug)]
struct Share {
    of: Arc<AtomicUsize>,
    amount: usize,
}

impl Share {
    fn of(used: &Arc<AtomicUsize>, amount: usize, most: usize) -> Option<Self> {
        let add = |used: usize| used.checked_add(amount).filter(|sum| *sum <= most);
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Self { of: Arc::clone(used), amount })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.fetch_sub(self.amount, Ordering::Relaxed);
    }
}
