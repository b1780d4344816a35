//! Handles one request: check, route, hold, forward, answer.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Version, header};
use rouse_core::hold::HoldLimits;
use rouse_core::time::Moment;

use super::check::{self, Rejection};
use super::context::RequestContext;
use super::forwarding::{self, TrustedProxies, ViaMark};
use crate::budget::HeadLimits;
use crate::client::{ClientConnection, RequestGuard};
use crate::error::Failure;
use crate::message::{Placement, RequestHead};
use crate::routing::{NoPodPolicy, Route, Router, StaticResponse, Target};
use crate::runtime::Runtime;
use crate::telemetry::{Recorder, RequestRecord};
use crate::upstream::{
    AttemptContext, ClientRequest, OutgoingRequest, PodResponse, RequestDeadlines, UpstreamContext,
    UpstreamProtocol,
};

/// How long a fallback that has no pod either may take to have one.
const FALLBACK_WAIT: Duration = Duration::from_secs(5);

/// Why a connection, or a stream, ends without a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The client has left.
    ClientGone,
    /// An HTTP/2 stream is refused: nothing was processed.
    Refused,
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) content: AnswerContent,
    /// Whether an HTTP/1 connection closes after it.
    pub(crate) close: bool,
    /// The record of the request, which ends with the answer.
    pub(crate) record: RequestRecord,
}

/// The content of an answer, by its origin.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "almost all answers come from pods, and a box costs each of them an allocation"
)]
pub(crate) enum AnswerContent {
    Pod(PodResponse),
    Static(Arc<StaticResponse>),
    Failure {
        failure: Failure,
        /// Whether the client gets a gRPC status.
        grpc: bool,
    },
    /// CONNECT is not supported.
    MethodNotAllowed,
    /// The request needs another TLS session than its connection has.
    Misdirected,
}

/// What the requests of one worker thread need.
#[derive(Debug)]
pub(crate) struct RequestHandler {
    pub(crate) runtime: Rc<Runtime>,
    pub(crate) router: Arc<Router>,
    pub(crate) recorder: Rc<Recorder>,
    pub(crate) upstream: Rc<UpstreamContext>,
    pub(crate) heads: HeadLimits,
    /// How long and how many requests may wait.
    pub(crate) bounds: HoldLimits,
    pub(crate) via: ViaMark,
    pub(crate) trusted: TrustedProxies,
    pub(crate) placement: Placement,
    /// The gateway will drain soon.
    pub(crate) leaving: Arc<AtomicBool>,
    /// Requests are refused, for the gateway in front to send them elsewhere.
    pub(crate) refusing: Arc<AtomicBool>,
}

impl RequestHandler {
    /// Handles one request. `rejected`: the connection has found a reason to reject it. `guard` counts it on its connection.
    ///
    /// Once the gateway is about to leave, each HTTP/1 answer closes its connection: closing idle connections later could
    /// meet a request that is on its way.
    pub(crate) async fn handle(
        &self,
        client: &Rc<ClientConnection>,
        request: ClientRequest,
        rejected: Option<Failure>,
        guard: RequestGuard,
    ) -> Result<Answer, NoAnswer> {
        let head = request.head();
        let grpc = is_grpc(head);
        let is_http1 = head.version() < Version::HTTP_2;
        // Bytes after such a head are not checked: unless a pod has switched protocols, they must not be read as a request.
        let unguarded = request.wants_upgrade();
        let host = rejected.map_or_else(|| check::host(head), |failure| Err(Rejection::Malformed(failure)));
        let route = host.as_ref().map_or(Err(Failure::NoRoute), |host| self.router.find(host.as_ref(), head));
        let rejected = host.and_then(|host| check::check(head, host.as_ref(), &self.heads, client)).err();
        let name = route.as_ref().ok().map(|route| &route.name);
        let mut record = self.recorder.begin(name, head, grpc, client.address, guard);
        // From here on the request itself counts as under way.
        drop(client.arrival.take());
        let refusing = || self.refusing.load(Ordering::Relaxed);
        let content = match (rejected, &route) {
            _ if refusing() => AnswerContent::Failure { failure: Failure::Draining, grpc },
            (Some(Rejection::Method), _) => AnswerContent::MethodNotAllowed,
            (Some(Rejection::Misdirected), _) => AnswerContent::Misdirected,
            (Some(Rejection::Malformed(failure)), _) => AnswerContent::Failure { failure, grpc },
            (None, Err(failure)) => AnswerContent::Failure { failure: failure.clone(), grpc },
            (None, Ok(route)) => match self.answer(client, route, request, &mut record).await {
                Ok(content) => content,
                // It has waited, and was not sent.
                Err(Failure::ShuttingDown) if refusing() => {
                    AnswerContent::Failure { failure: Failure::Draining, grpc }
                }
                Err(failure) => AnswerContent::Failure { failure, grpc },
            },
        };
        let close = match &content {
            AnswerContent::Failure { failure: Failure::ClientGone, .. } => return Err(NoAnswer::ClientGone),
            AnswerContent::Failure { failure: Failure::Draining, .. } if !is_http1 => {
                record.answered(Failure::Draining.status().as_u16(), 0);
                return Err(NoAnswer::Refused);
            }
            AnswerContent::Failure { failure: Failure::Draining, .. } => true,
            AnswerContent::Pod(_) | AnswerContent::MethodNotAllowed => false,
            // While memory is short, no connection keeps the buffers that a rejected request was read into.
            AnswerContent::Static(_) | AnswerContent::Failure { .. } | AnswerContent::Misdirected => {
                unguarded || (is_http1 && self.upstream.buffers.are_short())
            }
        };
        let close = close || (is_http1 && self.leaving.load(Ordering::Relaxed));
        Ok(Answer { content, close, record })
    }

