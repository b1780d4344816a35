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
use super::subscription::{Batch, Removals, Subscription};
use super::wire;
use crate::proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};

/// How long clusters stay after a reconnect until the client has asked for listeners and routes. Its routes may name them, and change
/// with what it is sent next. A client that has neither must lose them in the end.
const RESUME_GRACE: Duration = Duration::from_secs(5);

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
    /// Until when clusters stay; `None`: the client had none when it connected, or the time is over.
    grace: Option<Moment>,
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
            grace: None,
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
        let subscription = self.types.of_mut(kind);
        let rejected = request.error_detail.map(|status| status.message);
        let answer = subscription.answer(&request.response_nonce, rejected, now);
        if !subscription.used {
            let versions = request.initial_resource_versions;
            if kind == ResourceType::Cluster && !versions.is_empty() {
                self.grace = Some(now + RESUME_GRACE);
            }
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
        let has_asked =
            self.types.of(ResourceType::Listener).used && self.types.of(ResourceType::Routes).used;
        self.grace.take_if(|until| has_asked || now >= *until);
        let mut responses = Vec::new();
        for kind in ResourceType::ALL {
            responses.extend(self.respond_of(kind, view, now));
        }
        responses.append(&mut self.unknown);
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
        let removals = self.removals(kind);
        let subscription = self.types.of_mut(kind);
        let batch = subscription.take(view, self.bounds.response, removals);
        if batch.is_empty() && !subscription.answer_due {
            return None;
        }
        self.nonces += 1;
        subscription.send(self.nonces, now, &batch);
        self.after(kind, &batch);
        let Batch { resources, removed } = batch;
        Some(DeltaResponse { url: kind.url().into(), nonce: self.nonces, resources, removed })
    }

    /// Clusters are followed by their endpoints: until they come, Envoy does not use the cluster, and does not answer.
    fn after(&mut self, kind: ResourceType, batch: &Batch) {
        let names = batch.resources.iter().map(|(name, _)| name);
        match kind {
            ResourceType::Cluster => {
                for name in &batch.removed {
                    self.endpoints_due.remove(name);
                }
                let endpoints = self.types.of_mut(ResourceType::Endpoints);
                for name in names {
                    if endpoints.names().contains(name) {
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
    fn removals(&self, kind: ResourceType) -> Removals {
        let first = match kind {
            ResourceType::Cluster => [ResourceType::Listener, ResourceType::Routes].as_slice(),
            ResourceType::Endpoints => &[ResourceType::Cluster],
            ResourceType::Listener | ResourceType::Routes => &[],
        };
        let stays = kind == ResourceType::Cluster && self.grace.is_some();
        let quiet = !stays && first.iter().all(|kind| self.types.of(*kind).is_quiet());
        if quiet { Removals::Go } else { Removals::Wait }
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

    fn wake_after(&self, now: Moment) -> Option<Duration> {
        self.grace.map(|until| until.since(now))
    }

    fn measure(response: &DeltaDiscoveryResponse) -> Option<SentResponse> {
        let kind = ResourceType::of_url(&response.type_url)?;
        let resources = response.resources.len() + response.removed_resources.len();
        Some(SentResponse { kind, resources, bytes: response.encoded_len() })
    }

    fn endpoint_names(&self) -> Vec<Arc<str>> {
        self.types.of(ResourceType::Endpoints).sorted_names()
    }

    fn knows(&self, name: &str) -> ClientKnowledge {
        self.types.of(ResourceType::Endpoints).knows(name)
    }
}
