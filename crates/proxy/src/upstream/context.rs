//! The connection pools and limits of one worker thread, and the data of one attempt.

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
use crate::message::Placement;
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
    pub(crate) placement: Placement,
    pub(crate) metrics: Metrics,
    pub(crate) buffers: Rc<BodyBuffers>,
    pub(crate) pod_connections: Arc<PodConnections>,
    pub(crate) shortage: Rc<DescriptorShortage>,
    pub(crate) idle: Rc<IdleBudget>,
    pub(crate) pools: ServicePools,
}

/// The connection pools of one worker thread, by service.
#[derive(Debug, Default)]
pub(crate) struct ServicePools(RefCell<HashMap<ServiceId, Rc<Pools>>>);

impl UpstreamContext {
    /// The connections to the pods of `service`. From the first call on they follow its snapshots.
    pub(super) fn pools(self: &Rc<Self>, service: &Arc<Service>) -> Rc<Pools> {
        if let Some(pools) = self.pools.0.borrow().get(service.id()).filter(|pools| pools.are_of(service)) {
            return Rc::clone(pools);
        }
        // New, or removed and declared again: another service with the same name.
        let pools = Rc::new(Pools::new(service));
        self.pools.0.borrow_mut().insert(service.id().clone(), Rc::clone(&pools));
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
            let mut all = context.pools.0.borrow_mut();
            if all.get(following.service()).is_some_and(|newest| Rc::ptr_eq(newest, &following)) {
                all.remove(following.service());
            }
        });
        pools
    }

    /// Closes idle connections to the pods of one service. Returns whether there were any.
    pub(crate) fn close_idle(&self) -> bool {
        self.pools.0.borrow().values().any(|pools| pools.close_idle())
    }

    /// Closes connections that have been idle for too long. To be called once a second.
    pub(crate) fn sweep(&self) {
        self.pools.0.borrow().values().for_each(|pools| pools.sweep());
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
