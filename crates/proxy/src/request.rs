//! The life of one request: route → hold → forward → answer, and its line in the books.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use rouse_core::drain::Work;
use rouse_core::endpoint::State;
use rouse_core::hold::AcquireError;
use rouse_core::slot::{Ask, Retry, Slot};
use rouse_core::snapshot::PortView;
use rouse_core::time::{Clock as _, Moment};

use crate::access::Note;
use crate::answer;
use crate::body::{AnswerBody, Source};
use crate::connection::{Client, STREAM_WINDOW, read_ahead};
use crate::crowd::Member;
use crate::error::Failure;
use crate::forward::{self, Outgoing};
use crate::gateway::{Backend, Route, Target, Timeouts, Upstream};
use crate::headers;
use crate::metrics::{InFlight, Protocol, RouteName, method_label};
use crate::podless::{Canned, Pending, Podless};
use crate::worker::Worker;

/// What a client gets.
pub(crate) type Answer = Response<AnswerBody>;

/// How often a held request looks whether its client is still there.
const PULSE: Duration = Duration::from_millis(250);
/// What a held request keeps in memory beside its head and body.
const HELD: usize = 8 * 1024;
/// How long a fallback that has no pod either may take to have one.
const FALLBACK: Duration = Duration::from_secs(5);
/// How much hyper reads at once from a new connection.
const FIRST_READ: usize = 8 * 1024;

/// There is nobody to answer: the connection, or the stream, just ends.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the client went away")]
pub(crate) struct ClientGone;

/// Answers one request.
pub(crate) async fn serve(
    worker: &Rc<Worker>,
    client: &Rc<Client>,
    request: Request<Incoming>,
) -> Result<Answer, ClientGone> {
    let grpc = answer::is_grpc(request.headers());
    // What follows such a head is not looked at, and must not be taken for a request unless a pod has switched.
    let unguarded =
        request.version() == Version::HTTP_11 && headers::wanted_upgrade(request.headers()).is_some();
    let last = |mut answer: Answer| {
        if unguarded {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    };
    let route = find(worker, &request);
    let mut exchange = Exchange::begin(worker, client, route.as_ref(), &request, grpc);
    // From here on the request itself counts.
    drop(client.arrival.take());
    if request.method() == Method::CONNECT {
        return Ok(exchange.answered(405, answer::not_allowed()));
    }
    if request.version() == Version::HTTP_2 && is_unclear(&request) {
        return Ok(exchange.answered(400, answer::unclear()));
    }
    if request.headers().len() > worker.gateway.settings.limits.heads.headers {
        return Ok(last(exchange.answered(431, answer::too_many_headers())));
    }
    if client.tls.as_ref().is_some_and(|tls| !tls.admits(host(&request))) {
        return Ok(last(exchange.answered(421, answer::misdirected())));
    }
    let answered = answer(worker, client, route.as_deref(), request, &exchange).await;
    client.known.set(true);
    match answered {
        Ok(Answered::Pod(reply)) => Ok(reply.with(exchange)),
        Ok(Answered::Canned(canned)) => {
            Ok(last(exchange.answered(canned.status().as_u16(), canned.response())))
        }
        Err(Failure::ClientGone) => Err(ClientGone),
        Err(failure) => {
            exchange.failed(&failure);
            Ok(last(exchange.answered(failure.status().as_u16(), answer::to(&failure, grpc))))
        }
    }
}

/// Whether an HTTP/2 request leaves open whom it is for or how long it is, as the guard asks of HTTP/1.
fn is_unclear(request: &Request<Incoming>) -> bool {
    let count = |name: HeaderName| request.headers().get_all(name).iter().count();
    let host = match request.uri().authority() {
        Some(authority) => !authority.as_str().contains('@'),
        None => count(header::HOST) == 1,
    };
    !host || count(header::CONTENT_LENGTH) > 1
}

/// The host that a request is for.
fn host(request: &Request<Incoming>) -> &str {
    match request.uri().authority() {
        Some(authority) => authority.as_str(),
        None => request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default(),
    }
}

/// The route that a request takes.
fn find(worker: &Worker, request: &Request<Incoming>) -> Option<Arc<Route>> {
    let table = worker.gateway.table();
    let rule = table.find(host(request), request.uri().path(), request.headers());
    rule.map(|rule| Arc::clone(&rule.target))
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
    route: Option<&Route>,
    request: Request<Incoming>,
    exchange: &Exchange,
) -> Result<Answered, Failure> {
    let route = route.ok_or(Failure::NoRoute)?;
    let podless = &route.podless;
    if let Some(fixed) = &podless.fixed
        && !(fixed.when_unavailable && route.target.is_available())
    {
        return Ok(Answered::Canned(Arc::clone(&fixed.answer)));
    }
    let backend = route.target.backend()?;
    let quiet = podless.quiet.covers(&request);
    let outgoing = prepare(worker, client, request)?;
    exchange.belongs_to_trace_of(&outgoing.headers);
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
        Err(failure @ Failure::ReadinessTimeout { .. }) if let Some(fallback) = &podless.fallback => {
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
    headers::continue_trace(headers, [worker.roll(), worker.roll(), worker.roll()]);
    if over_http2 {
        // We could not pass the 100 on, so the pod must not wait for it to have an effect.
        headers.remove(header::EXPECT);
    }
    let source = Source::new(body, client, worker.gateway.settings.clock);
    Ok(Outgoing { method: parts.method, uri: parts.uri, headers: parts.headers, source, upgrade, over_http2 })
}

/// The moments that matter to one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) timeouts: Timeouts,
    /// When it has waited long enough for a pod.
    pub(crate) readiness: Moment,
    /// When it must be over.
    pub(crate) end: Option<Moment>,
}

impl Times {
    fn new(worker: &Worker, timeouts: Timeouts, began: Moment) -> Self {
        let end = timeouts.request.map(|limit| began + limit);
        let readiness = timeouts.readiness.map(|limit| began + limit);
        let wanted = readiness.into_iter().chain(end).min();
        let readiness = worker.gateway.settings.bounds.deadline(began, wanted);
        Self { timeouts, readiness, end }
    }
}

/// What one request needs on all its attempts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Journey<'a> {
    pub(crate) worker: &'a Rc<Worker>,
    client: &'a Rc<Client>,
    pub(crate) backend: &'a Backend,
    podless: &'a Podless,
    /// It wakes nobody, and does not count as load.
    quiet: bool,
    pub(crate) times: Times,
    pub(crate) exchange: &'a Exchange,
}

