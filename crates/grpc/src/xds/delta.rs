//! The rules of one incremental stream: which resources a client gets, when, and in which order.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use rouse_core::time::Moment;

use super::cache::{CacheView, Resource};
use super::clients::ClientKnowledge;
use super::metrics::SentResponse;
use super::resource_type::{PerType, ResourceType};
use super::stream::StreamRules;
use super::subscription::{Outstanding, Subscription};
use super::wire;
use crate::proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};

/// How much one stream may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamBounds {
    /// The most names that it may subscribe to.
    pub(crate) names: usize,
    /// The most bytes of the resources in one response. A larger resource goes alone.
    pub(crate) response: usize,
}

/// Why a stream cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestViolation {
    #[error(
        "the stream subscribes to more than {0} names, which is the limit: subscribe to fewer, or use several streams"
    )]
    TooManyNames(usize),
    #[error("the request has no type URL")]
    NoType,
    #[error("this stream is for {expected}, and a request asks for {found}")]
    WrongType { expected: &'static str, found: String },
    #[error(
        "state of the world is served for {} alone, and a request asks for {found}: set api_type to DELTA_GRPC",
        ResourceType::Endpoints.url()
    )]
    NotIncremental { found: String },
}

/// What a client says of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientAnswer {
    pub(crate) kind: ResourceType,
    /// The time since the response was sent.
    pub(crate) after: Duration,
    /// Names and versions; `None`: the removal.
    pub(crate) resources: Vec<(Arc<str>, Option<u64>)>,
    /// Why the client rejects it.
    pub(crate) rejected: Option<String>,
}

/// A response to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeltaResponse {
    /// The URL of the type.
    pub(crate) url: Arc<str>,
    pub(crate) kind: Option<ResourceType>,
    pub(crate) nonce: u64,
    pub(crate) resources: Vec<(Arc<str>, Arc<Resource>)>,
    pub(crate) removed: Vec<Arc<str>>,
}

/// One incremental stream.
#[derive(Debug)]
pub(crate) struct DeltaStream {
    bounds: StreamBounds,
    /// The only type of this stream; `None`: it is an aggregated stream.
    only: Option<ResourceType>,
    types: PerType<Subscription>,
    /// Clusters that were sent, and whose endpoints were not sent after them.
    endpoints_due: HashSet<Arc<str>>,
    /// The number of the last change that was looked at.
    cursor: u64,
    nonces: u64,
    /// Answers about types that are not served.
    unknown: Vec<DeltaResponse>,
}

impl DeltaStream {
    /// An aggregated stream on which nothing was sent yet.
    pub(crate) fn new(bounds: StreamBounds) -> Self {
        Self {
            bounds,
            only: None,
            types: PerType::by(Subscription::new),
            endpoints_due: HashSet::new(),
            cursor: 0,
            nonces: 0,
            unknown: Vec::new(),
        }
    }

    /// A stream for endpoints alone.
    pub(crate) fn of_endpoints(bounds: StreamBounds) -> Self {
        Self { only: Some(ResourceType::Endpoints), ..Self::new(bounds) }
    }

    /// Takes a request.
    pub(crate) fn request(
        &mut self,
        request: DeltaDiscoveryRequest,
        view: &CacheView<'_>,
        now: Moment,
    ) -> Result<Option<ClientAnswer>, RequestViolation> {
        self.catch_up(view);
        let kind = match (ResourceType::of_url(&request.type_url), self.only) {
            (Some(kind), None) => kind,
            (Some(kind), Some(only)) if kind == only => kind,
            // The call says which type it is for.
            (None, Some(only)) if request.type_url.is_empty() => only,
            (_, Some(only)) => {
                return Err(RequestViolation::WrongType { expected: only.url(), found: request.type_url });
            }
            (None, None) => return self.unknown_type(&request).map(|()| None),
        };
        let answer = self.answer(kind, &request, now);
        let subscription = self.types.of_mut(kind);
        if !subscription.used {
            let versions = request.initial_resource_versions;
            let parse = |version: String| u64::from_str_radix(&version, 16).ok();
            let has =
                versions.into_iter().map(|(name, version)| (view.shared_name(kind, &name), parse(version)));
            subscription.begin(has);
        }
        subscription.change(&request.resource_names_subscribe, &request.resource_names_unsubscribe, view);
        if kind == ResourceType::Endpoints {
            for name in &request.resource_names_subscribe {
                if let Some(name) = self.endpoints_due.take(name.as_str()) {
                    self.types.of_mut(kind).force(name);
                }
            }
        }
        if self.names() > self.bounds.names {
            return Err(RequestViolation::TooManyNames(self.bounds.names));
        }
        Ok(answer)
    }

