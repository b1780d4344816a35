//! The rules of one stream that gets the state of the world: for endpoints alone, where a response may have only what changed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use rouse_core::time::Moment;

use super::cache::CacheView;
use super::clients::ClientKnowledge;
use super::delta::{ClientAnswer, RequestViolation, StreamBounds};
use super::metrics::SentResponse;
use super::resource_type::ResourceType;
use super::stream::StreamRules;
use super::subscription::{Removals, Subscription};
use super::wire;
use crate::proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};

/// The only type.
const KIND: ResourceType = ResourceType::Endpoints;

/// Which call the stream is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SotwCall {
    /// The aggregated one: its requests must have the type.
    Aggregated,
    /// The one of endpoints: its requests may leave the type out.
    Endpoints,
}

/// One state-of-the-world stream.
#[derive(Debug)]
pub(super) struct SotwStream {
    bounds: StreamBounds,
    call: SotwCall,
    endpoints: Subscription,
    /// The number of the last change that was looked at.
    cursor: u64,
    nonces: u64,
}

impl SotwStream {
    /// A stream on which nothing was sent yet.
    pub(super) fn new(call: SotwCall, bounds: StreamBounds) -> Self {
        Self { bounds, call, endpoints: Subscription::new(KIND), cursor: 0, nonces: 0 }
    }

    fn check(&self, url: &str) -> Result<(), RequestViolation> {
        match self.call {
            _ if url == KIND.url() => Ok(()),
            SotwCall::Endpoints if url.is_empty() => Ok(()),
            SotwCall::Endpoints => {
                Err(RequestViolation::WrongType { expected: KIND.url(), found: url.to_owned() })
            }
            SotwCall::Aggregated => Err(RequestViolation::NotIncremental { found: url.to_owned() }),
        }
    }

    /// A request has all names, so that those that it leaves out are not subscribed any more.
    fn subscribe(&mut self, names: &[String], view: &CacheView<'_>) {
        let known = self.endpoints.names();
        let added: Vec<String> =
            names.iter().filter(|name| !known.contains(name.as_str())).cloned().collect();
        let names: HashSet<&str> = names.iter().map(String::as_str).collect();
        let gone = known.iter().filter(|name| !names.contains(&***name)).map(ToString::to_string);
        let gone: Vec<String> = gone.collect();
        self.endpoints.change(&added, &gone, view);
    }

    fn catch_up(&mut self, view: &CacheView<'_>) {
        match view.changes_since(self.cursor) {
            Some(changes) => {
                for (_, name) in changes.filter(|(kind, _)| *kind == KIND) {
                    self.endpoints.look(name, view);
                }
            }
            None => self.endpoints.compare(view),
        }
        self.cursor = view.newest();
    }
}

impl StreamRules for SotwStream {
    type Request = DiscoveryRequest;
    type Response = DiscoveryResponse;

    fn node_id(request: &DiscoveryRequest) -> Option<&str> {
        request.node.as_ref().map(|node| node.id.as_str())
    }

    fn request(
        &mut self,
        request: DiscoveryRequest,
        view: &CacheView<'_>,
        now: Moment,
    ) -> Result<Option<ClientAnswer>, RequestViolation> {
        self.check(&request.type_url)?;
        self.catch_up(view);
        let rejected = request.error_detail.map(|status| status.message);
        let answer = self.endpoints.answer(&request.response_nonce, rejected, now);
        self.subscribe(&request.resource_names, view);
        if self.endpoints.names().len() > self.bounds.names {
            return Err(RequestViolation::TooManyNames(self.bounds.names));
        }
        Ok(answer)
    }

    fn respond(&mut self, view: &CacheView<'_>, now: Moment) -> Vec<DiscoveryResponse> {
        self.catch_up(view);
        if self.endpoints.outstanding.is_some() {
            return Vec::new();
        }
        // A response cannot say that something does not exist: the client keeps what it has.
        self.endpoints.skip_missing(view);
        let batch = self.endpoints.take(view, self.bounds.response, Removals::Go);
        if batch.is_empty() {
            return Vec::new();
        }
        self.nonces += 1;
        let resources = batch.resources.iter().map(|(_, resource)| wire::encoded(KIND.url(), resource));
        let response = DiscoveryResponse {
            version_info: format!("{:x}", view.newest()),
            resources: resources.collect(),
            type_url: KIND.url().to_owned(),
            nonce: self.nonces.to_string(),
        };
        self.endpoints.send(self.nonces, now, &batch);
        vec![response]
    }

    fn wake_after(&self, _now: Moment) -> Option<Duration> {
        None
    }

    fn measure(response: &DiscoveryResponse) -> Option<SentResponse> {
        let (resources, bytes) = (response.resources.len(), response.encoded_len());
        Some(SentResponse { kind: KIND, resources, bytes })
    }

    fn endpoint_names(&self) -> Vec<Arc<str>> {
        self.endpoints.sorted_names()
    }

    fn knows(&self, name: &str) -> ClientKnowledge {
        self.endpoints.knows(name)
    }
}
