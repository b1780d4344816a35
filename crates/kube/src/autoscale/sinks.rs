//! Applies watch events to the state of the autoscaler.

use std::sync::Arc;

use rouse_core::endpoint::ServiceId;
use rouse_core::time::Moment;
use serde::de::DeserializeOwned;

use super::AutoscaleController;
use super::state::AutoscaleState;
use crate::client::ObjectKind;
use crate::client::watch::Sink;
use crate::events::ClusterEvent;
use crate::objects::hpa::HorizontalPodAutoscaler;
use crate::objects::route::{RouteKind, RouteObject};
use crate::objects::scaled_object::ScaledObject;
use crate::objects::service_summary::ServiceSummary;
use crate::objects::workload_object::WorkloadObject;
use crate::objects::{EndpointSlice, Service};

/// An event of a watch.
pub(super) enum Change<T> {
    All(Vec<T>),
    Put(T),
    Gone(T),
}

/// Applies the events of one watch.
pub(super) struct InputSink<T> {
    controller: Arc<AutoscaleController>,
    apply: Box<Apply<T>>,
}

/// Applies an event to the state.
type Apply<T> = dyn Fn(&mut AutoscaleState, Moment, Change<T>) + Send;

impl<T> InputSink<T> {
    pub(super) fn new(
        controller: &Arc<AutoscaleController>,
        apply: impl Fn(&mut AutoscaleState, Moment, Change<T>) + Send + 'static,
    ) -> Self {
        Self { controller: Arc::clone(controller), apply: Box::new(apply) }
    }

    fn apply(&self, change: Change<T>) {
        let now = self.controller.now();
        let mut state = self.controller.state();
        (self.apply)(&mut state, now, change);
        let news = state.route_loads.has_news();
        drop(state);
        self.controller.wake();
        if news {
            self.controller.route_loads.notify_one();
        }
    }
}

impl<T: DeserializeOwned + Send> Sink for InputSink<T> {
    type Object = T;

    fn replace(&mut self, all: Vec<T>) {
        self.apply(Change::All(all));
    }

    fn put(&mut self, object: T) {
        self.apply(Change::Put(object));
    }

    fn remove(&mut self, object: T) {
        self.apply(Change::Gone(object));
    }

    fn unreadable(&mut self, words: String) {
        self.controller.report(ClusterEvent::LeftOut(words));
    }
}

/// Routes of one kind.
pub(super) fn routes(kind: RouteKind) -> impl Fn(&mut AutoscaleState, Moment, Change<RouteObject>) {
    move |state, _, change| match change {
        Change::All(all) => state.replace_routes(kind, &all),
        Change::Put(route) => state.put_route(kind, &route),
        Change::Gone(route) => state.remove_route(kind, &route),
    }
}

/// Services.
pub(super) fn services(state: &mut AutoscaleState, _: Moment, change: Change<Service>) {
    match change {
        Change::All(all) => {
            let all = all.into_iter().filter_map(|service| ServiceSummary::new(service).ok());
            state.replace_services(all.collect());
        }
        Change::Put(service) => {
            if let Ok(service) = ServiceSummary::new(service) {
                state.put_service(service);
            }
        }
        Change::Gone(service) => {
            if let Ok(id) = ServiceId::new(service.metadata.namespace(), &service.metadata.name) {
                state.remove_service(&id);
            }
        }
    }
}

/// Workloads of one kind.
pub(super) fn workloads(kind: ObjectKind) -> impl Fn(&mut AutoscaleState, Moment, Change<WorkloadObject>) {
    let kind = kind.name;
    let named = move |workload: WorkloadObject| WorkloadObject { kind, ..workload };
    move |state, now, change| match change {
        Change::All(all) => state.replace_workloads(now, kind, all.into_iter().map(named).collect()),
        Change::Put(workload) => {
            let change = state.workload_cache.put_workload(named(workload));
            state.workload_changed(now, &change);
        }
        Change::Gone(workload) => {
            let change = state.workload_cache.remove_workload(&named(workload));
            state.workload_changed(now, &change);
        }
    }
}

/// `ScaledObject`s.
pub(super) fn scaled_objects(state: &mut AutoscaleState, _: Moment, change: Change<ScaledObject>) {
    match change {
        Change::All(all) => {
            state.workload_cache.replace_scaled_objects(all);
            state.mark_all_dirty();
        }
        Change::Put(scaled) => {
            if state.workload_cache.put_scaled_object(&scaled) {
                state.mark_dirty(&scaled.namespace);
            }
        }
        Change::Gone(scaled) => {
            state.workload_cache.remove_scaled_object(&scaled);
            state.mark_dirty(&scaled.namespace);
        }
    }
}

/// `HorizontalPodAutoscaler`s.
pub(super) fn hpas(state: &mut AutoscaleState, _: Moment, change: Change<HorizontalPodAutoscaler>) {
    match change {
        Change::All(all) => {
            state.workload_cache.replace_hpas(all);
            state.mark_all_dirty();
        }
        Change::Put(hpa) => {
            if state.workload_cache.put_hpa(&hpa) {
                state.mark_dirty(&hpa.namespace);
            }
        }
        Change::Gone(hpa) => {
            state.workload_cache.remove_hpa(&hpa);
            state.mark_dirty(&hpa.namespace);
        }
    }
}

/// The slices of the gateways' own Service.
pub(super) fn gateway_slices(state: &mut AutoscaleState, now: Moment, change: Change<EndpointSlice>) {
    match change {
        Change::All(all) => state.gateways.replace(&all),
        Change::Put(slice) => state.gateways.put(&slice),
        Change::Gone(slice) => state.gateways.remove(&slice),
    }
    state.list_gateways(now);
}