    /// What can be sent now.
    pub(crate) fn respond(&mut self, view: &CacheView<'_>, now: Moment) -> Vec<DeltaResponse> {
        self.catch_up(view);
        let mut responses = std::mem::take(&mut self.unknown);
        for kind in ResourceType::ALL {
            responses.extend(self.respond_of(kind, view, now));
        }
        responses
    }

    /// How many names the client has subscribed to.
    fn names(&self) -> usize {
        ResourceType::ALL.into_iter().map(|kind| self.types.of(kind).names().len()).sum()
    }

    /// Looks at what changed since the last time.
    fn catch_up(&mut self, view: &CacheView<'_>) {
        match view.changes_since(self.cursor) {
            Some(changes) => {
                for (kind, name) in changes {
                    self.types.of_mut(kind).look(name, view);
                }
            }
            None => {
                for kind in ResourceType::ALL {
                    self.types.of_mut(kind).compare(view);
                }
            }
        }
        self.cursor = view.newest();
    }

    /// What the request says of the last response of its type.
    fn answer(
        &mut self,
        kind: ResourceType,
        request: &DeltaDiscoveryRequest,
        now: Moment,
    ) -> Option<ClientAnswer> {
        let nonce = request.response_nonce.as_str();
        let subscription = self.types.of_mut(kind);
        // Another nonce is of an earlier response: it says nothing of this one.
        let response = subscription.outstanding.take_if(|response| response.nonce.to_string() == nonce)?;
        let Outstanding { at, sent, .. } = response;
        let rejected = request.error_detail.as_ref().map(|status| status.message.clone());
        subscription.answered(&sent, rejected.is_some());
        Some(ClientAnswer { kind, after: now.since(at), resources: sent, rejected })
    }

    /// A type that is not served: the client is told that nothing of it exists, so that it does not wait for it.
    fn unknown_type(&mut self, request: &DeltaDiscoveryRequest) -> Result<(), RequestViolation> {
        if request.type_url.is_empty() {
            return Err(RequestViolation::NoType);
        }
        let names = &request.resource_names_subscribe;
        // An answer to the answer gets none, or the two would go on for ever.
        if names.is_empty() && !request.response_nonce.is_empty() {
            return Ok(());
        }
        self.nonces += 1;
        let removed = names.iter().filter(|name| *name != "*").map(|name| name.as_str().into()).collect();
        self.unknown.push(DeltaResponse {
            url: request.type_url.as_str().into(),
            kind: None,
            nonce: self.nonces,
            resources: Vec::new(),
            removed,
        });
        Ok(())
    }

    fn respond_of(&mut self, kind: ResourceType, view: &CacheView<'_>, now: Moment) -> Option<DeltaResponse> {
        if self.types.of(kind).outstanding.is_some() || !self.may_change(kind) {
            return None;
        }
        let removals = self.may_remove(kind);
        let subscription = self.types.of_mut(kind);
        let (mut resources, mut removed, mut bytes) = (Vec::new(), Vec::new(), 0);
        for name in &subscription.due {
            let resource = view.get(kind, name);
            let size = name.len() + resource.map_or(0, |resource| resource.encoded.len());
            if resource.is_none() && !removals && subscription.has(name) && !subscription.is_forced(name) {
                continue;
            }
            if bytes > 0 && bytes + size > self.bounds.response {
                break;
            }
            bytes += size;
            match resource {
                Some(resource) => resources.push((Arc::clone(name), Arc::clone(resource))),
                None => removed.push(Arc::clone(name)),
            }
        }
        let answer_due = std::mem::take(&mut subscription.answer_due);
        if resources.is_empty() && removed.is_empty() && !answer_due {
            return None;
        }
        let versions = resources.iter().map(|(name, resource)| (Arc::clone(name), Some(resource.version)));
        let sent: Vec<_> = versions.chain(removed.iter().map(|name| (Arc::clone(name), None))).collect();
        for (name, version) in &sent {
            subscription.send(name, *version);
        }
        self.nonces += 1;
        subscription.outstanding = Some(Outstanding { nonce: self.nonces, at: now, sent });
        self.after(kind, &resources, &removed);
        Some(DeltaResponse {
            url: kind.url().into(),
            kind: Some(kind),
            nonce: self.nonces,
            resources,
            removed,
        })
    }

