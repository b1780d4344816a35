//! Checks the claims of pods that register themselves against Pods and Services, and withdraws pushes that are not true any
//! more.
//!
//! A granted claim is remembered, so a renewal costs one look-up. When its pod or its Service changes, the claim is decided
//! again. Locks: that of the grants is a leaf. It is never held while facts are read, while the registry is written or across
//! an await. Facts are read under the locks of the feed and of the pod index, one at a time.

mod decision;
mod grants;
mod pod_lookup;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use kube::Client;
use rouse_core::endpoint::{PodUid, ServiceId, Source, State};
use rouse_core::registry::Registry;
use rouse_core::service::Service;
use rouse_core::snapshot::PortView;
use rouse_core::time::{Clock, Moment};
use rouse_net::auth::{BoxFuture, Claim, ClaimError, ClaimGrant, Ownership};

use super::EndpointController;
use super::endpoint_policy::{EndpointPolicy, ManualEndpoints};
use super::pod_index::{PodFacts, PodIndex};
use crate::objects::service_summary::ServiceSummary;
use crate::objects::workload::is_object_name;
use decision::{Evidence, decide, other_uid};
use grants::{GrantTable, GrantedClaim, is_applied};
use pod_lookup::{FoundPod, Lookup, Outcome, PodKey, PodLookup};

/// A claim that is not renewed for so many leases is forgotten.
const FORGOTTEN_LEASES: u32 = 3;
/// How often a claim is decided again because its pod or Service changed meanwhile.
const ATTEMPTS: usize = 8;

/// The operator's settings for pods that register themselves.
#[derive(Debug, Clone)]
pub(crate) struct PushSettings {
    /// The one namespace that is watched; `None`: all.
    pub(crate) namespace: Option<String>,
    /// Whether pods on the network of their node may register.
    pub(crate) host_network: bool,
    /// The lease of a push.
    pub(crate) lease: Duration,
    /// The addresses on which the gateway listens. No pod may register them.
    pub(crate) own_addresses: Vec<SocketAddr>,
}

/// Knows which pods belong to which Services, and what they own.
pub(crate) struct PushOwnership {
    pods: Arc<PodIndex>,
    lookup: PodLookup,
    grants: GrantTable,
    clock: Arc<dyn Clock>,
    namespace: Option<String>,
    host_network: bool,
    policy: EndpointPolicy,
    attached: OnceLock<Attached>,
}

/// What exists only while the cluster is followed. Weak: the registry owns the cluster, which owns this.
struct Attached {
    registry: Weak<Registry>,
    endpoints: Weak<EndpointController>,
}

/// What a claim is decided with, read at one moment.
struct Facts {
    pod: Arc<PodFacts>,
    service: Arc<ServiceSummary>,
    taken: Vec<IpAddr>,
}

impl Facts {
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pod, &other.pod)
            && Arc::ptr_eq(&self.service, &other.service)
            && self.taken == other.taken
    }
}

