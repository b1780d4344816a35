//! Services whose `ClusterIP` is not dialled, because their slices name endpoints that get no traffic.
//!
//! Kube-proxy does not know the rules for endpoints: it sends what is dialled at a `ClusterIP` to every endpoint of the
//! Service's slices. A tenant with one real pod and a forged slice would have the gateway send requests to any address.

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
/// may lead there for a while; a connection that was made there is used as long as requests follow each other closely; and
/// endpoints that come and go would otherwise get the benefit of the doubt each time.
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

/// What has changed when the endpoints of a Service are reviewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// One of its slices. An endpoint that is removed before its pod was seen counts as forged.
    Slice,
    /// All slices were listed. Pods may be listed soon, too, and are believed until then, so nothing follows from it.
    List,
    /// What is known of the endpoints that its slices name: pods were seen, or the Service selects others.
    Facts,
}

/// A Service whose slices name refused endpoints, or did so a short time ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    /// They do. The `ClusterIP` is not dialled after `from`.
    Present { from: Instant },
    /// They no longer do; forgotten after `until`. `refused`: the `ClusterIP` is not dialled before that. Otherwise
    /// nothing happens unless such endpoints come back: for them, `from` still counts.
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
    /// Notified when one is new, changes or goes.
    changed: Arc<Notify>,
}

impl BlockedClusterIps {
    /// The worst endpoint that the slices of a Service name now is refused like this.
    pub(super) fn review(&mut self, id: &ServiceId, worst: Option<Refusal>, cause: Cause, now: Instant) {
        let before = self.by_service.get(id).copied();
        let known = before.filter(|block| !block.is_forgotten(now));
        let after = match (worst, known) {
            (Some(refusal), known) => {
                let from = match refusal {
                    Refusal::Foreign => now,
                    Refusal::Unseen => now + GRACE,
                };
                // A new endpoint does not restart the time: with a new one each second, none would ever be refused.
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

    /// When [`BlockedClusterIps::has`] answers something else for some Service by itself. Forgets those that are over.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        self.by_service.retain(|_, block| !block.is_forgotten(now));
        self.by_service.values().filter_map(|block| block.changes()).filter(|at| *at > now).min()
    }

    /// Notified when [`BlockedClusterIps::has`] or [`BlockedClusterIps::next`] may have changed.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }
}
