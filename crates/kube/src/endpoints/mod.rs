//! Writes Services, slices and pods into the registry, decides which endpoints and `ClusterIP`s are trusted, and keeps the pod
//! index.
//!
//! `EndpointController` owns what is known of them, the tasks that watch them, and the tasks that list them again when they
//! disagree. Other modules ask it about Services, and `EndpointListener` tells them what has changed.

mod admission;
mod blocked_cluster_ips;
mod endpoint_policy;
mod feed;
mod ownership;
pub mod pod_index;
mod propagation;
mod push_ownership;
mod sinks;
mod slice_facts;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::registry::Registry;
use rouse_core::snapshot::ConcurrencyLimits;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::client::watch::{WatchReport, WatchState};
use crate::client::{ObjectKind, Watches};
use crate::events::EventSender;
use crate::objects::service_summary::ServiceSummary;
use admission::Admission;
pub(crate) use endpoint_policy::{EndpointPolicy, ManualEndpoints};
use feed::RegistryFeed;
use ownership::OwnershipCheck;
use pod_index::PodIndex;
pub(crate) use propagation::PropagationMeter;
pub(crate) use push_ownership::{PushOwnership, PushSettings};

/// How long slices and pods may disagree before they are listed again: one watch is always a little ahead of the other.
const DISAGREEMENT: Duration = Duration::from_secs(2);
/// The least time between two lists that a disagreement causes. Without it, a tenant who writes slices of pods that do
/// not exist would have the gateway list all the time.
const BETWEEN_LISTS: Duration = Duration::from_secs(30);

/// The settings of an [`EndpointController`].
pub(crate) struct EndpointSettings {
    pub(crate) policy: EndpointPolicy,
    /// How long the watch of slices may be broken before snapshots are marked stale.
    pub(crate) stale_after: Duration,
}

/// Is told when Services or endpoints change.
pub(crate) trait EndpointListener: Send + Sync + 'static {
    /// A Service is new, has changed or is gone.
    fn services_changed(&self);
    /// The endpoints of `service` may have changed; `None`: those of any service.
    fn endpoints_changed(&self, service: Option<&ServiceId>);
}

/// Keeps the registry up to date with Services, `EndpointSlice`s and pods.
pub(crate) struct EndpointController {
    feed: Mutex<RegistryFeed>,
    pods: Arc<PodIndex>,
    /// Measures how long changes of pods take until they are published.
    propagation: Arc<PropagationMeter>,
    /// Checks pods that register themselves.
    push: Arc<PushOwnership>,
    watches: Arc<Watches>,
    /// How long the watch of slices may be broken before snapshots are marked stale.
    stale_after: Duration,
    /// Notified when all slices must be listed again.
    relist_slices: Arc<Notify>,
    /// Notified when all pods must be listed again.
    relist_pods: Arc<Notify>,
    events: EventSender,
}

impl EndpointController {
    pub(crate) fn new(
        registry: Arc<Registry>,
        pods: Arc<PodIndex>,
        propagation: Arc<PropagationMeter>,
        push: Arc<PushOwnership>,
        watches: Arc<Watches>,
        settings: EndpointSettings,
        events: EventSender,
    ) -> Self {
        let EndpointSettings { policy, stale_after } = settings;
        let (relist_slices, relist_pods) = (Arc::<Notify>::default(), Arc::<Notify>::default());
        let ownership = OwnershipCheck::new(Arc::clone(&pods), Arc::clone(&relist_pods));
        let admission = Admission { ownership, policy };
        let meter = Arc::clone(&propagation);
        let feed = Mutex::new(RegistryFeed::new(registry, admission, meter, Arc::clone(&relist_slices)));
        Self { feed, pods, propagation, push, watches, stale_after, relist_slices, relist_pods, events }
    }

    /// Starts the watches and the tasks that look after them.
    pub(crate) fn spawn<L: EndpointListener>(
        self: &Arc<Self>,
        listener: &Arc<L>,
        tasks: &mut JoinSet<()>,
        cancel: &CancellationToken,
    ) {
        let slices = self.watches.of(ObjectKind::SLICE, &self.relist_slices);
        tasks.spawn(slices.run(sinks::SliceSink::new(self, listener), cancel.clone()));
        let services = self.watches.of(ObjectKind::SERVICE, &Arc::default());
        tasks.spawn(services.run(sinks::ServiceSink::new(self, listener), cancel.clone()));
        let pods = self.watches.of(ObjectKind::POD, &self.relist_pods);
        tasks.spawn(pods.run(sinks::PodSink::new(self, listener), cancel.clone()));
        tasks.spawn(Arc::clone(self).mark_staleness(cancel.clone()));
        tasks.spawn(Arc::clone(self).settle_disagreements(cancel.clone()));
    }

