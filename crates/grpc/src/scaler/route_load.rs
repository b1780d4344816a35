//! The load of routes, as the scaler needs it: a trait for where it comes from, and a board that implements it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::trigger::ScaledRoute;

/// The present load of a route, and its targets.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RouteLoad {
    /// Whether the route needs at least one pod. A route with a held request is active anyway.
    pub active: bool,
    /// Requests that wait for a pod.
    pub held: u64,
    /// Requests that are present, held ones included.
    pub concurrency: u64,
    /// Requests per second, over the window of the route.
    pub rate: f64,
    /// The concurrency that one pod is for; `None`: the route does not scale on it.
    pub concurrency_target: Option<f64>,
    /// The request rate that one pod is for; `None`: the route does not scale on it.
    pub rate_target: Option<f64>,
}

impl RouteLoad {
    /// Whether the route needs at least one pod.
    pub fn is_active(&self) -> bool {
        self.active || self.held > 0
    }
}

/// Knows the load of all routes.
pub trait RouteLoadSource: Send + Sync + 'static {
    /// The present load of a route. `None`: there is no such route.
    fn find(&self, route: &ScaledRoute) -> Option<RouteLoad>;

    /// Follows the load of a route, whether it exists now or not. KEDA names the route: one that does not exist must cost nothing
    /// when nothing follows it any more.
    fn follow(&self, route: &ScaledRoute) -> watch::Receiver<Option<RouteLoad>>;

    /// Follows the requests of all routes that are present.
    fn follow_total(&self) -> watch::Receiver<u64>;
}

/// The load of all routes, as the controller publishes it. Clones are the same board.
#[derive(Debug, Clone, Default)]
pub struct RouteLoadStore {
    routes: Arc<Mutex<Routes>>,
    total: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Routes {
    /// Routes that exist, and those that only are followed.
    by_name: HashMap<ScaledRoute, watch::Sender<Option<RouteLoad>>>,
    /// At this length, names that nothing follows are removed.
    clean_at: usize,
}

impl Routes {
    /// A name that does not exist was followed: removes others, unless that was done a short while ago.
    fn clean(&mut self) {
        if self.by_name.len() < self.clean_at {
            return;
        }
        self.by_name.retain(|_, sender| !sender.is_closed() || sender.borrow().is_some());
        self.clean_at = (2 * self.by_name.len()).max(1024);
    }
}

impl RouteLoadStore {
    /// The route exists, and this is its load.
    pub fn publish(&self, route: &ScaledRoute, load: RouteLoad) {
        self.replace(route, Some(load));
    }

    /// The route does not exist any more.
    pub fn remove(&self, route: &ScaledRoute) {
        self.replace(route, None);
    }

    /// How many routes it knows, with those that only are followed.
    pub fn names(&self) -> usize {
        self.routes().by_name.len()
    }

    fn replace(&self, route: &ScaledRoute, load: Option<RouteLoad>) {
        let mut routes = self.routes();
        if load.is_none() && !routes.by_name.contains_key(route) {
            return;
        }
        let sender = routes.by_name.entry(route.clone()).or_default();
        let before = sender.send_replace(load);
        let requests = |load: Option<RouteLoad>| load.map_or(0, |load| load.concurrency);
        let (gone, new) = (requests(before), requests(load));
        if load.is_none() && sender.is_closed() {
            routes.by_name.remove(route);
        }
        // Under the lock: otherwise two changes could be added up in the wrong order.
        self.total.send_if_modified(|total| {
            *total = total.saturating_sub(gone).saturating_add(new);
            gone != new
        });
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RouteLoadSource for RouteLoadStore {
    fn find(&self, route: &ScaledRoute) -> Option<RouteLoad> {
        *self.routes().by_name.get(route)?.borrow()
    }

    fn follow(&self, route: &ScaledRoute) -> watch::Receiver<Option<RouteLoad>> {
        let mut routes = self.routes();
        if !routes.by_name.contains_key(route) {
            routes.clean();
        }
        routes.by_name.entry(route.clone()).or_default().subscribe()
    }

    fn follow_total(&self) -> watch::Receiver<u64> {
        self.total.subscribe()
    }
}
