//! Applies watch events to the cache, and queues the services that they concern.

use std::sync::Arc;

use super::SliceController;
use super::updates::{NodeUpdate, PodUpdate, ServiceUpdate, SliceUpdate};
use crate::client::watch::Sink;
use crate::events::ClusterEvent;

/// The Services.
pub(super) struct ServiceSink(pub(super) Arc<SliceController>);

impl Sink for ServiceSink {
    type Object = ServiceUpdate;

    fn replace(&mut self, all: Vec<ServiceUpdate>) {
        self.0.apply(|cache| cache.replace_services(all));
    }

    fn put(&mut self, service: ServiceUpdate) {
        self.0.apply(|cache| cache.put_service(service));
    }

    fn remove(&mut self, service: ServiceUpdate) {
        self.0.apply(|cache| cache.remove_service(service));
    }

    fn unreadable(&mut self, words: String) {
        self.0.events.send(ClusterEvent::LeftOut(words));
    }
}

/// The pods.
pub(super) struct PodSink(pub(super) Arc<SliceController>);

impl Sink for PodSink {
    type Object = PodUpdate;

    fn replace(&mut self, all: Vec<PodUpdate>) {
        self.0.apply(|cache| cache.replace_pods(all));
    }

    fn put(&mut self, pod: PodUpdate) {
        self.0.apply(|cache| cache.put_pod(pod));
    }

    fn remove(&mut self, PodUpdate { pod, .. }: PodUpdate) {
        self.0.apply(|cache| cache.remove_pod(&pod.namespace, &pod.name));
    }

    fn unreadable(&mut self, words: String) {
        self.0.events.send(ClusterEvent::LeftOut(words));
    }
}

/// The nodes.
pub(super) struct NodeSink(pub(super) Arc<SliceController>);

impl Sink for NodeSink {
    type Object = NodeUpdate;

    fn replace(&mut self, all: Vec<NodeUpdate>) {
        self.0.apply(|cache| cache.replace_nodes(all));
    }

    fn put(&mut self, node: NodeUpdate) {
        self.0.apply(|cache| cache.put_node(node));
    }

    fn remove(&mut self, node: NodeUpdate) {
        self.0.apply(|cache| {
            cache.remove_node(&node);
            Vec::new()
        });
    }

    fn unreadable(&mut self, words: String) {
        self.0.events.send(ClusterEvent::LeftOut(words));
    }
}

/// Our slices.
pub(super) struct SliceSink(pub(super) Arc<SliceController>);

impl Sink for SliceSink {
    type Object = SliceUpdate;

    fn replace(&mut self, all: Vec<SliceUpdate>) {
        self.0.apply(|cache| cache.replace_slices(all));
    }

    fn put(&mut self, slice: SliceUpdate) {
        self.0.apply(|cache| cache.put_slice(slice));
    }

    fn remove(&mut self, slice: SliceUpdate) {
        self.0.apply(|cache| cache.remove_slice(&slice));
    }

    fn unreadable(&mut self, words: String) {
        self.0.events.send(ClusterEvent::LeftOut(words));
    }

    fn listing(&mut self) {
        self.0.apply(|cache| {
            cache.listing_slices();
            Vec::new()
        });
    }
}
