//! Responses, as they are sent.

use std::sync::Arc;

use super::cache::Resource;
use super::delta::DeltaResponse;
use crate::proto::envoy::service::discovery::v3 as proto;

/// The message of a response.
pub(super) fn delta_message(response: DeltaResponse) -> proto::DeltaDiscoveryResponse {
    let DeltaResponse { url, nonce, resources, removed, .. } = response;
    let resource = |(name, resource): (Arc<str>, Arc<Resource>)| proto::Resource {
        version: format!("{:016x}", resource.version),
        resource: Some(encoded(&url, &resource)),
        name: name.to_string(),
    };
    proto::DeltaDiscoveryResponse {
        system_version_info: String::new(),
        resources: resources.into_iter().map(resource).collect(),
        type_url: url.to_string(),
        nonce: nonce.to_string(),
        removed_resources: removed.iter().map(ToString::to_string).collect(),
    }
}

/// A resource. Its content is shared with the cache.
pub(super) fn encoded(url: &str, resource: &Resource) -> proto::EncodedResource {
    proto::EncodedResource { type_url: url.to_owned(), value: resource.encoded.clone() }
}
