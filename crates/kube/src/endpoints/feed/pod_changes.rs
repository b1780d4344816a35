//! Pod changes in the feed: admits endpoints whose pod was seen, removes endpoints whose address another pod has now, and
//! lists slices and pods again when they disagree.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rouse_core::endpoint::{Endpoint, PodRef, PodUid, ServiceId, SliceEndpoint};
use rouse_core::slices::selects;
use rouse_core::snapshot::PortView;
use tokio::sync::Notify;

use super::RegistryFeed;
use crate::endpoints::admission::Slices;
use crate::endpoints::endpoint_policy::Trust;
use crate::objects::service_summary::ServiceSummary;

impl RegistryFeed {
    /// Handles a new or changed pod. Returns whether slices had waited for it.
    pub(crate) fn pod_changed(&mut self, pod: &PodUid) -> bool {
        let inherited = self.admission.ownership.take_inherited(pod);
        if !inherited.is_empty() {
            self.evict(|ip| inherited.contains(&ip));
        }
        for id in self.unselecting(pod) {
            self.drop_unselected(&id, |uid| uid == pod);
        }
        let is_it =
            |endpoint: &SliceEndpoint| endpoint.pod.as_ref().is_some_and(|written| written.uid == *pod);
        let waits = |slices: &Slices| slices.values().any(|slice| slice.endpoints.iter().any(is_it));
        self.give_waiting(waits)
    }

    /// Handles a pod that is gone or has left an address. If its slice does not follow, slices are listed again later.
    pub(crate) fn pod_left(&mut self) {
        self.disagreements.departed = true;
        self.disagreements.changed.notify_one();
    }

    /// Removes endpoints whose address another pod has now. Their slices follow later.
    fn evict(&mut self, at: impl Fn(IpAddr) -> bool) {
        if self.admission.ownership.is_lost() {
            return;
        }
        let stranger = |endpoint: &SliceEndpoint| {
            let pod = endpoint.pod.as_ref().filter(|_| at(endpoint.ip));
            pod.is_some_and(|pod| self.admission.ownership.is_taken(&pod.uid, endpoint.ip))
        };
        let seen = |endpoint: &Endpoint| {
            let Some(pod) = &endpoint.pod else { return false };
            let mut ips = endpoint.addresses.iter().map(SocketAddr::ip);
            ips.any(|ip| at(ip) && self.admission.ownership.is_taken(&pod.uid, ip))
        };
        let mut evicted = false;
        for id in self.services.keys().filter(|id| self.declared(id) && self.trust(id) == Trust::Pods) {
            let Some(service) = self.registry.get(id) else { continue };
            let snapshot = Arc::clone(&service.snapshot());
            if snapshot.ports.iter().flat_map(PortView::endpoints).any(|endpoint| seen(endpoint)) {
                service.retain_endpoints(|endpoint| !stranger(endpoint));
                evicted = true;
            }
        }
        // The slices of these endpoints are not kept here. They are needed if the address comes back.
        if evicted {
            self.request_relist();
        }
    }

    /// The Services of the pod's namespace that select their pods by annotation, and not this one.
    fn unselecting(&self, pod: &PodUid) -> Vec<ServiceId> {
        let Some(pod) = self.admission.ownership.pod(pod) else { return Vec::new() };
        let unselecting = self.annotated.iter().filter(|id| {
            let selector = self.facts(id).and_then(ServiceSummary::selector_of_own_slices);
            pod.is_of(id.namespace()) && selector.is_some_and(|selector| !selects(selector, &pod.labels))
        });
        unselecting.cloned().collect()
    }

