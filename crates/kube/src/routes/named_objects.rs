//! Watches the `ConfigMap`s and Secrets that routes and their Services name, each by its name, so that the gateway needs
//! no permission to read all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use tokio::sync::Notify;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::client::watch::Sink;
use crate::client::{ObjectKind, Watches};
use crate::events::{ClusterEvent, EventSender};
use crate::objects::Meta;
use crate::objects::service_summary::{DataKind, DataRef};

/// A `ConfigMap` or a Secret.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DataObject {
    metadata: Meta,
    #[serde(default)]
    pub(super) data: Option<BTreeMap<String, Option<String>>>,
    #[serde(default)]
    pub(super) binary_data: Option<BTreeMap<String, Option<String>>>,
}

/// What entries are used for: how one is read, and how many objects may be followed.
pub(super) trait EntryUse: Send + Sync + 'static {
    type Value: Clone + PartialEq + Send;

    /// The most objects that are watched at a time.
    const MAX_OBJECTS: usize;
    /// Of these, in one namespace: one tenant must not use up the limit.
    const MAX_OBJECTS_IN_NAMESPACE: usize;
    /// Which objects name the entries, and which kind they name: for the error text of a limit.
    const NAMED_BY: &'static str;
    const NAMED: &'static str;
    /// Whether an object may hold a secret, so that no error may quote it.
    const SECRET: bool;

    /// The value of the entry `key`, or why there is none.
    fn read(object: &DataObject, wanted: &DataRef, key: &str) -> Result<Self::Value, Arc<str>>;
}

/// One entry of a named object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct EntryRef {
    pub(super) kind: DataKind,
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) key: Arc<str>,
}

/// The value of an entry, or why there is none.
pub(super) type EntryLookup<U> = Result<<U as EntryUse>::Value, Arc<str>>;

/// The entries that are wanted, and no others: an object may be large. One that is missing here was not read yet. Has no
/// `Debug`: there may be keys in it.
type Entries<U> = HashMap<EntryRef, EntryLookup<U>>;

/// What is known of the named objects of one use.
pub(super) struct NamedObjects<U: EntryUse> {
    entries: Mutex<Entries<U>>,
    /// Notified when an entry changes.
    changed: Arc<Notify>,
    events: EventSender,
}

impl<U: EntryUse> NamedObjects<U> {
    pub(super) fn new(changed: &Arc<Notify>, events: &EventSender) -> Arc<Self> {
        let (changed, events) = (Arc::clone(changed), events.clone());
        Arc::new(Self { entries: Mutex::default(), changed, events })
    }

    /// A value, or why there is none. `None`: the object was not read yet.
    pub(super) fn get(&self, entry: &EntryRef) -> Option<EntryLookup<U>> {
        self.lock().get(entry).cloned()
    }

    /// Whether each entry of the followed objects was read.
    pub(super) fn are_read(&self, followed: &WatchSet) -> bool {
        let all = self.lock();
        followed.all.keys().flat_map(entries).all(|entry| all.contains_key(&entry))
    }

    /// Stops waiting for entries that were not read yet: each gets an error until it is read.
    pub(super) fn give_up(&self, followed: &WatchSet) {
        let mut all = self.lock();
        for wanted in followed.all.keys() {
            let text = || Err(format!("{wanted} cannot be read: the API server has not answered yet").into());
            for entry in entries(wanted) {
                all.entry(entry).or_insert_with(text);
            }
        }
    }