    pub(crate) fn service(&self, id: &ServiceId) -> Option<Arc<ServiceSummary>> {
        // The lock is held for one lookup only: slices must not wait for routes.
        self.lock().service(id)
    }

    /// Whether the Service asks by annotation for endpoints without a pod, and the operator does not allow it.
    pub(crate) fn ignores_manual_endpoints(&self, id: &ServiceId) -> bool {
        self.lock().ignores_manual_endpoints(id)
    }

    /// How many pods of `namespace` have all labels of `selector`.
    pub(crate) fn selected_pods(&self, namespace: &str, selector: &BTreeMap<String, String>) -> u32 {
        self.pods.selected(namespace, selector)
    }

    /// Whether the `ClusterIP` of this Service must not be dialled: kube-proxy would send requests from there to endpoints
    /// that get no traffic from the gateway.
    pub(crate) fn blocks_cluster_ip(&self, id: &ServiceId, now: Instant) -> bool {
        self.lock().blocks_cluster_ip(id, now)
    }

    /// When [`EndpointController::blocks_cluster_ip`] next changes by the passing of time.
    pub(crate) fn next_block_change(&self, now: Instant) -> Option<Instant> {
        self.lock().next_block_change(now)
    }

    /// Notified when [`EndpointController::blocks_cluster_ip`] or [`EndpointController::next_block_change`] may have changed.
    pub(crate) fn block_changes(&self) -> Arc<Notify> {
        self.lock().block_changes()
    }

    /// Sets how requests to each service are spread. Returns whether a service or a port was replaced by another one of
    /// the same name since the last call.
    pub(crate) fn set_spreads(&self, spreads: HashMap<ServiceId, ConcurrencyLimits>) -> bool {
        let mut feed = self.lock();
        feed.set_spreads(spreads);
        feed.take_remade()
    }

    /// Marks snapshots stale while the watch of slices has been broken for longer than `stale_after`.
    async fn mark_staleness(self: Arc<Self>, cancel: CancellationToken) {
        let mut changes = self.watches.changes();
        loop {
            let slices = self.watches.report(ObjectKind::SLICE);
            let patience = slices.as_ref().and_then(|report| self.patience(report));
            match slices.map(|report| report.state) {
                Some(WatchState::Broken { .. }) => self.lock().set_stale(patience.is_none()),
                Some(WatchState::Following) => self.lock().set_stale(false),
                _ => {}
            }
            let due = patience.into_iter().chain(self.check_pods()).min();
            let due = due.map(|left| Instant::now() + left);
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                _ = changes.changed() => {}
                () = crate::client::at(due) => {}
            }
        }
    }

    /// Stops requiring a pod for each endpoint while pods cannot be watched: otherwise no endpoint would get traffic. A watch
    /// that has listed pods before may be broken for `stale_after` until then; returns how much of that time is left.
    pub(crate) fn check_pods(&self) -> Option<Duration> {
        let pods = self.watches.report(ObjectKind::POD)?;
        let patience = self.patience(&pods).filter(|_| pods.synced);
        let broken = matches!(pods.state, WatchState::Broken { .. });
        self.lock().set_pods_lost(broken && patience.is_none());
        patience
    }

    /// How long the facts of a broken watch still count as current.
    fn patience(&self, report: &WatchReport) -> Option<Duration> {
        let WatchState::Broken { since, .. } = report.state else { return None };
        let broken_for = self.watches.clock().now().since(since);
        Some(self.stale_after.saturating_sub(broken_for)).filter(|left| !left.is_zero())
    }

    /// Lists slices or pods again if they have disagreed for a while: one of the watches may have missed an event, or may
    /// hang.
    async fn settle_disagreements(self: Arc<Self>, cancel: CancellationToken) {
        let changed = self.lock().disagreements();
        let work = async {
            loop {
                changed.notified().await;
                sleep_until(Instant::now() + DISAGREEMENT).await;
                if self.lock().settle_disagreements() {
                    sleep_until(Instant::now() + BETWEEN_LISTS).await;
                }
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = work => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, RegistryFeed> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
