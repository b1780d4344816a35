//! To the pod and back: attempts, what may be tried again, and the response's head.

mod aim;
mod exchange;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::{Parts, PathAndQuery, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use rouse_core::endpoint::State;
use rouse_core::slot::{Retry, Slot};
use rouse_core::snapshot::PortView;
use rouse_core::time::{Clock as _, Moment};
use rouse_net::tls::Fault;

use self::aim::Aim;
use self::exchange::{Unanswered, exchange};
use crate::body::{AnswerBody, PodBody, PodIncoming, RequestBody, Source};
use crate::buffers::Reserved;
use crate::connection::STREAM_WINDOW;
use crate::error::Failure;
use crate::headers;
use crate::pool::{Link, Pool, Refusal, Turn};
use crate::request::{Answer, Exchange, Journey, before};
use crate::tunnel;

/// Endpoints that one request may try before it gives up, or goes back to the hold if none is left.
const MOST_ATTEMPTS: usize = 3;

/// How long a request waits when our own side could not connect.
const LACK: Duration = Duration::from_millis(100);
/// While buffers are full, a client connection may have so many requests at pods: each may bring two buffers' worth.
const REQUESTS_WHEN_FULL: usize = 8;

/// A request on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) source: Rc<Source>,
    /// What the client wants to speak after this, and its side of the connection.
    pub(crate) upgrade: Option<(HeaderValue, OnUpgrade)>,
    pub(crate) over_http2: bool,
    /// Counts a long head.
    pub(crate) _reserved: Option<Reserved>,
}

impl Outgoing {
    /// Whether it may be sent again although the pod may have seen it.
    fn may_be_repeated(&self) -> bool {
        self.method.is_idempotent() && self.source.is_empty()
    }