    async fn answer(
        &self,
        client: &Rc<ClientConnection>,
        route: &Route,
        request: ClientRequest,
        record: &mut RequestRecord,
    ) -> Result<AnswerContent, Failure> {
        let policy = &route.no_pod;
        if let Some(fixed) = &policy.fixed
            && !(fixed.when_unavailable && route.target.is_available())
        {
            return Ok(AnswerContent::Static(Arc::clone(&fixed.response)));
        }
        let backend = route.target.backend()?;
        let passive = policy.passive.covers(request.head());
        record.count_load(route.meter.as_ref().filter(|_| !passive));
        let outgoing = self.prepare(client, request)?;
        let deadlines = RequestDeadlines::new(&self.bounds, route.timeouts, record.began());
        let (upstream, record) = (&self.upstream, record.attempt());
        let attempt = AttemptContext { upstream, client, backend, deadlines, record };
        let context = RequestContext { attempt, policy, passive };
        check_protocol(&context)?;
        if let Some(placeholder) = &policy.placeholder
            && !passive
            && !route.target.is_available()
        {
            backend.port.announce();
            if let Some(ip) = &backend.cluster_ip {
                // No request waits, so no attempt will notice.
                ip.went_cold();
            }
            return Ok(AnswerContent::Static(Arc::clone(placeholder)));
        }
        let slot = match context.acquire(&outgoing, None).await {
            Ok(slot) => slot,
            Err(Failure::QueueFull) if let Some(overflow) = &policy.overflow => {
                return Ok(AnswerContent::Static(Arc::clone(overflow)));
            }
            Err(failure @ (Failure::ReadinessTimeout { .. } | Failure::StartFailed { .. }))
                if let Some(fallback) = &policy.fallback =>
            {
                let answered = Box::pin(self.fall_back(&context, fallback, outgoing, failure)).await;
                return answered.map(AnswerContent::Pod);
            }
            Err(failure) => return Err(failure),
        };
        context.forward(outgoing, slot).await.map(AnswerContent::Pod)
    }

    /// No pod was ready in time: the fallback takes the request.
    async fn fall_back(
        &self,
        context: &RequestContext<'_>,
        fallback: &Target,
        outgoing: OutgoingRequest,
        failure: Failure,
    ) -> Result<PodResponse, Failure> {
        // The route's status says what is wrong with the fallback. The client learns why its own pods failed.
        let Ok(backend) = fallback.backend() else { return Err(failure) };
        let deadlines = context.attempt.deadlines;
        let readiness = deadlines.end.into_iter().fold(self.runtime.now() + FALLBACK_WAIT, Moment::min);
        let deadlines = RequestDeadlines { readiness, ..deadlines };
        let attempt = AttemptContext { backend, deadlines, ..context.attempt };
        let policy = &NoPodPolicy::default();
        let context = RequestContext { attempt, policy, ..*context };
        check_protocol(&context)?;
        let slot = if backend.cluster_ip.is_some() && !fallback.is_available() {
            None
        } else {
            context.acquire(&outgoing, None).await?
        };
        context.forward(outgoing, slot).await
    }

    /// The request as pods get it.
    fn prepare(&self, client: &ClientConnection, request: ClientRequest) -> Result<OutgoingRequest, Failure> {
        let mut outgoing = request.into_outgoing(&client.state, &self.upstream);
        let (address, over_tls) = (client.address, client.tls.is_some());
        let edits = match self.placement {
            Placement::Gateway => {
                forwarding::edits(outgoing.head(), address, over_tls, &self.trusted, &self.via)?
            }
            Placement::Sidecar => forwarding::edits_of_sidecar(outgoing.head()),
        };
        outgoing.apply(edits);
        outgoing.reserve_head(&self.upstream)?;
        Ok(outgoing)
    }
}

fn check_protocol(context: &RequestContext<'_>) -> Result<(), Failure> {
    match context.attempt.protocol() {
        UpstreamProtocol::Unusable(reason) => Err(Failure::TlsFailed { reason: reason.to_string() }),
        _ => Ok(()),
    }
}

/// Whether the client expects a gRPC status.
fn is_grpc(head: &impl RequestHead) -> bool {
    let prefix = b"application/grpc";
    // `application/grpc-web` comes from browsers, which understand HTTP.
    head.header(&header::CONTENT_TYPE).is_some_and(|text| {
        text.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
            && matches!(text.get(prefix.len()), None | Some(b'+' | b';' | b' '))
    })
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn grpc_is_recognised_by_its_content_type() {
        for (content_type, grpc) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/GRPC; charset=x", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            let request = Request::builder().header(header::CONTENT_TYPE, content_type).body(()).unwrap();
            assert_eq!(is_grpc(&request.into_parts().0), grpc, "{content_type}");
        }
    }
}