    /// Follows the objects of these entries, and no others.
    pub(super) fn follow(
        self: &Arc<Self>,
        named: &BTreeSet<EntryRef>,
        followed: &mut WatchSet,
        watches: &Watches,
        tasks: &mut JoinSet<()>,
        cancel: &CancellationToken,
    ) {
        let mut all = self.lock();
        let wanted = objects(named);
        let object = |one: &DataRef| (one.kind, Arc::clone(&one.namespace), Arc::clone(&one.name));
        let before: HashSet<_> = followed.all.keys().map(object).collect();
        followed.retain(&wanted);
        let mut in_namespace: HashMap<Arc<str>, usize> = HashMap::new();
        for one in followed.all.keys() {
            *in_namespace.entry(Arc::clone(&one.namespace)).or_default() += 1;
        }
        all.retain(|entry, _| named.contains(entry));
        let mut new: Vec<DataRef> =
            wanted.into_iter().filter(|one| !followed.all.contains_key(one)).collect();
        // Objects that were followed before come first, so that they keep their place within the limits.
        new.sort_by_key(|one| !before.contains(&object(one)));
        for one in new {
            let beside = in_namespace.entry(Arc::clone(&one.namespace)).or_default();
            if let Some(text) = over_limit::<U>(&one, *beside, followed.all.len()) {
                all.extend(entries(&one).map(|entry| (entry, Err(Arc::clone(&text)))));
                continue;
            }
            *beside += 1;
            // It may have been over the limit before. Values that were read stand.
            for entry in entries(&one) {
                if all.get(&entry).is_some_and(Result::is_err) {
                    all.remove(&entry);
                }
            }
            let token = cancel.child_token();
            let (objects, followed_until) = (Arc::clone(self), token.clone());
            let sink = NamedSink { objects, wanted: one.clone(), followed_until };
            followed.begin(one, sink, token, watches, tasks);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries<U>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn over_limit<U: EntryUse>(wanted: &DataRef, in_namespace: usize, in_all: usize) -> Option<Arc<str>> {
    let (by, named) = (U::NAMED_BY, U::NAMED);
    let text = if in_namespace >= U::MAX_OBJECTS_IN_NAMESPACE {
        let most = U::MAX_OBJECTS_IN_NAMESPACE;
        format!("{by} of namespace {} name more than {most} {named}", wanted.namespace)
    } else if in_all >= U::MAX_OBJECTS {
        format!("{by} name more than {} {named}", U::MAX_OBJECTS)
    } else {
        return None;
    };
    Some(format!("{wanted} is not read: {text}").into())
}

fn entries(of: &DataRef) -> impl Iterator<Item = EntryRef> {
    of.keys.iter().map(|key| EntryRef {
        kind: of.kind,
        namespace: Arc::clone(&of.namespace),
        name: Arc::clone(&of.name),
        key: Arc::clone(key),
    })
}

/// The objects that these are entries of.
fn objects(named: &BTreeSet<EntryRef>) -> BTreeSet<DataRef> {
    let mut all: Vec<DataRef> = Vec::new();
    // They are sorted, so those of one object follow each other.
    for EntryRef { kind, namespace, name, key } in named {
        match all.last_mut() {
            Some(last) if (last.kind, &last.namespace, &last.name) == (*kind, namespace, name) => {
                last.keys.push(Arc::clone(key));
            }
            _ => all.push(DataRef {
                kind: *kind,
                namespace: Arc::clone(namespace),
                name: Arc::clone(name),
                keys: vec![Arc::clone(key)],
            }),
        }
    }
    all.into_iter().collect()
}

/// The objects that are followed. The planner's task owns it.
#[derive(Default)]
pub(super) struct WatchSet {
    all: HashMap<DataRef, ObjectWatch>,
}

/// The watch of one object, and how to end it.
struct ObjectWatch {
    token: CancellationToken,
    task: Id,
    panicked: bool,
}

impl WatchSet {
    /// Ends the watches of all objects that are not `wanted`.
    fn retain(&mut self, wanted: &BTreeSet<DataRef>) {
        self.all.retain(|one, follower| {
            let keep = wanted.contains(one);
            if !keep {
                follower.token.cancel();
            }
            keep
        });
    }

    /// Begins to follow an object until `token`.
    fn begin<U: EntryUse>(
        &mut self,
        wanted: DataRef,
        sink: NamedSink<U>,
        token: CancellationToken,
        watches: &Watches,
        tasks: &mut JoinSet<()>,
    ) {
        let kind = match wanted.kind {
            DataKind::ConfigMap => ObjectKind::CONFIG_MAP,
            DataKind::Secret => ObjectKind::SECRET,
        };
        let watch = watches.named(kind, &wanted.namespace, &wanted.name);
        let task = tasks.spawn(watch.run(sink, token.clone())).id();
        self.all.insert(wanted, ObjectWatch { token, task, panicked: false });
    }

    /// Reports a watch that has panicked. It counts as followed until [`WatchSet::forget_panicked`]: the object that caused the
    /// panic may still be there, and would cause the next one at once.
    pub(super) fn ended(&mut self, error: &JoinError, events: &EventSender) {
        let Some((wanted, follower)) = self.all.iter_mut().find(|(_, one)| one.task == error.id()) else {
            return;
        };
        follower.panicked = true;
        follower.token.cancel();
        // Without the text of the panic, which may contain a secret.
        let text = format!("the watch of {wanted} has panicked; it is restarted in about 30 s");
        events.send(ClusterEvent::LeftOut(text));
    }

    pub(super) fn has_panicked(&self) -> bool {
        self.all.values().any(|one| one.panicked)
    }

    /// The objects whose watches have panicked are not followed any more.
    pub(super) fn forget_panicked(&mut self) {
        self.all.retain(|_, one| !one.panicked);
    }
}

/// The sink of the watch of one object. Keeps the entries that are wanted of it.
struct NamedSink<U: EntryUse> {
    objects: Arc<NamedObjects<U>>,
    wanted: DataRef,
    /// Cancelled, under the lock of the entries, when the object is not wanted any more.
    followed_until: CancellationToken,
}

impl<U: EntryUse> NamedSink<U> {
    fn see(&self, object: Option<&DataObject>) {
        let wanted = &self.wanted;
        self.set(|key, _| match object {
            Some(object) => U::read(object, wanted, key),
            None => Err(format!("there is no {wanted}").into()),
        });
    }

    /// Sets each entry to what `find` makes of its key and of its former value.
    fn set(&self, find: impl Fn(&str, Option<&EntryLookup<U>>) -> EntryLookup<U>) {
        let mut all = self.objects.lock();
        // A late write would count as a new one when the object is wanted again.
        if self.followed_until.is_cancelled() {
            return;
        }
        let (mut changed, mut faults) = (false, BTreeSet::new());
        for entry in entries(&self.wanted) {
            let before = all.get(&entry);
            let found = find(&entry.key, before);
            if before == Some(&found) {
                continue;
            }
            changed = true;
            faults.extend(found.as_ref().err().map(ToString::to_string));
            all.insert(entry, found);
        }
        drop(all);
        for text in faults {
            self.objects.events.send(ClusterEvent::LeftOut(text));
        }
        if changed {
            self.objects.changed.notify_one();
        }
    }

    fn is_ours(&self, object: &DataObject) -> bool {
        object.metadata.namespace() == &*self.wanted.namespace && *object.metadata.name == *self.wanted.name
    }
}

impl<U: EntryUse> Sink for NamedSink<U> {
    type Object = DataObject;

    fn replace(&mut self, all: Vec<DataObject>) {
        self.see(all.iter().find(|object| self.is_ours(object)));
    }

    fn put(&mut self, object: DataObject) {
        if self.is_ours(&object) {
            self.see(Some(&object));
        }
    }

    fn remove(&mut self, object: DataObject) {
        if self.is_ours(&object) {
            self.see(None);
        }
    }

    fn unreadable(&mut self, words: String) {
        // The error of the parser quotes the object.
        let text = if U::SECRET { format!("{} cannot be read", self.wanted) } else { words };
        self.objects.events.send(ClusterEvent::LeftOut(text));
    }

    fn failed(&mut self, words: &str) {
        let text: Arc<str> = format!("{} cannot be read: {words}", self.wanted).into();
        self.set(|_, before| match before {
            // A value that was read stands while the API server is out of reach.
            Some(Ok(value)) => Ok(value.clone()),
            _ => Err(Arc::clone(&text)),
        });
    }
}
