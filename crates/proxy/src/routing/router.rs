//! The current route table, which is replaced as a whole.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use rouse_core::host::Host;

use super::route::Route;
use super::table::RouteTable;
use crate::error::Failure;
use crate::message::RequestHead;

/// The present routes.
#[derive(Debug, Default)]
pub(crate) struct Router {
    routes: ArcSwap<RouteTable<Arc<Route>>>,
    /// Whether the first table is set. Before that, a request without a route may have one in a moment.
    started: AtomicBool,
}

impl Router {
    /// Replaces all routes at once. Requests under way keep the route that they have.
    pub(crate) fn set(&self, table: RouteTable<Arc<Route>>) {
        self.routes.store(Arc::new(table));
        // After the table: a request that sees this finds its route.
        self.started.store(true, Ordering::Release);
    }

    /// The present routes.
    pub(crate) fn routes(&self) -> Arc<RouteTable<Arc<Route>>> {
        self.routes.load_full()
    }

    /// The names of all services that the present routes lead to.
    pub(crate) fn services(&self) -> HashSet<String> {
        let services = |route: &Route| {
            let targets = [Some(&route.target), route.no_pod.fallback.as_ref()];
            let backends = targets.into_iter().flatten().filter_map(|target| target.backend().ok());
            let own = route.service.to_string();
            backends.map(|backend| backend.service.id().to_string()).chain([own]).collect::<Vec<_>>()
        };
        self.routes().rules().iter().flat_map(|rule| services(&rule.target)).collect()
    }

    /// The route of a request, or why there is none.
    pub(crate) fn find(
        &self,
        host: Option<&Host<'_>>,
        head: &impl RequestHead,
    ) -> Result<Arc<Route>, Failure> {
        self.search(|table| table.find(host, head).map(|rule| Arc::clone(&rule.target)))
    }

    fn search<T>(&self, find: impl FnOnce(&RouteTable<Arc<Route>>) -> Option<T>) -> Result<T, Failure> {
        // Before the table: the reverse order takes the empty table of the start for the first one that was set.
        let none = if self.started.load(Ordering::Acquire) { Failure::NoRoute } else { Failure::Starting };
        find(&self.routes.load()).ok_or(none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_comes_while_the_first_routes_are_set_fails_with_starting_and_not_with_no_route() {
        let router = Router::default();
        let found = router.search(|table| {
            assert!(table.rules().is_empty());
            router.set(RouteTable::new(Vec::new()));
            None::<()>
        });
        assert_eq!(found, Err(Failure::Starting));
        assert_eq!(router.search(|_| None::<()>), Err(Failure::NoRoute));
    }
}