/// Why a claim is decided.
#[derive(Clone, Copy)]
enum Occasion<'a> {
    /// A pod claims it. `Lookup`: the pod had to be looked up.
    Claimed(Option<&'a Lookup>),
    /// It was granted, and its pod or Service has changed.
    Changed(&'a GrantedClaim),
}

impl PushOwnership {
    pub(crate) fn new(
        client: Client,
        pods: Arc<PodIndex>,
        clock: Arc<dyn Clock>,
        settings: PushSettings,
    ) -> Self {
        let PushSettings { namespace, host_network, lease, own_addresses } = settings;
        Self {
            pods,
            lookup: PodLookup::new(client, Arc::clone(&clock)),
            grants: GrantTable::new(lease * FORGOTTEN_LEASES),
            clock,
            namespace,
            host_network,
            policy: EndpointPolicy { manual: ManualEndpoints::In([].into()), own: own_addresses },
            attached: OnceLock::new(),
        }
    }

    /// Connects it with what is followed. Before this, no claim can be decided.
    pub(crate) fn attach(&self, registry: &Arc<Registry>, endpoints: &Arc<EndpointController>) {
        let attached = Attached { registry: Arc::downgrade(registry), endpoints: Arc::downgrade(endpoints) };
        // A cluster is followed once.
        self.attached.set(attached).ok();
    }

    fn service(&self, id: &ServiceId) -> Result<Arc<ServiceSummary>, ClaimError> {
        let endpoints = self.attached.get().and_then(|attached| attached.endpoints.upgrade());
        let service = endpoints.and_then(|endpoints| endpoints.service(id));
        service.ok_or_else(|| unavailable(format!("Service {id} is not known yet; try again")))
    }

    async fn decide_new(&self, claim: &Claim) -> Result<ClaimGrant, ClaimError> {
        let namespace = claim.service.namespace();
        if let Some(watched) = self.namespace.as_deref().filter(|watched| *watched != namespace) {
            let text = format!("the gateway serves only namespace {watched}, and the pod claims {namespace}");
            return Err(ClaimError::Denied(text));
        }
        if !is_object_name(&claim.pod) {
            return Err(ClaimError::Denied("the name of the pod is not a name of an object".to_owned()));
        }
        // Before the look-up: a claim for a Service that is not known costs no request.
        self.service(&claim.service)?;
        if self.pods.get(&claim.uid).is_some() {
            return self.settle(claim, Occasion::Claimed(None));
        }
        let (namespace, name) = (namespace.to_owned(), claim.pod.clone());
        let key = PodKey { namespace, name, uid: claim.uid.clone() };
        let busy = || unavailable("too many pods are looked up at the moment; try again".to_owned());
        let lookup = self.lookup.find(&key).await.ok_or_else(busy)?;
        self.settle(claim, Occasion::Claimed(Some(&lookup)))
    }

    /// Decides a claim with the newest facts and records the result. Repeats if they have changed meanwhile: a change that
    /// comes before the record does not find the claim, so it would be missed.
    fn settle(&self, claim: &Claim, occasion: Occasion<'_>) -> Result<ClaimGrant, ClaimError> {
        for _ in 0..ATTEMPTS {
            let facts = match self.facts(claim, occasion) {
                Ok(facts) => facts,
                Err(error) => {
                    self.grants.remove(claim);
                    return Err(error);
                }
            };
            let decided = self.decide(claim, &facts);
            match decided {
                Ok(grant) => self.record(claim, grant, &facts, occasion),
                Err(_) => self.grants.remove(claim),
            }
            if self.facts(claim, occasion).is_ok_and(|now| now.is_same(&facts)) {
                return decided;
            }
        }
        self.grants.remove(claim);
        Err(unavailable(format!("pod {} or its Service changes all the time; try again", claim.pod)))
    }

    fn decide(&self, claim: &Claim, facts: &Facts) -> Result<ClaimGrant, ClaimError> {
        let evidence = Evidence {
            pod: &facts.pod,
            service: &facts.service,
            taken: &facts.taken,
            policy: &self.policy,
            host_network: self.host_network,
        };
        decide(claim, evidence)
    }

    fn record(&self, claim: &Claim, grant: ClaimGrant, facts: &Facts, occasion: Occasion<'_>) {
        let watched = self.pods.get(&claim.uid).is_some();
        let found = occasion.found().filter(|_| !watched);
        let granted = |renewed: Moment| {
            GrantedClaim::new(claim.clone(), grant, found, Arc::clone(&facts.service), renewed)
        };
        match occasion {
            Occasion::Claimed(_) => {
                let now = self.clock.now();
                self.grants.insert(granted(now), now);
            }
            Occasion::Changed(before) => self.grants.update(granted(before.renewed())),
        }
    }

    /// The newest facts about a claim.
    fn facts(&self, claim: &Claim, occasion: Occasion<'_>) -> Result<Facts, ClaimError> {
        let service = self.service(&claim.service)?;
        let pod = match self.pods.get(&claim.uid) {
            Some(pod) => pod,
            None => self.unwatched_pod(claim, occasion)?,
        };
        let taken = self.pods.taken_from(&pod);
        Ok(Facts { pod, service, taken })
    }

    /// The pod of a claim, if the watch does not have it.
    fn unwatched_pod(&self, claim: &Claim, occasion: Occasion<'_>) -> Result<Arc<PodFacts>, ClaimError> {
        let (namespace, pod) = (claim.service.namespace(), &claim.pod);
        let missing = || unavailable(format!("pod {namespace}/{pod} is not known yet; try again"));
        if let Occasion::Claimed(Some(lookup)) = occasion {
            match lookup.outcome() {
                Outcome::Ended => {
                    return Err(ClaimError::Denied(format!("pod {namespace}/{pod} has ended")));
                }
                Outcome::OtherUid => return Err(ClaimError::Denied(other_uid(namespace, pod))),
                Outcome::Failed(why) => {
                    let text = format!("pod {namespace}/{pod} cannot be looked up now: {why}");
                    return Err(unavailable(text));
                }
                Outcome::Missing => return Err(missing()),
                Outcome::Found(_) if lookup.is_gone() => return Err(missing()),
                Outcome::Found(_) => {}
            }
        }
        let found = occasion.found().filter(|found| self.lookup.may_exist(found));
        found.map(|found| found.pod).ok_or_else(missing)
    }

    /// A pod is new or has changed.
    pub(crate) fn pod_changed(&self, uid: &PodUid) {
        if self.grants.is_empty() {
            return;
        }
        self.decide_again(self.grants.of_pod(uid));
        // Pods that had its addresses before have lost them.
        for other in self.pods.sharing(uid) {
            self.decide_again(self.grants.of_pod(&other));
        }
    }

    /// A pod is gone or has ended.
    pub(crate) fn pod_gone(&self, uid: &PodUid) {
        self.lookup.pod_gone(uid);
        for granted in self.grants.take_pod(uid) {
            self.withdraw_push(&granted.claim);
        }
    }

    /// A list of all pods begins.
    pub(crate) fn pods_listing(&self) {
        self.lookup.pods_listing();
    }

    /// All pods were listed.
    pub(crate) fn pods_listed(&self) {
        self.lookup.pods_listed();
        self.decide_again(self.grants.all());
    }

    /// A Service has changed or is gone.
    pub(crate) fn service_changed(&self, id: &ServiceId) {
        self.decide_again(self.grants.of_service(id));
    }

    /// All Services were listed.
    pub(crate) fn services_listed(&self) {
        let changed = self.grants.all().into_iter().filter(|granted| {
            !self.service(&granted.claim.service).is_ok_and(|now| Arc::ptr_eq(&now, &granted.service))
        });
        self.decide_again(changed.collect());
    }

    /// Decides claims again, and withdraws the pushes of those that are not true any more.
    fn decide_again(&self, claims: Vec<Arc<GrantedClaim>>) {
        for granted in claims {
            let (claim, before) = (&granted.claim, granted.grant);
            let withdrawn = match self.settle(claim, Occasion::Changed(&granted)) {
                Err(_) => true,
                // Also if the claim was removed meanwhile: later changes would not find it.
                Ok(_) if is_applied(before) && !self.is_applied_for(claim) => true,
                // `not-ready` and `draining` of a pod that is being deleted stay. Only a `ready` that no slice confirms goes.
                Ok(grant) => grant.leaving && !before.leaving && self.is_ready_by_push(claim),
            };
            if withdrawn {
                self.withdraw_push(claim);
            }
        }
    }

    /// Whether a claim of this pod about this service stands: this one, or one that has replaced it.
    fn is_applied_for(&self, claim: &Claim) -> bool {
        self.grants
            .of_pod(&claim.uid)
            .iter()
            .any(|granted| granted.claim.service == claim.service && is_applied(granted.grant))
    }

    fn registered(&self, service: &ServiceId) -> Option<Arc<Service>> {
        self.attached.get()?.registry.upgrade()?.get(service)
    }

    /// Whether only its push makes the pod ready.
    fn is_ready_by_push(&self, claim: &Claim) -> bool {
        let Some(service) = self.registered(&claim.service) else { return false };
        let snapshot = Arc::clone(&service.snapshot());
        snapshot.ports.iter().flat_map(PortView::endpoints).any(|endpoint| {
            let is_it = endpoint.pod.as_ref().is_some_and(|pod| pod.uid == claim.uid);
            is_it && endpoint.state == State::Ready && endpoint.source == Source::Push
        })
    }

    fn withdraw_push(&self, claim: &Claim) {
        if let Some(service) = self.registered(&claim.service) {
            service.withdraw_push(&claim.uid);
        }
    }
}

impl Occasion<'_> {
    /// The pod, if it was looked up and found.
    fn found(self) -> Option<FoundPod> {
        match self {
            Self::Claimed(None) => None,
            Self::Claimed(Some(lookup)) => match lookup.outcome() {
                Outcome::Found(found) => Some(found),
                _ => None,
            },
            Self::Changed(granted) => granted.found.clone(),
        }
    }
}

fn unavailable(text: String) -> ClaimError {
    ClaimError::Unavailable(text)
}

impl Ownership for PushOwnership {
    fn check<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<ClaimGrant, ClaimError>> {
        Box::pin(async move {
            match self.grants.renew(claim, self.clock.now()) {
                Some(grant) => Ok(grant),
                None => self.decide_new(claim).await,
            }
        })
    }

    fn granted(&self, claim: &Claim) -> Option<ClaimGrant> {
        self.grants.get(claim).filter(|grant| is_applied(*grant))
    }
}
