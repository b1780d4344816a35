//! The task that keeps the resources for Envoys up to date: all inputs are one value, and each change is one update of the cache.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rouse_core::endpoint::{PortName, ServiceId};
use rouse_core::envoy::{EnvoyEndpoint, EnvoyHealth, EnvoyTarget, GatewayUse, endpoints};
use rouse_core::registry::Registry;
use rouse_core::snapshot::{PortView, Snapshot};
use tokio::sync::watch;

use super::cache::{ResourceCache, ResourceChange};
use super::names::{GATEWAYS_CLUSTER, ROUTE_CONFIGURATION, cluster_name};
use super::resource_type::ResourceType;
use super::resources::{self, ClusterSpec, HostRoutes, PodProtocol, PodTls};

/// The routes as Envoy gets them, and the service ports that they lead to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvoyRoutes {
    /// The virtual hosts.
    pub hosts: Vec<HostRoutes>,
    /// The service ports.
    pub backends: BTreeMap<(ServiceId, PortName), EnvoyBackend>,
}

/// One service port, for all routes that lead to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvoyBackend {
    /// What its pods speak.
    pub protocol: PodProtocol,
    /// TLS to its pods.
    pub tls: Option<PodTls>,
    /// When its requests pass the gateways.
    pub gateway_use: GatewayUse,
}

/// What the resources follow from, besides the state of the services.
#[derive(Debug, Clone, Default)]
struct Inputs {
    routes: Arc<EnvoyRoutes>,
    /// Where the gateways take requests.
    gateways: Arc<[SocketAddr]>,
    /// The services whose new requests go to the gateways, because their pods are about to be removed.
    parked: Arc<BTreeSet<ServiceId>>,
    /// Grows with each change.
    revision: u64,
}

/// Changes what Envoys get.
#[derive(Debug, Clone)]
pub struct EnvoyPublisherHandle {
    inputs: watch::Sender<Inputs>,
    /// The revision of the inputs that the cache has.
    published: watch::Receiver<u64>,
}

impl EnvoyPublisherHandle {
    /// Replaces the routes.
    pub fn set_routes(&self, routes: EnvoyRoutes) {
        self.change(|inputs| {
            let changed = *inputs.routes != routes;
            if changed {
                inputs.routes = Arc::new(routes);
            }
            changed
        });
    }

    /// Replaces the addresses of the gateways.
    pub fn set_gateways(&self, mut gateways: Vec<SocketAddr>) {
        gateways.sort_unstable();
        gateways.dedup();
        self.change(|inputs| {
            let changed = *inputs.gateways != *gateways;
            if changed {
                inputs.gateways = gateways.into();
            }
            changed
        });
    }

    /// Sends new requests of a service to the gateways (`parked`), or to its pods again.
    pub fn set_parked(&self, service: &ServiceId, parked: bool) {
        self.change(|inputs| {
            let all = Arc::make_mut(&mut inputs.parked);
            if parked { all.insert(service.clone()) } else { all.remove(service) }
        });
    }

    /// Whether new requests of a service are sent to the gateways although it has pods.
    pub fn is_parked(&self, service: &ServiceId) -> bool {
        self.inputs.borrow().parked.contains(service)
    }

    /// Waits until the cache has all that was changed before this call: inputs, and snapshots of services.
    pub async fn settled(&self) {
        self.change(|_| true);
        self.published().await;
    }

    /// Waits until the cache has all inputs that were changed before this call.
    pub async fn published(&self) {
        let revision = self.inputs.borrow().revision;
        // Fails only if the publisher has ended, and then nothing is published any more.
        self.published.clone().wait_for(|published| *published >= revision).await.ok();
    }

    fn change(&self, change: impl FnOnce(&mut Inputs) -> bool) {
        self.inputs.send_if_modified(|inputs| {
            let changed = change(inputs);
            inputs.revision += u64::from(changed);
            changed
        });
    }
}

/// Which snapshot of each service the cache has.
#[derive(Debug, Default)]
pub(super) struct PublishedServices(Mutex<HashMap<ServiceId, PublishedService>>);

#[derive(Debug)]
struct PublishedService {
    generation: u64,
    /// The names of its endpoints, one for each port.
    names: Vec<Arc<str>>,
    /// No pod takes new requests: Envoys send them to the gateways, or nowhere.
    has_no_healthy_pod: bool,
}

