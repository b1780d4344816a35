//! Compiles route objects, with the `ConfigMap`s and Secrets that they name, into plans; decides host ownership; writes status
//! and Events.
//!
//! `RoutePlanner` owns the route objects and what was decided about them. `store` keeps the last good version of each
//! object. [`claims`] decides which namespace owns which host, by the times that [`claim_record`] keeps in the routes' status.
//! [`plan`] puts these together with Services and `ConfigMap`s into what a data plane can use, and [`status`] has the
//! conditions of each object. The planner asks other modules through `RouteContext`.

mod bodies;
pub mod claim_record;
pub mod claims;
mod credentials;
mod event_writer;
mod events;
pub mod hosts;
mod named_objects;
pub mod plan;
mod planner;
mod sink;
pub mod status;
mod status_tracker;
mod status_writer;
pub(crate) mod store;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use rouse_core::endpoint::ServiceId;
use rouse_core::routing_mode::RoutingMode;
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_core::time::Clock;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::objects::route::RouteKey;
use crate::objects::service_summary::{ServiceSummary, TlsFacts};
use crate::objects::time_text;
use claim_record::ClaimTime;
use claims::HostRules;
pub(crate) use event_writer::EventWriter;
pub(crate) use events::{EventAuthor, EventReason, RouteEvent};
use plan::{Findings, RoutePlan};
pub(crate) use planner::RoutePlanner;
pub(crate) use status_tracker::{AUTOSCALED, ONLY_WAKES};
pub(crate) use status_writer::StatusWriter;

/// The plans of all routes, replaced as a whole.
pub type RoutePlans = Arc<[Arc<RoutePlan>]>;

/// The operator's settings for routes.
#[derive(Clone)]
pub struct RouteSettings {
    /// What the operator decided about hosts.
    pub hosts: HostRules,
    /// Whether status conditions and Kubernetes Events are written.
    pub write_status: bool,
    /// The name of this gateway in Kubernetes Events: the name of its pod.
    pub identity: String,
    /// The registry's clock.
    pub clock: Arc<dyn Clock>,
    /// The time of day, for statuses and events.
    pub time_of_day: fn() -> SystemTime,
    /// Checks the certificates and the key that a Service names, and returns what is wrong. The data plane provides it;
    /// the status of routes shows the result.
    pub check_tls: fn(&TlsFacts) -> Option<String>,
    /// The routing mode of routes that do not set one: straight to pods, or to the Service's `ClusterIP`. The status of
    /// routes lists the settings of a Service that have no effect on requests straight to pods.
    pub direct: RoutingMode,
}

impl RouteSettings {
    /// The defaults: conditions are written, certificates are not checked, requests go to pods.
    pub fn new(clock: Arc<dyn Clock>, time_of_day: fn() -> SystemTime) -> Self {
        Self {
            hosts: HostRules::default(),
            write_status: true,
            identity: "rouse".to_owned(),
            clock,
            time_of_day,
            check_tls: |_| None,
            direct: RoutingMode::Always,
        }
    }

    /// The time of claims that are granted now.
    fn claim_time(&self) -> ClaimTime {
        let since = (self.time_of_day)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        ClaimTime(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    /// The time of day, as Kubernetes writes it.
    fn now_text(&self) -> String {
        time_text((self.time_of_day)())
    }

    fn event_author(&self) -> EventAuthor {
        EventAuthor {
            component: "rouse.dev/gateway",
            instance: self.identity.clone(),
            clock: Arc::clone(&self.clock),
            time_of_day: self.time_of_day,
        }
    }
}

/// Whether a failure still belongs to a route: gets the route, the UID of its object and the Service it led to.
pub(crate) type IsCurrent<'a> = dyn Fn(&RouteKey, &str, &ServiceId) -> bool + 'a;

/// What the planner asks other modules, and tells them.
pub(crate) trait RouteContext: Send + Sync + 'static {
    /// What is known of a Service.
    fn service(&self, id: &ServiceId) -> Option<Arc<ServiceSummary>>;
    /// Whether the Service asks by annotation for endpoints without a pod, and the operator does not allow it.
    fn ignores_manual_endpoints(&self, id: &ServiceId) -> bool;
    /// Whether the `ClusterIP` of the Service must not be dialled.
    fn blocks_cluster_ip(&self, id: &ServiceId, now: Instant) -> bool;
    /// When [`RouteContext::blocks_cluster_ip`] next changes by the passing of time.
    fn next_block_change(&self, now: Instant) -> Option<Instant>;
    /// Notified when [`RouteContext::blocks_cluster_ip`] may have changed.
    fn block_changes(&self) -> Arc<Notify>;
    /// Sets how requests to each service are spread. Returns whether a service was replaced since the last call.
    fn set_spreads(&self, spreads: HashMap<ServiceId, ConcurrencyLimits>) -> bool;
    /// Forgets what is known of all other routes.
    fn retain_routes(&self, present: &HashSet<&RouteKey>);
    /// Forgets failures of wakes that are over or do not belong to a route any more.
    fn forget_past_failures(&self, is_current: &IsCurrent<'_>);
    /// Whether pods refuse connections: no watch says that they accept them again.
    fn has_refused_connections(&self) -> bool;
    /// Adds what is known of the route's workload and of its last wake.
    fn add_wake_findings(&self, route: &RouteKey, findings: &mut Findings);
}
