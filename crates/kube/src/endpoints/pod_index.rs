//! The index of all pods by UID and by address, reduced to what probes and the ownership checks need.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rouse_core::endpoint::PodUid;
use rouse_core::probe::{ProbePlan, ProbeSpec};
use rouse_core::slices::{ContainerPort, Protocol, selects};
use serde::Deserialize;

use super::propagation::PodTimes;
use crate::objects::Pod;
use crate::objects::slices::container_ports;

/// A pod, reduced to what the index keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// The incarnation.
    pub uid: PodUid,
    /// `namespace/name`.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its addresses, at most one per family.
    pub ips: Vec<IpAddr>,
    /// The node that it runs on; empty until it is scheduled.
    pub node: Arc<str>,
    /// Its readiness and startup probes.
    pub probes: ProbeSpec,
    /// The named TCP ports of the containers that run as long as it does. A Service may refer to them by name.
    pub ports: Vec<ContainerPort>,
    /// The name of its `ServiceAccount`.
    pub service_account: Arc<str>,
    /// Whether it uses the addresses of its node, which other pods may share.
    pub host_network: bool,
    /// Decides which of two pods with the same address owns it: the one that is not being deleted, then the newer one.
    standing: Standing,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    /// Whether it is not being deleted.
    stays: bool,
    /// When it was created, as text. The API server writes all times in one format, so the texts are ordered.
    created: String,
}

/// A pod from the watch, reduced while it is parsed.
#[derive(Debug, Deserialize)]
#[serde(from = "Pod")]
pub(crate) struct PodUpdate {
    uid: Option<PodUid>,
    times: PodTimes,
    facts: Option<PodFacts>,
}

impl From<Pod> for PodUpdate {
    fn from(pod: Pod) -> Self {
        let (uid, times) = (pod.metadata.uid.as_deref().map(PodUid::new), times(&pod));
        Self { uid, times, facts: PodFacts::new(pod) }
    }
}

fn times(pod: &Pod) -> PodTimes {
    let seconds = |text: Option<&str>| {
        let time = text?.parse::<k8s_openapi::jiff::Timestamp>().ok()?;
        u64::try_from(time.as_second()).ok()
    };
    let ready = pod.ready_condition().filter(|ready| ready.status == "True");
    let deleted = seconds(pod.metadata.deletion_timestamp.as_deref());
    // The timestamp is the end of the grace period.
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
    PodTimes {
        ready: seconds(ready.and_then(|ready| ready.last_transition_time.as_deref())),
        terminating: deleted.map(|at| at.saturating_sub(grace)),
    }
}

/// How an update of a pod has changed the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodChange {
    /// Nothing that the index keeps has changed.
    Same,
    /// The pod is new or has changed.
    Changed,
    /// The pod is gone or has left an address.
    Left,
}

/// The most addresses of departed pods that are remembered.
const LEFT: usize = 65_536;

/// The index of all pods.
#[derive(Debug, Default)]
pub struct PodIndex(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    by_uid: HashMap<PodUid, Arc<PodFacts>>,
    /// The pods at an address. Those on the network of their node are not counted: they share it.
    by_ip: HashMap<IpAddr, Vec<PodUid>>,
    /// Addresses that pods have left, and that slices may still name.
    left: HashSet<IpAddr>,
}

impl Known {
    fn insert(&mut self, facts: PodFacts) {
        for ip in facts.ips.iter().filter(|_| !facts.host_network) {
            self.by_ip.entry(*ip).or_default().push(facts.uid.clone());
        }
        self.by_uid.insert(facts.uid.clone(), Arc::new(facts));
    }

    /// Removes a pod. `stays` are addresses that it keeps.
    fn remove(&mut self, uid: &PodUid, stays: &[IpAddr]) -> Option<Arc<PodFacts>> {
        let gone = self.by_uid.remove(uid)?;
        for ip in &gone.ips {
            if let Some(there) = self.by_ip.get_mut(ip) {
                there.retain(|other| other != uid);
                if there.is_empty() {
                    self.by_ip.remove(ip);
                }
            }
        }
        if self.left.len() < LEFT {
            self.left.extend(gone.ips.iter().filter(|ip| !stays.contains(ip)));
        }
        Some(gone)
    }

