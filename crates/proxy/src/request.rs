//! The life of one request: route → hold → forward → answer, and its line in the books.

mod audience;
mod exchange;
mod journey;

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use rouse_core::host::Host;
use rouse_core::time::{Clock as _, Moment};

pub(crate) use self::exchange::Exchange;
pub(crate) use self::journey::Journey;
use self::journey::Times;
use crate::answer;
use crate::body::{AnswerBody, Source};
use crate::buffers::Reserved;
use crate::connection::Client;
use crate::crowd::LONG_HEAD;
use crate::error::Failure;
use crate::forward::{self, Outgoing};
use crate::gateway::{Route, Target, Upstream};
use crate::guard::Violation;
use crate::headers;
use crate::metrics::Protocol;
use crate::podless::{Canned, Podless};
use crate::worker::Worker;

/// What a client gets.
pub(crate) type Answer = Response<AnswerBody>;

/// How long a fallback that has no pod either may take to have one.
const FALLBACK: Duration = Duration::from_secs(5);

/// There is nobody to answer: the connection, or the stream, just ends.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the client went away")]
pub(crate) struct ClientGone;

/// Answers one request. Once we are about to leave, clients hear with each answer that they should go elsewhere: whoever
/// closes a connection that was idle closes over the request that is on its way.
pub(crate) async fn serve(
    worker: &Rc<Worker>,
    client: &Rc<Client>,
    request: Request<Incoming>,
) -> Result<Answer, ClientGone> {
    let http1 = request.version() < Version::HTTP_2;
    let mut answer = respond(worker, client, request).await?;
    if http1 && worker.gateway.is_leaving() && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(answer)
}

async fn respond(
    worker: &Rc<Worker>,
    client: &Rc<Client>,
    request: Request<Incoming>,
) -> Result<Answer, ClientGone> {
    let grpc = answer::is_grpc(request.headers());
    // What follows such a head is not looked at, and must not be taken for a request unless a pod has switched.
    let unguarded =
        request.version() == Version::HTTP_11 && headers::wanted_upgrade(request.headers()).is_some();
    let is_http1 = request.version() != Version::HTTP_2;
    let last = |mut answer: Answer| {
        // While memory is short, no connection keeps the buffers that a refused request was read into.
        if unguarded || (is_http1 && worker.buffers.are_short()) {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    };
    let refused = refused_by_guard(client, &request).or_else(|| too_long(worker, &request));
    let host = refused.map_or_else(|| host(&request), Err);
    let route = host.as_ref().map_or(Err(Failure::NoRoute), |host| find(worker, &request, host.as_ref()));
    let refused = host.and_then(|host| check(worker, client, &request, host.as_ref())).err();
    let mut exchange = Exchange::begin(worker, client, route.as_ref().ok(), &request, grpc);
    // From here on the request itself counts.
    drop(client.arrival.take());
    match refused {
        None => {}
        Some(Refused::Method) => return Ok(exchange.answered(405, answer::not_allowed())),
        Some(Refused::Misdirected) => return Ok(last(exchange.answered(421, answer::misdirected()))),
        Some(Refused::Malformed(failure)) => return Ok(last(exchange.fails(&failure, grpc))),
    }
    let answered = match &route {
        Ok(route) => answer(worker, client, route, request, &exchange).await,
        Err(failure) => Err(failure.clone()),
    };
    match answered {
        Ok(Answered::Pod(reply)) => Ok(reply.with(exchange)),
        Ok(Answered::Canned(canned)) => {
            Ok(last(exchange.answered(canned.status().as_u16(), canned.response())))
        }
        Err(Failure::ClientGone) => Err(ClientGone),
        Err(failure) => Ok(last(exchange.fails(&failure, grpc))),
    }
}

/// Why a request goes nowhere, whatever its route is.
enum Refused {
    Method,
    /// It needs another handshake than its connection has had.
    Misdirected,
    Malformed(Failure),
}

impl Refused {
    fn malformed(status: StatusCode, reason: &str) -> Self {
        Self::Malformed(Failure::BadRequest { status, reason: reason.into() })
    }

    fn broken(rule: Violation) -> Self {
        Self::malformed(rule.status(), &rule.to_string())
    }
}

/// Whether the request stands for a head that the guard refused, see [`guard::REFUSED`].
fn refused_by_guard(client: &Client, request: &Request<Incoming>) -> Option<Refused> {
    let violation = client.member.refused().filter(|_| request.uri().path() == "*")?;
    let stands = request.version() == Version::HTTP_11 && request.method() != Method::OPTIONS;
    stands.then(|| Refused::broken(violation))
}

/// Whether an HTTP/2 request would be too long over HTTP/1. Of HTTP/1 the guard has measured the head as it came: its
/// request line may be longer by now.
fn too_long(worker: &Worker, request: &Request<Incoming>) -> Option<Refused> {
    if request.version() != Version::HTTP_2 {
        return None;
    }
    let limits = &worker.gateway.settings.limits.heads;
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let line = request.method().as_str().len() + target + "  HTTP/1.1".len();
    let lines =
        request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    if line > limits.line {
        Some(Refused::broken(Violation::LineTooLong))
    } else if line + lines.sum::<usize>() > limits.head {
        Some(Refused::broken(Violation::HeadTooLong))
    } else {
        None
    }
}

/// The host that a request is for; HTTP/1.0 need not name one.
fn host(request: &Request<Incoming>) -> Result<Option<Host<'_>>, Refused> {
    if request.method() == Method::CONNECT {
        return Err(Refused::Method);
    }
    let refused = |reason: &str| Refused::malformed(StatusCode::BAD_REQUEST, reason);
    let parse = |text| {
        Host::parse(text).map_err(|error| refused(&format!("the host of the request is not one: {error}")))
    };
    let authority = request.uri().authority().map(|authority| parse(authority.as_str().as_bytes()));
    let mut hosts = request.headers().get_all(header::HOST).iter().map(|host| parse(host.as_bytes()));
    match (authority.transpose()?, hosts.next().transpose()?, hosts.next()) {
        (.., Some(_)) => Err(refused("the request has more than one Host")),
        (Some(authority), Some(host), None) if authority != host => {
            Err(refused("the Host of the request is not its authority"))
        }
        (None, None, None) if request.version() == Version::HTTP_2 => {
            Err(refused("the request has neither an authority nor a Host"))
        }
        (authority, host, None) => Ok(authority.or(host)),
    }
}

