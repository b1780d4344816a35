//! Where one attempt goes: to the chosen pod, or to the `ClusterIP` of the service.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use rouse_core::endpoint::{Endpoint, Source, State};
use rouse_core::routing_mode::RoutingMode;
use rouse_core::service::Slot;
use rouse_core::snapshot::PortView;

use super::cluster_ip::ClusterIp;
use super::context::AttemptContext;
use super::pool::{Pool, Transport};
use crate::error::Failure;

/// Where one attempt goes.
#[derive(Debug)]
pub(crate) enum Destination {
    /// To this pod.
    Pod(Slot),
    /// To a pod that kube-proxy chooses. The slot counts the request, and shows that there is a pod.
    ClusterIp(Arc<ClusterIp>, Option<Slot>),
}

impl Destination {
    pub(crate) fn new(context: &AttemptContext<'_>, slot: Option<Slot>) -> Result<Self, Failure> {
        let backend = context.backend;
        let (slot, ip) = match (slot, &backend.cluster_ip) {
            (Some(slot), None) => return Ok(Self::Pod(slot)),
            (None, None) => return Err(Failure::BadPort),
            (None, Some(ip)) => return Ok(Self::ClusterIp(Arc::clone(ip), None)),
            (Some(slot), Some(ip)) => (slot, ip),
        };
        Ok(match backend.direct {
            RoutingMode::Always => Self::Pod(slot),
            RoutingMode::Disabled => Self::ClusterIp(Arc::clone(ip), Some(slot)),
            RoutingMode::ColdStartOnly => {
                if slot.cold_start() {
                    ip.went_cold();
                }
                if ip.accepts() {
                    Self::ClusterIp(Arc::clone(ip), Some(slot))
                } else {
                    ip.watch(&context.upstream.runtime);
                    Self::Pod(slot)
                }
            }
        })
    }

    /// The connections there.
    pub(super) fn pool(&self, context: &AttemptContext<'_>) -> Result<Rc<Pool>, Failure> {
        let transport = Transport::to(context.protocol()).ok_or(Failure::ConnectFailed)?;
        let pools = context.upstream.pools(&context.backend.service);
        match self {
            Self::Pod(slot) => Ok(pools.pool(slot.endpoint(), &transport)),
            Self::ClusterIp(ip, _) => Ok(pools.of_cluster_ip(ip, &transport)),
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

    /// Notes that a connection is open.
    pub(super) fn connected(&mut self) {
        if let Self::Pod(slot) | Self::ClusterIp(_, Some(slot)) = self {
            slot.connected();
        }
    }

    /// The request was sent, and no response came.
    pub(super) fn unanswered(&self, context: &AttemptContext<'_>) {
        // Which pod was behind the ClusterIP is not known.
        if let Self::Pod(slot) = self
            && slot.unanswered()
        {
            context.upstream.metrics.ejected();
        }
    }

    /// Whether the pod may refuse the request without processing it, as far as was known when it was picked.
    pub(super) fn may_refuse(&self) -> bool {
        matches!(self, Self::Pod(slot) if may_refuse(slot.endpoint()))
    }

    /// Whether a response that says that the pod refused the request is believed. Otherwise any app could make the gateway send
    /// requests to other pods. The newest snapshot counts as well: the pod may have begun to leave since it was picked.
    pub(super) fn is_believed(&self, context: &AttemptContext<'_>) -> bool {
        match self {
            Self::Pod(slot) => {
                self.may_refuse() || slot.newest().is_none_or(|endpoint| may_refuse(&endpoint))
            }
            // Which pod was behind the ClusterIP is not known.
            Self::ClusterIp(..) => {
                let backend = context.backend;
                let snapshot = backend.service.snapshot();
                let endpoints = snapshot.port(backend.port.name()).map(PortView::endpoints);
                endpoints.unwrap_or_default().iter().any(|endpoint| may_refuse(endpoint))
            }
        }
    }

    /// Counts where the request is sent.
    pub(super) fn count(&self, context: &AttemptContext<'_>) {
        let metrics = &context.upstream.metrics;
        match self {
            Self::Pod(slot) => {
                metrics.sent_to_pod();
                if slot.endpoint().state == State::Draining {
                    metrics.sent_to_draining(context.backend.service.id());
                }
            }
            // Requests for a port that no pod offers were counted before.
            Self::ClusterIp(_, None) if context.backend.lacks_port() => {}
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

/// Whether a pod may refuse requests: it is about to leave, or registers itself and so has a sidecar.
fn may_refuse(endpoint: &Endpoint) -> bool {
    endpoint.source == Source::Push || matches!(endpoint.state, State::Draining | State::Gone)
}
