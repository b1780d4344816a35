//! The Kubernetes engine: starts the modules that follow one cluster, and wakes its workloads.
//!
//! Each module owns its state and its tasks. What a module needs of another one goes through `Wiring`, so that none of
//! them imports another.

mod wiring;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kube::Client;
use prometheus_client::registry::Registry as Metrics;
use rouse_core::endpoint::ServiceId;
use rouse_core::engine::Engine;
use rouse_core::merge::MergePolicy;
use rouse_core::registry::Registry;
use rouse_core::time::Clock;
use rouse_net::auth::Ownership;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::issuer_keys::IssuerKeyClient;
use crate::client::token_review::TokenReviewClient;
use crate::client::watch::WatchReport;
use crate::client::{ObjectKind, WatchedKind, Watches};
use crate::endpoints::pod_index::PodIndex;
use crate::endpoints::{
    EndpointController, EndpointPolicy, EndpointSettings, ManualEndpoints, PropagationMeter, PushOwnership,
    PushSettings,
};
pub use crate::events::ClusterEvent;
use crate::events::EventSender;
use crate::routes::RoutePlanner;
pub use crate::routes::RoutePlans;
pub use crate::routes::RouteSettings;
use crate::tasks::{self, TaskEnded};
use crate::wake::Waker;
use wiring::Wiring;

/// The kinds that are always watched. Pods are not required: the gateway works without the permission to see them.
const WATCHED: [WatchedKind; 5] = [
    WatchedKind::required(ObjectKind::SLICE),
    WatchedKind::required(ObjectKind::SERVICE),
    WatchedKind::required(ObjectKind::ROUTE),
    WatchedKind::required(ObjectKind::HTTP_SCALED_OBJECT),
    WatchedKind::optional(ObjectKind::POD),
];

/// The operator's settings for one cluster.
#[derive(Clone)]
pub struct ClusterSettings {
    /// The one namespace that is watched; `None`: all.
    pub namespace: Option<String>,
    /// Whether endpoints without a pod get traffic in every service. The registry's own policy must allow them in any
    /// case: this crate filters them, service by service.
    pub manual_endpoints: bool,
    /// The namespaces whose Services may allow endpoints without a pod by annotation.
    pub manual_endpoints_of: BTreeSet<String>,
    /// The addresses on which this gateway listens. Endpoints there get no requests: they would loop.
    pub own_addresses: Vec<SocketAddr>,
    /// How long the watch of slices may be broken before snapshots are marked stale.
    pub stale_after: Duration,
    /// Whether pods on the network of their node (`hostNetwork`) may register themselves. They share the address of the node, so
    /// one of them could register what another one serves.
    pub host_network_pushes: bool,
    /// The lease of a push, as in the registry's merge policy.
    pub push_lease: Duration,
    /// The client of requests that registrations cause. It must be another one than that of the watches if registrations have
    /// a runtime of their own: a connection runs in the runtime that opened it. `None`: that of the watches.
    pub registration_client: Option<Client>,
    /// Whether services are woken and workloads looked up. Without this and [`RouteSettings::write_status`], nothing is written.
    pub wakes: bool,
    /// The registry's clock.
    pub clock: Arc<dyn Clock>,
    /// The seed for jitter.
    pub seed: u64,
    /// What concerns routes.
    pub routes: RouteSettings,
}

impl ClusterSettings {
    /// The defaults: the whole cluster, no manual endpoints, services are woken, conditions are written, certificates are not checked,
    /// requests go to pods.
    pub fn new(clock: Arc<dyn Clock>, time_of_day: fn() -> SystemTime, seed: u64) -> Self {
        Self {
            namespace: None,
            manual_endpoints: false,
            manual_endpoints_of: BTreeSet::new(),
            own_addresses: Vec::new(),
            stale_after: Duration::from_secs(10),
            host_network_pushes: false,
            push_lease: MergePolicy::default().lease,
            registration_client: None,
            wakes: true,
            routes: RouteSettings::new(Arc::clone(&clock), time_of_day),
            clock,
            seed,
        }
    }

    fn push_settings(&self) -> PushSettings {
        PushSettings {
            namespace: self.namespace.clone(),
            host_network: self.host_network_pushes,
            lease: self.push_lease,
            own_addresses: self.own_addresses.clone(),
        }
    }

    fn endpoint_settings(&self) -> EndpointSettings {
        let manual = if self.manual_endpoints {
            ManualEndpoints::Everywhere
        } else {
            ManualEndpoints::In(self.manual_endpoints_of.clone())
        };
        let policy = EndpointPolicy { manual, own: self.own_addresses.clone() };
        EndpointSettings { policy, stale_after: self.stale_after }
    }
}

/// The engine for one Kubernetes cluster.
pub struct Cluster {
    settings: ClusterSettings,
    watches: Arc<Watches>,
    pods: Arc<PodIndex>,
    propagation: Arc<PropagationMeter>,
    push: Arc<PushOwnership>,
    planner: Arc<RoutePlanner>,
    waker: Arc<Waker>,
    events: EventSender,
    registration_client: Client,
}

