//! The last wake failure of each route, kept for its status until the service has ready pods.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rouse_core::endpoint::ServiceId;
use rouse_core::registry::Registry;
use rouse_core::service::Service;

use crate::objects::route::RouteKey;

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The wake failed, and may succeed later.
    Wake,
    /// The wake failed for a reason that waiting does not remove: requests are refused.
    Start,
    /// Pods are ready, but refuse connections.
    Connections,
}

/// Why the last wake of a route failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WakeFailure {
    /// The route object's UID: a new object of the same name has not failed.
    pub(super) uid: String,
    pub(super) service: ServiceId,
    pub(super) kind: FailureKind,
    pub(super) text: String,
}

/// The failures of all routes.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<HashMap<RouteKey, WakeFailure>>);

impl Failures {
    pub(super) fn get(&self, route: &RouteKey) -> Option<WakeFailure> {
        self.lock().get(route).cloned()
    }

    /// Records the outcome of the last wake of each route. Returns whether anything is new.
    pub(super) fn record(&self, outcomes: Vec<(RouteKey, Option<WakeFailure>)>) -> bool {
        let mut failures = self.lock();
        let mut changed = false;
        for (route, failure) in outcomes {
            changed |= failures.get(&route) != failure.as_ref();
            match failure {
                Some(failure) => drop(failures.insert(route, failure)),
                None => drop(failures.remove(&route)),
            }
        }
        changed
    }

    /// Forgets failures of routes for which `is_current` is false, and of services that have ready pods: another
    /// controller may have scaled them. Pods that refused connections may accept them again.
    pub(super) fn forget_past(
        &self,
        registry: &Registry,
        is_current: impl Fn(&RouteKey, &str, &ServiceId) -> bool,
    ) {
        self.lock().retain(|route, failure| {
            let is_over = |service: Arc<Service>| match failure.kind {
                FailureKind::Wake | FailureKind::Start => service.snapshot().ready(),
                FailureKind::Connections => service.refusing().is_empty(),
            };
            is_current(route, &failure.uid, &failure.service)
                && !registry.get(&failure.service).is_some_and(is_over)
        });
    }

    /// Whether a wake of `service` failed; `None`: of any service.
    pub(super) fn has(&self, service: Option<&ServiceId>) -> bool {
        let failures = self.lock();
        failures.values().any(|failure| service.is_none_or(|service| failure.service == *service))
    }

    /// Whether ready pods of some service refuse connections.
    pub(super) fn has_refused_connections(&self) -> bool {
        self.lock().values().any(|failure| failure.kind == FailureKind::Connections)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RouteKey, WakeFailure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
