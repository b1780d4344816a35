//! Connects the modules of a cluster: implements the interface through which each of them uses the others.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use rouse_core::endpoint::ServiceId;
use rouse_core::registry::Registry;
use rouse_core::snapshot::ConcurrencyLimits;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::endpoints::{EndpointController, EndpointListener};
use crate::objects::route::{RouteKey, RouteSpec};
use crate::objects::service_summary::ServiceSummary;
use crate::routes::plan::Findings;
use crate::routes::{EventReason, IsCurrent, RouteContext, RoutePlanner};
use crate::wake::{FailureKind, WakeContext, Waker};

/// Connects the modules of a cluster.
pub(super) struct Wiring {
    pub(super) registry: Arc<Registry>,
    pub(super) endpoints: Arc<EndpointController>,
    pub(super) planner: Arc<RoutePlanner>,
    pub(super) waker: Arc<Waker>,
}

impl EndpointListener for Wiring {
    fn services_changed(&self) {
        self.planner.refresh();
    }

    fn endpoints_changed(&self, service: Option<&ServiceId>) {
        // Only if the status of a route shows a failed wake, which may be over now: with many routes, a compilation
        // takes long.
        if self.waker.has_failed(service) {
            self.planner.refresh();
        }
    }
}

impl RouteContext for Wiring {
    fn service(&self, id: &ServiceId) -> Option<Arc<ServiceSummary>> {
        self.endpoints.service(id)
    }

    fn ignores_manual_endpoints(&self, id: &ServiceId) -> bool {
        self.endpoints.ignores_manual_endpoints(id)
    }

    fn blocks_cluster_ip(&self, id: &ServiceId, now: Instant) -> bool {
        self.endpoints.blocks_cluster_ip(id, now)
    }

    fn next_block_change(&self, now: Instant) -> Option<Instant> {
        self.endpoints.next_block_change(now)
    }

    fn block_changes(&self) -> Arc<Notify> {
        self.endpoints.block_changes()
    }

    fn set_spreads(&self, spreads: HashMap<ServiceId, ConcurrencyLimits>) -> bool {
        self.endpoints.set_spreads(spreads)
    }

    fn retain_routes(&self, present: &HashSet<&RouteKey>) {
        self.waker.retain_targets(|route| present.contains(route));
    }

    fn forget_past_failures(&self, is_current: &IsCurrent<'_>) {
        self.waker.forget_past_failures(&self.registry, is_current);
    }

    fn has_refused_connections(&self) -> bool {
        self.waker.has_refused_connections()
    }

    fn add_wake_findings(&self, route: &RouteKey, findings: &mut Findings) {
        findings.no_scale_target = self.waker.missing_target(route);
        if let Some((kind, text)) = self.waker.failure(route) {
            let finding = match kind {
                FailureKind::Wake => &mut findings.wake_failure,
                FailureKind::Start => &mut findings.start_failure,
                FailureKind::Connections => &mut findings.unreachable,
            };
            *finding = Some(text);
        }
    }
}

impl WakeContext for Wiring {
    fn service(&self, id: &ServiceId) -> Option<Arc<ServiceSummary>> {
        self.endpoints.service(id)
    }

    fn selected_pods(&self, namespace: &str, selector: &BTreeMap<String, String>) -> u32 {
        self.endpoints.selected_pods(namespace, selector)
    }

    fn uid(&self, route: &RouteKey) -> Option<String> {
        self.planner.uid(route)
    }

    fn woken(&self, routes: &[Arc<RouteSpec>], message: &str) {
        self.planner.put_events(routes, EventReason::Woken, message);
    }

    fn wake_failed(&self, routes: &[Arc<RouteSpec>], message: &str) {
        self.planner.put_events(routes, EventReason::WakeFailed, message);
    }

    fn findings_changed(&self) {
        self.planner.refresh();
    }
}
