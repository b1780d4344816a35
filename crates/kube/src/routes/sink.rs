//! Applies watch events of route objects to the route store.

use std::sync::Arc;

use super::planner::RoutePlanner;
use crate::client::watch::Sink;
use crate::events::ClusterEvent;
use crate::objects::route::{RouteKind, RouteObject};

/// Writes route objects of one kind to the store, and has routes compiled again.
pub(super) struct RouteSink {
    pub(super) planner: Arc<RoutePlanner>,
    pub(super) kind: RouteKind,
}

impl Sink for RouteSink {
    type Object = RouteObject;

    fn replace(&mut self, all: Vec<RouteObject>) {
        self.planner.state().store.replace(self.kind, &all);
        self.planner.refresh();
    }

    fn put(&mut self, object: RouteObject) {
        self.planner.state().store.put(self.kind, &object);
        self.planner.refresh();
    }

    fn remove(&mut self, object: RouteObject) {
        self.planner.state().store.remove(self.kind, &object);
        self.planner.refresh();
    }

    fn unreadable(&mut self, words: String) {
        self.planner.events().send(ClusterEvent::LeftOut(words));
    }
}
