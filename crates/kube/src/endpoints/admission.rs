//! Decides which endpoints of a Service's slices get traffic.

use std::collections::BTreeMap;

use rouse_core::endpoint::{PodUid, Slice, SliceEndpoint};
use rouse_core::slices::selects;

use super::blocked_cluster_ips::Refusal;
use super::endpoint_policy::{EndpointPolicy, Trust};
use super::ownership::OwnershipCheck;
use crate::objects::service_summary::ServiceSummary;

/// The slices of one service by name.
pub(super) type Slices = BTreeMap<String, Slice>;

/// Decides which endpoints get traffic, by the operator's policy and by the pods that exist at their addresses.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) ownership: OwnershipCheck,
    pub(super) policy: EndpointPolicy,
}

/// The decision about one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Whether it gets traffic.
    pub(super) admitted: bool,
    /// False: the whole slice is kept, since the decision may change when more pods are seen, or the endpoint is refused.
    pub(super) is_final: bool,
}

impl Admission {
    pub(super) fn trust(&self, service: Option<&ServiceSummary>) -> Trust {
        match service {
            Some(facts) if self.policy.allows_manual(facts) => Trust::All,
            Some(facts) if facts.has_selector() => Trust::Pods,
            _ => Trust::None,
        }
    }

    pub(super) fn decide(&self, service: Option<&ServiceSummary>, endpoint: &SliceEndpoint) -> Verdict {
        match (self.trust(service), service, &endpoint.pod) {
            (Trust::All, ..) => Verdict { admitted: true, is_final: true },
            (Trust::Pods, Some(service), Some(pod)) => {
                let selected = self.may_be_selected(service, &pod.uid);
                let known = selected && self.ownership.knows(service.id.namespace(), &pod.uid, endpoint.ip);
                let believed =
                    (selected || self.ownership.is_lost()) && self.ownership.believes(&pod.uid, endpoint.ip);
                Verdict { admitted: known || believed, is_final: known }
            }
            _ => Verdict { admitted: false, is_final: false },
        }
    }

    /// Whether the annotation that names the pods of `service` selects this pod, as far as the pod is known. Without this
    /// check, a slice with the label of Rouse could name every pod of the namespace. A selector of the Service itself is
    /// not checked: Kubernetes' own controller applies it.
    pub(super) fn may_be_selected(&self, service: &ServiceSummary, pod: &PodUid) -> bool {
        let Some(selector) = service.selector_of_own_slices() else { return true };
        self.ownership.pod(pod).is_none_or(|pod| selects(selector, &pod.labels))
    }

    /// Removes the endpoints from `slice` that get no traffic. If that may change when more pods are seen, or if an
    /// endpoint is refused, returns the whole slice, which the caller must keep.
    pub(super) fn reduce(&self, service: Option<&ServiceSummary>, slice: &mut Slice) -> Option<Slice> {
        let (ports, trusts_all) = (numbers(slice), self.trust(service) == Trust::All);
        let is_reachable = |endpoint: &SliceEndpoint| self.policy.is_reachable_address(endpoint.ip, &ports);
        let is_final = slice.endpoints.iter().all(|endpoint| {
            self.decide(service, endpoint).is_final && (trusts_all || is_reachable(endpoint))
        });
        let whole = (!is_final).then(|| slice.clone());
        if whole.is_some() {
            slice.endpoints.retain(|endpoint| self.decide(service, endpoint).admitted);
        }
        slice.endpoints.retain(is_reachable);
        whole
    }

    /// The most serious refusal among the endpoints of these slices, if any is refused.
    pub(super) fn worst_refusal(&self, service: &ServiceSummary, slices: &Slices) -> Option<Refusal> {
        let refusals = slices.values().flat_map(|slice| {
            let ports = numbers(slice);
            slice.endpoints.iter().filter_map(move |endpoint| self.refusal(service, endpoint, &ports))
        });
        refusals.max()
    }

    /// Why an endpoint gets no traffic, if it gets none.
    fn refusal(&self, service: &ServiceSummary, endpoint: &SliceEndpoint, ports: &[u16]) -> Option<Refusal> {
        let trust = self.trust(Some(service));
        if trust == Trust::All {
            return None;
        }
        if !self.policy.is_reachable_address(endpoint.ip, ports) {
            return Some(Refusal::Foreign);
        }
        if self.decide(Some(service), endpoint).admitted {
            return None;
        }
        let pod = endpoint.pod.as_ref().filter(|_| trust == Trust::Pods);
        let namespace = service.id.namespace();
        let late = pod.is_some_and(|pod| self.ownership.may_come(namespace, pod, endpoint.ip));
        Some(if late { Refusal::Unseen } else { Refusal::Foreign })
    }
}

fn numbers(slice: &Slice) -> Vec<u16> {
    slice.ports.iter().map(|port| port.number).collect()
}
