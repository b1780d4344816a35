//! What the core asks of an engine: local processes, or Kubernetes.
//!
//! Facts come the other way: an engine writes slices, and the outcome of wakes, into the
//! [`Registry`](crate::registry::Registry).

use crate::endpoint::ServiceId;

/// Brings pods up.
pub trait Engine: Send + Sync {
    /// A request waits for this service. Called from the request path, so it must return at once: hand the wake
    /// over and report what came of it by [`Service::wake_failed`](crate::service::Service::wake_failed) or
    /// [`Service::wake_progressed`](crate::service::Service::wake_progressed).
    fn wake(&self, service: &ServiceId);
}
