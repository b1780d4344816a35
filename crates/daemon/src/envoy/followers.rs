//! Whether all connected Envoys know the endpoints of a service.

use std::sync::Arc;

use rouse_core::endpoint::ServiceId;
use rouse_grpc::xds::XdsServer;
use rouse_grpc::xds::cache::ResourceCache;
use rouse_grpc::xds::resource_type::ResourceType;

use super::publisher::PublishedServices;

/// The connected Envoys, as those see them who wait for them.
#[derive(Debug)]
pub(crate) struct EnvoyFollowers {
    pub(super) server: XdsServer,
    pub(super) cache: Arc<ResourceCache>,
    pub(super) services: Arc<PublishedServices>,
}

impl EnvoyFollowers {
    /// Whether all Envoys that are subscribed to a service have acknowledged its endpoints of this generation, or of a newer one.
    pub(crate) fn know(&self, service: &ServiceId, generation: u64) -> bool {
        let Some(names) = self.services.names(service, generation) else { return false };
        names.iter().all(|name| {
            let version = self.cache.version(ResourceType::Endpoints, name);
            self.server.acknowledged(ResourceType::Endpoints, name, version)
        })
    }
}
