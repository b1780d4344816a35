//! Envoy's control plane: endpoints, clusters, routes and listeners over xDS, and the load that Envoys report.

pub mod cache;
pub mod load;
pub mod names;
pub mod resource_type;
pub mod resources;
