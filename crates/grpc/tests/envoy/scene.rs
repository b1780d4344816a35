//! The xDS server and an Envoy that follows it.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry as Metrics;
use rouse_core::envoy::{EnvoyEndpoint, EnvoyHealth, EnvoyTarget};
use rouse_grpc::GrpcTransport;
use rouse_grpc::xds::cache::{ResourceCache, ResourceChange};
use rouse_grpc::xds::resource_type::ResourceType;
use rouse_grpc::xds::resources::{
    ClusterSpec, HostRoutes, PathRoute, PodProtocol, PodTls, RouteAction, cluster, endpoints, listener,
    routes,
};
use rouse_grpc::xds::{Access, XdsMetrics, XdsParts, XdsServer, XdsSettings};
use rouse_net::clock::TokioClock;
use rouse_testkit::envoy::{Envoy, EnvoyHost, binary, bootstrap};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The name of the listener and of its routes.
const HTTP: &str = "http";

pub(crate) struct Scene {
    pub(crate) envoy: Envoy,
    cache: Arc<ResourceCache>,
    metrics: Metrics,
    // Ends with the scene.
    _tasks: JoinSet<()>,
}

impl Scene {
    pub(crate) async fn start() -> Self {
        let (mut metrics, cache) = (Metrics::default(), Arc::<ResourceCache>::default());
        let parts = XdsParts {
            cache: Arc::clone(&cache),
            access: Access::Any,
            clock: Arc::new(TokioClock::new()),
            metrics: XdsMetrics::new(&mut metrics),
        };
        let server = XdsServer::new(XdsSettings::default(), parts, CancellationToken::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { server.serve(listener, GrpcTransport::Plain).await });
        let envoy = Envoy::start(&binary().unwrap(), bootstrap("test", address)).await;
        Self { envoy, cache, metrics, _tasks: tasks }
    }

    /// Sets one resource.
    pub(crate) fn set(&self, kind: ResourceType, name: &str, encoded: Bytes) {
        self.cache.update([ResourceChange { kind, name: name.into(), encoded: Some(encoded) }]);
    }

    /// A cluster in plain text.
    pub(crate) fn cluster(&self, name: &str, protocol: PodProtocol) {
        self.set(ResourceType::Cluster, name, cluster(&spec(name, protocol, None)));
    }

    /// Sets the endpoints of a cluster, and waits until Envoy has exactly them.
    pub(crate) async fn endpoints(&self, name: &str, all: &[EnvoyEndpoint], pods_over_tls: bool) {
        self.set(ResourceType::Endpoints, name, endpoints(name, all, pods_over_tls));
        let hosts = all
            .iter()
            .map(|one| EnvoyHost { address: one.target.address().unwrap(), health: one.health.to_string() });
        self.envoy.wait_for_hosts(name, &hosts.collect::<Vec<_>>()).await;
    }

    /// Listens with these routes, and returns the address.
    pub(crate) async fn listen(&self, hosts: &[HostRoutes]) -> SocketAddr {
        self.set(ResourceType::Routes, HTTP, routes(HTTP, hosts));
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        self.set(ResourceType::Listener, HTTP, listener(HTTP, any_port, HTTP));
        self.envoy.listener(HTTP).await
    }

    /// Listens for clusters: the host of each is its name, with `.` for `/`.
    pub(crate) async fn listen_for(&self, clusters: &[&str]) -> SocketAddr {
        let hosts = clusters.iter().map(|name| HostRoutes {
            domain: name.replace('/', "."),
            routes: vec![route("", forward(name))],
        });
        self.listen(&hosts.collect::<Vec<_>>()).await
    }

    /// The metrics page of the server.
    pub(crate) fn metrics(&self) -> String {
        let mut page = String::new();
        encode(&mut page, &self.metrics).unwrap();
        page
    }
}

pub(crate) fn spec(name: &str, protocol: PodProtocol, tls: Option<PodTls>) -> ClusterSpec {
    ClusterSpec { name: name.into(), protocol, tls, most_requests: 10_000 }
}

pub(crate) fn forward(cluster: &str) -> RouteAction {
    RouteAction::Forward { cluster: cluster.into(), timeout: None }
}

pub(crate) fn route(prefix: &str, action: RouteAction) -> PathRoute {
    PathRoute { name: format!("test{prefix}"), prefix: prefix.to_owned(), headers: Vec::new(), action }
}

pub(crate) fn pod(address: SocketAddr, health: EnvoyHealth) -> EnvoyEndpoint {
    EnvoyEndpoint { target: EnvoyTarget::Pod([address].into()), health }
}

pub(crate) fn gateway(address: SocketAddr) -> EnvoyEndpoint {
    EnvoyEndpoint { target: EnvoyTarget::Gateway(address), health: EnvoyHealth::Healthy }
}
