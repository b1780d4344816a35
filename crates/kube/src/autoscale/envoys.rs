//! What the autoscaler knows of Envoys: which are silent, which xds replicas there are, and how services are prepared for zero.
//!
//! Before zero is written, every Envoy must send new requests to the gateways: the leader asks all xds replicas for that, and writes when
//! all have answered. KEDA writes when it likes: while a workload of a `ScaledObject` has pods and no load, the leader keeps its services
//! parked, and every controller answers KEDA that a route is active until they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::load_meter::LoadKey;
use rouse_core::random::Random;
use rouse_core::scale::{EnvoyTable, EnvoyUpdate, ParkedServices, Reporter, ZeroPreparation, ZeroProgress};
use rouse_core::time::Moment;
use tokio::time::timeout;

use super::AutoscaleController;
use super::state::AutoscaleState;
use super::target::{OwnerKind, TargetKey};
use crate::objects::route::RouteSpec;

/// How often a request is repeated while another autoscaler may write zero: it holds for a minute.
const ASK_AGAIN: Duration = Duration::from_secs(20);
/// How often workloads of other autoscalers are looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Passes requests on to all xds replicas. The calls must be quick.
pub trait ZeroRequests: Send + Sync + 'static {
    /// Route new requests of the service to the gateways. Each replica answers with this id: see [`AutoscaleController::parked`].
    fn prepare_zero(&self, service: &ServiceId, id: u64);
    /// Take that back.
    fn cancel_zero(&self, service: &ServiceId, id: u64);
}

/// What is known of Envoys.
#[derive(Debug)]
pub(super) struct EnvoyKnowledge {
    pub(super) table: EnvoyTable,
    /// The table has changed since the fleet was told.
    is_new: bool,
    pub(super) parked: ParkedServices,
    /// The request for each service that is prepared for zero.
    pub(super) requests: BTreeMap<ServiceId, u64>,
    /// Workloads of other autoscalers whose services are parked, each with the request.
    owned: BTreeMap<TargetKey, OwnedParking>,
    look: Moment,
    random: Random,
}

#[derive(Debug)]
struct OwnedParking {
    id: u64,
    services: BTreeSet<ServiceId>,
    asked: Moment,
    replicas: BTreeSet<Reporter>,
}

/// A message to all xds replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ZeroMessage {
    Prepare(ServiceId, u64),
    Cancel(ServiceId, u64),
}

impl EnvoyKnowledge {
    pub(super) fn new(now: Moment, seed: u64) -> Self {
        Self {
            table: EnvoyTable::default(),
            is_new: false,
            parked: ParkedServices::default(),
            requests: BTreeMap::new(),
            owned: BTreeMap::new(),
            look: now,
            random: Random::new(seed),
        }
    }

    /// An id for a request; never 0.
    fn id(&mut self) -> u64 {
        self.random.next_u64() | 1
    }

    /// Whether all services are still parked by their own requests.
    pub(super) fn is_prepared(&self, services: &BTreeSet<ServiceId>) -> bool {
        let parked =
            |service| self.requests.get(service).is_some_and(|id| self.parked.has_parked(service, *id));
        self.parked.is_empty() || services.iter().all(parked)
    }

    /// When something is due.
    pub(super) fn next_due(&self) -> Option<Moment> {
        let looks = (!self.parked.is_empty() || !self.owned.is_empty()).then_some(self.look);
        looks.into_iter().chain(self.table.next_due()).min()
    }
}

impl AutoscaleState {
    /// Tells the fleet which Envoys are silent, if that may be new.
    pub(super) fn follow_envoys(&mut self, now: Moment) {
        let forgot = self.envoys.table.forget(now);
        if std::mem::take(&mut self.envoys.is_new) || forgot {
            self.fleet.set_silent_envoys(now, self.envoys.table.silent());
            self.store.entries().for_each(|(key, _)| self.route_loads.changed(key));
        }
    }

    /// Whether a route stays active although no request of it is known: KEDA must not take its pods.
    pub(super) fn keeps_active(&self, route: &RouteSpec) -> bool {
        if self.envoys.parked.is_empty() && self.fleet.silent_envoys().count == 0 {
            return false;
        }
        let service = &route.target.service;
        // At zero, an active route would be woken.
        let pods = self.pods_of(route);
        let is_silent = self.fleet.silent_envoys().of([service]).is_some();
        match pods {
            Some(0) => false,
            Some(_) => is_silent || !self.envoys.parked.is_parked(service),
            None => is_silent,
        }
    }

