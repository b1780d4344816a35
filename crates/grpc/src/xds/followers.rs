//! Whether all connected Envoys know the endpoints of a service.

use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::scale::{EnvoyId, EnvoyServices};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::XdsServer;
use super::cache::ResourceCache;
use super::clients::ConnectedClient;
use super::load::ConnectedEnvoy;
use super::names::parse_cluster_name;
use super::publisher::{EnvoyPublisher, PublishedServices};
use super::resource_type::ResourceType;

/// The pause between two lists of connected Envoys.
const LIST_PAUSE: Duration = Duration::from_secs(1);
/// An Envoy with more services counts as one that uses all.
const MAX_NAMED: usize = 1000;

/// The connected Envoys, as those see them who wait for them.
#[derive(Debug, Clone)]
pub struct EnvoyFollowers {
    server: XdsServer,
    cache: Arc<ResourceCache>,
    services: Arc<PublishedServices>,
}

impl EnvoyFollowers {
    /// Those of `server`, which serves what `publisher` writes into `cache`.
    pub fn new(server: XdsServer, cache: Arc<ResourceCache>, publisher: &EnvoyPublisher) -> Self {
        Self { server, cache, services: Arc::clone(publisher.services()) }
    }

    /// The names of the endpoints of a service at this generation, or a newer one, once they are published.
    fn names(&self, service: &ServiceId, generation: u64) -> Option<Vec<Arc<str>>> {
        self.services.names(service, generation)
    }

    /// Whether all Envoys that are subscribed to a service have acknowledged its endpoints of this generation, or of a newer one.
    pub fn know(&self, service: &ServiceId, generation: u64) -> bool {
        let Some(names) = self.names(service, generation) else { return false };
        names.iter().all(|name| {
            let version = self.cache.version(ResourceType::Endpoints, name);
            self.server.acknowledged_endpoints(name, version)
        })
    }

    /// Waits until all Envoys have acknowledged what is published of a service.
    pub async fn known(&self, service: &ServiceId) {
        let mut changes = self.server.watch_clients();
        loop {
            // Before the question: an answer that comes meanwhile is not missed.
            changes.borrow_and_update();
            // Without endpoints, no Envoy has to know anything.
            if self.names(service, 0).is_none() || self.know(service, 0) {
                return;
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Keeps the list of connected Envoys up to date, for the accounts of their load.
    pub async fn list_connected(&self, connected: watch::Sender<Arc<[ConnectedEnvoy]>>) {
        let mut changes = self.server.watch_clients();
        loop {
            changes.borrow_and_update();
            let all: Arc<[_]> = self.server.clients().iter().filter_map(connected_envoy).collect();
            connected.send_if_modified(|known| {
                let changed = *known != all;
                *known = all;
                changed
            });
            // Each acknowledgement is a change too.
            sleep_until(Instant::now() + LIST_PAUSE).await;
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// A client that has said who it is and uses endpoints. A stream that was just opened has not.
fn connected_envoy(client: &ConnectedClient) -> Option<ConnectedEnvoy> {
    if client.node_id.is_empty() || client.endpoints.is_empty() {
        return None;
    }
    let id = EnvoyId::new(client.identity.san.as_deref().unwrap_or_default(), &client.node_id);
    let services = if client.endpoints.len() > MAX_NAMED {
        EnvoyServices::All
    } else {
        let names = client.endpoints.iter().filter_map(|name| parse_cluster_name(name));
        EnvoyServices::Named(names.map(|(service, _)| service).collect())
    };
    Some(ConnectedEnvoy { id, services })
}
