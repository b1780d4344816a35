//! Where one attempt goes: to the pod that was chosen, or to the `ClusterIP` of the service.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use rouse_core::endpoint::State;
use rouse_core::slot::Slot;
use rouse_core::time::Clock as _;

use super::{LACK, MOST_ATTEMPTS, Setback, Tries};
use crate::cluster_ip::{ClusterIp, Direct, PAUSE};
use crate::error::Failure;
use crate::pool::{Pool, Refusal, Way};
use crate::request::{Journey, before};

/// Where one attempt goes.
#[derive(Debug)]
pub(super) enum Aim {
    /// To this pod.
    Pod(Slot),
    /// To any pod, as the cluster's plumbing chooses. A slot says that there is one, and counts the request.
    ClusterIp(Arc<ClusterIp>, Option<Slot>),
}

impl Aim {
    pub(super) fn new(journey: &Journey<'_>, slot: Option<Slot>) -> Result<Self, Failure> {
        let backend = journey.backend;
        let (slot, ip) = match (slot, &backend.cluster_ip) {
            (Some(slot), None) => return Ok(Self::Pod(slot)),
            (None, None) => return Err(Failure::BadPort),
            (None, Some(ip)) => return Ok(Self::ClusterIp(Arc::clone(ip), None)),
            (Some(slot), Some(ip)) => (slot, ip),
        };
        Ok(match backend.direct {
            Direct::Always => Self::Pod(slot),
            Direct::Disabled => Self::ClusterIp(Arc::clone(ip), Some(slot)),
            Direct::ColdStartOnly => {
                if slot.cold_start() {
                    ip.went_cold();
                }
                if ip.accepts() {
                    Self::ClusterIp(Arc::clone(ip), Some(slot))
                } else {
                    ip.watch(journey.worker);
                    Self::Pod(slot)
                }
            }
        })
    }

    /// The connections there.
    pub(super) fn pool(&self, journey: &Journey<'_>) -> Result<Rc<Pool>, Failure> {
        let way = Way::to(journey.upstream()).ok_or(Failure::ConnectFailed)?;
        let pools = journey.worker.pools(&journey.backend.service);
        match self {
            Self::Pod(slot) => Ok(pools.pool(slot.endpoint(), &way)),
            Self::ClusterIp(ip, _) => Ok(pools.of_cluster_ip(ip, &way)),
        }
    }

    pub(super) fn addresses(&self) -> &[SocketAddr] {
        match self {
            Self::Pod(slot) => &slot.endpoint().addresses,
            Self::ClusterIp(ip, _) => ip.addresses(),
        }
    }

    /// Whether the request was held before it got its slot.
    pub(super) fn has_waited(&self) -> bool {
        matches!(self, Self::Pod(slot) if !slot.waited().is_zero())
    }

    /// Whether the pod may still be sent to, at the address that is dialled.
    pub(super) fn is_current(&self) -> bool {
        match self {
            Self::Pod(slot) => slot.is_current(),
            Self::ClusterIp(..) => true,
        }
    }

    /// A connection stands.
    pub(super) fn connected(&mut self) {
        if let Self::Pod(slot) | Self::ClusterIp(_, Some(slot)) = self {
            slot.connected();
        }
    }

    /// The request was sent, and no response came.
    pub(super) fn unanswered(&self, journey: &Journey<'_>) {
        // Who was behind the ClusterIP is not known.
        if let Self::Pod(slot) = self
            && slot.unanswered()
        {
            journey.worker.gateway.metrics.ejected();
        }
    }

    /// Writes down where the request is sent.
    pub(super) fn count(&self, journey: &Journey<'_>) {
        let metrics = &journey.worker.gateway.metrics;
        match self {
            Self::Pod(slot) => {
                metrics.sent_to_pod();
                if slot.endpoint().state == State::Draining {
                    metrics.sent_to_draining(journey.backend.service.id());
                }
            }
            // Where none offers the port, that was counted before.
            Self::ClusterIp(_, None) if journey.lacks_port() => {}
            Self::ClusterIp(..) => metrics.sent_to_cluster_ip(),
        }
    }

    /// Whether the request waited for a pod to come up.
    pub(super) fn cold_start(&self) -> bool {
        match self {
            Self::Pod(slot) => slot.cold_start(),
            Self::ClusterIp(_, slot) => slot.as_ref().is_some_and(Slot::cold_start),
        }
    }

    pub(super) fn into_slot(self) -> Option<Slot> {
        match self {
            Self::Pod(slot) => Some(slot),
            Self::ClusterIp(_, slot) => slot,
        }
    }
}

/// An attempt on the `ClusterIP` came to nothing: waits until there may be another. Pods are ready, but the plumbing
/// may not know it yet, or may still lead to one that is gone. `pod`: one is at hand to go to instead.
pub(super) async fn again(
    journey: &Journey<'_>,
    setback: &Setback,
    tries: &mut Tries,
    ip: &ClusterIp,
    pod: bool,
) -> Result<(), Failure> {
    let pause = match setback {
        Setback::Refused(Refusal::Tls(error)) => {
            return Err(Failure::TlsFailed { reason: error.to_string() });
        }
        Setback::Refused(Refusal::Local) => LACK,
        Setback::Refused(Refusal::Pod) if pod && journey.backend.direct == Direct::ColdStartOnly => {
            // Straight to the pod instead, until it accepts again.
            ip.went_cold();
            journey.worker.gateway.metrics.retried(setback.reason());
            return Ok(());
        }
        Setback::Refused(Refusal::Pod) => PAUSE,
        Setback::Lost if std::mem::replace(&mut tries.repeated, true) => return Err(Failure::UpstreamReset),
        Setback::Moved | Setback::Unsent | Setback::RefusedStream | Setback::ThrownOut | Setback::Lost => {
            tries.attempts += 1;
            if tries.attempts >= MOST_ATTEMPTS || !journey.backend.service.may_retry() {
                return Err(Failure::UpstreamReset);
            }
            PAUSE
        }
    };
    let worker = journey.worker;
    let due = worker.gateway.settings.clock.now() + pause;
    if due >= journey.times.readiness {
        return Err(if tries.repeated { Failure::UpstreamReset } else { Failure::ConnectFailed });
    }
    worker.gateway.metrics.retried(setback.reason());
    let waited = before(worker.deadlines.at(due), journey.client_leaves()).await;
    waited.ok_or(Failure::ClientGone)
}