    /// The requested pods of a route's workload, if it is watched.
    fn pods_of(&self, route: &RouteSpec) -> Option<u32> {
        let key = self.workloads.get(&route.key)?.as_ref().ok()?;
        Some(self.workload_cache.workload(key)?.replicas())
    }

    /// The requests to a service that are present at Envoys and pass the gateways.
    pub(super) fn present_at_envoys(&self, service: &ServiceId) -> u32 {
        if self.envoys.parked.is_empty() {
            return 0;
        }
        let key = LoadKey::Service(service.clone());
        let routes = self.store.entries_of(service.namespace());
        let routes =
            routes.filter(|(_, entry)| entry.good.as_ref().is_some_and(|it| it.target.service == *service));
        let routes: Vec<LoadKey> = routes.map(|(key, _)| LoadKey::Route(key.load_name())).collect();
        let loads = self.fleet.loads();
        let at = |replica| {
            // A gateway that is an xds replica too has requests of its own: they are those of its routes.
            let own: u64 = routes.iter().map(|key| loads.present_at(replica, key).total()).sum();
            loads.present_at(replica, &key).total().saturating_sub(own)
        };
        let all: u64 = self.envoys.parked.replicas().map(at).sum();
        u32::try_from(all).unwrap_or(u32::MAX)
    }

    /// Which requests for workloads of `ScaledObject`s are due: their services are parked while they have pods and no load.
    pub(super) fn park_owned(&mut self, now: Moment, leads: bool) -> Vec<ZeroMessage> {
        if now < self.envoys.look || (self.envoys.parked.is_empty() && self.envoys.owned.is_empty()) {
            return Vec::new();
        }
        self.envoys.look = now + LOOK_AGAIN;
        let idle: BTreeMap<TargetKey, BTreeSet<ServiceId>> =
            if leads { self.idle_of_keda(now) } else { BTreeMap::new() };
        let mut messages = Vec::new();
        self.envoys.owned.retain(|key, parking| {
            let stays = idle.get(key) == Some(&parking.services);
            if !stays {
                messages
                    .extend(parking.services.iter().map(|it| ZeroMessage::Cancel(it.clone(), parking.id)));
            }
            stays
        });
        let connected: BTreeSet<Reporter> = self.envoys.parked.replicas().cloned().collect();
        for (key, services) in idle {
            let id = self.envoys.id();
            let parking = self.envoys.owned.entry(key).or_insert(OwnedParking {
                id,
                services,
                asked: now,
                replicas: BTreeSet::new(),
            });
            if now >= parking.asked + ASK_AGAIN || parking.replicas != connected {
                (parking.asked, parking.replicas) = (now, connected.clone());
                messages
                    .extend(parking.services.iter().map(|it| ZeroMessage::Prepare(it.clone(), parking.id)));
            }
        }
        messages
    }

    /// The workloads of `ScaledObject`s that have pods and no load, with their services.
    fn idle_of_keda(&mut self, now: Moment) -> BTreeMap<TargetKey, BTreeSet<ServiceId>> {
        let (mut idle, mut index) = (BTreeMap::new(), None);
        let (loads, silent) = (self.fleet.loads(), self.fleet.silent_envoys());
        let has_load = |it: &ServiceId| loads.present(&LoadKey::Service(it.clone())).total() > 0;
        for (key, target) in &self.targets {
            let services = &target.spec.services;
            let has_pods = self.workload_cache.workload(key).is_some_and(|workload| workload.replicas() > 0);
            if !has_pods || silent.of(services).is_some() || services.iter().any(has_load) {
                continue;
            }
            // Whether a route asks for scaling by Rouse does not matter. The targets of a namespace follow each other.
            if index.as_ref().is_none_or(|(namespace, _)| *namespace != key.namespace) {
                index = Some((Arc::clone(&key.namespace), self.workload_cache.index(&key.namespace)));
            }
            let owner = index.as_ref().and_then(|(_, index)| index.owner(&target.spec.workload));
            let by_keda = owner.is_some_and(|owner| owner.kind == OwnerKind::ScaledObject);
            if by_keda && !target.spec.routes.iter().any(|route| self.route_loads.rate(now, &route.key) > 0.0)
            {
                idle.insert(key.clone(), services.clone());
            }
        }
        idle
    }

