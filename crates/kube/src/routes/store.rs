//! All route objects, each with its last good version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rouse_core::endpoint::ServiceId;
use serde_json::Value;

use super::claim_record::ClaimRecord;
use super::claims::Claimant;
use super::hosts::{named, named_by};
use crate::objects::route::{self, BodySpec, ResponseSpec, RouteKey, RouteKind, RouteObject, RouteSpec};

/// An entry of a `ConfigMap`: namespace, name, and its key, if that is named.
pub(crate) type NamedBody = (Arc<str>, Arc<str>, Option<Arc<str>>);

/// All route objects.
#[derive(Debug, Default)]
pub(crate) struct RouteStore {
    entries: BTreeMap<RouteKey, StoredRoute>,
}

/// One route object.
#[derive(Debug)]
pub(crate) struct StoredRoute {
    pub(crate) uid: String,
    pub(crate) generation: Option<i64>,
    /// The version that was read.
    pub(crate) version: String,
    /// The newest version that was good.
    pub(crate) good: Option<Arc<RouteSpec>>,
    /// What is wrong with the newest version.
    pub(crate) faults: Vec<String>,
    /// When the object was created, in seconds since the Unix epoch.
    created: u64,
    /// The hosts that its newest version names, as far as they can be read.
    pub(crate) hosts: BTreeSet<Arc<str>>,
    /// When these were claimed, as its status says.
    pub(crate) record: ClaimRecord,
    /// The rules of a faulty version for hosts that no good version serves.
    pub(crate) unserved: Option<Arc<RouteSpec>>,
    /// The conditions that the API server has.
    pub(crate) conditions: Vec<Value>,
}

impl RouteStore {
    /// Adds or replaces an object.
    pub(crate) fn put(&mut self, kind: RouteKind, object: &RouteObject) {
        let key = RouteKey::new(kind, &object.metadata);
        let uid = object.metadata.uid.clone().unwrap_or_default();
        // An object that was deleted and created again under the same name has no earlier versions.
        let before = self.entries.remove(&key).filter(|before| before.uid == uid);
        let conditions = object.status.get("conditions").and_then(Value::as_array);
        let (good, faults) = match route::read(kind, object) {
            Ok(spec) => {
                let unchanged = before.and_then(|before| before.good).filter(|good| **good == spec);
                (Some(unchanged.unwrap_or_else(|| Arc::new(spec))), Vec::new())
            }
            Err(faults) => (before.and_then(|before| before.good), faults),
        };
        let (hosts, unserved) = match &good {
            Some(good) if faults.is_empty() => (named(good), None),
            good => faulty(kind, object, good.as_deref()),
        };
        let conditions = conditions.cloned().unwrap_or_default();
        let entry = StoredRoute {
            uid,
            generation: object.metadata.generation,
            version: object.metadata.resource_version.clone().unwrap_or_default(),
            good,
            faults,
            created: route::created(&object.metadata),
            hosts,
            record: ClaimRecord::read(&conditions),
            unserved,
            conditions,
        };
        self.entries.insert(key, entry);
    }

    pub(crate) fn remove(&mut self, kind: RouteKind, object: &RouteObject) {
        self.entries.remove(&RouteKey::new(kind, &object.metadata));
    }

    /// Replaces all objects of this kind.
    pub(crate) fn replace(&mut self, kind: RouteKind, all: &[RouteObject]) {
        let keys: BTreeSet<RouteKey> =
            all.iter().map(|object| RouteKey::new(kind, &object.metadata)).collect();
        self.entries.retain(|key, _| key.kind != kind || keys.contains(key));
        for object in all {
            self.put(kind, object);
        }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&RouteKey, &StoredRoute)> {
        self.entries.iter()
    }

    /// The routes of one namespace.
    pub(crate) fn entries_of(&self, namespace: &str) -> impl Iterator<Item = (&RouteKey, &StoredRoute)> {
        let kind = RouteKind::InterceptorRoute;
        let first = RouteKey { namespace: namespace.into(), name: "".into(), kind };
        let namespace = Arc::clone(&first.namespace);
        self.entries.range(first..).take_while(move |(key, _)| key.namespace == namespace)
    }

    pub(crate) fn get(&self, key: &RouteKey) -> Option<&StoredRoute> {
        self.entries.get(key)
    }

    /// The routes that serve.
    pub(crate) fn good(&self) -> Vec<Arc<RouteSpec>> {
        self.entries.values().filter_map(|entry| entry.good.clone()).collect()
    }

    /// The rules of faulty versions for hosts that no good version serves.
    pub(crate) fn unserved(&self) -> Vec<Arc<RouteSpec>> {
        self.entries.values().filter_map(|entry| entry.unserved.clone()).collect()
    }

    /// The hosts that every route claims, by its newest version.
    pub(crate) fn claimants(&self) -> Vec<Claimant<'_>> {
        let entries = self.entries.iter();
        let claimants = entries.map(|(key, entry)| Claimant {
            key,
            uid: &entry.uid,
            created: entry.created,
            hosts: &entry.hosts,
            record: &entry.record,
        });
        claimants.collect()
    }

    /// The Services that routes lead to.
    pub(crate) fn services(&self) -> BTreeSet<ServiceId> {
        let good = self.entries.values().filter_map(|entry| entry.good.as_deref());
        let all = good.flat_map(|route| [Some(&route.target), route.cold_start.fallback.as_ref()]);
        all.flatten().map(|target| target.service.clone()).collect()
    }

    /// The `ConfigMap`s that routes name, as namespace and name.
    pub(crate) fn config_maps(&self) -> BTreeSet<(Arc<str>, Arc<str>)> {
        self.bodies().into_iter().map(|(namespace, name, _)| (namespace, name)).collect()
    }

    /// The entries of `ConfigMap`s that routes name.
    pub(crate) fn bodies(&self) -> BTreeSet<NamedBody> {
        let named = |response: &ResponseSpec| match &response.body {
            BodySpec::ConfigMap { name, key } => Some((Arc::clone(name), key.clone())),
            BodySpec::Text(_) => None,
        };
        let good = self.entries.values().filter_map(|entry| entry.good.as_deref());
        let all = good.flat_map(|route| {
            let cold = [&route.cold_start.placeholder, &route.cold_start.overflow].into_iter().flatten();
            let all = cold.chain(route.static_routes.iter().map(|route| &route.response));
            all.filter_map(named).map(|(name, key)| (Arc::clone(&route.key.namespace), name, key))
        });
        all.collect()
    }
}

/// The hosts that a faulty version names, and rules for those that `good` does not serve.
fn faulty(
    kind: RouteKind,
    object: &RouteObject,
    good: Option<&RouteSpec>,
) -> (BTreeSet<Arc<str>>, Option<Arc<RouteSpec>>) {
    let mut rules = route::salvage(kind, object);
    let hosts: BTreeSet<Arc<str>> = named_by(&rules).collect();
    let served = good.map(named).unwrap_or_default();
    for rule in &mut rules {
        rule.hosts = named_by(std::slice::from_ref(rule)).filter(|host| !served.contains(host)).collect();
    }
    rules.retain(|rule| !rule.hosts.is_empty());
    let unserved = if rules.is_empty() { None } else { route::unserved(kind, object, rules) };
    (hosts, unserved.map(Arc::new))
}
