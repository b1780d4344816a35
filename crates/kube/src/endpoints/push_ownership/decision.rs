//! Decides whether a claim of a pod about itself is true, by comparing it with the Pod and the Service. Pure: it reads no
//! state and sends no request.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rouse_core::endpoint::PortName;
use rouse_core::slices::{Labels, Protocol, selects};
use rouse_net::auth::{Claim, ClaimError, ClaimGrant};

use crate::endpoints::endpoint_policy::EndpointPolicy;
use crate::endpoints::pod_index::PodFacts;
use crate::objects::service_summary::{ServiceKind, ServiceSummary};
use crate::objects::slices::SELECTOR_ANNOTATION;

/// What a claim is compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Evidence<'a> {
    pub(super) pod: &'a PodFacts,
    pub(super) service: &'a ServiceSummary,
    /// The addresses of the pod that another pod has now.
    pub(super) taken: &'a [IpAddr],
    pub(super) policy: &'a EndpointPolicy,
    /// Whether pods on the network of their node may register.
    pub(super) host_network: bool,
}

/// Decides about one claim. `Denied` says what does not match and what would.
pub(super) fn decide(claim: &Claim, evidence: Evidence<'_>) -> Result<ClaimGrant, ClaimError> {
    let Evidence { pod, service, .. } = evidence;
    is_that_pod(claim, pod)?;
    is_selected(pod, service)?;
    if pod.host_network && !evidence.host_network {
        return denied(format!(
            "pod {} uses the network of its node (hostNetwork), and the gateway does not allow such pods to register",
            pod.name
        ));
    }
    owns_addresses(claim, evidence)?;
    has_ports(claim, pod, service)?;
    is_reachable(claim, evidence.policy)?;
    Ok(ClaimGrant { mode: service.push, leaving: pod.is_leaving(), host_network: pod.host_network })
}

fn denied<T>(text: String) -> Result<T, ClaimError> {
    Err(ClaimError::Denied(text))
}

/// The pod has the UID, the name, the namespace and the `ServiceAccount`.
fn is_that_pod(claim: &Claim, pod: &PodFacts) -> Result<(), ClaimError> {
    let namespace = claim.service.namespace();
    let named = pod.name.split_once('/').is_some_and(|name| name == (namespace, claim.pod.as_str()));
    if pod.uid != claim.uid || !named {
        return denied(other_uid(namespace, &claim.pod));
    }
    match &claim.service_account {
        Some(account) if **account != *pod.service_account => denied(format!(
            "pod {} has the ServiceAccount {:?}, and the credential is for {account:?}",
            pod.name, pod.service_account
        )),
        _ => Ok(()),
    }
}

/// The text for a UID that is not that of the named pod.
pub(super) fn other_uid(namespace: &str, pod: &str) -> String {
    format!("the UID is not that of a pod {pod} in namespace {namespace}")
}

/// The pod's labels match the selector of the Service.
fn is_selected(pod: &PodFacts, service: &ServiceSummary) -> Result<(), ClaimError> {
    let id = &service.id;
    if service.kind == ServiceKind::ExternalName {
        return denied(format!("Service {id} is of type ExternalName, which has no pods"));
    }
    let Some(selector) = service.pod_selector() else {
        return denied(format!(
            "Service {id} does not say which pods it has: it needs a selector or a valid annotation {SELECTOR_ANNOTATION} \
             (key=value,key2=value2)"
        ));
    };
    if selects(selector, &pod.labels) {
        return Ok(());
    }
    denied(format!(
        "the labels of pod {} do not match the selector of Service {id}: {}",
        pod.name,
        pairs(selector)
    ))
}

/// Every address of the claim is one of the pod's, and no other pod has it now.
fn owns_addresses(claim: &Claim, evidence: Evidence<'_>) -> Result<(), ClaimError> {
    let (pod, has) = (evidence.pod, list(&evidence.pod.ips));
    if pod.ips.is_empty() {
        return Err(ClaimError::TooEarly(format!("pod {} has no address yet; try again", pod.name)));
    }
    if claim.ips.is_empty() {
        return denied(format!("no address is named; pod {} has {has}", pod.name));
    }
    if let Some(ip) = claim.ips.iter().find(|ip| !pod.ips.contains(ip)) {
        return denied(format!("{ip} is not an address of pod {}, which has {has}", pod.name));
    }
    if let Some(ip) = claim.ips.iter().find(|ip| evidence.taken.contains(ip)) {
        return denied(format!("{ip} was an address of pod {}, and another pod has it now", pod.name));
    }
    Ok(())
}

/// The ports are those that the Service's target ports are on this pod.
fn has_ports(claim: &Claim, pod: &PodFacts, service: &ServiceSummary) -> Result<(), ClaimError> {
    let ports = ports(pod, service);
    if ports.is_empty() {
        return denied(format!("pod {} has no TCP port of Service {}", pod.name, service.id));
    }
    if claim.ports == ports {
        return Ok(());
    }
    let has: Vec<String> =
        ports.iter().map(|(name, number)| format!("{:?} {number}", name.as_str())).collect();
    let has = has.join(", ");
    denied(format!("the ports are not those of Service {} on pod {}: {has}", service.id, pod.name))
}

/// The TCP ports of the Service on this pod. A named target port that the pod does not have is left out, as in slices.
fn ports(pod: &PodFacts, service: &ServiceSummary) -> BTreeMap<PortName, u16> {
    let numbers = service.ports.iter().filter_map(|port| {
        let number = port.target.number(Protocol::Tcp, &pod.ports)?;
        Some((port.name.clone(), number))
    });
    numbers.collect()
}

/// No address is one that requests are never sent to.
fn is_reachable(claim: &Claim, policy: &EndpointPolicy) -> Result<(), ClaimError> {
    let ports: Vec<u16> = claim.ports.values().copied().collect();
    match claim.ips.iter().find(|ip| !policy.is_reachable_address(**ip, &ports)) {
        Some(ip) => denied(format!(
            "no requests are sent to {ip}: it is an address of the gateway itself, or a loopback, link-local or multicast \
             address"
        )),
        None => Ok(()),
    }
}

fn list(ips: &[IpAddr]) -> String {
    let ips: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    ips.join(", ")
}

fn pairs(labels: &Labels) -> String {
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}

#[cfg(test)]
mod tests;