    /// The request for one attempt. `scheme`: that of HTTP/2, if that is spoken. `keep`: the headers stay here, too.
    fn request(&mut self, scheme: Option<&Scheme>, keep: bool) -> Option<Request<RequestBody>> {
        let headers = if keep { self.headers.clone() } else { std::mem::take(&mut self.headers) };
        let mut request = Request::new(self.source.body(scheme.is_some()));
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = headers;
        let path = self.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        let headers = request.headers_mut();
        match scheme {
            None => {
                if let Some((name, _)) = &self.upgrade {
                    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
                    headers.insert(header::UPGRADE, name.clone());
                }
                if !self.source.is_empty() && self.source.size().exact().is_none() {
                    // hyper takes it for granted that a GET or HEAD has no body, and would leave it out.
                    headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
                }
                *request.uri_mut() = Uri::from(path);
            }
            Some(scheme) => {
                let mut parts = Parts::default();
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
}

/// A pod's answer, not yet on its way back.
#[derive(Debug)]
pub(crate) struct Reply {
    head: http::response::Parts,
    body: ReplyBody,
}

#[derive(Debug)]
enum ReplyBody {
    Streamed {
        incoming: PodIncoming,
        source: Rc<Source>,
        link: Link,
        slot: Option<Slot>,
        end: Option<Moment>,
    },
    Switched(tunnel::Tunnel),
}

impl Reply {
    /// The answer, which takes `exchange` along to its end.
    pub(crate) fn with(self, mut exchange: Exchange) -> Answer {
        let body = match self.body {
            ReplyBody::Streamed { incoming, source, link, slot, end } => {
                exchange.begins(self.head.status.as_u16());
                AnswerBody::Pod(PodBody::begin(incoming, source, link, slot, exchange, end))
            }
            ReplyBody::Switched(tunnel) => {
                exchange.switched(self.head.status.as_u16());
                tunnel.open(exchange);
                AnswerBody::Ours(None)
            }
        };
        Response::from_parts(self.head, body)
    }
}

/// Why an attempt came to nothing, where another may not.
#[derive(Debug)]
enum Setback {
    /// No connection could be had.
    Refused(Refusal),
    /// While it waited, the pod left or got another address.
    Moved,
    /// The connection ended before anything was sent.
    Unsent,
    /// By HTTP/2's own word the pod did not look at it: nothing against the pod.
    RefusedStream,
    /// The same, by a pod that ends the whole connection for an error: the request itself may be why.
    ThrownOut,
    /// The connection ended before anything came back.
    Lost,
}

/// Sends the request to the pod of `slot`, or to another one where that is safe; or to the `ClusterIP`, where that is
/// asked for, or there is no slot.
pub(crate) async fn forward(
    journey: &Journey<'_>,
    mut outgoing: Outgoing,
    mut slot: Option<Slot>,
) -> Result<Reply, Failure> {
    let mut tries = Tries::default();
    loop {
        let waited = slot.as_ref().map(Slot::waited);
        let aim = Aim::new(journey, slot)?;
        let (setback, aim) = match attempt(journey, &mut outgoing, &mut tries, aim).await? {
            Ok(reply) => return Ok(reply),
            Err(setback) => setback,
        };
        let refusing = match aim {
            Aim::Pod(slot) => slot,
            Aim::ClusterIp(ip, kept) => {
                Box::pin(aim::again(journey, &setback, &mut tries, &ip, kept.is_some())).await?;
                slot = journey.renew(&outgoing, kept).await.map_err(|failure| tries.told(failure))?;
                continue;
            }
        };
        let retry = match setback {
            Setback::Lost => {
                if std::mem::replace(&mut tries.repeated, true) || !journey.backend.service.may_retry() {
                    return Err(Failure::UpstreamReset);
                }
                refusing.refused(false)
            }
            Setback::ThrownOut if tries.thrown_out >= MOST_ATTEMPTS => return Err(Failure::UpstreamReset),
            Setback::Refused(_)
            | Setback::Moved
            | Setback::Unsent
            | Setback::RefusedStream
            | Setback::ThrownOut => {
                tries.attempts += usize::from(setback.is_attempt());
                refuse(journey, refusing, &setback, tries.attempts)?
            }
        };
        journey.worker.gateway.metrics.retried(setback.reason());
        if setback.is_ours() {
            // What we lack, we lack for all pods: asking each of them at once would take a core.
            let worker = journey.worker;
            worker.deadlines.at(worker.gateway.settings.clock.now() + LACK).await;
        }
        slot = journey.acquire(&outgoing, Some(retry)).await.map_err(|failure| tries.told(failure))?;
        if slot.as_ref().map(Slot::waited) > waited {
            // Back from the hold: the pods may be others by now.
            tries.attempts = 0;
        }
    }
}

/// How often it was tried.
#[derive(Debug, Default)]
struct Tries {
    /// Endpoints that did not take it, since it was last held.
    attempts: usize,
    /// It was sent a second time.
    repeated: bool,
    /// Connections that pods ended for an error when it came. Counted through all holds.
    thrown_out: usize,
}

impl Tries {
    /// What the client hears when there is nobody left to try.
    fn told(&self, failure: Failure) -> Failure {
        match failure {
            // It was sent, and that is what became of it.
            Failure::ConnectFailed | Failure::ReadinessTimeout { .. } | Failure::StartFailed { .. }
                if self.repeated =>
            {
                Failure::UpstreamReset
            }
            failure => failure,
        }
    }
}

impl Setback {
    /// Whether our own side could not.
    fn is_ours(&self) -> bool {
        matches!(self, Setback::Refused(Refusal::Local))
    }

    /// Whether a pod was tried. What we lack ourselves, and a pod that moved meanwhile, cost no pod anything: a change of all
    /// addresses at once must not use up the budget for retries.
    fn is_attempt(&self) -> bool {
        !self.is_ours() && !matches!(self, Setback::Moved)
    }

    /// Whether it speaks against the pod.
    fn is_the_pods(&self) -> bool {
        match self {
            Setback::Refused(Refusal::Pod) | Setback::Unsent | Setback::Lost => true,
            Setback::Refused(Refusal::Local)
            | Setback::Moved
            | Setback::RefusedStream
            | Setback::ThrownOut => false,
            Setback::Refused(Refusal::Tls(error)) => error.fault() != Fault::Ours,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Setback::Refused(Refusal::Local) => "local",
            Setback::Refused(Refusal::Pod) => "connect",
            Setback::Refused(Refusal::Tls(_)) => "tls",
            Setback::Moved => "moved",
            Setback::Unsent => "unsent",
            Setback::RefusedStream | Setback::ThrownOut => "refused_stream",
            Setback::Lost => "reset",
        }
    }
}

/// Nothing was sent: another endpoint may have it, if there is one and the budget allows. When all have refused it,
/// it goes back to the hold.
fn refuse(journey: &Journey<'_>, slot: Slot, setback: &Setback, attempts: usize) -> Result<Retry, Failure> {
    let eject = setback.is_the_pods();
    if eject {
        journey.worker.gateway.metrics.ejected();
    }
    let retry = slot.refused(eject);
    let elsewhere = takers(journey) > retry.refusals();
    if let Setback::Refused(Refusal::Tls(error)) = setback
        && !elsewhere
    {
        // Waiting mends no certificate.
        return Err(Failure::TlsFailed { reason: error.to_string() });
    }
    if elsewhere
        && setback.is_attempt()
        && (attempts >= MOST_ATTEMPTS || !journey.backend.service.may_retry())
    {
        return Err(Failure::ConnectFailed);
    }
    Ok(retry)
}

/// How many endpoints take new requests.
fn takers(journey: &Journey<'_>) -> usize {
    let snapshot = journey.backend.service.snapshot();
    let endpoints = snapshot.port(journey.backend.port.name()).map(PortView::endpoints).unwrap_or_default();
    let best = endpoints.iter().map(|endpoint| endpoint.state).max().unwrap_or(State::Gone);
    endpoints.iter().filter(|endpoint| endpoint.state.takes_new(best)).count()
}

/// One attempt on one endpoint.
async fn attempt(
    journey: &Journey<'_>,
    outgoing: &mut Outgoing,
    tries: &mut Tries,
    mut aim: Aim,
) -> Result<Result<Reply, (Setback, Aim)>, Failure> {
    let (worker, backend) = (journey.worker, journey.backend);
    let pool = aim.pool(journey)?;
    let mut fresh = false;
    loop {
        let mut link = match connect(journey, outgoing, &pool, &aim, fresh).await? {
            Ok(link) => link,
            Err(setback) => return Ok(Err((setback, aim))),
        };
        aim.connected();
        journey.exchange.goes_to(link.peer(), aim.cold_start());
        let keep = outgoing.may_be_repeated() || link.scheme().is_some();
        let request = outgoing.request(link.scheme(), keep).ok_or(Failure::UpstreamReset)?;
        aim.count(journey);
        let before = link.bytes_read();
        let mut error = match exchange(journey, &outgoing.source, &mut link, request).await {
            Ok(Ok(_)) if is_too_much(journey) => return Err(Failure::QueueFull),
            Ok(Ok(mut response)) => {
                let first = first_frame(&link, &mut response).await?;
                return reply(journey, outgoing, response, first, link, aim.into_slot()).map(Ok);
            }
            Ok(Err(error)) => error,
            Err(Unanswered { failure, by_pod }) => {
                if by_pod {
                    aim.unanswered(journey);
                }
                return Err(failure);
            }
        };
        let (reused, answered) = (link.is_reused(), link.bytes_read() > before);
        // An HTTP/1 connection may have been closed for its age as the request came: nothing against the pod.
        let stale = reused && !answered && link.scheme().is_none();
        if let Some(error) = link.tls_error().filter(|_| !reused && !answered) {
            return Err(Failure::TlsFailed { reason: error.to_string() });
        }
        if let Some(failure) = link.wrong_protocol(error.error()) {
            return Err(failure);
        }
        drop(link);
        if let Some(mut request) = error.take_message() {
            outgoing.take_back(&mut request, keep);
            if reused {
                // It had been closed while it was idle: nothing against the pod.
                continue;
            }
            return Ok(Err((Setback::Unsent, aim)));
        }
        if outgoing.source.has_failed() {
            return Err(Failure::ClientGone);
        }
        let unread = refused_stream(error.error());
        if !stale && !matches!(unread, Some(Setback::RefusedStream)) {
            aim.unanswered(journey);
        }
        if let Some(setback) = unread.filter(|_| keep && outgoing.source.is_whole()) {
            tries.thrown_out += usize::from(matches!(setback, Setback::ThrownOut));
            return Ok(Err((setback, aim)));
        }
        if answered || !outgoing.may_be_repeated() {
            return Err(Failure::UpstreamReset);
        }
        // Another pod is the better choice: this one may have died.
        if !reused || takers(journey) > 1 || std::mem::replace(&mut tries.repeated, true) {
            return Ok(Err((Setback::Lost, aim)));
        }
        // It met the closing of an idle connection, as a rule. Others may be about to close as well.
        if !backend.service.may_retry() {
            return Err(Failure::UpstreamReset);
        }
        worker.gateway.metrics.retried("idle");
        fresh = true;
    }
}

impl Outgoing {
    /// What was not sent comes back.
    fn take_back(&mut self, request: &mut Request<RequestBody>, kept: bool) {
        if !kept {
            self.headers = std::mem::take(request.headers_mut());
        }
    }
}

/// A connection that stands, or a new one.
async fn connect(
    journey: &Journey<'_>,
    outgoing: &Outgoing,
    pool: &Rc<Pool>,
    aim: &Aim,
    fresh: bool,
) -> Result<Result<Link, Setback>, Failure> {
    let upgrade = outgoing.upgrade.is_some();
    let worker = journey.worker;
    let (turn, waited) = turn(journey, outgoing, pool.takes_line(upgrade)).await?;
    if (waited || aim.has_waited()) && !aim.is_current() {
        return Ok(Err(Setback::Moved));
    }
    if !fresh && let Some(link) = pool.take(upgrade) {
        return Ok(Ok(link.in_turn(turn)));
    }
    let limit = journey.times.timeouts.connect;
    let connecting = Box::pin(pool.connect(worker, aim.addresses(), limit, upgrade));
    let link = match journey.times.end {
        None => connecting.await,
        Some(end) => before(connecting, worker.deadlines.at(end)).await.ok_or(Failure::RequestTimeout)?,
    };
    // Dialling takes time, in which the pod may have got another address.
    Ok(match link {
        Ok(_) if !aim.is_current() => Err(Setback::Moved),
        link => link.map(|link| link.in_turn(turn)).map_err(Setback::Refused),
    })
}

/// Waits until the client connection may have one more request at a pod. While buffers are full, it must have taken what
/// waits for it, and far over the budget all wait; where a request takes a connection for itself (`line`), those that it uses
/// already may have to end first. Also answers whether that took time.
async fn turn(journey: &Journey<'_>, outgoing: &Outgoing, line: bool) -> Result<(Turn, bool), Failure> {
    let (worker, member) = (journey.worker, journey.member());
    let may = || {
        let (buffers, most) = (&worker.buffers, worker.gateway.settings.limits.pod_connections_per_client);
        let may_buffer = || member.buffered() == 0 && member.turns() < REQUESTS_WHEN_FULL;
        (!buffers.is_over() || (may_buffer() && !buffers.is_overrun()))
            && (!line || worker.gateway.pod_connections.allows(member.lines(), most))
    };
    let waits = !may();
    if waits {
        Box::pin(wait_for_turn(journey, outgoing, may)).await?;
    }
    Ok((Turn::of(member, line), waits))
}

async fn wait_for_turn(
    journey: &Journey<'_>,
    outgoing: &Outgoing,
    may: impl Fn() -> bool,
) -> Result<(), Failure> {
    let (worker, settings) = (journey.worker, &journey.worker.gateway.settings);
    // What has come of its body waits with it.
    let body = if outgoing.source.is_done() { 0 } else { STREAM_WINDOW as usize };
    let _buffered = worker.buffers.reserve(body).ok_or(Failure::QueueFull)?;
    let longest = settings.clock.now() + settings.bounds.longest;
    while !may() {
        let now = settings.clock.now();
        if journey.times.end.is_some_and(|end| end <= now) {
            return Err(Failure::RequestTimeout);
        }
        if longest <= now {
            return Err(Failure::QueueFull);
        }
        // Also other clients' connections may end.
        before(journey.member().turn_given_back(), worker.deadlines.at(now + LACK)).await;
    }
    Ok(())
}

/// Whether an answer that has begun must be given up: many came at once, and no budget could be asked before.
fn is_too_much(journey: &Journey<'_>) -> bool {
    let member = journey.member();
    journey.worker.buffers.is_overrun() && member.buffered() > 0 && member.turns() > REQUESTS_WHEN_FULL
}

/// The pod did not look at the request at all, by HTTP/2's own word.
fn refused_stream(error: &hyper::Error) -> Option<Setback> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            // A pod's GOAWAY fails only the streams that it did not look at, whatever its reason.
            let gone_away = error.is_go_away() && error.is_remote();
            return match error.reason() {
                Some(h2::Reason::REFUSED_STREAM) => Some(Setback::RefusedStream),
                Some(h2::Reason::NO_ERROR) if gone_away => Some(Setback::RefusedStream),
                _ => gone_away.then_some(Setback::ThrownOut),
            };
        }
        source = error.source();
    }
    None
}

