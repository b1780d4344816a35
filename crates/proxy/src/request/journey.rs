//! What one request needs on its way to a pod: a slot, at once or after a wait, and for how long it may wait.

use std::rc::Rc;
use std::time::Duration;

use rouse_core::hold::AcquireError;
use rouse_core::slot::{Ask, Retry, Slot};
use rouse_core::snapshot::PortView;
use rouse_core::start::StartFailure;
use rouse_core::time::{Clock as _, Moment};

use super::{Exchange, audience};
use crate::connection::{Client, STREAM_WINDOW, read_ahead};
use crate::crowd::{Member, Seat};
use crate::error::Failure;
use crate::forward::Outgoing;
use crate::gateway::{Backend, Timeouts, Upstream};
use crate::headers;
use crate::podless::{Pending, Podless};
use crate::socket::Presence;
use crate::worker::Worker;

/// How often a held request looks whether its client is still there.
const PULSE: Duration = Duration::from_millis(250);
/// What a held request keeps in memory beside its head and what is read ahead: its connection or stream, its tasks and its
/// place in line. Rounded up: held GETs were seen to take 22 KiB and more.
const HELD: usize = 24 * 1024;

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
    pub(super) fn new(worker: &Worker, timeouts: Timeouts, began: Moment) -> Self {
        let end = timeouts.request.map(|limit| began + limit);
        let readiness = timeouts.readiness.map(|limit| began + limit);
        let wanted = readiness.into_iter().chain(end).min();
        let readiness = worker.gateway.settings.bounds.deadline(began, wanted);
        Self { timeouts, readiness, end }
    }

    /// When half of the time for the whole request is over.
    pub(crate) fn half(&self) -> Option<Moment> {
        self.end.zip(self.timeouts.request).map(|(end, limit)| end - limit / 2)
    }
}

/// What one request needs on all its attempts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Journey<'a> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(super) client: &'a Rc<Client>,
    pub(crate) backend: &'a Backend,
    pub(super) podless: &'a Podless,
    /// It wakes nobody, and does not count as load.
    pub(super) quiet: bool,
    pub(crate) times: Times,
    pub(crate) exchange: &'a Exchange,
}

impl Journey<'_> {
    /// The client's connection.
    pub(crate) fn member(&self) -> &Rc<Member> {
        &self.client.member
    }

    /// Its place among the connections.
    pub(crate) fn seat(&self) -> Rc<Seat> {
        Rc::clone(&self.client.seat)
    }

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
        if slot.is_current() {
            return Ok(Some(slot));
        }
        // Whoever waits for the plumbing alone would wake nobody.
        self.acquire(outgoing, Some(slot.refused(false))).await
    }

    /// Whether pods take requests, but none of them offers the port.
    pub(crate) fn lacks_port(&self) -> bool {
        let snapshot = self.backend.service.snapshot();
        snapshot.routable() && !snapshot.port(self.backend.port.name()).is_some_and(PortView::routable)
    }

    fn without_port(&self) -> Result<Option<Slot>, Failure> {
        if self.backend.cluster_ip.is_none() {
            return Err(Failure::BadPort);
        }
        // Now, not when it is sent: as a rule nobody answers there, and somebody should know why.
        self.worker.gateway.metrics.lacks_port();
        Ok(None)
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
            Err(AcquireError::StartFailed(_)) => "start_failed",
            Err(AcquireError::QueueFull(_)) => "queue_full",
            Err(_) => "turned_away",
        };
        metrics.held(service.id(), outcome, clock.now().since(began));
        slot.map(Some).map_err(|error| match error {
            AcquireError::Deadline if refused => Failure::ConnectFailed,
            AcquireError::Refused => Failure::ConnectFailed,
            AcquireError::Deadline => Failure::ReadinessTimeout { reason: self.reason(outgoing) },
            AcquireError::StartFailed(failure) => {
                Failure::StartFailed { reason: Some(self.told(&failure, outgoing)) }
            }
            AcquireError::QueueFull(_) => Failure::QueueFull,
            AcquireError::NoSuchPort => Failure::BadPort,
            AcquireError::ServiceGone => Failure::NoService,
            AcquireError::ShuttingDown => Failure::ShuttingDown,
        })
    }

    /// What the client is told about a wait that was too long.
    fn reason(&self, outgoing: &Outgoing) -> Option<String> {
        let service = &self.backend.service;
        let full = || "every pod is at its limit".to_owned();
        let failure = service.wake_failure().map(|failure| self.told(&failure, outgoing));
        failure.or_else(|| service.snapshot().ready().then(full))
    }

    /// What the client may know of `failure`.
    fn told(&self, failure: &StartFailure, outgoing: &Outgoing) -> String {
        let developer = audience::is_developer(self.client.address.ip(), &outgoing.headers);
        audience::told(failure, self.backend.service.id(), developer)
    }

    /// What a held request may keep in memory: its head, and what of its body has come with it or may still come.
    fn buffered(&self, outgoing: &Outgoing) -> usize {
        let head = headers::length(&outgoing.headers);
        let body = usize::try_from(outgoing.source.size().upper().unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let read_ahead = match () {
            () if outgoing.over_http2 => body.min(STREAM_WINDOW as usize),
            // hyper's buffer is there also without a body. It grows with what a connection has brought, and may grow further
            // for a body.
            () => {
                let most = read_ahead(&self.worker.gateway.settings.limits);
                self.client.member.read_buffer().max(2 * head).saturating_add(body).min(most)
            }
        };
        HELD + head + read_ahead
    }

    /// Ends when the client has reset its connection, or has closed its side so long ago that it is taken for gone.
    /// hyper sees that only where it reads on.
    pub(crate) async fn client_leaves(&self) {
        let (settings, deadlines) = (&self.worker.gateway.settings, &self.worker.deadlines);
        let mut half_closed = None;
        loop {
            let now = settings.clock.now();
            match self.client.pulse.presence() {
                Presence::There => {}
                Presence::HalfClosed => {
                    let since = *half_closed.get_or_insert(now);
                    if now >= since + settings.limits.half_closed {
                        return;
                    }
                }
                Presence::Gone => return,
            }
            deadlines.at(now + PULSE).await;
        }
    }
}
