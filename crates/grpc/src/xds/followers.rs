//! Whether all connected Envoys know the endpoints of a service.

use std::sync::Arc;

use rouse_core::endpoint::ServiceId;

use super::XdsServer;
use super::cache::ResourceCache;
use super::publisher::{EnvoyPublisher, PublishedServices};
use super::resource_type::ResourceType;

/// The connected Envoys, as those see them who wait for them.
#[derive(Debug)]
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

    /// Waits until all Envoys that are subscribed to a service have acknowledged its present endpoints. At once if it has none.
    pub async fn all_know(&self, service: &ServiceId) {
        let mut changes = self.server.watch_clients();
        while self.services.names(service, 0).is_some() && !self.know(service, 0) {
            // Fails only if the server has ended, and then no Envoy is connected.
            if changes.changed().await.is_err() {
                return;
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
