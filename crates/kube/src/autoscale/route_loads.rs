//! Computes the concurrency and the request rate of each route, for KEDA's external scaler: our own decisions are about workloads.

use std::collections::BTreeSet;

use rouse_core::load_meter::LoadKey;
use rouse_core::scale::{CurrentLoad, LoadReport, RequestRates};
use rouse_core::time::Moment;

use super::AutoscaleController;
use super::policy::{concurrency_target, rate_window};
use crate::objects::route::{RouteKey, ScalingSpec};

/// The load of a route, and what it scales on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaledRouteLoad {
    /// The requests that are present, at all gateways.
    pub present: CurrentLoad,
    /// Requests per second, over the window of the route.
    pub rate: f64,
    /// The concurrent requests that one pod is for; `None`: it does not scale on them.
    pub concurrency_target: Option<u32>,
    /// The requests per second that one pod is for; `None`: it does not scale on them.
    pub rate_target: Option<u32>,
}

/// Which routes have news, and the request rates of all.
#[derive(Debug, Default)]
pub(super) struct RouteLoadChanges {
    rates: RequestRates<RouteKey>,
    /// Routes with news.
    changed: BTreeSet<RouteKey>,
    /// Routes that had requests present when they were read last.
    active: BTreeSet<RouteKey>,
}

impl RouteLoadChanges {
    /// The route is new, gone, or has other targets.
    pub(super) fn changed(&mut self, key: &RouteKey) {
        self.changed.insert(key.clone());
    }

    /// A gateway has reported load of a route.
    pub(super) fn heard(&mut self, now: Moment, key: &RouteKey, scaling: &ScalingSpec, report: &LoadReport) {
        self.rates.record(now, key, rate_window(scaling), report);
        self.changed.insert(key.clone());
    }

    pub(super) fn has_news(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Routes whose load may change without a report: rates fall, and gateways leave.
    fn pass_time(&mut self, now: Moment) {
        self.changed.extend(self.rates.changing(now));
        self.changed.append(&mut self.active);
    }
}

impl AutoscaleController {
    /// Waits until the load of a route is new, or a route is new or gone. Then read [`AutoscaleController::new_route_loads`].
    pub async fn route_loads_changed(&self) {
        self.route_loads.notified().await;
    }

    /// Call this each second: the load of routes also changes with time.
    pub fn pass_time_of_route_loads(&self) {
        let now = self.now();
        self.state().route_loads.pass_time(now);
    }

    /// The routes whose load is new since the last call, with their load. `None`: there is no such route any more.
    pub fn new_route_loads(&self) -> Vec<(RouteKey, Option<ScaledRouteLoad>)> {
        let (mut state, now) = (self.state(), self.now());
        let state = &mut *state;
        let mut news = Vec::new();
        for key in std::mem::take(&mut state.route_loads.changed) {
            let good = state.store.get(&key).and_then(|entry| entry.good.as_ref());
            let load = good.map(|route| ScaledRouteLoad {
                present: state.fleet.loads().present(&LoadKey::Route(key.load_name())),
                rate: state.route_loads.rates.rate(now, &key),
                concurrency_target: concurrency_target(&route.scaling),
                rate_target: route.scaling.rate.map(|rate| rate.target),
            });
            match load {
                Some(load) if load.present.total() > 0 => drop(state.route_loads.active.insert(key.clone())),
                Some(_) => {}
                None => state.route_loads.rates.remove(&key),
            }
            news.push((key, load));
        }
        news
    }

    /// Whether the load of all routes is known: gateways are listed, and each of them reports.
    pub fn knows_load(&self) -> bool {
        let (state, now) = (self.state(), self.now());
        let loads = state.fleet.loads();
        let mut listed = loads.listed().peekable();
        self.is_synced() && listed.peek().is_some() && listed.all(|reporter| loads.is_fresh(now, reporter))
    }
}
