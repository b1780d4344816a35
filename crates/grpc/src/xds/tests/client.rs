//! A client in small, with the messages that are on their way, and what the server may send it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use rouse_core::time::Moment;

use super::super::cache::ResourceCache;
use super::super::delta::{DeltaResponse, DeltaStream, StreamBounds};
use super::super::resource_type::{PerType, ResourceType};
use super::world::{NAMES, clusters_of, name};
use crate::proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, Status};

/// How a client behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manners {
    /// In any way that the protocol allows.
    Any,
    /// It uses all types from the start, never leaves out clusters, listeners or routes, and rejects only endpoints and listeners.
    AsEnvoy,
}

type Content = (u64, Vec<u8>);

/// What the client has of one type.
#[derive(Debug, Default, Clone)]
struct Known {
    used: bool,
    star: bool,
    names: BTreeSet<String>,
    has: BTreeMap<String, Content>,
    /// The versions that it rejected last.
    rejected: BTreeMap<String, u64>,
}

/// What the server has sent of one type on this stream.
#[derive(Debug, Default, Clone)]
struct Sent {
    unanswered: Option<u64>,
    /// The version that was sent last, and its number in the order of all.
    last: BTreeMap<String, (Option<u64>, u64)>,
    /// What may be sent again without a change.
    excused: BTreeSet<String>,
}

pub(super) struct Client {
    manners: Manners,
    bounds: StreamBounds,
    now: Moment,
    types: PerType<Known>,
    sent: PerType<Sent>,
    stream: DeltaStream,
    requests: VecDeque<DeltaDiscoveryRequest>,
    responses: VecDeque<DeltaResponse>,
    count: u64,
}

impl Known {
    fn wants(&self, name: &str) -> bool {
        self.star || self.names.contains(name)
    }
}

fn has_star(kind: ResourceType) -> bool {
    matches!(kind, ResourceType::Cluster | ResourceType::Listener)
}

impl Client {
    pub(super) fn new(manners: Manners, response: usize) -> Self {
        let bounds = StreamBounds { names: 1000, response };
        let mut this = Self {
            manners,
            bounds,
            now: Moment::ZERO,
            types: PerType::default(),
            sent: PerType::default(),
            stream: DeltaStream::new(bounds),
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            count: 0,
        };
        if manners == Manners::AsEnvoy {
            for kind in ResourceType::ALL {
                let known = this.types.of_mut(kind);
                known.used = true;
                known.star = has_star(kind);
                if !known.star {
                    known.names = (0..NAMES).map(|number| name(number).to_owned()).collect();
                }
            }
            this.reconnect();
        }
        this
    }

    fn request(&mut self, kind: ResourceType, subscribe: &[&str], unsubscribe: &[&str]) {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let first = !std::mem::replace(&mut self.types.of_mut(kind).used, true);
        if first && subscribe.is_empty() && has_star(kind) {
            self.types.of_mut(kind).star = true;
        }
        self.requests.push_back(DeltaDiscoveryRequest {
            type_url: kind.url().to_owned(),
            resource_names_subscribe: texts(subscribe),
            resource_names_unsubscribe: texts(unsubscribe),
            ..DeltaDiscoveryRequest::default()
        });
    }

    pub(super) fn subscribe(&mut self, kind: ResourceType, name: &str) {
        self.request(kind, &[name], &[]);
        self.types.of_mut(kind).names.insert(name.to_owned());
    }

    pub(super) fn unsubscribe(&mut self, kind: ResourceType, name: &str) {
        if self.manners == Manners::AsEnvoy {
            return;
        }
        self.request(kind, &[], &[name]);
        let known = self.types.of_mut(kind);
        // Part of the wildcard or not: the server will say.
        if known.names.remove(name) && !known.star {
            known.has.remove(name);
            known.rejected.remove(name);
        }
    }

    pub(super) fn star(&mut self, kind: ResourceType) {
        if has_star(kind) {
            self.request(kind, &["*"], &[]);
            self.types.of_mut(kind).star = true;
        }
    }

    pub(super) fn unstar(&mut self, kind: ResourceType) {
        if !has_star(kind) || self.manners == Manners::AsEnvoy || !self.types.of(kind).used {
            return;
        }
        self.request(kind, &[], &["*"]);
        let known = self.types.of_mut(kind);
        known.star = false;
        let names = known.names.clone();
        known.has.retain(|name, _| names.contains(name));
        known.rejected.retain(|name, _| names.contains(name));
    }

    /// The stream breaks: what is on its way is lost. On the next one, the client says what it has.
    pub(super) fn reconnect(&mut self) {
        self.requests.clear();
        self.responses.clear();
        self.stream = DeltaStream::new(self.bounds);
        self.sent = PerType::default();
        for kind in ResourceType::ALL {
            let known = self.types.of_mut(kind);
            if !known.used {
                continue;
            }
            known.rejected.clear();
            let names = known.names.iter().cloned();
            // Names beside a wildcard, or none at all after a name: only a star says it.
            let star = known.star && !known.names.is_empty();
            let mut subscribe: Vec<String> = names.chain(star.then(|| "*".to_owned())).collect();
            if !known.star && has_star(kind) && subscribe.is_empty() {
                // An empty request would be a wildcard. Envoy does not send one.
                subscribe.clear();
                known.used = false;
                continue;
            }
            let versions =
                known.has.iter().map(|(name, (version, _))| (name.clone(), format!("{version:016x}")));
            let versions: HashMap<String, String> = versions.collect();
            let sent = self.sent.of_mut(kind);
            for (name, (version, _)) in &known.has {
                sent.last.insert(name.clone(), (Some(*version), 0));
            }
            self.requests.push_back(DeltaDiscoveryRequest {
                type_url: kind.url().to_owned(),
                resource_names_subscribe: subscribe,
                initial_resource_versions: versions,
                ..DeltaDiscoveryRequest::default()
            });
        }
    }