    /// Whether `ip` is now the address of another pod than `uid`.
    fn is_taken(&self, uid: &PodUid, ip: IpAddr) -> bool {
        let pod = self.by_uid.get(uid).filter(|pod| pod.ips.contains(&ip));
        pod.map_or_else(|| self.others(uid, ip).next().is_some(), |pod| self.is_taken_from(pod, ip))
    }

    /// Whether `ip`, an address of `pod`, is now that of a pod that has more right to it.
    fn is_taken_from(&self, pod: &PodFacts, ip: IpAddr) -> bool {
        let newer = |other: &Arc<PodFacts>| (&other.standing, &other.uid) > (&pod.standing, &pod.uid);
        !pod.host_network && self.others(&pod.uid, ip).any(newer)
    }

    /// The pods at `ip` besides `uid`.
    fn others<'a>(&'a self, uid: &'a PodUid, ip: IpAddr) -> impl Iterator<Item = &'a Arc<PodFacts>> {
        let others = self.by_ip.get(&ip).into_iter().flatten().filter(move |other| *other != uid);
        others.filter_map(|other| self.by_uid.get(other))
    }
}

impl PodFacts {
    /// What is kept of `pod`; `None` if it has no UID or has ended.
    pub fn new(pod: Pod) -> Option<Self> {
        let uid = pod.metadata.uid.as_deref().filter(|uid| !uid.is_empty()).map(PodUid::new)?;
        if pod.has_ended() {
            return None;
        }
        // A Service that names a port by number needs no container port.
        let ports = pod.lasting_containers().flat_map(container_ports);
        let ports = ports.filter(|port| !port.name.is_empty() && port.protocol == Protocol::Tcp);
        Some(Self {
            uid,
            name: format!("{}/{}", pod.metadata.namespace(), pod.metadata.name).into(),
            ips: pod.status.pod_ips.iter().filter_map(|ip| ip.ip.parse().ok()).collect(),
            node: pod.spec.node_name.as_deref().unwrap_or_default().into(),
            probes: pod.probe_spec(),
            ports: ports.collect(),
            service_account: pod.service_account().into(),
            host_network: pod.spec.host_network,
            standing: Standing {
                stays: pod.metadata.deletion_timestamp.is_none(),
                created: pod.metadata.creation_timestamp.clone().unwrap_or_default(),
            },
            labels: pod.metadata.labels,
        })
    }

    /// Whether it is being deleted.
    pub fn is_leaving(&self) -> bool {
        !self.standing.stays
    }

    /// Whether it is a pod of this namespace.
    pub(super) fn is_of(&self, namespace: &str) -> bool {
        self.name.strip_prefix(namespace).is_some_and(|rest| rest.starts_with('/'))
    }
}

impl PodUpdate {
    /// The UID of the pod, if the index keeps the pod.
    pub(crate) fn uid(&self) -> Option<&PodUid> {
        self.facts.as_ref().map(|facts| &facts.uid)
    }

    /// When it became ready, and when its deletion was requested.
    pub(super) fn times(&self) -> PodTimes {
        self.times
    }

    /// The UID of the pod, also if it has ended.
    pub(crate) fn any_uid(&self) -> Option<&PodUid> {
        self.uid.as_ref()
    }

    /// What the index keeps of the pod; `None` if it has ended.
    pub(crate) fn into_facts(self) -> Option<PodFacts> {
        self.facts
    }
}

impl PodIndex {
    /// The pod, if it is known.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodFacts>> {
        self.read().by_uid.get(uid).map(Arc::clone)
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `uid` is a pod of `namespace`, and `ip` is its address.
    pub fn has(&self, namespace: &str, uid: &PodUid, ip: IpAddr) -> bool {
        let known = self.read();
        let pod = known.by_uid.get(uid).filter(|pod| pod.is_of(namespace) && pod.ips.contains(&ip));
        pod.is_some() && !known.is_taken(uid, ip)
    }

    /// Whether this is a pod of another namespace than `namespace`.
    pub(crate) fn is_foreign(&self, namespace: &str, uid: &PodUid) -> bool {
        self.read().by_uid.get(uid).is_some_and(|pod| !pod.is_of(namespace))
    }

