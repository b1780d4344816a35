//! The control plane of Envoys, which two roles share: its settings and certificate, the resources that follow from routes, services and
//! gateways, and the listener.

pub(crate) mod files;
pub mod settings;

use std::net::SocketAddr;
use std::sync::Arc;

use prometheus_client::registry::Registry as Metrics;
use rouse_config::settings::Values;
use rouse_core::registry::Registry;
use rouse_grpc::GrpcTransport;
use rouse_grpc::report::client::{ParkingCommands, ReportClient};
use rouse_grpc::xds::Access;
use rouse_grpc::xds::publisher::EnvoyPublisherHandle;
use rouse_kube::client::connect::Client;
use rouse_kube::gateway_addresses::{GatewayAddressSettings, GatewayAddresses};
use rouse_net::clock::TokioClock;
use rouse_net::listen::Listener;
use rouse_net::random::system_seed;
use rouse_net::tls::ServerTls;
use rouse_proxy::routing::{Route, RouteTable};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::data_plane::Tasks;
pub(crate) use crate::envoy::LISTENER;
use crate::envoy::{EnvoyClients, EnvoyControlPlane, EnvoyParking, translate};
use crate::failure::CommandError;
use files::XdsFiles;
use settings::{ENVOY_LISTEN, GATEWAYS, POD_NAMESPACE, XDS_CLIENT_SAN};

/// What the control plane is made of.
pub(crate) struct XdsListenerParts<'a> {
    pub(crate) values: &'a Values,
    pub(crate) listener: Listener,
    pub(crate) files: XdsFiles,
    pub(crate) registry: &'a Arc<Registry>,
    /// The client that follows the gateways.
    pub(crate) client: Client,
    /// Where this process itself takes requests, if it does.
    pub(crate) own: Vec<SocketAddr>,
    /// The most requests to one service at a time.
    pub(crate) most_requests: usize,
    pub(crate) clock: TokioClock,
    pub(crate) metrics: &'a mut Metrics,
}

/// A control plane that does not answer yet.
pub(crate) struct XdsStart {
    plane: EnvoyControlPlane,
    parking: EnvoyParking,
    registry: Arc<Registry>,
    gateways: Arc<GatewayAddresses>,
    own: Vec<SocketAddr>,
    listener: Listener,
    clients: EnvoyClients,
    tls: Option<Arc<ServerTls>>,
}

impl XdsStart {
    /// Publishes what follows from the settings alone, and registers the metrics but that of the certificate.
    pub(crate) fn new(parts: XdsListenerParts<'_>) -> Self {
        let XdsListenerParts {
            values,
            listener,
            files,
            registry,
            client,
            own,
            most_requests,
            clock,
            metrics,
        } = parts;
        let most_requests = u32::try_from(most_requests).unwrap_or(u32::MAX);
        let plane = EnvoyControlPlane::new(registry, clock, most_requests, metrics);
        plane.add_listeners(values.get(&ENVOY_LISTEN));
        let settings = GatewayAddressSettings {
            namespace: values.get(&POD_NAMESPACE),
            service: values.get(&GATEWAYS),
            clock: Arc::new(clock),
            seed: system_seed(),
        };
        let gateways = GatewayAddresses::new(client, settings);
        let sans = values.get(&XDS_CLIENT_SAN);
        let clients = EnvoyClients {
            transport: files.tls.clone().map_or(GrpcTransport::Plain, GrpcTransport::Tls),
            // Without names, every certificate of the CAs, which TLS has verified.
            access: if sans.is_empty() { Access::Any } else { Access::Sans(sans) },
            reports: None,
        };
        let (parking, registry) = (EnvoyParking::new(plane.view.clone()), Arc::clone(registry));
        Self { plane, parking, registry, gateways, own, listener, clients, tls: files.tls }
    }

    /// What the client of load reports passes on of the controllers' commands.
    pub(crate) fn commands(&self) -> &ParkingCommands {
        &self.parking.commands
    }

