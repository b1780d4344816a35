//! What Envoys get: translates routes, and publishes the endpoints of all services as they change.

mod control_plane;
mod followers;
mod publisher;
mod translate;

pub(crate) use control_plane::{EnvoyClients, EnvoyControlPlane, LISTENER};
pub(crate) use followers::EnvoyFollowers;
pub(crate) use publisher::EnvoyView;
pub(crate) use translate::translate;

/// The name of the route configuration. Bootstraps name it.
pub(crate) const ROUTE_CONFIGURATION: &str = "rouse";