/// What every request must be, whatever its route is. Of HTTP/1 the guard has asked the most of it before.
fn check(
    worker: &Worker,
    client: &Client,
    request: &Request<Incoming>,
    host: Option<&Host<'_>>,
) -> Result<(), Refused> {
    if request.headers().get_all(header::CONTENT_LENGTH).iter().nth(1).is_some() {
        return Err(Refused::malformed(
            StatusCode::BAD_REQUEST,
            "the request has more than one Content-Length",
        ));
    }
    if request.headers().len() > worker.gateway.settings.limits.heads.headers {
        return Err(Refused::malformed(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "the request has too many headers",
        ));
    }
    if client.tls.as_ref().is_some_and(|tls| !tls.admits(host)) {
        return Err(Refused::Misdirected);
    }
    Ok(())
}

/// The route that a request takes.
fn find(
    worker: &Worker,
    request: &Request<Incoming>,
    host: Option<&Host<'_>>,
) -> Result<Arc<Route>, Failure> {
    worker.gateway.find(|table| {
        let rule = table.find(host, request.uri().path(), request.headers());
        rule.map(|rule| Arc::clone(&rule.target))
    })
}

fn protocol(request: &Request<Incoming>, grpc: bool) -> Protocol {
    match request.version() {
        _ if grpc => Protocol::grpc,
        Version::HTTP_2 => Protocol::http2,
        _ => Protocol::http1,
    }
}

/// Who answers.
#[expect(
    clippy::large_enum_variant,
    reason = "almost all are a pod's, and a box costs each of them an allocation"
)]
enum Answered {
    Pod(forward::Reply),
    Canned(Arc<Canned>),
}

