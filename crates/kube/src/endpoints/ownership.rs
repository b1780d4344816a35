//! Checks whether the endpoints of slices are pods that exist at their address.

use std::net::IpAddr;
use std::sync::Arc;

use rouse_core::endpoint::{PodRef, PodUid};
use tokio::sync::Notify;

use crate::endpoints::pod_index::{PodFacts, PodIndex};

/// Checks endpoints against the pod index. While the pod list may be incomplete, slices are trusted: otherwise services
/// would lose their endpoints. While pods are being listed again, an address that the index has for another pod is not
/// trusted; while pods cannot be watched, every address is.
#[derive(Debug)]
pub(crate) struct OwnershipCheck {
    pods: Arc<PodIndex>,
    /// Notified when all pods must be listed again.
    again: Arc<Notify>,
    /// Whether the pod list is at least as new as the last list of slices after missed events.
    current: bool,
    /// Whether pods cannot be watched.
    lost: bool,
    /// Whether slices were listed before.
    listed: bool,
    /// How often slices were listed because events were missed: now, and when the newest list of pods began.
    gaps: (u64, u64),
}

impl OwnershipCheck {
    pub(crate) fn new(pods: Arc<PodIndex>, again: Arc<Notify>) -> Self {
        Self { pods, again, current: false, lost: false, listed: false, gaps: (0, 0) }
    }

    /// True once the pod list is complete, so that a missing pod means it does not exist.
    pub(super) fn is_clear(&self) -> bool {
        self.current && !self.lost
    }

    /// Whether pods cannot be watched, so that the pod list may be old.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Whether an endpoint without a known pod is trusted, because the pod list may be incomplete.
    pub(super) fn believes(&self, pod: &PodUid, ip: IpAddr) -> bool {
        self.lost || !self.current && !self.is_taken(pod, ip)
    }

    /// Whether `pod` is a pod of `namespace`, and `ip` is its address.
    pub(super) fn knows(&self, namespace: &str, pod: &PodUid, ip: IpAddr) -> bool {
        self.pods.has(namespace, pod, ip)
    }

    /// The pod, if it is known.
    pub(super) fn pod(&self, pod: &PodUid) -> Option<Arc<PodFacts>> {
        self.pods.get(pod)
    }

    /// Whether a pod that is not known, or not at `ip`, may still be seen there as a pod of `namespace`.
    pub(super) fn may_come(&self, namespace: &str, pod: &PodRef, ip: IpAddr) -> bool {
        let claims = pod.name.split_once('/').is_some_and(|(written, _)| written == namespace);
        claims && !self.pods.is_foreign(namespace, &pod.uid) && !self.is_taken(&pod.uid, ip)
    }

    /// Whether `ip` is now the address of another pod.
    pub(super) fn is_taken(&self, pod: &PodUid, ip: IpAddr) -> bool {
        self.pods.is_taken(pod, ip)
    }

    /// The addresses of a pod that another pod had before. Each is returned once.
    pub(super) fn take_inherited(&self, pod: &PodUid) -> Vec<IpAddr> {
        self.pods.take_inherited(pod)
    }

    /// Slices were listed. If events were `missed`, the pod list may be incomplete as well, so pods are listed again.
    pub(super) fn slices_listed(&mut self, missed: bool) {
        self.pods.forget_left();
        if std::mem::replace(&mut self.listed, true) && missed {
            self.gaps.0 += 1;
            if std::mem::take(&mut self.current) {
                self.again.notify_one();
            }
        }
    }

    /// A list of pods begins.
    pub(super) fn pods_listing(&mut self) {
        self.gaps.1 = self.gaps.0;
    }

    /// A list of pods is complete. If slices were listed again meanwhile, it may be older than they are, so pods are listed
    /// once more.
    pub(super) fn pods_listed(&mut self) {
        self.current = self.gaps.0 == self.gaps.1;
        if !self.current {
            self.again.notify_one();
        }
    }

    /// Sets whether pods cannot be watched.
    pub(super) fn set_lost(&mut self, lost: bool) {
        self.lost = lost;
    }

    /// Lists all pods again: a slice names a pod that should be known by now.
    pub(super) fn ask_again(&self) {
        self.again.notify_one();
    }
}

#[cfg(test)]
impl OwnershipCheck {
    pub(super) fn pods(&self) -> &PodIndex {
        &self.pods
    }

    pub(super) fn changed(&self) -> &Notify {
        &self.again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_pods_that_began_before_that_of_slices_does_not_count() {
        let mut ownership = OwnershipCheck::new(Arc::default(), Arc::default());
        let pods_listed = |ownership: &mut OwnershipCheck| {
            ownership.pods_listing();
            ownership.pods_listed();
        };
        ownership.slices_listed(true);
        assert!(!ownership.is_clear(), "pods were not listed yet");
        pods_listed(&mut ownership);
        assert!(ownership.is_clear());
        ownership.slices_listed(false);
        assert!(ownership.is_clear(), "nothing was missed");
        ownership.pods_listing();
        ownership.slices_listed(true);
        ownership.pods_listed();
        assert!(!ownership.is_clear(), "they may be older");
        pods_listed(&mut ownership);
        assert!(ownership.is_clear());
    }
}
