//! The granted claims, by pod and by service, so that a change of one pod or Service finds its own claims only.
//!
//! The lock is held for one look-up or one write, never while facts are read or the registry is written.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use rouse_core::endpoint::{PodUid, ServiceId};
use rouse_core::time::Moment;
use rouse_net::auth::{Claim, ClaimGrant, PushMode};

use super::pod_lookup::FoundPod;
use crate::objects::service_summary::ServiceSummary;

/// A claim that is true.
#[derive(Debug)]
pub(super) struct GrantedClaim {
    pub(super) claim: Claim,
    pub(super) grant: ClaimGrant,
    /// The pod, if it was looked up because the watch has not seen it yet.
    pub(super) found: Option<FoundPod>,
    /// The Service that it was decided with.
    pub(super) service: Arc<ServiceSummary>,
    /// When it was last claimed, in nanoseconds. Atomic, so that a renewal needs no write lock.
    renewed: AtomicU64,
}

impl GrantedClaim {
    pub(super) fn new(
        claim: Claim,
        grant: ClaimGrant,
        found: Option<FoundPod>,
        service: Arc<ServiceSummary>,
        renewed: Moment,
    ) -> Self {
        Self { claim, grant, found, service, renewed: AtomicU64::new(renewed.as_nanos()) }
    }

    pub(super) fn renewed(&self) -> Moment {
        Moment::from_nanos(self.renewed.load(Ordering::Relaxed))
    }
}

/// Whether pushes under this grant are applied, as far as the owner of the service decides.
pub(super) fn is_applied(grant: ClaimGrant) -> bool {
    !matches!(grant.mode, Some(PushMode::Off | PushMode::Observe))
}

/// All granted claims. There are at most as many as there are pairs of a pod and a Service that selects it.
#[derive(Debug)]
pub(super) struct GrantTable {
    tables: RwLock<Tables>,
    /// Claims that are not renewed for this time are forgotten. Their lease is long over.
    forget_after: Duration,
}

#[derive(Debug, Default)]
struct Tables {
    /// A pod belongs to few services.
    by_pod: HashMap<PodUid, Vec<Arc<GrantedClaim>>>,
    by_service: HashMap<ServiceId, HashSet<PodUid>>,
    /// When claims were last checked for their age.
    swept: Moment,
}

impl Tables {
    fn get(&self, service: &ServiceId, uid: &PodUid) -> Option<&Arc<GrantedClaim>> {
        self.by_pod.get(uid)?.iter().find(|granted| granted.claim.service == *service)
    }

    fn exactly(&self, claim: &Claim) -> Option<&Arc<GrantedClaim>> {
        self.get(&claim.service, &claim.uid).filter(|granted| granted.claim == *claim)
    }

    fn insert(&mut self, granted: GrantedClaim) {
        let (service, uid) = (granted.claim.service.clone(), granted.claim.uid.clone());
        let of_pod = self.by_pod.entry(uid.clone()).or_default();
        of_pod.retain(|other| other.claim.service != service);
        of_pod.push(Arc::new(granted));
        self.by_service.entry(service).or_default().insert(uid);
    }

    fn remove(&mut self, service: &ServiceId, uid: &PodUid) {
        if let Some(of_pod) = self.by_pod.get_mut(uid) {
            of_pod.retain(|granted| granted.claim.service != *service);
            if of_pod.is_empty() {
                self.by_pod.remove(uid);
            }
        }
        if let Some(pods) = self.by_service.get_mut(service) {
            pods.remove(uid);
            if pods.is_empty() {
                self.by_service.remove(service);
            }
        }
    }

    /// Removes claims that were not renewed since `since`.
    fn sweep(&mut self, since: Moment) {
        let all = self.by_pod.values().flatten();
        let lapsed = all.filter(|granted| granted.renewed() < since);
        let lapsed: Vec<Arc<GrantedClaim>> = lapsed.map(Arc::clone).collect();
        for granted in lapsed {
            self.remove(&granted.claim.service, &granted.claim.uid);
        }
    }
}

impl GrantTable {
    pub(super) fn new(forget_after: Duration) -> Self {
        Self { tables: RwLock::default(), forget_after }
    }

    fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The grant of exactly this claim, if it stands. Records that the claim was renewed.
    pub(super) fn renew(&self, claim: &Claim, now: Moment) -> Option<ClaimGrant> {
        let tables = self.read();
        let granted = tables.exactly(claim)?;
        granted.renewed.store(now.as_nanos(), Ordering::Relaxed);
        Some(granted.grant)
    }

    /// The grant of exactly this claim, if it stands.
    pub(super) fn get(&self, claim: &Claim) -> Option<ClaimGrant> {
        self.read().exactly(claim).map(|granted| granted.grant)
    }

    /// Adds a claim, in place of an earlier claim of this pod about this service.
    pub(super) fn insert(&self, granted: GrantedClaim, now: Moment) {
        let mut tables = self.write();
        tables.insert(granted);
        if now.since(tables.swept) > self.forget_after {
            tables.swept = now;
            tables.sweep(now - self.forget_after);
        }
    }

    /// Replaces what is known of a claim, if it still stands. A claim that was removed meanwhile does not come back.
    pub(super) fn update(&self, granted: GrantedClaim) {
        let mut tables = self.write();
        if tables.exactly(&granted.claim).is_some() {
            tables.insert(granted);
        }
    }

    /// Removes exactly this claim. Another claim of the pod stays: a false claim must not end a true one.
    pub(super) fn remove(&self, claim: &Claim) {
        let mut tables = self.write();
        if tables.exactly(claim).is_some() {
            tables.remove(&claim.service, &claim.uid);
        }
    }

    /// Removes all claims of a pod, and returns them.
    pub(super) fn take_pod(&self, uid: &PodUid) -> Vec<Arc<GrantedClaim>> {
        // Most pods that go have no claims: they cost a read.
        if !self.read().by_pod.contains_key(uid) {
            return Vec::new();
        }
        let mut tables = self.write();
        let gone = tables.by_pod.get(uid).cloned().unwrap_or_default();
        for granted in &gone {
            tables.remove(&granted.claim.service, uid);
        }
        gone
    }

    pub(super) fn of_pod(&self, uid: &PodUid) -> Vec<Arc<GrantedClaim>> {
        self.read().by_pod.get(uid).cloned().unwrap_or_default()
    }

    pub(super) fn of_service(&self, service: &ServiceId) -> Vec<Arc<GrantedClaim>> {
        let tables = self.read();
        let pods = tables.by_service.get(service).into_iter().flatten();
        pods.filter_map(|uid| tables.get(service, uid)).map(Arc::clone).collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<GrantedClaim>> {
        self.read().by_pod.values().flatten().map(Arc::clone).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.read().by_pod.is_empty()
    }
}
