//! What attempts of one worker thread share, and what one attempt sees of its request.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::service::Service;

use super::backend::{Backend, UpstreamProtocol};
use super::headers::ColdStartHeaders;
use super::pool::{IdleBudget, Pools};
use super::timeouts::RequestDeadlines;
use crate::budget::{BodyBuffers, ConnectionLimits, DescriptorShortage, PodConnections};
use crate::client::ClientConnection;
use crate::runtime::Runtime;
use crate::telemetry::AttemptRecord;
use crate::telemetry::metrics::Metrics;

/// What attempts of one worker thread share: connection pools and the budgets that they use.
#[derive(Debug)]
pub(crate) struct UpstreamContext {
    pub(crate) runtime: Rc<Runtime>,
    pub(crate) limits: ConnectionLimits,
    /// The longest that a request waits for room in the budgets.
    pub(crate) max_wait: Duration,
    pub(crate) cold_start: ColdStartHeaders,
    pub(crate) metrics: Metrics,
    pub(crate) buffers: Rc<BodyBuffers>,
    pub(super) pod_connections: Arc<PodConnections>,
    pub(super) shortage: Rc<DescriptorShortage>,
    pub(super) idle: Rc<IdleBudget>,
    pools: RefCell<HashMap<ServiceId, Rc<Pools>>>,
}

/// What an [`UpstreamContext`] is made of.
#[derive(Debug)]
pub(crate) struct UpstreamParts {
    pub(crate) runtime: Rc<Runtime>,
    pub(crate) limits: ConnectionLimits,
    pub(crate) max_wait: Duration,
    pub(crate) cold_start: ColdStartHeaders,
    pub(crate) metrics: Metrics,
    pub(crate) buffers: Rc<BodyBuffers>,
    pub(crate) pod_connections: Arc<PodConnections>,
    pub(crate) shortage: Rc<DescriptorShortage>,
    /// How many workers share the limits.
    pub(crate) workers: usize,
}

impl UpstreamContext {
    pub(crate) fn new(parts: UpstreamParts) -> Rc<Self> {
        let UpstreamParts { runtime, limits, max_wait, cold_start, metrics, .. } = parts;
        Rc::new(Self {
            runtime,
            limits,
            max_wait,
            cold_start,
            metrics,
            buffers: parts.buffers,
            pod_connections: parts.pod_connections,
            shortage: parts.shortage,
            idle: IdleBudget::new(&limits, parts.workers),
            pools: RefCell::default(),
        })
    }

    /// The connections to the pods of `service`. From the first call on they follow its snapshots.
    pub(super) fn pools(self: &Rc<Self>, service: &Arc<Service>) -> Rc<Pools> {
        if let Some(pools) = self.pools.borrow().get(service.id()).filter(|pools| pools.are_of(service)) {
            return Rc::clone(pools);
        }
        // New, or removed and declared again: another service with the same name.
        let pools = Rc::new(Pools::new(service));
        self.pools.borrow_mut().insert(service.id().clone(), Rc::clone(&pools));
        let (context, following) = (Rc::clone(self), Rc::clone(&pools));
        let mut snapshots = service.subscribe();
        self.runtime.spawn(async move {
            loop {
                let snapshot = tokio::select! {
                    () = context.runtime.close.cancelled() => break,
                    snapshot = snapshots.changed() => snapshot,
                };
                following.follow(&snapshot);
                if snapshot.gone {
                    break;
                }
            }
            let mut all = context.pools.borrow_mut();
            if all.get(following.service()).is_some_and(|newest| Rc::ptr_eq(newest, &following)) {
                all.remove(following.service());
            }
        });
        pools
    }

    /// Closes idle connections to the pods of one service. Returns whether there were any.
    pub(crate) fn close_idle(&self) -> bool {
        self.pools.borrow().values().any(|pools| pools.close_idle())
    }

    /// Closes connections that have been idle for too long. To be called once a second.
    pub(crate) fn sweep(&self) {
        self.pools.borrow().values().for_each(|pools| pools.sweep());
    }
}

/// What one attempt sees of its request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttemptContext<'a> {
    pub(crate) upstream: &'a Rc<UpstreamContext>,
    pub(crate) client: &'a Rc<ClientConnection>,
    pub(crate) backend: &'a Backend,
    pub(crate) deadlines: RequestDeadlines,
    pub(crate) record: AttemptRecord<'a>,
}

impl AttemptContext<'_> {
    /// The protocol of the pods.
    pub(crate) fn protocol(&self) -> &UpstreamProtocol {
        self.backend.protocol(self.client.tls.is_some())
    }

    /// Ends when the client has left.
    pub(crate) async fn client_leaves(&self) {
        let UpstreamContext { runtime, limits, .. } = &**self.upstream;
        self.client.leaves(runtime, limits.half_closed).await;
    }
}
