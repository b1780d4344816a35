//! Sends a request to one destination after the other, as long as that is safe and the retry budget allows it.

use rouse_core::routing_mode::RoutingMode;
use rouse_core::service::{Retry, Slot};

use super::context::RequestContext;
use crate::error::Failure;
use crate::runtime::before;
use crate::upstream::{
    AttemptFailure, ClusterIp, Destination, DialError, LOCAL_PAUSE, OutgoingRequest, PodResponse,
    RETRY_PAUSE, Tries, attempt, ready_endpoints,
};

/// Endpoints that one request may try before it fails, or goes back to the hold if none is left.
const MAX_ATTEMPTS: usize = 3;

impl RequestContext<'_> {
    /// Sends the request to the pod of `slot`, or to another one where that is safe; or to the `ClusterIP`, where the route
    /// asks for it or there is no slot.
    pub(super) async fn forward(
        &self,
        mut outgoing: OutgoingRequest,
        mut slot: Option<Slot>,
    ) -> Result<PodResponse, Failure> {
        let mut tries = Tries::default();
        loop {
            let waited = slot.as_ref().map(Slot::waited);
            let destination = Destination::new(&self.attempt, slot)?;
            let attempted = attempt(&self.attempt, &mut outgoing, &mut tries, destination).await?;
            let (failure, destination) = match attempted {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            let refusing = match destination {
                Destination::Pod(slot) => slot,
                Destination::ClusterIp(ip, kept) => {
                    Box::pin(self.wait_for_cluster_ip(&failure, &mut tries, &ip, kept.is_some())).await?;
                    slot = self.renew(&outgoing, kept).await.map_err(|failure| after(&tries, failure))?;
                    continue;
                }
            };
            let retry = self.next_endpoint(refusing, &failure, &mut tries)?;
            self.attempt.upstream.metrics.retried(failure.reason());
            if failure.is_local() {
                // The gateway itself lacks a resource, such as file descriptors, for every pod alike. Without a pause, the
                // retries would keep a core busy.
                let runtime = &self.attempt.upstream.runtime;
                runtime.deadline(runtime.now() + LOCAL_PAUSE).await;
            }
            slot = self.acquire(&outgoing, Some(retry)).await.map_err(|failure| after(&tries, failure))?;
            if slot.as_ref().map(Slot::waited) > waited {
                // Back from the hold: the pods may be others by now.
                tries.attempts = 0;
            }
        }
    }

    /// Gives the slot of a failed attempt back, for another endpoint. An error ends the request.
    fn next_endpoint(
        &self,
        slot: Slot,
        failure: &AttemptFailure,
        tries: &mut Tries,
    ) -> Result<Retry, Failure> {
        match failure {
            AttemptFailure::Lost => {
                let may_retry = || self.attempt.backend.service.may_retry();
                if std::mem::replace(&mut tries.repeated, true) || !may_retry() {
                    return Err(Failure::UpstreamReset);
                }
                Ok(slot.refused(false))
            }
            AttemptFailure::GoAwayError if tries.goaway_errors >= MAX_ATTEMPTS => Err(Failure::UpstreamReset),
            AttemptFailure::Refused(_)
            | AttemptFailure::Moved
            | AttemptFailure::Unsent
            | AttemptFailure::RefusedStream
            | AttemptFailure::Draining
            | AttemptFailure::GoAwayError => {
                tries.attempts += usize::from(failure.is_attempt());
                self.refuse(slot, failure, tries.attempts)
            }
        }
    }

    /// Nothing was sent: another endpoint may have the request, if there is one and the retry budget allows it. When all
    /// endpoints have refused it, it goes back to the hold.
    fn refuse(&self, slot: Slot, failure: &AttemptFailure, attempts: usize) -> Result<Retry, Failure> {
        let backend = self.attempt.backend;
        let eject = failure.is_pod_fault();
        if eject {
            self.attempt.upstream.metrics.ejected();
        }
        let retry = slot.refused(eject);
        let elsewhere = ready_endpoints(backend) > retry.refusals();
        if let AttemptFailure::Refused(DialError::Tls(error)) = failure
            && !elsewhere
        {
            // Waiting does not repair a certificate.
            return Err(Failure::TlsFailed { reason: error.to_string() });
        }
        if elsewhere && failure.is_attempt() && (attempts >= MAX_ATTEMPTS || !backend.service.may_retry()) {
            return Err(Failure::ConnectFailed);
        }
        Ok(retry)
    }

    /// Waits after a failed attempt on the `ClusterIP` until there may be another. Pods are ready, but kube-proxy may not know
    /// it yet, or may still lead to one that is gone. `has_slot`: the request can go to a pod instead.
    async fn wait_for_cluster_ip(
        &self,
        failure: &AttemptFailure,
        tries: &mut Tries,
        ip: &ClusterIp,
        has_slot: bool,
    ) -> Result<(), Failure> {
        let (backend, upstream) = (self.attempt.backend, self.attempt.upstream);
        let pause = match failure {
            AttemptFailure::Refused(DialError::Tls(error)) => {
                return Err(Failure::TlsFailed { reason: error.to_string() });
            }
            AttemptFailure::Refused(DialError::Local) => LOCAL_PAUSE,
            AttemptFailure::Refused(DialError::Pod)
                if has_slot && backend.direct == RoutingMode::ColdStartOnly =>
            {
                // Straight to the pod instead, until the ClusterIP accepts again.
                ip.went_cold();
                upstream.metrics.retried(failure.reason());
                return Ok(());
            }
            AttemptFailure::Refused(DialError::Pod) => RETRY_PAUSE,
            AttemptFailure::Lost if std::mem::replace(&mut tries.repeated, true) => {
                return Err(Failure::UpstreamReset);
            }
            AttemptFailure::Moved
            | AttemptFailure::Unsent
            | AttemptFailure::RefusedStream
            | AttemptFailure::Draining
            | AttemptFailure::GoAwayError
            | AttemptFailure::Lost => {
                tries.attempts += 1;
                if tries.attempts >= MAX_ATTEMPTS || !backend.service.may_retry() {
                    return Err(Failure::UpstreamReset);
                }
                RETRY_PAUSE
            }
        };
        let due = upstream.runtime.now() + pause;
        if due >= self.attempt.deadlines.readiness {
            return Err(if tries.repeated { Failure::UpstreamReset } else { Failure::ConnectFailed });
        }
        upstream.metrics.retried(failure.reason());
        let waited = before(upstream.runtime.deadline(due), self.attempt.client_leaves()).await;
        waited.ok_or(Failure::ClientGone)
    }
}

/// What the client learns when no destination is left, after these tries.
fn after(tries: &Tries, failure: Failure) -> Failure {
    match failure {
        // It was sent, and no response came.
        Failure::ConnectFailed | Failure::ReadinessTimeout { .. } | Failure::StartFailed { .. }
            if tries.repeated =>
        {
            Failure::UpstreamReset
        }
        failure => failure,
    }
}
