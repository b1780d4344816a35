//! Gets a slot for a request: at once, or after a hold until a pod is ready.

use std::time::Duration;

use http::Version;
use rouse_core::hold::AcquireError;
use rouse_core::service::{Retry, Slot, SlotRequest};
use rouse_core::start_failure::StartFailure;
use rouse_core::time::Clock as _;

use super::context::RequestContext;
use super::start_failure_text;
use crate::budget::CLIENT_STREAM_WINDOW;
use crate::error::Failure;
use crate::message::RequestHead as _;
use crate::routing::PendingLimit;
use crate::upstream::{Backend, OutgoingRequest};

/// What a held request keeps in memory beside its head and what is read ahead: its connection or stream, its tasks and its
/// place in the wait queue. Rounded up: held GETs were seen to take 22 KiB and more.
const HELD: usize = 24 * 1024;

impl RequestContext<'_> {
    /// A slot, at once or after a wait. `None`: no endpoint offers the port, but there is a `ClusterIP`.
    pub(super) async fn acquire(
        &self,
        outgoing: &OutgoingRequest,
        retry: Option<Retry>,
    ) -> Result<Option<Slot>, Failure> {
        if self.passive {
            return self.acquire_passively(retry);
        }
        if retry.is_none()
            && let Some(slot) = self.attempt.backend.port.try_acquire(self.attempt.upstream.runtime.random())
        {
            return Ok(Some(slot));
        }
        // Boxed, since few requests need it: the future of a request is moved several times.
        Box::pin(self.hold(outgoing, retry)).await
    }

    /// A slot for a passive request, which does not wait.
    fn acquire_passively(&self, retry: Option<Retry>) -> Result<Option<Slot>, Failure> {
        let (port, seed) = (&self.attempt.backend.port, self.attempt.upstream.runtime.random());
        let (slot, failure) = match retry {
            None => (port.try_acquire_uncounted(seed), Failure::NotWoken),
            Some(retry) => (port.retry_uncounted(seed, retry), Failure::ConnectFailed),
        };
        match slot {
            None if self.attempt.backend.lacks_port() => self.without_port(),
            None => Err(failure),
            slot => Ok(slot),
        }
    }

    /// The slot for another attempt on the `ClusterIP`: pods may have changed since the last one.
    pub(super) async fn renew(
        &self,
        outgoing: &OutgoingRequest,
        slot: Option<Slot>,
    ) -> Result<Option<Slot>, Failure> {
        // No pod offered the port. By now one may.
        let Some(slot) = slot else {
            return Ok(self
                .attempt
                .backend
                .port
                .try_acquire_uncounted(self.attempt.upstream.runtime.random()));
        };
        if slot.is_current() {
            return Ok(Some(slot));
        }
        // Not only a wait for kube-proxy: the service may have to be woken again.
        self.acquire(outgoing, Some(slot.refused(false))).await
    }

    fn without_port(&self) -> Result<Option<Slot>, Failure> {
        if self.attempt.backend.cluster_ip.is_none() {
            return Err(Failure::BadPort);
        }
        // Counted now, not when it is sent: such a request usually fails, and the metric shows why.
        self.attempt.upstream.metrics.lacks_port();
        Ok(None)
    }

    async fn hold(&self, outgoing: &OutgoingRequest, retry: Option<Retry>) -> Result<Option<Slot>, Failure> {
        let Backend { service, port, .. } = self.attempt.backend;
        if self.attempt.backend.lacks_port() {
            return self.without_port();
        }
        let (clock, metrics) = (self.attempt.upstream.runtime.clock, &self.attempt.upstream.metrics);
        let _pending = match self.policy.pending.as_ref().map(PendingLimit::enter) {
            Some(None) => {
                // The next request should find a pod.
                port.announce();
                metrics.held(service.id(), "queue_full", Duration::ZERO);
                return Err(Failure::QueueFull);
            }
            pending => pending,
        };
        let began = clock.now();
        let refused = retry.as_ref().is_some_and(|retry| retry.refusals() > 0);
        let ask = SlotRequest {
            seed: self.attempt.upstream.runtime.random(),
            buffered: self.buffered(outgoing),
            retry,
        };
        let slot = port.acquire(ask, clock.sleep_until(self.attempt.deadlines.readiness));
        let slot = tokio::select! {
            biased;
            slot = slot => slot,
            () = self.attempt.client_leaves() => {
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
                Failure::StartFailed { reason: Some(self.describe(&failure, outgoing)) }
            }
            AcquireError::QueueFull(_) => Failure::QueueFull,
            AcquireError::NoSuchPort => Failure::BadPort,
            AcquireError::ServiceGone => Failure::NoService,
            AcquireError::ShuttingDown => Failure::ShuttingDown,
        })
    }

    /// Why no pod was ready in time, for the client.
    fn reason(&self, outgoing: &OutgoingRequest) -> Option<String> {
        let service = &self.attempt.backend.service;
        let full = || "every pod is at its limit".to_owned();
        let failure = service.wake_failure().map(|failure| self.describe(&failure, outgoing));
        failure.or_else(|| service.snapshot().ready().then(full))
    }

    /// The text about `failure` that the client may see.
    fn describe(&self, failure: &StartFailure, outgoing: &OutgoingRequest) -> String {
        let developer = start_failure_text::is_developer(self.attempt.client.address.ip(), outgoing.head());
        start_failure_text::describe(failure, self.attempt.backend.service.id(), developer)
    }

    /// What a held request may keep in memory: its head, and the part of its body that has come with it or may still come.
    fn buffered(&self, outgoing: &OutgoingRequest) -> usize {
        let (head, body) = (outgoing.head().header_bytes(), outgoing.body_size());
        let read_ahead = if outgoing.head().version() == Version::HTTP_2 {
            body.min(CLIENT_STREAM_WINDOW as usize)
        } else {
            // hyper has a buffer also without a body. It grows with what the connection has brought, and may grow further
            // for a body.
            let most = self.attempt.upstream.limits.read_ahead();
            self.attempt.client.state.read_buffer().max(2 * head).saturating_add(body).min(most)
        };
        HELD + head + read_ahead
    }
}
