//! All resources, each encoded once for all streams, with a version that is the hash of its content, and a log of what changed.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::Hasher as _;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use tokio::sync::watch;

use super::resource_type::{PerType, ResourceType};

/// How many changes are remembered. A stream that is further behind compares all resources.
const LOG: usize = 65_536;

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
#[derive(Debug)]
pub struct ResourceCache {
    state: RwLock<State>,
    newest: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    resources: PerType<HashMap<Arc<str>, Arc<Resource>>>,
    /// The newest changes, oldest first. The last one has the number `newest`.
    log: VecDeque<(ResourceType, Arc<str>)>,
    log_limit: usize,
    newest: u64,
}

/// The resources at one point in time: no change is applied while it exists.
#[derive(Debug)]
pub(crate) struct CacheView<'a>(RwLockReadGuard<'a, State>);

impl Default for ResourceCache {
    fn default() -> Self {
        Self::with_log(LOG)
    }
}

impl ResourceCache {
    /// An empty cache that remembers this many changes.
    pub(crate) fn with_log(log_limit: usize) -> Self {
        let state = State { resources: PerType::default(), log: VecDeque::new(), log_limit, newest: 0 };
        Self { state: RwLock::new(state), newest: watch::Sender::new(0) }
    }

    /// Applies changes in one step. Streams are told of those that change something.
    pub fn update(&self, changes: impl IntoIterator<Item = ResourceChange>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            state.apply(change);
        }
        let newest = state.newest;
        // Under the lock, so that the number that streams wake up for never goes back.
        self.newest.send_if_modified(|known| std::mem::replace(known, newest) != newest);
    }

    /// How many resources there are of a type.
    pub fn count(&self, kind: ResourceType) -> usize {
        self.view().0.resources.of(kind).len()
    }

    /// The version of a resource; `None` if there is none of this name.
    pub fn version(&self, kind: ResourceType, name: &str) -> Option<u64> {
        self.view().get(kind, name).map(|resource| resource.version)
    }

    /// The resources as they are now.
    pub(crate) fn view(&self) -> CacheView<'_> {
        CacheView(self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of the newest change: wakes streams.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }
}

impl State {
    fn apply(&mut self, ResourceChange { kind, name, encoded }: ResourceChange) {
        let resources = self.resources.of_mut(kind);
        match encoded {
            Some(encoded) => {
                let version = content_hash(&encoded);
                if resources.get(&name).is_some_and(|known| known.version == version) {
                    return;
                }
                resources.insert(Arc::clone(&name), Arc::new(Resource { version, encoded }));
            }
            None => {
                if resources.remove(&name).is_none() {
                    return;
                }
            }
        }
        self.newest += 1;
        self.log.push_back((kind, name));
        if self.log.len() > self.log_limit {
            self.log.pop_front();
        }
    }
}

impl CacheView<'_> {
    /// The number of the newest change.
    pub(crate) fn newest(&self) -> u64 {
        self.0.newest
    }

    /// A resource.
    pub(crate) fn get(&self, kind: ResourceType, name: &str) -> Option<&Arc<Resource>> {
        self.0.resources.of(kind).get(name)
    }

    /// A name, shared with the cache if it has a resource of this name.
    pub(crate) fn shared_name(&self, kind: ResourceType, name: &str) -> Arc<str> {
        self.0
            .resources
            .of(kind)
            .get_key_value(name)
            .map_or_else(|| name.into(), |(name, _)| Arc::clone(name))
    }

    /// The names of all resources of a type, in no order.
    pub(crate) fn names(&self, kind: ResourceType) -> impl Iterator<Item = &Arc<str>> {
        self.0.resources.of(kind).keys()
    }

    /// What changed after the change with this number, oldest first. `None`: that is too long ago.
    pub(crate) fn changes_since(
        &self,
        cursor: u64,
    ) -> Option<impl Iterator<Item = (ResourceType, &Arc<str>)>> {
        let behind = usize::try_from(self.0.newest.saturating_sub(cursor)).ok()?;
        let skip = self.0.log.len().checked_sub(behind)?;
        Some(self.0.log.range(skip..).map(|(kind, name)| (*kind, name)))
    }
}

/// The version of a resource. The same content has the same version in all processes of one build, so that an Envoy that reconnects to
/// another one gets only what differs.
fn content_hash(encoded: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(encoded);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, content: Option<&'static str>) -> ResourceChange {
        let encoded = content.map(|content| Bytes::from_static(content.as_bytes()));
        ResourceChange { kind: ResourceType::Cluster, name: name.into(), encoded }
    }

    /// The names of what changed after a change.
    fn since(cache: &ResourceCache, cursor: u64) -> Option<Vec<String>> {
        let view = cache.view();
        view.changes_since(cursor).map(|changes| changes.map(|(_, name)| name.to_string()).collect())
    }

    #[test]
    fn only_changes_count_and_wake_streams_once_for_each_step() {
        let cache = ResourceCache::default();
        let mut newest = cache.watch();
        cache.update([
            change("a", Some("1")),
            change("b", Some("1")),
            change("a", Some("1")),
            change("c", None),
        ]);
        assert!(newest.has_changed().unwrap());
        assert_eq!(*newest.borrow_and_update(), 2);
        assert_eq!(since(&cache, 0).unwrap(), ["a", "b"]);
        cache.update([change("a", Some("1")), change("c", None)]);
        cache.update([]);
        assert!(!newest.has_changed().unwrap(), "nothing has changed");
        cache.update([change("a", Some("2")), change("b", None)]);
        assert_eq!(since(&cache, 2).unwrap(), ["a", "b"]);
        assert_eq!(since(&cache, 4).unwrap(), [""; 0]);
        assert_eq!(cache.count(ResourceType::Cluster), 1);
    }

    #[test]
    fn a_version_is_the_hash_of_the_content() {
        let (one, other) = (ResourceCache::default(), ResourceCache::default());
        one.update([change("a", Some("1"))]);
        let version = || one.version(ResourceType::Cluster, "a");
        let first = version();
        one.update([change("a", Some("2"))]);
        assert_ne!(version(), first);
        one.update([change("a", Some("1"))]);
        assert_eq!(version(), first);
        other.update([change("x", Some("y")), change("b", Some("1"))]);
        assert_eq!(other.version(ResourceType::Cluster, "b"), first);
        assert_eq!(other.version(ResourceType::Endpoints, "b"), None);
    }

    #[test]
    fn a_stream_that_is_too_far_behind_is_told_so() {
        let cache = ResourceCache::with_log(3);
        for name in ["a", "b", "c", "d"] {
            cache.update([change(name, Some("1"))]);
        }
        assert_eq!(since(&cache, 1).unwrap(), ["b", "c", "d"]);
        assert_eq!(since(&cache, 0), None);
    }

    #[test]
    fn the_encoded_resource_is_shared_and_not_copied() {
        let cache = ResourceCache::default();
        let encoded = Bytes::from(vec![1; 100]);
        let kind = ResourceType::Endpoints;
        cache.update([ResourceChange { kind, name: "a".into(), encoded: Some(encoded.clone()) }]);
        let view = cache.view();
        let resource = view.get(kind, "a").unwrap();
        let message = super::super::wire::encoded(kind.url(), resource);
        assert_eq!(message.value.as_ptr(), encoded.as_ptr());
    }
}
