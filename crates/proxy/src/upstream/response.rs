//! A pod's response: its head as the client gets it, and what happens to the connection after it.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::response::Parts;
use http::{Response, StatusCode, Version};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use rouse_core::service::Slot;

use super::body::{PodIncoming, ResponseBody, StreamedResponse};
use super::context::AttemptContext;
use super::headers;
use super::outgoing::OutgoingRequest;
use super::pool::PooledConnection;
use super::tunnel::Tunnel;
use crate::error::{Failure, REFUSED_DRAINING, REFUSED_HEADER};
use crate::telemetry::ResponseRecord;

/// A pod's response, before it is on its way to the client.
#[derive(Debug)]
pub(crate) struct PodResponse {
    head: Parts,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Streamed(StreamedResponse),
    Switched(Tunnel),
}

impl PodResponse {
    /// The response's head, for the client.
    pub(super) fn new(
        context: &AttemptContext<'_>,
        outgoing: &mut OutgoingRequest,
        response: Response<Incoming>,
        first: Option<Frame<Bytes>>,
        link: PooledConnection,
        mut slot: Option<Slot>,
    ) -> Result<Self, Failure> {
        let cold = slot.as_ref().is_some_and(Slot::cold_start);
        if let Some(slot) = &mut slot {
            slot.answered();
        }
        outgoing.source.settle();
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // The client would not expect what follows.
            let unasked =
                || not_http("it switched protocols although the request did not ask for an upgrade");
            let (name, client) = outgoing.upgrade.take().ok_or_else(unasked)?;
            return Ok(Self::switched(context, response, &name, TunnelEnds { client, link, slot }, cold));
        }
        let (mut head, incoming) = response.into_parts();
        if headers::is_ambiguous(&head.headers) {
            // Readers may disagree about the end of its body, and take what follows for the next response.
            return Err(not_http("the length of its response is ambiguous"));
        }
        headers::remove_hop_by_hop(&mut head.headers);
        // For gateways only. A sidecar removes the header of an app, which cannot refuse in its name.
        head.headers.remove(REFUSED_HEADER);
        headers::add_cold_start(&mut head.headers, context.upstream.cold_start, cold);
        head.version = Version::HTTP_11;
        if outgoing.upgrade.is_some() {
            // The pod did not switch. What the client sends next was not checked, and must not be read as a request.
            head.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let streamed = Content::Streamed(StreamedResponse {
            upstream: Rc::clone(context.upstream),
            incoming: PodIncoming::new(first, incoming),
            source: Rc::clone(&outgoing.source),
            link,
            slot,
            end: context.deadlines.end,
        });
        Ok(Self { head, content: streamed })
    }

    fn switched(
        context: &AttemptContext<'_>,
        mut response: Response<Incoming>,
        asked: &HeaderValue,
        TunnelEnds { client, link, slot }: TunnelEnds,
        cold: bool,
    ) -> Self {
        let pod = hyper::upgrade::on(&mut response);
        let (mut head, _) = response.into_parts();
        let name = head.headers.get(header::UPGRADE).unwrap_or(asked).clone();
        headers::remove_hop_by_hop(&mut head.headers);
        let websocket = name.as_bytes().eq_ignore_ascii_case(b"websocket");
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(header::UPGRADE, name);
        headers::add_cold_start(&mut head.headers, context.upstream.cold_start, cold);
        head.version = Version::HTTP_11;
        let (upstream, connection) = (Rc::clone(context.upstream), Rc::clone(context.client));
        let tunnel = Tunnel { upstream, client, pod, link, slot, connection, websocket };
        Self { head, content: Content::Switched(tunnel) }
    }

    /// Head and body, which takes `record` to its end. No body where the connection has become a tunnel.
    pub(crate) fn begin(self, mut record: ResponseRecord) -> (Parts, Option<ResponseBody>) {
        let status = self.head.status.as_u16();
        let body = match self.content {
            Content::Streamed(response) => {
                record.begins(status);
                Some(response.begin(record))
            }
            Content::Switched(tunnel) => {
                record.switches(status);
                tunnel.open(record);
                None
            }
        };
        (self.head, body)
    }
}

/// Whether a sidecar says by this response that it did not process the request.
pub(super) fn is_refusal(response: &Response<Incoming>) -> bool {
    response.status() == StatusCode::SERVICE_UNAVAILABLE
        && response.headers().get(REFUSED_HEADER).is_some_and(|value| value == REFUSED_DRAINING)
}

/// What a tunnel takes over from its request.
struct TunnelEnds {
    client: OnUpgrade,
    link: PooledConnection,
    slot: Option<Slot>,
}

/// The part of an HTTP/1 response's body that came together with its head. An error there can still be reported to the client:
/// later, all that is left is to cut its connection, and hyper would do so before it has sent the head. Checks once, without
/// waiting for more: a wait would delay the head of every event stream, to report a fault that the client also sees as a
/// cut connection after the head.
pub(super) async fn first_frame(
    link: &PooledConnection,
    response: &mut Response<Incoming>,
) -> Result<Option<Frame<Bytes>>, Failure> {
    if link.scheme().is_some() || response.body().is_end_stream() {
        return Ok(None);
    }
    let polled = poll_fn(|context| Poll::Ready(Pin::new(response.body_mut()).poll_frame(context))).await;
    match polled {
        Poll::Ready(Some(Err(error))) if is_bad_chunk(&error) => {
            Err(not_http("its response has an invalid chunk"))
        }
        Poll::Ready(Some(Err(_))) => Err(Failure::UpstreamReset),
        Poll::Ready(Some(Ok(frame))) => Ok(Some(frame)),
        Poll::Ready(None) | Poll::Pending => Ok(None),
    }
}

fn is_bad_chunk(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|error| error.downcast_ref::<io::Error>());
    source
        .is_some_and(|error| matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData))
}

fn not_http(reason: &str) -> Failure {
    Failure::BadUpstreamProtocol { reason: reason.into() }
}