impl PublishedServices {
    /// The names of the endpoints of a service, if the cache has this generation or a newer one.
    pub(super) fn names(&self, service: &ServiceId, generation: u64) -> Option<Vec<Arc<str>>> {
        let services = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let published = services.get(service).filter(|published| published.generation >= generation);
        published.map(|published| published.names.clone())
    }

    /// Whether Envoys send no new requests to the pods of a service, as soon as they know what is published.
    pub(super) fn spares_pods(&self, service: &ServiceId) -> bool {
        let services = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        services.get(service).is_none_or(|published| published.has_no_healthy_pod)
    }
}

/// Keeps a cache up to date.
#[derive(Debug)]
pub struct EnvoyPublisher {
    registry: Arc<Registry>,
    cache: Arc<ResourceCache>,
    /// The most requests, connections and waiting requests of a cluster.
    most_requests: u32,
    inputs: watch::Receiver<Inputs>,
    published: watch::Sender<u64>,
    services: Arc<PublishedServices>,
    /// The inputs that the cache has.
    seen: Inputs,
}

impl EnvoyPublisher {
    /// A publisher without routes and gateways, and what changes them.
    pub fn new(
        registry: Arc<Registry>,
        cache: Arc<ResourceCache>,
        most_requests: u32,
    ) -> (Self, EnvoyPublisherHandle) {
        let inputs = watch::Sender::new(Inputs::default());
        let published = watch::Sender::new(0);
        let view = EnvoyPublisherHandle { inputs: inputs.clone(), published: published.subscribe() };
        let made = Self {
            registry,
            cache,
            most_requests,
            inputs: inputs.subscribe(),
            published,
            services: Arc::default(),
            seen: Inputs::default(),
        };
        (made, view)
    }

    /// Which snapshots the cache has.
    pub(super) fn services(&self) -> &Arc<PublishedServices> {
        &self.services
    }

    /// Publishes until the last [`EnvoyPublisherHandle`] is dropped.
    pub async fn run(mut self) {
        // Subscribe before reading: the first call returns all services.
        let mut changes = self.registry.subscribe();
        let mut first = true;
        loop {
            let mut services = BTreeSet::new();
            if !first {
                tokio::select! {
                    ended = self.inputs.changed() => if ended.is_err() { return },
                    all = changes.changed() => services = all,
                }
            }
            // Inputs before services: a service that a route leads to is then known, and both get into one update.
            let inputs = self.inputs.borrow_and_update().clone();
            services.append(&mut changes.take());
            self.publish(&inputs, services, first);
            first = false;
            self.published.send_replace(inputs.revision);
        }
    }

    /// Writes what has changed into the cache, in one update.
    fn publish(&mut self, inputs: &Inputs, mut services: BTreeSet<ServiceId>, first: bool) {
        let mut all = Vec::new();
        let before = std::mem::replace(&mut self.seen, inputs.clone());
        if first || before.routes != inputs.routes {
            self.routes(&before.routes, &inputs.routes, first, &mut all);
            services.extend(moved(&before.routes, &inputs.routes));
        }
        services.extend(before.parked.symmetric_difference(&inputs.parked).cloned());
        if first || before.gateways != inputs.gateways {
            let uses = inputs.routes.backends.iter();
            services.extend(uses.map(|((service, _), _)| service.clone()));
            all.push(set(ResourceType::Endpoints, GATEWAYS_CLUSTER.into(), gateways(&inputs.gateways)));
        }
        let read: Vec<_> = services.into_iter().map(|id| (self.service(&id, inputs, &mut all), id)).collect();
        self.cache.update(all);
        // After the cache: a reader that sees the generation finds it there.
        let mut published = self.services.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (service, id) in read {
            match service {
                Some(service) => published.insert(id, service),
                None => published.remove(&id),
            };
        }
    }

    /// Clusters and routes.
    fn routes(&self, before: &EnvoyRoutes, now: &EnvoyRoutes, first: bool, all: &mut Vec<ResourceChange>) {
        for ((service, port), backend) in &now.backends {
            let known = before.backends.get(&(service.clone(), port.clone()));
            if known.is_none_or(|known| known.protocol != backend.protocol || known.tls != backend.tls) {
                let spec = self.cluster(cluster_name(service, port), backend);
                all.push(set(ResourceType::Cluster, spec.name.clone(), resources::cluster(&spec)));
            }
        }
        for (service, port) in before.backends.keys().filter(|key| !now.backends.contains_key(key)) {
            all.push(remove(ResourceType::Cluster, cluster_name(service, port)));
        }
        if first {
            let backend = EnvoyBackend {
                protocol: PodProtocol::Http1,
                tls: None,
                gateway_use: GatewayUse { always: true, ..GatewayUse::default() },
            };
            let spec = self.cluster(GATEWAYS_CLUSTER.into(), &backend);
            all.push(set(ResourceType::Cluster, spec.name.clone(), resources::cluster(&spec)));
        }
        if first || before.hosts != now.hosts {
            let encoded = resources::routes(ROUTE_CONFIGURATION, &now.hosts);
            all.push(set(ResourceType::Routes, ROUTE_CONFIGURATION.into(), encoded));
        }
    }

