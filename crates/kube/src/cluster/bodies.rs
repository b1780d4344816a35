//! The `ConfigMap`s that routes take bodies from: each is followed by its name, in the route's own namespace.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::named::Followed;
use super::{Cluster, Happening};
use crate::objects::Meta;
use crate::route::spec::LONGEST_BODY;
use crate::service::{Holder, Wanted};
use crate::watch::Sink;

/// `ConfigMap`s that are followed at a time.
const FOLLOWED: usize = 1000;
/// Of these, in one namespace: nobody may take all.
const FOLLOWED_IN_ONE: usize = 200;
/// The key of an entry that a route does not name. No entry can be called so.
const UNNAMED: &str = "";

/// The namespace, the name and the key of an entry that a route names.
type Entry = (Arc<str>, Arc<str>, Arc<str>);
/// An entry, or why there is none, in words.
type Found = Result<Arc<str>, Arc<str>>;

/// What is known of all `ConfigMap`s that routes name.
#[derive(Default)]
pub(super) struct Bodies {
    /// The entries that routes name, and no others: a `ConfigMap` may be large. Those that are not here have not been looked
    /// at yet.
    found: HashMap<Entry, Found>,
}

impl Bodies {
    /// An entry, or why there is none, in words. `None`: nobody has looked yet.
    pub(super) fn entry(
        &self,
        namespace: &str,
        name: &str,
        key: Option<&str>,
    ) -> Option<Result<Arc<str>, String>> {
        let found = self.found.get(&(namespace.into(), name.into(), key.unwrap_or(UNNAMED).into()))?;
        Some(found.as_ref().map(Arc::clone).map_err(ToString::to_string))
    }

    /// Whether each of these was looked at.
    pub(super) fn know(&self, followed: &Followed) -> bool {
        followed.keys().flat_map(entries).all(|one| self.found.contains_key(&one))
    }

    /// Nobody waits any longer for those of these that were not looked at yet.
    pub(super) fn give_up(&mut self, followed: &Followed) {
        for one in followed.keys() {
            let words = || Err(format!("{one} cannot be read: the API server has not answered yet").into());
            for entry in entries(one) {
                self.found.entry(entry).or_insert_with(words);
            }
        }
    }
}

fn entries(of: &Wanted) -> impl Iterator<Item = Entry> {
    of.keys.iter().map(|key| (Arc::clone(&of.namespace), Arc::clone(&of.name), Arc::clone(key)))
}

