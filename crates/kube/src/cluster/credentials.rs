//! The CA bundles and client certificates that Services name: each object is followed by its name, in the Service's own
//! namespace, so that nobody has to let us read all Secrets.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use k8s_openapi::ByteString;
use rouse_core::endpoint::ServiceId;
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::named::Followed;
use super::{Cluster, Happening, lock};
use crate::feed::Feed;
use crate::objects::Meta;
use crate::service::{Found, Holder, Pem, ServiceFacts, TlsFacts, Wanted};
use crate::watch::Sink;

/// Objects that are followed at a time.
const FOLLOWED: usize = 1000;

/// What is known of all objects that Services name. Has no `Debug`: there are keys in it.
#[derive(Default)]
pub(super) struct Credentials {
    /// What is in each. Those that are not here have not been looked at yet.
    found: HashMap<Wanted, Found>,
    /// What became of each Service's wishes.
    settled: HashMap<ServiceId, Settled>,
}

struct Settled {
    found: TlsFacts,
    /// The same with what is wrong with it.
    judged: Arc<TlsFacts>,
}

impl Credentials {
    /// What becomes of a Service's wishes. The same `Arc` as last time if it is the same: whoever speaks TLS with it has
    /// sessions that are worth keeping.
    pub(super) fn tls(
        &mut self,
        service: &ServiceFacts,
        judge: fn(&TlsFacts) -> Option<String>,
    ) -> Arc<TlsFacts> {
        let found = service.tls.settle(|wanted| self.found.get(wanted).cloned());
        let former = self.settled.get(&service.id);
        let found = match (found, former) {
            // For a moment, what held before is better than nothing.
            (None, Some(former)) => return Arc::clone(&former.judged),
            (Some(found), Some(former)) if former.found == found => return Arc::clone(&former.judged),
            (Some(found), _) => found,
            (None, None) => service.tls.unsettled(),
        };
        let fault = found.fault.clone().or_else(|| judge(&found).map(Arc::from));
        let judged = Arc::new(TlsFacts { fault, ..found.clone() });
        self.settled.insert(service.id.clone(), Settled { found, judged: Arc::clone(&judged) });
        judged
    }

    /// Whether each of these was looked at.
    pub(super) fn know(&self, followed: &Followed) -> bool {
        followed.keys().all(|one| self.found.contains_key(one))
    }

    /// Forgets Services that no route leads to.
    pub(super) fn retain(&mut self, services: &BTreeSet<ServiceId>) {
        self.settled.retain(|id, _| services.contains(id));
    }
}

impl Cluster {
    /// Follows what the Services of all routes name, and nothing else.
    pub(super) fn follow_credentials(
        self: &Arc<Self>,
        feed: &Mutex<Feed>,
        followed: &mut Followed,
        tasks: &mut JoinSet<()>,
        cancel: &CancellationToken,
    ) {
        let services = self.knowledge().book.services();
        let named = services.iter().filter_map(|id| lock(feed).service(id));
        let wanted: BTreeSet<Wanted> =
            named.flat_map(|service| service.tls.wanted().cloned().collect::<Vec<_>>()).collect();
        let mut knowledge = self.knowledge();
        knowledge.credentials.retain(&services);
        followed.retain(&wanted);
        knowledge.credentials.found.retain(|one, _| wanted.contains(one));
        for one in wanted {
            if followed.contains(&one) {
                continue;
            }
            if followed.len() >= FOLLOWED {
                let words = format!("{one} is not read: Services name more than {FOLLOWED} objects");
                knowledge.credentials.found.insert(one, Err(words.into()));
                continue;
            }
            // It may have been one too many before.
            knowledge.credentials.found.remove(&one);
            let token = cancel.child_token();
            let sink = HolderSink { cluster: Arc::clone(self), wanted: one.clone(), followed: token.clone() };
            followed.begin(self, one, sink, token, tasks);
        }
    }
}

/// A Secret or a `ConfigMap`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HolderObject {
    metadata: Meta,
    #[serde(default)]
    data: Option<BTreeMap<String, Option<String>>>,
    #[serde(default)]
    binary_data: Option<BTreeMap<String, Option<String>>>,
}

impl HolderObject {
    fn entry(&self, wanted: &Wanted, key: &str) -> Result<Pem, Arc<str>> {
        let entry = |entries: &Option<BTreeMap<String, Option<String>>>| {
            entries.as_ref()?.get(key).map(|text| text.clone().unwrap_or_default())
        };
        let encoded = match (wanted.kind, entry(&self.data)) {
            (Holder::ConfigMap, Some(text)) => return Ok(text.into_bytes().into()),
            (Holder::ConfigMap, None) => entry(&self.binary_data),
            (Holder::Secret, text) => text,
        };
        let encoded = encoded.ok_or_else(|| Arc::from(format!("{wanted} has no entry {key:?}")))?;
        let decoded: Result<ByteString, _> = serde_json::from_value(encoded.into());
        // The error would say what nobody may see.
        decoded
            .map(|bytes| bytes.0.into())
            .map_err(|_| format!("{wanted}: entry {key:?} is not base64").into())
    }
}

/// One object that Services name.
pub(super) struct HolderSink {
    cluster: Arc<Cluster>,
    wanted: Wanted,
    /// Cancelled under the lock when nobody wants it any more.
    followed: CancellationToken,
}

impl HolderSink {
    fn see(&self, object: Option<&HolderObject>) {
        let wanted = &self.wanted;
        let entry = |key: &Arc<str>| match object {
            Some(object) => object.entry(wanted, key),
            None => Err(format!("there is no {wanted}").into()),
        };
        self.set(wanted.keys.iter().map(entry).collect());
    }

    fn set(&self, found: Found) {
        let mut knowledge = self.cluster.knowledge();
        // Otherwise what comes too late would be taken for new when it is wanted again.
        if self.followed.is_cancelled() {
            return;
        }
        let all = &mut knowledge.credentials.found;
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

    fn is_ours(&self, object: &HolderObject) -> bool {
        object.metadata.namespace() == &*self.wanted.namespace && *object.metadata.name == *self.wanted.name
    }
}

impl Sink for HolderSink {
    type Object = HolderObject;

    fn replace(&mut self, all: Vec<HolderObject>) {
        self.see(all.iter().find(|object| self.is_ours(object)));
    }

    fn put(&mut self, object: HolderObject) {
        if self.is_ours(&object) {
            self.see(Some(&object));
        }
    }

    fn remove(&mut self, object: HolderObject) {
        if self.is_ours(&object) {
            self.see(None);
        }
    }

    fn unreadable(&mut self, _: String) {
        // The words would say what nobody may see.
        self.cluster.tell(Happening::LeftOut(format!("{} cannot be read", self.wanted)));
    }

    fn failed(&mut self, words: &str) {
        let read = self.cluster.knowledge().credentials.found.get(&self.wanted).is_some_and(Result::is_ok);
        // What was read once stands while the API server is out of reach.
        if !read {
            self.set(Err(format!("{} cannot be read: {words}", self.wanted).into()));
        }
    }
}
