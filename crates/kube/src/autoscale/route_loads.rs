//! Computes the concurrency and the request rate of each route, for KEDA's external scaler: our own decisions are about workloads.

use std::collections::BTreeSet;

use rouse_core::load_meter::LoadKey;
use rouse_core::scale::{CurrentLoad, LoadChange, LoadReport, RequestRates};
use rouse_core::time::Moment;

use super::AutoscaleController;
use super::policy::{concurrency_target, rate_window};
use super::state::AutoscaleState;
use crate::objects::route::{RouteKey, RouteSpec, ScalingSpec};

/// The load of a route, and what it scales on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaledRouteLoad {
    /// The requests that are present, at all gateways.
    pub present: CurrentLoad,
    /// Requests per second, over the window of the route.
    pub rate: f64,
    /// It needs its pods although it has no load of its own: Envoys send requests to its service that another route is charged with, or
    /// may send some that are not known.
    pub kept_active: bool,
    /// The concurrent requests that one pod is for; `None`: it does not scale on them.
    pub concurrency_target: Option<u32>,
    /// The requests per second that one pod is for; `None`: it does not scale on them.
    pub rate_target: Option<u32>,
}

/// Which routes have news, and the request rates of all.
#[derive(Debug, Default)]
pub(super) struct RouteLoadChanges {
    rates: RequestRates<RouteKey>,
    /// The rates of requests that Envoys send to the services of routes, past the gateways. Those of a service are in the rates of its
    /// first route too.
    at_envoys: RequestRates<RouteKey>,
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

    /// An Envoy has sent requests to the service of a route, past the gateways. The `first` route of a service is charged with them.
    fn heard_envoys(
        &mut self,
        now: Moment,
        key: &RouteKey,
        scaling: &ScalingSpec,
        report: &LoadReport,
        is_first: bool,
    ) {
        let window = rate_window(scaling);
        self.at_envoys.record(now, key, window, report);
        if is_first {
            self.rates.record(now, key, window, report);
        }
        self.changed.insert(key.clone());
    }

    /// The requests per second of a route, by gateways and Envoys.
    pub(super) fn rate(&mut self, now: Moment, key: &RouteKey) -> f64 {
        self.rates.rate(now, key).max(self.at_envoys.rate(now, key))
    }

    pub(super) fn has_news(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Routes whose load may change without a report: rates fall, and gateways leave.
    fn pass_time(&mut self, now: Moment) {
        self.changed.extend(self.rates.changing(now));
        self.changed.extend(self.at_envoys.changing(now));
        self.changed.append(&mut self.active);
    }
}

impl AutoscaleState {
    /// The first route, by its name, of those to the same service: the sum of what Envoys send to the service is its load.
    fn is_first_of_service(&self, route: &RouteSpec) -> bool {
        let service = &route.target.service;
        let good = self.store.entries_of(service.namespace()).filter_map(|(_, entry)| entry.good.as_ref());
        let names = good.filter(|other| other.target.service == *service).map(|other| other.key.load_name());
        names.min().is_none_or(|first| route.key.load_name() <= first)
    }

    /// An xds replica has reported load of services: what its own routes have not sent, Envoys have.
    pub(super) fn heard_services(&mut self, now: Moment, changes: &[LoadChange]) {
        for change in changes {
            let LoadKey::Service(service) = &change.key else { continue };
            let good = self.store.entries_of(service.namespace()).filter_map(|(_, entry)| entry.good.clone());
            let routes: Vec<_> = good.filter(|route| route.target.service == *service).collect();
            let own = |route: &RouteSpec| {
                let key = LoadKey::Route(route.key.load_name());
                changes.iter().filter(|it| it.key == key).map(|it| it.report.requests).sum::<u64>()
            };
            let own: u64 = routes.iter().map(|route| own(route)).sum();
            let requests = change.report.requests.saturating_sub(own);
            let report = LoadReport { requests, ..change.report };
            let first = routes.iter().map(|route| route.key.load_name()).min();
            for route in routes {
                let is_first = first.as_ref() == Some(&route.key.load_name());
                self.route_loads.heard_envoys(now, &route.key, &route.scaling, &report, is_first);
            }
        }
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
            let good = state.store.get(&key).and_then(|entry| entry.good.clone());
            let load = good.map(|route| {
                let at_envoys = state.present_at_envoys(&route.target.service);
                let mut present = state.fleet.loads().present(&LoadKey::Route(key.load_name()));
                if at_envoys > 0 && state.is_first_of_service(&route) {
                    present.in_flight = present.in_flight.saturating_add(at_envoys);
                }
                let by_envoys = at_envoys > 0 || state.route_loads.at_envoys.rate(now, &key) > 0.0;
                ScaledRouteLoad {
                    present,
                    rate: state.route_loads.rates.rate(now, &key),
                    kept_active: by_envoys || state.keeps_active(&route),
                    concurrency_target: concurrency_target(&route.scaling),
                    rate_target: route.scaling.rate.map(|rate| rate.target),
                }
            });
            match load {
                Some(load) if load.present.total() > 0 || load.kept_active => {
                    state.route_loads.active.insert(key.clone());
                }
                Some(_) => {}
                None => {
                    state.route_loads.rates.remove(&key);
                    state.route_loads.at_envoys.remove(&key);
                }
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