/// What has come of an HTTP/1 response's body together with its head. An error there can still be told to the client:
/// later, all that is left is to cut its connection, and hyper would do so before it has sent the head. Looks once, and does not
/// wait for more: a wait, however short, would delay the head of every event stream to tell apart a fault that the client also
/// sees as a cut connection after the head.
async fn first_frame(
    link: &Link,
    response: &mut Response<Incoming>,
) -> Result<Option<Frame<Bytes>>, Failure> {
    if link.scheme().is_some() || response.body().is_end_stream() {
        return Ok(None);
    }
    let looked = poll_fn(|context| Poll::Ready(Pin::new(response.body_mut()).poll_frame(context))).await;
    match looked {
        Poll::Ready(Some(Err(error))) if is_bad_chunk(&error) => {
            Err(not_http("a chunk of its answer is none"))
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

/// The response's head, for the client.
fn reply(
    journey: &Journey<'_>,
    outgoing: &mut Outgoing,
    response: Response<Incoming>,
    first: Option<Frame<Bytes>>,
    link: Link,
    mut slot: Option<Slot>,
) -> Result<Reply, Failure> {
    let cold = slot.as_ref().is_some_and(Slot::cold_start);
    if let Some(slot) = &mut slot {
        slot.answered();
    }
    outgoing.source.settle();
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // Nobody asked for it: what follows would be anything.
        let unasked = || not_http("it switched protocols although the request asked for no such thing");
        let (name, client) = outgoing.upgrade.take().ok_or_else(unasked)?;
        let tunnel = Ends { client, link, slot };
        return Ok(switch(journey, response, &name, tunnel, cold));
    }
    let (mut head, incoming) = response.into_parts();
    if headers::is_ambiguous(&head.headers) {
        // Where its body ends is a matter of opinion, and what follows could be taken for the next response.
        return Err(not_http("its answer does not say clearly where it ends"));
    }
    headers::remove_hop_by_hop(&mut head.headers);
    headers::tell_cold_start(&mut head.headers, journey.worker.gateway.settings.cold_start, cold);
    head.version = Version::HTTP_11;
    if outgoing.upgrade.is_some() {
        // The pod did not switch. What the client sends next was not looked at, and must not be taken for a request.
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let (source, end) = (Rc::clone(&outgoing.source), journey.times.end);
    let incoming = PodIncoming::new(first, incoming);
    Ok(Reply { head, body: ReplyBody::Streamed { incoming, source, link, slot, end } })
}

/// What an upgraded connection takes over from its request.
struct Ends {
    client: OnUpgrade,
    link: Link,
    slot: Option<Slot>,
}

fn switch(
    journey: &Journey<'_>,
    mut response: Response<Incoming>,
    asked: &HeaderValue,
    Ends { client, link, slot }: Ends,
    cold: bool,
) -> Reply {
    let pod = hyper::upgrade::on(&mut response);
    let (mut head, _) = response.into_parts();
    let name = head.headers.get(header::UPGRADE).unwrap_or(asked).clone();
    headers::remove_hop_by_hop(&mut head.headers);
    let websocket = name.as_bytes().eq_ignore_ascii_case(b"websocket");
    head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    head.headers.insert(header::UPGRADE, name);
    headers::tell_cold_start(&mut head.headers, journey.worker.gateway.settings.cold_start, cold);
    head.version = Version::HTTP_11;
    let (worker, seat) = (Rc::clone(journey.worker), journey.seat());
    let tunnel = tunnel::Tunnel { worker, client, pod, link, slot, seat, websocket };
    Reply { head, body: ReplyBody::Switched(tunnel) }
}
