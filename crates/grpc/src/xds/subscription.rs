//! What one incremental stream has of one type: subscriptions, what was sent, and what is due.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use rouse_core::time::Moment;

use super::cache::{CacheView, Resource};
use super::clients::ClientKnowledge;
use super::delta::ClientAnswer;
use super::resource_type::ResourceType;

/// The name that means all resources, of the types that allow it.
const ALL: &str = "*";

/// Whether what a client has may be removed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removals {
    Go,
    /// Something else goes first.
    Wait,
}

/// A response that the client has not answered yet.
#[derive(Debug)]
pub(super) struct Outstanding {
    nonce: u64,
    at: Moment,
    /// Names with the versions that were sent; `None`: the removal.
    sent: Vec<(Arc<str>, Option<u64>)>,
}

/// What goes into one response.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) resources: Vec<(Arc<str>, Arc<Resource>)>,
    pub(super) removed: Vec<Arc<str>>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.removed.is_empty()
    }
}

/// One type on one stream.
#[derive(Debug)]
pub(super) struct Subscription {
    kind: ResourceType,
    /// Whether the client has asked for this type.
    pub(super) used: bool,
    wildcard: bool,
    names: HashSet<Arc<str>>,
    /// What the client was sent, or said that it has. `None`: in a version that is none of ours. A version that the client rejected stays
    /// here, so that it is not sent again until the resource changes.
    has: HashMap<Arc<str>, Option<u64>>,
    /// What the client has accepted last; `None`: the removal. Of endpoints alone: for the others it would be memory without a use.
    acknowledged: HashMap<Arc<str>, Option<u64>>,
    /// What the client gets even if it has it, or if it does not exist.
    forced: HashSet<Arc<str>>,
    /// What differs from what the client has, as of the stream's cursor.
    due: BTreeSet<Arc<str>>,
    /// The first answer to a wildcard is sent even if there is no resource: without it, Envoy waits until its timeout.
    pub(super) answer_due: bool,
    pub(super) outstanding: Option<Outstanding>,
}

impl Subscription {
    pub(super) fn new(kind: ResourceType) -> Self {
        Self {
            kind,
            used: false,
            wildcard: false,
            names: HashSet::new(),
            has: HashMap::new(),
            acknowledged: HashMap::new(),
            forced: HashSet::new(),
            due: BTreeSet::new(),
            answer_due: false,
            outstanding: None,
        }
    }

    /// The names that the client has subscribed to.
    pub(super) fn names(&self) -> &HashSet<Arc<str>> {
        &self.names
    }

    /// Whether the client wants this resource.
    pub(super) fn wants(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// The names that the client has subscribed to, in order.
    pub(super) fn sorted_names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = self.names.iter().map(Arc::clone).collect();
        names.sort_unstable();
        names
    }

    /// Whether nothing is due, and no answer is awaited.
    pub(super) fn is_quiet(&self) -> bool {
        self.due.is_empty() && self.outstanding.is_none()
    }

    /// What the client knows of a resource.
    pub(super) fn knows(&self, name: &str) -> ClientKnowledge {
        if !self.wants(name) {
            return ClientKnowledge::NotSubscribed;
        }
        let known = self.acknowledged.get(name);
        known.map_or(ClientKnowledge::NotAcknowledged, |version| ClientKnowledge::Acknowledged(*version))
    }

    /// Takes what a request says of the last response. `rejected`: why the client rejects it.
    pub(super) fn answer(
        &mut self,
        nonce: &str,
        rejected: Option<String>,
        now: Moment,
    ) -> Option<ClientAnswer> {
        // Another nonce is of an earlier response: it says nothing of this one.
        let response = self.outstanding.take_if(|response| response.nonce.to_string() == nonce)?;
        let Outstanding { at, sent, .. } = response;
        if rejected.is_none() && self.kind == ResourceType::Endpoints {
            let wanted = sent.iter().filter(|(name, _)| self.wants(name)).cloned().collect::<Vec<_>>();
            self.acknowledged.extend(wanted);
        }
        Some(ClientAnswer { kind: self.kind, after: now.since(at), resources: sent, rejected })
    }

    /// Takes the first request of a stream: what the client still has from an earlier stream.
    pub(super) fn begin(&mut self, has: impl IntoIterator<Item = (Arc<str>, Option<u64>)>) {
        self.has.extend(has);
    }

    /// Changes subscriptions, the removed ones first.
    pub(super) fn change(&mut self, subscribe: &[String], unsubscribe: &[String], view: &CacheView<'_>) {
        let first = !std::mem::replace(&mut self.used, true);
        for name in unsubscribe {
            self.unsubscribe(name);
        }
        for name in subscribe {
            self.subscribe(name, first, view);
        }
        self.recall();
        if first {
            // A first request without names is a wildcard, also if it unsubscribes from something.
            if subscribe.is_empty() && self.has_wildcard() {
                self.wildcard = true;
                self.answer_due = self.has.is_empty();
            }
            // The versions of what the client does not want are of no use.
            let (wildcard, names) = (self.wildcard, &self.names);
            self.has.retain(|name, _| wildcard || names.contains(name));
            if self.kind == ResourceType::Endpoints {
                self.acknowledged.extend(self.has.iter().map(|(name, version)| (Arc::clone(name), *version)));
            }
            self.compare(view);
        }
    }

    fn has_wildcard(&self) -> bool {
        matches!(self.kind, ResourceType::Cluster | ResourceType::Listener)
    }