async fn answer(
    worker: &Rc<Worker>,
    client: &Rc<Client>,
    route: &Route,
    request: Request<Incoming>,
    exchange: &Exchange,
) -> Result<Answered, Failure> {
    let podless = &route.podless;
    if let Some(fixed) = &podless.fixed
        && !(fixed.when_unavailable && route.target.is_available())
    {
        return Ok(Answered::Canned(Arc::clone(&fixed.answer)));
    }
    let backend = route.target.backend()?;
    let quiet = podless.quiet.covers(&request);
    let outgoing = prepare(worker, client, request)?;
    let times = Times::new(worker, route.timeouts, exchange.began);
    let journey = Journey { worker, client, backend, podless, quiet, times, exchange };
    if let Upstream::Unusable(reason) = journey.upstream() {
        return Err(Failure::TlsFailed { reason: reason.to_string() });
    }
    if let Some(placeholder) = &podless.placeholder
        && !quiet
        && !route.target.is_available()
    {
        backend.port.announce();
        if let Some(ip) = &backend.cluster_ip {
            // Nobody waits, so nobody else will notice.
            ip.went_cold();
        }
        return Ok(Answered::Canned(Arc::clone(placeholder)));
    }
    let slot = match journey.acquire(&outgoing, None).await {
        Ok(slot) => slot,
        Err(Failure::QueueFull) if let Some(overflow) = &podless.overflow => {
            return Ok(Answered::Canned(Arc::clone(overflow)));
        }
        Err(failure @ (Failure::ReadinessTimeout { .. } | Failure::StartFailed { .. }))
            if let Some(fallback) = &podless.fallback =>
        {
            return Box::pin(fall_back(&journey, fallback, outgoing, failure)).await.map(Answered::Pod);
        }
        Err(failure) => return Err(failure),
    };
    forward::forward(&journey, outgoing, slot).await.map(Answered::Pod)
}

/// Nobody was ready in time: the fallback takes the request.
async fn fall_back(
    journey: &Journey<'_>,
    fallback: &Target,
    outgoing: Outgoing,
    failure: Failure,
) -> Result<forward::Reply, Failure> {
    // What is wrong with the fallback is said on the route's status. The client hears what it waited for.
    let Ok(backend) = fallback.backend() else { return Err(failure) };
    let now = journey.worker.gateway.settings.clock.now();
    let readiness = journey.times.end.into_iter().fold(now + FALLBACK, Moment::min);
    let times = Times { readiness, ..journey.times };
    let nobody = &Podless::default();
    let journey = Journey { backend, podless: nobody, times, ..*journey };
    if let Upstream::Unusable(reason) = journey.upstream() {
        return Err(Failure::TlsFailed { reason: reason.to_string() });
    }
    let slot = if backend.cluster_ip.is_some() && !fallback.is_available() {
        None
    } else {
        journey.acquire(&outgoing, None).await?
    };
    forward::forward(&journey, outgoing, slot).await
}

/// What is told along the way, and what is not.
fn prepare(worker: &Worker, client: &Client, mut request: Request<Incoming>) -> Result<Outgoing, Failure> {
    let over_http2 = request.version() == Version::HTTP_2;
    let upgrade = match request.version() {
        Version::HTTP_11 => headers::wanted_upgrade(request.headers()),
        _ => None,
    };
    let upgrade = upgrade.map(|name| (name, hyper::upgrade::on(&mut request)));
    let (mut parts, body) = request.into_parts();
    if let Some(authority) = parts.uri.authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        parts.headers.insert(header::HOST, host);
    }
    let headers = &mut parts.headers;
    headers::remove_hop_by_hop(headers);
    // Only now: what `Connection` names must not take our own mark away.
    if worker.gateway.mark.found_in(headers) {
        return Err(Failure::Loop);
    }
    if over_http2 {
        headers::join_cookies(headers);
    }
    headers::tell_origin(headers, client.address, client.tls.is_some(), &worker.gateway.settings.trusted);
    if over_http2 {
        // We could not pass the 100 on, so the pod must not wait for it to have an effect.
        headers.remove(header::EXPECT);
    }
    let reserved = reserve_head(worker, headers)?;
    let source = Source::new(body, client, worker);
    let (method, uri, headers) = (parts.method, parts.uri, parts.headers);
    Ok(Outgoing { method, uri, headers, source, upgrade, over_http2, _reserved: reserved })
}

/// Counts a long head against the budget of buffers. Usual ones are paid for by the limit on connections.
fn reserve_head(worker: &Worker, headers: &HeaderMap) -> Result<Option<Reserved>, Failure> {
    let length = headers::length(headers);
    if length <= LONG_HEAD {
        return Ok(None);
    }
    // As it came and as it is sent, each in a buffer that may be twice as long.
    worker.buffers.reserve(4 * length).map(Some).ok_or(Failure::QueueFull)
}

/// The first of two futures to end; the second wins only if the first is not ready.
pub(crate) async fn before<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> Option<T> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => second.as_mut().poll(context).map(|()| None),
    })
    .await
}
