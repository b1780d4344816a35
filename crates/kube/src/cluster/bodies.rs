//! The `ConfigMap`s that routes take bodies from: each is followed by its name, in the route's own namespace.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::named::Followed;
use super::{Cluster, Happening};
use crate::objects::Meta;
use crate::service::{Holder, Wanted};
use crate::watch::Sink;

/// `ConfigMap`s that are followed at a time.
const FOLLOWED: usize = 1000;

/// The entries of a `ConfigMap`, or why there are none, in words.
type Found = Result<BTreeMap<String, Arc<str>>, Arc<str>>;

/// What is known of all `ConfigMap`s that routes name.
#[derive(Default)]
pub(super) struct Bodies {
    /// What is in each. Those that are not here have not been looked at yet.
    found: HashMap<Wanted, Found>,
}

impl Bodies {
    /// An entry, or why there is none, in words. `None`: nobody has looked yet.
    pub(super) fn entry(
        &self,
        namespace: &str,
        name: &str,
        key: Option<&str>,
    ) -> Option<Result<Arc<str>, String>> {
        let wanted = config_map((namespace.into(), name.into()));
        let entries = match self.found.get(&wanted)? {
            Ok(entries) => entries,
            Err(words) => return Some(Err(words.to_string())),
        };
        let only = || entries.values().next().filter(|_| entries.len() == 1);
        let (found, lacks) = match key {
            Some(key) => (entries.get(key), format!("has no entry {key:?}")),
            None => {
                (entries.get("body").or_else(only), "has no entry \"body\", nor only one entry".to_owned())
            }
        };
        Some(found.map(Arc::clone).ok_or_else(|| format!("{wanted} {lacks}")))
    }

    /// Whether each of these was looked at.
    pub(super) fn know(&self, followed: &Followed) -> bool {
        followed.keys().all(|one| self.found.contains_key(one))
    }

    /// Nobody waits any longer for those of these that were not looked at yet.
    pub(super) fn give_up(&mut self, followed: &Followed) {
        for one in followed.keys() {
            let words = || Err(format!("{one} cannot be read: the API server has not answered yet").into());
            self.found.entry(one.clone()).or_insert_with(words);
        }
    }
}

fn config_map((namespace, name): (Arc<str>, Arc<str>)) -> Wanted {
    Wanted { kind: Holder::ConfigMap, namespace, name, keys: Vec::new() }
}

impl Cluster {
    /// Follows the `ConfigMap`s that routes name, and no others.
    pub(super) fn follow_config_maps(
        self: &Arc<Self>,
        followed: &mut Followed,
        tasks: &mut JoinSet<()>,
        cancel: &CancellationToken,
    ) {
        let mut knowledge = self.knowledge();
        let wanted = knowledge.book.config_maps().into_iter().map(config_map).collect();
        followed.retain(&wanted);
        let found = &mut knowledge.bodies.found;
        found.retain(|one, _| wanted.contains(one));
        for one in wanted {
            if followed.contains(&one) {
                continue;
            }
            if followed.len() >= FOLLOWED {
                let words = format!("{one} is not read: routes name more than {FOLLOWED} ConfigMaps");
                found.insert(one, Err(words.into()));
                continue;
            }
            // It may have been one too many before.
            found.remove(&one);
            let token = cancel.child_token();
            let sink = BodySink { cluster: Arc::clone(self), wanted: one.clone(), followed: token.clone() };
            followed.begin(self, one, sink, token, tasks);
        }
    }
}

/// `v1` `ConfigMap`.
#[derive(Debug, Deserialize)]
struct ConfigMap {
    metadata: Meta,
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
}

/// One `ConfigMap` that routes name.
struct BodySink {
    cluster: Arc<Cluster>,
    wanted: Wanted,
    /// Cancelled under the lock when nobody wants it any more.
    followed: CancellationToken,
}

impl BodySink {
    fn see(&self, object: Option<ConfigMap>) {
        let shared = |(key, text): (String, String)| (key, Arc::from(text));
        let absent = || Arc::from(format!("there is no {}", self.wanted));
        let entries = |object: ConfigMap| object.data.unwrap_or_default().into_iter().map(shared).collect();
        self.set(object.map(entries).ok_or_else(absent));
    }

    fn set(&self, found: Found) {
        let mut knowledge = self.cluster.knowledge();
        // Otherwise what comes too late would be taken for new when it is wanted again.
        if self.followed.is_cancelled() {
            return;
        }
        let all = &mut knowledge.bodies.found;
        if all.get(&self.wanted) == Some(&found) {
            return;
        }
        let fault = found.as_ref().err().map(ToString::to_string);
        all.insert(self.wanted.clone(), found);
        drop(knowledge);
        if let Some(words) = fault {
            self.cluster.tell(Happening::LeftOut(words));
        }
        self.cluster.dirty.notify_one();
    }

    fn is_ours(&self, object: &ConfigMap) -> bool {
        object.metadata.namespace() == &*self.wanted.namespace && *object.metadata.name == *self.wanted.name
    }
}

impl Sink for BodySink {
    type Object = ConfigMap;

    fn replace(&mut self, all: Vec<ConfigMap>) {
        let ours = all.into_iter().find(|object| self.is_ours(object));
        self.see(ours);
    }

    fn put(&mut self, object: ConfigMap) {
        if self.is_ours(&object) {
            self.see(Some(object));
        }
    }

    fn remove(&mut self, object: ConfigMap) {
        if self.is_ours(&object) {
            self.see(None);
        }
    }

    fn unreadable(&mut self, words: String) {
        self.cluster.tell(Happening::LeftOut(words));
    }

    fn failed(&mut self, words: &str) {
        let read = self.cluster.knowledge().bodies.found.get(&self.wanted).is_some_and(Result::is_ok);
        // What was read once stands while the API server is out of reach.
        if !read {
            self.set(Err(format!("{} cannot be read: {words}", self.wanted).into()));
        }
    }
}