    /// Spawns the tasks. Envoys get no answer before routes and gateways are known; `end` ends their streams. `reports` tells controllers
    /// of their load.
    pub(crate) fn spawn(
        self,
        reports: Option<&ReportClient>,
        tasks: &mut Tasks,
        end: &CancellationToken,
    ) -> Result<XdsControlPlane, CommandError> {
        let Self { plane, parking, registry, gateways, own, listener, mut clients, tls } = self;
        clients.reports = reports.map(ReportClient::envoys);
        let end = end.child_token();
        if let Some(tls) = tls {
            tasks.spawn("the watch over the certificate for Envoys", watch_files(tls, &end));
        }
        let (view, known) = (plane.view.clone(), watch::Sender::new(Known::default()));
        let served =
            plane.serve(listener, clients, all_known(known.subscribe()), (&mut *tasks, end.clone()))?;
        if let Some(reports) = reports {
            parking.start(Arc::new(served.followers), reports, registry, (&mut *tasks, &end));
        }
        tasks.spawn("the list of gateways", follow(gateways.addresses(), own, (view.clone(), known.clone())));
        let running = Arc::clone(&gateways).run(end.clone());
        tasks.spawn_with_reason(async {
            running
                .await
                .map_or_else(|error| error.to_string(), |()| "the watch over the gateways".to_owned())
        });
        Ok(XdsControlPlane { view, gateways, known, opened: served.opened, end })
    }
}

/// A control plane that follows routes, services and gateways.
pub(crate) struct XdsControlPlane {
    view: EnvoyPublisherHandle,
    gateways: Arc<GatewayAddresses>,
    known: watch::Sender<Known>,
    /// True once Envoys get answers.
    opened: watch::Receiver<bool>,
    end: CancellationToken,
}

/// What the resources follow from, as far as it was seen once.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    routes: bool,
    gateways: bool,
}

impl XdsControlPlane {
    /// Ends all streams: Envoys keep what they have, and turn to another replica.
    pub(crate) fn close(&self) {
        self.end.cancel();
    }

    /// Replaces the routes. The first time, all services must be known too.
    pub(crate) fn set_routes(&self, table: &RouteTable<Arc<Route>>) {
        // A gateway holds the requests of each route, and asks for a wake.
        self.view.set_routes(translate(table, |_| true));
        self.known.send_modify(|known| known.routes = true);
    }

    /// Waits until Envoys get answers.
    pub(crate) async fn opened(&self) {
        // Fails only if the listener's task has ended, which its owner notices.
        drop(self.opened.clone().wait_for(|opened| *opened).await);
    }

    /// What was not listed yet.
    pub(crate) fn missing(&self) -> Vec<String> {
        self.gateways.missing()
    }
}

impl Drop for XdsControlPlane {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// Waits until routes, services and gateways were seen.
async fn all_known(mut known: watch::Receiver<Known>) {
    // Fails only if the role has ended.
    drop(known.wait_for(|known| known.routes && known.gateways).await);
}

/// Keeps the gateways of the resources up to date.
async fn follow(
    mut listed: watch::Receiver<Option<Arc<[SocketAddr]>>>,
    own: Vec<SocketAddr>,
    (view, known): (EnvoyPublisherHandle, watch::Sender<Known>),
) {
    let mut had_any = false;
    loop {
        let all = listed.borrow_and_update().clone();
        if let Some(all) = all {
            let all: Vec<SocketAddr> = own.iter().chain(&*all).copied().collect();
            // Without any, the last ones stay: they are about to come back, and there is no better place for a request.
            if all.is_empty() {
                tracing::warn!(
                    "no gateway serves: an Envoy cannot send a request to a service without pods; check --gateways"
                );
            }
            if !all.is_empty() || !had_any {
                had_any |= !all.is_empty();
                view.set_gateways(all);
            }
            known.send_modify(|known| known.gateways = true);
        }
        if listed.changed().await.is_err() {
            return;
        }
    }
}

/// Reloads the certificate whenever its files change.
fn watch_files(tls: Arc<ServerTls>, end: &CancellationToken) -> impl Future<Output = ()> + Send + 'static {
    tls.watch(end.clone(), |loaded| {
        if let Err(error) = loaded {
            tracing::error!(%error, "cannot read the certificate for Envoys; the old one stays in use");
        }
    })
}
