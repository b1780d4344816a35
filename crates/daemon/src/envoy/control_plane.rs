//! Composes the control plane of a role: resources, their publisher, and the server that Envoys connect to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry as Metrics;
use rouse_core::registry::Registry;
use rouse_grpc::GrpcTransport;
use rouse_grpc::report::client::EnvoyReports;
use rouse_grpc::xds::cache::{ResourceCache, ResourceChange};
use rouse_grpc::xds::load::{EnvoyLoadMetrics, EnvoyLoadParts, EnvoyLoadServer};
use rouse_grpc::xds::names::ROUTE_CONFIGURATION;
use rouse_grpc::xds::publisher::{EnvoyPublisher, EnvoyPublisherHandle};
use rouse_grpc::xds::resource_type::ResourceType;
use rouse_grpc::xds::{Access, EndpointAcks, XdsMetrics, XdsParts, XdsServer, XdsSettings, resources};
use rouse_net::clock::TokioClock;
use rouse_net::listen::Listener;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::loads;
use crate::data_plane::Tasks;
use crate::failure::{CommandError, failed};

/// The name of the listener's task.
pub(crate) const LISTENER: &str = "the listener for Envoys";
/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A control plane that does not serve yet, so that its role can first set routes.
pub(crate) struct EnvoyControlPlane {
    publisher: EnvoyPublisher,
    cache: Arc<ResourceCache>,
    metrics: (XdsMetrics, EnvoyLoadMetrics),
    registry: Arc<Registry>,
    clock: TokioClock,
    /// What Envoys get.
    pub(crate) view: EnvoyPublisherHandle,
}

/// Who may connect, and how.
pub(crate) struct EnvoyClients {
    pub(crate) transport: GrpcTransport,
    pub(crate) access: Access,
    /// Tells controllers of them.
    pub(crate) reports: Option<EnvoyReports>,
}

/// What a role needs of its Envoys.
pub(crate) struct EnvoysServed {
    pub(crate) followers: EndpointAcks,
    /// True once Envoys get answers.
    pub(crate) opened: watch::Receiver<bool>,
}

impl EnvoyControlPlane {
    /// A control plane for the services of `registry`. A cluster has at most `most_requests` requests, connections and waiting requests.
    pub(crate) fn new(
        registry: &Arc<Registry>,
        clock: TokioClock,
        most_requests: u32,
        metrics: &mut Metrics,
    ) -> Self {
        let cache = Arc::<ResourceCache>::default();
        let (publisher, view) = EnvoyPublisher::new(Arc::clone(registry), Arc::clone(&cache), most_requests);
        let metrics = (XdsMetrics::new(metrics), EnvoyLoadMetrics::new(metrics));
        Self { publisher, cache, metrics, registry: Arc::clone(registry), clock, view }
    }

    /// Has all Envoys listen for requests at these addresses.
    pub(crate) fn add_listeners(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        self.cache.update(addresses.into_iter().map(|address| {
            let name = format!("rouse-{address}");
            let encoded = resources::listener(&name, address, ROUTE_CONFIGURATION);
            ResourceChange { kind: ResourceType::Listener, name: name.into(), encoded: Some(encoded) }
        }));
    }

    /// Publishes from now on, and serves once `known` has ended and all that is known has been published: an Envoy that connects again
    /// would be told to remove what is missing. Until then, connections are closed, so that an Envoy turns to another replica.
    pub(crate) fn serve(
        self,
        listener: Listener,
        EnvoyClients { transport, access, reports }: EnvoyClients,
        known: impl Future<Output = ()> + Send + 'static,
        (tasks, end): (&mut Tasks, CancellationToken),
    ) -> Result<EnvoysServed, CommandError> {
        let Self { publisher, cache, metrics: (metrics, of_loads), registry, clock, view } = self;
        let listener =
            TcpListener::from_std(listener.into_std()).map_err(failed("cannot listen for Envoys"))?;
        let parts = XdsParts { cache: Arc::clone(&cache), access, clock: Arc::new(clock), metrics };
        let loads = EnvoyLoadParts { meters: registry, clock: Arc::new(clock), metrics: of_loads };
        let loads = EnvoyLoadServer::new(loads, end.clone());
        let server = XdsServer::new(XdsSettings::default(), parts, end.clone()).with_loads(&loads);
        loads::follow(server.clone(), loads, reports, tasks);
        let followers = EndpointAcks::new(server.clone(), cache, &publisher);
        tasks.spawn("the publisher for Envoys", publisher.run());
        let (open, opened) = watch::channel(false);
        tasks.spawn(LISTENER, async move {
            let complete = async {
                known.await;
                view.settled().await;
            };
            tokio::select! {
                () = end.cancelled() => return,
                () = complete => {}
                () = turn_away(&listener) => return,
            }
            open.send_replace(true);
            server.serve(listener, transport).await;
        });
        Ok(EnvoysServed { followers, opened })
    }
}

/// Closes each connection. Never returns.
async fn turn_away(listener: &TcpListener) {
    loop {
        if listener.accept().await.is_err() {
            // For example without free file descriptors: an immediate retry would spin.
            sleep_until(Instant::now() + ACCEPT_PAUSE).await;
        }
    }
}
