//! The life of one request: route → hold → forward → answer, and its line in the books.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request, Response, Version};
use hyper::body::Incoming;
use rouse_core::drain::Work;
use rouse_core::hold::AcquireError;
use rouse_core::slot::{Ask, Retry, Slot};
use rouse_core::snapshot::PortView;
use rouse_core::time::{Clock as _, Moment};

use crate::answer;
use crate::body::{AnswerBody, Source};
use crate::connection::{Client, STREAM_WINDOW, read_ahead};
use crate::crowd::Member;
use crate::error::Failure;
use crate::forward::{self, Outgoing};
use crate::gateway::{Backend, Route, Target, Timeouts, Upstream};
use crate::headers;
use crate::metrics::{InFlight, Protocol, RouteName};
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
    let mut exchange = Exchange::begin(worker, client, route.as_ref(), protocol(&request, grpc));
    // From here on the request itself counts.
    drop(client.arrival.take());
    if request.method() == Method::CONNECT {
        exchange.answered(405);
        return Ok(answer::not_allowed());
    }
    if request.version() == Version::HTTP_2 && is_unclear(&request) {
        exchange.answered(400);
        return Ok(answer::unclear());
    }
    if request.headers().len() > worker.gateway.settings.limits.heads.headers {
        exchange.answered(431);
        return Ok(last(answer::too_many_headers()));
    }
    if client.tls.as_ref().is_some_and(|tls| !tls.admits(host(&request))) {
        exchange.answered(421);
        return Ok(last(answer::misdirected()));
    }
    let answered = answer(worker, client, route.as_deref(), request, &mut exchange).await;
    client.known.set(true);
    match answered {
        Ok(Answered::Pod(reply)) => Ok(reply.with(exchange)),
        Ok(Answered::Canned(canned)) => {
            exchange.answered(canned.status().as_u16());
            Ok(last(canned.response()))
        }
        Err(Failure::ClientGone) => Err(ClientGone),
        Err(failure) => {
            exchange.answered(failure.status().as_u16());
            Ok(last(answer::to(&failure, grpc)))
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
enum Answered {
    Pod(forward::Reply),
    Canned(Arc<Canned>),
}

async fn answer(
    worker: &Rc<Worker>,
    client: &Rc<Client>,
    route: Option<&Route>,
    request: Request<Incoming>,
    exchange: &mut Exchange,
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
    let times = Times::new(worker, route.timeouts, exchange.began);
    let journey = Journey { worker, client, backend, podless, times };
    if let Upstream::Unusable(reason) = journey.upstream() {
        return Err(Failure::TlsFailed { reason: reason.to_string() });
    }
    if quiet {
        let slot = backend.port.try_acquire_quietly(worker.roll()).ok_or(Failure::NotWoken)?;
        return forward::forward(&journey, outgoing, Some(slot)).await.map(Answered::Pod);
    }
    if let Some(placeholder) = &podless.placeholder
        && !route.target.is_available()
    {
        backend.port.announce();
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
    pub(crate) times: Times,
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
        if retry.is_none()
            && let Some(slot) = self.backend.port.try_acquire(self.worker.roll())
        {
            return Ok(Some(slot));
        }
        // Boxed, as all that few requests need: the future of a request is moved several times.
        Box::pin(self.hold(outgoing, retry)).await
    }

    async fn hold(&self, outgoing: &Outgoing, retry: Option<Retry>) -> Result<Option<Slot>, Failure> {
        let Backend { service, port, .. } = self.backend;
        let snapshot = Arc::clone(&service.snapshot());
        let routable = snapshot.port(port.name()).is_some_and(PortView::routable);
        if snapshot.routable() && !routable {
            return if self.backend.cluster_ip.is_some() { Ok(None) } else { Err(Failure::BadPort) };
        }
        let _pending = match self.podless.pending.as_ref().map(Pending::enter) {
            // Whoever comes next should find a pod.
            Some(None) => return Err(Failure::QueueFull).inspect_err(|_| port.announce()),
            pending => pending,
        };
        let (clock, metrics) = (self.worker.gateway.settings.clock, &self.worker.gateway.metrics);
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
    began: Moment,
    code: u16,
    /// The status of the response under way: what is written down if it comes to its end.
    status: u16,
    _in_flight: InFlight,
    _work: Work,
}

/// nginx' number for a client that closed its request.
const CLIENT_GONE: u16 = 499;

impl Exchange {
    fn begin(worker: &Rc<Worker>, client: &Client, route: Option<&Arc<Route>>, protocol: Protocol) -> Self {
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
            protocol,
            code: CLIENT_GONE,
            status: CLIENT_GONE,
        }
    }

    pub(crate) fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// The answer is complete with its head.
    pub(crate) fn answered(&mut self, code: u16) {
        self.code = code;
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
        self.code = Failure::UpstreamReset.status().as_u16();
    }

    /// The time for the whole request is up.
    pub(crate) fn took_too_long(&mut self) {
        self.code = Failure::RequestTimeout.status().as_u16();
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let gateway = &self.worker.gateway;
        let now = gateway.settings.clock.now();
        let took = now.since(self.began);
        self.member.ended(now);
        gateway.metrics.ended(&self.route, self.code, self.protocol, took);
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