/// The `ConfigMap`s that these are entries of.
fn config_maps(named: &BTreeSet<Entry>) -> BTreeSet<Wanted> {
    let mut all: Vec<Wanted> = Vec::new();
    // They are in order, so those of one `ConfigMap` follow each other.
    for (namespace, name, key) in named {
        match all.last_mut() {
            Some(last) if last.namespace == *namespace && last.name == *name => {
                last.keys.push(Arc::clone(key));
            }
            _ => all.push(Wanted {
                kind: Holder::ConfigMap,
                namespace: Arc::clone(namespace),
                name: Arc::clone(name),
                keys: vec![Arc::clone(key)],
            }),
        }
    }
    all.into_iter().collect()
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
        let named = knowledge.book.bodies().into_iter();
        let named =
            named.map(|(namespace, name, key)| (namespace, name, key.unwrap_or_else(|| UNNAMED.into())));
        let named: BTreeSet<Entry> = named.collect();
        let wanted = config_maps(&named);
        let name = |one: &Wanted| (Arc::clone(&one.namespace), Arc::clone(&one.name));
        let before: HashSet<_> = followed.keys().map(name).collect();
        followed.retain(&wanted);
        let mut in_one: HashMap<Arc<str>, usize> = HashMap::new();
        for one in followed.keys() {
            *in_one.entry(Arc::clone(&one.namespace)).or_default() += 1;
        }
        let found = &mut knowledge.bodies.found;
        found.retain(|one, _| named.contains(one));
        let mut new: Vec<Wanted> = wanted.into_iter().filter(|one| !followed.contains(one)).collect();
        // Those of which only other entries are wanted first: nobody else may take their place.
        new.sort_by_key(|one| !before.contains(&name(one)));
        for one in new {
            let beside = in_one.entry(Arc::clone(&one.namespace)).or_default();
            let too_many = if *beside >= FOLLOWED_IN_ONE {
                Some(format!("routes of namespace {} name more than {FOLLOWED_IN_ONE}", one.namespace))
            } else {
                (followed.len() >= FOLLOWED).then(|| format!("routes name more than {FOLLOWED}"))
            };
            if let Some(words) = too_many {
                let words: Arc<str> = format!("{one} is not read: {words} ConfigMaps").into();
                found.extend(entries(&one).map(|entry| (entry, Err(Arc::clone(&words)))));
                continue;
            }
            *beside += 1;
            // It may have been one too many before. What was read stands.
            for entry in entries(&one) {
                if found.get(&entry).is_some_and(Result::is_err) {
                    found.remove(&entry);
                }
            }
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

impl ConfigMap {
    fn entry(&self, wanted: &Wanted, key: &str) -> Found {
        let data = self.data.as_ref();
        let named = |key: &str| data?.get_key_value(key);
        let only = || data?.first_key_value().filter(|_| data.is_some_and(|data| data.len() == 1));
        let (found, lacks) = match key {
            UNNAMED => (named("body").or_else(only), "has no entry \"body\", nor only one entry".to_owned()),
            key => (named(key), format!("has no entry {key:?}")),
        };
        let (key, text) = found.ok_or_else(|| format!("{wanted} {lacks}"))?;
        if text.len() > LONGEST_BODY {
            let long = format!("has {} bytes: expected at most {LONGEST_BODY}", text.len());
            return Err(format!("{wanted}: entry {key:?} {long}").into());
        }
        Ok(text.as_str().into())
    }
}

/// One `ConfigMap` that routes name.
struct BodySink {
    cluster: Arc<Cluster>,
    wanted: Wanted,
    /// Cancelled under the lock when nobody wants it any more.
    followed: CancellationToken,
}

impl BodySink {
    fn see(&self, object: Option<&ConfigMap>) {
        let wanted = &self.wanted;
        self.set(|key, _| match object {
            Some(object) => object.entry(wanted, key),
            None => Err(format!("there is no {wanted}").into()),
        });
    }

    /// Each entry is now what `find` makes of its key and of what it was.
    fn set(&self, find: impl Fn(&str, Option<&Found>) -> Found) {
        let mut knowledge = self.cluster.knowledge();
        // Otherwise what comes too late would be taken for new when it is wanted again.
        if self.followed.is_cancelled() {
            return;
        }
        let all = &mut knowledge.bodies.found;
        let (mut changed, mut faults) = (false, BTreeSet::new());
        for entry in entries(&self.wanted) {
            let before = all.get(&entry);
            let found = find(&entry.2, before);
            if before == Some(&found) {
                continue;
            }
            changed = true;
            faults.extend(found.as_ref().err().map(ToString::to_string));
            all.insert(entry, found);
        }
        drop(knowledge);
        for words in faults {
            self.cluster.tell(Happening::LeftOut(words));
        }
        if changed {
            self.cluster.dirty.notify_one();
        }
    }

    fn is_ours(&self, object: &ConfigMap) -> bool {
        object.metadata.namespace() == &*self.wanted.namespace && *object.metadata.name == *self.wanted.name
    }
}

impl Sink for BodySink {
    type Object = ConfigMap;

    fn replace(&mut self, all: Vec<ConfigMap>) {
        self.see(all.iter().find(|object| self.is_ours(object)));
    }

    fn put(&mut self, object: ConfigMap) {
        if self.is_ours(&object) {
            self.see(Some(&object));
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
        let words: Arc<str> = format!("{} cannot be read: {words}", self.wanted).into();
        self.set(|_, before| match before {
            // What was read once stands while the API server is out of reach.
            Some(Ok(text)) => Ok(Arc::clone(text)),
            _ => Err(Arc::clone(&words)),
        });
    }
}
