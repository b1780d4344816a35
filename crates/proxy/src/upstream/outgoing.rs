//! A request as it came from the client, and as it is sent to pods.

use std::rc::Rc;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::{self, Authority, PathAndQuery, Scheme};
use http::{Method, Request, Uri, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use super::body::{BodySource, RequestBody};
use super::context::UpstreamContext;
use super::headers;
use crate::budget::{LONG_HEAD, Reserved};
use crate::client::ClientState;
use crate::error::Failure;
use crate::message::{HeaderEdits, RequestHead};

impl RequestHead for Parts {
    fn method(&self) -> &Method {
        &self.method
    }

    fn version(&self) -> Version {
        self.version
    }

    fn authority(&self) -> Option<&str> {
        self.uri.authority().map(Authority::as_str)
    }

    fn path(&self) -> &str {
        self.uri.path()
    }

    fn header(&self, name: &HeaderName) -> Option<&[u8]> {
        self.headers.get(name).map(HeaderValue::as_bytes)
    }

    fn header_values(&self, name: &HeaderName) -> impl Iterator<Item = &[u8]> {
        self.headers.get_all(name).into_iter().map(HeaderValue::as_bytes)
    }

    fn header_count(&self) -> usize {
        self.headers.len()
    }

    fn header_bytes(&self) -> usize {
        headers::length(&self.headers)
    }

    fn kept_header(&self, name: &HeaderName) -> Option<HeaderValue> {
        self.headers.get(name).cloned()
    }

    fn kept_target(&self) -> Option<PathAndQuery> {
        self.uri.path_and_query().cloned()
    }

    fn kept_authority(&self) -> Option<Authority> {
        self.uri.authority().cloned()
    }
}

/// A request as it came from the client.
#[derive(Debug)]
pub(crate) struct ClientRequest {
    head: Parts,
    body: Incoming,
}

impl ClientRequest {
    pub(crate) fn new(request: Request<Incoming>) -> Self {
        let (head, body) = request.into_parts();
        Self { head, body }
    }

    pub(crate) fn head(&self) -> &impl RequestHead {
        &self.head
    }

    /// Whether the client wants to change the protocol after this request, to one that may pass.
    pub(crate) fn wants_upgrade(&self) -> bool {
        self.head.version == Version::HTTP_11 && headers::wanted_upgrade(&self.head.headers).is_some()
    }

    /// The request for the pods, without the headers that concern the client's connection.
    pub(crate) fn into_outgoing(
        self,
        client: &Rc<ClientState>,
        upstream: &UpstreamContext,
    ) -> OutgoingRequest {
        let Self { mut head, body } = self;
        let upgrade = match head.version {
            Version::HTTP_11 => headers::wanted_upgrade(&head.headers),
            _ => None,
        };
        let upgrade = upgrade.and_then(|name| Some((name, head.extensions.remove::<OnUpgrade>()?)));
        headers::remove_hop_by_hop(&mut head.headers);
        let source = BodySource::new(body, client, upstream);
        OutgoingRequest { head, source, upgrade, reserved: None }
    }
}

/// A request on its way to a pod.
#[derive(Debug)]
pub(crate) struct OutgoingRequest {
    head: Parts,
    pub(super) source: Rc<BodySource>,
    /// The protocol that the client wants after this request, and the client's side of the connection.
    pub(super) upgrade: Option<(HeaderValue, OnUpgrade)>,
    /// Counts a long head.
    reserved: Option<Reserved>,
}

impl OutgoingRequest {
    pub(crate) fn head(&self) -> &impl RequestHead {
        &self.head
    }

    /// How many bytes of its body may still arrive, as far as the head says.
    pub(crate) fn body_size(&self) -> usize {
        usize::try_from(self.source.size().upper().unwrap_or(u64::MAX)).unwrap_or(usize::MAX)
    }

    pub(crate) fn apply(&mut self, edits: HeaderEdits) {
        headers::apply(&mut self.head.headers, edits);
    }

    /// Counts a long head against the byte budget. Short heads are covered by the limit on connections.
    pub(crate) fn reserve_head(&mut self, upstream: &UpstreamContext) -> Result<(), Failure> {
        let length = headers::length(&self.head.headers);
        if length > LONG_HEAD {
            // As it came and as it is sent, each in a buffer that may be twice as long.
            let reserved = upstream.buffers.reserve(4 * length).ok_or(Failure::QueueFull)?;
            self.reserved = Some(reserved);
        }
        Ok(())
    }

    /// Whether the request may be sent again although a pod may have processed it.
    pub(super) fn may_be_repeated(&self) -> bool {
        self.head.method.is_idempotent() && self.source.is_empty()
    }

    /// The request for one attempt. `scheme`: for HTTP/2. `keep`: a copy of the headers and the body stays here.
    pub(super) fn request(&mut self, scheme: Option<&Scheme>, keep: bool) -> Option<Request<RequestBody>> {
        let own: &mut HeaderMap = &mut self.head.headers;
        let headers = if keep { own.clone() } else { std::mem::take(own) };
        let mut request = Request::new(self.source.body(keep));
        *request.method_mut() = self.head.method.clone();
        *request.headers_mut() = headers;
        let path = self.head.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        let headers = request.headers_mut();
        match scheme {
            None => {
                if let Some((name, _)) = &self.upgrade {
                    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
                    headers.insert(header::UPGRADE, name.clone());
                }
                if !self.source.is_empty() && self.source.size().exact().is_none() {
                    // hyper assumes that a GET or HEAD has no body, and would leave it out.
                    headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
                }
                *request.uri_mut() = Uri::from(path);
            }
            Some(scheme) => {
                let mut parts = uri::Parts::default();
                parts.scheme = Some(scheme.clone());
                parts.authority = headers.get(header::HOST).and_then(|host| host.as_bytes().try_into().ok());
                parts.path_and_query = Some(path);
                headers.remove(header::HOST);
                *request.uri_mut() = Uri::from_parts(parts).ok()?;
                *request.version_mut() = Version::HTTP_2;
            }
        }
        Some(request)
    }

    /// Takes back the headers of a request that was not sent.
    pub(super) fn take_back(&mut self, request: &mut Request<RequestBody>, kept: bool) {
        if !kept {
            self.head.headers = std::mem::take(request.headers_mut());
        }
    }
}
