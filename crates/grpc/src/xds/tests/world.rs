//! A control plane in small: routes name clusters that exist, in every update.

use std::collections::BTreeMap;

use super::super::cache::{ResourceCache, ResourceChange};
use super::super::resource_type::ResourceType;

/// How many names there are of each type.
pub(super) const NAMES: usize = 4;

/// A name. All types use the same ones.
pub(super) fn name(number: usize) -> &'static str {
    ["a", "b", "c", "d"][number]
}

/// The clusters that a route names: its first byte has one bit for each.
pub(super) fn clusters_of(route: &[u8]) -> Vec<&'static str> {
    (0..NAMES).filter(|number| route[0] & (1 << number) != 0).map(name).collect()
}

/// The publisher.
pub(super) struct World {
    pub(super) cache: ResourceCache,
    clusters: BTreeMap<usize, u8>,
    routes: BTreeMap<usize, u8>,
}

fn change(kind: ResourceType, number: usize, content: Option<u8>) -> ResourceChange {
    ResourceChange { kind, name: name(number).into(), encoded: content.map(|content| vec![content].into()) }
}

impl World {
    pub(super) fn new() -> Self {
        // So few that a stream is often too far behind.
        Self { cache: ResourceCache::with_log(6), clusters: BTreeMap::new(), routes: BTreeMap::new() }
    }

    pub(super) fn set(&self, kind: ResourceType, number: usize, content: Option<u8>) {
        self.cache.update([change(kind, number, content)]);
    }

    pub(super) fn set_cluster(&mut self, number: usize, content: u8) {
        self.clusters.insert(number, content);
        self.set(ResourceType::Cluster, number, Some(content));
    }

    /// The routes to it change with it.
    pub(super) fn remove_cluster(&mut self, number: usize) {
        self.clusters.remove(&number);
        let mut changes = vec![change(ResourceType::Cluster, number, None)];
        for (route, clusters) in &mut self.routes {
            *clusters &= !(1 << number);
            changes.push(change(ResourceType::Routes, *route, Some(*clusters)));
        }
        self.cache.update(changes);
    }

    /// The clusters that it names come with it, after it.
    pub(super) fn set_route(&mut self, number: usize, clusters: Option<u8>) {
        let mut changes = vec![change(ResourceType::Routes, number, clusters)];
        match clusters {
            Some(clusters) => {
                self.routes.insert(number, clusters);
                for cluster in (0..NAMES).filter(|number| clusters & (1 << number) != 0) {
                    let content = *self.clusters.entry(cluster).or_insert(7);
                    changes.push(change(ResourceType::Cluster, cluster, Some(content)));
                }
            }
            None => _ = self.routes.remove(&number),
        }
        self.cache.update(changes);
    }
}
