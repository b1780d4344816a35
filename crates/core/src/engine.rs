//! The `Engine` trait: how the core requests a pod from the local engine or from Kubernetes.
//!
//! The engine reports in the other direction: it writes slices and the outcome of wakes into the
//! [`Registry`](crate::registry::Registry).

use crate::endpoint::ServiceId;

/// Starts pods.
pub trait Engine: Send + Sync {
    /// Wakes a service, because a request waits for it. Called on the request path, so it must not block: start the work
    /// and report its outcome with [`Service::wake_failed`](crate::service::Service::wake_failed) or
    /// [`Service::wake_progressed`](crate::service::Service::wake_progressed).
    fn wake(&self, service: &ServiceId);
}
