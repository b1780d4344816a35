//! The load that Envoys report, and what controllers hear of it: who is connected, and which services all Envoys send to the gateways.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::{ServiceId, State};
use rouse_core::registry::Registry;
use rouse_core::scale::{EnvoyId, EnvoyServices};
use rouse_core::snapshot::PortView;
use rouse_grpc::report::client::{
    EnvoyReports, ParkingCommands, ParkingWorker, ReportClient, ZeroPreparer, parking,
};
use rouse_grpc::xds::load::{ConnectedEnvoy, EnvoyLoadServer};
use rouse_grpc::xds::names::parse_cluster_name;
use rouse_grpc::xds::publisher::EnvoyPublisherHandle;
use rouse_grpc::xds::{ConnectedClient, EndpointAcks, XdsServer};
use rouse_net::auth::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::data_plane::Tasks;

/// The pause between two lists of the connected Envoys.
const LIST_PAUSE: Duration = Duration::from_secs(1);

/// Passes on to controllers what concerns Envoys. A client of reports takes the commands.
pub(crate) struct EnvoyParking {
    pub(crate) commands: ParkingCommands,
    worker: ParkingWorker,
    preparer: Arc<Preparer>,
}

impl EnvoyParking {
    /// Carries out nothing yet.
    pub(crate) fn new(view: EnvoyPublisherHandle) -> Self {
        let preparer = Arc::new(Preparer { view, followers: watch::Sender::new(None) });
        let (commands, worker) = parking(Arc::clone(&preparer) as _);
        Self { commands, worker, preparer }
    }

    /// Carries out commands from now on, and answers by `client`.
    pub(crate) fn start(
        self,
        followers: Arc<EndpointAcks>,
        client: &ReportClient,
        registry: Arc<Registry>,
        (tasks, end): (&mut Tasks, &CancellationToken),
    ) {
        let Self { commands, worker, preparer } = self;
        preparer.followers.send_replace(Some(followers));
        tasks.spawn("the preparation of services for zero", worker.run(client.parking(), end.clone()));
        tasks.spawn("the end of preparations for zero", pods_gone(registry, preparer.view.clone(), commands));
    }
}

/// Publishes what is parked, and waits for the Envoys.
struct Preparer {
    view: EnvoyPublisherHandle,
    /// The connected Envoys, once they are served.
    followers: watch::Sender<Option<Arc<EndpointAcks>>>,
}

impl ZeroPreparer for Preparer {
    fn prepare_zero(&self, service: &ServiceId) -> BoxFuture<'static, ()> {
        let (view, mut followers, service) = (self.view.clone(), self.followers.subscribe(), service.clone());
        // Now, and not in the task: a cancellation that comes before its first step would be undone by it.
        view.set_parked(&service, true);
        Box::pin(async move {
            view.published().await;
            // Fails only if the role has ended, and then the preparation is dropped too.
            let Ok(Some(followers)) = followers.wait_for(Option::is_some).await.map(|known| known.clone())
            else {
                return;
            };
            followers.all_use_gateways(&service).await;
        })
    }

    fn cancel(&self, service: &ServiceId) {
        self.view.set_parked(service, false);
    }
}

/// Ends the preparation of a service when its last ready pod is gone: the pods of the next wake are served directly.
async fn pods_gone(registry: Arc<Registry>, view: EnvoyPublisherHandle, commands: ParkingCommands) {
    let mut changes = registry.subscribe();
    loop {
        for service in changes.changed().await.into_iter().filter(|service| view.is_parked(service)) {
            let ready = registry.get(&service).is_some_and(|known| {
                let snapshot = Arc::clone(&known.snapshot());
                let mut all = snapshot.ports.iter().flat_map(PortView::endpoints);
                all.any(|endpoint| endpoint.state == State::Ready)
            });
            if !ready {
                commands.pods_gone(&service);
            }
        }
    }
}

/// Takes the load of the Envoys that are connected to `server`, and tells controllers of them, until the server stops.
pub(super) fn follow(
    server: XdsServer,
    loads: EnvoyLoadServer,
    reports: Option<EnvoyReports>,
    tasks: &mut Tasks,
) {
    let (connected, envoys) = watch::channel(Arc::from([]));
    tasks.spawn("the list of Envoys", async move {
        let mut changes = server.watch_clients();
        loop {
            changes.mark_unchanged();
            connected.send_replace(connected_envoys(&server.clients()));
            // Each acknowledgement is a change too, and a list of ten thousand names is not made for each.
            sleep_until(Instant::now() + LIST_PAUSE).await;
            if changes.changed().await.is_err() {
                return;
            }
        }
    });
    tasks.spawn("the load of Envoys", async move {
        loads
            .run(envoys, |states| {
                if let Some(reports) = &reports {
                    reports.set(states);
                }
            })
            .await;
    });
}

/// The Envoys that have endpoints from here: each once, with the services of all its streams.
fn connected_envoys(clients: &[ConnectedClient]) -> Arc<[ConnectedEnvoy]> {
    let mut all: BTreeMap<EnvoyId, BTreeSet<ServiceId>> = BTreeMap::new();
    for client in clients.iter().filter(|client| !client.endpoints.is_empty()) {
        let id = EnvoyId::new(client.identity.san.as_deref().unwrap_or_default(), &client.node_id);
        let services = client.endpoints.iter().filter_map(|name| Some(parse_cluster_name(name)?.0));
        all.entry(id).or_default().extend(services);
    }
    let envoy = |(id, services)| ConnectedEnvoy { id, services: EnvoyServices::Named(services) };
    all.into_iter().map(envoy).collect()
}

#[cfg(test)]
mod tests {
    use rouse_grpc::xds::ClientIdentity;

    use super::*;

    #[test]
    fn an_envoy_is_its_certificate_and_its_name_with_the_services_of_all_its_streams() {
        let client = |san: Option<&str>, node: &str, stream: u64, names: &[&str]| ConnectedClient {
            identity: ClientIdentity { san: san.map(Into::into), peer: "127.0.0.1:1".parse().unwrap() },
            node_id: node.to_owned(),
            stream,
            endpoints: names.iter().map(|name| (*name).into()).collect(),
        };
        let found = connected_envoys(&[
            client(Some("edge"), "one", 1, &["shop/cart:http", "rouse-gateways"]),
            client(Some("edge"), "one", 2, &["shop/till"]),
            client(None, "one", 3, &["shop/cart:http"]),
            client(Some("edge"), "nothing", 4, &[]),
        ]);
        let named = |names: &[&str]| {
            EnvoyServices::Named(names.iter().map(|name| name.parse::<ServiceId>().unwrap()).collect())
        };
        let expected = [
            ConnectedEnvoy { id: EnvoyId::new("", "one"), services: named(&["shop/cart"]) },
            ConnectedEnvoy { id: EnvoyId::new("edge", "one"), services: named(&["shop/cart", "shop/till"]) },
        ];
        assert_eq!(&*found, &expected[..]);
    }
}
