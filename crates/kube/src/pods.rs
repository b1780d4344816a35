//! Pods, reduced to what probing and registration need, found by their UID.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use rouse_core::endpoint::PodUid;
use rouse_core::probe::{ProbePlan, ProbeSpec};
use serde::Deserialize;

use crate::objects::Pod;

/// A pod.
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
    /// Where it runs, once that is decided.
    pub node: Arc<str>,
    /// How its readiness may be asked.
    pub probes: ProbeSpec,
}

/// A pod, reduced while it is read.
#[derive(Debug, Deserialize)]
#[serde(from = "Pod")]
pub(crate) struct PodSeen {
    uid: Option<PodUid>,
    facts: Option<PodFacts>,
}

impl From<Pod> for PodSeen {
    fn from(pod: Pod) -> Self {
        Self { uid: pod.metadata.uid.as_deref().map(PodUid::new), facts: PodFacts::new(pod) }
    }
}

/// What came of a pod that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// Nothing that we keep.
    Same,
    /// It is new, or something of it is.
    Changed,
    /// It is not where it was any more.
    Left,
}

/// All pods.
#[derive(Debug, Default)]
pub struct Pods {
    by_uid: RwLock<HashMap<PodUid, Arc<PodFacts>>>,
}

impl PodFacts {
    /// What is kept of `pod`; `None` if it has no UID or has ended.
    pub fn new(pod: Pod) -> Option<Self> {
        let uid = pod.metadata.uid.as_deref().filter(|uid| !uid.is_empty()).map(PodUid::new)?;
        if matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return None;
        }
        Some(Self {
            uid,
            name: format!("{}/{}", pod.metadata.namespace(), pod.metadata.name).into(),
            ips: pod.status.pod_ips.iter().filter_map(|ip| ip.ip.parse().ok()).collect(),
            node: pod.spec.node_name.as_deref().unwrap_or_default().into(),
            probes: pod.probe_spec(),
            labels: pod.metadata.labels,
        })
    }

    fn is_of(&self, namespace: &str) -> bool {
        self.name.strip_prefix(namespace).is_some_and(|rest| rest.starts_with('/'))
    }
}

impl PodSeen {
    /// Which pod, if it is worth keeping.
    pub(crate) fn uid(&self) -> Option<&PodUid> {
        self.facts.as_ref().map(|facts| &facts.uid)
    }
}

impl Pods {
    /// The pod, if it is known.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodFacts>> {
        self.by_uid.read().unwrap_or_else(PoisonError::into_inner).get(uid).map(Arc::clone)
    }

    /// Whether this is a pod of `namespace`, and its own address.
    pub fn has(&self, namespace: &str, uid: &PodUid, ip: IpAddr) -> bool {
        self.get(uid).is_some_and(|pod| pod.is_of(namespace) && pod.ips.contains(&ip))
    }

    /// How to ask whether the pod is ready, and on which node it is, if its spec is known and can be asked from outside (rule 8).
    /// `ips` is where: all of them the pod's own, or whoever wrote a slice would have us ask others. `port` is the number of
    /// the service's port on that pod.
    pub fn plan(
        &self,
        uid: &PodUid,
        ips: &[IpAddr],
        port: u16,
        allow_tcp: bool,
    ) -> Option<(Arc<ProbePlan>, Arc<str>)> {
        let pod = self.get(uid).filter(|pod| ips.iter().all(|ip| pod.ips.contains(ip)))?;
        let plan = ProbePlan::new(&pod.probes, port, allow_tcp).ok()?;
        Some((Arc::new(plan), Arc::clone(&pod.node)))
    }

    /// Answers what came of it.
    pub(crate) fn put(&self, pod: PodSeen) -> Put {
        let mut by_uid = self.by_uid.write().unwrap_or_else(PoisonError::into_inner);
        match (pod.facts, pod.uid) {
            (Some(facts), _) => {
                // Most changes of a pod change nothing that we keep.
                let known = by_uid.get(&facts.uid);
                if known.is_some_and(|known| **known == facts) {
                    return Put::Same;
                }
                let left = known.is_some_and(|known| known.ips.iter().any(|ip| !facts.ips.contains(ip)));
                by_uid.insert(facts.uid.clone(), Arc::new(facts));
                if left { Put::Left } else { Put::Changed }
            }
            (None, Some(uid)) => by_uid.remove(&uid).map_or(Put::Same, |_| Put::Left),
            (None, None) => Put::Same,
        }
    }

    pub(crate) fn remove(&self, pod: &PodSeen) {
        if let Some(uid) = &pod.uid {
            self.by_uid.write().unwrap_or_else(PoisonError::into_inner).remove(uid);
        }
    }

    pub(crate) fn replace(&self, all: Vec<PodSeen>) {
        let all =
            all.into_iter().filter_map(|pod| pod.facts).map(|facts| (facts.uid.clone(), Arc::new(facts)));
        let all = all.collect();
        *self.by_uid.write().unwrap_or_else(PoisonError::into_inner) = all;
    }
}
