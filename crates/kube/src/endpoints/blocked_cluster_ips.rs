//! Services whose `ClusterIP` is not dialled, because their slices name endpoints that get no traffic.
//!
//! Kube-proxy does not apply the gateway's rules for endpoints: it spreads connections to a `ClusterIP` over every endpoint
//! of the Service's slices. A tenant with one real pod and a forged slice could make the gateway send requests to any address.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long an endpoint may name a pod that is not seen: after half of this time pods are listed again, and the list has the
/// other half to arrive. Without this time a good Service would lose its `ClusterIP` whenever its slice is seen before
/// its new pod: its session affinity would break, and its requests would fail where only the `ClusterIP` may be dialled
/// (a mesh with strict mTLS). With more of it, a forged endpoint is reached for longer.
const GRACE: Duration = Duration::from_secs(4);
/// How long a Service is remembered after its slices no longer name such endpoints. Kube-proxy applies slices late, so it
/// may still send connections there; a connection that was made there is reused while requests follow each other closely;
/// and endpoints that come and go would otherwise get the grace period each time.
const REMEMBERED: Duration = Duration::from_secs(30);

/// Why an endpoint gets no traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Refusal {
    /// It names a pod of its namespace that is not known, or not at that address. The watch for pods may lag behind.
    Unseen,
    /// It may not get traffic, even if more pods are seen: it names no pod, or one of another namespace; or its
    /// address is that of another pod, of the node or of the gateway.
    Foreign,
}

/// Why the endpoints of a Service are reviewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// One of its slices has changed. An endpoint that is removed before its pod was seen counts as forged.
    Slice,
    /// All slices were listed. They may be trusted until pods are listed as well, so an endpoint that is no longer refused
    /// counts neither as a pod nor as forged.
    List,
    /// Its slices are the same, but more is known about their endpoints: pods were seen, or the Service has changed.
    Facts,
}

/// A Service whose slices name refused endpoints, or did so a short time ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    /// Its slices name refused endpoints. The `ClusterIP` is not dialled from `from` on.
    Present { from: Instant },
    /// Its slices no longer name any. The entry is forgotten after `until`. If `refused`, the `ClusterIP` is not dialled
    /// until then. Otherwise it is dialled, but refused endpoints that come back are blocked from the old `from` on.
    Past { from: Instant, until: Instant, refused: bool },
}

impl Block {
    fn from(self) -> Instant {
        match self {
            Self::Present { from } | Self::Past { from, .. } => from,
        }
    }

    fn is_refused(self, now: Instant) -> bool {
        match self {
            Self::Present { from } => from <= now,
            Self::Past { until, refused, .. } => refused && now < until,
        }
    }

    fn is_forgotten(self, now: Instant) -> bool {
        matches!(self, Self::Past { until, .. } if until <= now)
    }

    /// When [`Block::is_refused`] changes by itself.
    fn changes(self) -> Option<Instant> {
        match self {
            Self::Present { from } => Some(from),
            Self::Past { until, refused, .. } => refused.then_some(until),
        }
    }
}

/// All Services whose slices name refused endpoints.
#[derive(Debug, Default)]
pub(super) struct BlockedClusterIps {
    by_service: HashMap<ServiceId, Block>,
    /// Notified when an entry is added, changed or removed.
    changed: Arc<Notify>,
}

impl BlockedClusterIps {
    /// Updates the entry of a Service. `worst` is the most serious refusal among the endpoints that its slices name now.
    pub(super) fn review(&mut self, id: &ServiceId, worst: Option<Refusal>, cause: Cause, now: Instant) {
        let before = self.by_service.get(id).copied();
        let known = before.filter(|block| !block.is_forgotten(now));
        let after = match (worst, known) {
            (Some(refusal), known) => {
                let from = match refusal {
                    Refusal::Foreign => now,
                    Refusal::Unseen => now + GRACE,
                };
                // A new endpoint does not restart the grace period: with a new one each second, none would ever be refused.
                Some(Block::Present { from: known.map_or(from, |known| known.from().min(from)) })
            }
            // The same endpoints turned out to be pods.
            (None, Some(Block::Present { .. })) if cause == Cause::Facts => None,
            (None, Some(Block::Present { from })) => {
                let refused = from <= now || cause == Cause::Slice;
                Some(Block::Past { from, until: now + REMEMBERED, refused })
            }
            (None, known) => known,
        };
        if after == before {
            return;
        }
        match after {
            Some(block) => self.by_service.insert(id.clone(), block),
            None => self.by_service.remove(id),
        };
        self.changed.notify_one();
    }

    /// Whether the `ClusterIP` of this Service must not be dialled.
    pub(super) fn has(&self, id: &ServiceId, now: Instant) -> bool {
        self.by_service.get(id).is_some_and(|block| block.is_refused(now))
    }

    pub(super) fn services(&self) -> impl Iterator<Item = &ServiceId> {
        self.by_service.keys()
    }

    /// When [`BlockedClusterIps::has`] next changes by the passing of time. Also removes entries that are over.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        self.by_service.retain(|_, block| !block.is_forgotten(now));
        self.by_service.values().filter_map(|block| block.changes()).filter(|at| *at > now).min()
    }

    /// Notified when [`BlockedClusterIps::has`] or [`BlockedClusterIps::next`] may have changed.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }
}
