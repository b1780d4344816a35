//! Which endpoints of slices are pods, and whether we can tell.

use std::net::IpAddr;
use std::sync::Arc;

use rouse_core::endpoint::{PodRef, PodUid};
use tokio::sync::Notify;

use crate::pods::Pods;

/// Tells which endpoints are pods. While it cannot, slices are believed: a service must not be empty because of that. While
/// pods are only listed again, an address that was last seen at another pod is not believed.
#[derive(Debug)]
pub(crate) struct Witness {
    pods: Arc<Pods>,
    /// Rung when all pods are needed again.
    again: Arc<Notify>,
    /// Pods were listed since slices were.
    current: bool,
    /// Pods cannot be followed.
    lost: bool,
    /// Slices were listed before.
    listed: bool,
    /// How often slices were listed because events were missed: now, and when the newest list of pods began.
    gaps: (u64, u64),
}

impl Witness {
    pub(crate) fn new(pods: Arc<Pods>, again: Arc<Notify>) -> Self {
        Self { pods, again, current: false, lost: false, listed: false, gaps: (0, 0) }
    }

    /// Whether what is no pod to us is none.
    pub(super) fn is_clear(&self) -> bool {
        self.current && !self.lost
    }

    /// Whether pods cannot be followed, so that what is known of them may be old.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Whether an endpoint that is no pod we know of is taken for one, since there may be pods that we do not know of.
    pub(super) fn believes(&self, pod: &PodUid, ip: IpAddr) -> bool {
        self.lost || !self.current && !self.is_taken(pod, ip)
    }

    /// Whether this is a pod of `namespace`, and its own address.
    pub(super) fn knows(&self, namespace: &str, pod: &PodUid, ip: IpAddr) -> bool {
        self.pods.has(namespace, pod, ip)
    }

    /// Whether a pod that is not known, or not at `ip`, may still be seen there as a pod of `namespace`.
    pub(super) fn may_come(&self, namespace: &str, pod: &PodRef, ip: IpAddr) -> bool {
        let claims = pod.name.split_once('/').is_some_and(|(written, _)| written == namespace);
        claims && !self.pods.is_foreign(namespace, &pod.uid) && !self.is_taken(&pod.uid, ip)
    }

    /// Whether `ip` is now that of another pod.
    pub(super) fn is_taken(&self, pod: &PodUid, ip: IpAddr) -> bool {
        self.pods.is_taken(pod, ip)
    }

    /// The addresses of a pod that were another's before. Each is told once.
    pub(super) fn take_inherited(&self, pod: &PodUid) -> Vec<IpAddr> {
        self.pods.take_inherited(pod)
    }

    /// All slices are listed. If events were `missed`, there may be pods that we do not know of.
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

    /// It is whole. If slices were listed meanwhile, it may be older than they are.
    pub(super) fn pods_listed(&mut self) {
        self.current = self.gaps.0 == self.gaps.1;
        if !self.current {
            self.again.notify_one();
        }
    }

    /// Whether pods cannot be followed: we may not, or not for long.
    pub(super) fn set_lost(&mut self, lost: bool) {
        self.lost = lost;
    }

    /// Somebody waits for a pod that we ought to know by now.
    pub(super) fn ask_again(&self) {
        self.again.notify_one();
    }
}

#[cfg(test)]
impl Witness {
    pub(super) fn pods(&self) -> &Pods {
        &self.pods
    }

    pub(super) fn bell(&self) -> &Notify {
        &self.again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_pods_that_began_before_that_of_slices_does_not_count() {
        let mut witness = Witness::new(Arc::default(), Arc::default());
        let pods_listed = |witness: &mut Witness| {
            witness.pods_listing();
            witness.pods_listed();
        };
        witness.slices_listed(true);
        assert!(!witness.is_clear(), "nobody has seen pods");
        pods_listed(&mut witness);
        assert!(witness.is_clear());
        witness.slices_listed(false);
        assert!(witness.is_clear(), "nothing was missed");
        witness.pods_listing();
        witness.slices_listed(true);
        witness.pods_listed();
        assert!(!witness.is_clear(), "they may be older");
        pods_listed(&mut witness);
        assert!(witness.is_clear());
    }
}
