//! One attempt to send a request to one destination: connect, send, and decide whether it may be sent again.

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use rouse_core::endpoint::State;
use rouse_core::snapshot::PortView;

use super::backend::Backend;
use super::body::RequestBody;
use super::connect::{connect, is_too_much};
use super::context::AttemptContext;
use super::destination::Destination;
use super::failure::AttemptFailure;
use super::outgoing::OutgoingRequest;
use super::pool::PooledConnection;
use super::response::{PodResponse, first_frame, is_refusal};
use super::send::{Unanswered, send};
use crate::error::Failure;
use crate::message::Placement;

/// Counts the attempts of one request.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    /// Endpoints that have refused it since it was last held.
    pub(crate) attempts: usize,
    /// Whether it was sent to the same endpoint a second time.
    pub(crate) repeated: bool,
    /// Attempts after which the pod closed the whole HTTP/2 connection with an error (GOAWAY). A hold does not reset the
    /// count: the request itself may be the cause.
    pub(crate) goaway_errors: usize,
}

/// The result of an attempt: a response, or a failure after which another attempt may follow.
pub(crate) type Attempted = Result<PodResponse, (AttemptFailure, Destination)>;

/// Sends the request to `destination`. An error ends the request.
pub(crate) async fn attempt(
    context: &AttemptContext<'_>,
    outgoing: &mut OutgoingRequest,
    tries: &mut Tries,
    mut destination: Destination,
) -> Result<Attempted, Failure> {
    let pool = destination.pool(context)?;
    let mut fresh = false;
    loop {
        let mut link = match connect(context, outgoing, &pool, &destination, fresh).await? {
            Ok(link) => link,
            Err(failure) => return Ok(Err((failure, destination))),
        };
        destination.connected();
        context.record.sent_to(link.peer(), destination.cold_start());
        let keep = outgoing.may_be_repeated() || link.scheme().is_some() || destination.may_refuse();
        let request = outgoing.request(link.scheme(), keep).ok_or(Failure::UpstreamReset)?;
        destination.count(context);
        let read_before = link.bytes_read();
        let error = match send(context, &outgoing.source, &mut link, request).await {
            Ok(Ok(response)) if keep && is_refused(context, outgoing, &destination, &response) => {
                return Ok(Err((AttemptFailure::Draining, destination)));
            }
            Ok(Ok(response)) => return respond(context, outgoing, response, link, destination).await.map(Ok),
            Ok(Err(error)) => error,
            Err(Unanswered { failure, by_pod }) => {
                if by_pod {
                    destination.unanswered(context);
                }
                return Err(failure);
            }
        };
        let failed = FailedSend { error, read_before, keep };
        match failed.judge(context, outgoing, tries, &destination, link)? {
            Next::Fail(failure) => return Ok(Err((failure, destination))),
            Next::SameEndpoint { new_connection } => fresh |= new_connection,
        }
    }
}

/// Whether the sidecar of the pod has refused the request, and it can be sent again.
fn is_refused(
    context: &AttemptContext<'_>,
    outgoing: &OutgoingRequest,
    destination: &Destination,
    response: &Response<Incoming>,
) -> bool {
    context.upstream.placement == Placement::Gateway
        && is_refusal(response)
        && outgoing.source.is_whole()
        && !outgoing.source.has_failed()
        && destination.is_believed(context)
}

/// The response to a request that was sent.
async fn respond(
    context: &AttemptContext<'_>,
    outgoing: &mut OutgoingRequest,
    mut response: Response<Incoming>,
    link: PooledConnection,
    destination: Destination,
) -> Result<PodResponse, Failure> {
    if is_too_much(context) {
        return Err(Failure::QueueFull);
    }
    let first = first_frame(&link, &mut response).await?;
    PodResponse::new(context, outgoing, response, first, link, destination.into_slot())
}

/// A request that was handed to a connection and got no response.
struct FailedSend {
    error: TrySendError<Request<RequestBody>>,
    /// How many bytes the connection had read before.
    read_before: Option<u64>,
    /// The headers of the request are kept.
    keep: bool,
}

/// What follows a request that got no response.
enum Next {
    /// The attempt has failed. The caller decides about another one.
    Fail(AttemptFailure),
    /// The same endpoint again. `new_connection`: not on a connection from the pool.
    SameEndpoint { new_connection: bool },
}

impl FailedSend {
    /// Decides whether the request may be sent again. An error ends the request.
    fn judge(
        mut self,
        context: &AttemptContext<'_>,
        outgoing: &mut OutgoingRequest,
        tries: &mut Tries,
        destination: &Destination,
        link: PooledConnection,
    ) -> Result<Next, Failure> {
        let (reused, answered) = (link.is_reused(), link.bytes_read() > self.read_before);
        // An HTTP/1 connection may have been closed for its age when the request came: not the pod's fault.
        let stale = reused && !answered && link.scheme().is_none();
        if let Some(error) = link.tls_error().filter(|_| !reused && !answered) {
            return Err(Failure::TlsFailed { reason: error.to_string() });
        }
        if let Some(failure) = link.wrong_protocol(self.error.error()) {
            return Err(failure);
        }
        drop(link);
        if let Some(mut request) = self.error.take_message() {
            outgoing.take_back(&mut request, self.keep);
            if reused {
                // The connection was closed while it was idle: not the pod's fault.
                return Ok(Next::SameEndpoint { new_connection: false });
            }
            return Ok(Next::Fail(AttemptFailure::Unsent));
        }
        if outgoing.source.has_failed() {
            return Err(Failure::ClientGone);
        }
        let unprocessed = AttemptFailure::of_stream(self.error.error());
        if !stale && !matches!(unprocessed, Some(AttemptFailure::RefusedStream)) {
            destination.unanswered(context);
        }
        if let Some(failure) = unprocessed.filter(|_| self.keep && outgoing.source.is_whole()) {
            tries.goaway_errors += usize::from(matches!(failure, AttemptFailure::GoAwayError));
            return Ok(Next::Fail(failure));
        }
        if answered || !outgoing.may_be_repeated() {
            return Err(Failure::UpstreamReset);
        }
        // Another pod is the better choice: this one may have died.
        if !reused || ready_endpoints(context.backend) > 1 || std::mem::replace(&mut tries.repeated, true) {
            return Ok(Next::Fail(AttemptFailure::Lost));
        }
        // Usually the pod closed an idle connection as the request came. It may be about to close others as well.
        if !context.backend.service.may_retry() {
            return Err(Failure::UpstreamReset);
        }
        context.upstream.metrics.retried("idle");
        Ok(Next::SameEndpoint { new_connection: true })
    }
}

/// How many endpoints take new requests.
pub(crate) fn ready_endpoints(backend: &Backend) -> usize {
    let snapshot = backend.service.snapshot();
    let endpoints = snapshot.port(backend.port.name()).map(PortView::endpoints).unwrap_or_default();
    let best = endpoints.iter().map(|endpoint| endpoint.state).max().unwrap_or(State::Gone);
    endpoints.iter().filter(|endpoint| endpoint.state.takes_new(best)).count()
}
