//! All resources, each encoded once for all streams, with a version that is the hash of its content.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::resource_type::ResourceType;

/// One resource, as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Resource {
    /// The hash of its content.
    pub version: u64,
    /// The encoded message.
    pub encoded: Bytes,
}

/// A resource to set or to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceChange {
    /// What it is.
    pub kind: ResourceType,
    /// Its name.
    pub name: Arc<str>,
    /// The encoded message; `None` removes it.
    pub encoded: Option<Bytes>,
}

/// All resources of a control plane.
#[derive(Debug, Default)]
pub struct ResourceCache {
    resources: Mutex<HashMap<(ResourceType, Arc<str>), Arc<Resource>>>,
}

impl ResourceCache {
    /// Applies changes in one step. Streams are told of those that change something.
    pub fn update(&self, changes: impl IntoIterator<Item = ResourceChange>) {
        let mut resources = self.resources.lock().unwrap_or_else(PoisonError::into_inner);
        for ResourceChange { kind, name, encoded } in changes {
            match encoded {
                Some(encoded) => {
                    let resource = Resource { version: 0, encoded };
                    resources.insert((kind, name), Arc::new(resource));
                }
                None => {
                    resources.remove(&(kind, name));
                }
            }
        }
    }
}