impl Journey<'_> {
    /// How the pods are spoken to.
    pub(crate) fn upstream(&self) -> &Upstream {
        let over_tls = self.backend.over_tls.as_ref().filter(|_| self.client.tls.is_some());
        over_tls.unwrap_or(&self.backend.protocol)
    }

    /// A slot, at once or after a wait. `None`: no endpoint offers the port, but there is a `ClusterIP`.
    pub(crate) async fn acquire(
        &self,
        outgoing: &Outgoing,
        retry: Option<Retry>,
    ) -> Result<Option<Slot>, Failure> {
        if self.quiet {
            return self.acquire_quietly(retry);
        }
        if retry.is_none()
            && let Some(slot) = self.backend.port.try_acquire(self.worker.roll())
        {
            return Ok(Some(slot));
        }
        // Boxed, as all that few requests need: the future of a request is moved several times.
        Box::pin(self.hold(outgoing, retry)).await
    }

    /// Who is neither load nor worth a pod does not wait.
    fn acquire_quietly(&self, retry: Option<Retry>) -> Result<Option<Slot>, Failure> {
        let (port, seed) = (&self.backend.port, self.worker.roll());
        let (slot, failure) = match retry {
            None => (port.try_acquire_quietly(seed), Failure::NotWoken),
            Some(retry) => (port.retry_quietly(seed, retry), Failure::ConnectFailed),
        };
        match slot {
            None if self.lacks_port() => self.without_port(),
            None => Err(failure),
            slot => Ok(slot),
        }
    }

    /// The slot for another attempt on the `ClusterIP`: pods may have come and gone since it was given.
    pub(crate) async fn renew(
        &self,
        outgoing: &Outgoing,
        slot: Option<Slot>,
    ) -> Result<Option<Slot>, Failure> {
        // None offered the port. By now one may.
        let Some(slot) = slot else { return Ok(self.backend.port.try_acquire_quietly(self.worker.roll())) };
        let snapshot = Arc::clone(&self.backend.service.snapshot());
        let endpoints = snapshot.port(self.backend.port.name()).map(PortView::endpoints).unwrap_or_default();
        let is_there = endpoints.iter().any(|one| {
            one.id() == slot.endpoint().id() && matches!(one.state, State::Ready | State::Draining)
        });
        if is_there {
            return Ok(Some(slot));
        }
        // Whoever waits for the plumbing alone would wake nobody.
        self.acquire(outgoing, Some(slot.refused(false))).await
    }

    /// Whether pods take requests, but none of them offers the port.
    fn lacks_port(&self) -> bool {
        let snapshot = self.backend.service.snapshot();
        snapshot.routable() && !snapshot.port(self.backend.port.name()).is_some_and(PortView::routable)
    }

    fn without_port(&self) -> Result<Option<Slot>, Failure> {
        if self.backend.cluster_ip.is_some() { Ok(None) } else { Err(Failure::BadPort) }
    }

    async fn hold(&self, outgoing: &Outgoing, retry: Option<Retry>) -> Result<Option<Slot>, Failure> {
        let Backend { service, port, .. } = self.backend;
        if self.lacks_port() {
            return self.without_port();
        }
        let (clock, metrics) = (self.worker.gateway.settings.clock, &self.worker.gateway.metrics);
        let _pending = match self.podless.pending.as_ref().map(Pending::enter) {
            Some(None) => {
                // Whoever comes next should find a pod.
                port.announce();
                metrics.held(service.id(), "queue_full", Duration::ZERO);
                return Err(Failure::QueueFull);
            }
            pending => pending,
        };
        let began = clock.now();
        let refused = retry.as_ref().is_some_and(|retry| retry.refusals() > 0);
        let ask = Ask { seed: self.worker.roll(), buffered: self.buffered(outgoing), retry };
        let slot = port.acquire(ask, clock.sleep_until(self.times.readiness));
        let slot = tokio::select! {
            biased;
            slot = slot => slot,
            () = self.client_leaves() => {
                metrics.held(service.id(), "client_gone", clock.now().since(began));
                return Err(Failure::ClientGone);
            }
        };
        let outcome = match &slot {
            Ok(_) => "served",
            Err(AcquireError::Deadline) => "deadline",
            Err(AcquireError::QueueFull(_)) => "queue_full",
            Err(_) => "turned_away",
        };
        metrics.held(service.id(), outcome, clock.now().since(began));
        slot.map(Some).map_err(|error| match error {
            AcquireError::Deadline if refused => Failure::ConnectFailed,
            AcquireError::Deadline => Failure::ReadinessTimeout { reason: self.reason() },
            AcquireError::QueueFull(_) => Failure::QueueFull,
            AcquireError::NoSuchPort => Failure::BadPort,
            AcquireError::ServiceGone => Failure::NoService,
            AcquireError::ShuttingDown => Failure::ShuttingDown,
        })
    }

    /// What the client is told about a wait that was too long.
    fn reason(&self) -> Option<String> {
        let service = &self.backend.service;
        let full = || "every pod is at its limit".to_owned();
        service.wake_failure().or_else(|| service.snapshot().ready().then(full))
    }

    /// What a held request may keep in memory: its head, and what of its body has come with it or may still come.
    fn buffered(&self, outgoing: &Outgoing) -> usize {
        let line = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
        let head: usize = outgoing.headers.iter().map(line).sum();
        let most = read_ahead(&self.worker.gateway.settings.limits);
        let read_ahead = match () {
            () if outgoing.over_http2 => STREAM_WINDOW as usize,
            // hyper reads more at a time the more a connection has brought.
            () if self.client.known.get() => most,
            () => FIRST_READ.max(2 * head).min(most),
        };
        let body = usize::try_from(outgoing.source.size().upper().unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        HELD + head + body.min(read_ahead)
    }

    /// Ends when the client has closed its side. hyper sees that only where it reads on.
    pub(crate) async fn client_leaves(&self) {
        let (clock, deadlines) = (self.worker.gateway.settings.clock, &self.worker.deadlines);
        while !self.client.pulse.is_gone() {
            deadlines.at(clock.now() + PULSE).await;
        }
    }
}

