//! Builds Envoy's resources from what Rouse knows of routes and services: pure functions that return encoded messages.
//!
//! Equal input gives equal bytes: the version of a resource is a hash of them.

mod cluster;
mod endpoints;
mod listener;
mod messages;
mod routes;
#[cfg(test)]
mod tests;

pub use cluster::{ClusterSpec, PodProtocol, PodRoots, PodTls, cluster};
pub use endpoints::endpoints;
pub use listener::listener;
pub use routes::{HostRoutes, PathRoute, RouteAction, routes};