    /// Removes the endpoints of a Service whose pods its annotation does not select any more, among the pods that `may` be
    /// such. Their slices follow later.
    pub(super) fn drop_unselected(&mut self, id: &ServiceId, may: impl Fn(&PodUid) -> bool) {
        if self.admission.ownership.is_lost() || !self.declared(id) || self.trust(id) != Trust::Pods {
            return;
        }
        let (Some(facts), Some(service)) = (self.facts(id), self.registry.get(id)) else { return };
        let selected = |pod: &Option<PodRef>| {
            let pod = pod.as_ref().filter(|pod| may(&pod.uid));
            pod.is_none_or(|pod| self.admission.may_be_selected(facts, &pod.uid))
        };
        let snapshot = Arc::clone(&service.snapshot());
        if snapshot.ports.iter().flat_map(PortView::endpoints).all(|endpoint| selected(&endpoint.pod)) {
            return;
        }
        service.retain_endpoints(|endpoint| selected(&endpoint.pod));
        // Slices whose endpoints were all admitted are not kept here. They are needed if the pod is selected again.
        self.request_relist();
    }

    /// A list of pods begins.
    pub(crate) fn pods_listing(&mut self) {
        self.admission.ownership.pods_listing();
    }

    /// All pods were listed.
    pub(crate) fn pods_seen(&mut self) {
        self.admission.ownership.pods_listed();
        self.evict(|_| true);
        for id in self.annotated.iter().cloned().collect::<Vec<_>>() {
            self.drop_unselected(&id, |_| true);
        }
        self.pod_left();
        self.give_waiting(|_| true);
    }

    /// Sets whether pods cannot be watched.
    pub(crate) fn set_pods_lost(&mut self, lost: bool) {
        let before = self.admission.ownership.is_clear();
        self.admission.ownership.set_lost(lost);
        if self.admission.ownership.is_clear() != before {
            self.give_waiting(|_| true);
        }
    }

    /// Notified when there may be something for [`RegistryFeed::settle_disagreements`], a while later.
    pub(crate) fn disagreements(&self) -> Arc<Notify> {
        Arc::clone(&self.disagreements.changed)
    }

    /// Lists all pods again if endpoints still wait for theirs, and all slices if endpoints have lost theirs. Returns
    /// whether it did: its caller limits how often, since a tenant who writes such a slice could cause lists without end.
    pub(crate) fn settle_disagreements(&mut self) -> bool {
        if !self.admission.ownership.is_clear() {
            return false;
        }
        let departed = std::mem::take(&mut self.disagreements.departed) && self.has_strangers();
        if departed {
            self.request_relist();
        }
        let missed: HashSet<PodUid> =
            self.kept.iter().flat_map(|(id, slices)| self.missed(id, slices)).collect();
        let news = !missed.is_subset(&self.disagreements.asked_for);
        if news {
            self.admission.ownership.ask_again();
        }
        self.disagreements.asked_for = missed;
        departed || news
    }

    /// The pods that these slices name and the index does not have.
    fn missed<'a>(&'a self, id: &'a ServiceId, slices: &'a Slices) -> impl Iterator<Item = PodUid> + 'a {
        let waits = self.declared(id) && self.trust(id) == Trust::Pods;
        let endpoints = slices.values().filter(move |_| waits).flat_map(|slice| &slice.endpoints);
        endpoints
            .filter(|endpoint| !self.admission.decide(self.facts(id), endpoint).is_final)
            .filter_map(|endpoint| endpoint.pod.as_ref().map(|pod| pod.uid.clone()))
    }

    /// Whether the registry has endpoints whose pod does not exist any more.
    fn has_strangers(&self) -> bool {
        self.services.keys().filter(|id| self.declared(id) && self.trust(id) == Trust::Pods).any(|id| {
            let Some(service) = self.registry.get(id) else { return false };
            let snapshot = service.snapshot();
            let mut endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
            endpoints.any(|endpoint| {
                let Some(pod) = &endpoint.pod else { return true };
                let mut ips = endpoint.addresses.iter().map(SocketAddr::ip);
                !ips.all(|ip| self.admission.ownership.knows(id.namespace(), &pod.uid, ip))
            })
        })
    }

    fn give_waiting(&mut self, waits: impl Fn(&Slices) -> bool) -> bool {
        let waiting = self.kept.iter().filter(|(id, slices)| self.declared(id) && waits(slices));
        let waiting: Vec<ServiceId> = waiting.map(|(id, _)| id.clone()).collect();
        for id in &waiting {
            self.give_kept(id);
        }
        !waiting.is_empty()
    }
}
