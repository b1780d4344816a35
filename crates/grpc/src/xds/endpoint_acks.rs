//! Whether all connected Envoys know the endpoints of a service.

use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::ServiceId;

use tokio::time::timeout;

use super::XdsServer;
use super::cache::ResourceCache;
use super::publisher::{EnvoyPublisher, PublishedServices};
use super::resource_type::ResourceType;

/// How often is looked at what is published.
const LOOK: Duration = Duration::from_millis(100);

/// The connected Envoys, as those see them who wait for them.
#[derive(Debug)]
pub struct EndpointAcks {
    server: XdsServer,
    cache: Arc<ResourceCache>,
    services: Arc<PublishedServices>,
}

impl EndpointAcks {
    /// Those of `server`, which serves what `publisher` writes into `cache`.
    pub fn new(server: XdsServer, cache: Arc<ResourceCache>, publisher: &EnvoyPublisher) -> Self {
        Self { server, cache, services: Arc::clone(publisher.services()) }
    }

    /// Waits until no Envoy sends new requests of a service to its pods: none of them is published as healthy, and all Envoys that are
    /// subscribed have acknowledged that. At once if it has no endpoints. Without gateways, or without a route here, it waits until
    /// it is cancelled: the pods are still used then.
    pub async fn all_use_gateways(&self, service: &ServiceId) {
        let mut changes = self.server.watch_clients();
        loop {
            let is_published = self.services.names(service, 0).is_some();
            if !is_published || (self.services.spares_pods(service) && self.know(service, 0)) {
                return;
            }
            // What is published changes without a word from a client.
            match timeout(LOOK, changes.changed()).await {
                Ok(Ok(())) | Err(_) => {}
                // The server has ended: no Envoy is connected.
                Ok(Err(_)) => return,
            }
        }
    }

    /// Whether all Envoys that are subscribed to a service have acknowledged its endpoints of this generation, or of a newer one.
    pub fn know(&self, service: &ServiceId, generation: u64) -> bool {
        let Some(names) = self.services.names(service, generation) else { return false };
        names.iter().all(|name| {
            let version = self.cache.version(ResourceType::Endpoints, name);
            self.server.acknowledged_endpoints(name, version)
        })
    }
}