    fn subscribe(&mut self, name: &str, first: bool, view: &CacheView<'_>) {
        if name == ALL && self.has_wildcard() {
            self.answer_due = self.wildcard || self.has.is_empty();
            if std::mem::replace(&mut self.wildcard, true) {
                self.force_all(view);
            }
            self.recall();
            self.compare(view);
            return;
        }
        let name = view.shared_name(self.kind, name);
        self.names.insert(Arc::clone(&name));
        // What the client has from an earlier stream is not sent again, unless it differs.
        if !(first && self.has.contains_key(&name)) {
            self.force(name);
        }
    }

    /// A response that is on its way may bring what the client has unsubscribed from and subscribed to again meanwhile.
    fn recall(&mut self) {
        for (name, version) in self.outstanding.iter().flat_map(|response| &response.sent) {
            if version.is_some() && (self.wildcard || self.names.contains(name)) {
                self.has.entry(Arc::clone(name)).or_insert(*version);
            }
        }
    }

    fn unsubscribe(&mut self, name: &str) {
        if name == ALL && self.has_wildcard() {
            if std::mem::replace(&mut self.wildcard, false) {
                self.answer_due = false;
                let names = &self.names;
                self.has.retain(|name, _| names.contains(name));
                self.forced.retain(|name| names.contains(name));
                self.due.retain(|name| names.contains(name));
            }
            return;
        }
        let Some(name) = self.names.take(name) else { return };
        if self.wildcard {
            // The client has dropped it, and does not know whether it is part of the wildcard.
            self.force(name);
        } else {
            self.has.remove(&name);
            self.acknowledged.remove(&name);
            self.forced.remove(&name);
            self.due.remove(&name);
        }
    }

    /// Sends a resource even if the client has it, if the client wants it.
    pub(super) fn force(&mut self, name: Arc<str>) {
        if self.wants(&name) {
            self.due.insert(Arc::clone(&name));
            self.forced.insert(name);
        }
    }

    fn force_all(&mut self, view: &CacheView<'_>) {
        let all: Vec<Arc<str>> = view.names(self.kind).map(Arc::clone).collect();
        for name in all {
            self.force(name);
        }
    }

    /// Looks at a resource that may have changed.
    pub(super) fn look(&mut self, name: &Arc<str>, view: &CacheView<'_>) {
        if !self.wants(name) || self.forced.contains(name) {
            return;
        }
        let differs = match view.get(self.kind, name) {
            Some(resource) => self.has.get(name) != Some(&Some(resource.version)),
            None => self.has.contains_key(name),
        };
        if differs {
            self.due.insert(Arc::clone(name));
        } else {
            self.due.remove(name);
        }
    }

    /// Looks at all resources that the client wants.
    pub(super) fn compare(&mut self, view: &CacheView<'_>) {
        // What is due and was never sent may not exist any more.
        let mut all: Vec<Arc<str>> =
            self.has.keys().chain(&self.names).chain(&self.due).map(Arc::clone).collect();
        if self.wildcard {
            all.extend(view.names(self.kind).map(Arc::clone));
        }
        for name in all {
            self.look(&name, view);
        }
    }

    /// What is due, up to this many bytes. A larger resource goes alone. `removals`: whether what the client has may be removed now.
    pub(super) fn take(&self, view: &CacheView<'_>, limit: usize, removals: Removals) -> Batch {
        let (mut batch, mut bytes) = (Batch::default(), 0);
        for name in &self.due {
            let resource = view.get(self.kind, name);
            // Endpoints that follow their cluster do not wait: without them, the client does not answer, and the wait would not end.
            let follows = self.kind == ResourceType::Endpoints && self.forced.contains(name);
            let is_removal = resource.is_none() && self.has.contains_key(name) && !follows;
            if is_removal && removals == Removals::Wait {
                continue;
            }
            let size = name.len() + resource.map_or(0, |resource| resource.encoded.len());
            if bytes > 0 && bytes + size > limit {
                break;
            }
            bytes += size;
            match resource {
                Some(resource) => batch.resources.push((Arc::clone(name), Arc::clone(resource))),
                None => batch.removed.push(Arc::clone(name)),
            }
        }
        batch
    }

    /// A response goes out.
    pub(super) fn send(&mut self, nonce: u64, at: Moment, batch: &Batch) {
        let versions = batch.resources.iter().map(|(name, resource)| (name, Some(resource.version)));
        let all = versions.chain(batch.removed.iter().map(|name| (name, None)));
        let sent: Vec<_> = all.map(|(name, version)| (Arc::clone(name), version)).collect();
        for (name, version) in &sent {
            self.set_sent(name, *version);
        }
        self.answer_due = false;
        self.outstanding = Some(Outstanding { nonce, at, sent });
    }

    fn set_sent(&mut self, name: &Arc<str>, version: Option<u64>) {
        self.due.remove(name);
        self.forced.remove(name);
        match version {
            Some(version) => _ = self.has.insert(Arc::clone(name), Some(version)),
            None => _ = self.has.remove(name),
        }
    }

    /// Forgets what is due of resources that do not exist, for a protocol that cannot say so.
    pub(super) fn skip_missing(&mut self, view: &CacheView<'_>) {
        let missing = self.due.iter().filter(|name| view.get(self.kind, name).is_none());
        let missing: Vec<Arc<str>> = missing.map(Arc::clone).collect();
        for name in missing {
            self.set_sent(&name, None);
        }
    }
}