    /// The services are not prepared for zero any more: zero was written, or is not.
    pub(super) fn end_requests(&mut self, services: &BTreeSet<ServiceId>) -> Vec<ZeroMessage> {
        let ids = services
            .iter()
            .filter_map(|it| Some(ZeroMessage::Cancel(it.clone(), self.envoys.requests.remove(it)?)));
        ids.collect()
    }
}

impl AutoscaleController {
    /// An xds replica is connected: it must report its load as gateways must, and is asked before zero.
    pub fn xds_joined(&self, from: &Reporter) {
        self.change_replicas(|state, now| {
            state.envoys.parked.joined(from);
            state.list_gateways(now);
        });
    }

    /// Takes what an xds replica says of its Envoys.
    pub fn heard_envoys(&self, from: &Reporter, update: EnvoyUpdate) {
        let is_new = {
            let mut state = self.state();
            let is_new = state.envoys.table.update(from, update);
            state.envoys.is_new |= is_new;
            is_new
        };
        if is_new {
            self.wake();
        }
    }

    /// These are all services that an xds replica has parked, each with the id of the request.
    pub fn parked(&self, from: &Reporter, services: &BTreeMap<ServiceId, u64>) {
        // Routes that are kept active are looked at each second.
        self.state().envoys.parked.set(from, services);
        self.parking.send_replace(());
        self.wake();
    }

    /// A reporter is not connected any more. The load of an xds replica's Envoys is unknown until another one hears them.
    pub fn reporter_left(&self, from: &Reporter) {
        if !self.state().envoys.parked.replicas().any(|replica| replica == from) {
            return;
        }
        self.change_replicas(|state, now| {
            state.envoys.parked.left(from);
            state.envoys.table.left(now, from);
            state.envoys.is_new = true;
            state.list_gateways(now);
        });
    }

    /// What requests to xds replicas are sent by. Without it, none is asked, and nothing goes to zero while one is connected.
    pub fn set_zero_requests(&self, requests: Box<dyn ZeroRequests>) {
        // Set once, at the start.
        self.zero_requests.set(requests).ok();
    }

    fn change_replicas(&self, change: impl FnOnce(&mut AutoscaleState, Moment)) {
        let now = self.now();
        let mut state = self.state();
        change(&mut state, now);
        let state = &mut *state;
        state.store.entries().for_each(|(key, _)| state.route_loads.changed(key));
        self.parking.send_replace(());
        self.wake();
        self.route_loads.notify_one();
    }

    /// Sends messages to all xds replicas.
    pub(super) fn send_zero(&self, messages: impl IntoIterator<Item = ZeroMessage>) {
        let Some(requests) = self.zero_requests.get() else { return };
        for message in messages {
            match message {
                ZeroMessage::Prepare(service, id) => requests.prepare_zero(&service, id),
                ZeroMessage::Cancel(service, id) => requests.cancel_zero(&service, id),
            }
        }
    }

    /// Begins the preparation of services for zero. Before its task runs: it may be taken back by then.
    pub(super) fn begin_preparation(&self, services: &BTreeSet<ServiceId>) -> ZeroPreparation {
        let (mut state, now) = (self.state(), self.now());
        let id = state.envoys.id();
        state.envoys.requests.extend(services.iter().map(|service| (service.clone(), id)));
        ZeroPreparation::new(now, id, services.clone())
    }

    /// Has all Envoys send new requests of these services to the gateways. Returns whether they do.
    pub(super) async fn prepare_envoys(&self, mut preparation: ZeroPreparation) -> bool {
        let mut changes = self.parking.subscribe();
        let (id, services) = (preparation.id(), preparation.services().clone());
        loop {
            changes.mark_unchanged();
            let (asks, progress, now) = {
                let (state, now) = (self.state(), self.now());
                if !services.iter().all(|service| state.envoys.requests.get(service) == Some(&id)) {
                    // It was taken back: load has come, or another process leads.
                    return false;
                }
                let asks = preparation.must_ask(&state.envoys.parked);
                (asks, preparation.progress(now, &state.envoys.parked), now)
            };
            if asks {
                self.send_zero(services.iter().map(|service| ZeroMessage::Prepare(service.clone(), id)));
            }
            match progress {
                ZeroProgress::Prepared => return true,
                ZeroProgress::TimedOut => {
                    let messages = self.state().end_requests(&services);
                    self.send_zero(messages);
                    return false;
                }
                // The channel is never closed: `self` has the sender.
                ZeroProgress::Waits { until } => drop(timeout(until.since(now), changes.changed()).await),
            }
        }
    }
}