    /// Whether `ip` is now the address of another pod than `uid`.
    pub(crate) fn is_taken(&self, uid: &PodUid, ip: IpAddr) -> bool {
        self.read().is_taken(uid, ip)
    }

    /// The addresses of `pod` that are now those of a pod that has more right to them. `pod` need not be in the index.
    pub(crate) fn taken_from(&self, pod: &PodFacts) -> Vec<IpAddr> {
        let known = self.read();
        pod.ips.iter().filter(|ip| known.is_taken_from(pod, **ip)).copied().collect()
    }

    /// The other pods that have an address of `uid`, unless they share it as pods of the node's network do.
    pub(crate) fn sharing(&self, uid: &PodUid) -> Vec<PodUid> {
        let known = self.read();
        let Some(pod) = known.by_uid.get(uid).filter(|pod| !pod.host_network) else { return Vec::new() };
        pod.ips.iter().flat_map(|ip| known.others(uid, *ip)).map(|other| other.uid.clone()).collect()
    }

    /// The addresses of a pod that another pod had before: slices may still name that one. Each is returned once.
    pub(crate) fn take_inherited(&self, uid: &PodUid) -> Vec<IpAddr> {
        let known = &mut *self.write();
        let Some(pod) = known.by_uid.get(uid).filter(|pod| !pod.host_network) else { return Vec::new() };
        let shared = |ip: &IpAddr| known.by_ip.get(ip).is_some_and(|there| there.len() > 1);
        pod.ips.iter().filter(|ip| known.left.remove(ip) || shared(ip)).copied().collect()
    }

    /// Forgets the addresses that pods have left: slices were listed since.
    pub(crate) fn forget_left(&self) {
        self.write().left.clear();
    }

    /// How many pods of `namespace` have all labels of `selector` and are not being deleted. An empty selector has none.
    pub(crate) fn selected(&self, namespace: &str, selector: &BTreeMap<String, String>) -> u32 {
        let fits = |pod: &&Arc<PodFacts>| {
            !pod.is_leaving() && pod.is_of(namespace) && selects(selector, &pod.labels)
        };
        let count = self.read().by_uid.values().filter(fits).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// How to ask whether the pod is ready, and on which node it is, if its spec is known and can be asked from outside (rule 8).
    /// `ips` must all be addresses of the pod: otherwise a slice could make the gateway probe other pods. `port` is the number of
    /// the service's port on that pod.
    pub fn plan(
        &self,
        uid: &PodUid,
        ips: &[IpAddr],
        port: u16,
        allow_tcp: bool,
    ) -> Option<(Arc<ProbePlan>, Arc<str>)> {
        let pod = self.get(uid)?;
        if !ips.iter().all(|ip| pod.ips.contains(ip) && !self.is_taken(uid, *ip)) {
            return None;
        }
        let plan = ProbePlan::new(&pod.probes, port, allow_tcp).ok()?;
        Some((Arc::new(plan), Arc::clone(&pod.node)))
    }

    /// Adds or replaces a pod.
    pub(crate) fn put(&self, pod: PodUpdate) -> PodChange {
        let mut known = self.write();
        match (pod.facts, pod.uid) {
            (Some(facts), _) => {
                let before = known.by_uid.get(&facts.uid);
                // Most updates of a pod change nothing that the index keeps.
                if before.is_some_and(|before| **before == facts) {
                    return PodChange::Same;
                }
                let left = before.is_some_and(|before| before.ips.iter().any(|ip| !facts.ips.contains(ip)));
                known.remove(&facts.uid, &facts.ips);
                known.insert(facts);
                if left { PodChange::Left } else { PodChange::Changed }
            }
            (None, Some(uid)) => known.remove(&uid, &[]).map_or(PodChange::Same, |_| PodChange::Left),
            (None, None) => PodChange::Same,
        }
    }

    pub(crate) fn remove(&self, pod: &PodUpdate) {
        if let Some(uid) = &pod.uid {
            self.write().remove(uid, &[]);
        }
    }

    pub(crate) fn replace(&self, all: Vec<PodUpdate>) {
        let mut fresh = Known::default();
        for facts in all.into_iter().filter_map(|pod| pod.facts) {
            fresh.insert(facts);
        }
        *self.write() = fresh;
    }
}
