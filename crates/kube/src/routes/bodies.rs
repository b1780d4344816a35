//! Response bodies that routes take from a `ConfigMap` of their namespace.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::named_objects::{DataObject, EntryRef, EntryUse, NamedObjects};
use super::store::NamedBody;
use crate::objects::route::LONGEST_BODY;
use crate::objects::service_summary::{DataKind, DataRef};

/// The key of an entry that a route does not name. No entry can have this name.
const UNNAMED: &str = "";

/// Entries of `ConfigMap`s that are bodies of responses.
pub(super) struct Body;

impl EntryUse for Body {
    type Value = Arc<str>;

    const MAX_OBJECTS: usize = 1000;
    const MAX_OBJECTS_IN_NAMESPACE: usize = 200;
    const NAMED_BY: &'static str = "routes";
    const NAMED: &'static str = "ConfigMaps";
    const SECRET: bool = false;

    fn read(object: &DataObject, wanted: &DataRef, key: &str) -> Result<Arc<str>, Arc<str>> {
        let data = object.data.as_ref();
        let named = |key: &str| data?.get_key_value(key);
        let only = || data?.first_key_value().filter(|_| data.is_some_and(|data| data.len() == 1));
        let (found, lacks) = match key {
            UNNAMED => (
                named("body").or_else(only),
                "has no entry \"body\" and not exactly one entry: set key".to_owned(),
            ),
            key => (named(key), format!("has no entry {key:?}")),
        };
        let (key, text) = found.ok_or_else(|| format!("{wanted} {lacks}"))?;
        let text = text.as_deref().unwrap_or_default();
        if text.len() > LONGEST_BODY {
            let long = format!("has {} bytes: expected at most {LONGEST_BODY}", text.len());
            return Err(format!("{wanted}: entry {key:?} {long}").into());
        }
        Ok(text.into())
    }
}

/// The entries behind these references.
pub(super) fn entries(named: BTreeSet<NamedBody>) -> BTreeSet<EntryRef> {
    named.into_iter().map(|(namespace, name, key)| entry(namespace, name, key)).collect()
}

fn entry(namespace: Arc<str>, name: Arc<str>, key: Option<Arc<str>>) -> EntryRef {
    EntryRef { kind: DataKind::ConfigMap, namespace, name, key: key.unwrap_or_else(|| UNNAMED.into()) }
}

impl NamedObjects<Body> {
    /// A body, or why there is none. `None`: the `ConfigMap` was not read yet.
    pub(super) fn body(
        &self,
        namespace: &str,
        name: &str,
        key: Option<&str>,
    ) -> Option<Result<Arc<str>, String>> {
        let found = self.get(&entry(namespace.into(), name.into(), key.map(Into::into)))?;
        Some(found.map_err(|text| text.to_string()))
    }
}
