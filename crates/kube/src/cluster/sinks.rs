//! Where each watch writes what it sees.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use rouse_core::endpoint::ServiceId;

use super::{Cluster, Happening, lock};
use crate::feed::{Feed, SliceFacts};
use crate::objects::Service;
use crate::pods::{PodSeen, Put};
use crate::route::spec::{RouteKind, RouteObject};
use crate::service::ServiceFacts;
use crate::watch::Sink;

/// Makes the sinks.
pub(super) struct Sinks {
    pub(super) cluster: Arc<Cluster>,
    pub(super) feed: Arc<Mutex<Feed>>,
}

impl Sinks {
    pub(super) fn slices(&self) -> SliceSink {
        let (cluster, feed) = (Arc::clone(&self.cluster), Arc::clone(&self.feed));
        SliceSink { cluster, feed, warned: HashSet::new() }
    }

    pub(super) fn services(&self) -> ServiceSink {
        ServiceSink { cluster: Arc::clone(&self.cluster), feed: Arc::clone(&self.feed) }
    }

    pub(super) fn routes(&self, kind: RouteKind) -> RouteSink {
        RouteSink { cluster: Arc::clone(&self.cluster), kind }
    }

    pub(super) fn pods(&self) -> PodSink {
        PodSink { cluster: Arc::clone(&self.cluster), feed: Arc::clone(&self.feed) }
    }
}

/// Slices go straight to the registry: nothing may delay them.
pub(super) struct SliceSink {
    cluster: Arc<Cluster>,
    feed: Arc<Mutex<Feed>>,
    /// Services whose slices' faults have been told. One warning each.
    warned: HashSet<String>,
}

/// Beyond this many, no more warnings are remembered, and none are given.
const WARNINGS: usize = 1000;

impl SliceSink {
    fn warn(&mut self, slice: &SliceFacts) {
        let Some(fault) = slice.faults.first() else { return };
        let whose = slice.whose();
        if self.warned.len() < WARNINGS && !self.warned.contains(&whose) {
            self.cluster.tell(Happening::LeftOut(format!("EndpointSlice of Service {whose}: {fault}")));
            self.warned.insert(whose);
        }
    }
}

impl Sink for SliceSink {
    type Object = SliceFacts;

    fn replace(&mut self, all: Vec<SliceFacts>) {
        for slice in &all {
            self.warn(slice);
        }
        lock(&self.feed).replace_slices(all);
        self.cluster.mind_failures(|_| true);
    }

    fn put(&mut self, slice: SliceFacts) {
        self.warn(&slice);
        let home = slice.home.clone();
        lock(&self.feed).put_slice(slice);
        self.cluster.mind_failures(|failing| home.as_ref() == Some(failing));
    }

    fn remove(&mut self, slice: SliceFacts) {
        lock(&self.feed).remove_slice(&slice);
    }

    fn unreadable(&mut self, words: String) {
        self.cluster.tell(Happening::LeftOut(words));
    }
}

/// Services go to the registry, and routes depend on them.
pub(super) struct ServiceSink {
    cluster: Arc<Cluster>,
    feed: Arc<Mutex<Feed>>,
}

impl Sink for ServiceSink {
    type Object = Service;

    fn replace(&mut self, all: Vec<Service>) {
        let facts = all.into_iter().filter_map(|service| ServiceFacts::new(service).ok()).collect();
        lock(&self.feed).replace_services(facts);
        self.cluster.dirty.notify_one();
    }

    fn put(&mut self, service: Service) {
        let Ok(facts) = ServiceFacts::new(service) else { return };
        if lock(&self.feed).put_service(facts) {
            self.cluster.dirty.notify_one();
        }
    }

    fn remove(&mut self, service: Service) {
        if let Ok(id) = ServiceId::new(service.metadata.namespace(), &service.metadata.name) {
            lock(&self.feed).remove_service(&id);
            self.cluster.dirty.notify_one();
        }
    }

    fn unreadable(&mut self, words: String) {
        self.cluster.tell(Happening::LeftOut(words));
    }
}

/// Routes of one kind.
pub(super) struct RouteSink {
    cluster: Arc<Cluster>,
    kind: RouteKind,
}

impl Sink for RouteSink {
    type Object = RouteObject;

    fn replace(&mut self, all: Vec<RouteObject>) {
        self.cluster.knowledge().book.replace(self.kind, &all);
        self.cluster.dirty.notify_one();
    }

    fn put(&mut self, object: RouteObject) {
        self.cluster.knowledge().book.put(self.kind, &object);
        self.cluster.dirty.notify_one();
    }

    fn remove(&mut self, object: RouteObject) {
        self.cluster.knowledge().book.remove(self.kind, &object);
        self.cluster.dirty.notify_one();
    }

    fn unreadable(&mut self, words: String) {
        self.cluster.tell(Happening::LeftOut(words));
    }
}

/// Pods: whoever probes looks them up, and slices are believed only of pods that are there.
pub(super) struct PodSink {
    cluster: Arc<Cluster>,
    feed: Arc<Mutex<Feed>>,
}

impl Sink for PodSink {
    type Object = PodSeen;

    fn replace(&mut self, all: Vec<PodSeen>) {
        self.cluster.pods.replace(all);
        lock(&self.feed).pods_seen();
        self.cluster.mind_failures(|_| true);
    }

    fn listing(&mut self) {
        lock(&self.feed).pods_listing();
    }

    fn put(&mut self, pod: PodSeen) {
        let uid = pod.uid().cloned();
        let put = self.cluster.pods.put(pod);
        if put == Put::Same {
            return;
        }
        let mut feed = lock(&self.feed);
        if put == Put::Left {
            feed.pod_left();
        }
        if uid.is_some_and(|uid| feed.pod_changed(&uid)) {
            drop(feed);
            self.cluster.mind_failures(|_| true);
        }
    }

    fn remove(&mut self, pod: PodSeen) {
        self.cluster.pods.remove(&pod);
        lock(&self.feed).pod_left();
    }

    fn unreadable(&mut self, words: String) {
        self.cluster.tell(Happening::LeftOut(words));
    }
}
