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
            probes: pod.probe_spec(),
            labels: pod.metadata.labels,
        })
    }
}

impl Pods {
    /// The pod, if it is known.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodFacts>> {
        self.by_uid.read().unwrap_or_else(PoisonError::into_inner).get(uid).map(Arc::clone)
    }

    /// How to ask whether the pod is ready, if its spec is known and can be asked from outside (rule 8).
    /// `port` is the number of the service's port on that pod.
    pub fn plan(&self, uid: &PodUid, port: u16, allow_tcp: bool) -> Option<Arc<ProbePlan>> {
        let pod = self.get(uid)?;
        ProbePlan::new(&pod.probes, port, allow_tcp).ok().map(Arc::new)
    }

    pub(crate) fn put(&self, pod: PodSeen) {
        let mut by_uid = self.by_uid.write().unwrap_or_else(PoisonError::into_inner);
        match (pod.facts, pod.uid) {
            (Some(facts), _) => {
                // Most changes of a pod change nothing that we keep.
                if by_uid.get(&facts.uid).is_none_or(|known| **known != facts) {
                    by_uid.insert(facts.uid.clone(), Arc::new(facts));
                }
            }
            (None, Some(uid)) => drop(by_uid.remove(&uid)),
            (None, None) => {}
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
