//! Applies watch events of slices, Services and pods to the registry and to the pod index.

use std::collections::HashSet;
use std::sync::Arc;

use rouse_core::endpoint::ServiceId;

use super::pod_index::{PodChange, PodUpdate};
use super::slice_facts::SliceFacts;
use super::{EndpointController, EndpointListener};
use crate::client::watch::Sink;
use crate::events::ClusterEvent;
use crate::objects::Service;
use crate::objects::service_summary::ServiceSummary;

/// The most warnings that are remembered. Beyond this number, none are sent.
const WARNINGS: usize = 1000;

/// Writes slices straight to the registry: a queue here would delay every cold start.
pub(super) struct SliceSink<L> {
    feed: Arc<EndpointController>,
    listener: Arc<L>,
    /// Services, and slices without one, whose faults were reported. One warning each.
    warned: HashSet<String>,
}

impl<L: EndpointListener> SliceSink<L> {
    pub(super) fn new(feed: &Arc<EndpointController>, listener: &Arc<L>) -> Self {
        Self { feed: Arc::clone(feed), listener: Arc::clone(listener), warned: HashSet::new() }
    }

    fn warn(&mut self, slice: &SliceFacts) {
        let Some(fault) = slice.faults.first() else { return };
        let whose = slice.whose();
        if self.warned.len() < WARNINGS && !self.warned.contains(&whose) {
            let text = format!("EndpointSlice {}: {fault}", slice.key);
            self.feed.events.send(ClusterEvent::LeftOut(text));
            self.warned.insert(whose);
        }
    }
}

impl<L: EndpointListener> Sink for SliceSink<L> {
    type Object = SliceFacts;

    fn replace(&mut self, all: Vec<SliceFacts>) {
        for slice in &all {
            self.warn(slice);
        }
        self.feed.lock().replace_slices(all);
        self.listener.endpoints_changed(None);
    }

    fn put(&mut self, slice: SliceFacts) {
        self.warn(&slice);
        let home = slice.home.clone();
        self.feed.lock().put_slice(slice);
        if let Some(home) = home {
            self.listener.endpoints_changed(Some(&home));
        }
    }

    fn remove(&mut self, slice: SliceFacts) {
        self.feed.lock().remove_slice(&slice);
    }

    fn unreadable(&mut self, words: String) {
        self.feed.events.send(ClusterEvent::LeftOut(words));
    }
}

/// Writes Services to the registry, and has routes compiled again, which depend on them.
pub(super) struct ServiceSink<L> {
    feed: Arc<EndpointController>,
    listener: Arc<L>,
}

impl<L: EndpointListener> ServiceSink<L> {
    pub(super) fn new(feed: &Arc<EndpointController>, listener: &Arc<L>) -> Self {
        Self { feed: Arc::clone(feed), listener: Arc::clone(listener) }
    }
}

impl<L: EndpointListener> Sink for ServiceSink<L> {
    type Object = Service;

    fn replace(&mut self, all: Vec<Service>) {
        let facts = all.into_iter().filter_map(|service| ServiceSummary::new(service).ok()).collect();
        self.feed.lock().replace_services(facts);
        self.feed.push.services_listed();
        self.listener.services_changed();
    }

    fn put(&mut self, service: Service) {
        let Ok(facts) = ServiceSummary::new(service) else { return };
        let id = facts.id.clone();
        let changed = self.feed.lock().put_service(facts);
        if changed {
            self.feed.push.service_changed(&id);
            self.listener.services_changed();
        }
    }

    fn remove(&mut self, service: Service) {
        if let Ok(id) = ServiceId::new(service.metadata.namespace(), &service.metadata.name) {
            self.feed.lock().remove_service(&id);
            self.feed.push.service_changed(&id);
            self.listener.services_changed();
        }
    }

    fn unreadable(&mut self, words: String) {
        self.feed.events.send(ClusterEvent::LeftOut(words));
    }
}

/// Writes pods to the index that probes and the ownership check read.
pub(super) struct PodSink<L> {
    feed: Arc<EndpointController>,
    listener: Arc<L>,
}

impl<L: EndpointListener> PodSink<L> {
    pub(super) fn new(feed: &Arc<EndpointController>, listener: &Arc<L>) -> Self {
        Self { feed: Arc::clone(feed), listener: Arc::clone(listener) }
    }
}

impl<L: EndpointListener> Sink for PodSink<L> {
    type Object = PodUpdate;

    fn replace(&mut self, all: Vec<PodUpdate>) {
        self.feed.propagation.pods_listed(&all);
        self.feed.pods.replace(all);
        self.feed.push.pods_listed();
        self.feed.lock().pods_seen();
        self.listener.endpoints_changed(None);
    }

    fn listing(&mut self) {
        self.feed.lock().pods_listing();
        self.feed.push.pods_listing();
    }

    fn put(&mut self, pod: PodUpdate) {
        self.feed.propagation.pod_put(&pod);
        let (uid, any_uid) = (pod.uid().cloned(), pod.any_uid().cloned());
        let put = self.feed.pods.put(pod);
        match (&uid, any_uid) {
            // It has ended.
            (None, Some(uid)) => self.feed.push.pod_gone(&uid),
            (Some(uid), _) if put != PodChange::Same => self.feed.push.pod_changed(uid),
            _ => {}
        }
        if put == PodChange::Same {
            return;
        }
        let mut feed = self.feed.lock();
        if put == PodChange::Left {
            feed.pod_left();
        }
        let given = uid.is_some_and(|uid| feed.pod_changed(&uid));
        drop(feed);
        if given {
            self.listener.endpoints_changed(None);
        }
    }

    fn remove(&mut self, pod: PodUpdate) {
        self.feed.pods.remove(&pod);
        if let Some(uid) = pod.any_uid() {
            self.feed.propagation.pod_removed(uid);
            self.feed.push.pod_gone(uid);
        }
        self.feed.lock().pod_left();
    }

    fn unreadable(&mut self, words: String) {
        self.feed.events.send(ClusterEvent::LeftOut(words));
    }
}
