//! The CA bundles and client certificates that Services name, in their own namespace.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::ByteString;
use rouse_core::endpoint::ServiceId;

use super::named_objects::{DataObject, EntryRef, EntryUse, NamedObjects};
use crate::objects::service_summary::{DataKind, DataLookup, DataRef, PemBytes, ServiceSummary, TlsFacts};

/// Entries of Secrets and `ConfigMap`s that are certificates or keys.
pub(super) struct Credential;

impl EntryUse for Credential {
    type Value = PemBytes;

    const MAX_OBJECTS: usize = 1000;
    const MAX_OBJECTS_IN_NAMESPACE: usize = usize::MAX;
    const NAMED_BY: &'static str = "Services";
    const NAMED: &'static str = "objects";
    const SECRET: bool = true;

    fn read(object: &DataObject, wanted: &DataRef, key: &str) -> Result<PemBytes, Arc<str>> {
        let entry = |entries: &Option<BTreeMap<String, Option<String>>>| {
            entries.as_ref()?.get(key).map(|text| text.clone().unwrap_or_default())
        };
        let encoded = match (wanted.kind, entry(&object.data)) {
            (DataKind::ConfigMap, Some(text)) => return Ok(text.into_bytes().into()),
            (DataKind::ConfigMap, None) => entry(&object.binary_data),
            (DataKind::Secret, text) => text,
        };
        let encoded = encoded.ok_or_else(|| Arc::from(format!("{wanted} has no entry {key:?}")))?;
        let decoded: Result<ByteString, _> = serde_json::from_value(encoded.into());
        // The error of the decoder quotes the secret.
        decoded
            .map(|bytes| bytes.0.into())
            .map_err(|_| format!("{wanted}: entry {key:?} is not base64").into())
    }
}

fn entry(wanted: &DataRef, key: &Arc<str>) -> EntryRef {
    let (namespace, name) = (Arc::clone(&wanted.namespace), Arc::clone(&wanted.name));
    EntryRef { kind: wanted.kind, namespace, name, key: Arc::clone(key) }
}

/// The entries that a Service names.
pub(super) fn entries(service: &ServiceSummary) -> Vec<EntryRef> {
    service.tls.wanted().flat_map(|wanted| wanted.keys.iter().map(|key| entry(wanted, key))).collect()
}

impl NamedObjects<Credential> {
    /// The entries of an object in the order of its keys, or why there are none. `None`: it was not read yet.
    fn find(&self, wanted: &DataRef) -> Option<DataLookup> {
        let all: Option<Vec<_>> = wanted.keys.iter().map(|key| self.get(&entry(wanted, key))).collect();
        Some(all?.into_iter().collect())
    }
}

/// The TLS settings of each Service. Has no `Debug`: there are keys in it.
#[derive(Default)]
pub(super) struct TlsSettings {
    by_service: HashMap<ServiceId, Settled>,
}

struct Settled {
    found: TlsFacts,
    /// The same, with the result of the certificate check.
    checked: Arc<TlsFacts>,
}

impl TlsSettings {
    /// The TLS settings of a Service. The same `Arc` as last time if nothing has changed: the data plane keeps TLS sessions
    /// for it.
    pub(super) fn of(
        &mut self,
        service: &ServiceSummary,
        objects: &NamedObjects<Credential>,
        check: fn(&TlsFacts) -> Option<String>,
    ) -> Arc<TlsFacts> {
        let found = service.tls.resolve(|wanted| objects.find(wanted));
        let former = self.by_service.get(&service.id);
        let found = match (found, former) {
            // The former settings hold until the new objects were read.
            (None, Some(former)) => return Arc::clone(&former.checked),
            (Some(found), Some(former)) if former.found == found => return Arc::clone(&former.checked),
            (Some(found), _) => found,
            (None, None) => service.tls.unresolved(),
        };
        let fault = found.fault.clone().or_else(|| check(&found).map(Arc::from));
        let checked = Arc::new(TlsFacts { fault, ..found.clone() });
        self.by_service.insert(service.id.clone(), Settled { found, checked: Arc::clone(&checked) });
        checked
    }

    /// Forgets Services that no route leads to.
    pub(super) fn retain(&mut self, services: &BTreeSet<ServiceId>) {
        self.by_service.retain(|id, _| services.contains(id));
    }
}
