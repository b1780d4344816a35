//! Composes the control plane of a role: resources, their publisher, and the server that Envoys connect to.

use std::sync::Arc;

use prometheus_client::registry::Registry as Metrics;
use rouse_core::registry::Registry;
use rouse_grpc::GrpcTransport;
use rouse_grpc::xds::cache::ResourceCache;
use rouse_grpc::xds::{Access, XdsMetrics, XdsParts, XdsServer, XdsSettings};
use rouse_net::clock::TokioClock;
use rouse_net::listen::Listener;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::followers::EnvoyFollowers;
use super::publisher::{EnvoyPublisher, EnvoyView};
use crate::data_plane::Tasks;
use crate::failure::{CommandError, failed};

/// A control plane that does not serve yet, so that its role can first set routes.
pub(crate) struct EnvoyControlPlane {
    publisher: EnvoyPublisher,
    cache: Arc<ResourceCache>,
    metrics: XdsMetrics,
    clock: TokioClock,
    /// What Envoys get.
    pub(crate) view: EnvoyView,
}

/// Who may connect, and how.
pub(crate) struct EnvoyClients {
    pub(crate) transport: GrpcTransport,
    pub(crate) access: Access,
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
        Self { publisher, cache, metrics: XdsMetrics::new(metrics), clock, view }
    }

    /// Publishes from now on, and serves once all that is known has been published: an Envoy that connects again would be told to
    /// remove what is missing.
    pub(crate) fn serve(
        self,
        listener: Listener,
        EnvoyClients { transport, access }: EnvoyClients,
        tasks: &mut Tasks,
        end: CancellationToken,
    ) -> Result<EnvoyFollowers, CommandError> {
        let Self { publisher, cache, metrics, clock, view } = self;
        let listener =
            TcpListener::from_std(listener.into_std()).map_err(failed("cannot listen for Envoys"))?;
        let parts = XdsParts { cache: Arc::clone(&cache), access, clock: Arc::new(clock), metrics };
        let server = XdsServer::new(XdsSettings::default(), parts, end);
        let services = Arc::clone(publisher.services());
        let followers = EnvoyFollowers { server: server.clone(), cache, services };
        tasks.spawn("the publisher for Envoys", publisher.run());
        tasks.spawn("the listener for Envoys", async move {
            view.settled().await;
            server.serve(listener, transport).await;
        });
        Ok(followers)
    }
}
