//! The state that all worker threads share: settings, routes, metrics and budgets.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rouse_core::hold::HoldLimits;
use rouse_core::shutdown::InFlightCounter;
use rouse_net::clock::TokioClock;

use crate::budget::{ByteBudget, ConnectionLimits, PodConnections, SharedShortage};
use crate::message::Placement;
use crate::request::TrustedProxies;
use crate::routing::{Route, RouteTable, Router};
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::Metrics;
use crate::upstream::ColdStartHeaders;

/// The operator's settings for the data plane.
#[derive(Debug, Clone)]
pub struct ProxySettings {
    /// Tells this gateway from every other, so that it recognises a request that it has sent itself.
    pub id: String,
    /// Where the proxy stands on the way of a request.
    pub placement: Placement,
    /// Proxies whose `X-Forwarded-*` headers are kept.
    pub trusted: TrustedProxies,
    /// How long and how many requests may wait. The same as the registry's.
    pub bounds: HoldLimits,
    /// The clock, which the registry uses as well.
    pub clock: TokioClock,
    /// The limits of connections, requests and memory.
    pub limits: ConnectionLimits,
    /// The response headers that say whether a request waited for a pod.
    pub cold_start: ColdStartHeaders,
    /// Where each request is logged; `None`: nowhere.
    pub access: Option<Arc<dyn AccessLog>>,
}

/// The state that all worker threads share.
#[derive(Debug)]
pub struct Gateway {
    pub(super) settings: ProxySettings,
    pub(super) metrics: Metrics,
    pub(super) router: Arc<Router>,
    pub(super) byte_budget: Arc<ByteBudget>,
    pub(super) pod_connections: Arc<PodConnections>,
    pub(super) shortage: Arc<SharedShortage>,
    pub(super) leaving: Arc<AtomicBool>,
    pub(super) refusing: Arc<AtomicBool>,
    under_way: Arc<InFlightCounter>,
}

impl Gateway {
    /// Answers requests with the error `starting` until it gets its routes.
    pub fn new(settings: ProxySettings, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            byte_budget: Arc::new(ByteBudget::new(settings.limits.buffers)),
            pod_connections: PodConnections::new(settings.limits.pod_connections),
            settings,
            metrics,
            router: Arc::default(),
            shortage: Arc::default(),
            leaving: Arc::default(),
            refusing: Arc::default(),
            under_way: Arc::default(),
        })
    }

    /// Replaces all routes at once. Requests under way keep the route that they have.
    pub fn set_routes(&self, table: RouteTable<Arc<Route>>) {
        self.router.set(table);
        let now = self.routes();
        let names = now.rules().iter().map(|rule| &*rule.target.name).collect();
        self.metrics.keep(&names, &self.services());
    }

    /// The names of all services that the present routes lead to.
    pub fn services(&self) -> HashSet<String> {
        self.router.services()
    }

    /// The present routes.
    pub fn routes(&self) -> Arc<RouteTable<Arc<Route>>> {
        self.router.routes()
    }

    /// The gateway will drain soon: from now on each HTTP/1 response closes its connection, so that few connections are left
    /// by then.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Refuses requests from now on, so that the gateway in front sends them elsewhere. Requests under way go on.
    pub fn refuse(&self) {
        self.refusing.store(true, Ordering::Relaxed);
    }

    /// Requests, streams, upgraded connections and holds.
    pub fn under_way(&self) -> &Arc<InFlightCounter> {
        &self.under_way
    }
}