/// One request's line in the books, written when this is dropped. Until somebody says what became of the
/// request, its client has gone.
#[derive(Debug)]
pub(crate) struct Exchange {
    worker: Rc<Worker>,
    member: Rc<Member>,
    route: RouteName,
    protocol: Protocol,
    /// Its method, as metrics call it.
    method: &'static str,
    /// Whether the client wants no body, over a protocol where hyper would send it one.
    bodiless: bool,
    began: Moment,
    code: u16,
    /// The status of the response under way: what is written down if it comes to its end.
    status: u16,
    /// For the access log, if there is one.
    note: Option<Box<Note>>,
    _in_flight: InFlight,
    _work: Work,
}

/// nginx' number for a client that closed its request.
const CLIENT_GONE: u16 = 499;

impl Exchange {
    fn begin(
        worker: &Rc<Worker>,
        client: &Client,
        route: Option<&Arc<Route>>,
        request: &Request<Incoming>,
        grpc: bool,
    ) -> Self {
        let gateway = &worker.gateway;
        client.member.began();
        // Not the host or the path: anybody could fill the books with those.
        let route = route.map_or(&gateway.no_route, |route| &route.name).clone();
        Self {
            began: gateway.settings.clock.now(),
            _in_flight: gateway.metrics.begin(&route),
            _work: gateway.under_way().begin(),
            worker: Rc::clone(worker),
            member: Rc::clone(&client.member),
            route,
            protocol: protocol(request, grpc),
            method: method_label(request.method()),
            bodiless: request.method() == Method::HEAD && request.version() == Version::HTTP_2,
            note: gateway.settings.access.as_ref().map(|_| Note::of(request, client.address)),
            code: CLIENT_GONE,
            status: CLIENT_GONE,
        }
    }