    fn cluster(&self, name: Arc<str>, backend: &EnvoyBackend) -> ClusterSpec {
        let EnvoyBackend { protocol, tls, .. } = backend.clone();
        ClusterSpec { name, protocol, tls, most_requests: self.most_requests }
    }

    /// The endpoints of all ports of one service. Returns what is published of it; `None` if it has no ports any more.
    fn service(
        &self,
        id: &ServiceId,
        inputs: &Inputs,
        all: &mut Vec<ResourceChange>,
    ) -> Option<PublishedService> {
        let first_port = (id.clone(), PortName::default());
        let routed = inputs.routes.backends.range(first_port..).take_while(|((service, _), _)| service == id);
        let routed: BTreeMap<&PortName, &EnvoyBackend> = routed.map(|((_, port), it)| (port, it)).collect();
        let snapshot =
            self.registry.get(id).map(|service| Arc::clone(&service.snapshot())).unwrap_or_default();
        let known = snapshot.ports.iter().map(PortView::name);
        let ports: BTreeSet<PortName> = known.chain(routed.keys().copied()).cloned().collect();
        let parked = inputs.parked.contains(id);
        let before = self.services.names(id, 0).unwrap_or_default();
        let mut names = Vec::with_capacity(ports.len());
        let mut has_no_healthy_pod = true;
        for port in &ports {
            let backend = routed.get(port).copied();
            let listed = list(&snapshot, port, backend, parked, &inputs.gateways);
            let takes = |one: &EnvoyEndpoint| {
                one.health == EnvoyHealth::Healthy && matches!(one.target, EnvoyTarget::Pod(_))
            };
            has_no_healthy_pod &= !listed.iter().any(takes);
            let name = cluster_name(id, port);
            let over_tls = backend.is_some_and(|backend| backend.tls.is_some());
            let encoded = resources::endpoints(&name, &listed, over_tls);
            all.push(set(ResourceType::Endpoints, Arc::clone(&name), encoded));
            names.push(name);
        }
        for gone in before.into_iter().filter(|name| !names.contains(name)) {
            all.push(remove(ResourceType::Endpoints, gone));
        }
        (!names.is_empty()).then_some(PublishedService {
            generation: snapshot.generation,
            names,
            has_no_healthy_pod,
        })
    }
}

/// The endpoints of a port. Without a route, no gateway takes its requests.
fn list(
    snapshot: &Snapshot,
    port: &PortName,
    backend: Option<&EnvoyBackend>,
    parked: bool,
    gateways: &[SocketAddr],
) -> Vec<EnvoyEndpoint> {
    let gateway_use = backend.map(|backend| GatewayUse { parked, ..backend.gateway_use });
    endpoints(snapshot, port, gateway_use.unwrap_or_default(), gateways)
}

/// The endpoints of the cluster of the gateways.
fn gateways(addresses: &[SocketAddr]) -> Bytes {
    let healthy = |address: &SocketAddr| EnvoyEndpoint {
        target: EnvoyTarget::Gateway(*address),
        health: EnvoyHealth::Healthy,
    };
    resources::endpoints(GATEWAYS_CLUSTER, &addresses.iter().map(healthy).collect::<Vec<_>>(), false)
}

/// The services whose use of the gateways, or of TLS, differs.
fn moved<'a>(before: &'a EnvoyRoutes, now: &'a EnvoyRoutes) -> impl Iterator<Item = ServiceId> + use<'a> {
    let keys = before.backends.keys().chain(now.backends.keys());
    keys.filter(|key| before.backends.get(key) != now.backends.get(key)).map(|(service, _)| service.clone())
}

fn set(kind: ResourceType, name: Arc<str>, encoded: Bytes) -> ResourceChange {
    ResourceChange { kind, name, encoded: Some(encoded) }
}

fn remove(kind: ResourceType, name: Arc<str>) -> ResourceChange {
    ResourceChange { kind, name, encoded: None }
}