    /// Time passes. Not for an Envoy: its requests after a reconnect come together, long before its clusters go.
    pub(super) fn pass(&mut self, seconds: u64) {
        if self.manners == Manners::Any {
            self.now = self.now + Duration::from_secs(seconds);
        }
    }

    /// The server takes the next request. False: there is none.
    pub(super) fn server_takes_request(&mut self, cache: &ResourceCache) -> bool {
        let Some(request) = self.requests.pop_front() else { return false };
        let kind = ResourceType::of_url(&request.type_url).unwrap();
        let sent = self.sent.of_mut(kind);
        if sent.unanswered.is_some_and(|nonce| nonce.to_string() == request.response_nonce) {
            sent.unanswered = None;
        }
        for name in request.resource_names_subscribe.iter().chain(&request.resource_names_unsubscribe) {
            if name == "*" {
                sent.excused.extend((0..NAMES).map(name_of));
            } else {
                sent.excused.insert(name.clone());
            }
        }
        self.stream.request(request, &cache.view(), self.now).unwrap();
        self.server_responds(cache);
        true
    }

    /// The server sends what it can, and it may.
    pub(super) fn server_responds(&mut self, cache: &ResourceCache) {
        for response in self.stream.respond(&cache.view(), self.now) {
            let kind = ResourceType::of_url(&response.url).unwrap();
            let sent = self.sent.of_mut(kind);
            assert_eq!(sent.unanswered.replace(response.nonce), None, "{kind:?} was not answered yet");
            let versions = response.resources.iter().map(|(name, resource)| (name, Some(resource.version)));
            let all: Vec<_> = versions.chain(response.removed.iter().map(|name| (name, None))).collect();
            assert!(all.len() <= 1 || self.bounds.response > 1, "{response:?} is too large");
            for (name, version) in all {
                self.count += 1;
                let sent = self.sent.of_mut(kind);
                let before = sent.last.insert(name.to_string(), (version, self.count));
                let excused = sent.excused.remove(&**name);
                let changed = before.map_or(version.is_some(), |(before, _)| before != version);
                assert!(changed || excused, "{kind:?} {name} is sent again without a reason");
                if kind == ResourceType::Cluster {
                    self.sent.of_mut(ResourceType::Endpoints).excused.insert(name.to_string());
                }
            }
            self.responses.push_back(response);
        }
    }

    /// The client takes the next response. False: there is none.
    pub(super) fn takes_response(&mut self, accept: bool) -> bool {
        let Some(response) = self.responses.pop_front() else { return false };
        let kind = ResourceType::of_url(&response.url).unwrap();
        let may_reject = match (self.manners, kind) {
            (Manners::Any, _) => true,
            (Manners::AsEnvoy, kind) => matches!(kind, ResourceType::Endpoints | ResourceType::Listener),
        };
        let accept = accept || !may_reject;
        let known = self.types.of_mut(kind);
        for (name, resource) in &response.resources {
            if !known.wants(name) {
                continue;
            }
            if accept {
                known.rejected.remove(&**name);
                known.has.insert(name.to_string(), (resource.version, resource.encoded.to_vec()));
            } else {
                known.rejected.insert(name.to_string(), resource.version);
            }
        }
        for name in &response.removed {
            known.has.remove(&**name);
            known.rejected.remove(&**name);
        }
        self.check_routes();
        self.requests.push_back(DeltaDiscoveryRequest {
            type_url: kind.url().to_owned(),
            response_nonce: response.nonce.to_string(),
            error_detail: (!accept).then(Status::default),
            ..DeltaDiscoveryRequest::default()
        });
        true
    }

    /// No route names a cluster that the client does not have.
    fn check_routes(&self) {
        if self.manners == Manners::AsEnvoy {
            let clusters = &self.types.of(ResourceType::Cluster).has;
            for (route, (_, content)) in &self.types.of(ResourceType::Routes).has {
                for cluster in clusters_of(content) {
                    assert!(
                        clusters.contains_key(cluster),
                        "the route {route} names {cluster}: {clusters:?}"
                    );
                }
            }
        }
    }

    /// All messages arrive, and all are accepted.
    pub(super) fn settle(&mut self, cache: &ResourceCache) {
        for _ in 0..2 {
            self.server_responds(cache);
            while self.takes_response(true) || self.server_takes_request(cache) {}
            // Clusters that stay for a while after a reconnect.
            self.now = self.now + Duration::from_secs(10);
        }
        assert!(self.stream.respond(&cache.view(), self.now).is_empty());
    }

    /// The client has what it wants, except for what it rejected; and the endpoints of each cluster came after it.
    pub(super) fn check_settled(&self, cache: &ResourceCache) {
        for kind in ResourceType::ALL {
            let known = self.types.of(kind);
            for name in (0..NAMES).map(name) {
                let expected = cache.version(kind, name).filter(|_| known.wants(name));
                let found = known.has.get(name).map(|(version, _)| *version);
                let rejected = expected.is_some() && known.rejected.get(name).copied() == expected;
                assert!(found == expected || rejected, "{kind:?} {name}: {found:?} instead of {expected:?}");
            }
        }
        let (clusters, endpoints) = (ResourceType::Cluster, ResourceType::Endpoints);
        for (name, (version, at)) in &self.sent.of(clusters).last {
            if version.is_some() && *at > 0 && self.types.of(endpoints).names.contains(name) {
                let after = self.sent.of(endpoints).last.get(name).is_some_and(|(_, later)| later > at);
                assert!(after, "the endpoints of {name} did not come after it");
            }
        }
    }
}

fn name_of(number: usize) -> String {
    name(number).to_owned()
}
