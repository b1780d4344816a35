//! Keeps the Pods, Services, Nodes and slices of the input as the core's data types.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use rouse_core::slices::{self as core, EndpointSlice, Labels, MANAGED_BY, MANAGER, Nodes, selects};
use rouse_kube::objects::slices::{SELECTOR_ANNOTATION, Selector, from_kubernetes};
use rouse_kube::objects::{self, Node};

use super::super::notes::Notes;

/// The objects of the input.
#[derive(Debug, Default)]
pub(super) struct Scene {
    pods: Vec<core::Pod>,
    nodes: Nodes,
    services: Vec<(core::ServiceFacts, Labels)>,
    /// The slices that Rouse manages, by namespace and Service.
    slices: HashMap<(String, String), Vec<EndpointSlice>>,
    /// Names of all slices, of any manager: a new slice must not take one of these.
    slice_names: HashSet<(String, String)>,
    /// How many slices other managers have, by manager.
    foreign: BTreeMap<String, usize>,
    in_tree: usize,
    without_pods: usize,
}

impl Scene {
    pub(super) fn pod(&mut self, pod: objects::Pod, notes: &mut Notes) {
        for bad in
            pod.status.pod_ips.iter().filter(|ip| !ip.ip.is_empty() && ip.ip.parse::<IpAddr>().is_err())
        {
            let (namespace, name) = (pod.metadata.namespace(), &pod.metadata.name);
            notes.warn(format!("Pod {namespace}/{name}: {:?} is not an IP address and is left out", bad.ip));
        }
        self.pods.push(pod.into());
    }

    pub(super) fn node(&mut self, node: &Node) {
        self.nodes.insert(node.metadata.name.as_str().into(), node.into());
    }

    pub(super) fn service(&mut self, service: objects::Service, notes: &mut Notes) {
        let name = format!("{}/{}", service.metadata.namespace(), service.metadata.name);
        let labels = match service.selector() {
            Ok(Selector::Ours(labels)) => labels,
            Ok(Selector::InTree(labels)) => {
                self.in_tree += 1;
                if service.metadata.annotations.contains_key(SELECTOR_ANNOTATION) {
                    notes.warn(format!(
                        "Service {name}: {SELECTOR_ANNOTATION} is ignored, because the Service has a selector"
                    ));
                }
                labels
            }
            Ok(Selector::None) => {
                self.without_pods += 1;
                return;
            }
            Err(error) => {
                notes.warn(format!("Service {name} is left out: annotation {SELECTOR_ANNOTATION}: {error}"));
                return;
            }
        };
        match core::ServiceFacts::try_from(service) {
            Ok(service) => self.services.push((service, labels)),
            Err(error) => notes.warn(format!("Service {name} is left out: {error}")),
        }
    }

    pub(super) fn slice(&mut self, slice: objects::EndpointSlice) {
        let namespace = slice.metadata.namespace().to_owned();
        self.slice_names.insert((namespace.clone(), slice.metadata.name.clone()));
        let manager = slice.metadata.labels.get(MANAGED_BY).map(String::as_str);
        if manager != Some(MANAGER) {
            *self.foreign.entry(manager.unwrap_or("an unknown manager").to_owned()).or_default() += 1;
            return;
        }
        let Some(service) = slice.service_name().map(str::to_owned) else { return };
        // A slice that is being deleted counts as deleted.
        if slice.metadata.deletion_timestamp.is_none()
            && let Some(slice) = from_kubernetes(slice)
        {
            self.slices.entry((namespace, service)).or_default().push(slice);
        }
    }

    /// The Services that get slices, in the order read, each with the labels of its pods.
    pub(super) fn services(&self) -> impl Iterator<Item = (&core::ServiceFacts, &Labels)> {
        self.services.iter().map(|(service, labels)| (service, labels))
    }

    pub(super) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The slices of `service` that Rouse manages.
    pub(super) fn slices_of(&self, service: &core::ServiceFacts) -> &[EndpointSlice] {
        let key = (service.id.namespace().to_owned(), service.id.name().to_owned());
        self.slices.get(&key).map(Vec::as_slice).unwrap_or_default()
    }

    /// Namespace and name of every slice, of any manager.
    pub(super) fn slice_names(&self) -> HashSet<(String, String)> {
        self.slice_names.clone()
    }

    /// The pods, found by any of their labels.
    pub(super) fn pods_by_label(&self) -> PodsByLabel<'_> {
        let mut index: HashMap<_, Vec<_>> = HashMap::new();
        for pod in &self.pods {
            for (key, value) in &pod.labels {
                index.entry((&*pod.namespace, key.as_str(), value.as_str())).or_default().push(pod);
            }
        }
        PodsByLabel(index)
    }

    /// Adds notes about objects that are not shown, or shown for information only.
    pub(super) fn remark(&self, notes: &mut Notes) {
        for (manager, count) in &self.foreign {
            notes.note(format!(
                "managed by {manager}: {}; ignored and not shown",
                counted(*count, "EndpointSlice")
            ));
        }
        if self.in_tree > 0 {
            notes.note(format!(
                "with a selector: {}; in a cluster Kubernetes' own controller writes their slices; the output follows the \
                 same rules",
                counted(self.in_tree, "Service")
            ));
        }
        if self.without_pods > 0 {
            notes.note(format!(
                "ExternalName, or with neither a selector nor the annotation {SELECTOR_ANNOTATION}: {}; they get no slices",
                counted(self.without_pods, "Service")
            ));
        }
        let of =
            |service: &core::ServiceFacts| (service.id.namespace().to_owned(), service.id.name().to_owned());
        let known: HashSet<_> = self.services().map(|(service, _)| of(service)).collect();
        let orphans: usize =
            self.slices.iter().filter(|(key, _)| !known.contains(*key)).map(|(_, s)| s.len()).sum();
        if orphans > 0 {
            notes.note(format!(
                "{orphans} of our EndpointSlices belong to no Service that gets slices: not shown"
            ));
        }
        if self.services.is_empty() {
            notes.note("no Service in the input gets slices");
        }
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Pods by namespace and label: comparing every pod with every Service would take minutes for a large cluster.
pub(super) struct PodsByLabel<'s>(HashMap<(&'s str, &'s str, &'s str), Vec<&'s core::Pod>>);

impl<'s> PodsByLabel<'s> {
    /// The pods of `service` that have all `labels`.
    pub(super) fn selected<'a>(
        &'a self,
        service: &'a core::ServiceFacts,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'s core::Pod> + 'a {
        let with = |(key, value): (&'a String, &'a String)| {
            self.0
                .get(&(service.id.namespace(), key.as_str(), value.as_str()))
                .map(Vec::as_slice)
                .unwrap_or_default()
        };
        let fewest = labels.iter().map(with).min_by_key(|pods| pods.len()).unwrap_or_default();
        fewest.iter().copied().filter(|pod| selects(labels, &pod.labels))
    }
}