    pub(crate) fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// The answer is our own, and is written down as `code`.
    fn answered(&mut self, code: u16, mut answer: Answer) -> Answer {
        self.code = code;
        let length = answer.body().size_hint().exact().unwrap_or(0);
        if self.bodiless && length > 0 {
            *answer.body_mut() = AnswerBody::Ours(None);
            answer.headers_mut().insert(header::CONTENT_LENGTH, length.into());
        }
        if self.method != "HEAD" {
            self.sent(length);
        }
        answer
    }

    /// The connection speaks something else from now on.
    pub(crate) fn switched(&mut self, code: u16) {
        self.code = code;
    }

    /// It did not come to a pod's answer.
    fn failed(&self, failure: &Failure) {
        if let Some(note) = &self.note {
            note.failed(failure.code());
        }
    }

    /// So much of a body was sent to the client.
    pub(crate) fn sent(&self, bytes: u64) {
        if let Some(note) = &self.note {
            note.sent(bytes);
        }
    }

    /// The request is sent to `upstream`.
    pub(crate) fn goes_to(&self, upstream: SocketAddr, cold_start: bool) {
        if let Some(note) = &self.note {
            note.goes_to(upstream, cold_start);
        }
    }

    fn belongs_to_trace_of(&self, headers: &HeaderMap) {
        if let Some(note) = &self.note {
            note.belongs_to_trace_of(headers);
        }
    }

    /// The response begins.
    pub(crate) fn begins(&mut self, status: u16) {
        self.status = status;
    }

    /// The response came to its end.
    pub(crate) fn completed(&mut self) {
        self.code = self.status;
    }

    /// The pod broke off in the middle of its response.
    pub(crate) fn broken_by_pod(&mut self) {
        self.breaks_off(&Failure::UpstreamReset);
    }

    /// The time for the whole request is up.
    pub(crate) fn took_too_long(&mut self) {
        self.breaks_off(&Failure::RequestTimeout);
    }

    fn breaks_off(&mut self, failure: &Failure) {
        self.failed(failure);
        self.code = failure.status().as_u16();
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let gateway = &self.worker.gateway;
        let now = gateway.settings.clock.now();
        let took = now.since(self.began);
        self.member.ended(now);
        gateway.metrics.ended(&self.route, self.code, self.protocol, self.method, took);
        if let (Some(note), Some(log)) = (&self.note, &gateway.settings.access) {
            if self.code == CLIENT_GONE {
                self.failed(&Failure::ClientGone);
            }
            gateway.metrics.access_log_dropped(note.write(&**log, &self.route, self.code, took));
        }
    }
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
