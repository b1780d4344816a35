//! The objects of the watches, reduced while they are parsed to what slices depend on.

use std::sync::Arc;

use rouse_core::endpoint::ServiceId;
use rouse_core::slices as core;
use rouse_core::slices::{Labels, MANAGED_BY, MANAGER, ServiceFacts};
use serde::Deserialize;

use crate::objects::slices::{SELECTOR_ANNOTATION, Selector, from_kubernetes};
use crate::objects::{EndpointSlice, Meta, Node, Pod, Service};

/// What a Service asks of us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Demand {
    /// Slices of the pods that its annotation selects.
    Slices(Arc<SelectedService>),
    /// Its annotation is invalid. Says what is wrong.
    Invalid(String),
    /// Nothing: it has a selector, so Kubernetes' own controller writes its slices.
    InTree,
    /// Nothing: it has no selector and no annotation, or it is a name for another host.
    Nothing,
}

/// A Service whose slices we write.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SelectedService {
    pub(super) facts: ServiceFacts,
    /// The labels of its pods.
    pub(super) selector: Labels,
    /// When it was created, as text.
    pub(super) created: Option<Box<str>>,
}

/// A Service.
#[derive(Debug, Deserialize)]
#[serde(from = "Service")]
pub(super) struct ServiceUpdate {
    /// `None` if its name is not one that the core accepts.
    pub(super) id: Option<ServiceId>,
    pub(super) demand: Demand,
}

impl From<Service> for ServiceUpdate {
    fn from(service: Service) -> Self {
        let id = service.metadata.service_id().ok();
        let created = service.metadata.creation_timestamp.as_deref().map(Into::into);
        let demand = match service.selector() {
            Ok(Selector::Ours(selector)) => match ServiceFacts::try_from(service) {
                Ok(facts) => Demand::Slices(Arc::new(SelectedService { facts, selector, created })),
                Err(error) => Demand::Invalid(error.to_string()),
            },
            Ok(Selector::InTree(_)) => Demand::InTree,
            Ok(Selector::None) => Demand::Nothing,
            Err(error) => Demand::Invalid(format!("annotation {SELECTOR_ANNOTATION}: {error}")),
        };
        Self { id, demand }
    }
}

/// A pod that the cache has.
#[derive(Debug)]
pub(super) struct SeenPod {
    /// The pod without its labels.
    pub(super) pod: core::Pod,
    pub(super) labels: Labels,
    /// When its Ready condition last changed, as text.
    pub(super) ready_changed: Option<Box<str>>,
    /// The number of that change.
    pub(super) transition: u64,
}

/// A pod of the watch.
#[derive(Debug, Deserialize)]
#[serde(from = "Pod")]
pub(super) struct PodUpdate {
    /// The pod without its labels.
    pub(super) pod: core::Pod,
    pub(super) labels: Labels,
    pub(super) ready_changed: Option<Box<str>>,
}

impl From<Pod> for PodUpdate {
    fn from(pod: Pod) -> Self {
        let changed = pod.ready_condition().and_then(|ready| ready.last_transition_time.as_deref());
        let ready_changed = changed.map(Into::into);
        let mut pod: core::Pod = pod.into();
        Self { labels: std::mem::take(&mut pod.labels), pod, ready_changed }
    }
}

/// A node of the watch.
#[derive(Debug, Deserialize)]
#[serde(from = "Node")]
pub(super) struct NodeUpdate {
    pub(super) name: Arc<str>,
    pub(super) node: core::Node,
}

impl From<Node> for NodeUpdate {
    fn from(node: Node) -> Self {
        Self { node: (&node).into(), name: node.metadata.name.into() }
    }
}

/// A slice of the watch.
#[derive(Debug, Deserialize)]
#[serde(from = "EndpointSlice")]
pub(super) struct SliceUpdate {
    /// `namespace/name`.
    pub(super) key: Box<str>,
    pub(super) name: Arc<str>,
    /// The service and the content; `None` if it is not a slice of ours, or is being deleted.
    pub(super) ours: Option<(ServiceId, core::EndpointSlice)>,
    pub(super) version: u64,
}

impl From<EndpointSlice> for SliceUpdate {
    fn from(slice: EndpointSlice) -> Self {
        let meta = &slice.metadata;
        let key = format!("{}/{}", meta.namespace(), meta.name).into();
        let (name, version) = (meta.name.as_str().into(), version(meta).unwrap_or_default());
        let managed = meta.labels.get(MANAGED_BY).map(String::as_str) == Some(MANAGER);
        let present = managed && meta.deletion_timestamp.is_none();
        let home = slice.service_name().and_then(|service| ServiceId::new(meta.namespace(), service).ok());
        let ours = home.filter(|_| present).and_then(|home| Some((home, from_kubernetes(slice)?)));
        Self { key, name, ours, version }
    }
}

/// The resource version of an object. The API server counts it up with every write.
pub(super) fn version(meta: &Meta) -> Option<u64> {
    meta.resource_version.as_deref()?.parse().ok()
}
