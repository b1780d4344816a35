//! What Envoys get: translates routes, and publishes the endpoints of all services as they change.

mod publisher;
mod translate;

pub(crate) use publisher::{EnvoyPublisher, EnvoyView};
pub(crate) use translate::{EnvoyRoutes, translate};

/// The name of the route configuration. Bootstraps name it.
pub(crate) const ROUTE_CONFIGURATION: &str = "rouse";