impl Cluster {
    /// Watches nothing yet. Make the registry with this as its engine, and call [`Cluster::run`] with that registry.
    pub fn new(client: Client, settings: ClusterSettings) -> Arc<Self> {
        let events = EventSender::new();
        let (namespace, clock) = (settings.namespace.as_deref(), Arc::clone(&settings.clock));
        let pods = Arc::<PodIndex>::default();
        let registration_client = settings.registration_client.clone().unwrap_or_else(|| client.clone());
        let push = PushOwnership::new(
            registration_client.clone(),
            Arc::clone(&pods),
            Arc::clone(&clock),
            settings.push_settings(),
        );
        let watches = Arc::new(Watches::new(client, namespace, &WATCHED, clock, settings.seed));
        let planner = Arc::new(RoutePlanner::new(settings.routes.clone(), &watches, &events));
        let waker = Arc::new(Waker::new(watches.client(), planner.serving(), events.clone()));
        let push = Arc::new(push);
        let propagation = Arc::new(PropagationMeter::new(settings.routes.time_of_day));
        Arc::new(Self {
            settings,
            watches,
            pods,
            propagation,
            push,
            planner,
            waker,
            events,
            registration_client,
        })
    }

    /// Registers the metric of how long changes of pods take until they are published. Call it once.
    pub fn register_metrics(&self, metrics: &mut Metrics) {
        self.propagation.register(metrics);
    }

    /// All routes, whenever they change. Before [`Cluster::synced`] there are none.
    pub fn plans(&self) -> watch::Receiver<RoutePlans> {
        self.planner.plans()
    }

    /// The index of all pods, from which probes are planned.
    pub fn pods(&self) -> &Arc<PodIndex> {
        &self.pods
    }

    /// Checks the claims of pods that register themselves. Claims can be decided while [`Cluster::run`] runs.
    pub fn push_ownership(&self) -> Arc<dyn Ownership> {
        Arc::clone(&self.push) as _
    }

    /// Asks the API server whether tokens are valid and which pods they are bound to.
    pub fn token_reviews(&self) -> TokenReviewClient {
        TokenReviewClient::new(self.registration_client.clone())
    }

    /// The issuer of the cluster's tokens and its public keys.
    pub fn issuer_keys(&self) -> IssuerKeyClient {
        IssuerKeyClient::new(self.registration_client.clone())
    }

    /// Whether all slices, Services and routes have been seen once and their routes published. Stays true.
    pub fn is_synced(&self) -> bool {
        *self.planner.synced().borrow()
    }

    /// Waits for [`Cluster::is_synced`].
    pub async fn synced(&self) {
        // `self` owns the sender, so the channel is never closed.
        drop(self.planner.synced().wait_for(|synced| *synced).await);
    }

    /// The kinds that must be seen before requests are served and were not yet, each with the reason.
    pub fn missing(&self) -> Vec<String> {
        self.watches.missing()
    }

    /// The state of each watch.
    pub fn watches(&self) -> Vec<WatchReport> {
        self.watches.reports()
    }

    /// Events for the operator's log, from now on.
    pub fn events(&self) -> broadcast::Receiver<ClusterEvent> {
        self.events.subscribe()
    }

    /// Follows the cluster until `cancel`. Owns every task; call it once.
    pub async fn run(
        self: Arc<Self>,
        registry: Arc<Registry>,
        cancel: CancellationToken,
    ) -> Result<(), TaskEnded> {
        let endpoints = Arc::new(EndpointController::new(
            Arc::clone(&registry),
            Arc::clone(&self.pods),
            Arc::clone(&self.propagation),
            Arc::clone(&self.push),
            Arc::clone(&self.watches),
            self.settings.endpoint_settings(),
            self.events.clone(),
        ));
        self.push.attach(&registry, &endpoints);
        let wiring = Arc::new(Wiring {
            registry: Arc::clone(&registry),
            endpoints: Arc::clone(&endpoints),
            planner: Arc::clone(&self.planner),
            waker: Arc::clone(&self.waker),
        });
        let (mut tasks, inner) = (JoinSet::new(), cancel.child_token());
        endpoints.spawn(&wiring, &mut tasks, &inner);
        let watches = Arc::clone(&self.watches);
        let all_seen = async move {
            watches.all_seen().await;
            // Endpoints must not wait for pods that cannot be watched.
            endpoints.check_pods();
        };
        self.planner.spawn(&wiring, all_seen, &mut tasks, &inner);
        if self.settings.wakes {
            self.waker.spawn(&registry, &wiring, &mut tasks, &inner);
        }
        tasks.spawn(self.events.clone().report_watches(Arc::clone(&self.watches), inner.clone()));
        tasks::run(tasks, inner, cancel).await
    }
}

impl Engine for Cluster {
    fn wake(&self, service: &ServiceId) {
        if self.settings.wakes {
            self.waker.request(service);
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("watches", &self.watches()).finish_non_exhaustive()
    }
}