    /// Clusters are followed by their endpoints: until they come, Envoy does not use the cluster, and does not answer.
    fn after(&mut self, kind: ResourceType, resources: &[(Arc<str>, Arc<Resource>)], removed: &[Arc<str>]) {
        let names = resources.iter().map(|(name, _)| name);
        match kind {
            ResourceType::Cluster => {
                for name in removed {
                    self.endpoints_due.remove(name);
                }
                let endpoints = self.types.of_mut(ResourceType::Endpoints);
                for name in names {
                    if endpoints.wants_by_name(name) {
                        endpoints.force(Arc::clone(name));
                    } else {
                        self.endpoints_due.insert(Arc::clone(name));
                    }
                }
            }
            ResourceType::Endpoints => {
                for name in names {
                    self.endpoints_due.remove(name);
                }
            }
            ResourceType::Listener | ResourceType::Routes => {}
        }
    }

    /// Whether additions and changes of a type may go now. Routes wait until the client has the clusters that they name. Called in the
    /// order of [`ResourceType::ALL`], so that what is due of clusters was sent before.
    fn may_change(&self, kind: ResourceType) -> bool {
        match kind {
            ResourceType::Cluster | ResourceType::Endpoints => true,
            ResourceType::Listener | ResourceType::Routes => {
                self.types.of(ResourceType::Cluster).outstanding.is_none()
            }
        }
    }

    /// Whether removals of a type may go now. Clusters wait until no route names them.
    fn may_remove(&self, kind: ResourceType) -> bool {
        let is_quiet = |kind: ResourceType| {
            let subscription = self.types.of(kind);
            subscription.due.is_empty() && subscription.outstanding.is_none()
        };
        match kind {
            ResourceType::Cluster => is_quiet(ResourceType::Listener) && is_quiet(ResourceType::Routes),
            ResourceType::Endpoints => is_quiet(ResourceType::Cluster),
            ResourceType::Listener | ResourceType::Routes => true,
        }
    }
}

impl StreamRules for DeltaStream {
    type Request = DeltaDiscoveryRequest;
    type Response = DeltaDiscoveryResponse;

    fn node_id(request: &DeltaDiscoveryRequest) -> Option<&str> {
        request.node.as_ref().map(|node| node.id.as_str())
    }

    fn request(
        &mut self,
        request: DeltaDiscoveryRequest,
        view: &CacheView<'_>,
        now: Moment,
    ) -> Result<Option<ClientAnswer>, RequestViolation> {
        Self::request(self, request, view, now)
    }

    fn respond(&mut self, view: &CacheView<'_>, now: Moment) -> Vec<DeltaDiscoveryResponse> {
        Self::respond(self, view, now).into_iter().map(wire::delta_message).collect()
    }

    fn measure(response: &DeltaDiscoveryResponse) -> Option<SentResponse> {
        let kind = ResourceType::of_url(&response.type_url)?;
        let resources = response.resources.len() + response.removed_resources.len();
        Some(SentResponse { kind, resources, bytes: response.encoded_len() })
    }

    fn names(&self, kind: ResourceType) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = self.types.of(kind).names().iter().map(Arc::clone).collect();
        names.sort_unstable();
        names
    }

    fn knows(&self, kind: ResourceType, name: &str) -> ClientKnowledge {
        self.types.of(kind).knows(name)
    }
}
